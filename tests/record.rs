//! The record on a real SQLite file: the grant, the chain, the errors, several processes, SIGKILL.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, too")]

mod record {
    pub(crate) mod desk;
    mod errors;
    mod processes;
    mod tampering;
}

use record::desk::{Desk, begun, call, dispatched, ended, key, proved, provisioned, started};
use rstest::rstest;
use sandboxrun::api::wire::{AgentExit, Change, ChangedPath, Drift, DriftFacts, InputOutcome};
use sandboxrun::api::{Attempt, Failure, Reason, RunUid};
use sandboxrun::audit::{Abandon, Event, Finding, Grant, Record, RecordError, Rejected, RunFilter};

#[tokio::test]
async fn the_start_grant_is_given_once() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    for (missing, event) in [
        (Rejected::NotProvisioned, provisioned()),
        (Rejected::NotProved, proved(false)),
        (Rejected::NotProved, proved(true)),
    ] {
        let early = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
        assert_eq!(early, Grant::Refused(missing));
        record.append(&run, event).await.unwrap();
    }
    let first = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(first, Grant::Granted { again: false });
    let lost_answer = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(lost_answer, Grant::Granted { again: true });
    let other = record.grant(&run, Attempt::FIRST, "two").await.unwrap();
    assert_eq!(other, Grant::Refused(Rejected::OtherNonce));
    let late = record
        .abandon(&run, Attempt::FIRST, Reason::NodeLost)
        .await
        .unwrap();
    assert_eq!(
        late,
        Abandon::AlreadyStarted {
            nonce: "one".into()
        }
    );
    record.append(&run, ended()).await.unwrap();
    let after_the_end = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(after_the_end, Grant::Refused(Rejected::Ended));
    assert_eq!(record.events(&run.uid).await.unwrap().len(), 7);
}

#[tokio::test]
async fn an_abandoned_attempt_never_starts_and_the_next_one_may() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    record
        .append_all(&run, vec![provisioned(), proved(true)])
        .await
        .unwrap();
    for _ in 0..2 {
        let answer = record
            .abandon(&run, Attempt::FIRST, Reason::NodeLost)
            .await
            .unwrap();
        assert_eq!(answer, Abandon::Abandoned);
    }
    let refused = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(refused, Grant::Refused(Rejected::Abandoned));
    record.append(&run, dispatched(2)).await.unwrap();
    let older = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(older, Grant::Refused(Rejected::Abandoned));
    let second = record
        .grant(&run, Attempt::FIRST.next(), "one")
        .await
        .unwrap();
    assert_eq!(
        second,
        Grant::Refused(Rejected::NotProvisioned),
        "each attempt proves for itself"
    );
    let unknown = record
        .grant(&run, Attempt::new(9).unwrap(), "one")
        .await
        .unwrap();
    assert_eq!(unknown, Grant::Refused(Rejected::NeverDispatched));
    let nobody = record.grant(&key(2), Attempt::FIRST, "one").await.unwrap();
    assert_eq!(nobody, Grant::Refused(Rejected::NotCreated));
}

#[tokio::test]
async fn of_many_that_ask_at_once_one_is_granted_also_through_two_handles() {
    let desk = Desk::new();
    let (here, there) = (desk.open().await, desk.open().await);
    let run = key(1);
    begun(&here, &run).await;
    here.append_all(&run, vec![provisioned(), proved(true)])
        .await
        .unwrap();
    let asks = (0..40).map(|n| {
        let record = if n % 2 == 0 {
            here.clone()
        } else {
            there.clone()
        };
        let run = run.clone();
        async move {
            if n % 5 == 0 {
                let answer = record
                    .abandon(&run, Attempt::FIRST, Reason::NodeLost)
                    .await
                    .unwrap();
                usize::from(answer == Abandon::Abandoned) * 1000
            } else {
                let grant = record
                    .grant(&run, Attempt::FIRST, &n.to_string())
                    .await
                    .unwrap();
                usize::from(grant == Grant::Granted { again: false })
            }
        }
    });
    let sum: usize = futures::future::join_all(asks).await.into_iter().sum();
    assert!(
        sum == 1 || sum == 8000,
        "one start, or all abandonments: {sum}"
    );
    assert!(
        here.verify(&run.uid, None)
            .await
            .unwrap()
            .unwrap()
            .finding
            .holds()
    );
}

