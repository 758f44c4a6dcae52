//! What a shell observes: the run's wishes, what the record says, what the pod and the policy look like.
//!
//! The record's part is folded from events here, so that both shells read the same facts from the same chain.

use std::time::Duration;

use jiff::Timestamp;

use super::plan::Limits;
use crate::api::wire::{AgentExit, Canary, InputOutcome, ProvisionedInput};
use crate::api::{
    Attempt, CommitId, Event, Failure, InputName, Namespace, ObjectFormat, OnDrift, Reason,
    RefName, RunName, RunUid,
};

/// Everything that a decision rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// What the spec says.
    pub spec: SpecFacts,
    /// What users want by now.
    pub wish: Wish,
    /// What is written down; `Err`: the record cannot be read or written, and so nothing may begin or end.
    pub record: Result<RecordFacts, Failure>,
    /// How far the resolution of inputs is, in this process.
    pub resolution: Resolution,
    /// The network policy.
    pub policy: Policy,
    /// The pod of the newest attempt.
    pub pod: Pod,
    /// Attempts before the newest whose pods are still there and not being deleted.
    pub strays: Vec<Attempt>,
    /// The node of the newest attempt's pod, once it is known.
    pub node: Option<String>,
    /// Why the last step failed that is being tried again.
    pub trouble: Option<Failure>,
    /// How long things may take.
    pub limits: Limits,
}

/// What the spec says, as far as a decision or the status needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecFacts {
    /// The run.
    pub namespace: Namespace,
    /// Its name.
    pub name: RunName,
    /// Its uid.
    pub uid: RunUid,
    /// `metadata.generation`; `None` in a local run.
    pub generation: Option<i64>,
    /// `spec.rerun`.
    pub rerun: String,
    /// The inputs, in order.
    pub inputs: Vec<InputFacts>,
    /// Why it cannot run at all: a broken rule, or inputs switched off.
    pub refused: Option<Failure>,
    /// What drift means.
    pub on_drift: OnDrift,
    /// From the agent's start.
    pub timeout: Duration,
    /// From the wish for a pod to the start grant.
    pub start_timeout: Duration,
    /// More attempts after pods that were lost before the grant.
    pub infrastructure_retries: u32,
    /// How long the pod stays after the end.
    pub ttl_after_finished: Duration,
}

/// One input, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFacts {
    /// Its name.
    pub name: InputName,
    /// Its address or path, without secrets.
    pub repository: String,
    /// What was asked for, such as `branch main`.
    pub requested_ref: String,
}

/// What users want by now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wish {
    /// End it: `CancelRequested` or `ObjectDeleted`.
    pub stop: Option<Reason>,
    /// Make no pod.
    pub suspend: bool,
}

/// How far the resolution of inputs is. Only the record makes it a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// Nobody in this process is at it.
    Idle,
    /// Under way.
    Busy {
        /// What it waits for, if it waits: a missing Secret, a server with a fault.
        trouble: Option<Failure>,
    },
    /// Given up.
    Failed(Failure),
}

/// The network policy (in a local run: the namespaces that the sandbox needs).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// Not there yet, or changed.
    Missing,
    /// As we made it, and nothing opens more.
    InForce,
    /// It cannot be in force: another one opens more, or this machine cannot seal a sandbox.
    Impossible(Failure),
}

/// The pod of the newest attempt (in a local run: its sandbox).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pod {
    /// Nobody can say: the cache may be behind, the server does not answer.
    Unknown,
    /// Not there. Read from the server itself, not from a cache.
    Absent,
    /// The same of one that was announced and that nobody has seen since: it was last asked for at this time, by whoever
    /// announced it or by us.
    Unmade(Timestamp),
    /// Making it was refused for certain, at this time.
    Refused(Failure, Timestamp),
    /// One of that name belongs to somebody else. Neither adopted nor deleted.
    Foreign(Failure),
    /// There, and the agent's container does not run yet.
    Starting(Option<PodTrouble>),
    /// Everything runs; whether the agent does, the record knows.
    Running,
    /// The agent's container has ended, and the broker is still at work: with what the container's own end says.
    Collecting(Option<Failure>),
    /// Provision or the broker failed, so that no agent starts, or all containers ended after it.
    Ended(Option<Failure>),
    /// On its way out: deleted, evicted, or its node is lost.
    Leaving {
        /// Why: `PodEvicted`, `NodeLost`, `PodDeletedByHand`, ...
        reason: Reason,
        /// Since when.
        since: Timestamp,
        /// Somebody deleted it already. An evicted pod stays until somebody does.
        deleted: bool,
        /// The same in the words of whoever takes it away; empty if nobody said any.
        words: String,
    },
}

impl Observed {
    /// What keeps an attempt from its start.
    #[must_use]
    pub fn trouble(&self) -> Option<&Failure> {
        let inside = self.resolution.trouble().or_else(|| self.pod.trouble());
        inside.or(self.trouble.as_ref())
    }
}

