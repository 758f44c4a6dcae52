//! The words of the git and the ssh that are installed, seen through the mirror: the table of texts holds.

use std::time::Duration;

use demo_forge::{Certificate, Change, Effect, Fault, Hostile, Options, Phase, Visibility};
use rstest::rstest;
use sandboxrun::api::{CommitId, Reason};
use sandboxrun::inputs::{AddressGuard, Credential, Mirror, Remote, SystemNames, Wanted};
use std::sync::Arc;

use crate::support::{World, branch};
use crate::world::{fails, tuned};

async fn seeded(options: Options) -> (World, CommitId) {
    let world = tuned(options, |settings| {
        settings.times.give_up = Duration::ZERO;
        settings.times.brief = Duration::ZERO;
        settings.times.stall = Duration::from_secs(2);
    })
    .await;
    let repo = world.forge.create("acme/app", Visibility::Private).unwrap();
    let id = repo.commit("main", &[Change::file("a", "1")]).unwrap();
    (world, id.parse().unwrap())
}

/// What git alone makes of it: no listing of ours comes before or after.
async fn by_git(world: &World, url: &str, id: CommitId, credential: Credential) -> Reason {
    let settings = world.inputs.settings();
    let guard = AddressGuard::new(settings, Arc::new(SystemNames));
    let mirror = Mirror::new(settings, guard);
    let remote = Remote {
        repository: url.parse().unwrap(),
        credential,
    };
    let wanted = Wanted {
        remote,
        id,
        via: None,
        depth: Some(1),
    };
    let failure = mirror.pack(&wanted).await.unwrap_err();
    eprintln!("{:?}: {failure}", failure.reason);
    assert!(failure.message.contains(url), "{failure}");
    failure.reason
}

async fn credential(world: &World) -> Credential {
    let use_ = sandboxrun::api::ConnectorUse::Inputs;
    world
        .inputs
        .credential(&world.namespace, &"forge".parse().unwrap(), use_)
        .await
        .unwrap()
}

#[rstest]
#[case::unauthorized(Effect::unauthorized(), Reason::AuthenticationFailed)]
#[case::forbidden(Effect::status(403), Reason::AccessDenied)]
#[case::not_found(Effect::status(404), Reason::RepositoryNotFoundOrNoAccess)]
#[case::gone(Effect::status(410), Reason::RepositoryGone)]
#[case::limited(Effect::too_many_requests(20), Reason::RateLimited)]
#[case::internal_error(Effect::status(500), Reason::ServerError)]
#[case::bad_gateway(Effect::status(502), Reason::ServerError)]
#[case::unavailable(Effect::status(503), Reason::ServerError)]
#[case::redirect(
    Effect::redirect(301, "https://127.0.0.1:1/b.git"),
    Reason::RedirectRefused
)]
#[case::silent(Effect::Silence, Reason::TransferStalled)]
#[case::login_page(Effect::login_page(), Reason::NotAGitServer)]
#[tokio::test]
async fn what_git_says_of_a_listing_is_understood(#[case] effect: Effect, #[case] want: Reason) {
    let (world, id) = seeded(Options::new()).await;
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Listing, effect));
    let credential = credential(&world).await;
    assert_eq!(
        by_git(&world, &world.forge.url("acme/app"), id, credential).await,
        want
    );
}

#[tokio::test]
async fn what_git_says_without_a_credential_is_understood() {
    let (world, id) = seeded(Options::new()).await;
    let use_ = sandboxrun::api::ConnectorUse::Inputs;
    let public = world
        .inputs
        .credential(&world.namespace, &"public".parse().unwrap(), use_)
        .await;
    let reason = by_git(&world, &world.forge.url("acme/app"), id, public.unwrap()).await;
    assert_eq!(reason, Reason::AuthenticationRequired);
}

