//! Pods as kubelets, schedulers and people leave them, and what each means. The objects are cut from real ones.
#![expect(clippy::needless_pass_by_value, reason = "called with literals")]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// What a pod means, in short.
fn said(status: Value) -> String {
    short(&pod(&object(json!({}), status)))
}

fn object(metadata: Value, status: Value) -> PodObject {
    let mut metadata = metadata;
    metadata["name"] = json!("p");
    metadata["creationTimestamp"] = json!("2026-03-01T10:00:00Z");
    serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
}

fn short(pod: &Pod) -> String {
    let why = |failure: &Option<Failure>| match failure {
        Some(failure) => format!(" {}: {}", failure.reason, failure.message),
        None => String::new(),
    };
    match pod {
        Pod::Unknown => "unknown".into(),
        Pod::Absent | Pod::Unmade(_) => "absent".into(),
        Pod::Refused(failure, _) => format!("refused {}", failure.reason),
        Pod::Foreign(failure) => format!("foreign {}", failure.reason),
        Pod::Starting(None) => "starting".into(),
        Pod::Starting(Some(trouble)) => format!(
            "starting {} since {}: {}",
            trouble.failure.reason,
            trouble.since.strftime("%M:%S"),
            trouble.failure.message
        ),
        Pod::Running => "running".into(),
        Pod::Collecting(failure) => format!("collecting{}", why(failure)),
        Pod::Ended(failure) => format!("ended{}", why(failure)),
        Pod::Leaving {
            reason,
            since,
            deleted,
            words,
        } => {
            let deleted = if *deleted { ", deleted" } else { "" };
            format!(
                "leaving {reason} since {}{deleted}: {words}",
                since.strftime("%M:%S")
            )
        }
    }
}

/// A pod whose three containers are in these states, scheduled at 00:10.
fn status(phase: &str, [provision, broker, agent]: [Value; 3]) -> Value {
    json!({
        "phase": phase,
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T10:00:10Z"}],
        "initContainerStatuses": [container("provision", provision), container("broker", broker)],
        "containerStatuses": [container("agent", agent)],
    })
}

fn container(name: &str, state: Value) -> Value {
    let before = state.get("before").cloned().unwrap_or_else(|| json!({}));
    let count = i32::from(before != json!({}));
    json!({"name": name, "state": state, "lastState": before, "ready": false, "restartCount": count, "image": "i", "imageID": ""})
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": message}})
}

fn initializing() -> Value {
    waiting("PodInitializing", "")
}

fn running(since: &str) -> Value {
    json!({"running": {"startedAt": format!("2026-03-01T10:{since}Z")}})
}

fn ended(code: i32, reason: &str, finished: &str) -> Value {
    let finished = format!("2026-03-01T10:{finished}Z");
    json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": finished}})
}

fn ended_with(code: i32, message: &str) -> Value {
    let mut state = ended(code, "Error", "00:20");
    state["terminated"]["message"] = json!(message);
    state
}

fn before(mut state: Value, last: Value) -> Value {
    state["before"] = last;
    state
}

fn well(finished: &str) -> Value {
    ended(0, "Completed", finished)
}

#[test]
fn a_pod_goes_through_its_stages_in_order() {
    let stages = [
        (json!({}), "starting"),
        (json!({"phase": "Pending"}), "starting"),
        (
            status(
                "Pending",
                [
                    waiting("ContainerCreating", ""),
                    initializing(),
                    initializing(),
                ],
            ),
            "starting",
        ),
        (
            status(
                "Pending",
                [running("00:12"), initializing(), initializing()],
            ),
            "starting",
        ),
        (
            status("Pending", [well("00:20"), initializing(), initializing()]),
            "starting",
        ),
        (
            status("Pending", [well("00:20"), running("00:21"), initializing()]),
            "starting",
        ),
        (
            status(
                "Running",
                [well("00:20"), running("00:21"), running("00:23")],
            ),
            "running",
        ),
        (
            status("Running", [well("00:20"), running("00:21"), well("05:00")]),
            "collecting",
        ),
        (
            status("Running", [well("00:20"), well("05:02"), well("05:00")]),
            "ended",
        ),
        (
            status("Succeeded", [well("00:20"), well("05:02"), well("05:00")]),
            "ended",
        ),
    ];
    for (status, want) in stages {
        assert_eq!(said(status.clone()), want, "{status}");
    }
}

#[rstest]
#[case::p01_image(
    [waiting("ImagePullBackOff", "Back-off pulling image \"a\""), initializing(), initializing()],
    "starting ImagePullFailed since 00:10: container `provision`: ImagePullBackOff: Back-off pulling image \"a\"")]
#[case::p01_the_agents_image_has_its_own_time(
    [well("00:20"), running("01:00"), waiting("ErrImagePull", "no such image")],
    "starting ImagePullFailed since 01:00: container `agent`: ErrImagePull: no such image")]
