//! How a run ends: the agent's own way, by its time, by its user, by what it left.

use std::fs;

use rstest::rstest;
use serde_json::json;

use super::support::{World, processes_with, soon};

#[rstest]
#[case::success("exit 0", 0, None)]
#[case::its_own_status("exit 7", 7, Some("ExitStatus"))]
#[case::a_status_that_is_also_one_of_ours("exit 249", 249, Some("ExitStatus"))]
#[case::a_signal("kill -KILL $$", 137, Some("KilledBySignal"))]
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_is_the_agents_own(
    #[case] script: &str,
    #[case] code: i32,
    #[case] reason: Option<&str>,
) {
    let world = World::new().await;
    let done = world
        .run(&world.script(&format!("echo x > new; {script}")))
        .ended_with(code);
    assert_eq!(done.status["error"]["reason"].as_str(), reason);
    assert_eq!(done.status["result"]["exitCode"], code);
    assert_eq!(done.input("app")["drift"]["counts"]["added"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_there_is_said_to_be() {
    let world = World::new().await;
    let manifest = world
        .script("")
        .set("/agent/command", json!(["/no/such/program"]));
    let done = world.run(&manifest).failed_by(127, "CommandNotFound");
    assert!(
        done.message().contains("could not be started"),
        "{}",
        done.message()
    );
}

#[rstest]
#[case::missing("true", "OutputMissing")]
#[case::of_another_shape(
    "echo '{\"fixed\": 1}' > /sandbox/output/output.json",
    "SchemaMismatch"
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_does_not_fit_its_schema_fails_the_run(
    #[case] script: &str,
    #[case] reason: &str,
) {
    let world = World::new().await;
    let schema =
        json!({"schema": {"type": "object", "properties": {"fixed": {"type": "boolean"}}}});
    let manifest = world.script(script).set("/agent/output", schema);
    let done = world.run(&manifest).failed_by(251, reason);
    assert_eq!(done.status["result"]["exitCode"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_goes_silent_is_stopped_and_what_it_left_is_read() {
    let world = World::new().await;
    let script = "echo x > new; echo '1' > /sandbox/output/output.json; echo working; sleep 1000";
    let manifest = world.script(script).set("/agent/stallTimeout", json!("2s"));
    let done = world.run(&manifest).failed_by(250, "NoOutput");
    assert_eq!(done.input("app")["drift"]["counts"]["added"], 1);
    assert_eq!(done.status["result"]["output"]["bytes"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn d06_an_agent_that_takes_too_long_is_stopped_and_what_it_left_is_read() {
    let world = World::new().await;
    let script = "echo x > new; while :; do echo working; sleep 1; done";
    let manifest = world.script(script).set("/agent/timeout", json!("1m"));
    let done = world.run(&manifest).failed_by(249, "TimeoutReached");
    assert!(
        done.message().contains("agent.timeout"),
        "{}",
        done.message()
    );
    assert_eq!(done.input("app")["drift"]["counts"]["added"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn d06_ctrl_c_once_ends_in_order() {
    let world = World::new().await;
    let script =
        "echo x > new; echo 1 > /sandbox/output/output.json; : > /sandbox/output/ready; sleep 1000";
    let running = world.start(&mut world.command(&world.script(script)));
    running.written("ready");
    running.signal("INT");
    let done = running.wait().failed_by(253, "CancelRequested");
    assert_eq!(done.status["phase"], "Cancelled");
    assert_eq!(done.input("app")["drift"]["counts"]["added"], 1);
    assert_eq!(done.status["result"]["output"]["bytes"], 2);
    assert!(done.workspace().join("app/new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_twice_ends_at_once_and_leaves_nothing_running() {
    let world = World::new().await;
    let mark = world.state().display().to_string();
    let script = format!(
        ": {mark}; trap '' TERM INT; : > /sandbox/output/ready; while :; do sleep 0.1; done"
    );
    let running = world.start(&mut world.command(&world.script(&script)));
    running.written("ready");
    running.signal("INT");
    running.step("agent.stopping");
    running.signal("INT");
    let done = running.wait().failed_by(253, "CancelRequested");
    soon("nothing runs", || {
        processes_with(&mark).is_empty().then_some(())
    });
    // Nobody looked, so nobody says that it is fine.
    assert_eq!(done.input("app")["drift"]["state"], "Unknown");
    assert_eq!(world.audit(&["verify"]).0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_at_any_step_ends_the_run_as_cancelled_and_closes_it() {
    let world = World::new().await;
    let mark = world.state().display().to_string();
    let mut manifest = world.script(&format!(": {mark}; sleep 1000"));
    let steps = [
        "run.created",
        "attempt.dispatched",
        "input.resolved",
        "pod.creating",
        "inputs.provisioned",
        "policy.proof",
        "agent.started",
    ];
    for (number, step) in steps.iter().enumerate() {
        for times in 1..=2 {
            manifest.name = format!("cancelled-{number}-{times}");
            let running = world.start(&mut world.command(&manifest));
            running.step(step);
            for _ in 0..times {
                running.signal("INT");
            }
            let done = running.wait();
            assert_eq!(done.code, 253, "{step} {times}: {}", done.stderr);
            assert_eq!(done.status["phase"], "Cancelled", "{step} {times}");
            soon(step, || processes_with(&mark).is_empty().then_some(()));
        }
    }
    let (code, open) = world.audit(&["list", "--open", "-o", "json"]);
    assert_eq!((code, open.trim()), (0, "[]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_finds_what_the_run_gives_it_and_no_more() {
    let world = World::new().await;
    let fixed = json!({
        "name": "fixed", "repository": "acme/app", "connector": "forge", "ref": {"branch": "main"},
        "path": "deps/fixed", "readOnly": true,
    });
    let script = r#"
        exec > /sandbox/output/said 2>&1
        pwd
        cat /sandbox/prompt.md /sandbox/context/notes/a.md; echo
        echo "$GREETING"
        try() { if "$@" 2>/dev/null; then echo "$1 $2: yes"; else echo "$1 $2: no"; fi; }
        try touch /workspace/deps/fixed/new
        try touch /workspace/deps/fixed/.git/new
        try rm -f /workspace/deps/fixed/README.md
        try touch /sandbox/context/new
        try touch /sandbox/prompt.md
        try touch /var/cache/new
        try touch /tmp/new
        try touch $HOME/new
        try touch /workspace/new
        try touch /sandbox/new
        env -i /usr/bin/env; env | cut -d= -f1 | sort | tr '\n' ' '
    "#;
    let manifest = world
        .script(script)
        .input(fixed)
        .set("/agent/prompt", json!("Fix it.\n"))
        .set(
            "/agent/context",
            json!([{"path": "notes/a.md", "content": "a note"}]),
        )
        .set(
            "/agent/env",
            json!([{"name": "GREETING", "value": "hello = $HOME"}]),
        )
        .set("/agent/scratch", json!(["/var/cache"]));
    let mut command = world.command(&manifest);
    command.env("LEAKED", "from the user's shell");
    let done = world.finish(&mut command).ended_with(0);
    let said = done.output("said");
    let expected = "/workspace/app\nFix it.\na note\nhello = $HOME\n\
        touch /workspace/deps/fixed/new: no\ntouch /workspace/deps/fixed/.git/new: no\nrm -f: no\n\
        touch /sandbox/context/new: no\ntouch /sandbox/prompt.md: no\n\
        touch /var/cache/new: yes\ntouch /tmp/new: yes\ntouch /home/agent/new: yes\ntouch /workspace/new: yes\n\
        touch /sandbox/new: no\n";
    assert!(said.starts_with(expected), "{said}");
    assert!(
        !said.contains("LEAKED") && !said.contains("TEST_GIT_TOKEN"),
        "{said}"
    );
    assert_eq!(done.input("fixed")["drift"]["state"], "Unchanged");
    // What lies beside the inputs is nobody's drift, and kept.
    assert!(done.workspace().join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_inputs_is_a_run() {
    let world = World::new().await;
    let manifest = world
        .script("pwd > /sandbox/output/pwd")
        .set("/inputs", json!([]));
    let done = world.run(&manifest).ended_with(0);
    assert_eq!(done.output("pwd"), "/workspace\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_class_is_refused_on_this_machine() {
    let world = World::new().await;
    let manifest = world
        .script("touch /sandbox/output/started")
        .set("/policy", json!({"runtimeClassName": "gvisor"}));
    let done = world.run(&manifest).failed_by(240, "NotOnThisMachine");
    assert!(done.message().contains("policy.runtimeClassName"));
    assert_eq!(world.forge.requests().len(), 0);
    assert!(world.runs_left().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn discarded_a_run_leaves_only_its_record() {
    let world = World::new().await;
    let mut command = world.command(&world.script("echo x > new"));
    command.arg("--discard");
    let done = world.finish(&mut command).ended_with(0);
    assert_eq!(done.input("app")["drift"]["counts"]["added"], 1);
    assert!(world.runs_left().is_empty());
    assert_eq!(world.audit(&["verify"]).0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_the_agent_left_behind_are_gone() {
    let world = World::new().await;
    let mark = world.state().display().to_string();
    let script = format!(
        "(setsid sh -c ': {mark}; trap \"\" TERM HUP; while :; do sleep 0.1; done' >/dev/null 2>&1 &) ; echo ok"
    );
    world.run(&world.script(&script)).ended_with(0);
    assert_eq!(processes_with(&mark), []);
    assert!(fs::read_dir("/proc").is_ok());
}
