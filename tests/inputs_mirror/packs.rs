//! A pack is exactly a commit and its history to one depth, whatever the mirror held before.

use std::collections::BTreeSet;

use demo_forge::{Change, ObjectFormat, Repo, Visibility};
use rstest::rstest;
use sandboxrun::api::{CommitId, RefSelector};

use crate::support::{World, branch, tag};
use crate::world::{Opened, files, git, pack, world};

/// A line of commits on `main`, each with a file that says its number.
fn line(world: &World, format: ObjectFormat, commits: usize) -> (Repo, Vec<CommitId>) {
    let repo = world
        .forge
        .create_as("acme/app", Visibility::Private, format)
        .unwrap();
    let commits = (0..commits)
        .map(|number| {
            let changes = [
                Change::file("number", number.to_string()),
                Change::file(format!("kept/{number}"), "x".repeat(number * 100)),
            ];
            repo.commit("main", &changes).unwrap().parse().unwrap()
        })
        .collect();
    (repo, commits)
}

fn set(ids: &[CommitId]) -> BTreeSet<String> {
    ids.iter().map(ToString::to_string).collect()
}

// R10
#[rstest]
#[case::sha1(ObjectFormat::Sha1)]
#[case::sha256(ObjectFormat::Sha256)]
#[tokio::test]
async fn r10_each_depth_gives_exactly_its_history(#[case] format: ObjectFormat) {
    let world = world().await;
    let (_, commits) = line(&world, format, 6);
    let tip = &commits[5];
    // One after the other in one mirror: each fetch finds what the ones before have left.
    for depth in [Some(1), Some(3), Some(2), Some(6), Some(100), None, Some(4)] {
        let lease = pack(&world, branch("main"), depth).await.unwrap();
        let opened = Opened::new(&lease, tip);
        let wanted = usize::try_from(depth.unwrap_or(100)).unwrap().min(6);
        assert_eq!(
            opened.history(),
            set(&commits[6 - wanted..]),
            "depth {depth:?}"
        );
        assert_eq!(opened.surplus(), BTreeSet::new(), "depth {depth:?}");
        let cut = if wanted < 6 {
            set(&commits[6 - wanted..=6 - wanted])
        } else {
            BTreeSet::new()
        };
        assert_eq!(set(&lease.shallow), cut, "depth {depth:?}");
        assert_eq!(opened.file("number"), "5");
        assert_eq!(
            lease.pack_blob.bytes,
            std::fs::metadata(&lease.pack).unwrap().len()
        );
    }
}

#[tokio::test]
async fn a_merge_counts_each_commit_by_its_shortest_way() {
    let world = world().await;
    let (repo, _) = line(&world, ObjectFormat::Sha1, 4);
    repo.git(&["update-ref", "refs/heads/side", "main~2"])
        .unwrap();
    let side = repo.commit("side", &[Change::file("side", "s")]).unwrap();
    let tree = repo.tree_of("main").unwrap();
    let main = repo.git(&["rev-parse", "main"]).unwrap();
    let message = [
        "commit-tree",
        "-m",
        "merge",
        "-p",
        main.trim(),
        "-p",
        &side,
        tree.trim(),
    ];
    let merge = repo.git(&message).unwrap().trim().to_owned();
    repo.set_ref("refs/heads/main", &merge).unwrap();
    for depth in 1..6 {
        let lease = pack(&world, branch("main"), Some(depth)).await.unwrap();
        let opened = Opened::new(&lease, &merge.parse().unwrap());
        // What stock git makes of the same depth.
        let clone = tempfile::tempdir().unwrap();
        git(clone.path(), &["init", "-q", "--bare", "."]);
        let from = repo.git_dir().to_str().unwrap();
        let depth = format!("--depth={depth}");
        git(
            clone.path(),
            &["fetch", "-q", &depth, &format!("file://{from}"), &merge],
        );
        let want = git(clone.path(), &["rev-list", "FETCH_HEAD"]);
        assert_eq!(
            opened.history(),
            want.lines().map(str::to_owned).collect(),
            "{depth}"
        );
        assert_eq!(opened.surplus(), BTreeSet::new(), "{depth}");
    }
}

