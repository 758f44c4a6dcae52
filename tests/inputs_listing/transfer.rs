//! Field failures T01 to T08, as far as a listing shows them; all or nothing; what is shared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use demo_forge::{Change, Effect, Fault, Options, Phase, Visibility};
use futures::future::join_all;
use rstest::rstest;
use sandboxrun::api::{Auth, CredentialProofPolicy, Reason, RefSelector};

use crate::support::{Hosts, World, at, branch, connector, input, run, through, token};

fn seed(world: &World, name: &str) -> String {
    let repo = world.forge.create(name, Visibility::Private).unwrap();
    repo.commit("main", &[Change::file("a", "1")]).unwrap()
}

#[tokio::test]
async fn two_inputs_of_which_one_is_missing_are_none() {
    let world = World::new().await;
    seed(&world, "acme/app");
    let inputs = vec![
        input("app", "acme/app", branch("main")),
        input("lib", "acme/none", branch("main")),
        input("too", "acme/app", RefSelector::Head),
    ];
    let failure = world.resolve(inputs).await.unwrap_err();
    assert_eq!(failure.reason, Reason::RepositoryNotFoundOrNoAccess);
    assert_eq!(failure.input.unwrap().as_str(), "lib");
    assert_eq!(
        std::fs::read_dir(world.state_dir()).unwrap().count(),
        0,
        "nothing is left"
    );
}

#[tokio::test]
async fn inputs_that_are_switched_off_ask_nobody() {
    let world = World::tuned(Options::new(), |settings| settings.enabled = false).await;
    let failure = world.one(branch("main")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::InputsDisabled);
    assert_eq!(world.forge.traffic().connections, 0);
    assert_eq!(world.resolve(Vec::new()).await, Ok(Vec::new()));
}

#[tokio::test]
async fn t01_a_login_page_is_no_empty_repository() {
    let world = World::new().await;
    seed(&world, "acme/app");
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, Effect::login_page()));
    let failure = world.one(RefSelector::Head).await.unwrap_err();
    assert_eq!(failure.reason, Reason::NotAGitServer);
    assert!(failure.message.contains("text/html"), "{failure}");
}

#[rstest]
#[case::as_429(Effect::too_many_requests(1), Phase::Listing)]
#[case::as_403(Effect::rate_limited_403(1), Phase::Listing)]
#[case::as_503_on_the_post(Effect::status(503).header("retry-after", "1"), Phase::LsRefs)]
#[tokio::test]
async fn t02_a_server_that_asks_to_wait_is_left_alone_so_long(
    #[case] effect: Effect,
    #[case] phase: Phase,
) {
    let world = World::new().await;
    let id = seed(&world, "acme/app");
    world
        .forge
        .fault("acme/app", Fault::new(phase, effect).first(1));
    let start = Instant::now();
    // The second input is another repository of the same server: the limit counts for it, too.
    seed(&world, "acme/lib");
    let resolved = world.one(branch("main")).await.unwrap();
    assert_eq!(resolved.commit.as_str(), id);
    assert!(
        start.elapsed() >= Duration::from_secs(1),
        "a lower bound: waits never end early"
    );
    assert_eq!(world.forge.requests_of("acme/app", Phase::Listing).len(), 2);
}

#[tokio::test]
async fn t02_a_limit_counts_for_every_run_with_that_credential() {
    let world = World::new().await;
    seed(&world, "acme/app");
    seed(&world, "acme/lib");
    world.forge.fault(
        "acme/app",
        Fault::new(Phase::Listing, Effect::too_many_requests(600)),
    );
    let failure = world.one(branch("main")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::RateLimited);
    assert!(failure.message.contains("wait 600 s"), "{failure}");
    let other = world
        .resolve(vec![input("lib", "acme/lib", branch("main"))])
        .await
        .unwrap_err();
    assert_eq!(other.reason, Reason::RateLimited);
    assert_eq!(
        world.forge.requests().len(),
        1,
        "longer than we wait: asked once, by one run"
    );
    let write = through("forge-write", "lib", "acme/lib", branch("main"));
    assert!(
        world.resolve(vec![write]).await.is_ok(),
        "another credential has its own limit"
    );
}

#[tokio::test]
async fn t03_a_server_that_goes_silent_ends_the_attempt() {
    let world = World::tuned(Options::new(), |s| {
        s.times.stall = Duration::from_secs(1);
    })
    .await;
    seed(&world, "acme/app");
    let stall = Fault::new(Phase::LsRefs, Effect::StallAfter(30)).first(1);
    world.forge.fault("acme/app", stall);
    assert!(world.one(branch("main")).await.is_ok());
    assert!(world.forge.requests_of("acme/app", Phase::LsRefs).len() > 1);
}

