//! What the watches have shown so far, cut to what is needed: runs, their pods, and the network policies beside them.
//!
//! No I/O: the watches put in, the workers take out. A finished run is a few hundred bytes; a live one keeps its parsed
//! spec, shared with everybody who needs it. What a worker has just made it puts in itself, so that it need not wait for
//! the watch; an older view of the same object never replaces a newer one.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use crate::api::{
    Attempt, Failure, Namespace, Phase, RunKey, RunSpec, RunUid, SandboxRunStatus, Wishes,
};
use crate::manifest::POLICY_NAME;
use crate::run::Pod;

/// Pods that went and are remembered: many more than go while one call is under way, 20 s at 100 runs a second.
const GONE: usize = 4096;

/// What is known of the cluster.
#[derive(Debug, Default)]
pub(super) struct Store {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Scopes whose runs were listed: one namespace, or all.
    listed: HashSet<Option<Namespace>>,
    runs: HashMap<RunUid, Arc<SeenRun>>,
    pods: HashMap<RunUid, BTreeMap<Attempt, Arc<SeenPod>>>,
    /// The uids of the pods that went last: a worker whose call was under way then must not put one back.
    gone: (HashSet<Arc<str>>, VecDeque<Arc<str>>),
    policies: HashMap<String, SeenPolicies>,
}

/// A `SandboxRun`.
#[derive(Debug, Clone)]
pub(super) struct SeenRun {
    pub(super) key: RunKey,
    pub(super) generation: Option<i64>,
    pub(super) created_at: Option<Timestamp>,
    /// Somebody deleted it, and something keeps it from going.
    pub(super) deleting: bool,
    /// What can be changed while it lives.
    pub(super) wishes: Wishes,
    pub(super) body: Body,
    /// As it is stored; `None` where there is none, and for a finished run, whose status is never written again.
    pub(super) status: Option<Arc<SandboxRunStatus>>,
}

/// What a run asks for.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// Every rule kept.
    Whole {
        spec: Arc<RunSpec>,
        digest: Arc<str>,
    },
    /// It decodes, and breaks rules.
    Broken { failure: Failure, digest: Arc<str> },
    /// It does not decode.
    Undecodable(Failure),
    /// Its last word is in its status, for this very generation.
    Finished(Finished),
}

/// What is kept of a run that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) at: Option<Timestamp>,
}

/// A pod of a run.
#[derive(Debug, Clone)]
pub(super) struct SeenPod {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) node: Option<String>,
    pub(super) pod: Pod,
    /// The broker's last words.
    pub(super) message: Option<String>,
    /// By which policies select it; `None` once nothing runs in it any more.
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Somebody deleted it.
    pub(super) deleting: bool,
    /// Its version at the API server.
    pub(super) version: u64,
}

/// The policies of a namespace, as far as they concern runs.
#[derive(Debug, Clone, Default)]
struct SeenPolicies {
    /// Ours: its version, and whether it is as we made it.
    ours: Option<(u64, bool)>,
    /// The others, by name: cut to what they select and allow.
    others: BTreeMap<String, Arc<NetworkPolicy>>,
}

impl SeenPod {
    /// Whether nothing that a decision rests on differs.
    fn says_the_same(&self, other: &Self) -> bool {
        self.pod == other.pod
            && self.node == other.node
            && self.message == other.message
            && self.labels == other.labels
            && self.deleting == other.deleting
    }
}

impl Store {
    /// The run of this uid.
    pub(super) fn run(&self, uid: &RunUid) -> Option<Arc<SeenRun>> {
        self.inner().runs.get(uid).cloned()
    }

    /// Takes what a watch shows of a run.
    pub(super) fn put_run(&self, run: SeenRun) {
        self.inner().runs.insert(run.key.uid.clone(), Arc::new(run));
    }

    /// A run is gone.
    pub(super) fn drop_run(&self, uid: &RunUid) {
        self.inner().runs.remove(uid);
    }

    /// Drops every run of a scope that its new list does not have: they were deleted while nobody looked.
    pub(super) fn keep_runs(
        &self,
        scope: Option<&Namespace>,
        listed: &HashSet<RunUid>,
    ) -> Vec<RunUid> {
        let mut gone = Vec::new();
        let mut inner = self.inner();
        inner.listed.insert(scope.cloned());
        inner.runs.retain(|uid, run| {
            let inside = scope.is_none_or(|scope| *scope == run.key.namespace);
            let stays = !inside || listed.contains(uid);
            if !stays {
                gone.push(uid.clone());
            }
            stays
        });
        gone
    }

    /// Whether every run of a namespace has been seen.
    pub(super) fn has_listed(&self, namespace: &Namespace) -> bool {
        let listed = &self.inner().listed;
        listed.contains(&None) || listed.contains(&Some(namespace.clone()))
    }

