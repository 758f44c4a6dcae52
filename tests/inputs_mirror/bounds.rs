//! What a server or a crash can do to a fetch, and what it may not.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use demo_forge::{Change, Effect, Fault, Options, Phase, Repo, Visibility};
use rstest::rstest;
use sandboxrun::api::{ConnectorType, Reason};
use sandboxrun::inputs::{Inputs, Settings, Sources};

use crate::support::{Hosts, World, at, branch, connector, token};
use crate::world::{Opened, fails, files, pack, processes_of, resolve, tuned, world};

fn seed(world: &World) -> (Repo, String) {
    let repo = world.forge.create("acme/app", Visibility::Private).unwrap();
    let id = repo.commit("main", &[Change::file("a", "1")]).unwrap();
    (repo, id)
}

/// Gives up at the first failure, so that a test sees what one attempt gives.
fn impatient(settings: &mut Settings) {
    settings.times.give_up = Duration::ZERO;
    settings.times.brief = Duration::ZERO;
}

/// A fault of the fetch that comes after the listing.
async fn broken(effect: Effect) -> (World, Reason) {
    let world = tuned(Options::new(), |settings| {
        impatient(settings);
        settings.times.stall = Duration::from_secs(2);
    })
    .await;
    seed(&world);
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Fetch, effect));
    let reason = fails(&world, branch("main"), Some(1)).await;
    (world, reason)
}

#[rstest]
#[case::silence(Effect::Silence)]
#[case::a_little_then_silence(Effect::StallAfter(60))]
#[tokio::test]
async fn t03_a_server_that_goes_silent_ends_the_attempt_and_leaves_no_process(
    #[case] effect: Effect,
) {
    let (world, reason) = broken(effect).await;
    assert_eq!(reason, Reason::TransferStalled);
    assert_eq!(processes_of(world.state_dir()), Vec::<String>::new());
}

#[rstest]
#[case::server_fault(Effect::status(503), Reason::ServerError)]
// For no time: what a server asks for is kept, also by the next run below.
#[case::limit(Effect::too_many_requests(0), Reason::RateLimited)]
#[case::dropped(Effect::Drop, Reason::FetchFailed)]
#[case::cut_short(Effect::DropAfter(100), Reason::FetchFailed)]
#[case::truncated(Effect::Truncate(100), Reason::FetchFailed)]
#[case::one_byte_turned(Effect::Corrupt(120), Reason::FetchFailed)]
#[tokio::test]
async fn t02_a_fault_of_the_fetch_alone_is_told_and_nothing_of_it_is_trusted(
    #[case] effect: Effect,
    #[case] want: Reason,
) {
    let (world, reason) = broken(effect).await;
    assert_eq!(reason, want);
    let served = files(&world.state_dir().join("mirrors"));
    assert!(
        !served.iter().any(|file| file.ends_with("pack")),
        "{served:?}"
    );
    world.forge.clear_faults("acme/app");
    pack(&world, branch("main"), Some(1)).await.unwrap();
}

#[tokio::test]
async fn t02_a_server_that_heals_is_asked_again() {
    let world = world().await;
    seed(&world);
    let fault = Fault::new(Phase::Fetch, Effect::status(503)).first(2);
    world.forge.fault("acme/app", fault);
    pack(&world, branch("main"), Some(1)).await.unwrap();
    assert_eq!(world.inputs.mirror().fetches(), 3);
}

#[tokio::test]
async fn t02_a_server_that_wants_to_be_left_alone_is_left_alone_after_a_fetch_too() {
    let world = world().await;
    seed(&world);
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    world.forge.clear_requests();
    world.forge.fault(
        "acme/app",
        Fault::everywhere(Effect::too_many_requests(3)).first(2),
    );
    let start = std::time::Instant::now();
    world.inputs.pack(&world.namespace, &input).await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "what the server asked for"
    );
    let seen = world.forge.requests();
    let limited = seen
        .iter()
        .filter(|request| request.status == Some(429))
        .count();
    // Whoever is told to wait first, nobody asks before the wait is over.
    assert!(limited <= 2, "{seen:?}");
}

