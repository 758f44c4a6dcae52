//! What can still be said about what a run left when its outcome did not reach the gateway: by the broker's last words,
//! or that nothing is known. The agent's own termination message is never read: anybody can write one. Pure.

use crate::api::wire::{Drift, InputOutcome, Summary, UnknownReason};
use crate::api::{Attempt, Event, Failure, InputName, Reason, RunSpec};

/// What is known of an attempt whose outcome did not reach the gateway.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lost<'a> {
    pub(super) attempt: Attempt,
    /// The broker's last words.
    pub(super) message: Option<&'a str>,
    /// Why what they do not say is not known.
    pub(super) reason: UnknownReason,
    /// `None`: the object is gone, so nobody knows what it wanted.
    pub(super) spec: Option<&'a RunSpec>,
    /// How long the agent lived, if how it ended is not in the record; `None`: it is there.
    pub(super) untold_after: Option<u64>,
}

/// How the agent ended, if only the broker knew; drift of every input; the output. P11: a message that is cut in the
/// middle says nothing, and one that names other inputs nothing of what was left.
pub(super) fn events<'a>(
    lost: Lost<'_>,
    inputs: impl Iterator<Item = &'a InputName>,
) -> Vec<Event> {
    let attempt = lost.attempt;
    let names: Vec<&InputName> = inputs.collect();
    let summary = lost.message.and_then(Summary::parse);
    let exit = summary.as_ref().and_then(|summary| summary.exit.clone());
    let told = summary.as_ref().map(Summary::outcomes);
    let told = told.filter(|told| {
        let inputs = told.iter().map(|input| &input.name);
        inputs.eq(names.iter().copied())
    });
    let summary = summary.filter(|_| told.is_some());
    let ended = exit
        .zip(lost.untold_after)
        .map(|(exit, millis)| Event::AgentEnded {
            attempt,
            exit: Some(exit),
            millis,
        });
    let untold = |name: &&InputName| InputOutcome {
        name: (*name).clone(),
        drift: Drift::unread(lost.reason),
    };
    let drift = told.unwrap_or_else(|| names.iter().map(untold).collect());
    let drift = drift
        .into_iter()
        .map(|outcome| Event::Drift { attempt, outcome });
    let output = summary.as_ref().map(|summary| summary.output.as_str());
    let output_event = Event::Output {
        attempt,
        sha256: None,
        bytes: output.and_then(length).unwrap_or_default(),
        text: None,
        failure: lost_output(output, lost.spec),
    };
    ended
        .into_iter()
        .chain(drift)
        .chain([output_event])
        .collect()
}

/// Why an output that only the broker saw does not count.
fn lost_output(output: Option<&str>, spec: Option<&RunSpec>) -> Option<Failure> {
    let wanted = spec.is_some_and(|spec| spec.agent.output_schema.is_some());
    let failure = |reason, message: &str| Some(Failure::new(reason, message));
    match output {
        Some("absent") if wanted => failure(Reason::OutputMissing, "the agent left no output.json"),
        None if wanted => failure(
            Reason::CollectFailed,
            "what the agent left as output.json was not read before its pod was gone",
        ),
        Some("absent") | None => None,
        Some("refused") => failure(
            Reason::OutputNotJson,
            "what the agent left as output.json is not a file that counts",
        ),
        Some(_) => failure(
            Reason::CollectFailed,
            "the agent's output.json did not reach the gateway before its pod ended",
        ),
    }
}

fn length(output: &str) -> Option<u64> {
    output.strip_suffix(" bytes")?.parse().ok()
}

#[cfg(test)]
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a test is about a few kinds of events"
)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn told(message: Option<&str>, schema: bool) -> Vec<String> {
        let name: InputName = "app".parse().unwrap();
        let mut agent = serde_json::json!({"image": "i", "command": ["true"]});
        if schema {
            agent["output"] = serde_json::json!({"schema": {"type": "object"}});
        }
        let flat = serde_json::from_value(serde_json::json!({"agent": agent})).unwrap();
        let spec = RunSpec::parse(&flat).unwrap();
        let lost = Lost {
            attempt: Attempt::FIRST,
            message,
            reason: UnknownReason::CollectorFailed,
            spec: Some(&spec),
            untold_after: Some(7),
        };
        let events = events(lost, [&name].into_iter());
        let words = events.iter().map(|event| match event {
            Event::AgentEnded { exit, millis, .. } => {
                let code = exit.as_ref().and_then(crate::api::wire::AgentExit::code);
                format!("ended {code:?} {millis}")
            }
            Event::Drift { outcome, .. } => match &outcome.drift {
                Drift::Unchanged => "unchanged".to_owned(),
                Drift::Drifted(facts) => format!("drifted {} {}", facts.modified, facts.incomplete),
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

    const UNCHANGED: &str =
        r#"{"inputs":[{"name":"app","drift":{"state":"unchanged"}}],"output":"absent"}"#;

    #[rstest]
    #[case::whole(Some(UNCHANGED), &["unchanged", "output 0 fine"])]
    #[case::states_only(
        Some(r#"{"cut":"facts","inputs":[{"name":"app","state":"drifted"}],"output":"12 bytes"}"#),
        &["drifted 0 true", "output 12 CollectFailed"])]
    #[case::p07_the_end_that_only_the_broker_knew(
        Some(r#"{"inputs":[{"name":"app","state":"unchanged"}],"output":"absent","exit":{"end":"exited","code":0}}"#),
        &["ended Some(0) 7", "unchanged", "output 0 fine"])]
    #[case::p11_cut_in_the_middle(
        Some(r#"{"inputs":[{"name":"app","drift":{"state":"unchanged"}}],"out"#),
        &["unknown CollectorFailed", "output 0 fine"])]
    #[case::p11_of_other_inputs(
        Some(r#"{"inputs":[{"name":"lib","state":"unchanged"}],"output":"absent","exit":{"end":"exited","code":0}}"#),
        &["ended Some(0) 7", "unknown CollectorFailed", "output 0 fine"])]
    #[case::p11_no_message(None, &["unknown CollectorFailed", "output 0 fine"])]
    fn p11_a_broken_summary_is_unknown_and_never_unchanged(
        #[case] message: Option<&str>,
        #[case] want: &[&str],
    ) {
        assert_eq!(told(message, false), want);
    }

    /// An output that is required and was never read is not one that keeps its schema.
    #[rstest]
    #[case::left_none(Some(UNCHANGED), "output 0 OutputMissing")]
    #[case::not_read(None, "output 0 CollectFailed")]
    #[case::p11_cut(Some(r#"{"inputs":[{"na"#), "output 0 CollectFailed")]
    fn p11_a_required_output_that_was_not_read_is_never_fine(
        #[case] message: Option<&str>,
        #[case] want: &str,
    ) {
        assert_eq!(told(message, true).last().unwrap(), want);
    }
}
