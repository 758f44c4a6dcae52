//! What a forge serves when nothing is wrong with it, seen with stock git.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use demo_forge::{
    Change, Client, Credential, Forge, ObjectFormat, Options, Phase, Repo, Token, Visibility, noise,
};
use tempfile::TempDir;

const READ: &str = "read-token";
const WRITE: &str = "write-token";

async fn forge() -> (Forge, Repo, TempDir) {
    let options = Options::new()
        .token(Token::read("reader", READ))
        .token(Token::write("writer", WRITE));
    let forge = Forge::start(options).await.unwrap();
    let repo = forge.create("acme/app", Visibility::Private).unwrap();
    repo.commit("main", &[Change::file("README.md", "hello\n")])
        .unwrap();
    (forge, repo, TempDir::new().unwrap())
}

#[tokio::test]
async fn a_private_repository_is_cloned_with_a_token_only() {
    let (forge, repo, dir) = forge().await;
    let stranger = Client::new(&forge).unwrap();
    let url = forge.url("acme/app");
    let refused = stranger
        .clone_into(&url, &dir.path().join("a"))
        .await
        .unwrap();
    assert!(!refused.success());
    assert!(
        refused.stderr.contains("could not read Username"),
        "{}",
        refused.stderr
    );

    let wrong = stranger.clone().token("x", "nonsense");
    let refused = wrong.clone_into(&url, &dir.path().join("b")).await.unwrap();
    assert!(
        refused.stderr.contains("Authentication failed"),
        "{}",
        refused.stderr
    );

    let reader = stranger.token("x", READ);
    let cloned = reader
        .clone_into(&url, &dir.path().join("c"))
        .await
        .unwrap();
    assert!(cloned.success(), "{}", cloned.stderr);
    let head = reader
        .git(&dir.path().join("c"), &["rev-parse", "HEAD"])
        .await
        .unwrap();
    assert_eq!(Some(head.stdout), repo.find("refs/heads/main"));

    let fetch = forge.requests_of("acme/app", Phase::Fetch).pop().unwrap();
    assert_eq!(fetch.token.as_deref(), Some("reader"));
    assert_eq!(fetch.git_protocol.as_deref(), Some("version=2"));
    let sent = Credential::Basic {
        user: b"x".to_vec(),
        password: READ.into(),
    };
    assert_eq!(fetch.credential, sent);
    assert!(fetch.bytes_sent > 100);
    assert_eq!(forge.fetches("acme/app"), 1);
}

#[tokio::test]
async fn a_reader_may_not_push_and_a_writer_may() {
    let (forge, repo, dir) = forge().await;
    let url = forge.url("acme/app");
    let tree = dir.path().join("tree");
    let writer = Client::new(&forge).unwrap().token("x", WRITE);
    assert!(writer.clone_into(&url, &tree).await.unwrap().success());
    let args = [
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "m",
    ];
    assert!(writer.git(&tree, &args).await.unwrap().success());

    let reader = Client::new(&forge).unwrap().token("x", READ);
    let refused = reader
        .git(&tree, &["push", "-q", "origin", "main"])
        .await
        .unwrap();
    assert!(refused.stderr.contains("403"), "{}", refused.stderr);
    let pushed = writer
        .git(&tree, &["push", "-q", "origin", "main"])
        .await
        .unwrap();
    assert!(pushed.success(), "{}", pushed.stderr);
    let head = writer.git(&tree, &["rev-parse", "HEAD"]).await.unwrap();
    assert_eq!(Some(head.stdout), repo.find("refs/heads/main"));
}

#[tokio::test]
async fn protocols_zero_one_and_two_are_served() {
    let (forge, _repo, dir) = forge().await;
    for (version, listings) in [("0", 0), ("1", 0), ("2", 1)] {
        forge.clear_requests();
        let client = Client::new(&forge)
            .unwrap()
            .token("x", READ)
            .config("protocol.version", version);
        let tree = dir.path().join(version);
        let cloned = client
            .clone_into(&forge.url("acme/app"), &tree)
            .await
            .unwrap();
        assert!(cloned.success(), "{}", cloned.stderr);
        assert_eq!(forge.requests_of("acme/app", Phase::LsRefs).len(), listings);
        assert_eq!(forge.fetches("acme/app"), 1);
    }
}

#[tokio::test]
async fn a_repository_that_a_token_does_not_reach_is_not_there() {
    let (forge, ..) = forge().await;
    forge.token(Token::read("narrow", "narrow-token").only(["acme/other"]));
    let client = Client::new(&forge).unwrap().token("x", "narrow-token");
    let refused = client
        .git(forge.root(), &["ls-remote", &forge.url("acme/app")])
        .await
        .unwrap();
    assert!(refused.stderr.contains("not found"), "{}", refused.stderr);
    assert_eq!(forge.requests().last().unwrap().status, Some(404));
}