// git itself does not tell how long; its client heard it.
#[tokio::test]
async fn t02_a_limit_on_the_fetch_alone_is_waited_for_as_the_server_asks() {
    let world = world().await;
    seed(&world);
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    let limit = Fault::new(Phase::Fetch, Effect::too_many_requests(3)).first(1);
    world.forge.fault("acme/app", limit);
    world.forge.clear_requests();
    let start = std::time::Instant::now();
    world.inputs.pack(&world.namespace, &input).await.unwrap();
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "what the server asked for"
    );
    let fetches = world.forge.requests_of("acme/app", Phase::Fetch);
    assert_eq!(fetches.len(), 2, "one that was refused, one after the wait");
    let listings = world.forge.requests_of("acme/app", Phase::Listing);
    assert!(
        listings.len() <= 4,
        "nothing was asked in between: {listings:?}"
    );
}

// T07: everything that a killed git or a killed process can leave.
#[tokio::test]
async fn t07_the_next_fetch_works_whatever_was_left() {
    let world = world().await;
    let (repo, _) = seed(&world);
    drop(pack(&world, branch("main"), Some(1)).await.unwrap());
    let mirror = mirror(&world);
    for left in [
        "shallow.lock",
        "packed-refs.lock",
        "config.lock",
        "refs/pins/0.lock",
        "refs/pins/1.lock",
        "objects/pack/tmp_pack_AbCdEf",
        "objects/pack/tmp_idx_AbCdEf",
    ] {
        fs::write(mirror.join(left), "half").unwrap();
    }
    let id = repo.commit("main", &[Change::file("a", "2")]).unwrap();
    let lease = pack(&world, branch("main"), Some(1)).await.unwrap();
    assert_eq!(Opened::new(&lease, &id.parse().unwrap()).file("a"), "2");
}

// T07: a mirror that is damaged in any way is made anew, not believed.
#[rstest]
#[case::config_cut(|mirror: &PathBuf| fs::write(mirror.join("config"), "").unwrap())]
#[case::config_nonsense(|mirror: &PathBuf| fs::write(mirror.join("config"), "[x").unwrap())]
#[case::head_gone(|mirror: &PathBuf| fs::remove_file(mirror.join("HEAD")).unwrap())]
#[case::pin_nonsense(|mirror: &PathBuf| fs::write(mirror.join("refs/pins/0"), "x").unwrap())]
#[case::pin_to_nothing(
    |mirror: &PathBuf| fs::write(mirror.join("refs/pins/0"), format!("{}\n", "12".repeat(20))).unwrap()
)]
#[case::shallow_nonsense(|mirror: &PathBuf| fs::write(mirror.join("shallow"), "x\n").unwrap())]
#[case::shallow_gone(|mirror: &PathBuf| fs::remove_file(mirror.join("shallow")).unwrap())]
#[case::packs_gone(|mirror: &PathBuf| each_pack(mirror, |file| fs::remove_file(file).unwrap()))]
#[case::packs_cut(|mirror: &PathBuf| each_pack(mirror, |file| {
    let bytes = fs::read(file).unwrap();
    fs::remove_file(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}))]
#[case::packs_turned(|mirror: &PathBuf| each_pack(mirror, |file| {
    let mut bytes = fs::read(file).unwrap();
    fs::remove_file(file).unwrap();
    for byte in &mut bytes[12..] { *byte = !*byte; }
    fs::write(file, &bytes).unwrap();
}))]
#[tokio::test]
async fn t07_a_damaged_mirror_is_made_anew(#[case] damage: fn(&PathBuf)) {
    let world = world().await;
    let (repo, _) = seed(&world);
    repo.commit("main", &[Change::file("b", "b".repeat(5000))])
        .unwrap();
    drop(pack(&world, branch("main"), Some(1)).await.unwrap());
    damage(&mirror(&world));
    for content in ["2", "3"] {
        let id = repo.commit("main", &[Change::file("a", content)]).unwrap();
        let lease = pack(&world, branch("main"), Some(1)).await.unwrap();
        let opened = Opened::new(&lease, &id.parse().unwrap());
        assert_eq!(opened.file("a"), content);
        assert!(opened.surplus().is_empty());
    }
}