#[case::p01_image_name(
    [well("00:20"), running("00:21"), waiting("InvalidImageName", "A:B:C")],
    "starting ImageNameInvalid since 00:21: container `agent`: InvalidImageName: A:B:C")]
#[case::p01_config(
    [well("00:20"), running("00:21"), waiting("CreateContainerConfigError", "runAsNonRoot")],
    "starting ContainerConfigInvalid since 00:21: container `agent`: CreateContainerConfigError: runAsNonRoot")]
#[case::p08_the_broker_is_restarted_for_ever(
    [well("00:20"), before(waiting("CrashLoopBackOff", "back-off 10s"), ended(1, "Error", "00:22")), initializing()],
    "starting BrokerNotReady since 00:20: container `broker`: CrashLoopBackOff: back-off 10s")]
#[case::p03_the_broker_ran_out_of_memory(
    [well("00:20"), before(waiting("CrashLoopBackOff", ""), ended(137, "OOMKilled", "00:22")), initializing()],
    "starting MemoryLimitReached since 00:20: the container `broker` reached its memory limit and was killed")]
fn what_keeps_a_pod_from_starting(#[case] containers: [Value; 3], #[case] want: &str) {
    assert_eq!(said(status("Pending", containers)), want);
}

#[rstest]
#[case::p02_no_node(
    "Unschedulable",
    "0/3 nodes are available",
    "starting NoNodeFits since 00:05: Unschedulable: 0/3 nodes are available"
)]
#[case::p02_gated(
    "SchedulingGated",
    "gates: [x]",
    "starting NoNodeFits since 00:05: SchedulingGated: gates: [x]"
)]
fn p02_a_pod_without_a_node(#[case] reason: &str, #[case] message: &str, #[case] want: &str) {
    let status = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2026-03-01T10:00:05Z",
    }]});
    assert_eq!(said(status), want);
}

#[rstest]
#[case::its_own_report(
    ended_with(
        1,
        r#"{"result":"failed","failure":{"reason":"PackInvalid","message":"cut off"}}"#
    ),
    "ended PackInvalid: cut off"
)]
#[case::p11_a_broken_report(
    ended_with(1, r#"{"result":"failed","failure":{"rea"#),
    r#"ended ProvisionKilled: provision ended with status 1: {"result":"failed","failure":{"rea"#
)]
#[case::p03_out_of_memory(
    ended(137, "OOMKilled", "00:20"),
    "ended MemoryLimitReached: the container `provision` reached its memory limit and was killed"
)]
#[case::killed(
    ended(137, "Error", "00:20"),
    "ended ProvisionKilled: provision ended with status 137"
)]
fn a_provision_that_failed(#[case] provision: Value, #[case] want: &str) {
    for phase in ["Pending", "Failed"] {
        let status = status(phase, [provision.clone(), initializing(), initializing()]);
        assert_eq!(said(status), want);
    }
}

#[rstest]
#[case::p03_out_of_memory_while_the_broker_lives(
    "Running", [well("00:20"), running("00:21"), ended(137, "OOMKilled", "05:00")],
    "collecting MemoryLimitReached: the container `agent` reached its memory limit and was killed")]
#[case::p03_and_after(
    "Failed", [well("00:20"), well("05:02"), ended(137, "OOMKilled", "05:00")],
    "ended MemoryLimitReached: the container `agent` reached its memory limit and was killed")]
#[case::p07_the_broker_is_killed_after_the_agent(
    "Failed", [well("00:20"), ended(137, "OOMKilled", "05:02"), well("05:00")], "ended")]
#[case::p07_the_broker_is_ended_after_the_agent(
    "Succeeded", [well("00:20"), ended(143, "Error", "05:02"), well("05:00")], "ended")]
#[case::p03_the_broker_was_killed_before(
    "Failed", [well("00:20"), before(well("05:02"), ended(137, "OOMKilled", "04:00")), ended(1, "Error", "05:00")],
    "ended MemoryLimitReached: the container `broker` reached its memory limit and was killed")]
#[case::its_own_status_is_exec_s_to_say(
    "Failed", [well("00:20"), well("05:02"), ended(3, "Error", "05:00")], "ended")]
#[case::it_never_came_to_life(
    "Failed", [well("00:20"), well("05:02"), {
        let mut state = ended(128, "StartError", "00:25");
        state["terminated"]["message"] = json!("exec format error");
        state
    }],
    "ended ContainerConfigInvalid: the container `agent` could not be started: exec format error")]
fn an_agents_container_that_ended(
    #[case] phase: &str,
    #[case] containers: [Value; 3],
    #[case] want: &str,
) {
    assert_eq!(said(status(phase, containers)), want);
}