/// Writes 100,000 branches beside `main`, as a server has them that has packed its refs.
fn many_refs(world: &World, name: &str) -> String {
    let id = seed(world, name);
    let mut packed = "# pack-refs with: peeled fully-peeled sorted \n".to_owned();
    for at in 0..100_000 {
        writeln!(packed, "{id} refs/heads/team/{at:06}/topic-{at:06}").unwrap();
    }
    let git_dir = world.forge.root().join("repos").join(format!("{name}.git"));
    std::fs::write(git_dir.join("packed-refs"), packed).unwrap();
    id
}

#[tokio::test]
async fn t05_one_ref_of_100_000_costs_less_than_2_kib() {
    let world = World::new().await;
    let id = many_refs(&world, "acme/app");
    let spec = run(
        vec![input("app", "acme/app", branch("team/050000/topic-050000"))],
        CredentialProofPolicy::Off,
    );
    let before = world.forge.traffic();
    let resolved = world.resolve_as(spec, &|_| {}).await.unwrap();
    let received = world.forge.traffic().sent - before.sent;
    assert_eq!(resolved[0].commit.as_str(), id);
    assert!(received < 2048, "{received} bytes above TLS");
    println!("one ref of 100,000: {received} bytes received above TLS, headers included");
}

#[tokio::test]
async fn t05_a_server_that_cannot_narrow_is_read_as_a_stream() {
    let world = World::new().await;
    let id = many_refs(&world, "acme/app");
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, Effect::OnlyV0));
    let resolved = world.one(branch("team/050000/topic-050000")).await.unwrap();
    assert_eq!(resolved.commit.as_str(), id);
}

#[tokio::test]
async fn t05_a_listing_without_an_end_is_cut() {
    let world = World::tuned(Options::new(), |settings| {
        settings.limits.listing_bytes = 100_000;
    })
    .await;
    many_refs(&world, "acme/app");
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, Effect::OnlyV0));
    let failure = world
        .one(branch("team/050000/topic-050000"))
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::NotAGitServer);
    assert!(
        failure.message.contains("longer than 100000 bytes"),
        "{failure}"
    );
}

#[tokio::test]
async fn t06_a_hundred_runs_at_once_are_one_listing() {
    let world = World::new().await;
    let id = seed(&world, "acme/app");
    let repo = demo_forge::Repo::open(world.forge.root().join("repos/acme/app.git"));
    repo.branch("other", &id).unwrap();
    // As slow as a server on the internet, so that all have asked before the first answer.
    let slow = Effect::Delay(Duration::from_secs(1));
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, slow).first(1));
    let runs = (0..100).map(|at| {
        let selector = if at % 2 == 0 {
            branch("main")
        } else {
            branch("other")
        };
        world.resolve(vec![
            input("one", "acme/app", selector),
            input("two", "acme/app", RefSelector::Head),
        ])
    });
    for resolved in join_all(runs).await {
        let resolved = resolved.unwrap();
        assert_eq!(
            (resolved[0].commit.as_str(), resolved[1].commit.as_str()),
            (&*id, &*id)
        );
    }
    let asked = |phase| world.forge.requests_of("acme/app", phase).len();
    assert_eq!((asked(Phase::Listing), asked(Phase::LsRefs)), (1, 1));
}

#[tokio::test]
async fn t06_two_inputs_of_one_repository_are_one_listing() {
    let world = World::new().await;
    let id = seed(&world, "acme/app");
    let repo = demo_forge::Repo::open(world.forge.root().join("repos/acme/app.git"));
    repo.branch("other", &id).unwrap();
    let inputs = vec![
        input("one", "acme/app", branch("main")),
        input("two", "acme/app", branch("other")),
    ];
    world.resolve(inputs).await.unwrap();
    let asked = |phase| world.forge.requests_of("acme/app", phase).len();
    assert_eq!((asked(Phase::Listing), asked(Phase::LsRefs)), (1, 1));
    assert_eq!(asked(Phase::PushListing), 1, "and one proof");
}

