//! What a decision rests on, put together from what is known: the object, the record, the pods, the policies. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::desk::Desk;
use super::life::Life;
use super::store::{Body, SeenPod, SeenRun};
use crate::api::{Attempt, Failure, Fault as _, OnDrift, Reason, RunKey, Wishes};
use crate::manifest;
use crate::run::{
    AttemptState, InputFacts, Observed, Pod, Policy, RecordFacts, Resolution, SpecFacts, Wish,
};

/// What was seen in the cluster at one look.
#[derive(Debug)]
pub(super) struct Sight {
    /// The attempt that was the newest one then.
    pub(super) attempt: Option<Attempt>,
    /// The pods of the run, as the watch shows them.
    pub(super) pods: BTreeMap<Attempt, Arc<SeenPod>>,
    /// What the API server said of the newest attempt's pod, if the watch shows none.
    pub(super) asked: Option<Asked>,
    pub(super) policy: Policy,
    /// What is to be said of a fetch that takes long.
    pub(super) slow: Option<Failure>,
}

/// What the API server said of a pod.
#[derive(Debug)]
pub(super) enum Asked {
    /// It is not there.
    Absent,
    /// One of that name is there, and belongs to somebody else.
    Foreign(Failure),
    /// It is there.
    Found(Arc<SeenPod>),
    /// Nothing.
    NoAnswer,
}

impl Sight {
    /// The node of the newest attempt's pod.
    pub(super) fn node(&self) -> Option<&str> {
        self.pod()?.node.as_deref()
    }

    /// The last words of an attempt's broker.
    pub(super) fn message(&self, attempt: Attempt) -> Option<&str> {
        let newest = self.pod().filter(|_| self.attempt == Some(attempt));
        let of_attempt = newest.or_else(|| self.pods.get(&attempt).map(Arc::as_ref));
        of_attempt?.message.as_deref()
    }

    /// The newest attempt's pod.
    pub(super) fn pod(&self) -> Option<&SeenPod> {
        let seen = self.attempt.and_then(|attempt| self.pods.get(&attempt));
        seen.map(Arc::as_ref).or(match &self.asked {
            Some(Asked::Found(pod)) => Some(pod),
            Some(Asked::Absent | Asked::Foreign(_) | Asked::NoAnswer) | None => None,
        })
    }
}

/// A run, with this record.
pub(super) fn run(
    desk: &Desk,
    run: Option<&SeenRun>,
    life: &Life,
    sight: &Sight,
    record: Result<RecordFacts, Failure>,
) -> Observed {
    let nothing = RecordFacts::default();
    let facts = record.as_ref().unwrap_or(&nothing);
    let newest = facts.newest;
    let node = life.node.as_ref().filter(|(of, _)| Some(*of) == newest);
    let stray = |(attempt, pod): (&Attempt, &Arc<SeenPod>)| {
        (Some(*attempt) < newest && !pod.deleting).then_some(*attempt)
    };
    Observed {
        spec: spec_facts(desk, run, life, facts),
        wish: wish(run, life),
        resolution: resolution(life, newest),
        policy: sight.policy.clone(),
        pod: pod(life, sight, facts),
        strays: sight.pods.iter().filter_map(stray).collect(),
        node: node.map(|(_, node)| node.clone()),
        trouble: life.trouble.clone().or_else(|| sight.slow.clone()),
        limits: desk.limits,
        record,
    }
}

fn wish(run: Option<&SeenRun>, life: &Life) -> Wish {
    let stop = match run {
        None => Some(Reason::ObjectDeleted),
        Some(run) if run.deleting || life.namespace_ends => Some(Reason::ObjectDeleted),
        Some(run) => run.wishes.cancel.then_some(Reason::CancelRequested),
    };
    Wish {
        stop,
        suspend: run.is_some_and(|run| run.wishes.suspend),
    }
}

fn resolution(life: &Life, newest: Option<Attempt>) -> Resolution {
    let preparation = life.preparation.as_ref();
    let preparation = preparation.filter(|preparation| Some(preparation.attempt) == newest);
    preparation.map_or(Resolution::Idle, super::prepare::Preparation::resolution)
}

/// The policies of a run's namespace: ours, and what they open together for this pod.
pub(super) fn policy(
    desk: &Desk,
    key: &RunKey,
    attempt: Option<Attempt>,
    pod: Option<&SeenPod>,
) -> Policy {
    let namespace = key.namespace.as_str();
    let others = desk.store.other_policies(namespace);
    let others = others.iter().map(Arc::as_ref);
    // As it is: a label that somebody added puts it under other policies.
    let found = pod.and_then(|pod| pod.labels.clone());
    let labels = found.unwrap_or_else(|| {
        manifest::pod_labels(key, attempt.unwrap_or(Attempt::FIRST), &desk.installation)
    });
    governed(others, &labels, desk.store.own_policy(namespace))
}

/// What policies make of a pod with these labels. `ours`: whether our own one is as we made it.
fn governed<'a>(
    others: impl IntoIterator<Item = &'a NetworkPolicy>,
    labels: &BTreeMap<String, String>,
    ours: Option<bool>,
) -> Policy {
    if !labels.contains_key(manifest::RUN_LABEL) {
        let message = format!(
            "the label {} was taken off the pod, so that our policy does not select it",
            manifest::RUN_LABEL
        );
        return Policy::Impossible(Failure::new(Reason::PolicyLost, message));
    }
    match (manifest::opens_more(others, labels), ours) {
        (Some(opening), _) => Policy::Impossible(opening.failure(None)),
        (None, Some(true)) => Policy::InForce,
        (None, Some(false) | None) => Policy::Missing,
    }
}

