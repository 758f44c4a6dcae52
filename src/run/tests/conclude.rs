//! How runs end, and which cause is shown.

use rstest::rstest;

use super::*;
use crate::api::wire::{DriftFacts, UnknownReason};
use crate::run::conclude;

fn drifted() -> Drift {
    Drift::Drifted(DriftFacts {
        modified: 1,
        ..DriftFacts::default()
    })
}

fn unknown() -> Drift {
    Drift::Unknown {
        reason: UnknownReason::Budget,
        message: "time is up".into(),
    }
}

fn no_output() -> Failure {
    Failure::new(Reason::OutputMissing, "no output.json")
}

fn oom() -> Pod {
    Pod::Ended(Some(Failure::new(
        Reason::MemoryLimitReached,
        "agent: out of memory",
    )))
}

fn leaving(reason: Reason) -> Pod {
    Pod::Leaving {
        reason,
        since: at(9),
        deleted: false,
        words: String::new(),
    }
}

#[rstest]
#[case::well(Some(AgentExit::Exited { code: 0 }), None, Pod::Running, None)]
#[case::p07_the_pod_goes_after_the_agent(
    Some(AgentExit::Exited { code: 0 }), None, leaving(Reason::NodeLost), None)]
#[case::p07_the_broker_is_killed_after_the_agent(
    Some(AgentExit::Exited { code: 0 }), None,
    Pod::Ended(Some(Failure::new(Reason::GatewayLost, "137"))), None)]
#[case::it_ended_well_before_the_stop_reached_it(
    Some(AgentExit::Exited { code: 0 }), Some(Reason::CancelRequested), Pod::Running, None)]
#[case::but_not_under_a_lost_policy(
    Some(AgentExit::Exited { code: 0 }), Some(Reason::PolicyLost), Pod::Running,
    Some(Reason::PolicyLost))]
#[case::status(Some(AgentExit::Exited { code: 3 }), None, Pod::Running, Some(Reason::ExitStatus))]
#[case::signal(
    Some(AgentExit::Signalled { signal: 11 }), None, Pod::Running, Some(Reason::KilledBySignal))]
#[case::p03_out_of_memory(
    Some(AgentExit::Signalled { signal: 9 }), None, oom(), Some(Reason::MemoryLimitReached))]
#[case::p03_a_child_was_killed(
    Some(AgentExit::Exited { code: 1 }), None, oom(), Some(Reason::ExitStatus))]
#[case::no_such_command(
    Some(AgentExit::NotStarted { message: "not found".into() }), None, Pod::Running,
    Some(Reason::CommandNotFound))]
#[case::timeout(
    Some(AgentExit::Stopped { reason: Reason::TimeoutReached }), None, Pod::Running,
    Some(Reason::TimeoutReached))]
#[case::the_first_stop_counts(
    Some(AgentExit::Stopped { reason: Reason::NoOutput }), Some(Reason::CancelRequested),
    Pod::Running, Some(Reason::NoOutput))]
#[case::p04_p05_taken_away(
    Some(AgentExit::Stopped { reason: Reason::SandboxEnding }), None, leaving(Reason::PodEvicted),
    Some(Reason::PodEvicted))]
#[case::p05_taken_away_and_gone(
    Some(AgentExit::Stopped { reason: Reason::SandboxEnding }), None, Pod::Absent,
    Some(Reason::PodDeletedByHand))]
#[case::cancelled_by_the_pods_end(
    Some(AgentExit::Stopped { reason: Reason::SandboxEnding }), Some(Reason::CancelRequested),
    leaving(Reason::PodDeletedByHand), Some(Reason::CancelRequested))]
#[case::told_to_end_by_the_agent(
    Some(AgentExit::Stopped { reason: Reason::SandboxEnding }), None, Pod::Running,
    Some(Reason::KilledBySignal))]
#[case::lost_while_being_stopped(
    None,
    Some(Reason::CancelRequested),
    leaving(Reason::PodDeletedByHand),
    Some(Reason::CancelRequested)
)]
#[case::p04_evicted(None, None, leaving(Reason::PodEvicted), Some(Reason::PodEvicted))]
#[case::p05_deleted(None, None, Pod::Absent, Some(Reason::PodDeletedByHand))]
#[case::p12_the_workspace_was_full(
    None,
    None,
    leaving(Reason::WorkspaceEvicted),
    Some(Reason::WorkspaceEvicted)
)]
#[case::out_of_memory_with_its_supervisor(None, None, oom(), Some(Reason::MemoryLimitReached))]
#[case::silent(None, None, Pod::Running, Some(Reason::GatewayLost))]
fn the_earliest_cause_is_shown(
    #[case] exit: Option<AgentExit>,
    #[case] stop: Option<Reason>,
    #[case] pod: Pod,
    #[case] want: Option<Reason>,
) {
    let mut events = with(started(), stop.map(stopping));
    events.push(exited(exit.clone()));
    events.extend(outcome(unknown(), None));
    let mut seen = observed(events);
    seen.pod = pod;
    let ending = conclude(&seen, seen.record.as_ref().unwrap().current().unwrap());
    assert_eq!(ending.failure.map(|f| f.reason), want);
    assert_eq!(ending.exit_code, exit.and_then(|exit| exit.code()));
}

#[rstest]
#[case::reported_only(OnDrift::Report, drifted(), None, None)]
#[case::drift_fails(OnDrift::Fail, drifted(), None, Some(Reason::WorkspaceDrifted))]
#[case::unknown_is_not_fine(OnDrift::Fail, unknown(), None, Some(Reason::DriftNotKnown))]
#[case::unchanged(OnDrift::Fail, Drift::Unchanged, None, None)]
#[case::output_comes_first(
    OnDrift::Fail,
    drifted(),
    Some(no_output()),
    Some(Reason::OutputMissing)
)]
#[case::output_alone(
    OnDrift::Report,
    Drift::Unchanged,
    Some(no_output()),
    Some(Reason::OutputMissing)
)]
fn an_agent_that_ended_well_is_judged_by_what_it_left(
    #[case] on_drift: OnDrift,
    #[case] drift: Drift,
    #[case] output: Option<Failure>,
    #[case] want: Option<Reason>,
) {
    let exit = exited(Some(AgentExit::Exited { code: 0 }));
    let mut seen = observed(with(with(started(), [exit]), outcome(drift, output)));
    seen.spec.on_drift = on_drift;
    let ending = conclude(&seen, seen.record.as_ref().unwrap().current().unwrap());
    assert_eq!(ending.failure.map(|f| f.reason), want);
}

#[test]
fn drift_does_not_hide_that_the_agent_failed() {
    let exit = exited(Some(AgentExit::Exited { code: 3 }));
    let mut seen = observed(with(
        with(started(), [exit]),
        outcome(drifted(), Some(no_output())),
    ));
    seen.spec.on_drift = OnDrift::Fail;
    let ending = conclude(&seen, seen.record.as_ref().unwrap().current().unwrap());
    assert_eq!(ending.failure.unwrap().reason, Reason::ExitStatus);
    assert_eq!(ending.exit_code, Some(3));
}
