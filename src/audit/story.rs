//! A run told as a story: one plain sentence for each event, in order. Pure.

use std::fmt::Write as _;

use crate::api::wire::{AgentExit, Change, Drift, DriftFacts, GitDir, HeadSeen, ProvisionedInput};
use crate::api::{Call, Decision, Event, Failure, Via};

/// One sentence for each event, each with its time of day. A line with the date stands before the first one and
/// wherever the day changes. Text of agents and forges cannot act on a terminal.
pub fn story<'a>(events: impl IntoIterator<Item = (&'a str, &'a Event)>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut today = String::new();
    for (at, event) in events {
        let (date, time) = at.split_once('T').unwrap_or((at, ""));
        if date != today {
            date.clone_into(&mut today);
            lines.push(printable(&format!("{date} (UTC)")));
        }
        let time = time.get(..12).unwrap_or(time); // 10:02:03.456
        lines.push(printable(&format!("  {time}  {}", sentence(event))));
    }
    lines
}

/// What happened, as one sentence.
#[must_use]
pub fn sentence(event: &Event) -> String {
    match event {
        Event::RunCreated {
            digest,
            rerun,
            writer,
        } => {
            let again = if rerun.is_empty() {
                String::new()
            } else {
                format!(" as rerun `{rerun}`")
            };
            format!(
                "The run was created{again} by {writer}; its spec has digest {}.",
                short(digest)
            )
        }
        Event::AttemptDispatched { attempt } => format!("Attempt {attempt} began."),
        Event::InputResolved { .. } => resolved(event),
        Event::AttemptFailed { attempt, failure } => {
            format!(
                "Attempt {attempt} failed before its agent could start: {}",
                because(failure)
            )
        }
        Event::PodCreating { pod, .. } => format!("The sandbox {pod} is being made."),
        Event::InputsProvisioned { inputs, .. } => provisioned(inputs),
        Event::PolicyProof {
            enforced,
            canaries,
            open,
            open_millis,
            unproven_millis,
            ..
        } => {
            if *enforced {
                let accepted: Vec<_> = open.iter().map(|c| c.name.clone()).collect();
                let at_first = if *open_millis > 0 {
                    format!(" (at first it was open for {})", duration(*open_millis))
                } else {
                    String::new()
                };
                let unproven = if *unproven_millis > 0 {
                    format!(
                        " Before that, nothing was proved for {}.",
                        duration(*unproven_millis)
                    )
                } else {
                    String::new()
                };
                if !accepted.is_empty() {
                    return format!(
                        "The administrator accepts that these answer from inside: {}.{unproven}",
                        listed(&accepted, "something")
                    );
                }
                format!(
                    "The sandbox is sealed: {} were tried from inside and none answered{at_first}.{unproven}",
                    count(canaries.len() as u64, "address", "addresses")
                )
            } else {
                let open: Vec<_> = open
                    .iter()
                    .map(|c| format!("{} ({})", c.name, c.address))
                    .collect();
                format!(
                    "The sandbox is NOT sealed: {} answered.",
                    listed(&open, "something")
                )
            }
        }
        Event::AgentStarted { attempt, .. } => {
            format!("The agent of attempt {attempt} was started; no other start is granted.")
        }
        Event::AttemptAbandoned { attempt, reason } => {
            format!("Attempt {attempt} was abandoned ({reason}): its agent will never start.")
        }
        Event::AgentStopping { reason, .. } => format!("The agent was asked to stop ({reason})."),
        Event::AgentEnded { exit, millis, .. } => ended(exit.as_ref(), *millis),
        Event::Call(call) => called(call),
        Event::Drift { outcome, .. } => drift(outcome.name.as_str(), &outcome.drift),
        Event::Output {
            sha256,
            bytes,
            failure,
            ..
        } => output(sha256.as_deref(), *bytes, failure.as_ref()),
        Event::RunEnded {
            failure, millis, ..
        } => match failure {
            None => format!("The run succeeded after {}.", duration(*millis)),
            Some(failure) => {
                format!(
                    "The run failed after {}: {}",
                    duration(*millis),
                    because(failure)
                )
            }
        },
    }
}

