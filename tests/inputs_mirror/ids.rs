//! What an id is, and how a commit is found on servers that do not give out every id.

use demo_forge::{Change, Effect, Fault, ObjectFormat, Phase, Repo, Visibility};
use rstest::rstest;
use sandboxrun::api::{CommitId, Reason};

use crate::support::{World, branch, commit, named, tag};
use crate::world::{Opened, fails, pack, resolve, world};

fn repo(world: &World) -> Repo {
    world.forge.create("acme/app", Visibility::Private).unwrap()
}

fn grow(repo: &Repo, name: &str, commits: usize) -> Vec<CommitId> {
    let make = |number: usize| {
        let change = Change::file("number", format!("{name} {number}"));
        repo.commit(name, &[change]).unwrap().parse().unwrap()
    };
    (0..commits).map(make).collect()
}

#[tokio::test]
async fn r07_the_id_of_a_tag_is_answered_with_the_commit_to_write() {
    let world = world().await;
    let repo = repo(&world);
    let commits = grow(&repo, "main", 2);
    let tagged = repo.annotated_tag("v1", commits[0].as_str()).unwrap();
    let again = repo.annotated_tag("v2", &tagged).unwrap();
    for id in [&tagged, &again] {
        let failure = pack(&world, commit(id), Some(1)).await.unwrap_err();
        assert_eq!(failure.reason, Reason::NotACommit);
        assert!(failure.message.contains(commits[0].as_str()), "{failure}");
    }
    // What was fetched to know this does not stand in the way of the right answer.
    let lease = pack(&world, commit(commits[0].as_str()), Some(1))
        .await
        .unwrap();
    assert_eq!(Opened::new(&lease, &commits[0]).history().len(), 1);
}

#[tokio::test]
async fn r01_what_leads_to_no_commit_is_said_before_any_pod() {
    let world = world().await;
    let repo = repo(&world);
    let commits = grow(&repo, "main", 1);
    let tree = repo.tree_of(commits[0].as_str()).unwrap();
    let blob = repo.git(&["rev-parse", "main:number"]).unwrap();
    repo.annotated_tag("tree", &tree).unwrap();
    repo.annotated_tag("blob", &blob).unwrap();
    repo.set_ref("refs/tags/light-tree", &tree).unwrap();
    for selector in [
        tag("tree"),
        tag("blob"),
        tag("light-tree"),
        commit(&tree),
        commit(&blob),
    ] {
        assert_eq!(fails(&world, selector, Some(1)).await, Reason::NotACommit);
    }
}

#[tokio::test]
async fn r07_an_id_in_upper_case_is_the_same_commit() {
    let world = world().await;
    let commits = grow(&repo(&world), "main", 1);
    let upper = commits[0].as_str().to_uppercase();
    let resolved = resolve(&world, commit(&upper), Some(1)).await.unwrap();
    assert_eq!(resolved.commit, commits[0]);
}

// R08: by id, then the recorded ref deeper and deeper, then everything; over both protocols.
#[rstest]
#[case::v2(vec![])]
#[case::v2_advertised_only(vec![Effect::RefuseUnadvertised])]
#[case::v0(vec![Effect::OnlyV0])]
#[tokio::test]
async fn r08_a_commit_is_found_wherever_the_server_still_has_it(#[case] effects: Vec<Effect>) {
    let world = world().await;
    let repo = repo(&world);
    let main = grow(&repo, "main", 30);
    let pull = grow(&repo, "refs/pull/7/head", 3);
    for effect in effects {
        world
            .forge
            .fault("acme/app", Fault::new(Phase::Fetch, effect.clone()));
        world
            .forge
            .fault("acme/app", Fault::new(Phase::Listing, effect));
    }
    // The tip of a branch, and of a ref that is no branch.
    for (selector, id) in [
        (commit(main[29].as_str()), &main[29]),
        (named("refs/pull/7/head"), &pull[2]),
        (commit(pull[2].as_str()), &pull[2]),
        (commit(pull[1].as_str()), &pull[1]),
        (commit(main[2].as_str()), &main[2]),
    ] {
        for depth in [Some(1), Some(2), None] {
            let lease = pack(&world, selector.clone(), depth).await.unwrap();
            let opened = Opened::new(&lease, id);
            assert!(opened.surplus().is_empty(), "{selector} {depth:?}");
            if let Some(depth) = depth {
                assert_eq!(opened.history().len(), depth as usize, "{selector}");
            }
        }
    }
}

#[tokio::test]
async fn r08_a_branch_that_moved_on_is_followed_back_to_the_pin() {
    let world = world().await;
    let repo = repo(&world);
    let commits = grow(&repo, "main", 2);
    world.forge.fault(
        "acme/app",
        Fault::new(Phase::Fetch, Effect::RefuseUnadvertised),
    );
    let resolved = resolve(&world, branch("main"), Some(1)).await.unwrap();
    grow(&repo, "main", 40);
    let lease = world
        .inputs
        .pack(&world.namespace, &resolved)
        .await
        .unwrap();
    assert_eq!(Opened::new(&lease, &commits[1]).history().len(), 1);
}

#[tokio::test]
async fn r08_a_commit_that_was_cut_off_by_a_force_push_is_fetched_by_id() {
    let world = world().await;
    let repo = repo(&world);
    let commits = grow(&repo, "main", 2);
    repo.commit_from("main", None, &[Change::file("number", "new")])
        .unwrap();
    let lease = pack(&world, commit(commits[1].as_str()), Some(1))
        .await
        .unwrap();
    assert_eq!(Opened::new(&lease, &commits[1]).history().len(), 1);
}

#[rstest]
#[case::v2(None)]
#[case::advertised_only(Some(Effect::RefuseUnadvertised))]
#[tokio::test]
async fn r08_a_commit_that_nobody_has_is_not_found(#[case] effect: Option<Effect>) {
    let world = world().await;
    let repo = repo(&world);
    grow(&repo, "main", 2);
    if let Some(effect) = effect {
        world
            .forge
            .fault("acme/app", Fault::new(Phase::Fetch, effect));
    }
    let nowhere = commit("1234567890123456789012345678901234567890");
    for depth in [Some(1), None] {
        assert_eq!(
            fails(&world, nowhere.clone(), depth).await,
            Reason::CommitNotFound
        );
    }
}

#[tokio::test]
async fn r10_an_id_of_the_other_format_is_refused_once() {
    let world = world().await;
    let repo = world
        .forge
        .create_as("acme/app", Visibility::Private, ObjectFormat::Sha256)
        .unwrap();
    grow(&repo, "main", 1);
    let short = commit("1234567890123456789012345678901234567890");
    assert_eq!(
        fails(&world, short, Some(1)).await,
        Reason::UnsupportedObjectFormat
    );
    assert_eq!(world.forge.requests_of("acme/app", Phase::Fetch).len(), 0);
}
