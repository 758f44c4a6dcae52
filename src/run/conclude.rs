//! How a run ended, and why. A cause that was there first is never hidden by one that followed from it.

use std::time::Duration;

use super::seen::{AttemptFacts, Observed, Pod};
use crate::api::wire::{AgentExit, Drift, InputOutcome};
use crate::api::{Attempt, Code, Failure, OnDrift, Reason};

/// The last word on a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// The attempt that it ended in; absent: none was begun.
    pub attempt: Option<Attempt>,
    /// The agent's exit status.
    pub exit_code: Option<i32>,
    /// Why it failed; absent: it succeeded.
    pub failure: Option<Failure>,
}

/// How a run ended whose agent was started and whose outcome is recorded.
///
/// In this order: why the agent was stopped or how it ended by itself, its output, drift. What happens to the pod
/// after the agent's end changes nothing.
#[must_use]
pub fn conclude(seen: &Observed, attempt: &AttemptFacts) -> Ending {
    let exit = attempt
        .agent_ended
        .as_ref()
        .and_then(|(_, exit)| exit.as_ref());
    let output = attempt
        .outcome
        .as_ref()
        .and_then(|outcome| outcome.output.failure.clone());
    let drift = attempt
        .outcome
        .as_ref()
        .map_or(&[][..], |outcome| &outcome.inputs);
    Ending {
        attempt: Some(attempt.attempt),
        exit_code: exit.and_then(AgentExit::code),
        failure: agent_failure(seen, attempt, exit)
            .or(output)
            .or_else(|| drift_failure(seen.spec.on_drift, drift)),
    }
}

fn agent_failure(
    seen: &Observed,
    attempt: &AttemptFacts,
    exit: Option<&AgentExit>,
) -> Option<Failure> {
    let stopping = attempt.stopping.map(|(_, reason)| reason);
    let in_pod = match &seen.pod {
        Pod::Ended(failure) | Pod::Collecting(failure) => failure.clone(),
        Pod::Unknown
        | Pod::Absent
        | Pod::Unmade(_)
        | Pod::Refused(..)
        | Pod::Foreign(_)
        | Pod::Starting(_)
        | Pod::Running
        | Pod::Leaving { .. } => None,
    };
    let memory = in_pod
        .as_ref()
        .is_some_and(|f| f.reason == Reason::MemoryLimitReached);
    match exit {
        // Whatever it did then, it did under a policy that did not hold.
        Some(_) if stopping == Some(Reason::PolicyLost) => Some(stopped(seen, Reason::PolicyLost)),
        Some(AgentExit::Exited { code: 0 }) => None,
        Some(AgentExit::Exited { code }) => {
            let hint = if memory {
                "; a memory limit was reached"
            } else {
                ""
            };
            let message = format!("the agent ended with status {code}{hint}");
            Some(Failure::new(Reason::ExitStatus, message))
        }
        Some(AgentExit::Signalled { signal: 9 }) if memory => in_pod,
        Some(AgentExit::Signalled { signal }) => {
            let message = format!("the agent was killed by signal {signal}, which we did not send");
            Some(Failure::new(Reason::KilledBySignal, message))
        }
        Some(AgentExit::NotStarted { message }) => {
            let message = format!("the agent's command could not be started: {message}");
            Some(Failure::new(Reason::CommandNotFound, message))
        }
        // The broker was lost first, and why is the cause.
        Some(AgentExit::Stopped {
            reason: Reason::GatewayLost,
        }) if in_pod.is_some() => in_pod,
        Some(AgentExit::Stopped {
            reason: Reason::SandboxEnding,
        }) => Some(told_to_end(seen, stopping)),
        Some(AgentExit::Stopped { reason }) => Some(stopped(seen, *reason)),
        None => Some(lost_after_start(seen, stopping, in_pod)),
    }
}

/// P04, P05: `exec` was told to end: by the kubelet, which ends a pod so, and then the pod says why; else by the agent.
fn told_to_end(seen: &Observed, stopping: Option<Reason>) -> Failure {
    match &seen.pod {
        Pod::Leaving { .. } | Pod::Absent | Pod::Unmade(_) => {
            lost_after_start(seen, stopping, None)
        }
        Pod::Unknown
        | Pod::Refused(..)
        | Pod::Foreign(_)
        | Pod::Starting(_)
        | Pod::Running
        | Pod::Collecting(_)
        | Pod::Ended(_) => match stopping.or(seen.wish.stop) {
            Some(reason) => stopped(seen, reason),
            None => Failure::new(
                Reason::KilledBySignal,
                "the agent was ended by a signal to its supervisor, which we did not send",
            ),
        },
    }
}