    /// Runs of a namespace that have not finished.
    pub(super) fn live_in(&self, namespace: &str) -> Vec<RunUid> {
        let inner = self.inner();
        let live = inner.runs.values().filter(|run| {
            run.key.namespace.as_str() == namespace && !matches!(run.body, Body::Finished(_))
        });
        live.map(|run| run.key.uid.clone()).collect()
    }

    /// How many runs that have not finished are in each phase, by their status.
    pub(super) fn phases(&self) -> BTreeMap<Phase, i64> {
        let all = [
            Phase::Pending,
            Phase::Resolving,
            Phase::Provisioning,
            Phase::Running,
            Phase::Collecting,
        ];
        let mut counts: BTreeMap<Phase, i64> = all.into_iter().map(|phase| (phase, 0)).collect();
        for run in self.inner().runs.values() {
            if matches!(run.body, Body::Finished(_)) {
                continue;
            }
            let phase = run
                .status
                .as_ref()
                .map_or(Phase::Pending, |status| status.phase);
            if let Some(count) = counts.get_mut(&phase) {
                *count += 1;
            }
        }
        counts
    }

    /// The pods of a run, by attempt.
    pub(super) fn pods(&self, run: &RunUid) -> BTreeMap<Attempt, Arc<SeenPod>> {
        self.inner().pods.get(run).cloned().unwrap_or_default()
    }

    /// Every run that has a pod.
    pub(super) fn runs_with_pods(&self) -> Vec<RunUid> {
        self.inner().pods.keys().cloned().collect()
    }

    /// Takes a pod, unless a newer view of it is there. Whether it is news.
    pub(super) fn put_pod(&self, run: &RunUid, attempt: Attempt, pod: SeenPod) -> bool {
        let mut inner = self.inner();
        if inner.gone.0.contains(pod.uid.as_str()) {
            return false;
        }
        let pods = inner.pods.entry(run.clone()).or_default();
        let known = pods.get(&attempt).filter(|known| known.uid == pod.uid);
        if known.is_some_and(|known| known.version > pod.version) {
            return false;
        }
        let news = known.is_none_or(|known| !known.says_the_same(&pod));
        pods.insert(attempt, Arc::new(pod));
        news
    }

    /// A pod is gone, for good; another one of its name stays.
    pub(super) fn drop_pod(&self, run: &RunUid, attempt: Attempt, uid: &str) {
        let mut inner = self.inner();
        let (known, order) = &mut inner.gone;
        let uid_kept: Arc<str> = uid.into();
        if known.insert(Arc::clone(&uid_kept)) {
            order.push_back(uid_kept);
        }
        if order.len() > GONE
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        if let Some(pods) = inner.pods.get_mut(run) {
            if pods.get(&attempt).is_some_and(|pod| pod.uid == uid) {
                pods.remove(&attempt);
            }
            if pods.is_empty() {
                inner.pods.remove(run);
            }
        }
    }

    /// Drops every pod of a scope that its new list does not have. The runs that they belonged to.
    pub(super) fn keep_pods(&self, scope: Option<&str>, listed: &HashSet<String>) -> Vec<RunUid> {
        let mut touched = Vec::new();
        self.inner().pods.retain(|run, pods| {
            let before = pods.len();
            pods.retain(|_, pod| {
                scope.is_some_and(|scope| scope != pod.namespace) || listed.contains(&pod.uid)
            });
            if pods.len() < before {
                touched.push(run.clone());
            }
            !pods.is_empty()
        });
        touched
    }

    /// Whether our policy is there as we made it; `None`: it is not there.
    pub(super) fn own_policy(&self, namespace: &str) -> Option<bool> {
        let inner = self.inner();
        let (_, as_made) = inner.policies.get(namespace)?.ours?;
        Some(as_made)
    }

