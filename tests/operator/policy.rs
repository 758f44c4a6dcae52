//! The network policy of a namespace: in place before the first pod, put back, and never outvoted.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use sandboxrun::api::ConditionStatus;
use sandboxrun::api::ConditionType;
use serde_json::json;

use super::operator::Operator;

fn policies(operator: &Operator) -> Api<NetworkPolicy> {
    Api::namespaced(operator.client.clone(), &operator.namespace)
}

/// G04: another policy opens more before the pod is made.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn g04_a_policy_that_opens_more_is_named_and_no_pod_is_made() {
    let operator = Operator::start(json!({})).await;
    let dns = json!({"metadata": {"name": "allow-dns"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}});
    let dns: NetworkPolicy = serde_json::from_value(dns).unwrap();
    policies(&operator)
        .create(&PostParams::default(), &dns)
        .await
        .unwrap();
    let run = operator.apply("nightly", json!({})).await;
    let error = operator.ended("nightly").await.error.unwrap();
    assert_eq!(error.code, "sandbox.policy_not_enforced");
    assert!(
        error.message.contains("allow-dns") && error.message.contains("DoesNotExist"),
        "{}",
        error.message
    );
    assert!(operator.all_pods(&run).await.is_empty());
}

/// G04, G12: a gap while the agent lives stops it, and the policy is put back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn g04_g12_a_policy_that_goes_or_changes_stops_the_agent_and_comes_back() {
    let changed = json!({"spec": {"egress": [{}]}});
    for change in [None, Some(changed)] {
        let operator = Operator::start(json!({})).await;
        let run = operator.apply("nightly", json!({})).await;
        let pod = operator.pod(&run, 1).await;
        let made = policies(&operator).get("sandboxrun").await.unwrap();
        let grant = pod.up().await;
        match change {
            None => drop(
                policies(&operator)
                    .delete("sandboxrun", &DeleteParams::default())
                    .await
                    .unwrap(),
            ),
            Some(change) => {
                let params = PatchParams::default();
                let patch = Patch::Merge(&change);
                policies(&operator)
                    .patch("sandboxrun", &params, &patch)
                    .await
                    .unwrap();
            }
        }
        assert!(grant.stopped().await.contains("PolicyLost"));
        operator
            .until("the policy to be put back", || async {
                let found = policies(&operator).get_opt("sandboxrun").await.unwrap()?;
                (found.spec == made.spec).then_some(())
            })
            .await;
        pod.end('a', json!({"end": "stopped", "reason": "PolicyLost"}))
            .await;
        pod.report().await;
        let status = operator.ended("nightly").await;
        assert_eq!(status.error.unwrap().code, "sandbox.policy_not_enforced");
        let enforced = status
            .conditions
            .iter()
            .find(|c| c.kind == ConditionType::PolicyEnforced)
            .unwrap();
        assert_eq!(enforced.status, ConditionStatus::False);
    }
}

/// G04: a label that somebody puts on the pod of a living agent puts it under another policy, which opens more.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn g04_a_label_that_puts_a_pod_under_another_policy_stops_its_agent() {
    let operator = Operator::start(json!({})).await;
    let database = json!({"metadata": {"name": "database"}, "spec": {"podSelector": {"matchLabels": {"team": "a"}},
        "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "10.3.0.0/16"}}]}]}});
    let database: NetworkPolicy = serde_json::from_value(database).unwrap();
    policies(&operator)
        .create(&PostParams::default(), &database)
        .await
        .unwrap();
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    let grant = pod.up().await;
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    operator
        .pods()
        .patch(&pod.name(), &PatchParams::default(), &Patch::Merge(&label))
        .await
        .unwrap();
    assert!(grant.stopped().await.contains("PolicyLost"));
}

/// A policy that the cluster does not take: said at once, with its cause, and no pod is made.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn a_policy_that_is_refused_is_said_with_its_cause() {
    let operator = Operator::start(json!({})).await;
    let admission: Api<ValidatingAdmissionPolicy> = Api::all(operator.client.clone());
    let name = format!("no-policies-in-{}", operator.namespace);
    let rule = json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": ["networking.k8s.io"], "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["networkpolicies"]}]},
        "validations": [{"expression": "false", "message": "ask the network team"}]}});
    let rule = serde_json::from_value(rule).unwrap();
    let params = PostParams::default();
    admission.create(&params, &rule).await.unwrap();
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(operator.client.clone());
    let binding = json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator.namespace}}}}});
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&params, &binding).await.unwrap();
    let probe = json!({"metadata": {"name": "probe"}, "spec": {"podSelector": {"matchLabels": {"none": "of-ours"}}}});
    let probe: NetworkPolicy = serde_json::from_value(probe).unwrap();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    operator
        .until("the rule", || async {
            let tried = policies(&operator).create(&dry, &probe).await;
            tried.is_err().then_some(())
        })
        .await;
    let run = operator
        .apply("nightly", json!({"scheduling": {"startTimeout": "6s"}}))
        .await;
    let waits = operator
        .until("the trouble", || async {
            operator.status("nightly").await.error
        })
        .await;
    assert_eq!(
        (waits.code.as_str(), waits.reason.as_str(), waits.retryable),
        ("sandbox.policy_not_enforced", "PolicyRefused", true)
    );
    assert!(
        waits.message.contains("ask the network team"),
        "{}",
        waits.message
    );
    assert_eq!(operator.reason("nightly").await, "PolicyRefused");
    assert!(operator.all_pods(&run).await.is_empty());
}
