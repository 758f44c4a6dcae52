//! What people type: `kubectl get`, `describe`, `explain`, `wait`, `diff`, server-side apply, and editing what cannot be
//! changed; and the same by `sandboxrun`.

use serde_json::json;

use crate::support::{Space, kubectl, program, run, setting};

#[test]
#[ignore = "needs a cluster: make e2e"]
fn kubectl_shows_and_waits_for_runs() {
    let space = Space::new("verbs");
    let spec = json!({"inputs": [{"name": "app", "repository": "acme/app", "connector": "forge"}]});
    let good = run("good", "echo hello; echo x >> README.md", &spec);
    // server-side, and a second time: nothing changes
    let apply = ["apply", "--server-side", "-f", "-"];
    space.kubectl_with(&apply, &good).good();
    space.kubectl_with(&apply, &good).good();
    space.apply(&run("bad", "exit 3", &json!({}))).good();
    for (name, condition) in [
        ("good", "Complete"),
        ("good", "Drifted"),
        ("bad", "Failed"),
        ("good", "Ready"),
    ] {
        let condition = format!("--for=condition={condition}");
        let object = format!("sandboxrun/{name}");
        space
            .kubectl(&["wait", &condition, &object, "--timeout=90s"])
            .good();
    }

    let table = space.kubectl(&["get", "sbr"]).good();
    let header: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(
        header,
        ["NAME", "PHASE", "REASON", "INPUTS", "DRIFT", "EXIT", "AGE"]
    );
    let row = |name: &str| {
        table
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert!(
        row("good").contains("Succeeded") && row("good").contains(" 0 "),
        "{table}"
    );
    assert!(
        row("bad").contains("Failed") && row("bad").contains(" 3 "),
        "{table}"
    );
    let wide = space.kubectl(&["get", "sandboxruns", "-o", "wide"]).good();
    for column in ["POD", "NODE", "DURATION"] {
        assert!(wide.lines().next().unwrap().contains(column), "{wide}");
    }
    let all = space.kubectl(&["get", "all"]).good();
    assert!(all.contains("sandboxrun.sandboxrun.dev/good"), "{all}");

    let described = space.kubectl(&["describe", "sandboxrun", "bad"]).good();
    assert!(described.contains("sandbox.agent_failed"), "{described}");
    let explained = kubectl(&["explain", "sandboxrun.spec.inputs.ref"]).good();
    assert!(
        explained.contains("branch") && explained.contains("refs/heads/"),
        "{explained}"
    );

    // `diff` of what is applied says nothing; a changed spec is refused with a sentence, a changed switch is taken
    assert!(
        space
            .kubectl_with(&["diff", "--server-side", "-f", "-"], &good)
            .ok
    );
    let patch = ["patch", "sandboxrun", "good", "--type=merge", "-p"];
    let edit = |spec: &str| space.kubectl(&[&patch[..], &[spec]].concat());
    let said = edit(r#"{"spec": {"agent": {"image": "other"}}}"#).refused();
    assert!(
        said.contains("cannot be changed: make a new SandboxRun, under another name"),
        "{said}"
    );
    edit(r#"{"spec": {"ttlAfterFinished": "48h"}}"#).good();
    space
        .kubectl(&[
            "delete",
            "sandboxrun",
            "good",
            "--wait=true",
            "--timeout=60s",
        ])
        .good();
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn the_command_line_shows_the_same_run() {
    let space = Space::new("cli");
    let spec = json!({"inputs": [{"name": "app", "repository": "acme/app", "connector": "forge"}]});
    space.apply(&run("fix", "echo hello", &spec)).good();
    let ended = space.succeeded(120, "fix");
    let commit = ended["status"]["inputs"][0]["commit"]
        .as_str()
        .unwrap()
        .to_owned();
    let sandboxrun = |args: &[&str]| {
        program(
            &setting("E2E_PROGRAM"),
            &[args, &["-n", space.name()]].concat(),
            "",
        )
    };
    assert!(sandboxrun(&["list"]).good().contains("fix"));
    let page = sandboxrun(&["status", "fix"]).good();
    assert!(
        page.contains("Succeeded") && page.contains(commit.get(..7).unwrap()),
        "{page}"
    );
    assert!(sandboxrun(&["logs", "fix"]).good().contains("hello"));
}
