//! What can still be said about what a run left when its outcome did not reach the gateway: by the broker's last words,
//! or that nothing is known. The agent's own termination message is never read: anybody can write one. Pure.

use serde::Deserialize;

use crate::api::wire::{Drift, DriftFacts, InputOutcome, UnknownReason};
use crate::api::{Attempt, Event, Failure, InputName, Reason, RunSpec};

/// The summary that the broker leaves as its termination message.
#[derive(Debug, Deserialize)]
struct Summary {
    inputs: Vec<InputSummary>,
    /// `absent`, `refused`, or the length of the text.
    output: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum InputSummary {
    Whole { name: InputName, drift: Drift },
    State { name: InputName, state: State },
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Unchanged,
    Drifted,
    Unknown,
}

impl InputSummary {
    fn name(&self) -> &InputName {
        match self {
            Self::Whole { name, .. } | Self::State { name, .. } => name,
        }
    }

    fn drift(&self) -> Drift {
        match self {
            Self::Whole { drift, .. } => drift.clone(),
            Self::State { state, .. } => match state {
                State::Unchanged => Drift::Unchanged,
                State::Drifted => Drift::Drifted(DriftFacts {
                    truncated: true,
                    incomplete: true,
                    ..DriftFacts::default()
                }),
                State::Unknown => unknown(UnknownReason::CollectorFailed),
            },
        }
    }
}

/// Drift of every input and the output of an attempt. P11: a message that is cut in the middle or names other inputs
/// says nothing.
pub(super) fn events<'a>(
    attempt: Attempt,
    inputs: impl Iterator<Item = &'a InputName>,
    message: Option<&str>,
    reason: UnknownReason,
    spec: Option<&RunSpec>,
) -> Vec<Event> {
    let names: Vec<&InputName> = inputs.collect();
    let summary: Option<Summary> = message.and_then(|text| serde_json::from_str(text).ok());
    let summary = summary.filter(|summary| {
        let told = summary.inputs.iter().map(InputSummary::name);
        told.eq(names.iter().copied())
    });
    let drift = |(at, name): (usize, &&InputName)| {
        let told = summary.as_ref().and_then(|summary| summary.inputs.get(at));
        let drift = told.map_or_else(|| unknown(reason), InputSummary::drift);
        let name = (*name).clone();
        Event::Drift {
            attempt,
            outcome: InputOutcome { name, drift },
        }
    };
    let mut events: Vec<Event> = names.iter().enumerate().map(drift).collect();
    let output = summary.as_ref().map(|summary| summary.output.as_str());
    events.push(Event::Output {
        attempt,
        sha256: None,
        bytes: output.and_then(length).unwrap_or_default(),
        text: None,
        failure: output.and_then(|output| lost_output(output, spec)),
    });
    events
}

/// Why an output that only the broker saw does not count.
fn lost_output(output: &str, spec: Option<&RunSpec>) -> Option<Failure> {
    let wanted = spec.is_some_and(|spec| spec.agent.output_schema.is_some());
    let failure = |reason, message: &str| Some(Failure::new(reason, message));
    match output {
        "absent" if wanted => failure(Reason::OutputMissing, "the agent left no output.json"),
        "absent" => None,
        "refused" => failure(
            Reason::OutputNotJson,
            "what the agent left as output.json is not a file that counts",
        ),
        _ => failure(
            Reason::CollectFailed,
            "the agent's output.json did not reach the gateway before its pod ended",
        ),
    }
}

fn length(output: &str) -> Option<u64> {
    output.strip_suffix(" bytes")?.parse().ok()
}

fn unknown(reason: UnknownReason) -> Drift {
    let message = match reason {
        UnknownReason::AgentMayRun => "the agent may still have been alive",
        UnknownReason::CollectorFailed
        | UnknownReason::Unreadable
        | UnknownReason::Budget
        | UnknownReason::NoBaseline => "what the agent left was not read",
    };
    Drift::Unknown {
        reason,
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn told(message: Option<&str>) -> Vec<String> {
        let name: InputName = "app".parse().unwrap();
        let reason = UnknownReason::CollectorFailed;
        let events = events(Attempt::FIRST, [&name].into_iter(), message, reason, None);
        let words = events.iter().map(|event| match event {
            Event::Drift { outcome, .. } => match &outcome.drift {
                Drift::Unchanged => "unchanged".to_owned(),
                Drift::Drifted(facts) => format!("drifted {}", facts.modified),
                Drift::Unknown { reason, .. } => format!("unknown {reason:?}"),
            },
            Event::Output { bytes, failure, .. } => {
                let reason = failure.as_ref().map_or("fine", |f| f.reason.as_str());
                format!("output {bytes} {reason}")
            }
            other => panic!("{other:?}"),
        });
        words.collect()
    }

    #[rstest]
    #[case::whole(
        Some(r#"{"inputs":[{"name":"app","drift":{"state":"unchanged"}}],"output":"absent"}"#),
        &["unchanged", "output 0 fine"])]
    #[case::states_only(
        Some(r#"{"cut":"facts","inputs":[{"name":"app","state":"drifted"}],"output":"12 bytes"}"#),
        &["drifted 0", "output 12 CollectFailed"])]
    #[case::p11_cut_in_the_middle(
        Some(r#"{"inputs":[{"name":"app","drift":{"state":"unchanged"}}],"out"#),
        &["unknown CollectorFailed", "output 0 fine"])]
    #[case::p11_of_other_inputs(
        Some(r#"{"inputs":[{"name":"lib","drift":{"state":"unchanged"}}],"output":"absent"}"#),
        &["unknown CollectorFailed", "output 0 fine"])]
    #[case::p11_no_message(None, &["unknown CollectorFailed", "output 0 fine"])]
    fn p11_a_broken_summary_is_unknown_and_never_unchanged(
        #[case] message: Option<&str>,
        #[case] want: &[&str],
    ) {
        assert_eq!(told(message), want);
    }
}
