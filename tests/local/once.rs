//! At most once: the program is killed at every step, and no agent ever runs a second time or outlives it.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::support::{World, processes_with, soon};

/// The steps of a whole run as they are shown, in order.
const STEPS: [&str; 12] = [
    "user",
    "image",
    "run.created",
    "attempt.dispatched",
    "input.resolved",
    "pod.creating",
    "inputs.provisioned",
    "policy.proof",
    "agent.started",
    "agent.ended",
    "drift",
    "run.ended",
];

pub(super) fn nothing_runs_of(world: &World, when: &str) {
    let state = world.state().display().to_string();
    soon(&format!("no process is left {when}"), || {
        processes_with(&state).is_empty().then_some(())
    });
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(&state), "{mounts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_step_the_agent_ran_at_most_once_and_the_next_run_closes_it() {
    let world = World::new().await;
    let state = world.state().display().to_string();
    let mut manifest = world.script(&format!(
        ": {state}; echo ran >> /sandbox/output/ran; sleep 0.3; echo ended >> /sandbox/output/ran"
    ));
    let mut killed = 0;
    for (number, step) in STEPS.iter().enumerate() {
        for (again, later) in [Duration::ZERO, Duration::from_millis(40)]
            .into_iter()
            .enumerate()
        {
            manifest.name = format!("killed-{number}-{again}");
            let running = world.start(&mut world.command(&manifest));
            if *step == "user" && !super::support::is_root() {
                running.step("image");
            } else {
                running.step(step);
            }
            // Not a wait for something: another moment to be killed at.
            std::thread::sleep(later);
            running.kill();
            killed += 1;
            nothing_runs_of(&world, &format!("after a kill at {step} and {later:?}"));
            for dir in world.runs_left() {
                let ran = fs::read_to_string(dir.join("sandbox/output/ran")).unwrap_or_default();
                assert!(ran.matches("ran").count() <= 1, "{step}: {ran}");
            }
        }
    }
    assert!(killed >= 15);

    manifest.name = "last".to_owned();
    let last = world.run(&manifest).ended_with(0);
    let uid = last.status["record"]["id"].as_str().unwrap();
    nothing_runs_of(&world, "in the end");

    // What was killed after its end is kept as any other; nothing else is left of the rest.
    let events = world.events();
    let mut runs: Vec<&str> = events
        .iter()
        .map(|event| event["uid"].as_str().unwrap())
        .collect();
    runs.dedup();
    let mut abandoned = 0;
    for run in &runs {
        let of = |kind: &str| -> Vec<&Value> {
            let own = events.iter().filter(|event| event["uid"] == *run);
            own.map(|event| &event["event"])
                .filter(|event| event["kind"] == kind)
                .collect()
        };
        assert!(of("agent.started").len() <= 1, "{run}");
        let ended = of("run.ended");
        assert_eq!(ended.len(), 1, "{run} is not closed");
        if ended[0]["failure"]["reason"] == "RunAbandoned" {
            abandoned += 1;
            let message = ended[0]["failure"]["message"].as_str().unwrap();
            let known = if of("agent.started").is_empty() {
                message.contains("never started") || message.contains("had not begun")
            } else {
                message.contains("had started, and died with the program")
            };
            assert!(known, "{message}");
            assert!(
                !world.state().join("runs").join(run).exists(),
                "{run} left its directory"
            );
        }
    }
    assert!(abandoned >= 10, "{abandoned} of {killed} were abandoned");
    assert!(world.state().join("runs").join(uid).is_dir());
    let (code, verdicts) = world.audit(&["verify"]);
    assert_eq!(code, 0, "{verdicts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_run_says_what_is_known_of_one_that_was_killed() {
    let world = World::new().await;
    let running = world.start(&mut world.command(&world.script("sleep 1000")));
    running.step("agent.started");
    running.kill();
    let mut next = world.script("true");
    next.name = "next".to_owned();
    let done = world.run(&next).ended_with(0);
    assert!(done.stderr.contains("default/test"), "{}", done.stderr);
    assert!(
        done.stderr
            .contains("had started, and died with the program"),
        "{}",
        done.stderr
    );
    assert_eq!(world.runs_left().len(), 1);
    let (_, story) = world.audit(&["show", "test"]);
    assert!(
        story.contains("RunAbandoned") || story.contains("was killed"),
        "{story}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lives_is_not_taken_for_abandoned() {
    let world = World::new().await;
    let running = world.start(
        &mut world.command(&world.script("until [ -e /sandbox/output/go ]; do sleep 0.05; done")),
    );
    running.step("agent.started");
    let go = running.dir().join("sandbox/output/go");
    let mut beside = world.script("true");
    beside.name = "beside".to_owned();
    world.run(&beside).ended_with(0);
    fs::write(go, "").unwrap();
    running.wait().ended_with(0);
}
