//! Objects that are not as they should be, and namespaces that say no.

use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use sandboxrun::api::Phase;
use serde_json::{Value, json};

use super::cluster::crd_resource;
use super::operator::Operator;

/// A02, A01: what an older CRD let in fails alone, with its field; the others go on.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a02_an_object_past_the_rules_fails_alone() {
    let operator = Operator::start(json!({})).await;
    let crds: Api<DynamicObject> = Api::all_with(operator.client.clone(), &crd_resource());
    let name = "sandboxruns.sandboxrun.dev";
    let strict = crds.get(name).await.unwrap();
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut loose: Value = json!({"spec": strict.data["spec"]});
    for version in loose["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"] = open.clone();
    }
    let params = PatchParams::default();
    crds.patch(name, &params, &Patch::Merge(&loose))
        .await
        .unwrap();
    let runs = operator.runs_untyped();
    let bad = |name: &str, spec: Value| {
        let object = json!({"apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun", "metadata": {"name": name}, "spec": spec});
        serde_json::from_value::<DynamicObject>(object).unwrap()
    };
    let agent = json!({"image": "i", "command": ["true"]});
    let number = bad(
        "number",
        json!({"agent": {"image": "i", "command": ["true"], "timeout": 1}}),
    );
    let undecodable = bad(
        "word",
        json!({"agent": agent, "policy": {"onDrift": "Perhaps"}}),
    );
    let broken = bad(
        "broken",
        json!({"agent": agent, "inputs": [{"name": "a", "repository": "https://h/a.git", "ref": {"branch": "a", "tag": "b"}}]}),
    );
    // The CRD is taken by the API server a moment later.
    operator
        .until("the loose CRD", || async {
            runs.create(&PostParams::default(), &undecodable)
                .await
                .is_ok()
                .then_some(())
        })
        .await;
    runs.create(&PostParams::default(), &broken).await.unwrap();
    runs.create(&PostParams::default(), &number).await.unwrap();
    let strict = json!({"spec": strict.data["spec"]});
    crds.patch(name, &params, &Patch::Merge(&strict))
        .await
        .unwrap();

    let good = operator.apply("good", json!({})).await;
    operator.pod(&good, 1).await.lives_well().await;
    assert_eq!(operator.reason("good").await, "Succeeded");
    for (name, says) in [
        ("word", "spec.policy.onDrift"),
        ("broken", "set exactly one of branch, tag, commit, name"),
    ] {
        let status = operator
            .until(name, || async {
                let object = runs.get(name).await.unwrap();
                let status = object.data.get("status").cloned()?;
                (status["phase"] == json!("Failed")).then_some(status)
            })
            .await;
        assert_eq!(
            status["error"]["code"],
            json!("sandbox.spec_invalid"),
            "{status}"
        );
        let message = status["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{message}");
        runs.delete(name, &kube::api::DeleteParams::default())
            .await
            .unwrap();
    } // The API server takes no status for this one.
    let number = operator.runs_untyped().get("number").await.unwrap();
    operator
        .until("an event about it", || async {
            let events = operator.events_of(number.metadata.uid.as_deref()).await;
            let note = events.first()?.note.clone()?;
            note.contains("spec.agent.timeout").then_some(())
        })
        .await;
}

/// O06: a switch that does something.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn o06_inputs_are_switched_off_by_installation_and_namespace() {
    let input = json!({"inputs": [{"name": "app", "repository": "https://git.example.com/a.git"}]});
    let operator = Operator::start(json!({"inputs": {"enabled": false}})).await;
    operator.apply("with", input.clone()).await;
    let status = operator.ended("with").await;
    assert_eq!(
        status.error.unwrap().code,
        "sandbox.workspace_inputs_disabled"
    );
    let without = operator.apply("without", json!({})).await;
    operator.pod(&without, 1).await;

    let operator = Operator::start(json!({})).await;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(operator.client.clone());
    let patch =
        json!({"metadata": {"annotations": {"sandboxrun.dev/workspace-inputs": "Disabled"}}});
    let params = PatchParams::default();
    namespaces
        .patch(&operator.namespace, &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    operator.apply("with", input).await;
    let error = operator.ended("with").await.error.unwrap();
    assert_eq!(error.code, "sandbox.workspace_inputs_disabled");
    assert!(
        error.message.contains(&operator.namespace),
        "{}",
        error.message
    );
}

/// A03: names of any length, equal in the first 63 characters.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a03_two_long_names_that_begin_alike_both_finish() {
    let operator = Operator::start(json!({})).await;
    let names = ["x", "y"].map(|last| format!("{}{last}", "a.b-c".repeat(50)));
    for name in &names {
        let run = operator.apply(name, json!({})).await;
        let pod = operator.pod(&run, 1).await;
        assert_eq!(pod.pod.annotations()["sandboxrun.dev/run-name"], *name);
        pod.lives_well().await;
        assert_eq!(operator.ended(name).await.phase, Phase::Succeeded);
        assert_eq!(operator.events(&run).await.len(), 1);
    }
}

/// A quota is waited for, and said. K02: an operator that comes back knows of a pod that was announced and that nobody has
/// seen; it was not deleted, and costs no attempt.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a_quota_is_waited_for_and_said() {
    let mut operator = Operator::start(json!({})).await;
    let quotas: Api<k8s_openapi::api::core::v1::ResourceQuota> =
        Api::namespaced(operator.client.clone(), &operator.namespace);
    // Nobody counts what is used here, so a quota of nothing refuses everything.
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}, });
    let quota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    let status = json!({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}});
    let params = PatchParams::default();
    quotas
        .patch_status("none", &params, &Patch::Merge(&status))
        .await
        .unwrap();
    let run = operator.apply("nightly", json!({})).await;
    let waits = operator
        .until("the trouble", || async {
            operator.status("nightly").await.error
        })
        .await;
    assert_eq!(
        (waits.code.as_str(), waits.reason.as_str()),
        ("sandbox.pod_rejected", "QuotaExceeded")
    );
    operator.kill();
    operator.begin();
    operator
        .until("another try", || async {
            let refused =
                "sandboxrun_api_requests_total{request=\"pod_create\",result=\"refused\"}";
            (operator.metric_now(refused).await? > 0.0).then_some(())
        })
        .await;
    quotas
        .delete("none", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    operator.pod(&run, 1).await.lives_well().await;
    assert_eq!(operator.reason("nightly").await, "Succeeded");
    let made = operator.story(&run).await;
    assert_eq!(
        made.iter().filter(|kind| **kind == "pod.creating").count(),
        1
    );
}
