//! The record: many who append at once, against one after the other.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use sandboxrun::api::{Attempt, Call, Decision, Event, Via};
use sandboxrun::audit::Record;

use crate::rounds::Times;
use crate::table::Row;
use crate::world::{Done, World, created, fresh_key};

const APPENDERS: usize = 64;
const EVENTS: usize = 8;

/// The same events of 64 runs, each on the disk before its writer goes on.
pub(crate) async fn rows(world: &World) -> Done<Vec<Row>> {
    let record = Record::open(&world.disk.path().join("appenders.db")).await?;
    let (mut ours, mut rival) = (Times::default(), Times::default());
    for _ in 0..world.rounds(3) {
        let start = Instant::now();
        try_join_all((0..APPENDERS).map(|_| one_run(&record))).await?;
        ours.push(start.elapsed());
        let start = Instant::now();
        for _ in 0..APPENDERS {
            one_run(&record).await?;
        }
        rival.push(start.elapsed());
    }
    record.close().await;
    let each = |times: &Times| {
        let events = u32::try_from(APPENDERS * EVENTS).unwrap_or(u32::MAX);
        times.median().checked_div(events).unwrap_or(Duration::ZERO)
    };
    Ok(vec![Row::times(
        "record: one event, 64 appenders at once against one by one",
        each(&ours),
        each(&rival),
        None,
    )])
}

async fn one_run(record: &Record) -> Done<()> {
    let key = fresh_key()?;
    record.append(&key, created()).await?;
    for _ in 1..EVENTS {
        let call = Call {
            attempt: Attempt::FIRST,
            via: Via::Proxy,
            method: "CONNECT".to_owned(),
            target: "packages.example.com:443".to_owned(),
            query: None,
            decision: Decision::Allowed,
            status: 200,
            bytes: 1234,
            millis: 5,
        };
        record.append(&key, Event::Call(call)).await?;
    }
    Ok(())
}
