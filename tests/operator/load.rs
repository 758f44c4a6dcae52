//! Many runs at once.

use std::collections::BTreeMap;
use std::time::Instant;

use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;

use super::operator::Operator;

/// K07: a burst is worked off with a bound on what is done at once; no run is lost, none gets a second pod.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs etcd and kube-apiserver: make e2e"]
async fn k07_no_run_of_a_burst_is_lost_and_none_has_two_pods() {
    const RUNS: usize = 300;
    let operator = Operator::start(json!({})).await;
    let first = operator.apply("first", json!({})).await;
    operator.pod(&first, 1).await; // it is there, and so is the policy
    let began = Instant::now();
    let made = (0..RUNS).map(|n| {
        let operator = &operator;
        async move { operator.apply(&format!("run-{n}"), json!({})).await }
    });
    let made: Vec<_> = futures::stream::iter(made)
        .buffer_unordered(32)
        .collect()
        .await;
    let applied = began.elapsed();
    let pods = operator
        .until("every pod", || async {
            let list = operator.pods().list(&ListParams::default()).await.unwrap();
            (list.items.len() > RUNS).then_some(list.items)
        })
        .await;
    println!(
        "{RUNS} runs in {applied:?}, their pods in {:?}",
        began.elapsed()
    );
    let mut of: BTreeMap<String, usize> = BTreeMap::new();
    for pod in &pods {
        let owner = &pod.owner_references()[0];
        *of.entry(owner.uid.clone()).or_default() += 1;
    }
    assert!(
        made.iter()
            .all(|run| of.get(&run.uid().unwrap()) == Some(&1))
    );
    assert_eq!(pods.len(), RUNS + 1);
}
