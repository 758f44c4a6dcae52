//! What is done to the operator itself: killed, upgraded, uninstalled, with runs alive. One at a time, after all others.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{OPERATOR, Space, holds, kubectl, program, run, setting};

fn helm(args: &[&str]) -> String {
    program("helm", args, "").good()
}

/// Installs or upgrades the chart as `e2e/run` does, with these further values.
fn install(more: &[&str]) {
    let (chart, values, registry) = (
        setting("E2E_CHART"),
        setting("E2E_VALUES"),
        setting("E2E_REGISTRY"),
    );
    let images = format!(
        "image.repository={registry}/sandboxrun,podImage.repository={registry}/sandboxrun-pod"
    );
    let args = [
        "upgrade",
        "--install",
        "sandboxrun",
        &chart,
        "-n",
        OPERATOR,
        "-f",
        &values,
        "--set",
        &images,
        "--wait",
        "--timeout",
        "120s",
    ];
    helm(&[&args[..], more].concat());
}

/// Runs that print one line when their agent starts, and go on for a while.
fn begin(space: &Space, count: usize, seconds: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|at| format!("run-{at}")).collect();
    for name in &names {
        let script = format!("echo started; sleep {seconds}; echo ended");
        space.apply(&run(name, &script, &json!({}))).good();
    }
    names
}

/// How often the agent of a run started, counted in the logs of all its pods.
fn starts(space: &Space, run: &str) -> usize {
    let pods = space.pods_of(run);
    let of_pod = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let log = space.kubectl(&["logs", name, "-c", "agent"]).out;
        log.lines().filter(|line| *line == "started").count()
    };
    pods.iter().map(of_pod).sum()
}

fn kill_the_operator() {
    let selector = "app.kubernetes.io/name=sandboxrun,app.kubernetes.io/component=operator";
    kubectl(&[
        "-n",
        OPERATOR,
        "delete",
        "pod",
        "-l",
        selector,
        "--grace-period=0",
        "--force",
        "--wait=false",
    ])
    .good();
    kubectl(&[
        "-n",
        OPERATOR,
        "rollout",
        "status",
        "deployment/sandboxrun",
        "--timeout=120s",
    ])
    .good();
}

/// Kills the operator at several moments of several runs. The record is on a claim, so it is there again.
fn killed_while(count: usize, kills: usize) {
    let space = Space::empty("killed");
    let names = begin(&space, count, 5);
    for _ in 0..kills {
        // at another moment of their lives each time: as soon as one more has got a pod
        let before = space.list("pods").len();
        let deadline = Instant::now() + Duration::from_secs(10);
        while space.list("pods").len() <= before && Instant::now() < deadline {}
        kill_the_operator();
    }
    for name in &names {
        let ended = space.ended(240, name);
        let times = starts(&space, name);
        assert!(
            times <= 1,
            "{name} started {times} times: {}",
            space.story(name)
        );
        assert_eq!(
            holds(&ended, "Complete"),
            times == 1,
            "{}",
            space.story(name)
        );
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn k01_an_operator_that_is_killed_starts_no_agent_twice() {
    killed_while(6, 2);
}

mod full {
    #[test]
    #[ignore = "needs a cluster: make e2e-full"]
    fn k01_an_operator_that_is_killed_often_starts_no_agent_twice() {
        super::killed_while(30, 8);
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn runs_that_are_alive_outlive_an_upgrade() {
    let space = Space::empty("upgrade");
    let names = begin(&space, 3, 20);
    for name in &names {
        space.until_run(90, name, "a running agent", |run| {
            run["status"]["phase"] == "Running"
        });
    }
    install(&[
        "--set",
        "config.controller.concurrency=8",
        "--set",
        "podAnnotations.upgraded=yes",
    ]);
    for name in &names {
        space.succeeded(120, name);
        assert_eq!(starts(&space, name), 1);
    }
}

#[test]
#[ignore = "needs a cluster: make e2e"]
fn o04_uninstalling_with_runs_alive_ends_within_a_minute_and_leaves_the_runs() {
    let space = Space::empty("uninstall");
    let names = begin(&space, 2, 600);
    for name in &names {
        space.until_run(90, name, "a running agent", |run| {
            run["status"]["phase"] == "Running"
        });
    }
    helm(&[
        "uninstall",
        "sandboxrun",
        "-n",
        OPERATOR,
        "--wait",
        "--timeout",
        "60s",
    ]);
    assert!(
        space.get("sandboxrun", &names[0]).is_ok(),
        "a run is gone with the chart"
    );
    // Its agents go on until their timeout; a namespace can go all the same.
    kubectl(&[
        "delete",
        "namespace",
        space.name(),
        "--wait=true",
        "--timeout=60s",
    ])
    .good();
    install(&[]);
}
