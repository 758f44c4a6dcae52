//! Speed, against the rivals, in one table: `make bench`.
//!
//! Each row measures the real programs against a real server, with the rival in the same run: rounds are taken in turns
//! and the median counts, so that a busy machine slows both. A missed target is shown as missed, and is no error.
#![allow(
    clippy::disallowed_methods,
    reason = "benches look at clocks and start programs as they need"
)]

mod local;
mod lookups;
mod machine;
mod provision;
mod record;
mod refs;
mod rounds;
mod table;
mod world;

use std::process::ExitCode;

use table::{Row, Table};
use world::{Done, World};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ended = runtime.map_err(Into::into).and_then(|runtime| {
        if let Some(("client", rest)) = args.split_first().map(|(a, b)| (a.as_str(), b)) {
            return runtime.block_on(lookups::client(rest)).map(|()| true);
        }
        let wanted: Vec<&str> = args.iter().map(String::as_str).collect();
        runtime.block_on(measure(&wanted))
    });
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("speed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the groups whose name was given (all, if none was) and prints the table. False: a row could not be measured.
#[expect(clippy::print_stdout, reason = "the table is what this program is for")]
async fn measure(args: &[&str]) -> Done<bool> {
    let names: Vec<&str> = args
        .iter()
        .filter(|arg| !arg.starts_with('-'))
        .copied()
        .collect();
    let wanted = |group: &str| names.is_empty() || names.contains(&group);
    let files = machine::place_for_files(args.contains(&"--disk"));
    let world = World::new(args.contains(&"--quick"), &files).await?;
    let mut table = Table::default();
    if wanted("provision") {
        table.take("provision", provision::rows(&world).await);
    }
    if wanted("fetches") {
        table.take("fetches", provision::hundred_runs(&world).await);
    }
    if wanted("listing") {
        table.take("listing", refs::rows(&world).await);
    }
    if wanted("drift") {
        table.take("drift", provision::drift(&world).await);
    }
    if wanted("local") {
        table.take("local", local::rows(&world).await);
    }
    if wanted("lookup") {
        table.take("lookup", lookups::rows(&world).await);
    }
    if wanted("size") {
        table.take("size", Ok(vec![Row::size(&world.pod)?]));
    }
    if wanted("record") {
        table.take("record", record::rows(&world).await);
    }
    println!("{}\n\n{table}", machine::description(&files));
    world.end().await;
    Ok(table.is_whole())
}
