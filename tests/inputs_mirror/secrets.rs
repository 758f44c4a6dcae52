//! No secret in any argument, environment, file or text, while git runs and after.

use std::fs;

use demo_forge::{Change, Credential, Effect, Fault, Options, Phase, Token, Visibility};
use rstest::rstest;
use sandboxrun::api::{Auth, Reason};

use crate::support::{READ_TOKEN, World, branch, connector, input, key_ref, through, token};
use crate::world::{files, pack, processes_of, resolve, tuned, until, world};

fn seed(world: &World) {
    let repo = world.forge.create("acme/app", Visibility::Private).unwrap();
    repo.commit("main", &[Change::file("a", "1")]).unwrap();
}

/// Places where the text is seen: command lines, environments, files of the state directory.
fn sightings(world: &World, secret: &str) -> Vec<String> {
    let needle = secret.as_bytes();
    let holds = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        if !entry
            .file_name()
            .to_string_lossy()
            .bytes()
            .all(|b| b.is_ascii_digit())
        {
            continue;
        }
        for file in ["cmdline", "environ"] {
            if fs::read(entry.path().join(file)).is_ok_and(|bytes| holds(&bytes)) {
                seen.push(entry.path().join(file).display().to_string());
            }
        }
    }
    for file in files(world.state_dir()) {
        if fs::read(&file).is_ok_and(|bytes| holds(&bytes)) {
            seen.push(file.display().to_string());
        }
    }
    seen
}

#[tokio::test]
async fn c05_the_token_is_nowhere_to_be_seen_while_git_fetches() {
    let world = world().await;
    seed(&world);
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    // By now the server has the credential, and git waits for objects.
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Fetch, Effect::StallAfter(20)));
    let basic = "Z2l0OmNhbmFyeS1yZWFkLWQ0MWQ4Y2Q5OGY=";
    let fetching = world.inputs.pack(&world.namespace, &input);
    tokio::pin!(fetching);
    let runs = until("git fetches", || {
        world
            .forge
            .requests_of("acme/app", Phase::Fetch)
            .iter()
            .any(|r| r.status == Some(200))
    });
    tokio::select! { _ = &mut fetching => panic!("it ended"), () = runs => {} }
    assert!(
        !processes_of(world.state_dir()).is_empty(),
        "there is something to be searched"
    );
    for secret in [READ_TOKEN, basic] {
        assert_eq!(sightings(&world, secret), Vec::<String>::new());
    }
    let shown = world.forge.requests_of("acme/app", Phase::Fetch);
    let Credential::Basic { password, .. } = &shown[0].credential else {
        panic!("{shown:?}")
    };
    assert_eq!(password, READ_TOKEN.as_bytes(), "git did send it");
}

#[rstest]
#[case::odd_characters("@:/%#\\,canary?&+\"' =")]
#[case::beyond_ascii("canary\u{3ff}\u{3fe}?>")]
#[tokio::test]
async fn c04_git_sends_a_secret_byte_for_byte(#[case] secret: &str) {
    let world = tuned(Options::new().token(Token::read("odd", secret)), |_| {}).await;
    seed(&world);
    world
        .manifests
        .add_secret("odd", secret.as_bytes(), &world.forge.origin());
    world
        .manifests
        .add_connector(connector("odd", &world.forge.origin(), token("odd")));
    let input = through("odd", "app", "acme/app", branch("main"));
    let resolved = world.resolve(vec![input]).await.unwrap();
    world
        .inputs
        .pack(&world.namespace, &resolved[0])
        .await
        .unwrap();
}

#[tokio::test]
async fn c03_git_follows_no_redirect_and_shows_nobody_else_the_credential() {
    let world = tuned(Options::new(), |settings| {
        settings.times.brief = std::time::Duration::ZERO;
    })
    .await;
    seed(&world);
    let trap = demo_forge::Trap::start().unwrap();
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    for phase in [Phase::Listing, Phase::Fetch] {
        let to = trap.url("acme/app");
        world
            .forge
            .fault("acme/app", Fault::new(phase, Effect::redirect(301, to)));
        let failure = world
            .inputs
            .pack(&world.namespace, &input)
            .await
            .unwrap_err();
        assert_eq!(failure.reason, Reason::RedirectRefused, "{failure}");
        world.forge.clear_faults("acme/app");
    }
    assert_eq!(trap.connections(), 0);
}

#[tokio::test]
async fn c01_a_revoked_token_is_not_covered_up_by_what_git_could_find_elsewhere() {
    let world = tuned(Options::new(), |settings| {
        settings.times.brief = std::time::Duration::ZERO;
    })
    .await;
    seed(&world);
    let input = resolve(&world, branch("main"), Some(1)).await.unwrap();
    world.forge.revoke("reader");
    let failure = world
        .inputs
        .pack(&world.namespace, &input)
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::AuthenticationFailed, "{failure}");
    assert!(!failure.message.contains(READ_TOKEN));
}

#[tokio::test]
async fn a_header_cannot_be_used_by_git_and_the_message_says_what_to_write() {
    let world = world().await;
    seed(&world);
    let auth = Auth::Header {
        name: "Authorization".to_owned(),
        prefix: "Bearer ".to_owned(),
        secret: key_ref("read-token"),
    };
    world
        .manifests
        .add_connector(connector("bearer", &world.forge.origin(), auth));
    let input = through("bearer", "app", "acme/app", branch("main"));
    let resolved = world.resolve(vec![input]).await.unwrap();
    let failure = world
        .inputs
        .pack(&world.namespace, &resolved[0])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::ConnectorInvalid, "{failure}");
    assert!(failure.message.contains("auth.token") && failure.message.contains("`bearer`"));
}

#[tokio::test]
async fn a_public_repository_needs_no_credential_and_git_is_given_none() {
    let world = world().await;
    let repo = world.forge.create("acme/app", Visibility::Public).unwrap();
    repo.commit("main", &[Change::file("a", "1")]).unwrap();
    let resolved = world
        .resolve(vec![through("public", "app", "acme/app", branch("main"))])
        .await
        .unwrap();
    world
        .inputs
        .pack(&world.namespace, &resolved[0])
        .await
        .unwrap();
    assert!(
        world
            .forge
            .requests()
            .iter()
            .all(|r| r.credential.secret().is_none())
    );
}

#[tokio::test]
async fn the_helper_of_another_program_is_never_asked() {
    // The program that git is told to ask does not know the question: git has no credential then.
    let world = tuned(Options::new(), |settings| {
        settings.fetch.helper_program = "/bin/false".into();
        settings.times.brief = std::time::Duration::ZERO;
    })
    .await;
    seed(&world);
    let resolved = world
        .resolve(vec![input("app", "acme/app", branch("main"))])
        .await
        .unwrap();
    let failure = world
        .inputs
        .pack(&world.namespace, &resolved[0])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::AuthenticationRequired, "{failure}");
    drop(pack(&world, branch("main"), Some(1)).await);
}
