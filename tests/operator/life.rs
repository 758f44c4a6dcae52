//! Lives of runs that go as they should, and as users want them to.

use sandboxrun::api::{Condition, ConditionStatus, ConditionType, Phase};
use serde_json::json;

use super::operator::Operator;
use super::pod::ended;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a_run_goes_from_its_object_to_its_end_in_five_writes_and_one_event() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    let grant = pod.up().await;
    let status = operator
        .until("the agent to run", || async {
            let status = operator.status("nightly").await;
            (status.phase == Phase::Running).then_some(status)
        })
        .await;
    let enforced = |c: &&Condition| c.kind == ConditionType::PolicyEnforced;
    let enforced = status.conditions.iter().find(enforced).unwrap();
    assert_eq!(enforced.status, ConditionStatus::True);
    pod.end('a', json!({"end": "exited", "code": 0})).await;
    drop(grant);
    pod.report().await;
    pod.is_over(ended(0, "Completed")).await;
    let status = operator
        .when("nightly", ConditionType::Complete, ConditionStatus::True)
        .await;
    assert_eq!(status.phase, Phase::Succeeded);
    assert_eq!(status.result.as_ref().unwrap().exit_code, Some(0));
    assert_eq!(status.result.unwrap().node.as_deref(), Some("node-1"));
    assert_eq!(
        operator.story(&run).await,
        [
            "run.created",
            "attempt.dispatched",
            "pod.creating",
            "inputs.provisioned",
            "policy.proof",
            "agent.started",
            "agent.ended",
            "output",
            "run.ended",
        ]
    );
    let record = status.record.unwrap();
    let head = operator.record(&run).await.last().unwrap().head();
    assert_eq!(record.head, head.to_string());
    // Resolved, running, ended; the pod. The policy is the namespace's, and is there for all of its runs.
    let writes = operator.metric("sandboxrun_api_requests_total").await;
    let events = operator
        .metric("sandboxrun_api_requests_total{request=\"event_create\"")
        .await;
    let policy = operator
        .metric("sandboxrun_api_requests_total{request=\"policy_apply\"")
        .await;
    assert_eq!((events, policy), (1.0, 1.0), "{}", operator.log());
    assert!(writes - events - policy <= 4.0, "{writes} writes");
    let conflicts = operator
        .metric("sandboxrun_api_requests_total{request=\"status_patch\",result=\"conflict\"")
        .await;
    assert!(conflicts == 0.0);
    assert_eq!(operator.events(&run).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a_cancelled_agent_is_told_and_what_it_left_is_read() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    let grant = pod.up().await;
    operator.change("nightly", json!({"cancel": true})).await;
    assert!(grant.stopped().await.contains("CancelRequested"));
    pod.end('a', json!({"end": "stopped", "reason": "CancelRequested"}))
        .await;
    pod.report().await;
    let status = operator.ended("nightly").await;
    assert_eq!(status.phase, Phase::Cancelled);
    assert_eq!(status.summary.drift, "");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a_suspended_run_has_no_pod_and_goes_on_without_a_lost_attempt() {
    let operator = Operator::start(json!({})).await;
    let run = operator
        .apply("nightly", json!({"infrastructureRetries": 0}))
        .await;
    let first = operator.pod(&run, 1).await;
    operator.change("nightly", json!({"suspend": true})).await;
    first.is_deleted().await;
    operator.change("nightly", json!({"suspend": false})).await;
    operator.pod(&run, 2).await.lives_well().await;
    assert_eq!(operator.reason("nightly").await, "Succeeded");
}

/// A10: another life has another pod, and the first one is not taken for it.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a10_a_changed_rerun_runs_again_with_another_pod() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    operator.pod(&run, 1).await.lives_well().await;
    operator.ended("nightly").await;
    operator.change("nightly", json!({"rerun": "2"})).await;
    operator.pod(&run, 2).await.lives_well().await;
    let status = operator.until("the second end", || async {
        let status = operator.status("nightly").await;
        (status.attempt == Some(2) && status.finished_at.is_some()).then_some(status)
    });
    assert_eq!(status.await.phase, Phase::Succeeded);
    let lives = operator.story(&run).await;
    assert_eq!(
        lives.iter().filter(|kind| **kind == "run.created").count(),
        2
    );
}

