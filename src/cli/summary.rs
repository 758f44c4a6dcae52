//! The end of a local run, for people and for programs.

use std::fmt::Write as _;

use crate::api::{Decision, Event, Fault as _, Via};
use crate::audit::sentence;
use crate::local::{Ended, Screen, terminal_text};

/// The status that the custom resource would have.
pub(super) fn json(ended: &Ended) -> String {
    let mut text = serde_json::to_string_pretty(&ended.status).unwrap_or_default();
    text.push('\n');
    text
}

/// Inputs with commits, exit, drift, calls, where the workspace is, the record's head, and how to verify it.
pub(super) fn text(ended: &Ended, screen: &Screen) -> String {
    let mut all = String::from("\n");
    let bold = |text: &str| {
        if screen.colour() {
            format!("\x1b[1m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    };
    let mut line = |name: &str, text: &str| {
        // Writing to a String does not fail.
        let _ = writeln!(
            all,
            "{}  {}",
            bold(&format!("{name:>10}")),
            terminal_text(text.as_bytes(), false)
        );
    };
    match &ended.end.failure {
        None => line("result", "succeeded"),
        Some(failure) => {
            line(
                "result",
                &format!("failed: {} {}", failure.code(), failure.reason),
            );
            line("", &failure.message);
            line("", failure.hint());
        }
    }
    if let Some(code) = ended.end.exit_code {
        line("exit", &code.to_string());
    }
    let events: Vec<Event> = ended
        .entries
        .iter()
        .filter_map(crate::audit::Entry::event)
        .collect();
    for event in &events {
        if let Some((name, text)) = result(event) {
            line(name, &text);
        }
    }
    if let Some(calls) = calls(&events) {
        line("calls", &calls);
    }
    if let Some(kept) = &ended.kept {
        line("workspace", &kept.join("workspace").display().to_string());
    }
    if let Some(last) = ended.entries.last() {
        line(
            "record",
            &format!("{} events, head {}", ended.entries.len(), last.head()),
        );
        line(
            "",
            &format!(
                "sandboxrun audit verify {} --head {}",
                ended.key.uid,
                last.head()
            ),
        );
    }
    all
}

/// What an event means for the result: inputs, drift and output; nothing for the others.
fn result(event: &Event) -> Option<(&'static str, String)> {
    if let Event::InputResolved {
        input,
        requested_ref,
        commit,
        ..
    } = event
    {
        return Some(("input", format!("{input}: {requested_ref} is {commit}")));
    }
    if let Event::Drift { .. } = event {
        return Some(("drift", sentence(event)));
    }
    if let Event::Output {
        sha256: Some(sha256),
        bytes,
        failure,
        ..
    } = event
    {
        let fits = if failure.is_some() {
            "does not count"
        } else {
            "counts"
        };
        return Some((
            "output",
            format!("{bytes} bytes, sha256 {sha256}; it {fits}"),
        ));
    }
    None
}

/// How many calls there were, of which kind, and how many were refused.
fn calls(events: &[Event]) -> Option<String> {
    let (mut lookups, mut git, mut proxy, mut refused) = (0_u64, 0_u64, 0_u64, 0_u64);
    for event in events {
        let Event::Call(call) = event else { continue };
        match &call.decision {
            Decision::Begun => continue,
            Decision::Refused { .. } => refused += 1,
            Decision::Allowed | Decision::Failed { .. } => {}
        }
        match &call.via {
            Via::Lookup(_) => lookups += 1,
            Via::Git(_) => git += 1,
            Via::Proxy => proxy += 1,
            Via::Other => {}
        }
    }
    (lookups + git + proxy + refused > 0).then(|| {
        format!("{lookups} lookups, {git} git, {proxy} through the proxy; {refused} refused")
    })
}
