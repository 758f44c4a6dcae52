//! Field failures C01 to C11, as far as the host side of a listing shows them.

use std::sync::Mutex;
use std::time::Duration;

use demo_forge::{Change, Credential, Effect, Fault, Options, Phase, Token, Visibility};
use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderValue};
use rstest::rstest;
use sandboxrun::api::{
    Auth, ConnectorType, ConnectorUse, CredentialProofPolicy, PathPattern, Reason,
};
use sandboxrun::inputs::CredentialProof;

use crate::support::{
    READ_TOKEN, World, at, branch, connector, input, key_ref, run, through, token,
};

fn seed(world: &World, name: &str, visibility: Visibility) -> String {
    let repo = world.forge.create(name, visibility).unwrap();
    repo.commit("main", &[Change::file("a", "1")]).unwrap()
}

#[tokio::test]
async fn c01_listing_and_proof_go_out_with_the_connectors_credential_and_ca() {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    world.one(branch("main")).await.unwrap();
    let seen = world.forge.requests();
    assert_eq!(seen.len(), 3, "two of a listing, one of the proof");
    for request in seen {
        let Credential::Basic { user, password } = &request.credential else {
            panic!("{request:?}")
        };
        assert_eq!(
            (&user[..], &password[..]),
            (&b"git"[..], READ_TOKEN.as_bytes())
        );
    }
}

#[rstest]
#[case(ConnectorType::GitHub, "x-access-token")]
#[case(ConnectorType::GitLab, "oauth2")]
#[case(ConnectorType::Bitbucket, "x-token-auth")]
#[case(ConnectorType::Gitea, "git")]
#[case(ConnectorType::AzureRepos, "git")]
#[case(ConnectorType::Git, "git")]
#[tokio::test]
async fn the_user_name_is_the_one_that_the_type_of_server_expects(
    #[case] kind: ConnectorType,
    #[case] user: &str,
) {
    let world = World::with(Options::new().user_name(user)).await;
    seed(&world, "acme/app", Visibility::Private);
    let mut own = connector("typed", &world.forge.origin(), token("read-token"));
    own.kind = kind;
    world.manifests.add_connector(own);
    let resolved = world
        .resolve(vec![through("typed", "app", "acme/app", branch("main"))])
        .await;
    assert!(resolved.is_ok(), "{resolved:?}");
}

#[tokio::test]
async fn the_connectors_own_user_name_wins() {
    let world = World::with(Options::new().user_name("robot")).await;
    seed(&world, "acme/app", Visibility::Private);
    let auth = Auth::Token {
        secret: key_ref("read-token"),
        username: Some("robot".to_owned()),
    };
    world
        .manifests
        .add_connector(connector("named", &world.forge.origin(), auth));
    let resolved = world
        .resolve(vec![through("named", "app", "acme/app", branch("main"))])
        .await;
    assert!(resolved.is_ok(), "{resolved:?}");
}

#[tokio::test]
async fn a_header_of_its_own_goes_out_as_written() {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let auth = Auth::Header {
        name: "Authorization".to_owned(),
        prefix: "Bearer ".to_owned(),
        secret: key_ref("read-token"),
    };
    world
        .manifests
        .add_connector(connector("bearer", &world.forge.origin(), auth));
    let resolved = world
        .resolve(vec![through("bearer", "app", "acme/app", branch("main"))])
        .await;
    assert!(resolved.is_ok(), "{resolved:?}");
    let seen = world.forge.requests();
    assert_eq!(
        seen[0].credential,
        Credential::Bearer(READ_TOKEN.as_bytes().to_vec())
    );
}

#[rstest]
#[case::other_port("https://127.0.0.1:1/acme/app.git")]
#[case::other_host("https://other.example.com/acme/app.git")]
#[case::above_the_prefix("https://127.0.0.1:{port}/other/app.git")]
#[case::part_of_a_segment("https://127.0.0.1:{port}/acme2/app.git")]
#[case::ssh("ssh://git@127.0.0.1/acme/app.git")]
#[tokio::test]
async fn c02_another_server_sees_no_connection(#[case] url: &str) {
    let world = World::new().await;
    let url = url.replace("{port}", &world.forge.addr().port().to_string());
    let origin = format!("{}/acme", world.forge.origin());
    world
        .manifests
        .add_secret("read-token", READ_TOKEN.as_bytes(), &origin);
    world
        .manifests
        .add_connector(connector("below", &origin, token("read-token")));
    let failure = world
        .resolve(vec![at(&url, Some("below"), branch("main"))])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::OriginMismatch, "{failure}");
    assert!(failure.message.contains("connector `below`"), "{failure}");
    assert_eq!(world.forge.traffic().connections, 0);
}