fn resolved(event: &Event) -> String {
    let Event::InputResolved {
        input,
        repository,
        requested_ref,
        resolved_ref,
        commit,
        tag_object,
        connector,
        credential_proof,
        ..
    } = event
    else {
        return String::new();
    };
    let mut text = format!(
        "Input {input} is commit {} of {repository}, asked for as {requested_ref}",
        commit.short()
    );
    if let Some(name) = resolved_ref {
        let _ = write!(text, " ({name})");
    }
    if let Some(tag) = tag_object {
        let _ = write!(text, " through tag object {}", tag.short());
    }
    match connector {
        Some(name) => {
            let _ = write!(
                text,
                ", read with connector {name} (credential: {credential_proof})"
            );
        }
        None => text.push_str(", read without a credential"),
    }
    text.push('.');
    text
}

fn provisioned(inputs: &[ProvisionedInput]) -> String {
    if inputs.is_empty() {
        return "The workspace is ready; the run has no inputs.".to_owned();
    }
    let each: Vec<_> = inputs
        .iter()
        .map(|input| {
            let mut text = format!(
                "{} ({}, {}",
                input.name,
                count(input.files, "file", "files"),
                bytes(input.bytes)
            );
            if !input.submodules.is_empty() {
                let _ = write!(
                    text,
                    ", submodules left empty: {}",
                    input.submodules.join(", ")
                );
            }
            if input.lfs_pointers > 0 {
                let _ = write!(
                    text,
                    ", {} left as pointers",
                    count(input.lfs_pointers, "LFS file", "LFS files")
                );
            }
            text.push(')');
            text
        })
        .collect();
    format!("The workspace is ready: {}.", each.join(", "))
}

fn ended(exit: Option<&AgentExit>, millis: u64) -> String {
    let after = duration(millis);
    match exit {
        Some(AgentExit::Exited { code }) => {
            format!("The agent ended by itself with status {code} after {after}.")
        }
        Some(AgentExit::Signalled { signal }) => {
            format!("The agent was killed by signal {signal} after {after}; we did not send it.")
        }
        Some(AgentExit::NotStarted { message }) => {
            format!("The agent's command could not be started: {message}.")
        }
        Some(AgentExit::Stopped { reason }) => {
            format!("The agent was stopped after {after} ({reason}).")
        }
        None => {
            format!("The agent's supervisor was lost after {after}; how it ended is not known.")
        }
    }
}

fn called(call: &Call) -> String {
    let what = match &call.via {
        Via::Lookup(name) => format!("{} {} of lookup {name}", call.method, call.target),
        Via::Git(input) => format!("git {} {} of input {input}", call.method, call.target),
        Via::Proxy => format!("{} {} through the proxy", call.method, call.target),
        Via::Other => format!("{} {}", call.method, call.target),
    };
    let query = match &call.query {
        Some(query) => format!(" with a query of {}", bytes(query.bytes)),
        None => String::new(),
    };
    match &call.decision {
        Decision::Begun => format!("The agent may call {what}{query}."),
        Decision::Allowed => format!(
            "The agent called {what}{query}: {}, {} in {}.",
            call.status,
            bytes(call.bytes),
            duration(call.millis)
        ),
        Decision::Refused { reason, rule } => {
            let by = if rule.is_empty() {
                String::new()
            } else {
                format!(" by {rule}")
            };
            format!("The agent was refused {what}{query}: {reason}{by}.")
        }
        Decision::Failed { reason } => format!(
            "The agent's call {what}{query} failed after {} and {}: {reason}.",
            bytes(call.bytes),
            duration(call.millis)
        ),
    }
}

fn drift(input: &str, drift: &Drift) -> String {
    match drift {
        Drift::Unchanged => format!("Input {input} is unchanged."),
        Drift::Unknown { reason, message } => {
            format!("Whether input {input} was changed is NOT known ({reason:?}): {message}.")
        }
        Drift::Drifted(facts) => format!("Input {input} drifted: {}.", drift_facts(facts)),
    }
}

