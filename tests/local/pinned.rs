//! Pinned, all or nothing: refs become commits before anything starts, or nothing starts.

use std::sync::Arc;

use demo_forge::{Change, Effect, Fault, Phase};
use serde_json::json;

use crate::support::{World, kinds};

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_sees_the_pinned_commit_when_the_branch_moves_meanwhile() {
    let world = World::new().await;
    let git_dir = Arc::new(world.app.git_dir().to_owned());
    let moving = Effect::after(move || {
        let repo = demo_forge::Repo::open(git_dir.as_path());
        repo.commit("main", &[Change::file("README.md", "moved\n")])
            .unwrap();
    });
    world
        .forge
        .fault("acme/app", Fault::new(Phase::LsRefs, moving).first(1));
    let done = world
        .run(&world.script(
            "cat README.md > /sandbox/output/saw; git rev-parse HEAD >> /sandbox/output/saw",
        ))
        .ended_with(0);
    assert_eq!(done.output("saw"), format!("second\n{}\n", world.head));
    assert_eq!(done.input("app")["commit"], json!(world.head));
    assert_ne!(world.app.find("refs/heads/main"), Some(world.head.clone()));
    assert_eq!(done.condition("Drifted"), "False");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_missing_input_of_three_starts_nothing_and_leaves_nothing() {
    let world = World::new().await;
    let input = |name, branch| json!({"name": name, "repository": "acme/app", "connector": "forge", "ref": {"branch": branch}});
    let manifest = world
        .script("touch /sandbox/output/started")
        .input(input("second", "nowhere"))
        .input(input("third", "main"));
    let done = world.run(&manifest).failed_by(241, "RefNotFound");
    assert_eq!(done.status["error"]["input"], "second");
    assert!(done.message().contains("nowhere"), "{}", done.message());
    let events = world.events();
    assert_eq!(
        kinds(&events),
        [
            "run.created",
            "attempt.dispatched",
            "attempt.failed",
            "run.ended"
        ]
    );
    assert_eq!(world.runs_left(), Vec::<std::path::PathBuf>::new());
    assert_eq!(world.forge.fetches("acme/app"), 0);
}
