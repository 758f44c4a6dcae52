//! The life of a run against a model cluster that loses, delays, repeats and reorders, with two controllers that crash
//! between any two steps. The record of the model keeps the same rules as the real one: `audit::RunState`.
//!
//! A failing seed is printed. `SIMULATION_SEED=N cargo test --test run_simulation replay -- --nocapture` tells it step
//! by step.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests may panic and print, and look for one event among many"
)]

mod run_simulation {
    pub(crate) mod chance;
    pub(crate) mod cluster;
    pub(crate) mod controller;
    pub(crate) mod kubelet;
    pub(crate) mod world;
}

use std::collections::BTreeMap;

use proptest::prelude::*;
use run_simulation::world::{Rules, World};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("SIMULATION_CASES").map_or(300, |n| n.parse().unwrap()),
        failure_persistence: None, // the seed is in the message, and a good one becomes a row below
        ..ProptestConfig::default()
    })]

    /// K01 K02 K03 K04 K05 K09 P06 A10 L02, and the promises: pinned, fail closed, at most once, on the record.
    #[test]
    fn k01_k02_k03_k04_k05_k09_p06_a10_l02_the_promises_hold(seed in any::<u64>()) {
        let broken = World::new(seed, Rules::AsInTheRecord).live().err();
        prop_assert!(broken.is_none(), "seed {}: {}", seed, broken.unwrap_or_default());
    }
}

/// Tells one seed, or nothing.
#[test]
fn replay() {
    if let Ok(seed) = std::env::var("SIMULATION_SEED") {
        let mut world = World::new(seed.parse().unwrap(), Rules::AsInTheRecord);
        world.tell = true;
        assert_eq!(world.live().err(), None);
    }
}

/// A simulation in which nothing happens proves nothing.
#[test]
fn every_way_to_end_is_reached() {
    let mut endings: BTreeMap<String, usize> = BTreeMap::new();
    let (mut starts, mut retried, mut reruns, mut refused) = (0, 0, 0, 0);
    for seed in 0..400 {
        let lived = World::new(seed, Rules::AsInTheRecord).live();
        let world = lived.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        for ending in world.endings() {
            *endings.entry(ending).or_default() += 1;
        }
        starts += world.starts.len();
        retried += usize::from(world.made.len() > 1);
        reruns += usize::from(world.lives() > 1);
        refused += world.refused_grants;
    }
    println!("{endings:#?} starts {starts} retried {retried} reruns {reruns} refused {refused}");
    for reason in [
        "Succeeded",
        "ExitStatus",
        "CancelRequested",
        "ObjectDeleted",
        "NodeLost",
        "PodEvicted",
        "PodDeletedByHand",
        "PolicyLost",
        "TimeoutReached",
        "CanaryOpen",
        "PackInvalid",
        "RefNotFound",
        "ImagePullFailed",
    ] {
        assert!(
            endings.contains_key(reason),
            "no run ended as {reason}: {endings:?}"
        );
    }
    assert!(starts > 200 && retried > 100 && reruns > 50 && refused > 10);
}

/// Where nothing goes wrong: one pod, one start, three status writes.
#[test]
fn the_good_path_costs_three_status_writes() {
    for seed in 0..40 {
        let world = World::calm(seed)
            .live()
            .unwrap_or_else(|broken| panic!("{seed}: {broken}"));
        assert_eq!(
            (world.made.len(), world.starts.len()),
            (1, 1),
            "seed {seed}"
        );
        assert!(
            world.status_writes <= 3,
            "seed {seed}: {} writes",
            world.status_writes
        );
    }
}

/// The simulation can fail: without compare and set it finds each broken promise.
#[test]
fn without_the_rules_of_the_record_promises_are_broken() {
    let mut broken: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..150 {
        if let Err(what) = World::new(seed, Rules::Ignored).live() {
            let kind = [
                "started twice",
                "commit changed",
                "used twice",
                "ended twice",
            ]
            .into_iter()
            .find(|kind| what.contains(kind))
            .unwrap_or("other");
            *broken.entry(kind).or_default() += 1;
        }
    }
    println!("{broken:?}");
    for kind in ["started twice", "commit changed"] {
        assert!(
            broken.contains_key(kind),
            "{kind} was never found: {broken:?}"
        );
    }
}
