//! Which event may follow which: the compare half of every compare-and-set of the record. Pure.
//!
//! The chain of a run object holds one *life* for each `rerun`: from a `run.created` to its `run.ended`. Attempts are
//! counted through all of them. The simulation of `run/` uses these same rules, so what it proves holds for the record.

use std::collections::BTreeMap;

use super::Event;
use crate::api::{Attempt, Reason};

/// The kinds that decide what may follow. All others only pass by.
pub const DECIDING: [&str; 6] = [
    "run.created",
    "attempt.dispatched",
    "attempt.failed",
    "attempt.abandoned",
    "agent.started",
    "run.ended",
];

/// What a run's deciding events lead to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunState {
    created: bool,
    ended: bool,
    attempts: BTreeMap<Attempt, AttemptState>,
}

/// What is known of one attempt.
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
        self.created && !self.ended
    }

    /// The newest attempt.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        self.attempts.keys().next_back().copied()
    }

    /// The nonce that the agent was started for in this attempt.
    #[must_use]
    pub fn started(&self, attempt: Attempt) -> Option<&str> {
        match self.attempts.get(&attempt)? {
            AttemptState::Started { nonce } => Some(nonce),
            AttemptState::Dispatched | AttemptState::Abandoned | AttemptState::Past => None,
        }
    }

    /// Whether no agent will ever start in this attempt.
    #[must_use]
    pub fn abandoned(&self, attempt: Attempt) -> bool {
        self.attempts.get(&attempt) == Some(&AttemptState::Abandoned)
    }

    /// Whether an event may follow.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, event: &Event) -> Result<Admitted, Rejected> {
        if let Event::RunCreated { .. } = event {
            return if self.is_open() {
                Err(Rejected::AlreadyCreated)
            } else {
                Ok(Admitted::Write)
            };
        }
        if !self.created {
            return Err(Rejected::NotCreated);
        }
        // A call that was allowed while the agent lived may end after it: its bytes are still worth a line.
        let late_call =
            matches!(event, Event::Call(call) if call.decision != super::Decision::Begun);
        if self.ended && !late_call {
            return Err(Rejected::Ended);
        }
        match event {
            Event::AttemptDispatched { attempt } => self.admit_dispatch(*attempt),
            Event::AgentStarted { attempt, nonce } => self.admit_start(*attempt, nonce),
            Event::AttemptAbandoned { attempt, .. } | Event::AttemptFailed { attempt, .. } => {
                self.admit_abandonment(*attempt)
            }
            Event::RunEnded { .. } => self.admit_end(),
            Event::RunCreated { .. }
            | Event::InputResolved { .. }
            | Event::PodCreating { .. }
            | Event::InputsProvisioned { .. }
            | Event::PolicyProof { .. }
            | Event::AgentStopping { .. }
            | Event::AgentEnded { .. }
            | Event::Call(_)
            | Event::Drift { .. }
            | Event::Output { .. } => Ok(Admitted::Write),
        }
    }

    /// Takes an event that was written.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::RunCreated { .. } => {
                self.created = true;
                self.ended = false;
                for state in self.attempts.values_mut() {
                    *state = AttemptState::Past;
                }
            }
            Event::AttemptDispatched { attempt } => {
                self.attempts.insert(*attempt, AttemptState::Dispatched);
            }
            Event::AgentStarted { attempt, nonce } => {
                let nonce = nonce.clone();
                self.attempts
                    .insert(*attempt, AttemptState::Started { nonce });
            }
            Event::AttemptAbandoned { attempt, .. } | Event::AttemptFailed { attempt, .. } => {
                self.attempts.insert(*attempt, AttemptState::Abandoned);
            }
            Event::RunEnded { .. } => self.ended = true,
            Event::InputResolved { .. }
            | Event::PodCreating { .. }
            | Event::InputsProvisioned { .. }
            | Event::PolicyProof { .. }
            | Event::AgentStopping { .. }
            | Event::AgentEnded { .. }
            | Event::Call(_)
            | Event::Drift { .. }
            | Event::Output { .. } => {}
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

    fn admit_dispatch(&self, attempt: Attempt) -> Result<Admitted, Rejected> {
        let Some((newest, state)) = self.attempts.last_key_value() else {
            return if attempt == Attempt::FIRST {
                Ok(Admitted::Write)
            } else {
                Err(Rejected::NotTheNextAttempt)
            };
        };
        match state {
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

    fn admit_end(&self) -> Result<Admitted, Rejected> {
        match self.attempts.last_key_value() {
            Some((_, AttemptState::Dispatched)) => Err(Rejected::Undecided),
            None
            | Some((
                _,
                AttemptState::Started { .. } | AttemptState::Abandoned | AttemptState::Past,
            )) => Ok(Admitted::Write),
        }
    }

    fn admit_start(&self, attempt: Attempt, nonce: &str) -> Result<Admitted, Rejected> {
        match self.attempts.get(&attempt) {
            None => Err(Rejected::NeverDispatched),
            Some(_) if self.attempt() > Some(attempt) => Err(Rejected::OlderAttempt),
            Some(AttemptState::Abandoned) => Err(Rejected::Abandoned),
            Some(AttemptState::Past) => Err(Rejected::Ended),
            Some(AttemptState::Dispatched) => Ok(Admitted::Write),
            Some(AttemptState::Started { nonce: given }) if given == nonce => {
                Ok(Admitted::AlreadyThere)
            }
            Some(AttemptState::Started { .. }) => Err(Rejected::OtherNonce),
        }
    }

    fn admit_abandonment(&self, attempt: Attempt) -> Result<Admitted, Rejected> {
        match self.attempts.get(&attempt) {
            None => Err(Rejected::NeverDispatched),
            Some(AttemptState::Abandoned) => Ok(Admitted::AlreadyThere),
            Some(AttemptState::Dispatched) => Ok(Admitted::Write),
            Some(AttemptState::Past) => Err(Rejected::Ended),
            Some(AttemptState::Started { .. }) => Err(Rejected::AlreadyStarted),
        }
    }
}