fn drift_facts(facts: &DriftFacts) -> String {
    let counts = [
        (facts.modified, "modified"),
        (facts.deleted, "deleted"),
        (facts.added, "added"),
        (facts.type_changed, "of another type"),
        (facts.mode_changed, "with another mode"),
    ];
    let mut parts: Vec<String> = counts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    match &facts.head {
        HeadSeen::Pinned => {}
        HeadSeen::Unreadable => parts.push("HEAD cannot be read".to_owned()),
        HeadSeen::Moved {
            to,
            pinned_is_ancestor,
        } => {
            let to = to.as_ref().map_or("nothing", |commit| commit.short());
            let ancestor = match pinned_is_ancestor {
                Some(true) => ", a descendant of the pinned commit",
                Some(false) => ", which does not contain the pinned commit",
                None => "",
            };
            parts.push(format!("HEAD moved to {to}{ancestor}"));
        }
    }
    match facts.git_dir {
        GitDir::Intact => {}
        GitDir::Missing => parts.push(".git is gone".to_owned()),
        GitDir::Replaced => parts.push(".git was replaced".to_owned()),
    }
    if facts.incomplete {
        parts.push("a part could not be read".to_owned());
    }
    let mut text = parts.join("; ");
    let first: Vec<_> = facts.paths.iter().take(3).collect();
    if !first.is_empty() {
        let more = if facts.truncated || facts.paths.len() > first.len() {
            ", ..."
        } else {
            ""
        };
        let first: Vec<_> = first
            .iter()
            .map(|c| format!("{} {}", change_sign(c.change), c.path))
            .collect();
        let _ = write!(text, " ({}{more})", first.join(", "));
    }
    text
}

fn change_sign(change: Change) -> char {
    match change {
        Change::Modified => 'M',
        Change::Deleted => 'D',
        Change::Added => 'A',
        Change::TypeChanged => 'T',
        Change::ModeChanged => 'X',
    }
}

fn output(sha256: Option<&str>, length: u64, failure: Option<&Failure>) -> String {
    let what = match sha256 {
        Some(sha256) => format!(
            "The output has {} (SHA-256 {})",
            bytes(length),
            short(sha256)
        ),
        None => "There is no output".to_owned(),
    };
    match failure {
        Some(failure) => format!("{what} and does not count: {}", because(failure)),
        None => format!("{what}."),
    }
}

fn because(failure: &Failure) -> String {
    let input = failure
        .input
        .as_ref()
        .map_or(String::new(), |name| format!("input {name}: "));
    let message = failure.message.trim_end_matches('.');
    format!(
        "{input}{message} ({}, {}).",
        failure.reason.code(),
        failure.reason
    )
}

