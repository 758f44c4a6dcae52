//! Everything that the workers share, and their work: looking at runs, each as soon as something about it changed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::identity::Lives;
use super::life::{Awaited, Lifes};
use super::metrics::Metrics;
use super::namespaces::Namespaces;
use super::policies::Policies;
use super::queue::Queue;
use super::store::Store;
use super::{reconcile, sweep, watches};
use crate::api::{Namespace, RunUid};
use crate::gateway::Gateway;
use crate::manifest::{self, Installation};
use crate::run::Limits;

/// How often the numbers of the operator's runs are counted.
const COUNT_EVERY: Duration = Duration::from_secs(10);

/// What was alive before is served again within this time, or waits for its packs like a new one.
const RESTORED: Duration = Duration::from_mins(5);
/// Between two looks whether it is.
const RESTORED_EVERY: Duration = Duration::from_millis(100);

/// What the work needs.
pub struct DeskParts {
    /// The API server.
    pub client: Client,
    /// The record, the inputs, and what pods talk to.
    pub gateway: Gateway,
    /// Where the gateway finds the runs that live.
    pub lives: Lives,
    /// What shapes pods, and bounds what runs may ask.
    pub installation: Installation,
    /// Where new pods find the gateway.
    pub door: Box<dyn Fn() -> manifest::Gateway + Send + Sync>,
    /// How long things may take.
    pub limits: Limits,
    /// `false`: a run that has inputs ends before anything happens.
    pub inputs_enabled: bool,
    /// What is watched; empty: every namespace.
    pub namespaces: Vec<Namespace>,
    /// The longest call to the API server.
    pub api_timeout: Duration,
    /// Runs that are worked at at once.
    pub concurrency: usize,
    /// What Prometheus reads.
    pub metrics: Metrics,
    /// The name of this operator's pod, for events.
    pub instance: String,
}

/// The shared things. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Desk(Arc<Inner>);

/// What a [`Desk`] holds.
pub(super) struct Inner {
    parts: DeskParts,
    pub(super) store: Store,
    pub(super) queue: Queue,
    pub(super) lifes: Lifes,
    pub(super) awaited: Awaited,
    pub(super) policies: Policies,
    pub(super) inputs_of: Namespaces,
    /// Told when a list came again, so that something may have been missed.
    pub(super) sweep: Notify,
    /// Ends everything that is begun here.
    pub(super) stop: CancellationToken,
}

impl std::ops::Deref for Desk {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl std::ops::Deref for Inner {
    type Target = DeskParts;

    fn deref(&self) -> &DeskParts {
        &self.parts
    }
}

impl Desk {
    /// Sets up, and begins nothing.
    pub(super) fn new(parts: DeskParts) -> Self {
        Self(Arc::new(Inner {
            parts,
            store: Store::default(),
            queue: Queue::default(),
            lifes: Lifes::default(),
            awaited: Awaited::default(),
            policies: Policies::default(),
            inputs_of: Namespaces::default(),
            sweep: Notify::new(),
            stop: CancellationToken::new(),
        }))
    }

    /// Looks after every run until `stop`, and then ends what it is at. `ready` is called when every object was seen.
    pub(super) async fn work(&self, stop: CancellationToken, ready: impl FnOnce()) {
        let ended = self.stop.clone().drop_guard();
        watches::begin(self, &stop).await;
        if stop.is_cancelled() {
            return;
        }
        // A run that was looked at and could not be read is not served either: each is awaited until it is, or need not be.
        for run in self.store.runs_with_pods() {
            self.awaited.set(&run, true);
        }
        ready();
        self.sweep.notify_one();
        let workers = TaskTracker::new();
        for _ in 0..self.concurrency.max(1) {
            let (desk, stop) = (self.clone(), stop.clone());
            workers.spawn(async move {
                while let Some(run) = stop.run_until_cancelled(desk.queue.next()).await {
                    desk.look_at(&run).await;
                }
            });
        }
        let (desk, until) = (self.clone(), stop.clone());
        workers.spawn(async move {
            until.run_until_cancelled(sweep::forever(&desk)).await;
        });
        let (desk, until) = (self.clone(), stop.clone());
        workers.spawn(async move {
            until.run_until_cancelled(desk.count()).await;
        });
        let (desk, until) = (self.clone(), stop.clone());
        workers.spawn(async move {
            until.run_until_cancelled(desk.restored()).await;
        });
        workers.close();
        // A worker ends what it is at, which takes no longer than its calls may.
        workers.wait().await;
        drop(ended);
    }

    /// Waits until every run that was alive before this process is served again: then a pod that is not known is nobody's.
    async fn restored(&self) {
        let began = Instant::now();
        while began.elapsed() < RESTORED {
            tokio::time::sleep(RESTORED_EVERY).await;
            if self.queue.depth() == (0, 0) && self.awaited.is_empty() {
                break;
            }
        }
        self.lives.are_whole();
        tracing::info!(after = ?began.elapsed(), "every run that lives is served");
    }

    /// Looks at one run, and never falls over it.
    async fn look_at(&self, run: &RunUid) {
        let began = Instant::now();
        let looked = AssertUnwindSafe(reconcile::look(self, run)).catch_unwind();
        let well = match looked.await {
            Ok(Ok(next_at)) => {
                self.queue.done(run, next_at);
                true
            }
            Ok(Err(error)) => {
                let pause = self.queue.failed(run);
                tracing::warn!(uid = %run, error = %super::causes(&error), ?pause, "a run could not be looked after and is tried again");
                false
            }
            Err(_) => {
                let pause = self.queue.failed(run);
                tracing::error!(uid = %run, ?pause, "a fault in this program: a run was dropped in the middle and is tried again");
                false
            }
        };
        self.metrics.reconciled(began.elapsed(), well);
    }

    /// Whether a policy of our name is as we make it.
    pub(super) fn is_as_made(&self, policy: &NetworkPolicy) -> bool {
        let namespace = policy.metadata.namespace.as_deref();
        let Some(Ok(namespace)) = namespace.map(str::parse) else {
            return false;
        };
        let ours = manifest::network_policy(&namespace, &self.installation, &(self.door)());
        !manifest::policy_differs(&ours, policy)
    }

    /// Keeps the numbers of runs up to date.
    async fn count(&self) {
        loop {
            let (waiting, busy) = self.queue.depth();
            tracing::debug!(waiting, busy, held = self.lifes.count(), "runs at work");
            for (phase, count) in self.store.phases() {
                self.metrics.set_runs(phase, count);
            }
            tokio::time::sleep(COUNT_EVERY).await;
        }
    }
}
