//! What to do next. Each function is one stage of a run's life, in the order in which they come.

use std::time::Duration;

use jiff::Timestamp;

use super::conclude::{Ending, cancelled, conclude, lost_before_start, not_started_in_time};
use super::seen::{
    AttemptFacts, AttemptState, EndFacts, Observed, Pod, PodTrouble, Policy, RecordFacts,
    Resolution, SpecFacts,
};
use crate::api::wire::{AgentExit, UnknownReason};
use crate::api::{Attempt, Failure, Healing, Reason};

/// How long things may take. Every wait of a run has an end, so every run has one. The defaults are the numbers of a
/// real installation; an administrator may set others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Limits {
    /// From the dispatch to commits: 5 minutes for a Secret that is missing and 5 for a server with a fault, one after
    /// the other, and as much again for slow answers.
    #[serde(with = "crate::api::duration_text")]
    pub resolve: Duration,
    /// From the announcement of a pod until it must be seen: the creation's own timeout, and a cache that is behind.
    #[serde(with = "crate::api::duration_text")]
    pub pod_appears: Duration,
    /// Between two tries to make a pod that was refused for a while (quota), and between two questions for one of which
    /// the server did not say whether it is there.
    #[serde(with = "crate::api::duration_text")]
    pub pod_retry: Duration,
    /// How long an image may fail to come.
    #[serde(with = "crate::api::duration_text")]
    pub image: Duration,
    /// How long a container's configuration may be wrong: a Secret for its pull may come a moment later.
    #[serde(with = "crate::api::duration_text")]
    pub config: Duration,
    /// How long a broker may fail to get ready.
    #[serde(with = "crate::api::duration_text")]
    pub broker: Duration,
    /// From the outcome until the kubelet must have said how an agent's container ended whose own word is missing or
    /// is a killed process: both follow from the same end, on two ways.
    #[serde(with = "crate::api::duration_text")]
    pub settle: Duration,
    /// From the wish to stop an agent until its pod is deleted instead: 10 s for its processes, the rest for the way
    /// there through gateway and broker. Also what `exec` gets on top of `agent.timeout` to end it by itself.
    #[serde(with = "crate::api::duration_text")]
    pub stop: Duration,
    /// From the agent's end (or the pod's deletion) to the outcome: the pod's grace of 150 s and the kubelet's delay.
    #[serde(with = "crate::api::duration_text")]
    pub collect: Duration,
    /// Before the second attempt; doubled for each further one.
    #[serde(with = "crate::api::duration_text")]
    pub backoff: Duration,
    /// The longest pause between two attempts.
    #[serde(with = "crate::api::duration_text")]
    pub backoff_max: Duration,
    /// Until a record that failed is tried again.
    #[serde(with = "crate::api::duration_text")]
    pub record_retry: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            resolve: Duration::from_mins(20),
            pod_appears: Duration::from_secs(30),
            pod_retry: Duration::from_secs(10),
            image: Duration::from_mins(5),
            config: Duration::from_mins(1),
            broker: Duration::from_mins(1),
            settle: Duration::from_secs(15),
            stop: Duration::from_mins(1),
            collect: Duration::from_mins(3),
            backoff: Duration::from_secs(5),
            backoff_max: Duration::from_mins(1),
            record_retry: Duration::from_secs(5),
        }
    }
}

/// What a shell does next. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Append `run.created`.
    Create,
    /// Append `attempt.dispatched`. Nothing external has happened in this attempt.
    Dispatch(Attempt),
    /// Resolve all inputs on the host side; append every `input.resolved` together, or report [`Resolution::Failed`].
    Resolve(Attempt),
    /// Put the policy in place, and make sure that nothing opens more.
    EnsurePolicy,
    /// Append `pod.creating` and make the pod. When the record says that one was made already, make none and observe
    /// again; only a shell that knows its own creation to be refused, or that nobody has seen the pod ([`Pod::Unmade`]),
    /// goes on without a second `pod.creating`.
    CreatePod(Attempt),
    /// Append `attempt.failed`: the record refuses it once the agent has started.
    Fail(Attempt, Failure),
    /// `Record::abandon`: the record refuses it once the agent has started.
    Abandon(Attempt, Reason),
    /// Append `agent.ended` without a word of how: its container has ended, and its `exec` said nothing.
    AgentLost(Attempt),
    /// Append `agent.stopping` and tell the gateway.
    StopAgent(Attempt, Reason),
    /// Delete the pod, so that its broker is told and still reads what the agent left. Not a clean-up.
    Terminate(Attempt, Reason),
    /// Read drift and output, or wait until this time for whoever does.
    Collect(Attempt, Timestamp),
    /// Record what can still be said about what the agent left: the broker's own summary, if the pod has one; else
    /// `Unknown` for every input, with this reason.
    RecordOutcome(Attempt, UnknownReason),
    /// Append `run.ended`.
    Finish(Ending),
    /// Clean up.
    DeletePod(Attempt),
    /// Nothing until something changes, or until this time.
    Wait(Option<Timestamp>),
    /// Nothing any more.
    Done,
}

