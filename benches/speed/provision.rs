//! From a branch's name to files in a workspace, and from there to its drift.

use std::time::{Duration, Instant};

use demo_forge::Change;
use futures::StreamExt as _;
use sandboxrun::api::wire::Drift;
use sandboxrun::gateway::{Gateway, Role};

use crate::rounds::Times;
use crate::table::Row;
use crate::world::{Done, Run, World, spec};

/// A repository to provision.
struct Case {
    repository: &'static str,
    what: &'static str,
    files: usize,
    bytes: u64,
    rounds: usize,
    /// How many times faster we must be.
    at_least: f64,
}

const CASES: [Case; 3] = [
    Case {
        repository: "bench/one",
        what: "1 file",
        files: 1,
        bytes: 20,
        rounds: 21,
        at_least: 1.0,
    },
    Case {
        repository: "bench/usual",
        what: "5,000 files, 60 MB",
        files: 5_000,
        bytes: 60_000_000,
        rounds: 7,
        at_least: 2.0,
    },
    Case {
        repository: "bench/many",
        what: "100,000 files, 50 MB",
        files: 100_000,
        bytes: 50_000_000,
        rounds: 3,
        at_least: 2.0,
    },
];

/// One commit, from its branch's name to its files: with a mirror that has it, and with one that is empty.
pub(crate) async fn rows(world: &World) -> Done<Vec<Row>> {
    let mut rows = Vec::new();
    for case in CASES {
        let repo = world.repository(case.repository)?;
        repo.many_files("main", case.files, case.bytes)?;
        let (mut warm, mut cold, mut rival) =
            (Times::default(), Times::default(), Times::default());
        // Fills the mirror, and everybody's caches.
        once(world, &world.gateway, case.repository).await?;
        world.clone_shallow(case.repository).await?;
        for _ in 0..world.rounds(case.rounds) {
            warm.push(once(world, &world.gateway, case.repository).await?);
            rival.push(world.clone_shallow(case.repository).await?);
            cold.push(once(world, &world.cold()?, case.repository).await?);
        }
        for (mirror, ours, at_least) in [
            ("warm", &warm, Some(case.at_least)),
            ("cold", &cold, Some(1.0)),
        ] {
            let what = format!("provision: {}, mirror {mirror}", case.what);
            rows.push(Row::times(what, ours.median(), rival.median(), at_least));
        }
    }
    Ok(rows)
}

/// Resolves, takes the pack, and runs the pod program: all that stands between the wish and the files.
async fn once(world: &World, gateway: &Gateway, repository: &str) -> Done<Duration> {
    let spec = spec(Some(repository))?;
    let start = Instant::now();
    let run = world.begin(gateway, spec, Role::Pod).await?;
    world.run_pod("provision", &run.volumes).await?;
    let took = start.elapsed();
    std::fs::remove_dir_all(run.volumes.root)?;
    Ok(took)
}

/// How often the server gave a pack out, for many runs on one commit and for as many clones.
pub(crate) async fn hundred_runs(world: &World) -> Done<Vec<Row>> {
    const RUNS: usize = 100;
    const AT_ONCE: usize = 8;
    let name = "bench/shared";
    let repo = world.repository(name)?;
    repo.commit("main", &[Change::file("README.md", "hello\n")])?;
    let cold = world.cold()?;
    let start = Instant::now();
    let runs = futures::stream::iter(0..RUNS).map(|_| once(world, &cold, name));
    all(runs.buffer_unordered(AT_ONCE)).await?;
    let (ours, ours_took) = (world.forge.fetches(name), start.elapsed());
    let start = Instant::now();
    let clones = futures::stream::iter(0..RUNS).map(|_| world.clone_shallow(name));
    all(clones.buffer_unordered(AT_ONCE)).await?;
    let (rival, rival_took) = (world.forge.fetches(name) - ours, start.elapsed());
    Ok(vec![
        Row::counts(
            "fetches: upstream, for 100 runs on one commit",
            "fetches",
            ours as u64,
            rival as u64,
            1,
        ),
        Row::times(
            "fetches: the same 100 runs, 8 at once, to their files",
            ours_took,
            rival_took,
            None,
        ),
    ])
}

async fn all(stream: impl futures::Stream<Item = Done<Duration>>) -> Done<()> {
    let ended: Vec<_> = stream.collect().await;
    ended.into_iter().try_for_each(|one| one.map(drop))
}

/// Every file compared with the pinned commit: `collect`, and `git status` with an index that knows no file yet. Then
/// `git status` again, which trusts sizes and times of its own index: shown, though it proves less.
pub(crate) async fn drift(world: &World) -> Done<Vec<Row>> {
    let name = "bench/drift";
    let repo = world.repository(name)?;
    repo.many_files("main", 100_000, 50_000_000)?;
    let made = world
        .begin(&world.gateway, spec(Some(name))?, Role::Pod)
        .await?;
    world.run_pod("provision", &made.volumes).await?;
    let tree = made.volumes.root.join("workspace/app");
    let (mut ours, mut rival, mut trusting) =
        (Times::default(), Times::default(), Times::default());
    for _ in 0..world.rounds(5) {
        ours.push(collect(world, &made).await?);
        world.git(&tree, &["read-tree", "HEAD"]).await?;
        let (took, changes) = world.git(&tree, &["status", "--porcelain"]).await?;
        rival.push(took);
        let (again, _) = world.git(&tree, &["status", "--porcelain"]).await?;
        trusting.push(again);
        if !changes.is_empty() {
            return Err(format!("git sees changes: {changes}").into());
        }
    }
    let ours = ours.median();
    Ok(vec![
        Row::times(
            "drift: 100,000 files, every byte",
            ours,
            rival.median(),
            Some(1.0),
        ),
        Row::times(
            "drift: beside it, git status that trusts its index",
            ours,
            trusting.median(),
            None,
        ),
    ])
}

/// One `collect` over the files of another run: what a run left is recorded once, so each time is a run of its own.
async fn collect(world: &World, made: &Run) -> Done<Duration> {
    let live = &made.live;
    let (resolved, packs) = (live.inputs().to_vec(), live.packs().to_vec());
    let mut run = world
        .dispatch(
            &world.gateway,
            live.spec().clone(),
            resolved,
            packs,
            Role::Pod,
        )
        .await?;
    run.volumes.root.clone_from(&made.volumes.root);
    let start = Instant::now();
    world.run_pod("collect", &run.volumes).await?;
    let took = start.elapsed();
    let outcome = run.live.watch().borrow().outcome.clone();
    let drift = outcome.and_then(|outcome| outcome.inputs.into_iter().next());
    match drift.map(|input| input.drift) {
        Some(Drift::Unchanged) => Ok(took),
        other => Err(format!("collect says {other:?}").into()),
    }
}
