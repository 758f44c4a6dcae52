//! The operator killed at every place of a run's life, as a lost node would: each run ends with the truth, each agent
//! starts once.

use kube::api::{Api, DeleteParams, PostParams};
use rstest::rstest;
use sandboxrun::api::{Connector, Phase};
use serde_json::json;

use super::operator::Operator;
use super::pod::ended;

/// How far a run is when the operator is killed.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    Made,
    Provisioned,
    Started,
    Ended,
    Reported,
}

#[rstest]
#[case::pod_made(Stage::Made)]
#[case::provisioned_and_proved(Stage::Provisioned)]
#[case::agent_started(Stage::Started)]
#[case::agent_ended(Stage::Ended)]
#[case::outcome_reported(Stage::Reported)]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k01_k02_a_run_outlives_its_operator(#[case] killed: Stage) {
    let mut operator = Operator::start(json!({"times": {"collect": "60s"}})).await;
    let run = operator.apply("nightly", json!({})).await;
    let made = operator.pod(&run, 1).await.pod;
    let mut grant = None;
    for stage in [
        Stage::Made,
        Stage::Provisioned,
        Stage::Started,
        Stage::Ended,
        Stage::Reported,
    ] {
        let pod = super::pod::Played::new(&operator, made.clone());
        match stage {
            Stage::Made => pod.bind().await,
            Stage::Provisioned => {
                pod.provision().await;
                pod.runs().await;
            }
            Stage::Started => grant = Some(pod.start('a').await),
            Stage::Ended => {
                // `exec` asks again when its connection broke, with its own nonce.
                drop(grant.take());
                grant = Some(pod.start('a').await);
                pod.end('a', json!({"end": "exited", "code": 0})).await;
                drop(grant.take());
            }
            Stage::Reported => pod.report().await,
        }
        if stage == killed {
            operator.kill();
            operator.begin();
        }
    }
    let pod = super::pod::Played::new(&operator, made);
    pod.is_over(ended(0, "Completed")).await;
    assert_eq!(operator.ended("nightly").await.phase, Phase::Succeeded);
    let story = operator.story(&run).await;
    for once in [
        "run.created",
        "pod.creating",
        "agent.started",
        "output",
        "run.ended",
    ] {
        assert_eq!(
            story.iter().filter(|kind| **kind == once).count(),
            1,
            "{once}: {story:?}"
        );
    }
    assert_eq!(operator.all_pods(&run).await.len(), 1);
}

/// K01: a living agent waits for nothing that only its start needed. Its connector is gone when the operator comes back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k01_a_living_agent_is_served_at_once_though_its_connector_is_gone() {
    let mut operator = Operator::start(json!({})).await;
    let connectors: Api<Connector> = Api::namespaced(operator.client.clone(), &operator.namespace);
    let connector = json!({"apiVersion": "sandboxrun.dev/v1alpha1", "kind": "Connector", "metadata": {"name": "tracker"},
        "spec": {"type": "HTTP", "url": "https://tracker.example.com", "uses": ["Lookups"]}});
    let connector = serde_json::from_value(connector).unwrap();
    connectors
        .create(&PostParams::default(), &connector)
        .await
        .unwrap();
    let lookups =
        json!({"lookups": [{"name": "tickets", "connector": "tracker", "paths": ["/**"]}]});
    let run = operator.apply("nightly", lookups).await;
    let made = operator.pod(&run, 1).await.pod;
    let pod = super::pod::Played::new(&operator, made.clone());
    drop(pod.up().await);
    operator.kill();
    connectors
        .delete("tracker", &DeleteParams::default())
        .await
        .unwrap();
    operator.begin();
    let pod = super::pod::Played::new(&operator, made);
    let answer = pod.ask('a').await; // which waits while the gateway says that it does not know yet
    assert_eq!(answer.status(), 200);
    pod.end('a', json!({"end": "exited", "code": 0})).await;
    drop(answer);
    pod.report().await;
    pod.is_over(ended(0, "Completed")).await;
    assert_eq!(operator.ended("nightly").await.phase, Phase::Succeeded);
}

/// P07, P11: an agent that ends well while the operator is away, for longer than its broker can report, has ended well:
/// the broker left it in its termination message.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn p07_p11_an_agent_that_ends_well_while_the_operator_is_away_succeeds() {
    let mut operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let made = operator.pod(&run, 1).await.pod;
    let pod = super::pod::Played::new(&operator, made.clone());
    drop(pod.up().await);
    operator.kill();
    let pod = super::pod::Played::new(&operator, made);
    let mut broker = ended(1, "Error"); // nobody took its report
    broker["terminated"]["message"] =
        json!(r#"{"inputs":[],"output":"absent","exit":{"end":"exited","code":0}}"#);
    let well = || ended(0, "Completed");
    pod.containers("Failed", [well(), broker, well()]).await;
    operator.begin();
    let status = operator.ended("nightly").await;
    assert_eq!(status.phase, Phase::Succeeded, "{:?}", status.error);
    assert_eq!(status.result.unwrap().exit_code, Some(0));
    let story = operator.story(&run).await;
    assert!(story.contains(&"agent.ended"), "{story:?}");
}

/// K09: the object goes while nobody looks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k09_a_run_that_was_deleted_meanwhile_is_closed() {
    let mut operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    let pod = operator.pod(&run, 1).await;
    drop(pod.up().await);
    drop(pod);
    operator.kill();
    operator.delete("nightly").await;
    operator.begin();
    operator
        .until("the last word", || async {
            let entries = operator.record(&run).await;
            let last = entries.last()?.body.clone();
            (last.contains("run.ended") && last.contains("ObjectDeleted")).then_some(())
        })
        .await;
}

/// K02: a start after an end costs the API server nothing.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k02_a_finished_run_costs_nothing_at_the_next_start() {
    let mut operator = Operator::start(json!({})).await;
    let run = operator.apply("nightly", json!({})).await;
    operator.pod(&run, 1).await.lives_well().await;
    operator.ended("nightly").await;
    operator.kill();
    operator.begin();
    let second = operator.apply("second", json!({})).await;
    operator.pod(&second, 1).await; // it works again
    let before = operator.runs().get("nightly").await.unwrap();
    let created = operator
        .metric("sandboxrun_api_requests_total{request=\"pod_create\"")
        .await;
    assert!(created < 1.5, "{created}"); // the second's
    let patched = operator
        .metric("sandboxrun_api_requests_total{request=\"status_patch\"")
        .await;
    assert!(patched <= 1.0);
    assert_eq!(before.status.unwrap().phase, Phase::Succeeded);
    assert_eq!(operator.all_pods(&run).await.len(), 1);
}

/// O02, K06: an object that is made again while the attempt of the old one may still start waits for its end.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn o02_k06_a_run_that_is_made_again_begins_after_the_old_one_cannot_start() {
    let mut operator = Operator::start(json!({})).await;
    let old = operator.apply("nightly", json!({})).await;
    let made = operator.pod(&old, 1).await.pod;
    let pod = super::pod::Played::new(&operator, made);
    pod.bind().await;
    pod.provision().await;
    operator.kill();
    operator.delete("nightly").await;
    let new = operator.apply("nightly", json!({})).await;
    operator.begin();
    operator.pod(&new, 1).await.lives_well().await;
    assert_eq!(operator.reason("nightly").await, "Succeeded");
    let old = operator.record(&old).await;
    let last = old.last().unwrap();
    assert!(last.body.contains("run.ended"), "{}", last.body);
    let first = operator.record(&new).await.swap_remove(0);
    assert!(last.at <= first.at, "{} {}", last.at, first.at);
}