#[rstest]
#[case::expired(Certificate::Expired)]
#[case::wrong_host(Certificate::WrongHost)]
#[case::self_signed(Certificate::SelfSigned)]
#[tokio::test]
async fn what_git_says_of_a_certificate_is_understood(#[case] kind: Certificate) {
    let (world, id) = seeded(Options::new().bad_certificates()).await;
    let url = world.forge.url_with(kind, "acme/app").unwrap();
    let mut settings = world.inputs.settings().clone();
    let port = url.parse::<sandboxrun::api::RepoUrl>().unwrap().port();
    settings
        .address_exceptions
        .push(format!("127.0.0.1=127.0.0.0/8:{port}").parse().unwrap());
    let guard = AddressGuard::new(&settings, Arc::new(SystemNames));
    let mirror = Mirror::new(&settings, guard);
    let credential = Credential::anonymous(&world.namespace);
    let remote = Remote {
        repository: url.parse().unwrap(),
        credential,
    };
    let failure = mirror
        .pack(&Wanted {
            remote,
            id,
            via: None,
            depth: Some(1),
        })
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::TLSVerificationFailed, "{failure}");
}

#[tokio::test]
async fn what_git_says_of_a_closed_port_is_understood() {
    let (world, id) = seeded(Options::new()).await;
    let url = world.forge.url("acme/app");
    let credential = credential(&world).await;
    // The forge goes, its address stays allowed.
    let settings = world.inputs.settings().clone();
    drop(world);
    let guard = AddressGuard::new(&settings, Arc::new(SystemNames));
    let mirror = Mirror::new(&settings, guard);
    let remote = Remote {
        repository: url.parse().unwrap(),
        credential,
    };
    let failure = mirror
        .pack(&Wanted {
            remote,
            id,
            via: None,
            depth: Some(1),
        })
        .await
        .unwrap_err();
    assert_eq!(failure.reason, Reason::HostUnreachable, "{failure}");
}

#[tokio::test]
async fn r10_what_git_says_of_another_object_format_is_understood() {
    let (world, _) = seeded(Options::new()).await;
    let id = "12".repeat(32).parse().unwrap();
    let credential = credential(&world).await;
    let reason = by_git(&world, &world.forge.url("acme/app"), id, credential).await;
    assert_eq!(reason, Reason::UnsupportedObjectFormat);
}

// V05 begins here: git's own check refuses what a checkout would have to refuse.
#[tokio::test]
async fn v05_a_hostile_tree_is_refused_or_passed_on_whole_and_never_half() {
    let (world, _) = seeded(Options::new()).await;
    let repo = world
        .forge
        .create("acme/hostile", Visibility::Private)
        .unwrap();
    for (number, kind) in Hostile::ALL.iter().enumerate() {
        let name = format!("h{number}");
        repo.hostile(&name, *kind, "/tmp/x").unwrap();
        let mut input = crate::support::input("app", "acme/hostile", branch(&name));
        input.depth = Some(1);
        let resolved = world.resolve(vec![input]).await.unwrap();
        match world.inputs.pack(&world.namespace, &resolved[0]).await {
            Ok(_) => eprintln!("{kind:?}: passed on"),
            Err(failure) => {
                eprintln!("{kind:?}: {:?} {failure}", failure.reason);
                // A tree with an empty name stops already the server's own git.
                let refusals = [
                    Reason::UnsafePath,
                    Reason::CheckoutFailed,
                    Reason::FetchFailed,
                ];
                assert!(refusals.contains(&failure.reason), "{kind:?}: {failure}");
            }
        }
    }
}

#[tokio::test]
async fn honest_old_history_is_taken_as_it_is() {
    let (world, _) = seeded(Options::new()).await;
    let repo = world.forge.create("acme/old", Visibility::Private).unwrap();
    let tree = repo.git(&["mktree"]).unwrap();
    let text = format!(
        "tree {tree}\nauthor A U Thor <a@b> 1000000000 +051800\ncommitter nobody <> 1000000000 -0000\n\nold\n"
    );
    let id = repo.object("commit", text.as_bytes()).unwrap();
    repo.set_ref("refs/heads/main", &id).unwrap();
    let input = crate::support::input("app", "acme/old", branch("main"));
    let resolved = world.resolve(vec![input]).await.unwrap();
    world
        .inputs
        .pack(&world.namespace, &resolved[0])
        .await
        .unwrap();
}

#[tokio::test]
async fn an_error_of_the_fetch_names_the_input_and_the_repository() {
    let (world, _) = seeded(Options::new()).await;
    world
        .forge
        .fault("acme/app", Fault::new(Phase::Fetch, Effect::status(503)));
    assert_eq!(
        fails(&world, branch("main"), Some(1)).await,
        Reason::ServerError
    );
}
