//! Drift, end to end: what an agent did to an input is reported as what it is.

use serde_json::{Value, json};

use super::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_reported_as_what_it_is() {
    let world = World::new().await;
    let names = [
        "app", "commit", "amend", "gone", "file", "symlink", "closed", "unseen", "excluded",
        "removed", "exec",
    ];
    let script = r#"
        git config --global user.name agent; git config --global user.email agent@example.com
        cd /workspace/commit && echo more >> README.md && git commit -qam more
        cd /workspace/amend && git commit -q --amend -m other
        rm -rf /workspace/gone/.git
        mv /workspace/file/.git /tmp/file && echo "gitdir: /tmp/file" > /workspace/file/.git
        mv /workspace/symlink/.git /tmp/symlink && ln -s /tmp/symlink /workspace/symlink/.git
        cd /workspace/closed && echo more >> README.md && chmod 000 README.md src
        cd /workspace/unseen && echo more >> README.md && git update-index --assume-unchanged README.md
        cd /workspace/excluded && echo x > new && echo new >> .git/info/exclude
        rm -rf /workspace/removed
        chmod -x /workspace/exec/run.sh
        git -C /workspace/unseen status --porcelain > /sandbox/output/unseen
        git -C /workspace/excluded status --porcelain > /sandbox/output/excluded
    "#;
    let mut manifest = world.script(script);
    for name in &names[1..] {
        manifest = manifest.input(json!({
            "name": name, "repository": "acme/app", "connector": "forge", "ref": {"branch": "main"},
        }));
    }
    let done = world.run(&manifest).ended_with(0);
    // The plain check saw nothing.
    assert_eq!(done.output("unseen") + &done.output("excluded"), "");
    let of = |name: &str, pointer: &str| -> Value {
        done.input(name)
            .pointer(pointer)
            .cloned()
            .unwrap_or(Value::Null)
    };
    assert_eq!(of("app", "/drift/state"), "Unchanged");
    assert_eq!(of("app", "/head/state"), "Pinned");
    for name in &names[1..] {
        assert_eq!(
            of(name, "/drift/state"),
            "Drifted",
            "{name}: {}",
            done.input(name)
        );
    }
    assert_eq!(of("commit", "/head/state"), "Moved");
    assert_eq!(of("commit", "/drift/counts/modified"), 1);
    assert_eq!(of("amend", "/head/state"), "Moved");
    assert_eq!(of("amend", "/drift/counts/modified"), 0);
    assert_eq!(of("gone", "/head/gitDir"), "Missing");
    assert_eq!(of("file", "/head/gitDir"), "Replaced");
    assert_eq!(of("symlink", "/head/gitDir"), "Replaced");
    // What the agent made unreadable is its own, so it is read all the same.
    assert_eq!(of("closed", "/drift/counts/modified"), 1);
    assert_eq!(of("closed", "/drift/counts/deleted"), 0);
    assert_eq!(of("unseen", "/drift/paths/0/path"), "README.md");
    assert_eq!(of("excluded", "/drift/counts/added"), 1);
    assert_eq!(of("removed", "/drift/counts/deleted"), 3);
    assert_eq!(of("exec", "/drift/counts/modeChanged"), 1);
    assert_eq!(done.condition("Drifted"), "True");
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_fails_the_run_only_where_the_policy_says_so() {
    let world = World::new().await;
    let fail = world
        .script("echo more >> README.md")
        .set("/policy", json!({"onDrift": "Fail"}));
    world.run(&fail).failed_by(252, "WorkspaceDrifted");
    let unchanged = world
        .script("true")
        .set("/policy", json!({"onDrift": "Fail"}));
    world.run(&unchanged).ended_with(0);
}
