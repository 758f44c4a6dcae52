//! What an attempt needs before its pod is made: commits, then packs and the lookups' credentials. Done beside the
//! workers, since a forge may take minutes, and told to them by waking the run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::desk::Desk;
use crate::api::{Attempt, ConnectorUse, Failure, Fault as _, Reason, RunKey, RunSpec};
use crate::inputs::{PackLease, Progress, ResolvedInput};
use crate::run::Resolution;

/// A fetch that takes longer is said.
pub(super) const SLOW: Duration = Duration::from_mins(1);

/// The preparation of one attempt. Dropped: ended.
#[derive(Debug)]
pub(super) struct Preparation {
    pub(super) attempt: Attempt,
    state: Arc<Mutex<State>>,
    began: Instant,
    _end: DropGuard,
}

/// Everything is there.
#[derive(Debug, Clone)]
pub(super) struct Ready {
    pub(super) resolved: Vec<ResolvedInput>,
    pub(super) packs: Vec<PackLease>,
}

#[derive(Debug, Clone)]
enum State {
    /// Refs become commits.
    Resolving {
        trouble: Option<Failure>,
    },
    /// They did not.
    Unresolved(Failure),
    /// The record does not take what was found; it is asked for again.
    Unrecorded(Failure),
    /// The commits are known, and what is served of them is fetched.
    Fetching,
    /// That failed.
    Unready(Failure, Timestamp),
    Ready(Ready),
}

impl Preparation {
    /// Begins with the refs.
    pub(super) fn resolve(
        desk: &Desk,
        key: &RunKey,
        attempt: Attempt,
        spec: &Arc<RunSpec>,
    ) -> Self {
        let (this, task) = Self::new(attempt, State::Resolving { trouble: None });
        let (desk_of, key, spec) = (desk.clone(), key.clone(), Arc::clone(spec));
        let state = Arc::clone(&this.state);
        task.spawn(desk, async move {
            let Some(resolved) = resolve(&desk_of, &key, attempt, &spec, &state).await else {
                return;
            };
            fetch(&desk_of, &key, &spec, resolved, &state).await;
        });
        this
    }

    /// Begins with commits that are in the record. With nothing to fetch it is ready at once.
    pub(super) fn fetch(
        desk: &Desk,
        key: &RunKey,
        attempt: Attempt,
        spec: &Arc<RunSpec>,
        resolved: Vec<ResolvedInput>,
    ) -> Self {
        if resolved.is_empty() && spec.lookups.is_empty() {
            let packs = Vec::new();
            return Self::new(attempt, State::Ready(Ready { resolved, packs })).0;
        }
        let (this, task) = Self::new(attempt, State::Fetching);
        let (desk_of, key, spec) = (desk.clone(), key.clone(), Arc::clone(spec));
        let state = Arc::clone(&this.state);
        task.spawn(desk, async move {
            fetch(&desk_of, &key, &spec, resolved, &state).await;
        });
        this
    }

    fn new(attempt: Attempt, state: State) -> (Self, Task) {
        let end = CancellationToken::new();
        let this = Self {
            attempt,
            state: Arc::new(Mutex::new(state)),
            began: Instant::now(),
            _end: end.clone().drop_guard(),
        };
        (this, Task(end))
    }

    /// How far the resolution is.
    pub(super) fn resolution(&self) -> Resolution {
        match self.state() {
            State::Resolving { trouble } => Resolution::Busy { trouble },
            State::Unresolved(failure) => Resolution::Failed(failure),
            State::Unrecorded(_) | State::Fetching | State::Unready(..) | State::Ready(_) => {
                Resolution::Idle
            }
        }
    }

    /// What is wrong with the record, if it did not take the commits.
    pub(super) fn unrecorded(&self) -> Option<Failure> {
        match self.state() {
            State::Unrecorded(failure) => Some(failure),
            State::Resolving { .. }
            | State::Unresolved(_)
            | State::Fetching
            | State::Unready(..)
            | State::Ready(_) => None,
        }
    }

    /// Why what has to be served is not there, and since when.
    pub(super) fn unready(&self) -> Option<(Failure, Timestamp)> {
        match self.state() {
            State::Unready(failure, at) => Some((failure, at)),
            State::Resolving { .. }
            | State::Unresolved(_)
            | State::Unrecorded(_)
            | State::Fetching
            | State::Ready(_) => None,
        }
    }

    /// What is to be said of a fetch that takes long: it has a deadline of its own, and its cause only then.
    pub(super) fn is_slow(&self) -> Option<Failure> {
        let fetching = matches!(self.state(), State::Fetching) && self.began.elapsed() >= SLOW;
        fetching.then(|| {
            let message = "what the inputs hold is still being fetched";
            Failure::new(Reason::TransferStalled, message)
        })
    }

    /// Everything, once it is there.
    pub(super) fn ready(&self) -> Option<Ready> {
        match self.state() {
            State::Ready(ready) => Some(ready),
            State::Resolving { .. }
            | State::Unresolved(_)
            | State::Unrecorded(_)
            | State::Fetching
            | State::Unready(..) => None,
        }
    }

    fn state(&self) -> State {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What ends with its preparation.
struct Task(CancellationToken);

impl Task {
    fn spawn(self, desk: &Desk, work: impl Future<Output = ()> + Send + 'static) {
        let tracker = &desk.gateway.tracker;
        let work = self.0.run_until_cancelled_owned(work);
        tracker.spawn(desk.stop.clone().run_until_cancelled_owned(async move {
            let _cancelled = work.await;
        }));
    }
}

/// Pins every input and writes it down. `None`: that failed, and was said.
async fn resolve(
    desk: &Desk,
    key: &RunKey,
    attempt: Attempt,
    spec: &RunSpec,
    state: &Mutex<State>,
) -> Option<Vec<ResolvedInput>> {
    let progress = |progress: Progress| {
        let trouble = Some(progress.waiting_for);
        set(desk, key, state, State::Resolving { trouble });
    };
    let inputs = &desk.gateway.inputs;
    match inputs.resolve(&key.namespace, spec, &progress).await {
        Ok(resolved) => {
            let events = resolved.iter().map(|input| input.event(attempt)).collect();
            match desk.gateway.record.append_all(key, events).await {
                Ok(_) => {
                    set(desk, key, state, State::Fetching);
                    Some(resolved)
                }
                Err(error) => {
                    set(desk, key, state, State::Unrecorded(error.failure(None)));
                    None
                }
            }
        }
        Err(failure) => {
            set(desk, key, state, State::Unresolved(failure));
            None
        }
    }
}

async fn fetch(
    desk: &Desk,
    key: &RunKey,
    spec: &RunSpec,
    resolved: Vec<ResolvedInput>,
    state: &Mutex<State>,
) {
    let fetched = async {
        let inputs = &desk.gateway.inputs;
        for lookup in &spec.lookups {
            inputs
                .credential(&key.namespace, &lookup.connector, ConnectorUse::Lookups)
                .await?;
        }
        let packs = resolved
            .iter()
            .map(|input| inputs.pack(&key.namespace, input));
        futures::future::try_join_all(packs).await
    };
    let new = match fetched.await {
        Ok(packs) => State::Ready(Ready { resolved, packs }),
        Err(failure) => State::Unready(failure, Timestamp::now()),
    };
    set(desk, key, state, new);
}

fn set(desk: &Desk, key: &RunKey, state: &Mutex<State>, new: State) {
    *state.lock().unwrap_or_else(PoisonError::into_inner) = new;
    desk.queue.wake(&key.uid);
}
