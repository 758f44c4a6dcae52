//! Fail closed: whatever breaks on the way, the agent never starts.

use rstest::rstest;
use serde_json::json;

use super::support::{Done, World, files_below, is_root, kinds};

/// The agent would have left a file, and the record an event.
#[track_caller]
fn assert_never_started(world: &World, done: &Done) {
    assert!(!kinds(&world.events()).contains(&"agent.started"));
    assert_eq!(done.status["startedAt"], json!(null));
    let started = files_below(&world.state());
    assert!(!started.iter().any(|path| path.ends_with("started")));
}

#[rstest]
#[case::a_pack_with_a_changed_byte(
    "printf '\\377' | dd of=\"$pack\" bs=1 seek=40 conv=notrunc status=none",
    "PackInvalid"
)]
#[case::a_truncated_pack("truncate -s 30 \"$pack\"", "PackInvalid")]
#[case::a_pack_of_something_else(
    "yes | head -c \"$(stat -c %s \"$pack\")\" > \"$pack\"",
    "PackInvalid"
)]
#[case::an_index_with_a_changed_byte(
    "printf '\\377' | dd of=\"$index\" bs=1 seek=1080 conv=notrunc status=none",
    "PackInvalid"
)]
#[case::a_pack_that_is_gone("rm -f \"$pack\"", "PackInvalid")]
#[case::no_room_below_the_workspace("chmod 0555 $state/runs/*/workspace", "CheckoutFailed")]
#[case::killed_at_its_start("kill -KILL $$", "ProvisionKilled")]
#[case::ended_without_a_word("exit 0", "ProvisionKilled")]
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_never_starts_when_provision_meets(#[case] fault: &str, #[case] reason: &str) {
    let world = World::new().await;
    let lines = format!(
        "if [ $what = provision ]; then\n\
         pack=$(find $state/mirror -path '*/packs/*' -name '*pack' -type f)\n\
         index=$(find $state/mirror -path '*/packs/*' -name '*idx' -type f)\n\
         chmod u+w \"$pack\" \"$index\"\n{fault}\nfi"
    );
    let manifest = world.script("touch /sandbox/output/started");
    let done = world
        .finish(&mut world.breaking(&manifest, &lines))
        .failed_by(243, reason);
    assert_never_started(&world, &done);
    // What broke is not trusted by the next run.
    world.run(&manifest).ended_with(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_never_starts_when_provision_is_killed_in_the_middle() {
    let world = World::new().await;
    let lines = "if [ $what = provision ]; then\n\
        /usr/bin/env bwrap-real \"$@\" & pid=$!\n\
        until [ -e $state/runs/*/workspace/app ]; do :; done; kill -KILL $pid; exit 137\nfi"
        .replace(
            "/usr/bin/env bwrap-real",
            &super::support::which("bwrap").display().to_string(),
        );
    let manifest = world.script("touch /sandbox/output/started");
    let done = world
        .finish(&mut world.breaking(&manifest, &lines))
        .failed_by(243, "ProvisionKilled");
    assert_never_started(&world, &done);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_never_starts_when_the_disk_is_full() {
    if !is_root() {
        return; // only root can make a small file system
    }
    let world = World::new().await;
    world
        .app
        .commit(
            "main",
            &[demo_forge::Change::file("big", demo_forge::noise(4 << 20))],
        )
        .unwrap();
    // A small file system where the runs are, in a mount namespace of its own.
    let inner = world.command(&world.script("touch /sandbox/output/started"));
    let runs = world.state().join("runs");
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--mount", "/bin/sh", "-c"])
        .arg(format!(
            "mkdir -p {0} && mount -t tmpfs -o size=2m,mode=0777 none {0} && exec \"$@\"",
            runs.display()
        ))
        .arg("sh")
        .arg(inner.get_program())
        .args(inner.get_args())
        .envs(
            inner
                .get_envs()
                .filter_map(|(key, value)| Some((key, value?))),
        )
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let done = world
        .finish(&mut command)
        .failed_by(243, "NoSpaceForInputs");
    assert_eq!(done.status["error"]["input"], "app");
    assert_never_started(&world, &done);
}

#[rstest]
#[case::killed("kill -KILL $$", 247, "GrantLost")]
#[case::ended_without_a_word("exit 0", 247, "GrantLost")]
#[case::open_to_the_network(
    "words=(); for word; do [ \"$word\" = --unshare-net ] || words+=(\"$word\"); done; set -- \"${words[@]}\"",
    246,
    "CanaryOpen"
)]
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_never_starts_when_its_sandbox_is(
    #[case] fault: &str,
    #[case] code: i32,
    #[case] reason: &str,
) {
    let world = World::new().await;
    let lines = format!("if [ $what = agent ]; then\n{fault}\nfi");
    let manifest = world.script("touch /sandbox/output/started");
    let done = world
        .finish(&mut world.breaking(&manifest, &lines))
        .failed_by(code, reason);
    assert_never_started(&world, &done);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_fetched_where_no_sandbox_can_be_made() {
    let world = World::new().await;
    let manifest = world.script("touch /sandbox/output/started");
    let lines = "if [ $what = probe ]; then echo 'no namespaces here' >&2; exit 1; fi";
    let done = world
        .finish(&mut world.breaking(&manifest, lines))
        .failed_by(246, "SandboxUnavailable");
    assert!(done.message().contains("no namespaces here"));
    assert!(done.message().contains("user namespaces"));
    assert_eq!(world.forge.fetches("acme/app"), 0);
    assert_never_started(&world, &done);
}