#[rstest]
#[case::p12_the_volume_is_full(
    "Evicted",
    "Usage of EmptyDir volume \"workspace\" exceeds the limit \"10Gi\". ",
    None,
    "leaving WorkspaceEvicted since 05:00: Usage of EmptyDir volume \"workspace\" exceeds the limit \"10Gi\". "
)]
#[case::p04_the_node_needs_memory(
    "Evicted",
    "The node was low on resource: memory.",
    Some("TerminationByKubelet"),
    "leaving PodEvicted since 06:00: The node was low on resource: memory."
)]
#[case::p04_the_node_shuts_down(
    "Terminated",
    "imminent node shutdown",
    Some("TerminationByKubelet"),
    "leaving PodEvicted since 06:00: TerminationByKubelet: by x"
)]
#[case::p06_its_node_is_gone(
    "",
    "",
    Some("DeletionByPodGC"),
    "leaving NodeLost since 06:00: DeletionByPodGC: by x"
)]
#[case::the_node_had_no_place(
    "OutOfcpu",
    "was 2",
    None,
    "leaving PodEvicted since 05:00: OutOfcpu: was 2"
)]
#[case::the_node_refuses_it(
    "SysctlForbidden",
    "no",
    None,
    "ended PodRejectedByPolicy: the node refused the pod: SysctlForbidden: no"
)]
#[case::p09_its_deadline(
    "DeadlineExceeded",
    "",
    None,
    "ended TimeoutReached: the pod's own deadline was over"
)]
fn a_pod_that_was_taken_away(
    #[case] reason: &str,
    #[case] message: &str,
    #[case] disruption: Option<&str>,
    #[case] want: &str,
) {
    let mut status = status(
        "Failed",
        [well("00:20"), well("04:00"), ended(137, "Error", "05:00")],
    );
    if !reason.is_empty() {
        (status["reason"], status["message"]) = (json!(reason), json!(message));
    }
    if let Some(by) = disruption {
        status["conditions"].as_array_mut().unwrap().push(json!({
            "type": "DisruptionTarget", "status": "True", "reason": by, "message": "by x",
            "lastTransitionTime": "2026-03-01T10:06:00Z",
        }));
    }
    assert_eq!(said(status), want);
}

#[rstest]
#[case::p05_by_hand(None, "leaving PodDeletedByHand since 02:30, deleted: ")]
#[case::p04_drained(
    Some("EvictionByEvictionAPI"),
    "leaving PodEvicted since 02:30, deleted: EvictionByEvictionAPI: by x"
)]
#[case::p04_preempted(
    Some("PreemptionByScheduler"),
    "leaving PodEvicted since 02:30, deleted: PreemptionByScheduler: by x"
)]
#[case::p06_its_node_is_lost(
    Some("DeletionByTaintManager"),
    "leaving NodeLost since 02:30, deleted: DeletionByTaintManager: by x"
)]
fn a_pod_that_was_deleted_leaves_since_then_and_not_since_its_grace_is_over(
    #[case] by: Option<&str>,
    #[case] want: &str,
) {
    let mut status = status(
        "Running",
        [well("00:20"), running("00:21"), running("00:23")],
    );
    if let Some(by) = by {
        status["conditions"].as_array_mut().unwrap().push(json!({
            "type": "DisruptionTarget", "status": "True", "reason": by, "message": "by x",
            "lastTransitionTime": "2026-03-01T10:02:30Z",
        }));
    }
    let metadata =
        json!({"deletionTimestamp": "2026-03-01T10:05:00Z", "deletionGracePeriodSeconds": 150});
    assert_eq!(short(&pod(&object(metadata, status))), want);
}

/// P04: a condition alone is an announcement, which may be taken back.
#[test]
fn p04_a_pod_that_is_to_be_disrupted_still_runs() {
    let mut status = status(
        "Running",
        [well("00:20"), running("00:21"), running("00:23")],
    );
    status["conditions"].as_array_mut().unwrap().push(json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "",
        "lastTransitionTime": "2026-03-01T10:02:30Z",
    }));
    assert_eq!(said(status), "running");
}

/// D07: only the broker's container speaks for what the run left.
#[test]
fn d07_only_the_brokers_last_words_count() {
    let mut agent = well("05:00");
    agent["terminated"]["message"] = json!("{\"output\":\"absent\",\"inputs\":[]}");
    let alone = status("Succeeded", [well("00:20"), well("05:02"), agent.clone()]);
    assert_eq!(broker_message(&object(json!({}), alone)), None);
    let mut broker = well("05:02");
    broker["terminated"]["message"] = json!("mine");
    let both = status("Succeeded", [well("00:20"), broker, agent]);
    assert_eq!(
        broker_message(&object(json!({}), both)).as_deref(),
        Some("mine")
    );
}

#[test]
fn somebody_elses_words_are_made_safe_and_cut() {
    let long = format!("a\u{1b}[31m{}", "x".repeat(9000));
    let status = status(
        "Pending",
        [
            waiting("ErrImagePull", &long),
            initializing(),
            initializing(),
        ],
    );
    let text = said(status);
    assert!(text.len() < 700 && !text.contains('\u{1b}'), "{text}");
}
