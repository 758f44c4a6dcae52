//! What comes next, situation by situation.

use rstest::rstest;

use super::*;
use crate::api::wire::UnknownReason;
use crate::run::{Action, Ending, PodTrouble, plan};

const SECOND: fn() -> Attempt = || FIRST.next();

fn fault(reason: Reason) -> Failure {
    Failure::new(reason, "as it is")
}

/// The one step beside clean-up.
fn next(seen: &Observed, now: u64) -> Action {
    plan(seen, at(now)).pop().unwrap()
}

fn finish(attempt: Option<Attempt>, reason: Reason) -> impl Fn(&Action) -> bool {
    move |action| {
        matches!(action, Action::Finish(Ending { attempt: of, failure: Some(f), .. })
            if *of == attempt && f.reason == reason)
    }
}

#[test]
fn a_run_goes_through_its_stages_in_order() {
    let mut seen = observed(Vec::new());
    assert_eq!(next(&seen, 1), Action::Create);
    seen = observed(vec![created()]);
    assert_eq!(next(&seen, 1), Action::Dispatch(FIRST));
    seen = observed(vec![created(), dispatched(FIRST)]);
    assert_eq!(next(&seen, 1), Action::Resolve(FIRST));
    seen = observed(vec![created(), dispatched(FIRST), resolved(FIRST)]);
    seen.policy = Policy::Missing;
    assert_eq!(
        next(&seen, 3),
        Action::EnsurePolicy,
        "the policy comes before the pod"
    );
    seen.policy = Policy::InForce;
    assert_eq!(next(&seen, 3), Action::CreatePod(FIRST));
    seen = observed(ready());
    seen.pod = Pod::Running;
    assert_eq!(
        next(&seen, 9),
        Action::Wait(Some(at(602))),
        "startTimeout, from the commits"
    );
    seen = observed(started());
    seen.pod = Pod::Running;
    let overdue = at(6 + 20 * 60 + 60);
    assert_eq!(
        next(&seen, 60),
        Action::Wait(Some(overdue)),
        "the agent gets its whole timeout"
    );
    let exit = AgentExit::Exited { code: 0 };
    seen = observed(with(started(), [exited(Some(exit.clone()))]));
    seen.pod = Pod::Running;
    assert_eq!(next(&seen, 60), Action::Collect(FIRST, at(7 + 180)));
    let left = with(
        with(started(), [exited(Some(exit))]),
        outcome(Drift::Unchanged, None),
    );
    seen = observed(left.clone());
    let well = Ending {
        attempt: Some(FIRST),
        exit_code: Some(0),
        failure: None,
    };
    assert_eq!(next(&seen, 60), Action::Finish(well));
    seen = observed(with(left, [ended(None)]));
    seen.pod = Pod::Ended(None);
    let ttl = at(10 + 24 * 3600);
    assert_eq!(
        next(&seen, 60),
        Action::Wait(Some(ttl)),
        "the pod stays for its TTL"
    );
    assert_eq!(next(&seen, 11 + 24 * 3600), Action::DeletePod(FIRST));
    seen.pod = Pod::Absent;
    assert_eq!(next(&seen, 60), Action::Done);
}

#[test]
fn l02_nothing_is_done_beside_a_record_that_cannot_be_written() {
    for events in [Vec::new(), ready(), started()] {
        let mut seen = observed(events);
        seen.record = Err(fault(Reason::RecordWriteFailed));
        seen.strays = vec![FIRST];
        seen.wish.stop = Some(Reason::CancelRequested);
        seen.pod = Pod::Ended(None);
        assert_eq!(plan(&seen, at(0)), [Action::Wait(Some(at(5)))]);
    }
}

#[rstest]
#[case::not_begun(vec![created()], Pod::Absent)]
#[case::in_resolution(vec![created(), dispatched(FIRST)], Pod::Absent)]
#[case::pod_there(ready(), Pod::Running)]
fn a_cancelled_run_that_has_not_started_is_fenced_first(
    #[case] events: Vec<Event>,
    #[case] pod: Pod,
) {
    let mut seen = observed(events.clone());
    seen.wish.stop = Some(Reason::CancelRequested);
    seen.pod = pod;
    let action = next(&seen, 9);
    if events.len() == 1 {
        assert!(finish(None, Reason::CancelRequested)(&action), "{action:?}");
        return;
    }
    assert_eq!(action, Action::Abandon(FIRST, Reason::CancelRequested));
    let fenced = with(events, [abandoned(FIRST, Reason::CancelRequested)]);
    let seen = observed(fenced); // the wish itself may be missing in an old copy
    let action = next(&seen, 9);
    assert!(
        finish(Some(FIRST), Reason::CancelRequested)(&action),
        "{action:?}"
    );
}