/// O02, A09: an object that is made again shows the recorded result; a changed `rerun` runs.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn o02_an_object_that_is_made_again_does_not_run_again() {
    let operator = Operator::start(json!({})).await;
    let first = operator.apply("nightly", json!({})).await;
    operator.pod(&first, 1).await.lives_well().await;
    operator.ended("nightly").await;
    operator.delete("nightly").await;
    let again = operator
        .apply("nightly", json!({"agent": {"timeout": "1200s"}}))
        .await; // the default
    let status = operator.ended("nightly").await;
    let ready = status
        .conditions
        .iter()
        .find(|c| c.kind == ConditionType::Ready)
        .unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.status),
        ("RecordedResult", ConditionStatus::True)
    );
    assert!(
        ready.message.contains("change spec.rerun to run again"),
        "{}",
        ready.message
    );
    assert_eq!(status.phase, Phase::Succeeded);
    assert!(operator.all_pods(&again).await.is_empty());
    assert!(operator.story(&again).await.is_empty());
    operator.change("nightly", json!({"rerun": "2"})).await;
    operator.pod(&again, 1).await.lives_well().await;
    operator
        .until("the second end", || async {
            let ran = operator.story(&again).await.last() == Some(&"run.ended");
            ran.then_some(())
        })
        .await;
}

/// O02: what was deleted before its agent started is done when it is made again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn o02_a_run_that_never_started_runs_when_it_is_made_again() {
    let operator = Operator::start(json!({})).await;
    let first = operator.apply("nightly", json!({})).await;
    operator.pod(&first, 1).await;
    operator.delete("nightly").await;
    let again = operator.apply("nightly", json!({})).await;
    operator.pod(&again, 1).await.lives_well().await;
    assert_eq!(operator.reason("nightly").await, "Succeeded");
}

/// O01: the pod goes after its time, and the object stays, and nobody writes to it again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn o01_the_pod_goes_after_its_time_and_the_object_stays() {
    let operator = Operator::start(json!({})).await;
    let run = operator
        .apply("nightly", json!({"ttlAfterFinished": "1s"}))
        .await;
    let pod = operator.pod(&run, 1).await;
    pod.lives_well().await;
    operator.ended("nightly").await;
    let before = operator.runs().get("nightly").await.unwrap();
    pod.is_deleted().await;
    pod.is_gone().await;
    let after = operator.runs().get("nightly").await.unwrap();
    assert_eq!(
        before.metadata.resource_version,
        after.metadata.resource_version
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn an_object_that_asks_for_it_goes_too() {
    let operator = Operator::start(json!({})).await;
    let more = json!({"ttlAfterFinished": "1s", "deleteAfterFinished": true});
    let run = operator.apply("nightly", more).await;
    let pod = operator.pod(&run, 1).await;
    pod.lives_well().await;
    pod.is_deleted().await;
    pod.is_gone().await;
    operator
        .until("the object to go", || async {
            operator
                .runs()
                .get_opt("nightly")
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    assert_eq!(operator.story(&run).await.last(), Some(&"run.ended"));
}

/// K06, K09: a run that is deleted while it is alive is recorded as cancelled.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k06_a_run_that_is_deleted_while_alive_is_recorded_as_cancelled() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    let grant = pod.up().await;
    operator.delete("nightly").await;
    assert!(grant.stopped().await.contains("ObjectDeleted"));
    pod.end('a', json!({"end": "stopped", "reason": "ObjectDeleted"}))
        .await;
    pod.report().await;
    operator
        .until("the last word", || async {
            let entries = operator.record(&run).await;
            let last = entries.last()?.body.clone();
            (last.contains("run.ended") && last.contains("ObjectDeleted")).then_some(())
        })
        .await;
}
