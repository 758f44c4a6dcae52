//! One run as a page for people: what it started from, what became of it, why, and what to do.

use std::fmt::Write as _;

use jiff::Timestamp;
use kube::api::ResourceExt as _;

use crate::api::{
    Condition, ConditionStatus, DriftStatus, InputStatus, SandboxRun, SandboxRunStatus,
};
use crate::local::terminal_text;

/// The page. Text of agent and forge loses its control sequences.
pub(super) fn page(run: &SandboxRun, now: Timestamp) -> String {
    let mut page = String::new();
    let status = run.status.clone().unwrap_or_default();
    let mut line = |name: &str, text: &str| {
        let text = terminal_text(text.as_bytes(), false);
        // Writing to a String does not fail.
        let _ = writeln!(page, "{}", format!("{name:<12}{text}").trim_end());
    };
    line(
        "Run",
        &format!("{}/{}", run.namespace().unwrap_or_default(), run.name_any()),
    );
    let phase = match status.summary.reason.as_str() {
        "" => format!("{:?}", status.phase),
        reason => format!("{:?} ({reason})", status.phase),
    };
    line("Phase", &phase);
    for (name, text) in head(run, &status, now) {
        line(name, &text);
    }
    for input in &status.inputs {
        line("", "");
        for (name, text) in input_lines(input) {
            line(name, &text);
        }
    }
    if let Some(error) = &status.error {
        line("", "");
        let about = error
            .input
            .as_ref()
            .map(|input| format!(" (input `{input}`)"));
        line(
            "Error",
            &format!(
                "{} {}{}",
                error.code,
                error.reason,
                about.unwrap_or_default()
            ),
        );
        line("", &error.message);
        line("To do", &error.hint);
    }
    line("", "");
    for (at, text) in story(&status) {
        line("Story", &format!("{at}  {text}"));
    }
    if let Some(record) = &status.record {
        line("", "");
        line(
            "Record",
            &format!("{} events, head {}", record.events, record.head),
        );
        let verify = format!(
            "kubectl sandboxrun audit verify {} --head {}",
            record.id, record.head
        );
        line("", &verify);
    }
    page
}

fn head(
    run: &SandboxRun,
    status: &SandboxRunStatus,
    now: Timestamp,
) -> Vec<(&'static str, String)> {
    let mut head = Vec::new();
    if let Some(created) = &run.metadata.creation_timestamp {
        head.push(("Created", format!("{} ago", age(created.0, now))));
    }
    if let Some(attempt) = status.attempt {
        head.push(("Attempt", attempt.to_string()));
    }
    if let Some(result) = &status.result {
        let place = [
            result.pod.clone(),
            result.node.as_ref().map(|node| format!("on {node}")),
        ];
        let place: Vec<String> = place.into_iter().flatten().collect();
        if !place.is_empty() {
            head.push(("Pod", place.join(" ")));
        }
        if let Some(code) = result.exit_code {
            head.push(("Exit", code.to_string()));
        }
        if let Some(output) = &result.output {
            head.push((
                "Output",
                format!("{} bytes, sha256 {}", output.bytes, output.sha256),
            ));
        }
    }
    if !status.summary.duration.is_empty() {
        head.push(("Duration", status.summary.duration.clone()));
    }
    head
}

fn input_lines(input: &InputStatus) -> Vec<(&'static str, String)> {
    let mut lines = vec![("Input", format!("{}: {}", input.name, input.repository))];
    let pinned = match (&input.resolved_ref, &input.commit) {
        (Some(name), Some(commit)) => format!("{} is {name} at {commit}", input.requested_ref),
        (None, Some(commit)) => format!("{} is {commit}", input.requested_ref),
        (_, None) => format!("{} is not resolved", input.requested_ref),
    };
    lines.push(("", pinned));
    if let Some(credential) = &input.credential {
        let text = format!(
            "credential of connector {}: {}",
            credential.connector, credential.proof
        );
        lines.push(("", text));
    }
    if let Some(head) = &input.head
        && head.state != "Pinned"
    {
        let to = head.commit.as_deref().unwrap_or("nothing");
        lines.push((
            "",
            format!("HEAD {} ({to}), .git {}", head.state, head.git_dir),
        ));
    }
    if let Some(drift) = &input.drift {
        lines.push(("", format!("drift: {}", drift_text(drift))));
    }
    lines
}