#[test]
fn a_refused_spec_ends_before_anything_happens() {
    let mut seen = observed(vec![created()]);
    seen.spec.refused = Some(fault(Reason::InputsDisabled));
    let action = next(&seen, 1);
    assert!(finish(None, Reason::InputsDisabled)(&action), "{action:?}");
}

#[rstest]
#[case::first_is_lost(1, 2, true)]
#[case::second_is_lost(2, 2, true)]
#[case::k04_the_last_one_is_lost(3, 2, false)]
#[case::k04_none_is_allowed(1, 0, false)]
fn k04_attempts_are_bounded(#[case] lost: u32, #[case] retries: u32, #[case] another: bool) {
    let mut events = vec![created()];
    for n in 1..=lost {
        let attempt = Attempt::new(n).unwrap();
        events.extend([dispatched(attempt), abandoned(attempt, Reason::NodeLost)]);
    }
    let mut seen = observed(events);
    seen.spec.infrastructure_retries = retries;
    let action = next(&seen, 1000);
    if another {
        assert_eq!(action, Action::Dispatch(Attempt::new(lost + 1).unwrap()));
        let soon = next(&seen, u64::from(2 * lost) + 1);
        assert!(
            matches!(soon, Action::Wait(Some(_))),
            "after a pause: {soon:?}"
        );
    } else {
        assert!(
            finish(Attempt::new(lost), Reason::NodeLost)(&action),
            "{action:?}"
        );
    }
}

#[test]
fn a_suspended_attempt_costs_nothing_and_its_pod_goes() {
    let mut seen = observed(ready());
    seen.wish.suspend = true;
    seen.pod = Pod::Running;
    assert_eq!(
        next(&seen, 9),
        Action::Abandon(FIRST, Reason::SuspendRequested)
    );
    let mut seen = observed(with(ready(), [abandoned(FIRST, Reason::SuspendRequested)]));
    seen.spec.infrastructure_retries = 0;
    seen.wish.suspend = true;
    seen.pod = Pod::Running;
    assert_eq!(
        plan(&seen, at(9)),
        [Action::DeletePod(FIRST), Action::Wait(None)]
    );
    seen.wish.suspend = false;
    assert_eq!(next(&seen, 9), Action::Dispatch(SECOND()));
    let mut seen = observed(started());
    seen.wish.suspend = true;
    seen.pod = Pod::Running;
    assert!(
        matches!(next(&seen, 9), Action::Wait(Some(_))),
        "once started, it does nothing"
    );
}

#[rstest]
#[case::absent_a_moment(Pod::Absent, 20, Action::Wait(Some(at(33))))]
#[case::absent_for_good(Pod::Absent, 33, Action::Abandon(FIRST, Reason::PodDeletedByHand))]
#[case::never_seen_for_a_moment(Pod::Unmade(at(3)), 20, Action::Wait(Some(at(33))))]
#[case::k02_never_seen(Pod::Unmade(at(3)), 33, Action::CreatePod(FIRST))]
#[case::k02_never_seen_and_asked_for_again(Pod::Unmade(at(33)), 40, Action::Wait(Some(at(63))))]
#[case::nobody_knows(Pod::Unknown, 300, Action::Wait(Some(at(310))))]
#[case::nobody_knows_at_last(Pod::Unknown, 595, Action::Wait(Some(at(602))))]
#[case::k08_of_somebody_else(
    Pod::Foreign(fault(Reason::NameTaken)),
    9,
    Action::Fail(FIRST, fault(Reason::NameTaken))
)]
#[case::quota(
    Pod::Refused(fault(Reason::QuotaExceeded), at(9)),
    12,
    Action::Wait(Some(at(19)))
)]
#[case::quota_again(
    Pod::Refused(fault(Reason::QuotaExceeded), at(9)),
    19,
    Action::CreatePod(FIRST)
)]
#[case::refused_for_good(
    Pod::Refused(fault(Reason::PodRejectedByPolicy), at(9)),
    9,
    Action::Fail(FIRST, fault(Reason::PodRejectedByPolicy))
)]
#[case::p04_evicted(
    Pod::Leaving { reason: Reason::PodEvicted, since: at(8), deleted: false, words: String::new() }, 9,
    Action::Abandon(FIRST, Reason::PodEvicted))]
