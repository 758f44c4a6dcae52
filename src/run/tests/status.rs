//! What users see in each state.

use std::fmt::Write as _;

use rstest::rstest;

use super::*;
use crate::api::wire::{Change, ChangedPath, DriftFacts, HeadSeen, ProvisionedInput};
use crate::api::{ConditionStatus, ConditionType, Phase, SandboxRunStatus};
use crate::run::{PodTrouble, outlived_its_record, outlived_status, status, write_due};

fn short(status: &SandboxRunStatus) -> String {
    let mut text = format!("{:?}", status.phase);
    for condition in &status.conditions {
        let sign = match condition.status {
            ConditionStatus::True => '+',
            ConditionStatus::False => '-',
            ConditionStatus::Unknown => '?',
        };
        write!(text, " {sign}{:?}", condition.kind).unwrap();
    }
    text
}

fn finished(drift: Drift, failure: Option<Failure>) -> Vec<Event> {
    let exit = exited(Some(AgentExit::Exited { code: 0 }));
    with(
        with(with(started(), [exit]), outcome(drift, None)),
        [ended(failure)],
    )
}

fn drifted() -> Drift {
    Drift::Drifted(DriftFacts {
        modified: 1,
        added: 2,
        paths: vec![ChangedPath {
            path: "README.md".into(),
            change: Change::Modified,
        }],
        head: HeadSeen::Moved {
            to: Some("3".repeat(40).parse().unwrap()),
            pinned_is_ancestor: Some(true),
        },
        ..DriftFacts::default()
    })
}

// O03: kstatus reads Ready, Reconciling and Stalled; `kubectl wait` reads Complete, Failed and Drifted.
#[rstest]
#[case::new(
    Vec::new(),
    "Pending ?Ready +Reconciling -Stalled -Complete -Failed ?InputsResolved ?WorkspaceReady ?PolicyEnforced ?Drifted +Recorded"
)]
#[case::resolving(vec![created(), dispatched(FIRST)],
    "Resolving ?Ready +Reconciling -Stalled -Complete -Failed ?InputsResolved ?WorkspaceReady ?PolicyEnforced ?Drifted +Recorded")]
#[case::provisioning(
    ready(),
    "Provisioning ?Ready +Reconciling -Stalled -Complete -Failed +InputsResolved ?WorkspaceReady ?PolicyEnforced ?Drifted +Recorded"
)]
#[case::running(
    started(),
    "Running ?Ready +Reconciling -Stalled -Complete -Failed +InputsResolved +WorkspaceReady +PolicyEnforced ?Drifted +Recorded"
)]
#[case::collecting(with(started(), [exited(None)]),
    "Collecting ?Ready +Reconciling -Stalled -Complete -Failed +InputsResolved +WorkspaceReady +PolicyEnforced ?Drifted +Recorded")]
#[case::succeeded(
    finished(Drift::Unchanged, None),
    "Succeeded +Ready -Reconciling -Stalled +Complete -Failed +InputsResolved +WorkspaceReady +PolicyEnforced -Drifted +Recorded"
)]
#[case::succeeded_with_drift(
    finished(drifted(), None),
    "Succeeded +Ready -Reconciling -Stalled +Complete -Failed +InputsResolved +WorkspaceReady +PolicyEnforced +Drifted +Recorded"
)]
#[case::failed(
    finished(Drift::Unchanged, Some(Failure::new(Reason::ExitStatus, "3"))),
    "Failed -Ready -Reconciling +Stalled -Complete +Failed +InputsResolved +WorkspaceReady +PolicyEnforced -Drifted +Recorded"
)]
#[case::cancelled(
    vec![created(), dispatched(FIRST), abandoned(FIRST, Reason::CancelRequested),
         ended(Some(Failure::new(Reason::CancelRequested, "cancelled")))],
    "Cancelled -Ready -Reconciling +Stalled -Complete +Failed -InputsResolved ?WorkspaceReady ?PolicyEnforced ?Drifted +Recorded")]
fn o03_conditions_say_what_machines_wait_for(#[case] events: Vec<Event>, #[case] want: &str) {
    let status = status(&observed(events));
    assert_eq!(short(&status), want);
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.observed_generation == Some(3))
    );
}

#[test]
fn a_finished_run_in_full() {
    let mut seen = observed(finished(drifted(), None));
    seen.pod = Pod::Ended(None);
    let json = serde_json::to_string_pretty(&status(&seen)).unwrap();
    insta::assert_snapshot!(json);
}

