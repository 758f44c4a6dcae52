//! Each fault as stock git sees it: one test for each line of "What git and servers really say" that a
//! server can cause.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use demo_forge::{
    Certificate, Change, Client, Effect, Fault, Forge, ObjectFormat, Options, Outcome, Phase, Repo,
    Trap, Visibility, noise,
};
use tempfile::TempDir;

const APP: &str = "acme/app";

struct Room {
    forge: Forge,
    repo: Arc<Repo>,
    client: Client,
    dir: TempDir,
}

async fn room() -> Room {
    let forge = Forge::start(Options::new().bad_certificates())
        .await
        .unwrap();
    let repo = forge.create(APP, Visibility::Public).unwrap();
    let noise = noise(80_000);
    repo.commit("main", &[Change::file("noise", noise)])
        .unwrap();
    let client = Client::new(&forge).unwrap();
    Room {
        forge,
        repo: Arc::new(repo),
        client,
        dir: TempDir::new().unwrap(),
    }
}

impl Room {
    async fn clone(&self) -> Outcome {
        let tree = self.dir.path().join("tree");
        if tree.exists() {
            std::fs::remove_dir_all(&tree).unwrap();
        }
        self.client
            .clone_into(&self.forge.url(APP), &tree)
            .await
            .unwrap()
    }

    /// Clones with one fault, which must fail with these words; then without, which must work.
    async fn fails(&self, fault: Fault, words: &str) {
        self.forge.fault(APP, fault.clone());
        let outcome = self.clone().await;
        assert!(!outcome.success(), "{fault:?} did no harm");
        assert!(
            outcome.stderr.contains(words),
            "{fault:?}: {}",
            outcome.stderr
        );
        self.forge.clear_faults(APP);
        let outcome = self.clone().await;
        assert!(outcome.success(), "after {fault:?}: {}", outcome.stderr);
    }
}

#[tokio::test]
async fn statuses_on_the_listing() {
    let room = room().await;
    let on = |effect| Fault::new(Phase::Listing, effect);
    room.fails(on(Effect::unauthorized()), "could not read Username")
        .await;
    for status in [403, 410, 500, 502, 503, 504] {
        let words = format!("The requested URL returned error: {status}");
        room.fails(on(Effect::status(status)), &words).await;
    }
    room.fails(on(Effect::status(404)), "not found").await;
    room.fails(on(Effect::too_many_requests(20)), "error: 429")
        .await;
    room.fails(on(Effect::rate_limited_403(20)), "error: 403")
        .await;
}

#[tokio::test]
async fn statuses_on_the_posts_only() {
    let room = room().await;
    for phase in [Phase::LsRefs, Phase::Fetch] {
        let words = "RPC failed; HTTP 503";
        room.fails(Fault::new(phase, Effect::status(503)), words)
            .await;
        room.fails(
            Fault::new(phase, Effect::too_many_requests(1)),
            "RPC failed; HTTP 429",
        )
        .await;
    }
}

