//! Each line of the table "What git and servers really say" that a listing can meet: reason, and how often it is asked.

use std::net::TcpListener;
use std::time::Duration;

use demo_forge::{Certificate, Change, Effect, Fault, Options, Phase, Visibility};
use rstest::rstest;
use sandboxrun::api::{Auth, Failure, Healing, InputName, Reason, RefSelector};

use crate::support::{World, at, branch, connector, input, through, token};

/// A world with `acme/app`, one commit on `main`, that gives up soon.
async fn world() -> World {
    impatient(Duration::from_secs(20)).await
}

/// The same with another patience for a server that is silent.
async fn impatient(stall: Duration) -> World {
    let world = World::tuned(Options::new().bad_certificates(), |settings| {
        settings.times.give_up = Duration::from_millis(300);
        settings.times.stall = stall;
    })
    .await;
    let repo = world.forge.create("acme/app", Visibility::Private).unwrap();
    repo.commit("main", &[Change::file("a", "1")]).unwrap();
    world
}

fn asked(world: &World) -> usize {
    world.forge.requests_of("acme/app", Phase::Listing).len()
}

/// What every failure must be like: it names input and repository, and quotes no secret.
fn check(failure: &Failure, reason: Reason) {
    assert_eq!(failure.reason, reason, "{failure}");
    assert_eq!(failure.input.as_ref().map(InputName::as_str), Some("app"));
    assert!(failure.message.contains("/acme/"), "{failure}");
    assert!(!format!("{failure:?}").contains("canary"), "{failure:?}");
}

#[rstest]
#[case::refused_401(Effect::unauthorized(), Reason::AuthenticationFailed)]
#[case::denied_403(Effect::status(403), Reason::AccessDenied)]
#[case::legal_451(Effect::status(451), Reason::AccessDenied)]
#[case::not_found_404(Effect::status(404), Reason::RepositoryNotFoundOrNoAccess)]
#[case::gone_410(Effect::status(410), Reason::RepositoryGone)]
#[case::server_500(Effect::status(500), Reason::ServerError)]
#[case::server_502(Effect::status(502), Reason::ServerError)]
#[case::server_503(Effect::status(503), Reason::ServerError)]
#[case::server_504(Effect::status(504), Reason::ServerError)]
#[case::another_status_418(Effect::status(418), Reason::FetchFailed)]
#[case::a_page(Effect::login_page(), Reason::NotAGitServer)]
#[case::dropped(Effect::Drop, Reason::ServerError)]
#[case::cut_in_the_middle(Effect::Truncate(20), Reason::ServerError)]
#[case::dropped_in_the_middle(Effect::DropAfter(20), Reason::ServerError)]
#[case::no_pkt_line(Effect::Corrupt(0), Reason::NotAGitServer)]
#[case::silent(Effect::Silence, Reason::TransferStalled)]
#[case::silent_in_the_middle(Effect::StallAfter(20), Reason::TransferStalled)]
#[tokio::test]
async fn what_a_server_says_has_one_reason(
    #[case] effect: Effect,
    #[case] reason: Reason,
    #[values(Phase::Listing, Phase::LsRefs)] phase: Phase,
) {
    let world = if reason == Reason::TransferStalled {
        impatient(Duration::from_millis(300)).await
    } else {
        world().await
    };
    world.forge.fault("acme/app", Fault::new(phase, effect));
    let failure = world.one(branch("main")).await.unwrap_err();
    check(&failure, reason);
    let tries = asked(&world);
    match reason.healing() {
        Healing::Permanent => assert_eq!(tries, 1, "what cannot heal is asked once"),
        Healing::Brief | Healing::Transient => {
            assert!(tries > 1, "what can heal is asked again");
            assert!(failure.message.contains("tried"), "{failure}");
        }
    }
    if reason == Reason::AuthenticationFailed {
        // Exactly two more are those of `retry`; a slow machine may use up the short time of this test before.
        assert!(
            (2..=3).contains(&tries),
            "a refused credential is shown at most twice more: {tries}"
        );
        assert!(failure.message.contains("connector `forge`"), "{failure}");
    }
}

#[rstest]
#[case::refused_401(Effect::unauthorized())]
#[case::not_found_404(Effect::status(404))]
#[case::server_503(Effect::status(503))]
#[case::another_status_418(Effect::status(418))]
#[case::a_page(Effect::login_page())]
#[case::dropped(Effect::Drop)]
#[case::cut_in_the_middle(Effect::Truncate(20))]
#[tokio::test]
async fn what_heals_in_time_is_healed(
    #[case] effect: Effect,
    #[values(Phase::Listing, Phase::LsRefs)] phase: Phase,
) {
    let world = world().await;
    world
        .forge
        .fault("acme/app", Fault::new(phase, effect).first(1));
    let resolved = world.one(branch("main")).await.unwrap();
    assert_eq!(resolved.resolved_ref.unwrap().as_str(), "refs/heads/main");
}

