//! The operator killed at every place of a run's life, as a lost node would: each run ends with the truth, each agent
//! starts once.

use rstest::rstest;
use sandboxrun::api::Phase;
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
    assert_eq!(
        operator
            .metric("sandboxrun_api_requests_total{request=\"pod_create\"")
            .await,
        1.0
    );
    let patched = operator
        .metric("sandboxrun_api_requests_total{request=\"status_patch\"")
        .await;
    assert!(patched <= 1.0);
    assert_eq!(before.status.unwrap().phase, Phase::Succeeded);
    assert_eq!(operator.all_pods(&run).await.len(), 1);
}
