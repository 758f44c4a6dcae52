//! `collect` as a process.

use std::fs;

use sandboxrun::api::wire::{Drift, DriftFacts, OutputFile};

use crate::Volumes;
use crate::repository::Repository;
use crate::server::Server;

/// Provisions the usual repository, lets an agent act, and collects.
pub(crate) fn drift_after(act: impl FnOnce(&std::path::Path)) -> Drift {
    let server = Server::of(Repository::usual().pack());
    let volumes = Volumes::new();
    assert!(volumes.run("provision", &server).status.success());
    act(&volumes.at("workspace/app"));
    assert!(volumes.run("collect", &server).status.success());
    let outcome = server.with(|state| state.outcome.clone()).unwrap();
    assert_eq!(outcome.output, OutputFile::Absent);
    outcome.inputs.into_iter().next().unwrap().drift
}

pub(crate) fn facts_after(act: impl FnOnce(&std::path::Path)) -> DriftFacts {
    match drift_after(act) {
        Drift::Drifted(facts) => facts,
        other => panic!("not drifted: {other:?}"),
    }
}

#[test]
fn d02_nothing_done_is_unchanged_and_an_edit_is_drift() {
    assert_eq!(drift_after(|_| {}), Drift::Unchanged);
    let facts = facts_after(|app| fs::write(app.join("README.md"), "HELLO\n").unwrap());
    assert_eq!((facts.modified, facts.added, facts.deleted), (1, 0, 0));
}
