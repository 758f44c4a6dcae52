//! Pods that come to harm: each row of the pod lifecycle that an API server can show.

use kube::api::{Api, DynamicObject, PostParams};
use rstest::rstest;
use sandboxrun::api::{ConditionStatus, ConditionType};
use serde_json::{Value, json};

use super::cluster::resource;
use super::operator::Operator;
use super::pod::{ended, running, waiting};

fn well() -> Value {
    ended(0, "Completed")
}

/// Before the agent starts: what the containers say, and how the run ends.
#[rstest]
#[case::p01_image([well(), running(), waiting("ImagePullBackOff")], "sandbox.image_failed")]
#[case::p01_image_name([well(), running(), waiting("InvalidImageName")], "sandbox.image_failed")]
#[case::p01_config([well(), running(), waiting("CreateContainerConfigError")], "sandbox.container_config_failed")]
#[case::p03_provision_out_of_memory([ended(137, "OOMKilled"), waiting("PodInitializing"), waiting("PodInitializing")], "sandbox.out_of_memory")]
#[case::p08_broker([well(), waiting("CrashLoopBackOff"), waiting("PodInitializing")], "sandbox.broker_failed")]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn before_the_agent_starts(#[case] containers: [Value; 3], #[case] code: &str) {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    pod.bind().await;
    pod.containers("Pending", containers).await;
    let status = operator.ended("nightly").await;
    assert_eq!(status.error.unwrap().code, code);
    assert_eq!(status.attempt, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p02_a_pod_without_a_node_is_waited_for_until_start_timeout() {
    let operator = Operator::start(json!({})).await;
    let run = operator
        .apply("nightly", json!({"scheduling": {"startTimeout": "3s"}}))
        .await;
    let pod = operator.pod(&run, 1).await;
    pod.patch(json!({"conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available",
        "lastTransitionTime": jiff::Timestamp::now(),
    }]}))
    .await;
    let error = operator.ended("nightly").await.error.unwrap();
    assert_eq!(error.code, "sandbox.unschedulable");
    assert!(
        error.message.contains("0/1 nodes are available"),
        "{}",
        error.message
    );
    pod.is_deleted().await;
}

/// P03, D06: an agent that is killed for memory ends at once, and what it left is read.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p03_an_agent_out_of_memory_ends_at_once_with_its_name() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    drop(pod.up().await); // its supervisor dies with it
    pod.containers("Running", [well(), running(), ended(137, "OOMKilled")])
        .await;
    pod.report().await;
    let status = operator.ended("nightly").await;
    let error = status.error.unwrap();
    assert_eq!(error.code, "sandbox.out_of_memory");
    assert!(error.message.contains("`agent`"), "{}", error.message);
}

/// P05: before the start another attempt follows; after it the run ends.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p05_a_pod_that_is_deleted_by_hand() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let first = operator.pod(&run, 1).await;
    first.delete().await;
    let second = operator.pod(&run, 2).await;
    let grant = second.up().await;
    second.delete().await;
    second.is_gone().await;
    drop(grant);
    let status = operator.ended("nightly").await;
    assert_eq!(status.error.unwrap().code, "sandbox.pod_deleted");
    assert_eq!(operator.all_pods(&run).await.len(), 0);
    let starts = operator.story(&run).await;
    assert_eq!(
        starts
            .iter()
            .filter(|kind| **kind == "agent.started")
            .count(),
        1
    );
}

/// P04: evicted before the start, again and again: attempts are bounded (K04). After the start there is no other.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p04_k04_evictions_cost_attempts_until_none_is_left() {
    let operator = Operator::start(json!({})).await;
    let run = operator
        .apply("nightly", json!({"infrastructureRetries": 1}))
        .await;
    for attempt in 1..=2 {
        let pod = operator.pod(&run, attempt).await;
        pod.bind().await;
        pod.patch(json!({
            "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory.",
            "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
                "lastTransitionTime": jiff::Timestamp::now()}],
        }))
        .await;
    }
    let status = operator.ended("nightly").await;
    assert_eq!(status.error.unwrap().code, "sandbox.disrupted");
    assert_eq!(status.attempt, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p04_p12_an_eviction_after_the_start_ends_the_run() {
    for (message, code) in [
        (
            "Usage of EmptyDir volume \"workspace\" exceeds the limit \"10Gi\". ",
            "sandbox.workspace_full",
        ),
        ("The node was low on resource: memory.", "sandbox.disrupted"),
    ] {
        let operator = Operator::start(json!({})).await;
        let run = operator.apply("nightly", json!({})).await;
        let pod = operator.pod(&run, 1).await;
        let grant = pod.up().await;
        let mut status = json!({"phase": "Failed", "reason": "Evicted", "message": message});
        if code == "sandbox.disrupted" {
            status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
                "lastTransitionTime": jiff::Timestamp::now()}]);
        }
        pod.patch(status).await;
        drop(grant);
        let status = operator.ended("nightly").await;
        assert_eq!(status.error.unwrap().code, code);
        assert_eq!(operator.all_pods(&run).await.len(), 1);
    }
}

