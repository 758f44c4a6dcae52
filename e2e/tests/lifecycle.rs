//! What becomes of a run when something goes wrong around it, as the real kubelet, scheduler and API server do it.

use serde_json::{Value, json};

use crate::support::{Space, condition, holds, kubectl, program, run, setting, until};

/// An agent that says that it runs, and stays.
const STAYS: &str = "echo started; exec sleep 600";

fn app() -> Value {
    json!({"inputs": [{"name": "app", "repository": "acme/app", "connector": "forge"}]})
}

/// Waits for the agent's start; the name of its pod.
fn started(space: &Space, run: &str) -> String {
    let is_running = |run: &Value| run["status"]["phase"] == "Running";
    space.until_run(90, run, "a running agent", is_running);
    let pods = space.pods_of(run);
    pods.last().unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn patch(space: &Space, run: &str, spec: &str) {
    let spec = format!(r#"{{"spec": {spec}}}"#);
    space
        .kubectl(&["patch", "sandboxrun", run, "--type=merge", "-p", &spec])
        .good();
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn p01_an_image_that_does_not_come_ends_the_run_with_the_kubelets_words() {
    let space = Space::empty("image");
    let image = |name: &str| json!({"agent": {"image": name}});
    space
        .apply(&run("absent", "true", &image("localhost/absent:1")))
        .good();
    space
        .apply(&run("misnamed", "true", &image("localhost/UPPER:x:y")))
        .good();
    space.failed(60, "misnamed", "sandbox.image_failed", "ImageNameInvalid");
    let ended = space.failed(120, "absent", "sandbox.image_failed", "ImagePullFailed");
    let message = ended["status"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("localhost/absent:1"), "{message}");
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn p02_a_pod_that_no_node_fits_says_so_and_ends_at_start_timeout() {
    let space = Space::empty("node");
    let spec = json!({"scheduling": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}, "startTimeout": "1m"}});
    space.apply(&run("nowhere", "true", &spec)).good();
    let said = |run: &Value| run["status"]["summary"]["reason"] == "NoNodeFits";
    let waiting = space.until_run(40, "nowhere", "the scheduler's reason", said);
    assert_eq!(waiting["status"]["phase"], "Provisioning");
    let ended = space.failed(120, "nowhere", "sandbox.unschedulable", "NoNodeFits");
    assert_eq!(ended["status"]["attempt"], 1);
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn p03_an_agent_out_of_memory_ends_at_once_and_its_drift_is_read() {
    let space = Space::new("oom");
    let mut spec = app();
    spec["agent"] = json!({"timeout": "20m", "resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "32Mi"}}});
    let script =
        "echo x >> /workspace/app/README.md; exec perl -e '$x = \"x\" x (300 << 20); sleep 600'";
    space.apply(&run("large", script, &spec)).good();
    let ended = space.failed(120, "large", "sandbox.out_of_memory", "MemoryLimitReached");
    let status = &ended["status"];
    assert!(
        status["error"]["message"]
            .as_str()
            .unwrap()
            .contains("agent"),
        "{status}"
    );
    assert_eq!(status["inputs"][0]["drift"]["state"], "Drifted");
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn p04_p05_a_pod_that_is_evicted_or_deleted_after_the_start_is_not_made_again() {
    let space = Space::new("gone");
    for name in ["evicted", "deleted"] {
        space.apply(&run(name, STAYS, &app())).good();
    }
    let pod = started(&space, "evicted");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": space.name()}});
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", space.name());
    space
        .kubectl_with(
            &["create", "--raw", &path, "-f", "-"],
            &eviction.to_string(),
        )
        .good();
    let pod = started(&space, "deleted");
    space
        .kubectl(&["delete", "pod", &pod, "--wait=false"])
        .good();
    space.failed(120, "evicted", "sandbox.disrupted", "PodEvicted");
    let ended = space.failed(120, "deleted", "sandbox.pod_deleted", "PodDeletedByHand");
    assert_eq!(ended["status"]["attempt"], 1);
    for name in ["evicted", "deleted"] {
        let run = space.get("sandboxrun", name).unwrap();
        assert!(condition(&run, "Drifted").is_some(), "{run}");
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn d06_a_cancelled_agent_is_stopped_and_its_drift_and_output_are_read() {
    let space = Space::new("cancel");
    let script = "echo x >> /workspace/app/README.md; echo '{\"a\": 1}' > /sandbox/output/output.json; echo started; exec sleep 600";
    space.apply(&run("stop", script, &app())).good();
    started(&space, "stop");
    // what is read is what was there: wait for the agent's last word
    until(30, "the agent's word", || {
        let log = space.agent_log("stop");
        if log.contains("started") {
            Ok(())
        } else {
            Err(log)
        }
    });
    patch(&space, "stop", r#"{"cancel": true}"#);
    let ended = space.failed(90, "stop", "sandbox.cancelled", "CancelRequested");
    assert_eq!(ended["status"]["phase"], "Cancelled");
    assert_eq!(ended["status"]["inputs"][0]["drift"]["state"], "Drifted");
    assert_eq!(
        ended["status"]["result"]["output"]["value"]
            .as_str()
            .map(str::trim),
        Some("{\"a\": 1}")
    );
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn a10_o02_a_run_runs_again_when_rerun_changes_and_not_when_it_is_made_again() {
    let space = Space::new("again");
    let manifest = run("again", "echo one", &app());
    space.apply(&manifest).good();
    space.succeeded(90, "again");
    patch(&space, "again", r#"{"rerun": "2"}"#);
    let second = |run: &Value| run["status"]["attempt"] == 2 && holds(run, "Complete");
    space.until_run(90, "again", "a second attempt", second);
    space
        .kubectl(&["delete", "sandboxrun", "again", "--wait=true"])
        .good();
    let spec: Value = serde_json::from_str(&manifest).unwrap();
    let mut spec = spec["spec"].clone();
    spec["rerun"] = "2".into();
    space.apply(&run("again", "echo one", &spec)).good();
    let shown = space.succeeded(60, "again");
    let ready = condition(&shown, "Ready").unwrap();
    assert_eq!(
        ready["reason"],
        "RecordedResult",
        "{}",
        space.story("again")
    );
    // That of the object before it may still be on its way out.
    let uid = &shown["metadata"]["uid"];
    let own = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == *uid;
    assert!(!space.pods_of("again").iter().any(own), "a pod was made");
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn c07_c10_a_connector_that_comes_later_is_waited_for_and_no_other_namespace_is_looked_in() {
    let elsewhere = Space::new("elsewhere");
    let space = Space::empty("late");
    space.apply(&run("late", "true", &app())).good();
    let missing = |run: &Value| run["status"]["summary"]["reason"] == "ConnectorNotFound";
    let waiting = space.until_run(20, "late", "the missing connector", missing);
    assert_eq!(waiting["status"]["phase"], "Resolving");
    assert!(elsewhere.get("connector", "forge").is_ok());
    space.apply(&crate::support::connectors()).good();
    space.succeeded(90, "late");
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn g04_g12_a_policy_that_opens_more_keeps_a_run_from_starting_and_ends_one_that_lives() {
    let space = Space::new("opened");
    let wide = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "allow-dns"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}});
    space.apply(&run("alive", STAYS, &app())).good();
    started(&space, "alive");
    space.apply(&wide.to_string()).good();
    let ended = space.ended(120, "alive");
    assert_eq!(
        ended["status"]["error"]["code"],
        "sandbox.policy_not_enforced",
        "{}",
        space.story("alive")
    );
    space.apply(&run("later", "true", &app())).good();
    let refused = space.failed(60, "later", "sandbox.policy_not_enforced", "PolicyOpened");
    let message = refused["status"]["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("allow-dns") && message.contains("DoesNotExist"),
        "{message}"
    );
    assert!(space.pods_of("later").is_empty());
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn k06_l07_what_became_of_a_deleted_run_is_in_the_record_when_all_else_is_gone() {
    let space = Space::new("deleted");
    space.apply(&run("alive", STAYS, &app())).good();
    started(&space, "alive");
    let uid = space.get("sandboxrun", "alive").unwrap()["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    space
        .kubectl(&[
            "delete",
            "namespace",
            space.name(),
            "--wait=true",
            "--timeout=120s",
        ])
        .good();
    let show = || {
        program(
            &setting("E2E_PROGRAM"),
            &["audit", "show", "--cluster", &uid],
            "",
        )
    };
    until(60, "the end of the story", || {
        let said = show();
        if said.out.contains("sandbox.cancelled") {
            Ok(())
        } else {
            Err(format!("{said:?}"))
        }
    });
    let story = show().good();
    assert!(story.contains("refs/heads/main"), "{story}");
    program(
        &setting("E2E_PROGRAM"),
        &["audit", "verify", "--cluster"],
        "",
    )
    .good();
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn o06_inputs_are_switched_off_for_a_namespace() {
    let space = Space::new("off");
    kubectl(&[
        "annotate",
        "namespace",
        space.name(),
        "sandboxrun.dev/workspace-inputs=disabled",
    ])
    .good();
    space.apply(&run("off", "true", &app())).good();
    space.failed(
        60,
        "off",
        "sandbox.workspace_inputs_disabled",
        "InputsDisabled",
    );
    assert!(space.pods_of("off").is_empty());
    space.apply(&run("without", "true", &json!({}))).good();
    space.succeeded(90, "without");
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn v01_stock_git_works_for_the_agent_without_a_setting() {
    let space = Space::new("git");
    let mut spec = app();
    spec["inputs"][0]["depth"] = 0.into();
    let script = "set -e; cd /workspace/app; git status --short; git log --oneline | wc -l; git fetch origin; git diff --stat; \
        cd bin; git status; git tag; ! git push origin HEAD:refs/heads/x";
    space.apply(&run("git", script, &spec)).good();
    let ended = space.succeeded(90, "git");
    assert!(
        space.agent_log("git").contains("v1.0.0"),
        "{}",
        space.story("git")
    );
    let drift = &ended["status"]["inputs"][0]["drift"]["state"];
    assert_eq!(drift, "Unchanged");
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn a03_runs_with_names_of_any_length_do_not_meet() {
    let space = Space::empty("names");
    let long = |last: &str| format!("{}{last}", "a.".repeat(125));
    let names = [long("one"), long("two")];
    for name in &names {
        space.apply(&run(name, "true", &json!({}))).good();
    }
    for name in &names {
        space.succeeded(90, name);
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn v06_p12_an_agent_that_fills_its_workspace_is_told_so() {
    let space = Space::new("full");
    let mut spec = app();
    spec["workspace"] = json!({"size": "32Mi"});
    let script = "head -c 100000000 /dev/zero > /workspace/app/large; sleep 600";
    space.apply(&run("full", script, &spec)).good();
    let ended = space.ended(200, "full");
    assert_eq!(
        ended["status"]["error"]["code"],
        "sandbox.workspace_full",
        "{}",
        space.story("full")
    );
    assert_eq!(ended["status"]["attempt"], 1);
}
