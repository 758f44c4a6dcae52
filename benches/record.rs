//! What sharing a commit is worth: appends to the record one by one, and by 64 tasks at once.
//!
//! `cargo bench --bench record [-- DIRECTORY]`: the directory decides whose fsync is measured. Beside it stands what
//! the disk itself takes for a 4 KiB write and fsync.
#![allow(
    clippy::disallowed_methods,
    reason = "benches look at clocks and start programs as they need"
)]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and may fail"
)]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use sandboxrun::api::Attempt;
use sandboxrun::audit::{Call, Decision, Event, Record, RunKey, Via};

const APPENDS: u32 = 2_000;
const APPENDERS: u32 = 64;

#[tokio::main]
async fn main() {
    let chosen = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let directory = match &chosen {
        Some(path) => tempfile::tempdir_in(path).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let fsync = fsyncs(directory.path());
    let record = Record::open(&directory.path().join("record.sqlite"))
        .await
        .unwrap();
    for n in 0..APPENDERS {
        record.append(&key(n), created()).await.unwrap();
    }
    let mut alone = Vec::new();
    for _ in 0..APPENDS {
        alone.push(timed(&record, 0).await);
    }
    let began = Instant::now();
    let tasks = (0..APPENDERS).map(|n| {
        let record = record.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            for _ in 0..10 * APPENDS / APPENDERS {
                times.push(timed(&record, n).await);
            }
            times
        })
    });
    let many = futures::future::join_all(tasks).await;
    let took = began.elapsed();
    let mut together: Vec<_> = many.into_iter().flat_map(Result::unwrap).collect();
    println!(
        "{:<40} {:>12} {:>10} {:>10}",
        "record", "appends/s", "p50", "p99"
    );
    row(
        "4 KiB write + fsync, no database",
        fsync.iter().sum(),
        fsync,
    );
    row("one by one", alone.iter().sum(), alone);
    together.sort_unstable();
    row("64 at once, 64 runs", took, together);
    let began = Instant::now();
    let verdicts = record.verify_all().await.unwrap();
    assert!(verdicts.iter().all(|verdict| verdict.finding.holds()));
    let events: u64 = verdicts.iter().map(|verdict| verdict.events).sum();
    println!("verify: {events} events in {:.0?}", began.elapsed());
}

fn row(what: &str, took: Duration, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| {
        times
            .get(times.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    let count = u32::try_from(times.len()).unwrap();
    let rate = f64::from(count) / took.as_secs_f64();
    println!(
        "{what:<40} {rate:>12.0} {:>10.1?} {:>10.1?}",
        at(50),
        at(99)
    );
}

async fn timed(record: &Record, run: u32) -> Duration {
    let began = Instant::now();
    record.append(&key(run), call()).await.unwrap();
    began.elapsed()
}

fn fsyncs(directory: &Path) -> Vec<Duration> {
    let mut file = File::create(directory.join("plain")).unwrap();
    let mut once = || {
        let began = Instant::now();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_data().unwrap();
        began.elapsed()
    };
    (0..200).map(|_| once()).collect()
}

fn key(n: u32) -> RunKey {
    RunKey {
        namespace: "team".parse().unwrap(),
        name: "bench".parse().unwrap(),
        uid: format!("{n:08x}").parse().unwrap(),
    }
}

fn created() -> Event {
    Event::RunCreated {
        digest: "d".repeat(64),
        rerun: String::new(),
        writer: "bench".into(),
    }
}

fn call() -> Event {
    Event::Call(Call {
        attempt: Attempt::FIRST,
        via: Via::Lookup("tickets".parse().unwrap()),
        method: "GET".into(),
        target: "/rest/api/2/issue/7".into(),
        query: None,
        decision: Decision::Allowed,
        status: 200,
        bytes: 1234,
        millis: 12,
    })
}
