//! Rows of the tables: each is one situation and what must follow.

mod conclude;
mod plan;
mod status;

use std::time::Duration;

use jiff::Timestamp;

use super::{InputFacts, Limits, Observed, Pod, Policy, RecordFacts, Resolution, SpecFacts, Wish};
use crate::api::wire::{AgentExit, Canary, Drift, InputOutcome, Protocol};
use crate::api::{Attempt, Event, Failure, ObjectFormat, OnDrift, Reason};

pub(super) const FIRST: Attempt = Attempt::FIRST;

/// The time `seconds` after the run's creation.
pub(super) fn at(seconds: u64) -> Timestamp {
    let start: Timestamp = "2026-03-01T10:00:00Z".parse().unwrap();
    start + Duration::from_secs(seconds)
}

/// A run with one input whose events came one second apart; pod absent, policy in force.
pub(super) fn observed(events: Vec<Event>) -> Observed {
    let timed: Vec<_> = (0..).map(at).zip(events).collect();
    let mut facts = RecordFacts::of(timed.iter().map(|(at, event)| (*at, event)));
    facts.head = Some((timed.len() as u64, "f".repeat(64)));
    Observed {
        spec: SpecFacts {
            namespace: "team".parse().unwrap(),
            name: "fix-it".parse().unwrap(),
            uid: "0a".parse().unwrap(),
            generation: Some(3),
            rerun: String::new(),
            inputs: vec![InputFacts {
                name: "app".parse().unwrap(),
                repository: "https://git.example.com/acme/app.git".into(),
                requested_ref: "branch main".into(),
            }],
            refused: None,
            on_drift: OnDrift::Report,
            timeout: Duration::from_mins(20),
            start_timeout: Duration::from_mins(10),
            infrastructure_retries: 2,
            ttl_after_finished: Duration::from_hours(24),
        },
        wish: Wish::default(),
        record: Ok(facts),
        resolution: Resolution::Idle,
        policy: Policy::InForce,
        pod: Pod::Absent,
        strays: Vec::new(),
        node: None,
        trouble: None,
        limits: Limits::default(),
    }
}

pub(super) fn created() -> Event {
    Event::RunCreated {
        digest: "d".repeat(64),
        rerun: String::new(),
        writer: "test".into(),
    }
}

pub(super) fn dispatched(attempt: Attempt) -> Event {
    Event::AttemptDispatched { attempt }
}

pub(super) fn abandoned(attempt: Attempt, reason: Reason) -> Event {
    Event::AttemptAbandoned { attempt, reason }
}

pub(super) fn resolved(attempt: Attempt) -> Event {
    Event::InputResolved {
        attempt,
        input: "app".parse().unwrap(),
        repository: "https://git.example.com/acme/app.git".into(),
        requested_ref: "branch main".into(),
        resolved_ref: Some("refs/heads/main".parse().unwrap()),
        commit: "1".repeat(40).parse().unwrap(),
        tag_object: None,
        object_format: ObjectFormat::Sha1,
        connector: Some("forge".parse().unwrap()),
        credential_proof: "ReadOnly".into(),
    }
}

pub(super) fn creating(attempt: Attempt) -> Event {
    Event::PodCreating {
        attempt,
        pod: format!("sbr-0a-{attempt}"),
    }
}

pub(super) fn proof(enforced: bool) -> Event {
    let canary = Canary {
        name: "this machine".into(),
        address: "10.0.0.1:8444".parse().unwrap(),
        protocol: Protocol::Tcp,
        tolerated: false,
    };
    Event::PolicyProof {
        attempt: FIRST,
        enforced,
        canaries: vec![canary.clone()],
        open: if enforced { Vec::new() } else { vec![canary] },
        open_millis: 0,
        unproven_millis: 0,
    }
}

pub(super) fn ready() -> Vec<Event> {
    vec![
        created(),
        dispatched(FIRST),
        resolved(FIRST),
        creating(FIRST),
    ]
}

/// Everything up to the start of the agent, which is event 6, at second 6.
pub(super) fn started() -> Vec<Event> {
    let mut events = ready();
    events.push(Event::InputsProvisioned {
        attempt: FIRST,
        inputs: Vec::new(),
    });
    events.push(proof(true));
    events.push(Event::AgentStarted {
        attempt: FIRST,
        nonce: "n".into(),
    });
    events
}

pub(super) fn stopping(reason: Reason) -> Event {
    let attempt = FIRST;
    Event::AgentStopping { attempt, reason }
}

pub(super) fn exited(exit: Option<AgentExit>) -> Event {
    Event::AgentEnded {
        attempt: FIRST,
        exit,
        millis: 1000,
    }
}

pub(super) fn outcome(drift: Drift, failure: Option<Failure>) -> Vec<Event> {
    let name = "app".parse().unwrap();
    vec![
        Event::Drift {
            attempt: FIRST,
            outcome: InputOutcome { name, drift },
        },
        Event::Output {
            attempt: FIRST,
            sha256: Some("e".repeat(64)),
            bytes: 2,
            text: Some("{}".into()),
            failure,
        },
    ]
}

pub(super) fn ended(failure: Option<Failure>) -> Event {
    Event::RunEnded {
        attempt: Some(FIRST),
        exit_code: Some(0),
        failure,
        millis: 9000,
    }
}

pub(super) fn with(mut events: Vec<Event>, more: impl IntoIterator<Item = Event>) -> Vec<Event> {
    events.extend(more);
    events
}