#[tokio::test]
async fn t07_a_pack_whose_bytes_changed_on_disk_is_made_anew_by_the_next_process() {
    let world = world().await;
    let (_, id) = seed(&world);
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    let lease = world.inputs.pack(&world.namespace, &input).await.unwrap();
    let mut bytes = fs::read(&lease.pack).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(&lease.pack).unwrap();
    fs::write(&lease.pack, &bytes).unwrap();
    drop(lease);
    let sources = Arc::clone(&world.manifests) as Arc<dyn Sources>;
    let next = Inputs::new(world.inputs.settings().clone(), sources);
    let lease = next.pack(&world.namespace, &input).await.unwrap();
    Opened::new(&lease, &id.parse().unwrap());
}

#[tokio::test]
async fn t10_git_connects_to_the_checked_address_and_asks_no_name_again() {
    let mut world = tuned(Options::new().host("git.test"), |_| {}).await;
    seed(&world);
    let port = world.forge.addr().port();
    world.allow(&format!("git.test=127.0.0.0/8:{port}"));
    let hosts = BTreeMap::from([("git.test", vec![world.forge.addr().ip()])]);
    let sources = Arc::clone(&world.manifests) as Arc<dyn Sources>;
    let settings = world.inputs.settings().clone();
    world.inputs = Inputs::over(settings, sources, Arc::new(Hosts(hosts)));
    let origin = format!("https://git.test:{port}");
    world
        .manifests
        .add_secret("named", crate::support::READ_TOKEN.as_bytes(), &origin);
    world
        .manifests
        .add_connector(connector("named", &origin, token("named")));
    // No other resolver knows this name.
    let input = at(
        &format!("{origin}/acme/app.git"),
        Some("named"),
        branch("main"),
    );
    let resolved = world.resolve(vec![input]).await.unwrap();
    world
        .inputs
        .pack(&world.namespace, &resolved[0])
        .await
        .unwrap();
}

#[tokio::test]
async fn t08_a_name_that_leads_elsewhere_by_the_time_of_the_fetch_is_refused() {
    let mut world = tuned(Options::new().host("git.test"), impatient).await;
    seed(&world);
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    for address in ["169.254.169.254", "10.0.0.1", "::1"] {
        let port = world.forge.addr().port();
        let hosts = BTreeMap::from([(
            "git.test",
            vec!["192.0.2.1".parse().unwrap(), address.parse().unwrap()],
        )]);
        let sources = Arc::clone(&world.manifests) as Arc<dyn Sources>;
        let settings = world.inputs.settings().clone();
        world.inputs = Inputs::over(settings, sources, Arc::new(Hosts(hosts)));
        let moved = format!("https://git.test:{port}/acme/app.git")
            .parse()
            .unwrap();
        let input = sandboxrun::inputs::ResolvedInput {
            repository: moved,
            connector: None,
            ..input.clone()
        };
        let failure = world
            .inputs
            .pack(&world.namespace, &input)
            .await
            .unwrap_err();
        assert_eq!(failure.reason, Reason::AddressRefused, "{failure}");
        assert_eq!(world.inputs.mirror().fetches(), 0);
    }
}

#[tokio::test]
async fn t11_a_repository_that_is_larger_than_a_mirror_may_be_ends_alone() {
    let world = tuned(Options::new(), |settings| {
        impatient(settings);
        settings.fetch.mirror_bytes = 1 << 20;
    })
    .await;
    let (repo, small) = seed(&world);
    repo.commit(
        "large",
        &[Change::file("noise", demo_forge::noise(8 << 20))],
    )
    .unwrap();
    assert_eq!(
        fails(&world, branch("large"), Some(1)).await,
        Reason::InputTooLarge
    );
    assert_eq!(processes_of(world.state_dir()), Vec::<String>::new());
    let left: u64 = files(world.state_dir())
        .iter()
        .map(|f| fs::metadata(f).unwrap().len())
        .sum();
    assert!(left < 1 << 20, "{left} bytes are left of it");
    let lease = pack(&world, branch("main"), Some(1)).await.unwrap();
    Opened::new(&lease, &small.parse().unwrap());
}