#[tokio::test]
async fn l01_every_attempt_and_failure_stays() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    record
        .abandon(&run, Attempt::FIRST, Reason::PodEvicted)
        .await
        .unwrap();
    let failure = Failure::new(Reason::RefNotFound, "branch `x` is not there");
    record
        .append_all(
            &run,
            vec![
                dispatched(2),
                Event::AttemptFailed {
                    attempt: Attempt::FIRST.next(),
                    failure: failure.clone(),
                },
                Event::RunEnded {
                    attempt: Some(Attempt::FIRST.next()),
                    exit_code: None,
                    failure: Some(failure),
                    millis: 5,
                },
            ],
        )
        .await
        .unwrap();
    let kinds: Vec<_> = record
        .events(&run.uid)
        .await
        .unwrap()
        .iter()
        .map(Event::kind)
        .collect();
    assert_eq!(
        kinds,
        [
            "run.created",
            "attempt.dispatched",
            "attempt.abandoned",
            "attempt.dispatched",
            "attempt.failed",
            "run.ended"
        ]
    );
    assert!(record.open_runs().await.unwrap().is_empty());
    let listed = record.runs(&RunFilter::default()).await.unwrap();
    let end = listed[0].ended.as_ref().unwrap();
    assert_eq!(end.failure.as_ref().unwrap().reason, Reason::RefNotFound);
}

#[rstest]
#[case::nul("a\0b", r"a\x00b", true)]
#[case::escape("\u{1b}[2Jx", r"\x1b[2Jx", true)]
#[case::lone_byte_made_safe_before(r"\xff", r"\xff", false)]
#[case::lines_stay("one\ntwo\t\"three\"\\", "one\ntwo\t\"three\"\\", false)]
#[case::other_scripts("grün 漢字 🦀", "grün 漢字 🦀", false)]
#[tokio::test]
async fn l03_any_text_is_stored_and_what_was_made_safe_is_marked(
    #[case] text: &str,
    #[case] stored: &str,
    #[case] marked: bool,
) {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    let facts = DriftFacts {
        paths: vec![ChangedPath {
            path: text.into(),
            change: Change::Added,
        }],
        ..DriftFacts::default()
    };
    let event = Event::Drift {
        attempt: Attempt::FIRST,
        outcome: InputOutcome {
            name: "app".parse().unwrap(),
            drift: Drift::Drifted(facts),
        },
    };
    let head = record.append(&run, event).await.unwrap();
    let entries = record.entries(&run.uid).await.unwrap();
    let last = entries.last().unwrap();
    let body: serde_json::Value = serde_json::from_str(&last.body).unwrap();
    assert_eq!(body["outcome"]["drift"]["paths"][0]["path"], stored);
    let mark = serde_json::json!(["/outcome/drift/paths/0/path"]);
    assert_eq!(body.get("madeSafe"), marked.then_some(&mark));
    assert!(last.event().is_some());
    let verdict = record.verify(&run.uid, Some(&head)).await.unwrap().unwrap();
    assert_eq!(verdict.finding, Finding::Complete { head });
}