/// What to do next: pods to clean up, if any, and then exactly one step.
///
/// A step that fails does not keep the others from being tried.
#[must_use]
pub fn plan(seen: &Observed, now: Timestamp) -> Vec<Action> {
    let Ok(record) = &seen.record else {
        // Nothing begins, ends or is cleaned up beside a record that cannot be written.
        return vec![Action::Wait(Some(later(now, seen.limits.record_retry)))];
    };
    let mut actions: Vec<_> = seen.strays.iter().copied().map(Action::DeletePod).collect();
    if let Some(attempt) = record.current()
        && let AttemptState::Abandoned(..) = attempt.state
        && is_there(&seen.pod)
    {
        actions.push(Action::DeletePod(attempt.attempt));
    }
    let step = step(seen, record, now);
    actions.push(if seen.pod == Pod::Unknown {
        asked_again(step, later(now, seen.limits.pod_retry))
    } else {
        step
    });
    actions
}

/// A pod of which nobody could say anything is asked for again soon: nothing wakes a run whose pod nobody sees.
fn asked_again(step: Action, soon: Timestamp) -> Action {
    if let Action::Wait(until) = step {
        return Action::Wait(Some(until.map_or(soon, |until| until.min(soon))));
    }
    if let Action::Collect(attempt, until) = step {
        return Action::Collect(attempt, until.min(soon));
    }
    step
}

fn step(seen: &Observed, record: &RecordFacts, now: Timestamp) -> Action {
    if record.reruns.is_empty() {
        return Action::Create;
    }
    if let Some(end) = &record.ended {
        // Each value of `rerun` runs once: an old copy of the object must not begin anything.
        return if record.reruns.contains(&seen.spec.rerun) {
            after_end(seen, record, end, now)
        } else {
            Action::Create
        };
    }
    let Some(attempt) = record.current() else {
        return before_dispatch(seen, record);
    };
    match &attempt.state {
        AttemptState::Open => match &seen.wish.stop {
            Some(reason) => Action::Abandon(attempt.attempt, *reason),
            None => before_start(seen, attempt, now),
        },
        AttemptState::Started(at) => alive(seen, attempt, *at, now),
        AttemptState::Failed(_, failure) => Action::Finish(Ending {
            attempt: Some(attempt.attempt),
            exit_code: None,
            failure: Some(failure.clone()),
        }),
        AttemptState::Abandoned(at, reason) => after_abandonment(seen, record, *at, *reason, now),
    }
}

fn before_dispatch(seen: &Observed, record: &RecordFacts) -> Action {
    let refusal = seen
        .wish
        .stop
        .map(cancelled)
        .or_else(|| seen.spec.refused.clone());
    if refusal.is_some() {
        return Action::Finish(Ending {
            attempt: None,
            exit_code: None,
            failure: refusal,
        });
    }
    if seen.wish.suspend {
        return Action::Wait(None);
    }
    Action::Dispatch(next_attempt(record))
}

