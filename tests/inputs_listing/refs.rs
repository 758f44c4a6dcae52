//! Field failures R01 to R10, as far as a listing shows them.

use demo_forge::{Change, Effect, Fault, ObjectFormat, Phase, Repo, Visibility};
use rstest::rstest;
use sandboxrun::api::{CommitId, Reason, RefSelector};

use crate::support::{World, branch, commit, named, tag};

fn app(world: &World) -> Repo {
    world.forge.create("acme/app", Visibility::Private).unwrap()
}

fn file(text: &str) -> [Change; 1] {
    [Change::file("README.md", text)]
}

/// Both protocols that a server may speak must give the same answer.
async fn world(v2: bool) -> World {
    let world = World::new().await;
    if !v2 {
        world
            .forge
            .fault("acme/app", Fault::new(Phase::Listing, Effect::OnlyV0));
    }
    world
}

#[rstest]
#[tokio::test]
async fn r01_tags_are_peeled_to_the_end(#[values(true, false)] v2: bool) {
    let world = world(v2).await;
    let repo = app(&world);
    let id = repo.commit("main", &file("1")).unwrap();
    let inner = repo.annotated_tag("v1", &id).unwrap();
    let outer = repo.annotated_tag("v1-signed", &inner).unwrap();
    repo.tag("light", &id).unwrap();
    for (name, object) in [
        ("v1", Some(&inner)),
        ("v1-signed", Some(&outer)),
        ("light", None),
    ] {
        let resolved = world.one(tag(name)).await.unwrap();
        assert_eq!(resolved.commit.as_str(), id);
        assert_eq!(
            resolved.tag_object.as_ref().map(CommitId::as_str),
            object.map(String::as_str)
        );
        assert_eq!(
            resolved.resolved_ref.unwrap().as_str(),
            format!("refs/tags/{name}")
        );
    }
}

#[rstest]
#[tokio::test]
async fn r02_a_name_never_matches_by_its_end_or_its_beginning(#[values(true, false)] v2: bool) {
    let world = world(v2).await;
    let repo = app(&world);
    repo.commit("feat/a/b", &file("1")).unwrap();
    repo.commit("bb", &file("2")).unwrap();
    let failure = world.one(branch("b")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::RefNotFound);
    assert!(failure.message.contains("refs/heads/b"), "{failure}");
    assert_eq!(failure.input.unwrap().as_str(), "app");
}

#[rstest]
#[tokio::test]
async fn r03_the_field_decides_between_a_branch_and_a_tag_of_one_name(
    #[values(true, false)] v2: bool,
) {
    let world = world(v2).await;
    let repo = app(&world);
    let tagged = repo.commit("main", &file("1")).unwrap();
    repo.tag("v1", &tagged).unwrap();
    let branched = repo.commit("v1", &file("2")).unwrap();
    let by_tag = world.one(tag("v1")).await.unwrap();
    let by_branch = world.one(branch("v1")).await.unwrap();
    assert_eq!(
        (by_tag.commit.as_str(), by_branch.commit.as_str()),
        (&*tagged, &*branched)
    );
    assert_eq!(by_tag.resolved_ref.unwrap().as_str(), "refs/tags/v1");
    assert_eq!(by_branch.resolved_ref.unwrap().as_str(), "refs/heads/v1");
}

#[tokio::test]
async fn r04_full_names_work_as_written_and_are_no_version_ranges() {
    let world = World::new().await;
    let repo = app(&world);
    let pull = repo.commit("refs/pull/7/head", &file("7")).unwrap();
    let old = repo.commit("main", &file("1")).unwrap();
    repo.tag("2024-09-22-test", &old).unwrap();
    repo.tag("1.0.0", &old).unwrap();
    let new = repo.commit("main", &file("2")).unwrap();
    repo.tag("2024-09-23-test", &new).unwrap();
    repo.tag("1.0.1", &new).unwrap();
    let cases = [
        (tag("2024-09-22-test"), &old),
        (named("refs/tags/1.0.0"), &old),
        (named("refs/pull/7/head"), &pull),
    ];
    for (selector, id) in cases {
        assert_eq!(world.one(selector).await.unwrap().commit.as_str(), id);
    }
}

#[rstest]
#[tokio::test]
async fn r05_without_a_ref_it_is_the_branch_of_the_remote_head(#[values(true, false)] v2: bool) {
    let world = world(v2).await;
    let repo = app(&world);
    let id = repo.commit("trunk", &file("1")).unwrap();
    repo.commit("main-old", &file("2")).unwrap();
    repo.set_head("trunk").unwrap();
    let resolved = world.one(RefSelector::Head).await.unwrap();
    assert_eq!(resolved.commit.as_str(), id);
    assert_eq!(resolved.resolved_ref.unwrap().as_str(), "refs/heads/trunk");
    assert_eq!(resolved.requested, RefSelector::Head);
}