#[tokio::test]
async fn l07_the_story_is_whole_when_only_the_file_is_left() {
    let desk = Desk::new();
    let run = key(1);
    {
        let record = desk.open().await;
        begun(&record, &run).await;
        record
            .append_all(&run, vec![provisioned(), proved(true)])
            .await
            .unwrap();
        record.grant(&run, Attempt::FIRST, "one").await.unwrap();
        let outcome = InputOutcome {
            name: "app".parse().unwrap(),
            drift: Drift::Unchanged,
        };
        let attempt = Attempt::FIRST;
        let failure = Failure::new(Reason::ExitStatus, "the agent ended with status 3");
        let events = vec![
            Event::AgentEnded {
                attempt,
                exit: Some(AgentExit::Exited { code: 3 }),
                millis: 2000,
            },
            Event::Drift { attempt, outcome },
            Event::Output {
                attempt,
                sha256: Some("e".repeat(64)),
                bytes: 9,
                text: None,
                failure: None,
            },
            Event::RunEnded {
                attempt: Some(attempt),
                exit_code: Some(3),
                failure: Some(failure),
                millis: 2100,
            },
        ];
        record.append_all(&run, events).await.unwrap();
        record.close().await;
    }
    let (code, text) = desk.audit(&["show", "fix-it"]).await;
    assert_eq!(code, 0);
    for part in [
        "status 3",
        "Input app is unchanged",
        "SHA-256 eeeeeeeeeeee",
        "ExitStatus",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[tokio::test]
async fn events_that_may_not_follow_are_refused_and_leave_the_chain_as_it_was() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    let rejected = |result: Result<_, RecordError>| match result {
        Err(RecordError::Rejected { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        rejected(record.append(&run, dispatched(1)).await),
        Rejected::NotCreated
    );
    begun(&record, &run).await;
    let half = vec![provisioned(), dispatched(3)];
    assert_eq!(
        rejected(record.append_all(&run, half).await),
        Rejected::NotTheNextAttempt
    );
    assert_eq!(
        record.events(&run.uid).await.unwrap().len(),
        2,
        "all or none"
    );
    assert_eq!(
        rejected(record.append(&run, ended()).await),
        Rejected::Undecided
    );
    record
        .append_all(&run, vec![provisioned(), proved(true), started("one")])
        .await
        .unwrap();
    record.append(&run, ended()).await.unwrap();
    assert_eq!(
        rejected(record.append(&run, provisioned()).await),
        Rejected::Ended
    );
    record.append(&run, call(1)).await.unwrap(); // the end of a call that was allowed before
}

#[tokio::test]
async fn a_rerun_is_another_life_on_the_same_chain() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    begun(&record, &run).await;
    record
        .append_all(&run, vec![provisioned(), proved(true), started("one")])
        .await
        .unwrap();
    record.append(&run, ended()).await.unwrap();
    let again = |rerun: &str| Event::RunCreated {
        digest: "d".repeat(64),
        rerun: rerun.into(),
        writer: "test 0".into(),
    };
    let same = record.append(&run, again("")).await;
    assert!(matches!(
        same,
        Err(RecordError::Rejected {
            why: Rejected::AlreadyLived,
            ..
        })
    ));
    record.append(&run, again("2")).await.unwrap();
    let past = record.grant(&run, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(past, Grant::Refused(Rejected::Ended));
    record.append(&run, dispatched(2)).await.unwrap();
    assert_eq!(record.open_runs().await.unwrap()[0].rerun, "2");
}

#[tokio::test]
async fn many_appends_at_once_make_gapless_chains() {
    let desk = Desk::new();
    let record = desk.open().await;
    for n in 0..4 {
        begun(&record, &key(n)).await;
    }
    let appends = (0..400).map(|n| {
        let record = record.clone();
        async move {
            record
                .append(&key(n % 4), call(u64::from(n)))
                .await
                .unwrap()
        }
    });
    let heads = futures::future::join_all(appends).await;
    let mut sequences: Vec<_> = heads.iter().map(|head| head.sequence).collect();
    sequences.sort_unstable();
    sequences.dedup();
    assert_eq!(sequences.len(), 100, "each of four chains has 3..=102");
    let verdicts = record.verify_all().await.unwrap();
    assert!(
        verdicts
            .iter()
            .all(|v| v.finding.holds() && v.events == 102),
        "{verdicts:?}"
    );
}

#[tokio::test]
async fn retention_keeps_identities_and_says_so() {
    let desk = Desk::new();
    let record = desk.open().await;
    let (old, alive) = (key(1), key(2));
    for run in [&old, &alive] {
        begun(&record, run).await;
        record
            .append_all(run, vec![provisioned(), proved(true), started("one")])
            .await
            .unwrap();
    }
    record.append(&old, ended()).await.unwrap();
    assert_eq!(
        record
            .prune("2020-01-01T00:00:00Z".parse().unwrap())
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        record
            .prune("2200-01-01T00:00:00Z".parse().unwrap())
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        record
            .prune("2200-01-01T00:00:00Z".parse().unwrap())
            .await
            .unwrap(),
        0
    );
    let head = record.head(&old.uid).await.unwrap().unwrap();
    let verdict = record.verify(&old.uid, Some(&head)).await.unwrap().unwrap();
    assert_eq!(
        (verdict.events, verdict.finding),
        (4, Finding::Pruned { head })
    );
    assert_eq!(record.runs(&RunFilter::default()).await.unwrap().len(), 2);
    let grant = record.grant(&old, Attempt::FIRST, "one").await.unwrap();
    assert_eq!(grant, Grant::Refused(Rejected::Ended));
    let untouched = record.verify(&alive.uid, None).await.unwrap().unwrap();
    assert!(matches!(untouched.finding, Finding::TailNotProven { .. }));
}

/// O02: what counts is the start of an agent, and it counts for ever.
#[tokio::test]
async fn o02_a_start_is_found_by_what_was_started() {
    let desk = Desk::new();
    let record = desk.open().await;
    let (first, second) = (key(1), key(2));
    let (namespace, name, digest) = (&first.namespace, &first.name, "d".repeat(64));
    begun(&record, &first).await;
    let before = record.started_before(namespace, name, &digest, "").await;
    assert_eq!(before.unwrap(), None, "it was only begun");
    let may_start = record.may_still_start(namespace, name, &digest, "").await;
    assert_eq!(
        may_start.unwrap(),
        std::slice::from_ref(&first),
        "and may start still"
    );
    let other = record.may_still_start(namespace, name, &digest, "2").await;
    assert_eq!(other.unwrap(), []);
    record
        .append_all(&first, vec![provisioned(), proved(true), started("one")])
        .await
        .unwrap();
    let may_start = record.may_still_start(namespace, name, &digest, "").await;
    assert_eq!(may_start.unwrap(), [], "it has started");
    begun(&record, &second).await;
    record.append(&first, ended()).await.unwrap();
    record
        .prune("2200-01-01T00:00:00Z".parse().unwrap())
        .await
        .unwrap();
    for (digest, rerun, found) in [
        (digest.as_str(), "", Some(first.clone())),
        (digest.as_str(), "2", None),
        ("other", "", None),
    ] {
        let asked = record.started_before(namespace, name, digest, rerun).await;
        assert_eq!(asked.unwrap(), found, "{digest} {rerun}");
    }
}

#[tokio::test]
async fn a_reader_takes_only_what_is_new() {
    let desk = Desk::new();
    let record = desk.open().await;
    let run = key(1);
    let head = begun(&record, &run).await;
    assert_eq!(record.entries_after(&run, 0).await.unwrap().len(), 2);
    assert!(
        record
            .entries_after(&run, head.sequence)
            .await
            .unwrap()
            .is_empty()
    );
    let newest = record.append(&run, provisioned()).await.unwrap();
    let new = record.entries_after(&run, head.sequence).await.unwrap();
    assert_eq!(
        new.iter()
            .map(sandboxrun::audit::Entry::head)
            .collect::<Vec<_>>(),
        [newest]
    );
}

#[tokio::test]
async fn what_is_asked_of_an_unknown_run_is_nothing_and_no_error() {
    let desk = Desk::new();
    let record: Record = desk.open().await;
    let uid: RunUid = "0000".parse().unwrap();
    assert!(record.run(&uid).await.unwrap().is_none());
    assert!(record.events(&uid).await.unwrap().is_empty());
    assert!(record.head(&uid).await.unwrap().is_none());
    assert!(record.verify(&uid, None).await.unwrap().is_none());
}