#[case::v06_the_inputs_alone_are_too_large(
    Pod::Leaving { reason: Reason::WorkspaceEvicted, since: at(8), deleted: false, words: "too much".into() }, 9,
    Action::Fail(FIRST, Failure::new(Reason::NoSpaceForInputs, "too much")))]
#[case::p08_the_broker_does_not_get_ready_for_a_moment(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::BrokerNotReady), since: at(10) })), 69, Action::Wait(Some(at(70))))]
#[case::p08_the_broker_never_gets_ready(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::BrokerNotReady), since: at(10) })), 70,
    Action::Fail(FIRST, fault(Reason::BrokerNotReady)))]
#[case::p03_the_broker_ran_out_of_memory(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::MemoryLimitReached), since: at(10) })), 10,
    Action::Fail(FIRST, fault(Reason::MemoryLimitReached)))]
#[case::exec_ended_without_a_grant(
    Pod::Collecting(None),
    9,
    Action::Fail(
        FIRST,
        Failure::new(Reason::GrantLost, "the pod ended before the agent was started")
    )
)]
#[case::provision_failed(
    Pod::Ended(Some(fault(Reason::PackInvalid))),
    9,
    Action::Fail(FIRST, fault(Reason::PackInvalid))
)]
#[case::p01_image_for_a_moment(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::ImagePullFailed), since: at(9) })), 300,
    Action::Wait(Some(at(309))))]
#[case::p01_image_for_ever(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::ImagePullFailed), since: at(9) })), 309,
    Action::Fail(FIRST, fault(Reason::ImagePullFailed)))]
#[case::p01_image_name(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::ImageNameInvalid), since: at(9) })), 9,
    Action::Fail(FIRST, fault(Reason::ImageNameInvalid)))]
#[case::p01_config(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::ContainerConfigInvalid), since: at(9) })),
    69, Action::Fail(FIRST, fault(Reason::ContainerConfigInvalid)))]
#[case::p02_no_node_yet(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::NoNodeFits), since: at(9) })), 500,
    Action::Wait(Some(at(602))))]
fn before_the_start(#[case] pod: Pod, #[case] now: u64, #[case] want: Action) {
    let mut seen = observed(ready());
    seen.pod = pod;
    assert_eq!(next(&seen, now), want);
}

#[rstest]
#[case::p02_no_node(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::NoNodeFits), since: at(9) })),
    Reason::NoNodeFits)]
#[case::p01_the_first_cause_stays(
    Pod::Starting(Some(PodTrouble { failure: fault(Reason::ImagePullFailed), since: at(600) })),
    Reason::ImagePullFailed)]
#[case::p08_the_sidecar_never_gets_ready(Pod::Running, Reason::GrantLost)]
#[case::quota(
    Pod::Refused(fault(Reason::QuotaExceeded), at(600)),
    Reason::QuotaExceeded
)]
fn when_start_timeout_is_over_the_cause_is_kept(#[case] pod: Pod, #[case] reason: Reason) {
    let mut seen = observed(ready());
    seen.pod = pod;
    let Action::Fail(FIRST, failure) = next(&seen, 602) else {
        panic!("not ended");
    };
    assert_eq!(failure.reason, reason);
    assert!(
        failure.message.contains("startTimeout (10m)"),
        "{}",
        failure.message
    );
}

/// A cause that was there is never hidden: the policy could not be made, and so the pod never was.
#[test]
fn a_step_that_failed_until_start_timeout_is_the_cause() {
    let mut seen = observed(vec![created(), dispatched(FIRST), resolved(FIRST)]);
    seen.policy = Policy::Missing;
    seen.trouble = Some(fault(Reason::PolicyRefused));
    assert_eq!(next(&seen, 601), Action::EnsurePolicy);
    let Action::Fail(FIRST, failure) = next(&seen, 602) else {
        panic!("startTimeout is over");
    };
    assert_eq!(failure.reason, Reason::PolicyRefused);
    assert!(
        failure
            .message
            .contains("as it is; scheduling.startTimeout")
    );
}

#[test]
fn fail_closed_an_open_canary_or_a_policy_that_cannot_be() {
    let seen = observed(with(ready(), [proof(false)]));
    let Action::Fail(FIRST, failure) = next(&seen, 9) else {
        panic!("it goes on");
    };
    assert_eq!(failure.reason, Reason::CanaryOpen);
    assert!(
        failure.message.contains("this machine"),
        "{}",
        failure.message
    );
    let mut seen = observed(vec![created(), dispatched(FIRST), resolved(FIRST)]);
    seen.policy = Policy::Impossible(fault(Reason::SandboxUnavailable));
    assert_eq!(
        next(&seen, 9),
        Action::Fail(FIRST, fault(Reason::SandboxUnavailable))
    );
}

