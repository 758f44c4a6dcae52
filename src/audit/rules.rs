//! Which event may follow which: the compare half of every compare-and-set of the record. Pure.
//!
//! The chain of a run object holds one *life* for each `rerun`: from a `run.created` to its `run.ended`. Attempts are
//! counted through all of them. The simulation of `run/` uses these same rules, so what it proves holds for the record.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{Attempt, CommitId, Decision, Event, InputName, Reason};

/// The kinds that decide what may follow. All others only pass by.
pub const DECIDING: [&str; 11] = [
    "run.created",
    "attempt.dispatched",
    "input.resolved",
    "pod.creating",
    "inputs.provisioned",
    "policy.proof",
    "attempt.failed",
    "attempt.abandoned",
    "agent.started",
    "output",
    "run.ended",
];

/// What a run's deciding events lead to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunState {
    /// `spec.rerun` of every life so far.
    reruns: BTreeSet<String>,
    ended: bool,
    attempts: BTreeMap<Attempt, AttemptSeen>,
}

/// What is known of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one event that was or was not written"
)]
struct AttemptSeen {
    state: AttemptState,
    commits: BTreeMap<InputName, CommitId>,
    pod: bool,
    provisioned: bool,
    /// By the last proof.
    enforced: bool,
    reported: bool,
}

/// Whether an agent may start, did, or never will.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AttemptState {
    /// An agent may start.
    Dispatched,
    /// It did.
    Started { nonce: String },
    /// It never will: `attempt.failed` or `attempt.abandoned`.
    Abandoned,
    /// The life that it belonged to is over.
    Past,
}

/// Why an event may not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The chain must begin with `run.created`.
    #[error("the run has no `run.created` yet")]
    NotCreated,
    /// The present life has not ended.
    #[error("the run was created already and has not ended")]
    AlreadyCreated,
    /// Each `spec.rerun` runs once, also when an old copy of the object comes back.
    #[error("this `rerun` has run already")]
    AlreadyLived,
    /// `run.ended` is the last word.
    #[error("the run has ended")]
    Ended,
    /// Attempts are counted by one, and the one before must be decided without a start.
    #[error("this attempt is not the next one")]
    NotTheNextAttempt,
    /// No `attempt.dispatched` was written for it.
    #[error("the attempt was never dispatched")]
    NeverDispatched,
    /// A later attempt was dispatched.
    #[error("a later attempt was dispatched")]
    OlderAttempt,
    /// `attempt.abandoned` is in the record.
    #[error("the attempt was abandoned")]
    Abandoned,
    /// `agent.started` is in the record, for another nonce.
    #[error("the agent was started for another nonce")]
    OtherNonce,
    /// `agent.started` is in the record.
    #[error("the agent was started")]
    AlreadyStarted,
    /// A commit is recorded once for each attempt: it never changes.
    #[error("the input was resolved to another commit in this attempt")]
    AlreadyResolved,
    /// A pod's name is used once.
    #[error("a pod was made for this attempt")]
    AlreadyMade,
    /// What a run left is recorded once: a later report does not change it.
    #[error("what the run left was recorded")]
    AlreadyReported,
    /// No `inputs.provisioned` in this attempt: nothing may start on a partial workspace.
    #[error("the inputs are not in the workspace")]
    NotProvisioned,
    /// No `policy.proof` in this attempt, or the last one says that something was open.
    #[error("the policy is not proved")]
    NotProved,
    /// The newest attempt could still start: fail or abandon it first.
    #[error("the newest attempt could still start its agent")]
    Undecided,
}

/// What to do with an event that may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Write it.
    Write,
    /// It is there already, and says the same.
    AlreadyThere,
}

/// The answer to a question for the start grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// `agent.started` is in the record for this nonce.
    Granted {
        /// It was there already: the answer to the first question was lost.
        again: bool,
    },
    /// The agent must not start.
    Refused(Rejected),
}

/// The answer to an attempt's abandonment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Abandon {
    /// No agent will ever start in this attempt.
    Abandoned,
    /// Too late: it has started.
    AlreadyStarted {
        /// The nonce that it was started for.
        nonce: String,
    },
}

