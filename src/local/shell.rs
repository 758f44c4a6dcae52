//! The shell around `run`: observes, asks what to do, does it, until the run has ended.
//!
//! All that a decision rests on is read back from the record each time round; what this process alone can know (how far
//! its sandboxes are, how urgent its user is) is the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::begin::{Ended, Options};
use super::keep;
use super::pod::{LocalPod, Stage};
use super::sandbox;
use super::sources::Manifests;
use super::state::RunPaths;
use super::terminal::Screen;
use super::watch::{Urgency, reaches};
use crate::api::wire::{Drift, InputOutcome, UnknownReason};
use crate::api::{Attempt, ConnectorUse, Decision, Event, Failure, Fault as _, Healing, Reason};
use crate::audit::{Entry, RecordError, RunKey, sentence};
use crate::gateway::{Gateway, Live, LiveParts, Seen};
use crate::inputs::{PackLease, Progress, ResolvedInput};
use crate::run::{
    self, Action, AttemptState, InputFacts, Observed, Pod, Policy, RecordFacts, Resolution,
    SpecFacts, Wish,
};

/// From the wish for a pod to the start grant: fetching what the mirror does not have is part of it.
const START_TIMEOUT: Duration = Duration::from_mins(30);

/// How long a record that refuses to be written is tried again once the agent has started: what it did is worth waiting
/// for a full disk to be noticed. Before that the run has done nothing, and ends at once.
const RECORD_PATIENCE: Duration = Duration::from_secs(30);
/// Between two of these tries.
const RECORD_EVERY: Duration = Duration::from_millis(500);

/// The record was lost on the way.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) source: RecordError,
    /// Where the workspace is kept, if an agent had started in it.
    pub(super) kept: Option<PathBuf>,
}

/// One run, and what this process alone knows of it.
pub(super) struct Shell<'a> {
    gateway: Gateway,
    manifests: Manifests,
    options: Options,
    key: RunKey,
    dirs: RunPaths,
    urgency: watch::Receiver<Urgency>,
    stop: CancellationToken,
    screen: &'a Screen,
    resolution: Resolution,
    resolved: Vec<ResolvedInput>,
    policy: Policy,
    refused: Option<(Failure, Timestamp)>,
    running: Option<Running>,
    deleted: bool,
    began: Instant,
    /// Since when the record has refused to be written.
    unwritten: Option<Instant>,
    entries: Vec<Entry>,
    facts: RecordFacts,
}

/// The sandboxes of the attempt, once they were begun.
struct Running {
    live: Arc<Live>,
    seen: watch::Receiver<Seen>,
    stage: watch::Receiver<Stage>,
    kill: CancellationToken,
}