#[tokio::test]
async fn a_branch_that_moves_on_is_fetched_by_what_is_new() {
    let world = world().await;
    let (repo, _) = line(&world, ObjectFormat::Sha1, 2);
    let noise = Change::file("large", demo_forge::noise(3_000_000));
    repo.commit("main", &[noise]).unwrap();
    drop(pack(&world, branch("main"), Some(1)).await.unwrap());
    let before = world.forge.traffic().sent;
    for number in 0..30 {
        let change = Change::file("number", format!("moved {number}"));
        let commit = repo.commit("main", &[change]).unwrap().parse().unwrap();
        let lease = pack(&world, branch("main"), Some(1)).await.unwrap();
        if number % 10 == 9 {
            let opened = Opened::new(&lease, &commit);
            assert_eq!(opened.history(), set(&[commit]));
            assert_eq!(opened.surplus(), BTreeSet::new());
        }
    }
    let sent = world.forge.traffic().sent - before;
    assert!(sent < 1_000_000, "{sent} bytes for 30 small commits");
    let packs = files(world.state_dir()).into_iter().filter(|file| {
        file.extension().is_some_and(|ext| ext == "pack")
            && file.to_string_lossy().contains(".git/")
    });
    assert!(packs.count() < 25, "the mirror's packs are joined");
}

#[tokio::test]
async fn r01_the_pack_of_a_tag_is_that_of_its_commit() {
    let world = world().await;
    let (repo, commits) = line(&world, ObjectFormat::Sha1, 3);
    let inner = repo.annotated_tag("v1", commits[1].as_str()).unwrap();
    repo.annotated_tag("v1-again", &inner).unwrap();
    for name in ["v1", "v1-again"] {
        let lease = pack(&world, tag(name), Some(1)).await.unwrap();
        let opened = Opened::new(&lease, &commits[1]);
        assert_eq!(opened.history(), set(&commits[1..2]));
    }
}

#[tokio::test]
async fn r09_the_pinned_commit_is_the_one_that_is_packed_though_the_branch_moves() {
    let world = world().await;
    let (repo, commits) = line(&world, ObjectFormat::Sha1, 2);
    let resolved = crate::world::resolve(&world, branch("main"), Some(1))
        .await
        .unwrap();
    let root = repo
        .commit_from("main", None, &[Change::file("number", "forced")])
        .unwrap();
    assert_ne!(root, commits[1].as_str());
    let lease = world
        .inputs
        .pack(&world.namespace, &resolved)
        .await
        .unwrap();
    assert_eq!(resolved.commit, commits[1]);
    assert_eq!(Opened::new(&lease, &commits[1]).file("number"), "1");
}

#[tokio::test]
async fn the_remotes_head_is_packed_too() {
    let world = world().await;
    let (_, commits) = line(&world, ObjectFormat::Sha1, 2);
    let lease = pack(&world, RefSelector::Head, Some(1)).await.unwrap();
    assert_eq!(
        Opened::new(&lease, &commits[1]).history(),
        set(&commits[1..])
    );
}

#[tokio::test]
async fn a_server_that_itself_has_only_a_part_of_the_history_is_served_as_it_is() {
    let world = world().await;
    let full = world
        .forge
        .create("acme/full", Visibility::Private)
        .unwrap();
    let commits: Vec<CommitId> = (0..5)
        .map(|number| {
            let change = Change::file("number", number.to_string());
            full.commit("main", &[change]).unwrap().parse().unwrap()
        })
        .collect();
    let cut = tempfile::tempdir().unwrap();
    let from = format!("file://{}", full.git_dir().display());
    git(
        cut.path(),
        &["clone", "-q", "--bare", "--depth=3", &from, "cut.git"],
    );
    world
        .forge
        .serve("acme/app", &cut.path().join("cut.git"), Visibility::Private)
        .unwrap();
    for depth in [None, Some(2), Some(5)] {
        let lease = pack(&world, branch("main"), depth).await.unwrap();
        let opened = Opened::new(&lease, &commits[4]);
        let wanted = usize::try_from(depth.unwrap_or(9)).unwrap().min(3);
        assert_eq!(opened.history(), set(&commits[5 - wanted..]), "{depth:?}");
    }
}