impl Resolution {
    /// What it waits for, or why it was given up.
    #[must_use]
    pub fn trouble(&self) -> Option<&Failure> {
        match self {
            Self::Idle => None,
            Self::Busy { trouble } => trouble.as_ref(),
            Self::Failed(failure) => Some(failure),
        }
    }
}

impl Pod {
    /// What keeps it from running.
    #[must_use]
    pub fn trouble(&self) -> Option<&Failure> {
        match self {
            Self::Refused(failure, _) | Self::Foreign(failure) => Some(failure),
            Self::Ended(failure) | Self::Collecting(failure) => failure.as_ref(),
            Self::Starting(trouble) => trouble.as_ref().map(|trouble| &trouble.failure),
            Self::Unknown
            | Self::Absent
            | Self::Unmade(_)
            | Self::Running
            | Self::Leaving { .. } => None,
        }
    }
}

/// What keeps a pod from starting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTrouble {
    /// What, in the scheduler's or kubelet's words.
    pub failure: Failure,
    /// Since when.
    pub since: Timestamp,
}

/// What the record says about a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordFacts {
    /// `spec.rerun` of every life, the newest last. Empty: not in the record yet.
    pub reruns: Vec<String>,
    /// When the present life began.
    pub created_at: Option<Timestamp>,
    /// Attempts of the present life.
    pub attempts: Vec<AttemptFacts>,
    /// The last word on the present life.
    pub ended: Option<EndFacts>,
    /// Newest entry: sequence and hash.
    pub head: Option<(u64, String)>,
    /// The newest attempt of all lives.
    pub newest: Option<Attempt>,
}

/// What the record says about an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptFacts {
    /// Its number.
    pub attempt: Attempt,
    /// When it was dispatched.
    pub dispatched_at: Timestamp,
    /// Whether its agent may start, did, or never will.
    pub state: AttemptState,
    /// The inputs that became commits.
    pub inputs: Vec<ResolvedInput>,
    /// When the last of them did.
    pub resolved_at: Option<Timestamp>,
    /// When its pod was announced, and under which name.
    pub pod: Option<(Timestamp, String)>,
    /// When the workspace was ready, and what the inputs turned out to be.
    pub provisioned: Option<(Timestamp, Vec<ProvisionedInput>)>,
    /// When the policy was last proved or disproved; what was open.
    pub proof: Option<(Timestamp, bool, Vec<String>)>,
    /// When and why the agent was first asked to stop.
    pub stopping: Option<(Timestamp, Reason)>,
    /// When its end was seen, and how it ended; absent inside: its `exec` was lost.
    pub agent_ended: Option<(Timestamp, Option<AgentExit>)>,
    /// What it left.
    pub outcome: Option<OutcomeFacts>,
    /// Drift that was recorded; part of an outcome as soon as the output is.
    drift: Vec<InputOutcome>,
}

/// Whether an attempt's agent may start, did, or never will.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptState {
    /// It may.
    Open,
    /// It did, at this time.
    Started(Timestamp),
    /// It never will, and another attempt may follow.
    Abandoned(Timestamp, Reason),
    /// It never will, and the run fails with it.
    Failed(Timestamp, Failure),
}

/// An input that became a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedInput {
    /// Its name.
    pub name: InputName,
    /// Its address, without secrets.
    pub repository: String,
    /// The full name that led there.
    pub resolved_ref: Option<RefName>,
    /// The commit.
    pub commit: CommitId,
    /// The annotated tag's own id.
    pub tag_object: Option<CommitId>,
    /// SHA-1 or SHA-256.
    pub object_format: ObjectFormat,
    /// When.
    pub at: Timestamp,
    /// Whose credential, by connector.
    pub connector: Option<String>,
    /// What the proof of that credential showed.
    pub credential_proof: String,
}

/// What a run left.
#[derive(Debug, Clone, PartialEq)]
pub struct OutcomeFacts {
    /// When it was recorded.
    pub at: Timestamp,
    /// One for each input.
    pub inputs: Vec<InputOutcome>,
    /// The result file.
    pub output: OutputFacts,
}

/// The result file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputFacts {
    /// SHA-256; absent: there is none.
    pub sha256: Option<String>,
    /// Its length.
    pub bytes: u64,
    /// The whole text, if it is short enough for the status.
    pub text: Option<String>,
    /// Why it does not count.
    pub failure: Option<Failure>,
}

/// The last word on a run.
#[derive(Debug, Clone, PartialEq)]
pub struct EndFacts {
    /// When.
    pub at: Timestamp,
    /// In which attempt.
    pub attempt: Option<Attempt>,
    /// The agent's exit status.
    pub exit_code: Option<i32>,
    /// Why it failed; absent: it succeeded.
    pub failure: Option<Failure>,
}

/// The longest output that the status shows whole, in bytes.
const VALUE_MAX_BYTES: usize = 4096;