#[tokio::test]
async fn a_user_name_can_be_demanded_and_a_bearer_needs_none() {
    let options = Options::new()
        .token(Token::read("reader", READ))
        .user_name("oauth2");
    let forge = Forge::start(options).await.unwrap();
    forge.create("acme/app", Visibility::Private).unwrap();
    let url = forge.url("acme/app");
    let list = ["ls-remote", url.as_str()];
    let client = Client::new(&forge).unwrap();
    for (client, expected) in [
        (client.clone().token("x", READ), false),
        (client.clone().token("oauth2", READ), true),
        (
            client.config("http.extraHeader", &format!("Authorization: Bearer {READ}")),
            true,
        ),
    ] {
        let listed = client.git(forge.root(), &list).await.unwrap();
        assert_eq!(listed.success(), expected, "{}", listed.stderr);
    }
}

#[tokio::test]
async fn a_large_pack_and_a_zipped_request_pass() {
    let (forge, repo, dir) = forge().await;
    for n in 0..60 {
        repo.commit(&format!("b{n}"), &[Change::file("n", format!("{n}\n"))])
            .unwrap();
    }
    let noise = noise(12_000_000);
    repo.commit("main", &[Change::file("noise", noise.clone())])
        .unwrap();
    let client = Client::new(&forge).unwrap().token("x", READ);
    let tree = dir.path().join("tree");
    let cloned = client
        .clone_into(&forge.url("acme/app"), &tree)
        .await
        .unwrap();
    assert!(cloned.success(), "{}", cloned.stderr);
    assert!(std::fs::read(tree.join("noise")).unwrap() == noise);
    let fetch = forge.requests_of("acme/app", Phase::Fetch).pop().unwrap();
    let zipped = fetch
        .headers
        .iter()
        .any(|(name, value)| name == "content-encoding" && value == b"gzip");
    assert!(zipped, "60 wants should have been zipped");
    assert!(
        fetch.body_head.starts_with(b"0011command=fetch"),
        "{:?}",
        fetch.body_head
    );
    assert!(forge.traffic().sent > fetch.bytes_sent);
}

#[tokio::test]
async fn a_sha256_repository_and_an_existing_checkout_are_served() {
    let (forge, _, dir) = forge().await;
    let repo = forge
        .create_as("acme/new", Visibility::Public, ObjectFormat::Sha256)
        .unwrap();
    let commit = repo.commit("main", &[Change::file("a", "a")]).unwrap();
    assert_eq!(commit.len(), 64);
    let client = Client::new(&forge).unwrap();
    let tree = dir.path().join("tree");
    let cloned = client
        .clone_into(&forge.url("acme/new"), &tree)
        .await
        .unwrap();
    assert!(cloned.success(), "{}", cloned.stderr);

    forge
        .serve("acme/again", &tree, Visibility::Public)
        .unwrap();
    let listed = client
        .git(dir.path(), &["ls-remote", &forge.url("acme/again"), "HEAD"])
        .await
        .unwrap();
    assert!(
        listed.stdout.starts_with(&format!("{commit}\tHEAD")),
        "{}",
        listed.stdout
    );
}

#[tokio::test]
async fn the_same_calls_give_the_same_ids() {
    let (_forge, repo, _dir) = forge().await;
    let tip = repo.find("refs/heads/main").unwrap();
    assert_eq!(tip, "37a540578bf2e063ed42c9500391ee629523c225");
    let tag = repo.annotated_tag("v1", &tip).unwrap();
    let nested = repo.annotated_tag("v2", &tag).unwrap();
    assert_eq!(repo.git(&["cat-file", "-t", &nested]).unwrap(), "tag");
    assert_eq!(repo.git(&["rev-parse", "v2^{}"]).unwrap(), tip);
    let tree = repo.tree_of(&tip).unwrap();
    let on_tree = repo.annotated_tag("tree", &tree).unwrap();
    assert_ne!(on_tree, tree);
}

#[tokio::test]
async fn a_forge_that_starts_again_in_its_directory_is_still_trusted() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("root");
    let first = Forge::start(Options::new().root(&root)).await.unwrap();
    let repo = first.create("acme/app", Visibility::Public).unwrap();
    repo.commit("main", &[Change::file("a", "a")]).unwrap();
    let client = Client::new(&first).unwrap();
    drop(first);
    let again = Forge::start(Options::new().root(&root)).await.unwrap();
    again.set_visibility("acme/app", Visibility::Public);
    let listed = client
        .git(dir.path(), &["ls-remote", &again.url("acme/app")])
        .await
        .unwrap();
    assert!(listed.success(), "{}", listed.stderr);
}

#[tokio::test]
async fn a_fetch_in_several_requests_is_counted_once() {
    let (forge, _repo, dir) = forge().await;
    for version in ["0", "2"] {
        forge.clear_requests();
        let client = Client::new(&forge)
            .unwrap()
            .token("x", READ)
            .config("protocol.version", version);
        let tree = dir.path().join(version);
        let path = tree.to_str().unwrap();
        let args = ["clone", "-q", "--depth", "1", &forge.url("acme/app"), path];
        assert!(client.git(dir.path(), &args).await.unwrap().success());
        assert_eq!(forge.fetches("acme/app"), 1, "v{version}");
    }
}
