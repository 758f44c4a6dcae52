//! Termination messages: what a container leaves when the gateway is away.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::api::wire::{
    AgentExit, Drift, InputSummary, Outcome, OutputFile, ProvisionReport, Summary,
};

/// The largest message in bytes, counted after JSON escaping. 12 KiB are shared by all containers of a pod, and what the
/// kubelet cannot fit is cut in the middle.
pub(super) const MAX_BYTES: usize = 2048;

/// The message of `provision`: the report itself, cut until it fits.
#[must_use]
pub(super) fn of_provision(report: &ProvisionReport) -> String {
    let mut report = report.clone();
    loop {
        if let Some(text) = fitting(&report) {
            return text;
        }
        match &mut report {
            ProvisionReport::Failed { failure } => {
                let half = failure.message.len() / 2;
                failure.message = cut(&failure.message, half);
            }
            ProvisionReport::Done { inputs } => {
                if inputs.iter().any(|input| !input.submodules.is_empty()) {
                    for input in inputs.iter_mut() {
                        input.submodules.clear();
                    }
                } else {
                    // 16 names of 40 letters fit.
                    let names: Vec<_> = inputs.iter().map(|i| i.name.as_str()).collect();
                    return serde_json::json!({"result": "done", "cut": true, "inputs": names})
                        .to_string();
                }
            }
        }
    }
}

/// The message of `collect`: states first, then facts, then paths, as much as fits.
#[must_use]
pub(super) fn of_outcome(outcome: &Outcome, exit: Option<&AgentExit>) -> String {
    let output = match &outcome.output {
        OutputFile::Absent => "absent".to_owned(),
        OutputFile::Refused { .. } => "refused".to_owned(),
        OutputFile::Text { text } => format!("{} bytes", text.len()),
    };
    let whole = |keep_paths: bool| {
        outcome.inputs.iter().map(move |input| {
            let mut drift = input.drift.clone();
            match &mut drift {
                Drift::Drifted(facts) if !keep_paths => {
                    facts.truncated |= !facts.paths.is_empty();
                    facts.paths.clear();
                }
                Drift::Unknown { message, .. } if !keep_paths => *message = cut(message, 60),
                Drift::Unchanged | Drift::Drifted(_) | Drift::Unknown { .. } => {}
            }
            InputSummary::Whole {
                name: input.name.clone(),
                drift,
            }
        })
    };
    let states = outcome.inputs.iter().map(|input| InputSummary::State {
        name: input.name.clone(),
        state: match input.drift {
            Drift::Unchanged => "unchanged",
            Drift::Drifted(_) => "drifted",
            Drift::Unknown { .. } => "unknown",
        }
        .to_owned(),
    });
    let exit = exit.cloned().map(|exit| match exit {
        AgentExit::NotStarted { message } => AgentExit::NotStarted {
            message: cut(&message, 60),
        },
        as_it_is @ (AgentExit::Exited { .. }
        | AgentExit::Signalled { .. }
        | AgentExit::Stopped { .. }) => as_it_is,
    });
    let message = |cut: Option<&str>, inputs| Summary {
        cut: cut.map(str::to_owned),
        inputs,
        output: output.clone(),
        exit: exit.clone(),
    };
    fitting(&message(None, whole(true).collect()))
        .or_else(|| fitting(&message(Some("paths"), whole(false).collect())))
        .or_else(|| fitting(&message(Some("facts"), states.collect())))
        .unwrap_or_default()
}

/// Writes the message. A container without such a file has none.
pub(super) fn write(file: Option<&Path>, message: &str) {
    if let Some(file) = file
        && let Err(error) = std::fs::write(file, message)
    {
        eprintln!("sandboxrun-pod: cannot write {}: {error}", file.display());
    }
}

fn fitting<T: Serialize>(value: &T) -> Option<String> {
    serde_json::to_string(value)
        .ok()
        .filter(|text| escaped_len(text) <= MAX_BYTES)
}

/// How long a text is inside a JSON string, as Go's encoder writes it: it escapes `<`, `>`, `&` and two separators, too.
fn escaped_len(text: &str) -> usize {
    text.chars()
        .map(|c| match c {
            '"' | '\\' => 2,
            c if c.is_control() || matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}') => 6,
            c => c.len_utf8(),
        })
        .sum()
}

/// The text, cut at so many bytes and marked.
fn cut(text: &str, at: usize) -> String {
    if text.len() <= at {
        return text.to_owned();
    }
    let mut short: String = text
        .char_indices()
        .take_while(|(i, _)| *i < at)
        .map(|(_, c)| c)
        .collect();
    let _infallible = write!(short, " [cut]");
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Change, ChangedPath, DriftFacts, InputOutcome, ProvisionedInput};
    use crate::api::{Failure, Reason};

    fn outcome(inputs: usize, paths: usize) -> Outcome {
        let path = ChangedPath {
            path: "\\x00\"<>".repeat(20),
            change: Change::Added,
        };
        let facts = DriftFacts {
            added: u64::MAX,
            paths: vec![path; paths],
            ..DriftFacts::default()
        };
        let input = |n| InputOutcome {
            name: format!("{n:0>40}").parse().unwrap(),
            drift: Drift::Drifted(facts.clone()),
        };
        Outcome {
            inputs: (0..inputs).map(input).collect(),
            output: OutputFile::Absent,
        }
    }

    #[test]
    fn p11_a_message_keeps_its_budget_cuts_paths_first_and_says_so() {
        for (inputs, paths, cut) in [
            (1, 1, None),
            (1, 50, Some("paths")),
            (16, 50, Some("facts")),
            (0, 0, None),
        ] {
            let exit = AgentExit::NotStarted {
                message: "\u{1}".repeat(5000),
            };
            let text = of_outcome(&outcome(inputs, paths), Some(&exit));
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(escaped_len(&text) <= MAX_BYTES, "{}", text.len());
            assert_eq!(value.get("cut").and_then(|c| c.as_str()), cut);
            let read = Summary::parse(&text).unwrap().outcomes();
            assert_eq!(read.len(), inputs);
            assert!(read.iter().all(|i| matches!(i.drift, Drift::Drifted(_))));
            assert_eq!(Summary::parse(text.get(1..).unwrap()), None, "a cut one");
        }
    }

    #[test]
    fn p11_a_long_failure_is_cut_and_stays_json() {
        let failure = Failure::new(Reason::CheckoutFailed, "\"\u{1}".repeat(5000));
        let text = of_provision(&ProvisionReport::Failed { failure });
        assert!(escaped_len(&text) <= MAX_BYTES);
        let report: ProvisionReport = serde_json::from_str(&text).unwrap();
        assert!(
            matches!(report, ProvisionReport::Failed { failure } if failure.message.ends_with("[cut]"))
        );

        let input = |n| ProvisionedInput {
            name: format!("{n:0>40}").parse().unwrap(),
            files: 1,
            bytes: 1,
            submodules: vec!["s".repeat(100); 20],
            lfs_pointers: 0,
            millis: 0,
        };
        let done = ProvisionReport::Done {
            inputs: (0..16).map(input).collect(),
        };
        assert!(escaped_len(&of_provision(&done)) <= MAX_BYTES);
    }
}