#[tokio::test]
async fn r05_a_commit_alone_asks_for_no_branch() {
    let world = World::new().await;
    let repo = app(&world);
    let id = repo.commit("trunk", &file("1")).unwrap();
    repo.set_head("trunk").unwrap();
    let resolved = world.one(commit(&id)).await.unwrap();
    assert_eq!(
        (resolved.commit.as_str(), resolved.resolved_ref),
        (&*id, None)
    );
    for request in world.forge.requests_of("acme/app", Phase::LsRefs) {
        let asked = String::from_utf8_lossy(&request.body_head).into_owned();
        assert!(!asked.contains("refs/"), "no name is made up: {asked}");
    }
}

#[tokio::test]
async fn a_head_that_is_detached_has_a_commit_and_no_name() {
    let world = World::new().await;
    let repo = app(&world);
    let id = repo.commit("main", &file("1")).unwrap();
    repo.git(&["update-ref", "--no-deref", "HEAD", &id])
        .unwrap();
    repo.commit("main", &file("2")).unwrap();
    let resolved = world.one(RefSelector::Head).await.unwrap();
    assert_eq!(
        (resolved.commit.as_str(), resolved.resolved_ref),
        (&*id, None)
    );
}

#[rstest]
#[tokio::test]
async fn r06_an_empty_repository_is_called_one_and_asked_once(
    #[values(true, false)] v2: bool,
    #[values(RefSelector::Head, branch("main"))] selector: RefSelector,
) {
    let world = world(v2).await;
    app(&world);
    let failure = world.one(selector).await.unwrap_err();
    assert_eq!(failure.reason, Reason::EmptyRepository);
    assert_eq!(world.forge.requests_of("acme/app", Phase::Listing).len(), 1);
}

#[rstest]
#[tokio::test]
async fn a_head_that_leads_nowhere_is_no_empty_repository(#[values(true, false)] v2: bool) {
    let world = world(v2).await;
    app(&world).commit("trunk", &file("1")).unwrap();
    let failure = world.one(RefSelector::Head).await.unwrap_err();
    assert_eq!(failure.reason, Reason::RefNotFound, "{failure}");
    assert_eq!(
        world.one(branch("main")).await.unwrap_err().reason,
        Reason::RefNotFound
    );
}

#[tokio::test]
async fn r07_a_commit_in_upper_case_is_recorded_in_lower_case() {
    let world = World::new().await;
    let id = app(&world).commit("main", &file("1")).unwrap();
    let resolved = world.one(commit(&id.to_ascii_uppercase())).await.unwrap();
    assert_eq!(resolved.commit.as_str(), id);
}

#[rstest]
#[tokio::test]
async fn r10_a_sha256_repository_works(#[values(true, false)] v2: bool) {
    let world = world(v2).await;
    let name = "acme/app";
    let repo = world
        .forge
        .create_as(name, Visibility::Private, ObjectFormat::Sha256)
        .unwrap();
    let id = repo.commit("main", &file("1")).unwrap();
    repo.annotated_tag("v1", &id).unwrap();
    for selector in [branch("main"), tag("v1"), commit(&id)] {
        let resolved = world.one(selector).await.unwrap();
        assert_eq!((resolved.commit.as_str(), id.len()), (&*id, 64));
        assert_eq!(resolved.object_format.as_str(), "sha256");
    }
}

#[rstest]
#[tokio::test]
async fn r10_a_commit_of_another_format_is_permanent_and_asked_once(
    #[values(true, false)] v2: bool,
) {
    let world = world(v2).await;
    app(&world).commit("main", &file("1")).unwrap();
    let failure = world.one(commit(&"ab".repeat(32))).await.unwrap_err();
    assert_eq!(failure.reason, Reason::UnsupportedObjectFormat);
    assert!(
        failure.message.contains("sha1") && failure.message.contains("sha256"),
        "{failure}"
    );
    assert_eq!(world.forge.requests_of("acme/app", Phase::Listing).len(), 1);
}

#[tokio::test]
async fn r10_a_format_that_nobody_knows_is_permanent() {
    let world = World::new().await;
    app(&world).commit("main", &file("1")).unwrap();
    let fault = Fault::new(Phase::Listing, Effect::ObjectFormat("sha3".to_owned()));
    world.forge.fault("acme/app", fault);
    let failure = world.one(branch("main")).await.unwrap_err();
    assert_eq!(failure.reason, Reason::UnsupportedObjectFormat);
    assert!(failure.message.contains("sha3"), "{failure}");
}

#[tokio::test]
async fn refs_with_slashes_and_unicode_are_found() {
    let world = World::new().await;
    let repo = app(&world);
    for name in ["feat/a/b", "grün/ß", "日本", "a@b", "x#y"] {
        let id = repo.commit(name, &file(name)).unwrap();
        assert_eq!(
            world.one(branch(name)).await.unwrap().commit.as_str(),
            id,
            "{name}"
        );
    }
}