fn listed(items: &[String], nothing: &str) -> String {
    if items.is_empty() {
        nothing.to_owned()
    } else {
        items.join(", ")
    }
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

fn count(n: u64, one: &str, many: &str) -> String {
    if n == 1 {
        format!("1 {one}")
    } else {
        format!("{n} {many}")
    }
}

/// Bytes as people say them, in powers of 1,000.
fn bytes(n: u64) -> String {
    if n < 1000 {
        return count(n, "byte", "bytes");
    }
    let mut tenths = n / 100;
    for unit in ["kB", "MB", "GB"] {
        if tenths < 10_000 {
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
        tenths /= 1000;
    }
    format!("{}.{} TB", tenths / 10, tenths % 10)
}

/// Milliseconds as people say them.
fn duration(millis: u64) -> String {
    let seconds = millis / 1000;
    if seconds == 0 {
        format!("{millis} ms")
    } else if seconds < 60 {
        format!("{seconds}.{} s", millis % 1000 / 100)
    } else if seconds < 3600 {
        format!("{} min {} s", seconds / 60, seconds % 60)
    } else {
        format!("{} h {} min", seconds / 3600, seconds / 60 % 60)
    }
}

/// Control characters, and those that turn the direction of text, become escapes.
fn printable(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for c in line.chars() {
        let turns = matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || turns {
            let _ = write!(text, "\\u{{{:x}}}", u32::from(c));
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Canary, ChangedPath, InputOutcome, Protocol, UnknownReason};
    use crate::api::{Attempt, CommitId, ObjectFormat, QueryDigest, Reason};

    const FIRST: Attempt = Attempt::FIRST;

    fn commit(digit: char) -> CommitId {
        digit.to_string().repeat(40).parse().unwrap()
    }

    fn told(events: &[Event]) -> String {
        let times = (0..).map(|i| format!("2026-03-01T10:02:{i:02}.250000Z"));
        let times: Vec<String> = times.take(events.len()).collect();
        story(times.iter().map(String::as_str).zip(events)).join("\n")
    }

    fn call(via: Via, decision: Decision) -> Event {
        Event::Call(Call {
            attempt: FIRST,
            via,
            method: "GET".into(),
            target: "/rest/api/2/issue/7".into(),
            query: Some(QueryDigest {
                bytes: 12,
                sha256: "0".repeat(64),
            }),
            decision,
            status: 200,
            bytes: 12_345,
            millis: 31,
        })
    }

    #[test]
    #[expect(
        clippy::too_many_lines,
        reason = "one event of each kind, and what it reads like"
    )]
    fn a_run_reads_as_a_story() {
        let canary = Canary {
            name: "this machine".into(),
            address: "10.0.0.1:8444".parse().unwrap(),
            protocol: Protocol::Tcp,
            tolerated: false,
        };
        let events = [
            Event::RunCreated {
                digest: "a".repeat(64),
                rerun: String::new(),
                writer: "sandboxrun 0.1.0".into(),
            },
            Event::AttemptDispatched { attempt: FIRST },
            Event::InputResolved {
                attempt: FIRST,
                input: "app".parse().unwrap(),
                repository: "https://git.example.com/acme/app.git".into(),
                requested_ref: "tag v1".into(),
                resolved_ref: Some("refs/tags/v1".parse().unwrap()),
                commit: commit('1'),
                tag_object: Some(commit('2')),
                object_format: ObjectFormat::Sha1,
                connector: Some("forge".parse().unwrap()),
                credential_proof: "ReadOnly".into(),
            },
            Event::PodCreating {
                attempt: FIRST,
                pod: "sbr-1".into(),
            },
            Event::InputsProvisioned {
                attempt: FIRST,
                inputs: vec![ProvisionedInput {
                    name: "app".parse().unwrap(),
                    files: 1,
                    bytes: 1_234_567,
                    submodules: vec!["vendor/x".into()],
                    lfs_pointers: 2,
                    millis: 12,
                }],
            },
            Event::PolicyProof {
                attempt: FIRST,
                enforced: true,
                canaries: vec![canary.clone(), canary],
                open: Vec::new(),
                open_millis: 1200,
                unproven_millis: 0,
            },
            Event::AgentStarted {
                attempt: FIRST,
                nonce: "n".into(),
            },
            call(Via::Lookup("tickets".parse().unwrap()), Decision::Begun),
            call(Via::Lookup("tickets".parse().unwrap()), Decision::Allowed),
            call(
                Via::Other,
                Decision::Refused {
                    reason: Reason::NoRuleAllows,
                    rule: "lookups[tickets].paths".into(),
                },
            ),
            Event::AgentEnded {
                attempt: FIRST,
                exit: Some(AgentExit::Exited { code: 0 }),
                millis: 61_000,
            },
            Event::Drift {
                attempt: FIRST,
                outcome: InputOutcome {
                    name: "app".parse().unwrap(),
                    drift: Drift::Drifted(DriftFacts {
                        modified: 1,
                        added: 2,
                        paths: vec![ChangedPath {
                            path: "README.md\u{1b}[2J".into(),
                            change: Change::Modified,
                        }],
                        truncated: true,
                        head: HeadSeen::Moved {
                            to: Some(commit('3')),
                            pinned_is_ancestor: Some(true),
                        },
                        ..DriftFacts::default()
                    }),
                },
            },
            Event::Output {
                attempt: FIRST,
                sha256: Some("b".repeat(64)),
                bytes: 17,
                text: None,
                failure: None,
            },
            Event::RunEnded {
                attempt: Some(FIRST),
                exit_code: Some(0),
                failure: None,
                millis: 64_500,
            },
        ];
        insta::assert_snapshot!(told(&events), @r#"
2026-03-01 (UTC)
  10:02:00.250  The run was created by sandboxrun 0.1.0; its spec has digest aaaaaaaaaaaa.
  10:02:01.250  Attempt 1 began.
  10:02:02.250  Input app is commit 1111111111 of https://git.example.com/acme/app.git, asked for as tag v1 (refs/tags/v1) through tag object 2222222222, read with connector forge (credential: ReadOnly).
  10:02:03.250  The sandbox sbr-1 is being made.
  10:02:04.250  The workspace is ready: app (1 file, 1.2 MB, submodules left empty: vendor/x, 2 LFS files left as pointers).
  10:02:05.250  The sandbox is sealed: 2 addresses were tried from inside and none answered (at first it was open for 1.2 s).
  10:02:06.250  The agent of attempt 1 was started; no other start is granted.
  10:02:07.250  The agent may call GET /rest/api/2/issue/7 of lookup tickets with a query of 12 bytes.
  10:02:08.250  The agent called GET /rest/api/2/issue/7 of lookup tickets with a query of 12 bytes: 200, 12.3 kB in 31 ms.
  10:02:09.250  The agent was refused GET /rest/api/2/issue/7 with a query of 12 bytes: NoRuleAllows by lookups[tickets].paths.
  10:02:10.250  The agent ended by itself with status 0 after 1 min 1 s.
  10:02:11.250  Input app drifted: 1 modified; 2 added; HEAD moved to 3333333333, a descendant of the pinned commit (M README.md\u{1b}[2J, ...).
  10:02:12.250  The output has 17 bytes (SHA-256 bbbbbbbbbbbb).
  10:02:13.250  The run succeeded after 1 min 4 s.
"#);
    }

    #[test]
    fn what_went_wrong_is_said_in_the_same_way() {
        let lost = Failure::new(Reason::NodeLost, "the pod was lost while the agent ran");
        let events = [
            Event::AttemptFailed {
                attempt: FIRST,
                failure: Failure {
                    reason: Reason::RefNotFound,
                    message: "branch `x` is not in https://git.example.com/a.git".into(),
                    input: Some("app".parse().unwrap()),
                },
            },
            Event::AttemptAbandoned {
                attempt: FIRST,
                reason: Reason::PodEvicted,
            },
            Event::AgentStopping {
                attempt: FIRST,
                reason: Reason::TimeoutReached,
            },
            Event::AgentEnded {
                attempt: FIRST,
                exit: None,
                millis: 900,
            },
            Event::Drift {
                attempt: FIRST,
                outcome: InputOutcome {
                    name: "app".parse().unwrap(),
                    drift: Drift::Unknown {
                        reason: UnknownReason::AgentMayRun,
                        message: "the node is lost".into(),
                    },
                },
            },
            Event::Output {
                attempt: FIRST,
                sha256: None,
                bytes: 0,
                text: None,
                failure: Some(Failure::new(Reason::OutputMissing, "no output.json")),
            },
            Event::RunEnded {
                attempt: Some(FIRST),
                exit_code: None,
                failure: Some(lost),
                millis: 3_700_000,
            },
        ];
        insta::assert_snapshot!(told(&events), @r#"
2026-03-01 (UTC)
  10:02:00.250  Attempt 1 failed before its agent could start: input app: branch `x` is not in https://git.example.com/a.git (sandbox.input_resolution_failed, RefNotFound).
  10:02:01.250  Attempt 1 was abandoned (PodEvicted): its agent will never start.
  10:02:02.250  The agent was asked to stop (TimeoutReached).
  10:02:03.250  The agent's supervisor was lost after 900 ms; how it ended is not known.
  10:02:04.250  Whether input app was changed is NOT known (AgentMayRun): the node is lost.
  10:02:05.250  There is no output and does not count: no output.json (sandbox.output_invalid, OutputMissing).
  10:02:06.250  The run failed after 1 h 1 min: the pod was lost while the agent ran (sandbox.disrupted, NodeLost).
"#);
    }
}