/// P07: what happens to the broker after the agent's end changes nothing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p07_a_broker_that_is_killed_after_the_agent_changes_nothing() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    let grant = pod.up().await;
    pod.end('a', json!({"end": "exited", "code": 0})).await;
    drop(grant);
    pod.containers("Failed", [well(), ended(137, "Error"), well()])
        .await;
    let status = operator.ended("nightly").await;
    assert_eq!(status.error, None);
    let drifted = status
        .conditions
        .iter()
        .find(|c| c.kind == ConditionType::Drifted)
        .unwrap();
    assert_eq!(
        drifted.status,
        ConditionStatus::False,
        "there was nothing to compare"
    );
}

/// K08: a pod of our name that belongs to somebody else is neither adopted nor deleted.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k08_a_pod_of_our_name_that_is_somebody_elses() {
    let operator = Operator::start(json!({})).await;
    operator.apply("nightly", json!({"suspend": true})).await;
    let run = operator.runs().get("nightly").await.unwrap();
    let name = format!("sandboxrun-{}-1", run.metadata.uid.clone().unwrap());
    let other = json!({"metadata": {"name": name, "labels": {"sandboxrun.dev/uid": run.metadata.uid, "sandboxrun.dev/attempt": "1"}},
        "spec": {"containers": [{"name": "x", "image": "x"}]}});
    let other = serde_json::from_value(other).unwrap();
    operator
        .pods()
        .create(&PostParams::default(), &other)
        .await
        .unwrap();
    operator.change("nightly", json!({"suspend": false})).await;
    let error = operator.ended("nightly").await.error.unwrap();
    assert_eq!(
        (error.code.as_str(), error.reason.as_str()),
        ("sandbox.pod_rejected", "NameTaken")
    );
    assert!(error.message.contains(&name), "{}", error.message);
    let there = operator.pods().get(&name).await.unwrap();
    assert_eq!(there.metadata.deletion_timestamp, None);
}

/// P10: a second start is refused, whoever asks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p10_a_container_that_starts_again_gets_no_second_grant() {
    let operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    let _grant = pod.up().await;
    assert_eq!(pod.ask('b').await.status(), 409);
    assert_eq!(pod.ask('a').await.status(), 200);
    let starts = operator.story(&run).await;
    assert_eq!(
        starts
            .iter()
            .filter(|kind| **kind == "agent.started")
            .count(),
        1
    );
}

/// P13: what somebody adds to a pod on its way is found, also by an operator that did not make it, and nothing starts.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p13_a_pod_that_was_changed_on_its_way_is_refused() {
    let operator = Operator::start(json!({})).await;
    let name = format!("proxy-for-{}", operator.namespace);
    let change = r#"[JSONPatch{op: "add", path: "/spec/containers/0/env", value: [{"name": "HTTP_PROXY", "value": "http://x"}]}]"#;
    let policy = json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator.namespace}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        },
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": change}}],
    }});
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
    for (kind, plural, object) in [
        (
            "MutatingAdmissionPolicy",
            "mutatingadmissionpolicies",
            policy,
        ),
        (
            "MutatingAdmissionPolicyBinding",
            "mutatingadmissionpolicybindings",
            binding,
        ),
    ] {
        let resource = resource("admissionregistration.k8s.io", "v1beta1", kind, plural);
        let api: Api<DynamicObject> = Api::all_with(operator.client.clone(), &resource);
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    // The API server takes it a moment later.
    let probe = json!({"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
    let probe = serde_json::from_value(probe).unwrap();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    operator
        .until("the change", || async {
            let made = operator.pods().create(&dry, &probe).await.unwrap();
            made.spec.unwrap().containers[0].env.is_some().then_some(())
        })
        .await;
    operator.apply("nightly", json!({})).await;
    let error = operator.ended("nightly").await.error.unwrap();
    assert_eq!(
        (error.code.as_str(), error.reason.as_str()),
        ("sandbox.pod_rejected", "PodMutated")
    );
    assert!(error.message.contains("HTTP_PROXY"), "{}", error.message);
    let run = operator.runs().get("nightly").await.unwrap();
    assert!(!operator.story(&run).await.contains(&"agent.started"));
}
