//! A record in a directory of its own, and short ways to write events.

use std::path::{Path, PathBuf};

use clap::Parser;
use sandboxrun::api::Attempt;
use sandboxrun::audit::{Call, Decision, Event, Head, Record, RunKey, Via};
use sandboxrun::cli::audit::{AuditArgs, run};
use tempfile::TempDir;

pub(crate) struct Desk {
    directory: TempDir,
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: AuditArgs,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("record.sqlite")
    }

    pub(crate) async fn open(&self) -> Record {
        Record::open(&self.path()).await.unwrap()
    }

    /// What `sandboxrun audit ...` prints, and its exit code.
    pub(crate) async fn audit(&self, words: &[&str]) -> (u8, String) {
        let line = ["audit"].iter().chain(words);
        let mut out = Vec::new();
        let args = CommandLine::try_parse_from(line).unwrap().args;
        let code = match run(args, &self.path(), &mut out).await {
            Ok(code) => code,
            Err(error) => {
                out.extend_from_slice(error.to_string().as_bytes());
                error.exit_code()
            }
        };
        (code, String::from_utf8(out).unwrap())
    }
}

pub(crate) fn key(n: u32) -> RunKey {
    RunKey {
        namespace: "team".parse().unwrap(),
        name: "fix-it".parse().unwrap(),
        uid: format!("{n:08x}-0000").parse().unwrap(),
    }
}

pub(crate) fn created() -> Event {
    Event::RunCreated {
        digest: "d".repeat(64),
        rerun: String::new(),
        writer: "test 0".into(),
    }
}

pub(crate) fn dispatched(attempt: u32) -> Event {
    Event::AttemptDispatched {
        attempt: Attempt::new(attempt).unwrap(),
    }
}

pub(crate) fn provisioned() -> Event {
    Event::InputsProvisioned {
        attempt: Attempt::FIRST,
        inputs: Vec::new(),
    }
}

pub(crate) fn proved(enforced: bool) -> Event {
    Event::PolicyProof {
        attempt: Attempt::FIRST,
        enforced,
        canaries: Vec::new(),
        open: Vec::new(),
        open_millis: 0,
        unproven_millis: 0,
    }
}

pub(crate) fn started(nonce: &str) -> Event {
    Event::AgentStarted {
        attempt: Attempt::FIRST,
        nonce: nonce.into(),
    }
}

pub(crate) fn call(bytes: u64) -> Event {
    Event::Call(Call {
        attempt: Attempt::FIRST,
        via: Via::Proxy,
        method: "GET".into(),
        target: "/".into(),
        query: None,
        decision: Decision::Allowed,
        status: 200,
        bytes,
        millis: 1,
    })
}

pub(crate) fn ended() -> Event {
    Event::RunEnded {
        attempt: Some(Attempt::FIRST),
        exit_code: Some(0),
        failure: None,
        millis: 1,
    }
}

pub(crate) async fn begun(record: &Record, run: &RunKey) -> Head {
    record
        .append_all(run, vec![created(), dispatched(1)])
        .await
        .unwrap()
}