#[tokio::test]
async fn t11_a_git_that_needs_too_much_memory_ends_alone() {
    let world = tuned(Options::new(), |settings| {
        impatient(settings);
        settings.fetch.memory_bytes = 80 << 20;
    })
    .await;
    let (repo, small) = seed(&world);
    // A commit that is a few kilobytes on the wire, and must be in memory as a whole to be checked.
    let tree = repo.tree_of("main").unwrap();
    let who = "A U Thor <a@example.com> 1700000000 +0000";
    let text = format!(
        "tree {tree}
author {who}
committer {who}

{}",
        "x".repeat(80 << 20)
    );
    let id = repo.object("commit", text.as_bytes()).unwrap();
    repo.set_ref("refs/heads/large", &id).unwrap();
    let reason = fails(&world, branch("large"), Some(1)).await;
    assert_eq!(reason, Reason::InputTooLarge);
    let lease = pack(&world, branch("main"), Some(1)).await.unwrap();
    Opened::new(&lease, &small.parse().unwrap());
}

#[tokio::test]
async fn t11_a_full_volume_is_transient_and_said() {
    let world = tuned(Options::new(), |settings| {
        impatient(settings);
        settings.fetch.keep_free_bytes = u64::MAX;
    })
    .await;
    seed(&world);
    assert_eq!(
        fails(&world, branch("main"), Some(1)).await,
        Reason::HostDiskFull
    );
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_written_is_named() {
    let world = tuned(Options::new(), |settings| {
        impatient(settings);
        settings.state_dir = "/proc/no/such".into();
    })
    .await;
    seed(&world);
    let failure = pack(&world, branch("main"), Some(1)).await.unwrap_err();
    assert_eq!(failure.reason, Reason::StateUnusable);
    assert!(failure.message.contains("/proc/no/such"), "{failure}");
}

#[tokio::test]
async fn the_cache_stays_within_its_bound_and_what_is_in_use_stays() {
    let world = tuned(Options::new(), |settings| {
        settings.fetch.cache_bytes = 3 << 20;
    })
    .await;
    let (repo, _) = seed(&world);
    let mut held = None;
    for number in 0..8_u8 {
        let noise = Change::file("noise", [demo_forge::noise(1 << 20), vec![number]].concat());
        repo.commit(&format!("b{number}"), &[noise]).unwrap();
        let lease = pack(&world, branch(&format!("b{number}")), Some(1))
            .await
            .unwrap();
        held.get_or_insert(lease);
    }
    let held = held.unwrap();
    assert_eq!(
        fs::read(&held.pack).unwrap().len() as u64,
        held.pack_blob.bytes
    );
    let packs = files(&world.state_dir().join("mirrors"));
    let packs = packs
        .iter()
        .filter(|file| file.ends_with("about.json"))
        .count();
    assert!(packs < 8, "{packs} packs are kept");
}

fn mirror(world: &World) -> PathBuf {
    let head = files(&world.state_dir().join("mirrors"))
        .into_iter()
        .find(|file| file.ends_with("shallow-sha1.git/HEAD"));
    head.unwrap().parent().unwrap().to_owned()
}

fn each_pack(mirror: &std::path::Path, change: impl Fn(&PathBuf)) {
    let packs = files(&mirror.join("objects/pack"));
    packs
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "pack"))
        .for_each(change);
}

// C08: Azure Repos sends whoever it does not know to a page where people sign in.
#[rstest]
#[case::of_the_listing(Phase::Listing)]
#[case::of_the_fetch(Phase::Fetch)]
#[tokio::test]
async fn c08_a_page_to_sign_in_is_a_refused_credential(#[case] phase: Phase) {
    let world = tuned(Options::new(), impatient).await;
    seed(&world);
    let mut azure = connector("azure", &world.forge.origin(), token("read-token"));
    azure.kind = ConnectorType::AzureRepos;
    world.manifests.add_connector(azure);
    let page = Effect::redirect(302, "https://sign-in.example.com/_signin?realm=acme");
    world.forge.fault("acme/app", Fault::new(phase, page));
    let url = world.forge.url("acme/app");
    let app = at(&url, Some("azure"), branch("main"));
    let resolved = world.resolve(vec![app]).await;
    let failure = match resolved {
        Ok(inputs) => {
            let pack = world.inputs.pack(&world.namespace, &inputs[0]).await;
            pack.unwrap_err()
        }
        Err(failure) => failure,
    };
    assert_eq!(failure.reason, Reason::AuthenticationFailed, "{failure}");
}