#[rstest]
#[case::waits(Some(fault(Reason::SecretNotFound)), 100, None)]
#[case::c07_gives_up(
    Some(fault(Reason::SecretNotFound)),
    1201,
    Some(Reason::SecretNotFound)
)]
#[case::silent(None, 1201, Some(Reason::TransferStalled))]
fn resolution_has_an_end(
    #[case] trouble: Option<Failure>,
    #[case] now: u64,
    #[case] want: Option<Reason>,
) {
    let mut seen = observed(vec![created(), dispatched(FIRST)]);
    seen.resolution = Resolution::Busy { trouble };
    let action = next(&seen, now);
    let got = if let Action::Fail(_, failure) = &action {
        Some(failure.reason)
    } else {
        assert!(matches!(action, Action::Wait(Some(_))), "{action:?}");
        None
    };
    assert_eq!(got, want);
}

#[test]
fn an_agent_is_stopped_then_terminated_then_given_up() {
    let mut seen = observed(started());
    seen.pod = Pod::Running;
    seen.wish.stop = Some(Reason::CancelRequested);
    assert_eq!(
        next(&seen, 60),
        Action::StopAgent(FIRST, Reason::CancelRequested)
    );
    let mut seen = observed(with(started(), [stopping(Reason::CancelRequested)]));
    seen.pod = Pod::Running;
    assert_eq!(next(&seen, 60), Action::Wait(Some(at(67))));
    assert_eq!(
        next(&seen, 67),
        Action::Terminate(FIRST, Reason::CancelRequested)
    );
    let given_up = Action::RecordOutcome(FIRST, UnknownReason::AgentMayRun);
    assert_eq!(next(&seen, 67 + 180), given_up, "nobody answers for hours");
}

#[test]
fn g12_a_policy_that_was_lost_after_its_proof_lets_no_agent_start() {
    let before = |proved: bool| {
        let mut all = vec![
            created(),
            dispatched(FIRST),
            resolved(FIRST),
            creating(FIRST),
        ];
        if proved {
            all.push(proof(true));
        }
        let mut seen = observed(all);
        seen.pod = Pod::Running;
        seen.policy = Policy::Missing;
        next(&seen, 6)
    };
    assert_eq!(before(false), Action::EnsurePolicy);
    assert_eq!(before(true), Action::Abandon(FIRST, Reason::PolicyLost));
}

#[test]
fn g04_g12_a_lost_policy_stops_the_agent_before_it_is_put_back() {
    let mut seen = observed(started());
    seen.pod = Pod::Running;
    seen.policy = Policy::Missing;
    assert_eq!(
        next(&seen, 60),
        Action::StopAgent(FIRST, Reason::PolicyLost)
    );
    let mut seen = observed(with(started(), [stopping(Reason::PolicyLost)]));
    seen.pod = Pod::Running;
    seen.policy = Policy::Missing;
    assert_eq!(next(&seen, 60), Action::EnsurePolicy);
}

#[rstest]
#[case::p05_deleted_and_gone(Pod::Absent, 60, true)]
#[case::p06_leaving_a_moment(
    Pod::Leaving { reason: Reason::NodeLost, since: at(60), deleted: true, words: String::new() }, 239, false)]
#[case::p06_leaving_for_hours(
    Pod::Leaving { reason: Reason::NodeLost, since: at(60), deleted: true, words: String::new() }, 240, true)]
fn p06_a_run_whose_pod_is_lost_after_the_start_ends_by_our_own_clock(
    #[case] pod: Pod,
    #[case] now: u64,
    #[case] recorded: bool,
) {
    let mut seen = observed(started());
    seen.pod = pod;
    let want = Action::RecordOutcome(FIRST, UnknownReason::AgentMayRun);
    let action = next(&seen, now);
    assert_eq!(action == want, recorded, "{action:?}");
}

/// P05: nothing wakes a run whose pod nobody sees, so whoever could not say is asked again, in every stage.
#[test]
fn p05_a_pod_of_which_nobody_can_say_is_asked_for_again_soon() {
    let soon = at(70);
    let exit = exited(Some(AgentExit::Exited { code: 0 }));
    let left = with(started(), outcome(Drift::Unchanged, None));
    for (events, want) in [
        (ready(), Action::Wait(Some(soon))),
        (started(), Action::Wait(Some(soon))),
        (
            with(started(), [exit.clone()]),
            Action::Collect(FIRST, soon),
        ),
        (
            with(with(left, [exit]), [ended(None)]),
            Action::Wait(Some(soon)),
        ),
    ] {
        let mut seen = observed(events);
        seen.pod = Pod::Unknown;
        assert_eq!(next(&seen, 60), want);
    }
}