#[rstest]
#[case::newline_last("tok-canary\n", Ok("tok-canary"))]
#[case::crlf_last("tok-canary\r\n", Ok("tok-canary"))]
#[case::odd_characters("@:/%#\\,canary?&+\"' =", Ok("@:/%#\\,canary?&+\"' ="))]
#[case::plus_and_slash_in_base64("canary\u{3ff}\u{3fe}?>", Ok("canary\u{3ff}\u{3fe}?>"))]
#[case::newline_inside("tok\ncanary", Err("control character"))]
#[case::two_newlines_last("tok-canary\n\n", Err("control character"))]
#[case::byte_order_mark("\u{feff}tok-canary", Err("byte order mark"))]
#[case::empty("\n", Err("is empty"))]
#[tokio::test]
async fn c04_a_secret_reaches_the_server_byte_for_byte_or_is_refused(
    #[case] value: &str,
    #[case] want: Result<&str, &str>,
) {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let origin = world.forge.origin();
    if let Ok(sent) = want {
        world.forge.token(Token::read("odd", sent));
    }
    world
        .manifests
        .add_secret("odd-token", value.as_bytes(), &origin);
    world
        .manifests
        .add_connector(connector("odd", &origin, token("odd-token")));
    let resolved = world
        .resolve(vec![through("odd", "app", "acme/app", branch("main"))])
        .await;
    match want {
        Ok(_) => assert!(resolved.is_ok(), "{resolved:?}"),
        Err(rule) => {
            let failure = resolved.unwrap_err();
            assert_eq!(failure.reason, Reason::SecretInvalid);
            for part in ["odd-token", "`value`", "connector `odd`", rule] {
                assert!(failure.message.contains(part), "{failure} lacks {part}");
            }
            assert!(!failure.message.contains("canary"), "{failure}");
            assert_eq!(world.forge.traffic().connections, 0);
        }
    }
}