impl RecordFacts {
    /// The facts of a chain: its events with their times, in order.
    #[must_use]
    pub fn of<'a>(events: impl IntoIterator<Item = (Timestamp, &'a Event)>) -> Self {
        let mut facts = Self::default();
        for (at, event) in events {
            facts.take(at, event);
        }
        facts
    }

    /// The attempt that counts now.
    #[must_use]
    pub fn current(&self) -> Option<&AttemptFacts> {
        self.attempts.last()
    }

    /// Takes the next event of the chain.
    pub fn take(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::RunCreated { rerun, .. } => {
                self.reruns.push(rerun.clone());
                self.created_at = Some(at);
                self.attempts.clear();
                self.ended = None;
            }
            Event::AttemptDispatched { attempt } => {
                self.newest = Some(*attempt);
                self.attempts.push(AttemptFacts::dispatched(*attempt, at));
            }
            Event::RunEnded {
                attempt,
                exit_code,
                failure,
                ..
            } => {
                self.ended = Some(EndFacts {
                    at,
                    attempt: *attempt,
                    exit_code: *exit_code,
                    failure: failure.clone(),
                });
            }
            Event::InputResolved { attempt, .. }
            | Event::AttemptFailed { attempt, .. }
            | Event::PodCreating { attempt, .. }
            | Event::InputsProvisioned { attempt, .. }
            | Event::PolicyProof { attempt, .. }
            | Event::AgentStarted { attempt, .. }
            | Event::AttemptAbandoned { attempt, .. }
            | Event::AgentStopping { attempt, .. }
            | Event::AgentEnded { attempt, .. }
            | Event::Drift { attempt, .. }
            | Event::Output { attempt, .. } => {
                let seen = self
                    .attempts
                    .iter_mut()
                    .find(|seen| seen.attempt == *attempt);
                if let Some(seen) = seen {
                    seen.take(at, event);
                }
            }
            Event::Call(_) => {}
        }
    }
}

impl AttemptFacts {
    fn dispatched(attempt: Attempt, at: Timestamp) -> Self {
        Self {
            attempt,
            dispatched_at: at,
            state: AttemptState::Open,
            inputs: Vec::new(),
            resolved_at: None,
            pod: None,
            provisioned: None,
            proof: None,
            stopping: None,
            agent_ended: None,
            outcome: None,
            drift: Vec::new(),
        }
    }

    fn take(&mut self, at: Timestamp, event: &Event) {
        match event {
            Event::InputResolved {
                input,
                repository,
                resolved_ref,
                commit,
                tag_object,
                object_format,
                connector,
                credential_proof,
                ..
            } => {
                self.resolved_at = Some(at);
                self.inputs.push(ResolvedInput {
                    name: input.clone(),
                    repository: repository.clone(),
                    resolved_ref: resolved_ref.clone(),
                    commit: commit.clone(),
                    tag_object: tag_object.clone(),
                    object_format: *object_format,
                    at,
                    connector: connector.as_ref().map(ToString::to_string),
                    credential_proof: credential_proof.clone(),
                });
            }
            Event::AttemptFailed { failure, .. } => {
                self.state = AttemptState::Failed(at, failure.clone());
            }
            Event::AttemptAbandoned { reason, .. } => {
                self.state = AttemptState::Abandoned(at, *reason);
            }
            Event::PodCreating { pod, .. } => self.pod = Some((at, pod.clone())),
            Event::InputsProvisioned { inputs, .. } => {
                self.provisioned = Some((at, inputs.clone()));
            }
            Event::PolicyProof { enforced, open, .. } => {
                let place = |canary: &Canary| format!("{} ({})", canary.name, canary.address);
                let mut open: Vec<_> = open.iter().map(place).collect();
                open.dedup(); // over TCP and over UDP
                self.proof = Some((at, *enforced, open));
            }
            Event::AgentStarted { .. } => self.state = AttemptState::Started(at),
            Event::AgentStopping { reason, .. } => {
                self.stopping.get_or_insert((at, *reason)); // the first cause is the cause
            }
            Event::AgentEnded { exit, .. } => match &mut self.agent_ended {
                Some((_, known @ None)) => known.clone_from(exit),
                Some(_) => {}
                None => self.agent_ended = Some((at, exit.clone())),
            },
            Event::Drift { outcome, .. } => self.drift.push(outcome.clone()),
            Event::Output {
                sha256,
                bytes,
                text,
                failure,
                ..
            } => {
                self.outcome = Some(OutcomeFacts {
                    at,
                    inputs: std::mem::take(&mut self.drift),
                    output: OutputFacts {
                        sha256: sha256.clone(),
                        bytes: *bytes,
                        text: text.clone().filter(|text| text.len() <= VALUE_MAX_BYTES),
                        failure: failure.clone(),
                    },
                });
            }
            Event::RunCreated { .. }
            | Event::AttemptDispatched { .. }
            | Event::Call(_)
            | Event::RunEnded { .. } => {}
        }
    }
}