/// The pod of the newest attempt. What this process knows of its own doing comes before what it sees.
fn pod(life: &Life, sight: &Sight, facts: &RecordFacts) -> Pod {
    let Some(newest) = facts.newest else {
        return Pod::Absent;
    };
    let about = |of: &Attempt| *of == newest;
    let open = facts
        .current()
        .is_some_and(|current| current.state == AttemptState::Open);
    if let Some((_, failure)) = life.mutated.as_ref().filter(|(of, _)| about(of) && open) {
        return Pod::Ended(Some(failure.clone()));
    }
    if open && life.incomparable == Some(newest) {
        // Nobody can say that it is what was sent, so no agent starts in it: another attempt takes its place.
        return Pod::Leaving {
            reason: Reason::RunAbandoned,
            since: Timestamp::UNIX_EPOCH,
            deleted: false,
            words: String::new(),
        };
    }
    let seen = if sight.attempt == Some(newest) {
        match (sight.pod(), &sight.asked) {
            (Some(pod), _) => pod.pod.clone(),
            (None, Some(Asked::Foreign(failure))) => Pod::Foreign(failure.clone()),
            (None, Some(Asked::NoAnswer)) => Pod::Unknown,
            (None, Some(Asked::Absent | Asked::Found(_)) | None) => Pod::Absent,
        }
    } else {
        Pod::Absent // it was dispatched a moment ago, by us
    };
    if seen != Pod::Absent {
        return seen;
    }
    if let Some((_, failure, at)) = life.refused.as_ref().filter(|(of, ..)| about(of)) {
        return Pod::Refused(failure.clone(), *at);
    }
    let preparation = life.preparation.as_ref();
    let preparation = preparation.filter(|preparation| about(&preparation.attempt));
    if let Some((failure, at)) = preparation.and_then(super::prepare::Preparation::unready) {
        return Pod::Refused(failure, at);
    }
    let current = facts.current().filter(|_| open);
    let unproven = current.filter(|current| current.provisioned.is_none());
    match unproven.and_then(|current| current.pod.as_ref()) {
        Some((announced, _)) if life.saw != Some(newest) => {
            let asked = life.asked_for.filter(|(of, _)| about(of));
            Pod::Unmade(asked.map_or(*announced, |(_, at)| at.max(*announced)))
        }
        Some(_) | None => Pod::Absent,
    }
}

/// What the spec says; where it is not at hand any more, what the record says of it.
fn spec_facts(desk: &Desk, run: Option<&SeenRun>, life: &Life, facts: &RecordFacts) -> SpecFacts {
    let wishes = run.map_or_else(Wishes::default, |run| run.wishes.clone());
    let ttl_after_finished = manifest::ttl_after_finished(&wishes, &desk.installation);
    let spec = run.and_then(|run| match &run.body {
        Body::Whole { spec, .. } => Some(spec),
        Body::Broken { .. } | Body::Undecodable(_) | Body::Finished(_) => None,
    });
    let rerun = if run.is_some() {
        wishes.rerun
    } else {
        facts.reruns.last().cloned().unwrap_or_default()
    };
    let mut known = SpecFacts {
        namespace: life.key.namespace.clone(),
        name: life.key.name.clone(),
        uid: life.key.uid.clone(),
        generation: run.and_then(|run| run.generation),
        rerun,
        inputs: Vec::new(),
        refused: life.refused_spec.clone(),
        on_drift: OnDrift::Report,
        timeout: std::time::Duration::MAX,
        start_timeout: std::time::Duration::MAX,
        infrastructure_retries: 0,
        ttl_after_finished,
    };
    if let Some(spec) = spec {
        known.inputs = spec
            .inputs
            .iter()
            .map(|input| InputFacts {
                name: input.name.clone(),
                repository: input.repository.to_string(),
                requested_ref: input.selector.to_string(),
            })
            .collect();
        known.on_drift = spec.on_drift;
        known.timeout = spec.agent.timeout;
        known.start_timeout = spec.placement.start_timeout;
        known.infrastructure_retries = spec.placement.infrastructure_retries;
    } else if let Some(current) = facts.current() {
        known.inputs = current
            .inputs
            .iter()
            .map(|input| InputFacts {
                name: input.name.clone(),
                repository: input.repository.clone(),
                requested_ref: String::new(),
            })
            .collect();
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// G04: a webhook adds a label to every pod, and a policy of the namespace selects it; or somebody takes ours away.
    #[rstest]
    #[case::as_it_was_sent(&[("sandboxrun.dev/run", "nightly")], "InForce")]
    #[case::a_label_more(&[("sandboxrun.dev/run", "nightly"), ("team", "b")], "InForce")]
    #[case::g04_a_label_that_opens(&[("sandboxrun.dev/run", "nightly"), ("team", "a")], "PolicyOpened")]
    #[case::g04_ours_was_taken(&[("team", "b")], "PolicyLost")]
    fn g04_a_pod_is_governed_by_the_labels_that_it_has(
        #[case] labels: &[(&str, &str)],
        #[case] want: &str,
    ) {
        let database: NetworkPolicy = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "database"},
            "spec": {"podSelector": {"matchLabels": {"team": "a"}}, "policyTypes": ["Egress"],
                "egress": [{"to": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]}]},
        }))
        .unwrap();
        let pairs = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let word = match governed([&database], &pairs.collect(), Some(true)) {
            Policy::InForce => "InForce",
            Policy::Missing => "Missing",
            Policy::Impossible(failure) => failure.reason.as_str(),
        };
        assert_eq!(word, want);
    }
}
