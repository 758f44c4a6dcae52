//! Real git for the agent, and repositories of every kind.

use demo_forge::{Change, ObjectFormat, Phase, Trap, Visibility};
use serde_json::json;

use super::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn stock_git_works_for_the_agent_and_fetches_through_the_relay() {
    let world = World::new().await;
    let feature = world
        .app
        .commit_from(
            "feature/ä",
            Some(&world.head),
            &[Change::file("new", "n\n")],
        )
        .unwrap();
    let script = r"
        exec > /sandbox/output/said 2>&1
        set -x
        git log --oneline | wc -l
        git status --porcelain
        echo more >> README.md; git diff --stat; git status --porcelain
        git fetch -q origin feature/ä && git rev-parse FETCH_HEAD > /sandbox/output/feature
        git fetch -q --unshallow && git log --oneline main | wc -l > /sandbox/output/history
        git fetch -q origin 'refs/heads/*:refs/remotes/origin/*' && git branch -r > /sandbox/output/branches
        git remote get-url origin > /sandbox/output/origin-rewritten; git config remote.origin.url > /sandbox/output/origin
        cat .git/HEAD > /sandbox/output/branch
    ";
    let done = world.run(&world.script(script)).ended_with(0);
    assert_eq!(
        done.output("feature").trim(),
        feature,
        "{}",
        done.output("said")
    );
    assert_eq!(done.output("history").trim(), "2");
    assert!(done.output("branches").contains("origin/feature/ä"));
    assert_eq!(
        done.output("origin").trim(),
        format!("{}/acme/app", world.forge.origin())
    );
    assert_eq!(done.output("branch"), "ref: refs/heads/main\n");
    assert!(
        world
            .forge
            .requests_of("acme/app", Phase::PushListing)
            .len()
            <= 1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn g07_pushes_and_other_repositories_are_refused() {
    let world = World::new().await;
    let other = world
        .forge
        .create("acme/other", Visibility::Public)
        .unwrap();
    other.commit("main", &[Change::file("a", "a")]).unwrap();
    let closed = json!({
        "name": "closed", "repository": "acme/app", "connector": "forge", "ref": {"branch": "main"}, "fetch": "None",
    });
    let script = format!(
        r#"
        exec 2> /sandbox/output/said
        try() {{ if "$@" >/dev/null; then echo "$*: OPEN"; else echo "$*: refused"; fi >> /sandbox/output/tried; }}
        try git push origin HEAD:refs/heads/agent
        try git push http://127.0.0.1:7070/git/app HEAD:refs/heads/agent
        try git fetch {other}
        try git fetch http://127.0.0.1:7070/git/other
        try git fetch http://127.0.0.1:7070/git/app/../other
        try git fetch http://127.0.0.1:7070/git/closed
        try git -C /workspace/closed fetch
        try git ls-remote {other}
        try curl -sSf http://127.0.0.1:7070/git/app/HEAD
        try curl -sSf http://127.0.0.1:7070/git/app/objects/info/packs
        "#,
        other = world.forge.url("acme/other")
    );
    let done = world
        .run(&world.script(&script).input(closed))
        .ended_with(0);
    let tried = done.output("tried");
    assert_eq!(tried.lines().count(), 10, "{tried}");
    // `closed` is the same repository as `app`, whose address leads to the relay: its own name does not.
    let open: Vec<&str> = tried
        .lines()
        .filter(|line| line.ends_with("OPEN"))
        .collect();
    assert_eq!(
        open,
        ["git -C /workspace/closed fetch: OPEN"],
        "{}",
        done.output("said")
    );
    assert_eq!(world.app.find("refs/heads/agent"), None);
    assert_eq!(world.forge.requests_of("acme/app", Phase::Push).len(), 0);
    assert_eq!(
        world.forge.requests_of("acme/other", Phase::Listing).len(),
        0
    );
    let refused = world
        .events()
        .iter()
        .filter(|event| event["event"]["decision"]["is"] == "refused")
        .count();
    assert!(refused >= 7, "{refused} refusals are in the record");
}

#[tokio::test(flavor = "multi_thread")]
async fn repositories_of_every_kind_are_provisioned_as_git_would() {
    let world = World::new().await;
    let trap = Trap::start().unwrap();
    let new = world
        .forge
        .create_as("acme/sha256", Visibility::Private, ObjectFormat::Sha256)
        .unwrap();
    let in_sha256 = new
        .commit("feature/ü/1", &[Change::file("a", "in sha256\n")])
        .unwrap();
    let annotated = new.annotated_tag("v1", &in_sha256).unwrap();
    let nested = new.annotated_tag("v1-signed", &annotated).unwrap();
    let tree = world
        .app
        .commit(
            "kinds",
            &[
                Change::symlink("link", "README.md"),
                Change::symlink("out", "/etc/passwd"),
                Change::gitlink("sub", "1111111111111111111111111111111111111111"),
                Change::file(
                    ".gitmodules",
                    format!(
                        "[submodule \"sub\"]\n\tpath = sub\n\turl = {}\n",
                        trap.url("acme/sub")
                    ),
                ),
                Change::lfs_pointer("big.bin", 1 << 30),
                Change::file("ümläut 文", "u\n"),
            ],
        )
        .unwrap();
    world.app.set_ref("refs/pull/7/head", &tree).unwrap();
    let input = |name: &str, repository: &str, reference: serde_json::Value| json!({"name": name, "repository": repository, "connector": "forge", "ref": reference});
    let mut manifest = world.script(
        r#"
        cd /workspace
        for d in branch nested by-id; do git -C $d rev-parse HEAD; cat $d/a; git -C $d status --porcelain; done > /sandbox/output/sha256
        cd /workspace/pull
        git rev-parse HEAD > /sandbox/output/pull
        git status --porcelain > /sandbox/output/status
        { readlink link out; ls -A sub | wc -l; head -1 big.bin; cat "ümläut 文"; } > /sandbox/output/kinds
        "#,
    );
    for more in [
        input("branch", "acme/sha256", json!({"branch": "feature/ü/1"})),
        input("nested", "acme/sha256", json!({"tag": "v1-signed"})),
        input("by-id", "acme/sha256", json!({"commit": in_sha256})),
        input("pull", "acme/app", json!({"name": "refs/pull/7/head"})),
    ] {
        manifest = manifest.input(more);
    }
    let done = world.run(&manifest).ended_with(0);
    assert_eq!(
        done.output("sha256"),
        format!("{in_sha256}\nin sha256\n").repeat(3)
    );
    assert_eq!(in_sha256.len(), 64);
    assert_eq!(done.input("nested")["tagObject"], json!(nested));
    assert_eq!(done.input("nested")["commit"], json!(in_sha256));
    assert_eq!(done.input("branch")["objectFormat"], "sha256");
    assert_eq!(done.output("pull").trim(), tree);
    assert_eq!(done.output("status"), "");
    assert_eq!(
        done.output("kinds"),
        "README.md\n/etc/passwd\n0\nversion https://git-lfs.github.com/spec/v1\nu\n"
    );
    // V03, V04: said, and nobody was asked.
    assert_eq!(trap.connections(), 0);
    let events = world.events();
    let provisioned = events
        .iter()
        .find(|event| event["event"]["kind"] == "inputs.provisioned")
        .unwrap();
    let pull = &provisioned["event"]["inputs"][4];
    assert_eq!(pull["submodules"], json!(["sub"]));
    assert_eq!(pull["lfsPointers"], 1);
    for name in ["branch", "nested", "by-id", "pull"] {
        assert_eq!(done.input(name)["drift"]["state"], "Unchanged", "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_repository_is_an_error_that_says_so() {
    let world = World::new().await;
    world
        .forge
        .create("acme/empty", Visibility::Private)
        .unwrap();
    let manifest = world.script("true").set(
        "/inputs",
        json!([{"name": "app", "repository": "acme/empty", "connector": "forge"}]),
    );
    let done = world.run(&manifest).failed_by(241, "EmptyRepository");
    assert_eq!(done.status["error"]["input"], "app");
    assert!(done.message().contains("acme/empty"), "{}", done.message());
}