#[tokio::test]
async fn t06_a_waiter_that_is_cancelled_stops_no_other() {
    let world = World::new().await;
    let id = seed(&world, "acme/app");
    let slow = Effect::Delay(Duration::from_millis(500));
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, slow).first(1));
    let first = world.one(branch("main"));
    let (cancelled, kept) = tokio::join!(
        // Polled first, so it is the one that drives the listing; gone before the answer.
        tokio::time::timeout(Duration::from_millis(100), first),
        world.one(branch("main")),
    );
    assert!(cancelled.is_err());
    assert_eq!(kept.unwrap().commit.as_str(), id);
    assert_eq!(world.forge.requests_of("acme/app", Phase::Listing).len(), 1);
}

#[tokio::test]
async fn t06_nobody_gets_an_answer_from_before_he_asked() {
    let world = World::new().await;
    seed(&world, "acme/app");
    let repo = demo_forge::Repo::open(world.forge.root().join("repos/acme/app.git"));
    let pushed = Arc::new(tokio::sync::Notify::new());
    let (tell, git_dir) = (Arc::clone(&pushed), repo.git_dir().to_owned());
    // The server has answered, the answer is on its way; now somebody pushes, and then asks.
    let push = move || {
        let repo = demo_forge::Repo::open(&git_dir);
        repo.commit("main", &[Change::file("a", "2")]).unwrap();
        tell.notify_one();
    };
    world.forge.fault(
        "acme/app",
        Fault::new(Phase::LsRefs, Effect::after(push)).first(1),
    );
    let (old, new) = tokio::join!(world.one(branch("main")), async {
        pushed.notified().await;
        world.one(branch("main")).await
    });
    let now = repo.find("refs/heads/main").unwrap();
    assert_ne!(old.unwrap().commit.as_str(), now);
    assert_eq!(new.unwrap().commit.as_str(), now);
}

#[rstest]
#[case::without_an_exception(&["127.0.0.1"])]
#[case::metadata(&["169.254.169.254"])]
#[case::a_public_and_a_private_one(&["8.8.8.8", "10.0.0.1"])]
#[tokio::test]
async fn t08_a_host_that_leads_to_a_closed_address_is_refused(#[case] addresses: &[&str]) {
    let mut world = World::new().await;
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let hosts = Hosts(BTreeMap::from([("git.example.com", addresses)]));
    world.rename(Arc::new(hosts));
    let url = format!(
        "https://git.example.com:{}/acme/app.git",
        world.forge.addr().port()
    );
    let failure = world
        .resolve(vec![at(&url, None, branch("main"))])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::AddressRefused, "{failure}");
    assert!(failure.message.contains("git.example.com"), "{failure}");
    assert_eq!(world.forge.traffic().connections, 0);
}

#[rstest]
#[case::v4("https://127.0.0.1:{port}/acme/app.git")]
#[case::short("https://127.1:{port}/acme/app.git")]
#[case::number("https://2130706433:{port}/acme/app.git")]
#[case::hex("https://0x7f.1:{port}/acme/app.git")]
#[case::octal("https://0177.0.0.1:{port}/acme/app.git")]
#[case::mapped("https://[::ffff:127.0.0.1]:{port}/acme/app.git")]
#[tokio::test]
async fn t08_a_literal_is_refused_in_every_spelling(#[case] url: &str) {
    let world = World::tuned(Options::new(), |settings| {
        settings.address_exceptions.clear();
    })
    .await;
    let url = url.replace("{port}", &world.forge.addr().port().to_string());
    let failure = world
        .resolve(vec![at(&url, None, branch("main"))])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::AddressRefused, "{failure}");
    assert_eq!(world.forge.traffic().connections, 0);
}

#[tokio::test]
async fn t08_the_checked_address_is_the_one_connected_to() {
    let mut world = World::with(Options::new().host("git.example.com")).await;
    let id = seed(&world, "acme/app");
    let port = world.forge.addr().port();
    let origin = format!("https://git.example.com:{port}");
    world.allow(&format!("git.example.com=127.0.0.1/32:{port}"));
    let hosts = Hosts(BTreeMap::from([(
        "git.example.com",
        vec!["127.0.0.1".parse().unwrap()],
    )]));
    world.rename(Arc::new(hosts));
    world.manifests.add_secret(
        "named-token",
        crate::support::READ_TOKEN.as_bytes(),
        &origin,
    );
    world
        .manifests
        .add_connector(connector("named", &origin, token("named-token")));
    world
        .manifests
        .add_connector(connector("nobody", &origin, Auth::Anonymous));
    let resolved = world
        .resolve(vec![through("named", "app", "acme/app", branch("main"))])
        .await;
    assert_eq!(resolved.unwrap()[0].commit.as_str(), id);
}