/// An attempt whose agent may still start: inputs, policy, pod, grant.
fn before_start(seen: &Observed, attempt: &AttemptFacts, now: Timestamp) -> Action {
    let number = attempt.attempt;
    if let Some((_, false, open)) = &attempt.proof {
        let message = format!("reachable from inside the sandbox: {}", open.join(", "));
        return Action::Fail(number, Failure::new(Reason::CanaryOpen, message));
    }
    if seen.wish.suspend {
        return if attempt.pod.is_none() {
            Action::Wait(None)
        } else {
            Action::Abandon(number, Reason::SuspendRequested)
        };
    }
    if let Pod::Foreign(failure) = &seen.pod {
        return Action::Fail(number, failure.clone());
    }
    let resolved = |name| attempt.inputs.iter().any(|input| input.name == name);
    if !seen
        .spec
        .inputs
        .iter()
        .all(|input| resolved(input.name.clone()))
    {
        return resolving(seen, attempt, now);
    }
    let deadline = start_deadline(&seen.spec, attempt);
    if let Policy::Impossible(failure) = &seen.policy {
        return Action::Fail(number, failure.clone());
    }
    if now >= deadline {
        // If it is gone, another attempt may have better luck than this one had time.
        return if let Pod::Leaving { reason, .. } = &seen.pod
            && *reason != Reason::WorkspaceEvicted
        {
            Action::Abandon(number, *reason)
        } else {
            Action::Fail(number, not_started_in_time(seen))
        };
    }
    if seen.policy == Policy::Missing {
        // What was proved is not so any more, and what is put back takes its time to be enforced.
        return if attempt.proof.is_some() && attempt.pod.is_some() {
            Action::Abandon(number, Reason::PolicyLost)
        } else {
            Action::EnsurePolicy
        };
    }
    match &seen.pod {
        Pod::Absent => match &attempt.pod {
            None => Action::CreatePod(number),
            // It was there. It is lost if it does not come back: its name is not used again.
            Some((at, _)) => wait_or(later(*at, seen.limits.pod_appears), now, || {
                Action::Abandon(number, Reason::PodDeletedByHand)
            }),
        },
        // Made, or about to be, by a process that was ended or a call without an answer. If it does not appear, the same one
        // is made: one that is late finds its name taken, and is the pod.
        Pod::Unmade(at) => wait_or(
            later(*at, seen.limits.pod_appears).min(deadline),
            now,
            || Action::CreatePod(number),
        ),
        Pod::Refused(failure, at) => match failure.reason.healing() {
            Healing::Permanent => Action::Fail(number, failure.clone()),
            Healing::Transient | Healing::Brief => {
                wait_or(later(*at, seen.limits.pod_retry).min(deadline), now, || {
                    Action::CreatePod(number)
                })
            }
        },
        Pod::Foreign(failure) => Action::Fail(number, failure.clone()),
        Pod::Starting(Some(trouble)) => starting(seen, number, trouble, deadline, now),
        Pod::Starting(None) | Pod::Running | Pod::Unknown => Action::Wait(Some(deadline)),
        Pod::Ended(failure) | Pod::Collecting(failure) => Action::Fail(
            number,
            failure.clone().unwrap_or_else(|| {
                Failure::new(
                    Reason::GrantLost,
                    "the pod ended before the agent was started",
                )
            }),
        ),
        // The inputs alone are too large for it, and will be again.
        Pod::Leaving {
            reason: Reason::WorkspaceEvicted,
            words,
            ..
        } => Action::Fail(
            number,
            Failure::new(Reason::NoSpaceForInputs, words.clone()),
        ),
        Pod::Leaving { reason, .. } => Action::Abandon(number, *reason),
    }
}

/// When the agent of an attempt must have started: a shell that is still at work for its pod looks again then.
#[must_use]
pub fn start_deadline(spec: &SpecFacts, attempt: &AttemptFacts) -> Timestamp {
    let wanted = attempt.resolved_at.unwrap_or(attempt.dispatched_at);
    later(wanted, spec.start_timeout)
}

fn resolving(seen: &Observed, attempt: &AttemptFacts, now: Timestamp) -> Action {
    let deadline = later(attempt.dispatched_at, seen.limits.resolve);
    let trouble = match &seen.resolution {
        Resolution::Failed(failure) => return Action::Fail(attempt.attempt, failure.clone()),
        Resolution::Busy { trouble } => trouble.clone(),
        Resolution::Idle if now < deadline => return Action::Resolve(attempt.attempt),
        Resolution::Idle => None,
    };
    wait_or(deadline, now, || {
        let failure = trouble.unwrap_or_else(|| {
            Failure::new(
                Reason::TransferStalled,
                "the inputs were not resolved within 20 minutes",
            )
        });
        Action::Fail(attempt.attempt, failure)
    })
}