    /// The policies of a namespace that are not ours.
    pub(super) fn other_policies(&self, namespace: &str) -> Vec<Arc<NetworkPolicy>> {
        let inner = self.inner();
        let seen = inner.policies.get(namespace);
        seen.map(|seen| seen.others.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Takes what our own policy looks like. Whether that is news.
    pub(super) fn put_policy(&self, namespace: &str, version: Option<&str>, as_made: bool) -> bool {
        let mut inner = self.inner();
        let seen = inner.policies.entry(namespace.to_owned()).or_default();
        let version = number(version);
        let known = seen.ours;
        if known.is_some_and(|(known, _)| known > version) {
            return false;
        }
        seen.ours = Some((version, as_made));
        known.map(|(_, was)| was) != Some(as_made)
    }

    /// Takes another policy. Whether that is news.
    pub(super) fn put_other(&self, namespace: &str, name: &str, policy: NetworkPolicy) -> bool {
        let mut inner = self.inner();
        let seen = inner.policies.entry(namespace.to_owned()).or_default();
        let policy = Arc::new(policy);
        let before = seen.others.insert(name.to_owned(), Arc::clone(&policy));
        before.is_none_or(|before| before.spec != policy.spec)
    }

    /// A policy is gone. Whether that is news to runs.
    pub(super) fn drop_policy(&self, namespace: &str, name: &str) -> bool {
        let mut inner = self.inner();
        let Some(seen) = inner.policies.get_mut(namespace) else {
            return false;
        };
        if name == POLICY_NAME {
            seen.ours.take().is_some()
        } else {
            seen.others.remove(name).is_some()
        }
    }

    /// Drops every policy of a scope that its new list does not have. The namespaces where that is news.
    pub(super) fn keep_policies(
        &self,
        scope: Option<&str>,
        listed: &HashSet<(String, String)>,
    ) -> Vec<String> {
        let mut touched = Vec::new();
        for (namespace, seen) in &mut self.inner().policies {
            if scope.is_some_and(|scope| scope != namespace) {
                continue;
            }
            let is_listed = |name: &str| listed.contains(&(namespace.clone(), name.to_owned()));
            let before = (seen.ours.is_some(), seen.others.len());
            seen.ours = seen.ours.filter(|_| is_listed(POLICY_NAME));
            seen.others.retain(|name, _| is_listed(name));
            if before != (seen.ours.is_some(), seen.others.len()) {
                touched.push(namespace.clone());
            }
        }
        touched
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Versions of objects are numbers that grow, which Kubernetes promises since 1.35 and has always kept.
pub(super) fn number(version: Option<&str>) -> u64 {
    version
        .and_then(|text| text.parse().ok())
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(n: u32) -> RunUid {
        format!("{n:02}").parse().unwrap()
    }

    fn pod(uid: &str, version: u64, pod: Pod) -> SeenPod {
        SeenPod {
            name: "p".into(),
            uid: uid.into(),
            namespace: "team".into(),
            node: None,
            pod,
            message: None,
            labels: None,
            deleting: false,
            version,
        }
    }

    #[test]
    fn an_older_view_of_a_pod_never_replaces_a_newer_one() {
        let store = Store::default();
        let first = Attempt::FIRST;
        assert!(store.put_pod(&uid(1), first, pod("a", 7, Pod::Running)));
        assert!(!store.put_pod(&uid(1), first, pod("a", 6, Pod::Starting(None))));
        assert!(
            !store.put_pod(&uid(1), first, pod("a", 8, Pod::Running)),
            "it says the same"
        );
        assert_eq!(store.pods(&uid(1))[&first].pod, Pod::Running);
        store.drop_pod(&uid(1), first, "another one");
        assert_eq!(store.pods(&uid(1)).len(), 1);
        store.drop_pod(&uid(1), first, "a");
        assert!(store.pods(&uid(1)).is_empty());
    }

    /// P05: a call that was under way when the pod went must not put it back.
    #[test]
    fn p05_a_pod_that_went_does_not_come_back() {
        let store = Store::default();
        let first = Attempt::FIRST;
        store.put_pod(&uid(1), first, pod("a", 7, Pod::Running));
        store.drop_pod(&uid(1), first, "a");
        assert!(!store.put_pod(&uid(1), first, pod("a", 8, Pod::Running)));
        assert!(store.pods(&uid(1)).is_empty());
        for n in 0..2 * GONE {
            store.drop_pod(&uid(2), first, &n.to_string());
        }
        let gone = &store.inner().gone;
        assert_eq!((gone.0.len(), gone.1.len()), (GONE, GONE));
    }

    #[test]
    fn a_new_list_drops_what_it_does_not_have_in_its_own_scope_alone() {
        let store = Store::default();
        for n in [1, 2] {
            store.put_pod(
                &uid(n),
                Attempt::FIRST,
                pod(&format!("pod-{n}"), 1, Pod::Running),
            );
        }
        let listed = HashSet::from(["pod-1".to_owned()]);
        assert!(store.keep_pods(Some("elsewhere"), &listed).is_empty());
        assert_eq!(store.keep_pods(Some("team"), &listed), [uid(2)]);
        assert_eq!(store.pods(&uid(1)).len(), 1);
    }

    #[test]
    fn our_own_policy_is_believed_by_its_newest_version() {
        let store = Store::default();
        assert_eq!(store.own_policy("team"), None);
        assert!(store.put_policy("team", Some("5"), true));
        assert!(
            !store.put_policy("team", Some("4"), false),
            "the watch is behind"
        );
        assert_eq!(store.own_policy("team"), Some(true));
        assert!(store.put_policy("team", Some("6"), false));
        assert_eq!(store.own_policy("team"), Some(false));
        assert!(store.drop_policy("team", POLICY_NAME));
        assert_eq!(store.own_policy("team"), None);
    }
}