#[tokio::test]
async fn c07_a_secret_and_a_connector_that_come_later_are_waited_for() {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let origin = world.forge.origin();
    let seen = Mutex::new(Vec::new());
    let resolved = world
        .resolve_as(
            run(
                vec![through("late", "app", "acme/app", branch("main"))],
                CredentialProofPolicy::Warn,
            ),
            &|progress| {
                let reason = progress.waiting_for.reason;
                seen.lock()
                    .unwrap()
                    .push((reason, progress.waiting_for.message));
                // First the Connector comes, and with the next question its Secret.
                if reason == Reason::ConnectorNotFound {
                    let late = connector("late", &origin, token("late-token"));
                    world.manifests.add_connector(late);
                } else {
                    assert_eq!(reason, Reason::SecretNotFound);
                    let value = READ_TOKEN.as_bytes();
                    world.manifests.add_secret("late-token", value, &origin);
                }
            },
        )
        .await;
    assert!(resolved.is_ok(), "{resolved:?}");
    let seen = seen.into_inner().unwrap();
    assert!(
        seen.iter()
            .any(|(_, text)| text.contains("Connector `late`")),
        "{seen:?}"
    );
    assert!(
        seen.iter()
            .any(|(_, text)| text.contains("Secret `late-token`")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn c07_what_does_not_come_ends_the_run_with_its_name() {
    let world = World::tuned(Options::new(), |s| {
        s.times.missing = Duration::from_millis(100);
    })
    .await;
    let failure = world
        .resolve(vec![through("never", "app", "acme/app", branch("main"))])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::ConnectorNotFound);
    assert!(
        failure.message.contains("`never`") && failure.message.contains("team-a"),
        "{failure}"
    );
}

#[rstest]
#[case::reads("forge", CredentialProof::ReadOnly)]
#[case::writes("forge-write", CredentialProof::CanWrite)]
#[case::nobody("public", CredentialProof::NotAsked)]
#[tokio::test]
async fn c09_the_proof_is_what_the_server_says(
    #[case] through_it: &str,
    #[case] want: CredentialProof,
) {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Public);
    let resolved = world
        .resolve(vec![through(through_it, "app", "acme/app", branch("main"))])
        .await
        .unwrap();
    assert_eq!(resolved[0].proof, want);
}

#[rstest]
#[case::a_page(Effect::login_page())]
#[case::not_found(Effect::status(404))]
#[case::a_limit(Effect::rate_limited_403(1))]
#[case::a_fault(Effect::status(500))]
#[case::dropped(Effect::Drop)]
#[tokio::test]
async fn c09_everything_else_is_unknown_and_said_so(#[case] effect: Effect) {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    world
        .forge
        .fault("acme/app", Fault::new(Phase::PushListing, effect));
    assert_eq!(
        world.one(branch("main")).await.unwrap().proof,
        CredentialProof::Unknown
    );
}

#[rstest]
#[case::read_only("forge", None)]
#[case::can_write("forge-write", Some(Reason::CredentialCanWrite))]
#[tokio::test]
async fn c09_enforce_stops_a_credential_that_may_write(
    #[case] through_it: &str,
    #[case] want: Option<Reason>,
) {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let spec = run(
        vec![through(through_it, "app", "acme/app", branch("main"))],
        CredentialProofPolicy::Enforce,
    );
    let resolved = world.resolve_as(spec, &|_| {}).await;
    assert_eq!(resolved.err().map(|failure| failure.reason), want);
}

#[tokio::test]
async fn c09_enforce_stops_on_unknown_and_waits_for_a_server_that_is_down() {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let enforce = || {
        run(
            vec![input("app", "acme/app", branch("main"))],
            CredentialProofPolicy::Enforce,
        )
    };
    world.forge.fault(
        "acme/app",
        Fault::new(Phase::PushListing, Effect::status(503)).first(2),
    );
    let resolved = world.resolve_as(enforce(), &|_| {}).await.unwrap();
    assert_eq!(resolved[0].proof, CredentialProof::ReadOnly);
    world.forge.fault(
        "acme/app",
        Fault::new(Phase::PushListing, Effect::login_page()),
    );
    let failure = world.resolve_as(enforce(), &|_| {}).await.unwrap_err();
    assert_eq!(failure.reason, Reason::CredentialProofUnknown);
}

#[tokio::test]
async fn c09_off_asks_nothing() {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let spec = run(
        vec![input("app", "acme/app", branch("main"))],
        CredentialProofPolicy::Off,
    );
    let resolved = world.resolve_as(spec, &|_| {}).await.unwrap();
    assert_eq!(resolved[0].proof, CredentialProof::NotAsked);
    assert!(
        world
            .forge
            .requests_of("acme/app", Phase::PushListing)
            .is_empty()
    );
}

#[rstest]
#[case::another("https://elsewhere.example.com")]
#[case::not_an_origin("everywhere")]
#[case::none("")]
#[tokio::test]
async fn c11_a_secret_goes_only_where_it_says_itself(#[case] says: &str) {
    let world = World::new().await;
    let origin = world.forge.origin();
    world
        .manifests
        .add_secret("foreign", READ_TOKEN.as_bytes(), says);
    world
        .manifests
        .add_connector(connector("thief", &origin, token("foreign")));
    let failure = world
        .resolve(vec![through("thief", "app", "acme/app", branch("main"))])
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::OriginNotAllowed, "{failure}");
    assert!(failure.message.contains("Secret `foreign`"), "{failure}");
    assert_eq!(world.forge.traffic().connections, 0);
}