/// A pod that has trouble: some heals, and each kind has its own patience.
fn starting(
    seen: &Observed,
    attempt: Attempt,
    trouble: &PodTrouble,
    deadline: Timestamp,
    now: Timestamp,
) -> Action {
    let reason = trouble.failure.reason;
    let patience = if reason.healing() == Healing::Permanent {
        trouble.since
    } else if reason == Reason::ImagePullFailed {
        later(trouble.since, seen.limits.image)
    } else if reason == Reason::ContainerConfigInvalid {
        later(trouble.since, seen.limits.config)
    } else if reason == Reason::BrokerNotReady {
        later(trouble.since, seen.limits.broker)
    } else {
        deadline
    };
    wait_or(patience.min(deadline), now, || {
        Action::Fail(attempt, trouble.failure.clone())
    })
}

/// The agent was started: from here on the run ends with this attempt, and what the agent left is read first.
fn alive(seen: &Observed, attempt: &AttemptFacts, started: Timestamp, now: Timestamp) -> Action {
    let number = attempt.attempt;
    if let Some(outcome) = &attempt.outcome {
        return if tells_its_end(attempt) || is_told(&seen.pod) {
            Action::Finish(conclude(seen, attempt))
        } else {
            wait_or(later(outcome.at, seen.limits.settle), now, || {
                Action::Finish(conclude(seen, attempt))
            })
        };
    }
    let agent_ended = attempt.agent_ended.as_ref().map(|(at, _)| *at);
    let unread = if agent_ended.is_some() {
        UnknownReason::CollectorFailed
    } else {
        UnknownReason::AgentMayRun
    };
    match &seen.pod {
        Pod::Ended(_) => Action::RecordOutcome(number, UnknownReason::CollectorFailed),
        Pod::Absent | Pod::Unmade(_) | Pod::Foreign(_) | Pod::Refused(..) => {
            Action::RecordOutcome(number, unread)
        }
        Pod::Leaving { since, .. } => wait_or(later(*since, seen.limits.collect), now, || {
            Action::RecordOutcome(number, unread)
        }),
        Pod::Unknown | Pod::Starting(_) | Pod::Running | Pod::Collecting(_) => match agent_ended {
            Some(at) if now < later(at, seen.limits.collect) => {
                Action::Collect(number, later(at, seen.limits.collect))
            }
            Some(_) => Action::RecordOutcome(number, unread),
            None if matches!(seen.pod, Pod::Collecting(_)) => Action::AgentLost(number),
            None => running(seen, attempt, started, now),
        },
    }
}

/// Whether the agent's end needs no word of the kubelet: memory's end looks like something else from inside, and who
/// told the sandbox to end cannot be seen from there.
fn tells_its_end(attempt: &AttemptFacts) -> bool {
    match attempt.agent_ended.as_ref().map(|(_, exit)| exit) {
        Some(Some(AgentExit::Exited { code: 0 } | AgentExit::NotStarted { .. })) => true,
        Some(Some(AgentExit::Stopped { reason })) => {
            !matches!(reason, Reason::GatewayLost | Reason::SandboxEnding)
        }
        Some(Some(AgentExit::Exited { .. } | AgentExit::Signalled { .. }) | None) | None => false,
    }
}

/// Whether the pod says how the agent's container ended, or never will.
fn is_told(pod: &Pod) -> bool {
    match pod {
        Pod::Ended(_)
        | Pod::Collecting(_)
        | Pod::Absent
        | Pod::Unmade(_)
        | Pod::Foreign(_)
        | Pod::Refused(..)
        | Pod::Leaving { .. } => true,
        Pod::Unknown | Pod::Starting(_) | Pod::Running => false,
    }
}

/// The agent runs, as far as anybody knows.
fn running(seen: &Observed, attempt: &AttemptFacts, started: Timestamp, now: Timestamp) -> Action {
    let number = attempt.attempt;
    if let Some((at, reason)) = attempt.stopping {
        let terminate = later(at, seen.limits.stop);
        let give_up = later(terminate, seen.limits.collect);
        return if now >= give_up {
            Action::RecordOutcome(number, UnknownReason::AgentMayRun)
        } else if now >= terminate {
            Action::Terminate(number, reason)
        } else if seen.policy == Policy::Missing {
            Action::EnsurePolicy // put back, though the agent must go: the gap was long enough for a connection
        } else {
            Action::Wait(Some(terminate))
        };
    }
    // `exec` keeps the time itself; this is for an `exec` that does not.
    let overdue = later(later(started, seen.spec.timeout), seen.limits.stop);
    let cause = match &seen.policy {
        Policy::Missing | Policy::Impossible(_) => Some(Reason::PolicyLost),
        Policy::InForce => seen
            .wish
            .stop
            .or_else(|| (now >= overdue).then_some(Reason::TimeoutReached)),
    };
    match cause {
        Some(reason) => Action::StopAgent(number, reason),
        None => Action::Wait(Some(overdue)),
    }
}