#[tokio::test]
async fn a_limit_shows_its_headers() {
    let room = room().await;
    room.forge.fault(
        APP,
        Fault::new(Phase::Listing, Effect::rate_limited_403(7)).first(1),
    );
    let ca = reqwest::Certificate::from_pem(room.forge.ca_pem().as_bytes()).unwrap();
    let http = reqwest::Client::builder()
        .tls_certs_only([ca])
        .no_proxy()
        .build()
        .unwrap();
    let url = format!("{}/info/refs?service=git-upload-pack", room.forge.url(APP));
    let limited = http.get(&url).send().await.unwrap();
    assert_eq!(limited.status(), 403);
    assert_eq!(limited.headers()["retry-after"], "7");
    assert_eq!(limited.headers()["x-ratelimit-remaining"], "0");
    assert!(limited.text().await.unwrap().contains("rate limit"));
    assert_eq!(http.get(&url).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn c03_a_redirect_and_who_follows_it() {
    let mut room = room().await;
    let trap = Trap::start().unwrap();
    room.client = room.client.config("http.followRedirects", "false");
    let fault = Fault::new(Phase::Listing, Effect::redirect(301, trap.url("acme/app")));
    room.fails(fault.clone(), "error: 301").await;
    assert_eq!(trap.connections(), 0);

    room.client = Client::new(&room.forge).unwrap();
    room.forge.fault(APP, fault);
    assert!(!room.clone().await.success());
    assert!(
        trap.connections() > 0,
        "stock git follows, so the redirect is a real one"
    );

    room.forge.clear_faults(APP);
    let other = room.forge.create("acme/new", Visibility::Public).unwrap();
    other.commit("main", &[Change::file("a", "a")]).unwrap();
    let there = Effect::redirect(302, room.forge.url("acme/new"));
    room.forge.fault(APP, Fault::new(Phase::Listing, there));
    assert!(room.clone().await.success());
    assert_eq!(room.forge.fetches("acme/new"), 1);
}

#[tokio::test]
async fn t01_a_login_page_with_status_200() {
    let room = room().await;
    room.forge
        .fault(APP, Fault::new(Phase::Listing, Effect::login_page()));
    let url = room.forge.url(APP);
    let listed = room
        .client
        .git(Path::new("/"), &["ls-remote", &url])
        .await
        .unwrap();
    // That git itself takes it for an error or for nothing depends on its version; a listing it is not.
    assert_eq!(listed.stdout, "");
    assert_eq!(room.forge.requests().last().unwrap().status, Some(200));
}

async fn silent(phase: Phase) {
    let mut room = room().await;
    room.client = room
        .client
        .config("http.lowSpeedLimit", "1")
        .config("http.lowSpeedTime", "1");
    room.fails(Fault::new(phase, Effect::StallAfter(1024)), "too slow")
        .await;
    room.fails(Fault::new(phase, Effect::Silence), "too slow")
        .await;
}

#[tokio::test]
async fn t03_a_server_that_goes_silent_in_the_listing() {
    silent(Phase::Listing).await;
}

#[tokio::test]
async fn t03_a_server_that_goes_silent_in_ls_refs() {
    silent(Phase::LsRefs).await;
}

#[tokio::test]
async fn t03_a_server_that_goes_silent_in_the_fetch() {
    silent(Phase::Fetch).await;
}

#[tokio::test]
async fn t03_without_limits_git_waits_for_ever() {
    let mut room = room().await;
    room.client = room.client.deadline(Duration::from_secs(2));
    room.forge
        .fault(APP, Fault::new(Phase::Fetch, Effect::StallAfter(1024)));
    let outcome = room.clone().await;
    assert!(outcome.status.is_none(), "{outcome:?}");
    assert_eq!(room.forge.requests().last().unwrap().bytes_sent, 1024);
}

#[tokio::test]
async fn connections_that_are_dropped() {
    let room = room().await;
    room.fails(Fault::new(Phase::Listing, Effect::Drop), "unable to access")
        .await;
    room.fails(Fault::new(Phase::Fetch, Effect::Drop), "RPC failed")
        .await;
    room.fails(
        Fault::new(Phase::Fetch, Effect::DropAfter(1024)),
        "RPC failed",
    )
    .await;
}

#[tokio::test]
async fn packs_that_are_cut_or_changed() {
    let room = room().await;
    room.fails(Fault::new(Phase::Fetch, Effect::Truncate(5000)), "fatal")
        .await;
    room.fails(Fault::new(Phase::Fetch, Effect::Corrupt(5000)), "fatal")
        .await;
}

#[tokio::test]
async fn a_fault_heals_after_its_first_requests() {
    let room = room().await;
    room.forge
        .fault(APP, Fault::new(Phase::Fetch, Effect::status(503)).first(2));
    for expected in [false, false, true] {
        assert_eq!(room.clone().await.success(), expected);
    }
    assert_eq!(room.forge.fetches(APP), 1);
}

#[tokio::test]
async fn bad_certificates() {
    let room = room().await;
    let kinds = [
        (Certificate::SelfSigned, "certificate"),
        (Certificate::WrongHost, "does not match"),
        (Certificate::Expired, "certificate"),
    ];
    for (kind, words) in kinds {
        let url = room.forge.url_with(kind, APP).unwrap();
        let listed = room
            .client
            .git(Path::new("/"), &["ls-remote", &url])
            .await
            .unwrap();
        assert!(!listed.success(), "{kind:?}");
        assert!(listed.stderr.contains(words), "{kind:?}: {}", listed.stderr);
    }
    assert!(
        room.forge.requests().is_empty(),
        "nobody got past the handshake"
    );
}

#[tokio::test]
async fn an_empty_repository_and_a_missing_ref() {
    let room = room().await;
    room.forge.create("acme/empty", Visibility::Public).unwrap();
    let url = room.forge.url("acme/empty");
    let listed = room
        .client
        .git(Path::new("/"), &["ls-remote", &url])
        .await
        .unwrap();
    assert!(listed.success());
    assert_eq!(listed.stdout, "");

    let tree = room.dir.path().join("tree");
    assert!(room.clone().await.success());
    let fetched = room
        .client
        .git(&tree, &["fetch", "-q", "origin", "none"])
        .await
        .unwrap();
    assert!(
        fetched.stderr.contains("couldn't find remote ref none"),
        "{}",
        fetched.stderr
    );
}

#[tokio::test]
async fn r08_ids_that_are_not_advertised() {
    let room = room().await;
    let hidden = room
        .repo
        .commit("refs/pull/7/head", &[Change::file("a", "a")])
        .unwrap();
    room.repo.delete_ref("refs/pull/7/head").unwrap();
    assert!(room.clone().await.success());
    let tree = room.dir.path().join("tree");
    let fetch = ["fetch", "-q", "origin", hidden.as_str()];
    let ask = async |client: &Client| client.git(&tree, &fetch).await.unwrap();

    room.forge.fault(APP, Fault::everywhere(Effect::OnlyV0));
    let refused = ask(&room.client).await;
    assert!(
        refused.stderr.contains("unadvertised object"),
        "{}",
        refused.stderr
    );
    room.forge.clear_faults(APP);

    room.forge
        .fault(APP, Fault::new(Phase::Fetch, Effect::RefuseUnadvertised));
    let refused = ask(&room.client).await;
    assert!(refused.stderr.contains("not our ref"), "{}", refused.stderr);
    let main = ["fetch", "-q", "origin", "main"];
    assert!(room.client.git(&tree, &main).await.unwrap().success());
    room.forge.clear_faults(APP);

    room.forge.fault(APP, Fault::everywhere(Effect::OnlyV0));
    let allow = (
        "uploadpack.allowAnySHA1InWant".to_owned(),
        "true".to_owned(),
    );
    room.forge
        .fault(APP, Fault::everywhere(Effect::Config(allow.0, allow.1)));
    let fetched = ask(&room.client).await;
    assert!(fetched.success(), "{}", fetched.stderr);
    room.forge.clear_faults(APP);
    // v2 serves any object that is there.
    let fresh = room.dir.path().join("fresh");
    let init = ["init", "-q", fresh.to_str().unwrap()];
    assert!(
        room.client
            .git(Path::new("/"), &init)
            .await
            .unwrap()
            .success()
    );
    let url = room.forge.url(APP);
    let fetched = room
        .client
        .git(&fresh, &["fetch", "-q", &url, &hidden])
        .await
        .unwrap();
    assert!(fetched.success(), "{}", fetched.stderr);
    let none = "1".repeat(40);
    let refused = room
        .client
        .git(&fresh, &["fetch", "-q", &url, &none])
        .await
        .unwrap();
    assert!(refused.stderr.contains("not our ref"), "{}", refused.stderr);
}

#[tokio::test]
async fn r10_another_object_format_is_claimed() {
    let room = room().await;
    assert!(room.clone().await.success());
    let tree = room.dir.path().join("tree");
    let claim = Effect::ObjectFormat("sha256".to_owned());
    room.forge.fault(APP, Fault::new(Phase::Listing, claim));
    let fetched = room
        .client
        .git(&tree, &["fetch", "-q", "origin"])
        .await
        .unwrap();
    assert!(
        !fetched.success(),
        "git believes the claim and asks for what the server has not"
    );

    // The same by a repository that really has it, in each protocol.
    let other = room
        .forge
        .create_as("acme/new", Visibility::Public, ObjectFormat::Sha256)
        .unwrap();
    other.commit("main", &[Change::file("a", "a")]).unwrap();
    let url = room.forge.url("acme/new");
    let said = [
        ("0", "does not support this repository's object format"),
        ("2", "mismatched algorithms"),
    ];
    for (version, words) in said {
        let client = room.client.clone().config("protocol.version", version);
        let fetched = client.git(&tree, &["fetch", "-q", &url]).await.unwrap();
        assert!(
            fetched.stderr.contains(words),
            "v{version}: {}",
            fetched.stderr
        );
    }
}

#[tokio::test]
async fn r09_a_branch_moves_between_listing_and_fetch() {
    let room = room().await;
    let pinned = room.repo.find("refs/heads/main").unwrap();
    let repo = Arc::clone(&room.repo);
    let force = move || {
        repo.commit_from("main", None, &[Change::file("other", "other")])
            .unwrap();
    };
    room.forge.fault(
        APP,
        Fault::new(Phase::LsRefs, Effect::after(force)).first(1),
    );
    assert!(room.clone().await.success());
    let tree = room.dir.path().join("tree");
    let head = room
        .client
        .git(&tree, &["rev-parse", "HEAD"])
        .await
        .unwrap();
    assert_eq!(
        head.stdout, pinned,
        "the client saw the listing from before"
    );
    assert_ne!(room.repo.find("refs/heads/main"), Some(pinned));
}

#[tokio::test]
async fn a_delay_and_a_hook_before_git_is_asked() {
    let room = room().await;
    let repo = Arc::clone(&room.repo);
    let tip = room.repo.find("refs/heads/main").unwrap();
    let hook = Effect::before(move || repo.branch("late", &tip).unwrap());
    room.forge.fault(APP, Fault::new(Phase::LsRefs, hook));
    room.forge.fault(
        APP,
        Fault::new(Phase::LsRefs, Effect::Delay(Duration::from_millis(20))),
    );
    let url = room.forge.url(APP);
    let listed = room
        .client
        .git(Path::new("/"), &["ls-remote", &url])
        .await
        .unwrap();
    assert!(
        listed.stdout.contains("refs/heads/late"),
        "{}",
        listed.stdout
    );
}

/// The processes that have this text in their environment.
fn processes_with(text: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let environments = processes.filter_map(|p| std::fs::read(p.path().join("environ")).ok());
    environments
        .filter(|env| env.windows(text.len()).any(|w| w == text.as_bytes()))
        .count()
}

async fn until(condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "never came true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn no_process_outlives_its_client_or_the_forge() {
    let Room {
        forge,
        repo,
        client,
        dir,
    } = room().await;
    let ours = format!("PATH_TRANSLATED={}", repo.git_dir().display());
    // Larger than all buffers on the way, so that the backend cannot end by itself.
    let noise = noise(32_000_000);
    repo.commit("main", &[Change::file("noise", noise)])
        .unwrap();
    forge.fault(APP, Fault::new(Phase::Fetch, Effect::StallAfter(1024)));
    let clone = async |name: &str| {
        client
            .clone_into(&forge.url(APP), &dir.path().join(name))
            .await
            .unwrap()
    };
    tokio::select! {
        outcome = clone("a") => panic!("{outcome:?}"),
        () = until(|| processes_with(&ours) > 0) => {}
    }
    // The client was killed with the select.
    until(|| processes_with(&ours) == 0).await;

    tokio::select! {
        outcome = clone("b") => panic!("{outcome:?}"),
        () = until(|| processes_with(&ours) > 0) => drop(forge),
    }
    until(|| processes_with(&ours) == 0).await;
}