#[tokio::test]
async fn uses_and_repositories_bound_what_a_connector_is_good_for() {
    let world = World::new().await;
    seed(&world, "acme/app", Visibility::Private);
    let origin = world.forge.origin();
    let mut narrow = connector("narrow", &origin, token("read-token"));
    narrow.allowed_repositories = vec![PathPattern::new("acme/*")];
    world.manifests.add_connector(narrow);
    let mut lookups = connector("lookups", &origin, token("read-token"));
    lookups.uses = vec![ConnectorUse::Lookups];
    world.manifests.add_connector(lookups);
    let ask =
        |name: &str, path: &str| world.resolve(vec![through(name, "app", path, branch("main"))]);
    assert!(ask("narrow", "acme/app").await.is_ok());
    assert!(ask("narrow", "acme/app.git").await.is_ok());
    let before = world.forge.traffic().connections;
    for (name, path) in [
        ("narrow", "other/app"),
        ("narrow", "acme/app/deeper"),
        ("lookups", "acme/app"),
    ] {
        assert_eq!(
            ask(name, path).await.unwrap_err().reason,
            Reason::UseNotAllowed,
            "{path}"
        );
    }
    assert_eq!(world.forge.traffic().connections, before);
}

#[tokio::test]
async fn a_lookups_failure_has_a_lookups_code() {
    let world = World::new().await;
    let asked = |name: &str| {
        let name = name.parse().unwrap();
        let world = &world;
        async move {
            let used = world
                .inputs
                .credential(&world.namespace, &name, ConnectorUse::Lookups)
                .await;
            used.map(drop).unwrap_err()
        }
    };
    assert_eq!(asked("none").await.reason, Reason::LookupConnectorNotFound);
    world
        .manifests
        .add_secret("mark", "\u{feff}x".as_bytes(), &world.forge.origin());
    world
        .manifests
        .add_connector(connector("mark", &world.forge.origin(), token("mark")));
    assert_eq!(asked("mark").await.reason, Reason::LookupSecretFailed);
}

#[tokio::test]
async fn a_credential_is_not_printed() {
    let world = World::new().await;
    let name = "forge".parse().unwrap();
    let used = world
        .inputs
        .credential(&world.namespace, &name, ConnectorUse::Inputs)
        .await;
    let printed = format!("{used:?} {:?}", used.as_ref().map(|c| c.shown().clone()));
    assert!(!printed.contains("canary"), "{printed}");
}

#[tokio::test]
async fn c01_a_lookups_client_has_the_ca_and_its_header_wins_over_the_callers() {
    let world = World::new().await;
    let name = "forge".parse().unwrap();
    let used = world
        .inputs
        .credential(&world.namespace, &name, ConnectorUse::Lookups)
        .await;
    let client = world
        .inputs
        .client(&used.unwrap(), Duration::from_secs(20))
        .unwrap();
    let mut headers = HeaderMap::new();
    headers.insert(
        "authorization",
        HeaderValue::from_static("Bearer of-the-agent"),
    );
    let url = format!("{}/rest/api/2/issue/X-1", world.forge.origin())
        .parse()
        .unwrap();
    let request = client.request(Method::GET, url, headers).unwrap();
    assert!(
        !format!("{request:?}").contains("canary"),
        "not printed either"
    );
    request.send().await.unwrap();
    let seen = world.forge.requests();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].credential.secret(), Some(READ_TOKEN.as_bytes()));
}

#[rstest]
#[case::other_host("https://localhost:{port}/")]
#[case::other_port("https://127.0.0.1:1/")]
#[case::other_scheme("http://127.0.0.1:{port}/")]
#[case::a_user("https://somebody@127.0.0.1:{port}/")]
#[tokio::test]
async fn c02_a_lookups_client_does_not_leave_its_origin(#[case] url: &str) {
    let world = World::new().await;
    let name = "forge".parse().unwrap();
    let used = world
        .inputs
        .credential(&world.namespace, &name, ConnectorUse::Lookups)
        .await;
    let client = world
        .inputs
        .client(&used.unwrap(), Duration::from_secs(20))
        .unwrap();
    let url = url
        .replace("{port}", &world.forge.addr().port().to_string())
        .parse()
        .unwrap();
    let refused = client
        .request(Method::GET, url, HeaderMap::new())
        .map(drop)
        .unwrap_err();
    assert_eq!(refused.reason, Reason::OriginMismatch);
    assert_eq!(world.forge.traffic().connections, 0);
}