/// The newest attempt was lost before its agent started.
fn after_abandonment(
    seen: &Observed,
    record: &RecordFacts,
    at: Timestamp,
    reason: Reason,
    now: Timestamp,
) -> Action {
    let finish = |failure| {
        Action::Finish(Ending {
            attempt: record.newest,
            exit_code: None,
            failure: Some(failure),
        })
    };
    if let Some(stop) = seen.wish.stop {
        return finish(cancelled(stop));
    }
    if matches!(reason, Reason::CancelRequested | Reason::ObjectDeleted) {
        return finish(cancelled(reason));
    }
    let lost = record
        .attempts
        .iter()
        .filter(|attempt| costs(&attempt.state))
        .count();
    let lost = u32::try_from(lost).unwrap_or(u32::MAX);
    if lost > seen.spec.infrastructure_retries {
        return finish(lost_before_start(reason, lost));
    }
    if seen.wish.suspend {
        return Action::Wait(None);
    }
    if reason == Reason::SuspendRequested {
        return Action::Dispatch(next_attempt(record));
    }
    let pause = seen
        .limits
        .backoff
        .saturating_mul(1 << lost.saturating_sub(1).min(8));
    wait_or(later(at, pause.min(seen.limits.backoff_max)), now, || {
        Action::Dispatch(next_attempt(record))
    })
}

/// The last word is written. What is left is the pod: a finished one stays for its TTL, so that its logs can be read.
fn after_end(seen: &Observed, record: &RecordFacts, end: &EndFacts, now: Timestamp) -> Action {
    let Some(attempt) = record.newest else {
        return Action::Done;
    };
    match &seen.pod {
        Pod::Absent | Pod::Unmade(_) | Pod::Foreign(_) | Pod::Refused(..) => Action::Done,
        Pod::Unknown | Pod::Leaving { deleted: true, .. } => Action::Wait(None),
        // Its agent has ended and the kubelet is about to say so. A broker that hangs is not waited for.
        Pod::Running | Pod::Collecting(_) if agent_has_ended(record) => {
            wait_or(later(end.at, seen.limits.collect), now, || {
                Action::DeletePod(attempt)
            })
        }
        Pod::Starting(_) | Pod::Running | Pod::Collecting(_) => Action::DeletePod(attempt),
        Pod::Ended(_) | Pod::Leaving { deleted: false, .. } => {
            wait_or(later(end.at, seen.spec.ttl_after_finished), now, || {
                Action::DeletePod(attempt)
            })
        }
    }
}

fn agent_has_ended(record: &RecordFacts) -> bool {
    let ended = |attempt: &AttemptFacts| attempt.agent_ended.is_some();
    record.current().is_some_and(ended)
}

/// Whether an attempt counts against `infrastructureRetries`.
fn costs(state: &AttemptState) -> bool {
    match state {
        AttemptState::Abandoned(_, reason) => *reason != Reason::SuspendRequested,
        AttemptState::Open | AttemptState::Started(_) | AttemptState::Failed(..) => false,
    }
}

fn is_there(pod: &Pod) -> bool {
    match pod {
        Pod::Starting(_)
        | Pod::Running
        | Pod::Collecting(_)
        | Pod::Ended(_)
        | Pod::Leaving { deleted: false, .. } => true,
        Pod::Unknown
        | Pod::Absent
        | Pod::Unmade(_)
        | Pod::Refused(..)
        | Pod::Foreign(_)
        | Pod::Leaving { deleted: true, .. } => false,
    }
}

fn next_attempt(record: &RecordFacts) -> Attempt {
    record.newest.map_or(Attempt::FIRST, Attempt::next)
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn wait_or(until: Timestamp, now: Timestamp, then: impl FnOnce() -> Action) -> Action {
    if now < until {
        Action::Wait(Some(until))
    } else {
        then()
    }
}