impl<'a> Shell<'a> {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; each is a thing of its own"
    )]
    pub(super) fn new(
        gateway: Gateway,
        manifests: Manifests,
        options: Options,
        key: RunKey,
        dirs: RunPaths,
        urgency: watch::Receiver<Urgency>,
        stop: CancellationToken,
        screen: &'a Screen,
    ) -> Self {
        Self {
            gateway,
            manifests,
            options,
            key,
            dirs,
            urgency,
            stop,
            screen,
            resolution: Resolution::Idle,
            resolved: Vec::new(),
            policy: Policy::Missing,
            refused: None,
            running: None,
            deleted: false,
            began: Instant::now(),
            unwritten: None,
            entries: Vec::new(),
            facts: RecordFacts::default(),
        }
    }

    /// Observe, plan, act, until there is nothing left to do.
    ///
    /// # Errors
    /// When the record cannot be read or written, and stays so. Nothing of the run is alive then.
    pub(super) async fn live(&mut self) -> Result<Option<Ended>, Lost> {
        loop {
            match self.turn().await {
                Ok(Some(seen)) => return Ok(self.end(&seen).await),
                Ok(None) => self.unwritten = None,
                Err(error) if self.outlasts(&error).await => {}
                Err(source) => {
                    self.end_sandboxes().await;
                    let kept = if self.started() {
                        self.keep().await
                    } else {
                        None
                    };
                    return Err(Lost { source, kept });
                }
            }
        }
    }

    /// Once round. What was observed, when nothing is left to do.
    async fn turn(&mut self) -> Result<Option<Observed>, RecordError> {
        if *self.urgency.borrow() == Urgency::Kill {
            self.end_sandboxes().await;
        }
        // In this order: what the sandboxes did before they were over is in the record by then.
        let pod = self.pod();
        self.read().await?;
        let seen = self.observe(pod);
        for action in run::plan(&seen, now()) {
            if action == Action::Done {
                return Ok(Some(seen));
            }
            match self.act(action).await {
                // It came too late: what the record says now decides anew.
                Err(RecordError::Rejected { .. }) | Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Waits before a record that refused is tried again. False: it is not.
    async fn outlasts(&mut self, error: &RecordError) -> bool {
        let tried_at = Instant::now();
        let since = *self.unwritten.get_or_insert(tried_at);
        let worth_it = self.started() && error.reason().healing() == Healing::Transient;
        if !worth_it || tried_at.duration_since(since) >= RECORD_PATIENCE {
            return false;
        }
        if since == tried_at {
            let failure = error.failure(None);
            let text = format!("{}; tried again for {RECORD_PATIENCE:?}", failure.message);
            self.screen.warn("record", &text);
        }
        tokio::select! {
            () = tokio::time::sleep(RECORD_EVERY) => true,
            () = reaches(self.urgency.clone(), Urgency::Kill) => false,
        }
    }

    /// Takes in what is new in the record, and shows it: the life of the run as it happens.
    async fn read(&mut self) -> Result<(), RecordError> {
        let known = self.entries.last().map_or(0, |entry| entry.sequence);
        let new = self.gateway.record.entries_after(&self.key, known).await?;
        for entry in &new {
            let (Ok(at), Some(event)) = (entry.at.parse(), entry.event()) else {
                continue; // our own program wrote it
            };
            self.facts.take(at, &event);
            let begun = matches!(&event, Event::Call(call) if call.decision == Decision::Begun);
            if !begun {
                self.screen.step(event.kind(), &sentence(&event));
            }
        }
        self.entries.extend(new);
        let head = self.entries.last();
        self.facts.head = head.map(|entry| (entry.sequence, entry.hash.clone()));
        Ok(())
    }

    /// Whether an agent started, by the record's word.
    fn started(&self) -> bool {
        let newest = self.facts.attempts.last();
        newest.is_some_and(|attempt| matches!(attempt.state, AttemptState::Started(_)))
    }

    fn observe(&self, pod: Pod) -> Observed {
        let stop = (*self.urgency.borrow() != Urgency::None).then_some(Reason::CancelRequested);
        Observed {
            spec: self.spec_facts(),
            wish: Wish {
                stop,
                suspend: false,
            },
            record: Ok(self.facts.clone()),
            resolution: self.resolution.clone(),
            policy: self.policy.clone(),
            pod,
            strays: Vec::new(),
            node: None,
            trouble: None,
            limits: run::Limits::default(),
        }
    }

    fn pod(&self) -> Pod {
        match (&self.running, &self.refused) {
            (Some(_), _) if self.deleted => Pod::Absent,
            (Some(running), _) => running.stage.borrow().pod(),
            (None, Some((failure, at))) => Pod::Refused(failure.clone(), *at),
            (None, None) => Pod::Absent,
        }
    }

    fn spec_facts(&self) -> SpecFacts {
        let spec = &self.manifests.spec;
        SpecFacts {
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            uid: self.key.uid.clone(),
            generation: None,
            rerun: String::new(),
            inputs: spec
                .inputs
                .iter()
                .map(|input| InputFacts {
                    name: input.name.clone(),
                    repository: input.repository.to_string(),
                    requested_ref: input.selector.to_string(),
                })
                .collect(),
            refused: spec.runtime_class_name.as_ref().map(|class| {
                let message = format!(
                    "policy.runtimeClassName is {class}, and this machine has no runtime classes"
                );
                Failure::new(Reason::NotOnThisMachine, message)
            }),
            on_drift: spec.on_drift,
            timeout: spec.agent.timeout,
            start_timeout: START_TIMEOUT,
            infrastructure_retries: 0,
            ttl_after_finished: Duration::ZERO,
        }
    }

    async fn act(&mut self, action: Action) -> Result<(), RecordError> {
        match action {
            Action::Create => {
                self.append(vec![Event::RunCreated {
                    digest: self.manifests.digest.clone(),
                    rerun: String::new(),
                    writer: concat!("sandboxrun ", env!("CARGO_PKG_VERSION")).to_owned(),
                }])
                .await
            }
            Action::Dispatch(attempt) => {
                self.append(vec![Event::AttemptDispatched { attempt }])
                    .await
            }
            Action::Resolve(attempt) => self.resolve(attempt).await,
            Action::EnsurePolicy => {
                self.policy = match sandbox::probe().await {
                    Ok(()) => Policy::InForce,
                    Err(error) => Policy::Impossible(error.failure(None)),
                };
                Ok(())
            }
            Action::CreatePod(attempt) => self.create_pod(attempt).await,
            Action::Fail(attempt, failure) => {
                self.append(vec![Event::AttemptFailed { attempt, failure }])
                    .await
            }
            Action::Abandon(attempt, reason) => {
                self.gateway
                    .record
                    .abandon(&self.key, attempt, reason)
                    .await?;
                Ok(())
            }
            Action::StopAgent(attempt, reason) => {
                let announced = self
                    .append(vec![Event::AgentStopping { attempt, reason }])
                    .await;
                // A record that cannot be written keeps no agent alive.
                if let Some(running) = &self.running {
                    running.live.stop(reason);
                }
                announced
            }
            Action::RecordOutcome(attempt, reason) => self.record_unknown(attempt, reason).await,
            Action::Finish(ending) => {
                let run::Ending {
                    attempt,
                    exit_code,
                    failure,
                } = ending;
                let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.append(vec![Event::RunEnded {
                    attempt,
                    exit_code,
                    failure,
                    millis,
                }])
                .await
            }
            Action::Terminate(..) => {
                self.end_sandboxes().await;
                Ok(())
            }
            Action::DeletePod(_) => {
                self.end_sandboxes().await;
                self.deleted = true;
                Ok(())
            }
            Action::Collect(_, until) | Action::Wait(Some(until)) => {
                self.changes(Some(until)).await;
                Ok(())
            }
            Action::Wait(None) => {
                self.changes(None).await;
                Ok(())
            }
            // A local pod says itself that its agent was lost.
            Action::AgentLost(_) | Action::Done => Ok(()),
        }
    }

    /// Pins the inputs, and shows that the lookups' connectors can be used. Ends early when the user is in a hurry.
    async fn resolve(&mut self, attempt: Attempt) -> Result<(), RecordError> {
        let progress = |progress| self.waiting(&progress);
        let _busy = self.screen.busy("resolving the inputs");
        let inputs = &self.gateway.inputs;
        let resolved = tokio::select! {
            resolved = inputs.resolve(&self.key.namespace, &self.manifests.spec, &progress) => resolved,
            () = reaches(self.urgency.clone(), Urgency::Cancel) => return Ok(()),
        };
        match resolved {
            Ok(resolved) => {
                let events = resolved.iter().map(|input| input.event(attempt)).collect();
                self.resolved = resolved;
                self.append(events).await
            }
            Err(failure) => {
                self.resolution = Resolution::Failed(failure);
                Ok(())
            }
        }
    }

    /// Makes ready what the sandboxes need, announces them, and starts the first.
    async fn create_pod(&mut self, attempt: Attempt) -> Result<(), RecordError> {
        let prepared = tokio::select! {
            prepared = self.prepare() => prepared,
            () = reaches(self.urgency.clone(), Urgency::Cancel) => return Ok(()),
        };
        let packs = match prepared {
            Ok(packs) => packs,
            Err(failure) => {
                self.refused = Some((failure, now()));
                return Ok(());
            }
        };
        let live = Arc::new(Live::new(LiveParts {
            key: self.key.clone(),
            attempt,
            spec: Arc::new(self.manifests.spec.clone()),
            resolved: self.resolved.clone(),
            packs,
        }));
        let pod = LocalPod {
            dirs: self.dirs.clone(),
            programs: self.options.standing.programs.clone(),
            screen: self.screen.clone(),
            ro_binds: self.options.ro_binds.clone(),
        };
        let made = sandbox::write_etc(&self.dirs)
            .and_then(|()| pod.serve(&self.gateway, &live, &self.stop));
        if let Err(error) = made {
            let message = format!("the sandbox's files and sockets could not be made: {error}");
            self.refused = Some((Failure::new(Reason::SandboxUnavailable, message), now()));
            return Ok(());
        }
        self.append(vec![Event::PodCreating {
            attempt,
            pod: format!("{}-{attempt}", self.key.uid),
        }])
        .await?;
        let (seen, kill) = (live.watch(), CancellationToken::new());
        let stage = pod.start(self.gateway.clone(), Arc::clone(&live), kill.clone());
        self.running = Some(Running {
            live,
            seen,
            stage,
            kill,
        });
        Ok(())
    }

    async fn prepare(&self) -> Result<Vec<PackLease>, Failure> {
        let _busy = self.screen.busy("fetching the inputs");
        let (inputs, namespace) = (&self.gateway.inputs, &self.key.namespace);
        for lookup in &self.manifests.spec.lookups {
            inputs
                .credential(namespace, &lookup.connector, ConnectorUse::Lookups)
                .await?;
        }
        let progress = |progress| self.waiting(&progress);
        let packs = self.resolved.iter();
        let packs = packs.map(|input| inputs.pack_telling(namespace, input, &progress));
        futures::future::try_join_all(packs).await
    }

    /// Says why an input is not there yet.
    fn waiting(&self, progress: &Progress) {
        let (input, why) = (&progress.input, &progress.waiting_for.message);
        self.screen.warn("waiting", &format!("{input}: {why}"));
    }

    /// What nobody could read is unknown, and said to be.
    async fn record_unknown(
        &self,
        attempt: Attempt,
        reason: UnknownReason,
    ) -> Result<(), RecordError> {
        let drift = |name| InputOutcome {
            name,
            drift: Drift::unread(reason),
        };
        let mut events: Vec<Event> = self
            .resolved
            .iter()
            .map(|input| Event::Drift {
                attempt,
                outcome: drift(input.name.clone()),
            })
            .collect();
        events.push(Event::Output {
            attempt,
            sha256: None,
            bytes: 0,
            text: None,
            failure: None,
        });
        self.append(events).await
    }

    /// Waits until something is new, or until this time.
    async fn changes(&mut self, until: Option<Timestamp>) {
        let timeout = async {
            match until {
                Some(until) => {
                    let left = now().duration_until(until);
                    tokio::time::sleep(left.try_into().unwrap_or(Duration::ZERO)).await;
                }
                None => std::future::pending().await,
            }
        };
        let running = async {
            match &mut self.running {
                Some(Running { stage, seen, .. }) => {
                    tokio::select! {
                        Ok(()) = stage.changed() => {}
                        Ok(()) = seen.changed() => {}
                        else => std::future::pending().await,
                    }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timeout => {}
            () = running => {}
            _ = self.urgency.changed() => {}
        }
    }

    async fn end_sandboxes(&mut self) {
        if let Some(running) = &mut self.running {
            running.kill.cancel();
            // It ends by being killed, so this does not last; a closed channel is as good.
            let _closed = running.stage.wait_for(Stage::is_over).await;
        }
    }

    async fn append(&self, events: Vec<Event>) -> Result<(), RecordError> {
        self.gateway
            .record
            .append_all(&self.key, events)
            .await
            .map(drop)
    }

    /// What is left to do when the last word is written: the workspace.
    async fn end(&mut self, seen: &Observed) -> Option<Ended> {
        let end = seen.record.as_ref().ok()?.ended.clone()?;
        let kept = self.keep().await;
        Some(Ended {
            key: self.key.clone(),
            status: run::status(seen),
            entries: std::mem::take(&mut self.entries),
            end,
            kept,
        })
    }

    /// Makes the workspace safe for its owner. Where that fails, it is not kept.
    async fn keep(&self) -> Option<PathBuf> {
        let running = self.running.as_ref().filter(|_| !self.options.discard)?;
        let (dirs, live) = (self.dirs.clone(), Arc::clone(&running.live));
        let kept = tokio::task::spawn_blocking(move || {
            let aside = keep::replace_git_dirs(&dirs, &live.plan(), live.packs())?;
            dirs.remove_inner();
            dirs.mark_kept().map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(aside)
        });
        match kept.await.map_err(std::io::Error::other).flatten() {
            Ok(_) => Some(self.dirs.root().to_owned()),
            Err(error) => {
                self.screen.warn(
                    "workspace",
                    &format!("it could not be made safe to keep, so it is removed: {error}"),
                );
                None
            }
        }
    }
}

/// The clock of this room: what decides gets it as a parameter.
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
fn now() -> Timestamp {
    Timestamp::now()
}