/// The agent was started and nobody can say how it ended.
fn lost_after_start(seen: &Observed, stopping: Option<Reason>, in_pod: Option<Failure>) -> Failure {
    if let Some(reason) = stopping.or(seen.wish.stop) {
        return stopped(seen, reason);
    }
    let lost = |reason, words: &str| {
        let colon = if words.is_empty() { "" } else { ": " };
        let message = format!("the pod was lost while the agent ran{colon}{words}");
        Failure::new(reason, message)
    };
    match &seen.pod {
        Pod::Leaving { reason, words, .. } => lost(*reason, words),
        Pod::Absent | Pod::Unmade(_) => lost(Reason::PodDeletedByHand, ""),
        Pod::Unknown
        | Pod::Refused(..)
        | Pod::Foreign(_)
        | Pod::Starting(_)
        | Pod::Running
        | Pod::Collecting(_)
        | Pod::Ended(_) => in_pod.unwrap_or_else(|| {
            Failure::new(Reason::GatewayLost, "the agent's supervisor went silent")
        }),
    }
}

fn stopped(seen: &Observed, reason: Reason) -> Failure {
    let message = if reason == Reason::TimeoutReached {
        let timeout = in_words(seen.spec.timeout);
        format!("the agent was stopped after agent.timeout ({timeout})")
    } else if reason == Reason::NoOutput {
        "the agent was stopped: it printed nothing for agent.stallTimeout".to_owned()
    } else if reason == Reason::PolicyLost {
        "the network policy was not in force while the agent ran".to_owned()
    } else if reason.code() == Code::Cancelled {
        return cancelled(reason);
    } else {
        format!("the agent was stopped: {reason}")
    };
    Failure::new(reason, message)
}

/// Drift changes the result only where the spec says so, and what is not known is not fine there.
fn drift_failure(on_drift: OnDrift, inputs: &[InputOutcome]) -> Option<Failure> {
    if on_drift == OnDrift::Report {
        return None;
    }
    let first = |wanted: fn(&Drift) -> bool| inputs.iter().find(|input| wanted(&input.drift));
    let (input, reason, what) = if let Some(input) = first(|d| matches!(d, Drift::Drifted(_))) {
        (input, Reason::WorkspaceDrifted, "differs from its commit")
    } else {
        let input = first(|d| matches!(d, Drift::Unknown { .. }))?;
        (
            input,
            Reason::DriftNotKnown,
            "could not be compared with its commit",
        )
    };
    Some(Failure {
        reason,
        message: format!("input `{}` {what}, and policy.onDrift is Fail", input.name),
        input: Some(input.name.clone()),
    })
}

/// The run was ended by a wish: `CancelRequested` or `ObjectDeleted`.
pub(super) fn cancelled(reason: Reason) -> Failure {
    let message = if reason == Reason::ObjectDeleted {
        "the SandboxRun was deleted"
    } else {
        "the run was cancelled"
    };
    Failure::new(reason, message)
}

/// The last attempt that was allowed was lost before its agent started.
pub(super) fn lost_before_start(reason: Reason, attempts: u32) -> Failure {
    let times = if attempts == 1 { "once" } else { "each time" };
    let message =
        format!("the pod was lost before the agent started, {times} in {attempts} attempts");
    Failure::new(reason, message)
}

/// `startTimeout` is over. What kept the pod from starting is the cause, and stays the code.
pub(super) fn not_started_in_time(seen: &Observed) -> Failure {
    let timeout = in_words(seen.spec.start_timeout);
    match seen.pod.trouble().or(seen.trouble.as_ref()) {
        Some(failure) => Failure {
            message: format!(
                "{}; scheduling.startTimeout ({timeout}) is over",
                failure.message
            ),
            ..failure.clone()
        },
        None => Failure::new(
            Reason::GrantLost,
            format!("the agent was not started within scheduling.startTimeout ({timeout})"),
        ),
    }
}

/// A duration as users write it: `1h30m`, `45s`.
pub(super) fn in_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [
        (seconds / 3600, 'h'),
        (seconds / 60 % 60, 'm'),
        (seconds % 60, 's'),
    ];
    let mut text = String::new();
    for (count, unit) in parts.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&count.to_string());
        text.push(unit);
    }
    if text.is_empty() { "0s".into() } else { text }
}