fn drift_text(drift: &DriftStatus) -> String {
    let mut text = drift.state.clone();
    if let Some(reason) = &drift.reason {
        let _ = write!(text, " ({reason})");
    }
    if let Some(counts) = &drift.counts {
        let counts = [
            (counts.modified, "modified"),
            (counts.deleted, "deleted"),
            (counts.added, "added"),
            (counts.type_changed, "of another type"),
            (counts.mode_changed, "with another mode"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<_> = counts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let _ = write!(text, ", {}", counts.join(", "));
    }
    let paths: Vec<&str> = drift
        .paths
        .iter()
        .take(5)
        .map(|path| path.path.as_str())
        .collect();
    if !paths.is_empty() {
        let more = if drift.truncated || drift.paths.len() > paths.len() {
            ", ..."
        } else {
            ""
        };
        let _ = write!(text, ": {}{more}", paths.join(", "));
    }
    text
}

/// What happened, by the times of the conditions.
fn story(status: &SandboxRunStatus) -> Vec<(String, String)> {
    let mut story: Vec<(String, String)> = Vec::new();
    for condition in &status.conditions {
        if let Some(text) = happened(condition) {
            story.push((condition.last_transition_time.clone(), text));
        }
    }
    let ends = [
        (&status.started_at, "the agent was started"),
        (&status.finished_at, "the run ended"),
    ];
    for (at, text) in ends {
        if let Some(at) = at {
            story.push((at.clone(), text.to_owned()));
        }
    }
    story.sort();
    story
}

/// What a condition tells about the past; those that only say how things stand tell nothing.
fn happened(condition: &Condition) -> Option<String> {
    use crate::api::ConditionType::{Drifted, InputsResolved, PolicyEnforced, WorkspaceReady};
    let tells = matches!(
        condition.kind,
        InputsResolved | WorkspaceReady | PolicyEnforced | Drifted
    );
    let known = condition.status != ConditionStatus::Unknown;
    (tells && known).then(|| {
        let no = if condition.status == ConditionStatus::True {
            ""
        } else {
            "not "
        };
        format!(
            "{no}{:?}: {} {}",
            condition.kind, condition.reason, condition.message
        )
    })
}

/// How long ago, in the largest unit that says something: `45s`, `12m`, `3h`, `5d`.
pub(super) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    pub(in crate::cli::cluster) fn run() -> SandboxRun {
        let value = json!({
            "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun",
            "metadata": {"name": "fix", "namespace": "team-a", "creationTimestamp": "2026-11-29T12:00:00Z"},
            "spec": {"agent": {"image": "a", "command": ["true"]}},
            "status": {
                "phase": "Failed", "attempt": 1, "startedAt": "2026-11-29T12:00:09Z", "finishedAt": "2026-11-29T12:01:00Z",
                "summary": {"inputs": "app@1111111111", "drift": "Drifted (2)", "reason": "ExitStatus", "duration": "51s"},
                "conditions": [
                    {"type": "Ready", "status": "False", "reason": "ExitStatus", "message": "m", "lastTransitionTime": "2026-11-29T12:01:00Z"},
                    {"type": "InputsResolved", "status": "True", "reason": "Resolved", "message": "pinned inputs: 1", "lastTransitionTime": "2026-11-29T12:00:02Z"},
                    {"type": "PolicyEnforced", "status": "True", "reason": "Proved", "message": "no canary could be reached from inside", "lastTransitionTime": "2026-11-29T12:00:08Z"},
                    {"type": "Drifted", "status": "True", "reason": "Drifted", "message": "changed: app", "lastTransitionTime": "2026-11-29T12:00:59Z"},
                ],
                "inputs": [{
                    "name": "app", "repository": "https://git.example.com/acme/app.git", "requestedRef": "branch main",
                    "resolvedRef": "refs/heads/main", "commit": "1111111111111111111111111111111111111111",
                    "credential": {"connector": "forge", "proof": "ReadOnly"},
                    "head": {"state": "Moved", "commit": "2222222222222222222222222222222222222222", "gitDir": "Intact"},
                    "drift": {"state": "Drifted", "counts": {"modified": 1, "deleted": 0, "added": 1, "typeChanged": 0, "modeChanged": 0},
                        "paths": [{"path": "a\u{1b}[2J.md", "change": "modified"}, {"path": "b", "change": "added"}]},
                }],
                "error": {"code": "sandbox.agent_failed", "reason": "ExitStatus", "message": "the agent ended with status 3",
                    "retryable": false, "hint": "read the agent's output"},
                "result": {"exitCode": 3, "reason": "ExitStatus", "pod": "sandboxrun-u-1", "node": "node-1"},
                "record": {"id": "u", "head": "12:abc", "events": 12},
            },
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_run_is_a_page_that_people_can_read() {
        let now = "2026-11-29T12:10:00Z".parse().unwrap();
        insta::assert_snapshot!(page(&run(), now));
    }

    #[rstest]
    #[case::seconds(45, "45s")]
    #[case::minutes(750, "12m")]
    #[case::hours(10_800, "3h")]
    #[case::days(432_000, "5d")]
    #[case::a_clock_that_is_behind(-5, "0s")]
    fn an_age_is_short(#[case] seconds: i64, #[case] text: &str) {
        let then = Timestamp::from_second(1_000_000).unwrap();
        let now = Timestamp::from_second(1_000_000 + seconds).unwrap();
        assert_eq!(age(then, now), text);
    }
}