#[tokio::test]
async fn a_private_repository_without_a_credential_says_that_one_is_asked_for() {
    let world = world().await;
    let failure = world
        .resolve(vec![through("public", "app", "acme/app", branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::AuthenticationRequired);
    assert!((2..=3).contains(&asked(&world)), "at most twice more");
}

#[tokio::test]
async fn a_repository_that_is_not_there_is_looked_for_a_moment_longer() {
    let world = world().await;
    let failure = world
        .resolve(vec![input("app", "acme/none", branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::RepositoryNotFoundOrNoAccess);
}

#[tokio::test]
async fn a_ref_that_comes_a_moment_later_is_found() {
    let world = world().await;
    let repo = demo_forge::Repo::open(world.forge.root().join("repos/acme/app.git"));
    let hook = move || repo.branch("late", "refs/heads/main").unwrap();
    let fault = Fault::new(Phase::LsRefs, Effect::before(hook))
        .skip(1)
        .first(1);
    world.forge.fault("acme/app", fault);
    assert!(world.one(branch("late")).await.is_ok());
}

#[rstest]
#[tokio::test]
async fn a_certificate_that_does_not_pass_is_permanent(
    #[values(Certificate::Expired, Certificate::WrongHost, Certificate::SelfSigned)]
    kind: Certificate,
) {
    let mut world = world().await;
    let url = world.forge.url_with(kind, "acme/app").unwrap();
    let origin = url.strip_suffix("/acme/app.git").unwrap().to_owned();
    let port = origin.rsplit_once(':').unwrap().1.to_owned();
    world.allow(&format!("127.0.0.1=127.0.0.0/8:{port}"));
    world
        .manifests
        .add_connector(connector("bad", &origin, Auth::Anonymous));
    let failure = world
        .resolve(vec![at(&url, Some("bad"), branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::TLSVerificationFailed);
    assert_eq!(asked(&world), 0);
}

#[tokio::test]
async fn a_ca_that_nobody_named_does_not_count() {
    let world = world().await;
    let origin = world.forge.origin();
    let mut own = connector("no-ca", &origin, token("read-token"));
    own.ca = None;
    world.manifests.add_connector(own);
    let failure = world
        .resolve(vec![through("no-ca", "app", "acme/app", branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::TLSVerificationFailed);
    assert_eq!(asked(&world), 0);
}

#[tokio::test]
async fn nobody_listening_is_unreachable_and_asked_again() {
    let mut world = world().await;
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    world.allow(&format!("127.0.0.1=127.0.0.0/8:{}", free.port()));
    let url = format!("https://{free}/acme/app.git");
    let failure = world
        .resolve(vec![at(&url, None, branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::HostUnreachable);
    assert!(failure.message.contains("tried"), "{failure}");
}

#[tokio::test]
async fn a_host_without_an_address_is_unreachable() {
    let world = world().await;
    let url = "https://nowhere.invalid/acme/app.git";
    let failure = world
        .resolve(vec![at(url, None, branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::HostUnreachable);
    assert!(failure.message.contains("nowhere.invalid"), "{failure}");
}

#[tokio::test]
async fn a_port_that_does_not_speak_tls_is_no_git_server() {
    let mut world = world().await;
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = plain.accept() {
            use std::io::{Read as _, Write as _};
            let mut hello = [0; 4096];
            if stream.read(&mut hello).unwrap() < 10 {
                return;
            }
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
        }
    });
    world.allow(&format!("127.0.0.1=127.0.0.0/8:{}", address.port()));
    let url = format!("https://{address}/acme/app.git");
    let failure = world
        .resolve(vec![at(&url, None, branch("main"))])
        .await
        .unwrap_err();
    check(&failure, Reason::NotAGitServer);
    // Lets the thread go: less than a hello ends it.
    drop(std::net::TcpStream::connect(address).unwrap());
    server.join().unwrap();
}

#[rstest]
#[tokio::test]
async fn c03_a_redirect_is_not_followed_and_the_message_gives_the_address(
    #[values(301, 302, 307, 308)] status: u16,
    #[values(Phase::Listing, Phase::LsRefs)] phase: Phase,
) {
    let world = world().await;
    let other = World::new().await;
    other.forge.create("acme/app", Visibility::Public).unwrap();
    let secret = other
        .forge
        .url("acme/app")
        .replace("https://", "https://user:canary-in-url@");
    world.forge.fault(
        "acme/app",
        Fault::new(phase, Effect::redirect(status, secret)),
    );
    let failure = world.one(RefSelector::Head).await.unwrap_err();
    check(&failure, Reason::RedirectRefused);
    assert!(
        failure.message.contains(&other.forge.url("acme/app")),
        "{failure}"
    );
    assert!(!failure.message.contains('?'), "{failure}");
    assert_eq!((asked(&world), other.forge.traffic().connections), (1, 0));
}

#[tokio::test]
async fn what_a_server_sends_back_of_our_secret_is_struck_out() {
    let world = world().await;
    let mut echo = Vec::new();
    let words = format!("ERR no luck with {} today", crate::support::READ_TOKEN);
    sandboxrun::inputs::pkt::write(&mut echo, words.as_bytes());
    let answer = Effect::Answer {
        status: 200,
        headers: vec![(
            "content-type".to_owned(),
            "application/x-git-upload-pack-advertisement".to_owned(),
        )],
        body: echo,
    };
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, answer));
    let failure = world.one(branch("main")).await.unwrap_err();
    check(&failure, Reason::FetchFailed);
    assert!(failure.message.contains("no luck with ***"), "{failure}");
}
