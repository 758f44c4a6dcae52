//! What the API server holds, and what caches of it look like later.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use sandboxrun::api::{Attempt, Failure, Reason};
use sandboxrun::run::{Pod, PodTrouble};

use super::kubelet::{PodModel, Stage};
use super::world::{Stored, World};

/// The `SandboxRun` as users made it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) rerun: String,
    pub(crate) cancel: bool,
    pub(crate) suspend: bool,
    pub(crate) deleted: bool,
}

/// One moment of the API server.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) object: Object,
    pub(crate) pods: BTreeMap<Attempt, PodModel>,
    pub(crate) policy: bool,
    pub(crate) status: Rc<Stored>,
}

pub(crate) struct Cluster {
    pub(crate) object: Object,
    pub(crate) pods: BTreeMap<Attempt, PodModel>,
    pub(crate) policy: bool,
    pub(crate) status: Rc<Stored>,
    pub(crate) past: Vec<Rc<Snapshot>>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let mut cluster = Self {
            object: Object::default(),
            pods: BTreeMap::new(),
            policy: false,
            status: Rc::new((0, None)),
            past: Vec::new(),
        };
        cluster.past.push(Rc::new(cluster.moment()));
        cluster
    }

    fn moment(&self) -> Snapshot {
        Snapshot {
            object: self.object.clone(),
            pods: self.pods.clone(),
            policy: self.policy,
            status: Rc::clone(&self.status),
        }
    }

    pub(crate) fn delete(&mut self, attempt: Attempt, now: Timestamp) {
        if let Some(pod) = self.pods.get_mut(&attempt) {
            pod.deleting.get_or_insert(now);
        }
    }

    /// The owner is gone, so its pods go.
    pub(crate) fn collect_garbage(&mut self, now: Timestamp) {
        for pod in self.pods.values_mut() {
            pod.deleting.get_or_insert(now);
        }
    }

    /// Whether some pod goes on by itself.
    pub(crate) fn at_work(&self) -> bool {
        let done = |pod: &PodModel| pod.cut_off.is_some() || matches!(pod.stage, Stage::Over(_));
        !self.pods.values().all(done)
    }

    pub(crate) fn heal(&mut self, lost_nodes_stay_lost: bool) {
        for pod in self.pods.values_mut() {
            pod.trouble = None;
            if !lost_nodes_stay_lost {
                pod.cut_off = None;
            }
        }
    }
}

impl World {
    pub(crate) fn snapshot(&mut self) {
        let moment = self.cluster.moment();
        if !self.chaos {
            self.cluster.past.clear();
        }
        self.cluster.past.push(Rc::new(moment));
    }

    /// A cache: mostly a little behind, now and then far behind, as after a relist from an old server.
    pub(crate) fn cached(&mut self) -> Rc<Snapshot> {
        let last = self.cluster.past.len() - 1;
        let behind = if !self.chaos {
            0
        } else if self.chance.one_in(60) {
            self.chance.below(last as u64 + 1)
        } else {
            self.chance.below(6)
        };
        Rc::clone(&self.cluster.past[last.saturating_sub(usize::try_from(behind).unwrap())])
    }

    /// What happens to nodes, pods and policies.
    pub(crate) fn cluster_faults(&mut self) {
        let now = self.now;
        if self.chance.one_in(200) {
            self.cluster.policy = false;
        }
        if self
            .chance
            .one_in(if self.quota_used_up { 120 } else { 400 })
        {
            self.quota_used_up = !self.quota_used_up;
        }
        let attempts: Vec<_> = self.cluster.pods.keys().copied().collect();
        for attempt in attempts {
            let dice = self.chance.below(900);
            let heals = self.chance.one_in(40);
            let Some(pod) = self.cluster.pods.get_mut(&attempt) else {
                continue;
            };
            match dice {
                0..6 => pod.cut_off = pod.cut_off.or(Some(now)), // the node is lost
                6..10 => pod.deleting = pod.deleting.or(Some(now)), // by hand
                10..14 if pod.cut_off.is_none() => pod.evict(now),
                14..20 if pod.stage == Stage::Pending => {
                    pod.trouble = Some(PodTrouble {
                        failure: Failure::new(Reason::ImagePullFailed, "no such image"),
                        since: now,
                    });
                }
                _ => {}
            }
            if heals {
                pod.cut_off = None;
                if self.chance.one_in(4) {
                    pod.trouble = None;
                }
            }
        }
    }
}

/// How a pod looks to a controller.
pub(crate) fn look(pod: Option<&PodModel>, now: Timestamp) -> Pod {
    let Some(pod) = pod else {
        return Pod::Absent;
    };
    let leaving = |reason, since| Pod::Leaving {
        reason,
        since,
        deleted: pod.deleting.is_some(),
        words: String::new(),
    };
    // The node controller takes its time to see a lost node.
    if let Some(since) = pod.cut_off
        && now >= since + Duration::from_secs(40)
    {
        return leaving(Reason::NodeLost, since);
    }
    if let Some(since) = pod.evicted {
        return leaving(Reason::PodEvicted, since);
    }
    if let Some(since) = pod.deleting {
        return leaving(Reason::PodDeletedByHand, since);
    }
    match &pod.stage {
        Stage::Pending => Pod::Starting(pod.trouble.clone()),
        Stage::Provisioning | Stage::Proving => Pod::Starting(None),
        Stage::Asking | Stage::Running(_) => Pod::Running,
        // The kubelet sees a container's end when it is over; the gateway may hear of it before or after.
        Stage::Ended(_) | Stage::Told => Pod::Collecting(None),
        Stage::Over(failure) => Pod::Ended(failure.clone()),
    }
}
