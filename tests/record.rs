//! The record on a real SQLite file, with real processes that are killed.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, too")]

use std::path::PathBuf;

use sandboxrun::api::{Attempt, Reason};
use sandboxrun::audit::{Abandon, Event, Grant, Head, Record, Rejected, RunKey};
use tempfile::TempDir;

struct Desk {
    directory: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("record.sqlite")
    }

    async fn open(&self) -> Record {
        Record::open(&self.path()).await.unwrap()
    }
}

fn key(n: u32) -> RunKey {
    RunKey {
        namespace: "team".parse().unwrap(),
        name: "fix-it".parse().unwrap(),
        uid: format!("{n:08x}-0000").parse().unwrap(),
    }
}

fn created() -> Event {
    Event::RunCreated {
        digest: "d".repeat(64),
        rerun: String::new(),
        writer: "test 0".into(),
    }
}

fn dispatched(attempt: u32) -> Event {
    Event::AttemptDispatched {
        attempt: Attempt::new(attempt).unwrap(),
    }
}

fn ended() -> Event {
    Event::RunEnded {
        attempt: Some(Attempt::FIRST),
        exit_code: Some(0),
        failure: None,
        millis: 1,
    }
}

fn provisioned() -> Event {
    Event::InputsProvisioned {
        attempt: Attempt::FIRST,
        inputs: Vec::new(),
    }
}

fn proved(enforced: bool) -> Event {
    Event::PolicyProof {
        attempt: Attempt::FIRST,
        enforced,
        canaries: Vec::new(),
        open: Vec::new(),
        open_millis: 0,
    }
}

async fn begun(record: &Record, run: &RunKey) -> Head {
    record
        .append_all(run, vec![created(), dispatched(1)])
        .await
        .unwrap()
}

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