impl RunState {
    /// The state that events lead to. Events that were written are taken as they are.
    #[must_use]
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut state = Self::default();
        for event in events {
            state.apply(event);
        }
        state
    }

    /// Whether the run has begun and has no last word.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.created() && !self.ended
    }

    /// The newest attempt.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        self.attempts.keys().next_back().copied()
    }

    /// The nonce that the agent was started for in this attempt.
    #[must_use]
    pub fn started(&self, attempt: Attempt) -> Option<&str> {
        match &self.attempts.get(&attempt)?.state {
            AttemptState::Started { nonce } => Some(nonce),
            AttemptState::Dispatched | AttemptState::Abandoned | AttemptState::Past => None,
        }
    }

    /// Whether an event may follow.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, event: &Event) -> Result<Admitted, Rejected> {
        if let Event::RunCreated { rerun, .. } = event {
            return self.admit_creation(rerun);
        }
        if !self.created() {
            return Err(Rejected::NotCreated);
        }
        // A call that was allowed while the agent lived may end after it: its bytes are still worth a line.
        let late_call = matches!(event, Event::Call(call) if call.decision != Decision::Begun);
        if self.ended && !late_call {
            return Err(Rejected::Ended);
        }
        match event {
            Event::AttemptDispatched { attempt } => self.admit_dispatch(*attempt),
            Event::InputResolved {
                attempt,
                input,
                commit,
                ..
            } => self.admit_commit(*attempt, input, commit),
            Event::PodCreating { attempt, .. } => self.admit_pod(*attempt),
            Event::AgentStarted { attempt, nonce } => self.admit_start(*attempt, nonce),
            Event::AttemptAbandoned { attempt, .. } | Event::AttemptFailed { attempt, .. } => {
                self.admit_abandonment(*attempt)
            }
            Event::Drift { attempt, .. } | Event::Output { attempt, .. } => {
                self.admit_report(*attempt)
            }
            Event::RunEnded { .. } => self.admit_end(),
            Event::RunCreated { .. }
            | Event::InputsProvisioned { .. }
            | Event::PolicyProof { .. }
            | Event::AgentStopping { .. }
            | Event::AgentEnded { .. }
            | Event::Call(_) => Ok(Admitted::Write),
        }
    }

    /// Takes an event that was written.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::RunCreated { rerun, .. } => {
                self.reruns.insert(rerun.clone());
                self.ended = false;
                for seen in self.attempts.values_mut() {
                    seen.state = AttemptState::Past;
                }
            }
            Event::AttemptDispatched { attempt } => {
                self.attempts.insert(*attempt, AttemptSeen::dispatched());
            }
            Event::InputResolved {
                attempt,
                input,
                commit,
                ..
            } => self.with(*attempt, |seen| {
                seen.commits.insert(input.clone(), commit.clone());
            }),
            Event::PodCreating { attempt, .. } => self.with(*attempt, |seen| seen.pod = true),
            Event::InputsProvisioned { attempt, .. } => {
                self.with(*attempt, |seen| seen.provisioned = true);
            }
            Event::PolicyProof {
                attempt, enforced, ..
            } => self.with(*attempt, |seen| seen.enforced = *enforced),
            Event::AgentStarted { attempt, nonce } => {
                let nonce = nonce.clone();
                self.with(*attempt, |seen| {
                    seen.state = AttemptState::Started { nonce }
                });
            }
            Event::AttemptAbandoned { attempt, .. } | Event::AttemptFailed { attempt, .. } => {
                self.with(*attempt, |seen| seen.state = AttemptState::Abandoned);
            }
            Event::Output { attempt, .. } => self.with(*attempt, |seen| seen.reported = true),
            Event::RunEnded { .. } => self.ended = true,
            Event::AgentStopping { .. }
            | Event::AgentEnded { .. }
            | Event::Call(_)
            | Event::Drift { .. } => {}
        }
    }

    /// The answer to a grant, and the event to write first, if any.
    #[must_use]
    pub fn grant(&self, attempt: Attempt, nonce: &str) -> (Grant, Option<Event>) {
        let event = Event::AgentStarted {
            attempt,
            nonce: nonce.to_owned(),
        };
        match self.admit(&event) {
            Ok(Admitted::Write) => (Grant::Granted { again: false }, Some(event)),
            Ok(Admitted::AlreadyThere) => (Grant::Granted { again: true }, None),
            Err(why) => (Grant::Refused(why), None),
        }
    }

    /// The answer to an abandonment, and the event to write first, if any.
    #[must_use]
    pub fn abandon(&self, attempt: Attempt, reason: Reason) -> (Abandon, Option<Event>) {
        if let Some(nonce) = self.started(attempt) {
            let nonce = nonce.to_owned();
            return (Abandon::AlreadyStarted { nonce }, None);
        }
        let event = Event::AttemptAbandoned { attempt, reason };
        // Refused otherwise means: never dispatched or the run has ended, and then no grant is given either.
        let write = self.admit(&event) == Ok(Admitted::Write);
        (Abandon::Abandoned, write.then_some(event))
    }

    fn created(&self) -> bool {
        !self.reruns.is_empty()
    }

    fn with(&mut self, attempt: Attempt, change: impl FnOnce(&mut AttemptSeen)) {
        if let Some(seen) = self.attempts.get_mut(&attempt) {
            change(seen);
        }
    }

    fn admit_creation(&self, rerun: &str) -> Result<Admitted, Rejected> {
        if self.is_open() {
            Err(Rejected::AlreadyCreated)
        } else if self.reruns.contains(rerun) {
            Err(Rejected::AlreadyLived)
        } else {
            Ok(Admitted::Write)
        }
    }

    fn admit_dispatch(&self, attempt: Attempt) -> Result<Admitted, Rejected> {
        let Some((newest, seen)) = self.attempts.last_key_value() else {
            return if attempt == Attempt::FIRST {
                Ok(Admitted::Write)
            } else {
                Err(Rejected::NotTheNextAttempt)
            };
        };
        match seen.state {
            AttemptState::Dispatched if attempt == *newest => Ok(Admitted::AlreadyThere),
            AttemptState::Abandoned | AttemptState::Past if attempt == newest.next() => {
                Ok(Admitted::Write)
            }
            AttemptState::Started { .. } => Err(Rejected::AlreadyStarted),
            AttemptState::Dispatched | AttemptState::Abandoned | AttemptState::Past => {
                Err(Rejected::NotTheNextAttempt)
            }
        }
    }

    fn admit_commit(
        &self,
        attempt: Attempt,
        input: &InputName,
        commit: &CommitId,
    ) -> Result<Admitted, Rejected> {
        match self.undecided(attempt)?.commits.get(input) {
            None => Ok(Admitted::Write),
            Some(recorded) if recorded == commit => Ok(Admitted::AlreadyThere),
            Some(_) => Err(Rejected::AlreadyResolved),
        }
    }

    fn admit_pod(&self, attempt: Attempt) -> Result<Admitted, Rejected> {
        if self.undecided(attempt)?.pod {
            Err(Rejected::AlreadyMade)
        } else {
            Ok(Admitted::Write)
        }
    }

    fn admit_start(&self, attempt: Attempt, nonce: &str) -> Result<Admitted, Rejected> {
        if let Some(given) = self.started(attempt) {
            return if given == nonce {
                Ok(Admitted::AlreadyThere)
            } else {
                Err(Rejected::OtherNonce)
            };
        }
        let seen = self.undecided(attempt)?;
        if !seen.provisioned {
            Err(Rejected::NotProvisioned)
        } else if !seen.enforced {
            Err(Rejected::NotProved)
        } else {
            Ok(Admitted::Write)
        }
    }

    fn admit_abandonment(&self, attempt: Attempt) -> Result<Admitted, Rejected> {
        match self.undecided(attempt) {
            Ok(_) => Ok(Admitted::Write),
            Err(Rejected::Abandoned) => Ok(Admitted::AlreadyThere),
            Err(why) => Err(why),
        }
    }

    fn admit_report(&self, attempt: Attempt) -> Result<Admitted, Rejected> {
        match self.attempts.get(&attempt) {
            None => Err(Rejected::NeverDispatched),
            Some(seen) if seen.reported => Err(Rejected::AlreadyReported),
            Some(_) => Ok(Admitted::Write),
        }
    }

    fn admit_end(&self) -> Result<Admitted, Rejected> {
        match self.attempts.last_key_value() {
            Some((_, seen)) if seen.state == AttemptState::Dispatched => Err(Rejected::Undecided),
            None | Some(_) => Ok(Admitted::Write),
        }
    }

    /// The attempt, if it is the newest one and neither started nor abandoned.
    fn undecided(&self, attempt: Attempt) -> Result<&AttemptSeen, Rejected> {
        let seen = self
            .attempts
            .get(&attempt)
            .ok_or(Rejected::NeverDispatched)?;
        match seen.state {
            AttemptState::Past => Err(Rejected::Ended),
            AttemptState::Abandoned => Err(Rejected::Abandoned),
            AttemptState::Started { .. } => Err(Rejected::AlreadyStarted),
            AttemptState::Dispatched if self.attempt() > Some(attempt) => {
                Err(Rejected::OlderAttempt)
            }
            AttemptState::Dispatched => Ok(seen),
        }
    }
}

impl AttemptSeen {
    fn dispatched() -> Self {
        Self {
            state: AttemptState::Dispatched,
            commits: BTreeMap::new(),
            pod: false,
            provisioned: false,
            enforced: false,
            reported: false,
        }
    }
}