#[test]
fn k02_an_old_copy_begins_nothing_and_a_new_rerun_does() {
    let over = with(
        with(started(), outcome(Drift::Unchanged, None)),
        [ended(None)],
    );
    let mut seen = observed(over.clone());
    assert_eq!(next(&seen, 9000), Action::Done);
    seen.spec.rerun = "2".into();
    assert_eq!(next(&seen, 9000), Action::Create);
    let again = Event::RunCreated {
        digest: "d".into(),
        rerun: "2".into(),
        writer: "test".into(),
    };
    let second = with(over, [again, ended(None)]);
    let mut seen = observed(second.clone());
    assert_eq!(
        next(&seen, 9000),
        Action::Done,
        "an old copy with the first rerun"
    );
    seen.spec.rerun = "3".into();
    let mut third = observed(with(
        second,
        [Event::RunCreated {
            digest: "d".into(),
            rerun: "3".into(),
            writer: "test".into(),
        }],
    ));
    third.spec.rerun = "3".into();
    assert_eq!(
        next(&third, 9000),
        Action::Dispatch(SECOND()),
        "attempts are counted on"
    );
}

#[test]
fn a10_the_pod_of_an_earlier_attempt_is_cleaned_up_and_not_adopted() {
    let mut seen = observed(vec![created(), dispatched(FIRST)]);
    seen.strays = vec![Attempt::new(7).unwrap()];
    assert_eq!(
        plan(&seen, at(1)),
        [
            Action::DeletePod(Attempt::new(7).unwrap()),
            Action::Resolve(FIRST)
        ]
    );
}

/// P03: a killed agent looks the same from inside whoever killed it, so the kubelet's word is waited for, a while.
#[rstest]
#[case::it_ended_well(Some(AgentExit::Exited { code: 0 }), Pod::Running, 10, true)]
#[case::it_was_killed(Some(AgentExit::Signalled { signal: 9 }), Pod::Running, 23, false)]
#[case::it_was_killed_and_the_kubelet_says_so(
    Some(AgentExit::Signalled { signal: 9 }), Pod::Collecting(Some(fault(Reason::MemoryLimitReached))), 10, true)]
#[case::nobody_said_how(None, Pod::Running, 23, false)]
#[case::nobody_ever_will(None, Pod::Running, 24, true)]
#[case::its_pod_is_gone(None, Pod::Absent, 10, true)]
fn p03_the_kubelets_word_on_an_end_is_waited_for(
    #[case] exit: Option<AgentExit>,
    #[case] pod: Pod,
    #[case] now: u64,
    #[case] concluded: bool,
) {
    let mut events = started();
    events.push(exited(exit));
    events.extend(outcome(Drift::Unchanged, None));
    let seen = Observed {
        pod,
        ..observed(events)
    };
    let action = next(&seen, now);
    assert_eq!(matches!(action, Action::Finish(_)), concluded, "{action:?}");
}

/// P03: an agent that went with its supervisor has ended, and what it left is read.
#[test]
fn p03_an_end_without_a_word_is_written_down() {
    let seen = Observed {
        pod: Pod::Collecting(Some(fault(Reason::MemoryLimitReached))),
        ..observed(started())
    };
    assert_eq!(next(&seen, 9), Action::AgentLost(FIRST));
}

/// L07: the logs of a run that ended stay for its TTL, though its pod is still ending.
#[rstest]
#[case::it_is_about_to_end(Pod::Running, 20, Action::Wait(Some(at(190))))]
#[case::it_hangs(Pod::Running, 190, Action::DeletePod(FIRST))]
#[case::it_has_ended(Pod::Ended(None), 190, Action::Wait(Some(at(10 + 86_400))))]
fn l07_the_pod_of_an_ended_run_stays_for_its_ttl(
    #[case] pod: Pod,
    #[case] now: u64,
    #[case] want: Action,
) {
    let mut events = started();
    let well = Some(AgentExit::Exited { code: 0 });
    events.push(exited(well));
    events.extend(outcome(Drift::Unchanged, None));
    events.push(ended(None));
    let seen = Observed {
        pod,
        ..observed(events)
    };
    assert_eq!(next(&seen, now), want);
}
