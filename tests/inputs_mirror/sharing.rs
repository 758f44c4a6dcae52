//! Many runs, one fetch; and what may never be shared.

use std::sync::Arc;
use std::time::Duration;

use demo_forge::{Change, Effect, Fault, Options, Phase, Repo, Token, Visibility};
use futures::future::join_all;
use sandboxrun::api::{Failure, Reason};
use sandboxrun::inputs::{Inputs, PackLease, ResolvedInput, Sources};

use crate::support::{READ_TOKEN, World, branch, commit, connector, through, token};
use crate::world::{Opened, pack, processes_of, resolve, tuned, until, world};

fn seed(world: &World, name: &str) -> (Repo, String) {
    let repo = world.forge.create(name, Visibility::Private).unwrap();
    let id = repo.commit("main", &[Change::file("name", name)]).unwrap();
    (repo, id)
}

async fn get(world: &World, input: &ResolvedInput) -> Result<PackLease, Failure> {
    world.inputs.pack(&world.namespace, input).await
}

#[tokio::test]
async fn t06_a_hundred_runs_on_one_commit_cost_one_fetch() {
    let world = world().await;
    seed(&world, "acme/app");
    let resolved = join_all((0..100).map(|_| resolve(&world, branch("main"), Some(1)))).await;
    let resolved: Vec<_> = resolved.into_iter().map(Result::unwrap).collect();
    let leases = join_all(resolved.iter().map(|input| get(&world, input))).await;
    assert!(leases.iter().all(Result::is_ok));
    assert_eq!(world.inputs.mirror().fetches(), 1);
    assert_eq!(world.forge.fetches("acme/app"), 1);
    // And the next process finds the pack where it is.
    let sources = Arc::clone(&world.manifests) as Arc<dyn Sources>;
    let other = Inputs::new(world.inputs.settings().clone(), sources);
    other.pack(&world.namespace, &resolved[0]).await.unwrap();
    assert_eq!(other.mirror().fetches(), 0);
}

#[tokio::test]
async fn t06_two_processes_that_share_a_directory_share_the_fetch() {
    let world = world().await;
    seed(&world, "acme/app");
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    let others: Vec<Inputs> = (0..4)
        .map(|_| {
            let sources = Arc::clone(&world.manifests) as Arc<dyn Sources>;
            Inputs::new(world.inputs.settings().clone(), sources)
        })
        .collect();
    let leases = join_all(
        others
            .iter()
            .map(|inputs| inputs.pack(&world.namespace, &input)),
    )
    .await;
    assert!(leases.iter().all(Result::is_ok));
    assert_eq!(
        others
            .iter()
            .map(|inputs| inputs.mirror().fetches())
            .sum::<u64>(),
        1
    );
}

#[tokio::test]
async fn t06_a_waiter_that_goes_away_stops_nobody_else() {
    let world = world().await;
    seed(&world, "acme/app");
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    let slow = Effect::Delay(Duration::from_millis(700));
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Fetch, slow));
    let leaves = tokio::time::timeout(Duration::from_millis(300), get(&world, &input));
    let (left, stayed) = tokio::join!(leaves, get(&world, &input));
    assert!(left.is_err());
    stayed.unwrap();
    assert_eq!(world.inputs.mirror().fetches(), 1);
}

#[tokio::test]
async fn when_the_last_waiter_goes_git_goes() {
    let world = world().await;
    seed(&world, "acme/app");
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Fetch, Effect::Silence));
    {
        let waiting = get(&world, &input);
        tokio::pin!(waiting);
        let runs = until("git runs", || {
            world.forge.requests_of("acme/app", Phase::Fetch).len() == 1
        });
        tokio::select! { _ = &mut waiting => panic!("it ended"), () = runs => {} }
        assert!(!processes_of(world.state_dir()).is_empty());
    }
    until("git has gone", || {
        processes_of(world.state_dir()).is_empty()
    })
    .await;
    // Nothing that it left is in the way.
    world.forge.clear_faults("acme/app");
    get(&world, &input).await.unwrap();
}

#[tokio::test]
async fn two_inputs_of_one_repository_and_two_depths_do_not_disturb_each_other() {
    let world = world().await;
    let (repo, first) = seed(&world, "acme/app");
    let second = repo.commit("main", &[Change::file("name", "2")]).unwrap();
    let asked = [
        (branch("main"), Some(1)),
        (branch("main"), None),
        (branch("main"), Some(2)),
        (commit(&first), Some(1)),
        (commit(&first), None),
    ];
    let packs = join_all(
        asked
            .iter()
            .map(|(what, depth)| pack(&world, what.clone(), *depth)),
    )
    .await;
    let histories: Vec<usize> = packs
        .iter()
        .zip([&second, &second, &second, &first, &first])
        .map(|(lease, id)| {
            Opened::new(lease.as_ref().unwrap(), &id.parse().unwrap())
                .history()
                .len()
        })
        .collect();
    assert_eq!(histories, [1, 2, 2, 1, 1]);
}

#[tokio::test]
async fn t09_what_one_tenant_fetched_is_not_there_for_another() {
    let other_token = "canary-other-77";
    let other = Token::read("other", other_token).only(["acme/b"]);
    let world = tuned(Options::new().token(other), |_| {}).await;
    let (a, _) = seed(&world, "acme/a");
    let (_, _) = seed(&world, "acme/b");
    let secret = a.commit("secret", &[Change::file("secret", "s")]).unwrap();
    let of_a = world
        .resolve(vec![through("forge", "app", "acme/a", commit(&secret))])
        .await;
    get(&world, &of_a.unwrap()[0]).await.unwrap();
    world
        .manifests
        .add_secret("other", other_token.as_bytes(), &world.forge.origin());
    world
        .manifests
        .add_connector(connector("other", &world.forge.origin(), token("other")));
    // By id from a repository that it may read, and from the one that it may not.
    for (path, want) in [
        ("acme/b", Reason::CommitNotFound),
        ("acme/a", Reason::RepositoryNotFoundOrNoAccess),
    ] {
        let input = through("other", "app", path, commit(&secret));
        let failure = match world.resolve(vec![input]).await {
            Ok(resolved) => get(&world, &resolved[0]).await.unwrap_err(),
            Err(failure) => failure,
        };
        assert_eq!(failure.reason, want, "{path}: {failure}");
    }
}

#[tokio::test]
async fn t09_the_same_connector_name_in_two_namespaces_is_two_tenants() {
    let world = world().await;
    let (_, _) = seed(&world, "acme/app");
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    get(&world, &input).await.unwrap();
    world.forge.revoke("reader");
    world.forge.clear_requests();
    let failure = world
        .inputs
        .pack(&"team-b".parse().unwrap(), &input)
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::AuthenticationFailed, "{failure}");
    assert!(!world.forge.requests().is_empty(), "the server was asked");
    world.forge.token(Token::read("reader", READ_TOKEN));
}

#[tokio::test]
async fn t09_the_case_of_a_path_tells_two_repositories() {
    let world = world().await;
    let (_, upper) = seed(&world, "acme/Repo");
    let (_, lower) = seed(&world, "acme/repo");
    for (path, id) in [("acme/Repo", upper), ("acme/repo", lower)] {
        let input = through("forge", "app", path, branch("main"));
        let resolved = world.resolve(vec![input]).await.unwrap();
        let lease = get(&world, &resolved[0]).await.unwrap();
        assert_eq!(Opened::new(&lease, &id.parse().unwrap()).file("name"), path);
    }
}