#[test]
fn a_status_that_nobody_wrote_asks_for_no_write() {
    let default: SandboxRunStatus = serde_json::from_str(r#"{"observedGeneration": -1}"#).unwrap();
    assert!(!write_due(Some(&default), &status(&observed(Vec::new()))));
    assert!(write_due(Some(&default), &status(&observed(started()))));
}

#[test]
fn the_same_facts_give_the_same_bytes_and_no_write() {
    let seen = observed(started());
    let first = status(&seen);
    assert_eq!(first, status(&seen));
    assert!(!write_due(Some(&first), &status(&seen)));
}

#[test]
fn what_a_run_waits_for_is_said_and_written_once() {
    let mut seen = observed(vec![created(), dispatched(FIRST)]);
    assert!(
        !write_due(None, &status(&seen)),
        "states that pass within a second are not written"
    );
    let missing = Failure::new(Reason::SecretNotFound, "Secret `forge-token` is not there");
    seen.resolution = Resolution::Busy {
        trouble: Some(missing),
    };
    let waiting = status(&seen);
    assert_eq!(waiting.error.as_ref().unwrap().reason, "SecretNotFound");
    assert!(waiting.error.as_ref().unwrap().retryable);
    assert!(write_due(None, &waiting));
    let other = Failure::new(Reason::HostUnreachable, "git.example.com does not answer");
    seen.resolution = Resolution::Busy {
        trouble: Some(other),
    };
    assert!(!write_due(Some(&waiting), &status(&seen)));
    let mut starting = observed(ready());
    starting.pod = Pod::Starting(Some(PodTrouble {
        failure: Failure::new(Reason::ImagePullFailed, "no such image"),
        since: at(3),
    }));
    assert!(write_due(Some(&waiting), &status(&starting)));
}

#[test]
fn l02_a_record_that_fails_is_shown_as_not_recorded() {
    let mut seen = observed(Vec::new());
    seen.record = Err(Failure::new(Reason::RecordWriteFailed, "the disk is full"));
    let status = status(&seen);
    let recorded = status
        .conditions
        .iter()
        .find(|c| c.kind == ConditionType::Recorded)
        .unwrap();
    assert_eq!(recorded.status, ConditionStatus::False);
    assert_eq!(status.error.unwrap().code, "sandbox.record_unavailable");
    assert_eq!(status.phase, Phase::Pending);
}

#[test]
fn a07_the_status_stays_small_and_says_that_it_was_cut() {
    let long = "\u{1}".repeat(3000);
    let facts = DriftFacts {
        modified: 100_000,
        paths: (0..100_000)
            .map(|n| ChangedPath {
                path: format!("{n}/{long}"),
                change: Change::Modified,
            })
            .take(200)
            .collect(),
        truncated: true,
        ..DriftFacts::default()
    };
    let names: Vec<_> = (0..16)
        .map(|n| format!("{}{n:02}", "n".repeat(38)))
        .collect();
    let mut events = vec![created(), dispatched(FIRST)];
    for name in &names {
        let Event::InputResolved { mut repository, .. } = resolved(FIRST) else {
            unreachable!()
        };
        repository.push_str(&"/x".repeat(1000));
        events.push(Event::InputResolved {
            attempt: FIRST,
            input: name.parse().unwrap(),
            repository,
            requested_ref: format!("branch {}", "b".repeat(240)),
            resolved_ref: Some(format!("refs/heads/{}", "b".repeat(240)).parse().unwrap()),
            commit: "1".repeat(64).parse().unwrap(),
            tag_object: Some("2".repeat(64).parse().unwrap()),
            object_format: ObjectFormat::Sha256,
            connector: Some("c".repeat(253).parse().unwrap()),
            credential_proof: "ReadOnly".into(),
        });
    }
    events.extend(started().split_off(3));
    events.extend(names.iter().map(|name| Event::Drift {
        attempt: FIRST,
        outcome: InputOutcome {
            name: name.parse().unwrap(),
            drift: Drift::Drifted(facts.clone()),
        },
    }));
    events.push(Event::Output {
        attempt: FIRST,
        sha256: Some("e".repeat(64)),
        bytes: 4096,
        text: Some("\\".repeat(4096)),
        failure: None,
    });
    events.push(ended(Some(Failure::new(Reason::ExitStatus, long.clone()))));
    let mut seen = observed(events);
    let spec = names.iter().map(|name| InputFacts {
        name: name.parse().unwrap(),
        repository: long.clone(),
        requested_ref: long.clone(),
    });
    seen.spec.inputs = spec.collect();
    let status = status(&seen);
    let bytes = serde_json::to_vec(&status).unwrap().len();
    assert!(bytes < 32 * 1024, "{bytes}");
    assert!(status.truncated);
    assert_eq!(status.inputs.len(), 16);
    for input in &status.inputs {
        let drift = input.drift.as_ref().unwrap();
        assert_eq!(drift.counts.as_ref().unwrap().modified, 100_000);
        assert!(drift.truncated);
    }
    assert_eq!(status.summary.drift, "Drifted (1600000)");
}

#[test]
fn a08_every_reason_keeps_its_code_and_healing_in_the_status() {
    for reason in Reason::ALL {
        let failure = Failure {
            reason: *reason,
            message: "as it is".into(),
            input: Some("app".parse().unwrap()),
        };
        let failed = Event::AttemptFailed {
            attempt: FIRST,
            failure: failure.clone(),
        };
        let seen = observed(vec![
            created(),
            dispatched(FIRST),
            failed,
            ended(Some(failure)),
        ]);
        let status = status(&seen);
        let error = status.error.unwrap();
        assert_eq!(error.code, reason.code().to_string());
        assert_eq!(error.reason, reason.to_string());
        assert_eq!(error.input.as_deref(), Some("app"));
        let ready = status
            .conditions
            .iter()
            .find(|c| c.kind == ConditionType::Ready)
            .unwrap();
        assert_eq!(ready.reason, reason.to_string());
    }
}

#[test]
fn counts_of_the_workspace_are_shown() {
    let mut events = ready();
    events.push(Event::InputsProvisioned {
        attempt: FIRST,
        inputs: vec![ProvisionedInput {
            name: "app".parse().unwrap(),
            files: 12,
            bytes: 1,
            submodules: Vec::new(),
            lfs_pointers: 0,
            millis: 1,
        }],
    });
    let status = status(&observed(events));
    let ready = status
        .conditions
        .iter()
        .find(|c| c.kind == ConditionType::WorkspaceReady);
    assert_eq!(ready.unwrap().message, "inputs: 1, files: 12");
}

/// What the API server takes: no unsigned formats, no free-form values.
#[test]
fn the_schema_is_one_that_an_api_server_takes() {
    let schema = schemars::schema_for!(SandboxRunStatus);
    let text = serde_json::to_string(&schema).unwrap();
    let mut formats: Vec<_> = text.split("\"format\":\"").skip(1).collect();
    for rest in &mut formats {
        *rest = rest.split('"').next().unwrap();
    }
    formats.sort_unstable();
    formats.dedup();
    assert_eq!(formats, ["date-time", "int32", "int64"]);
    assert!(text.contains("x-kubernetes-list-map-keys"));
}

/// Each failed step ends in a condition with a code and a sentence, also before anything is in the record.
#[test]
fn a_step_that_fails_is_shown() {
    for events in [
        Vec::new(),
        vec![created(), dispatched(FIRST), resolved(FIRST)],
    ] {
        let mut seen = observed(events);
        seen.trouble = Some(Failure::new(Reason::PolicyRefused, "forbidden"));
        let status = status(&seen);
        assert_eq!(
            status.error.as_ref().unwrap().code,
            "sandbox.policy_not_enforced"
        );
        assert!(status.error.as_ref().unwrap().retryable);
        assert!(write_due(None, &status));
        let ready = status
            .conditions
            .iter()
            .find(|c| c.kind == ConditionType::Ready);
        assert_eq!(ready.unwrap().message, "forbidden");
    }
}

/// K02: a backup that is put in the record's place may be older than the end, and may know nothing of the run.
#[test]
fn k02_what_has_ended_does_not_begin_again_on_an_older_record() {
    let whole = finished(Drift::Unchanged, None);
    let written = status(&observed(whole.clone()));
    let outlived = |events: Vec<Event>| {
        let seen = observed(events);
        outlived_its_record(&written, seen.record.as_ref().unwrap())
    };
    assert!(outlived(Vec::new()));
    assert!(outlived(vec![created()]), "its attempt is not there");
    assert!(outlived(vec![created(), dispatched(FIRST)]));
    assert!(outlived(ready()));
    assert!(outlived(started()));
    assert!(!outlived(whole.clone()));
    let rerun = Event::RunCreated {
        digest: "d".repeat(64),
        rerun: "2".into(),
        writer: "test".into(),
    };
    let again = with(whole, [rerun]);
    assert!(!outlived(again.clone()), "another life begins as it should");
    assert!(!outlived(with(again, [dispatched(FIRST.next())])));
    let alive = status(&observed(started()));
    assert!(!outlived_its_record(&alive, &RecordFacts::default()));
}

#[test]
fn k02_a_run_that_outlived_its_record_keeps_its_end_and_says_so_when_it_is_asked_for_again() {
    let written = status(&observed(finished(Drift::Unchanged, None)));
    let stalled = |status: &SandboxRunStatus| {
        let mut all = status.conditions.iter();
        let found = all.find(|c| c.kind == ConditionType::Stalled).unwrap();
        (found.status, found.reason.clone())
    };
    let mut seen = observed(ready());
    seen.spec.generation = Some(4);
    let same = outlived_status(&written, &seen, at(99));
    assert_eq!(same.observed_generation, Some(4));
    assert_eq!(
        stalled(&same).0,
        ConditionStatus::False,
        "nobody asked for more"
    );
    seen.spec.rerun = "2".into();
    let again = outlived_status(&written, &seen, at(99));
    assert_eq!(
        stalled(&again),
        (ConditionStatus::True, "RecordLost".to_owned())
    );
    assert_eq!(again.phase, Phase::Succeeded);
    assert_eq!(outlived_status(&again, &seen, at(500)), again, "once");
}
