//! The operator as a process of its own, in a namespace of its own, with a record of its own; and what a test does with
//! runs there.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Client, ResourceExt as _};
use sandboxrun::api::{ConditionStatus, ConditionType, SandboxRun, SandboxRunStatus};
use sandboxrun::audit::{Entry, Record};
use serde_json::{Value, json};

use super::cluster::{Cluster, OPERATOR, free_port};
use super::pod::Played;

/// Far more than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Operator {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) gateway: String,
    dir: tempfile::TempDir,
    config: PathBuf,
    metrics: u16,
    process: Option<Child>,
}

impl Operator {
    /// Starts one for a new namespace. `more` goes over its settings.
    pub(crate) async fn start(more: Value) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = Cluster::get().await;
        let client = cluster.client().await;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("team-{number}");
        cluster.namespace(&namespace).await;
        let dir = tempfile::Builder::new()
            .prefix("sandboxrun-operator-")
            .tempdir()
            .unwrap();
        let [port, canary, health, metrics] = [(); 4].map(|()| free_port());
        let service = format!("gateway-{number}");
        let made: Service = serde_json::from_value(json!({
            "metadata": {"name": service},
            "spec": {"ports": [{"port": port}]},
        }))
        .unwrap();
        let services: Api<Service> = Api::namespaced(client.clone(), OPERATOR);
        let made = services
            .create(&PostParams::default(), &made)
            .await
            .unwrap();
        let address = made.spec.unwrap().cluster_ip.unwrap();
        let mut settings = json!({
            "watchNamespaces": [namespace],
            "record": {"file": dir.path().join("record.db")},
            "mirror": {"directory": dir.path().join("mirror")},
            "gateway": {
                "listen": format!("0.0.0.0:{port}"), "service": service, "port": port,
                "canaries": [{"port": canary, "listen": canary}], "caSecret": format!("ca-{number}"),
            },
            "leader": {"lease": format!("lease-{number}"), "duration": "3s"},
            "controller": {"health": format!("127.0.0.1:{health}"), "metrics": format!("127.0.0.1:{metrics}")},
            "pods": {"podImage": "localhost/pod:1"},
            "times": {"podAppears": "2s", "podRetry": "1s", "image": "2s", "config": "1s", "broker": "1s",
                "settle": "2s", "stop": "2s", "collect": "3s", "backoff": "100ms"},
        });
        merge(&mut settings, more);
        let config = dir.path().join("config.yaml");
        std::fs::write(&config, settings.to_string()).unwrap();
        let mut operator = Self {
            client,
            namespace,
            gateway: format!("https://{address}:{port}"),
            dir,
            config,
            metrics,
            process: None,
        };
        operator.begin();
        operator
    }

    /// Starts its process.
    pub(crate) fn begin(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let kubeconfig = self.dir.path().join("kubeconfig");
        if !kubeconfig.exists() {
            let shared = super::cluster::kubeconfig();
            std::fs::copy(shared, &kubeconfig).unwrap();
        }
        let process = Command::new(env!("CARGO_BIN_EXE_sandboxrun"))
            .args([
                "controller",
                "--namespace",
                OPERATOR,
                "--pod",
                "test",
                "--config",
            ])
            .arg(&self.config)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.process = Some(process.unwrap());
    }

    /// Kills it, as a lost node would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Waits until something is there.
    pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        mut look: impl FnMut() -> F,
    ) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "waited in vain for {what}; the operator says:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn runs(&self) -> Api<SandboxRun> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn runs_untyped(&self) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<SandboxRun>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a run. `more` goes over its spec.
    pub(crate) async fn apply(&self, name: &str, more: Value) -> SandboxRun {
        let mut spec = json!({"agent": {"image": "localhost/agent:1", "command": ["true"]}});
        merge(&mut spec, more);
        let run = json!({
            "apiVersion": "sandboxrun.dev/v1alpha1", "kind": "SandboxRun",
            "metadata": {"name": name}, "spec": spec,
        });
        let run: SandboxRun = serde_json::from_value(run).unwrap();
        self.runs()
            .create(&PostParams::default(), &run)
            .await
            .unwrap()
    }

    /// Changes a run's spec.
    pub(crate) async fn change(&self, name: &str, spec: Value) {
        let patch = json!({"spec": spec});
        let params = PatchParams::default();
        self.runs()
            .patch(name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.runs()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// The pod of an attempt, when it is there.
    pub(crate) async fn pod(&self, run: &SandboxRun, attempt: u32) -> Played<'_> {
        let name = format!("sandboxrun-{}-{attempt}", run.uid().unwrap());
        let pod = self.until(&name, || async {
            self.pods().get_opt(&name).await.unwrap()
        });
        Played::new(self, pod.await)
    }

    /// Every pod of a run.
    pub(crate) async fn all_pods(&self, run: &SandboxRun) -> Vec<String> {
        let of = format!("sandboxrun.dev/uid={}", run.uid().unwrap());
        let list = self
            .pods()
            .list(&ListParams::default().labels(&of))
            .await
            .unwrap();
        list.items.iter().map(kube::ResourceExt::name_any).collect()
    }

    pub(crate) async fn status(&self, name: &str) -> SandboxRunStatus {
        let run = self.runs().get(name).await.unwrap();
        run.status.unwrap_or_default()
    }

    /// The status, once it has this condition.
    pub(crate) async fn when(
        &self,
        name: &str,
        kind: ConditionType,
        wanted: ConditionStatus,
    ) -> SandboxRunStatus {
        self.until(&format!("{kind:?}={wanted:?} of {name}"), || async {
            let status = self.status(name).await;
            let has = status
                .conditions
                .iter()
                .any(|c| c.kind == kind && c.status == wanted);
            has.then_some(status)
        })
        .await
    }

    /// The status, once the run has ended.
    pub(crate) async fn ended(&self, name: &str) -> SandboxRunStatus {
        self.until(&format!("the end of {name}"), || async {
            let status = self.status(name).await;
            status.finished_at.is_some().then_some(status)
        })
        .await
    }

    /// The reason of its error, once the run has ended.
    pub(crate) async fn reason(&self, name: &str) -> String {
        self.ended(name)
            .await
            .error
            .map_or_else(|| "Succeeded".to_owned(), |error| error.reason)
    }

    pub(crate) async fn events(&self, run: &SandboxRun) -> Vec<Event> {
        self.events_of(run.metadata.uid.as_deref()).await
    }

    pub(crate) async fn events_of(&self, uid: Option<&str>) -> Vec<Event> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = events.list(&ListParams::default()).await.unwrap();
        let of = |event: &Event| event.regarding.as_ref().and_then(|r| r.uid.as_deref()) == uid;
        list.items.into_iter().filter(of).collect()
    }

    /// What the record has of a run.
    pub(crate) async fn record(&self, run: &SandboxRun) -> Vec<Entry> {
        let record = Record::open_read(&self.dir.path().join("record.db"))
            .await
            .unwrap();
        record
            .entries(&run.uid().unwrap().parse().unwrap())
            .await
            .unwrap()
    }

    /// The kinds of events in the record of a run.
    pub(crate) async fn story(&self, run: &SandboxRun) -> Vec<&'static str> {
        let entries = self.record(run).await;
        entries
            .iter()
            .map(|entry| entry.event().unwrap().kind())
            .collect()
    }

    /// A number of its metrics, over all labels.
    pub(crate) async fn metric(&self, beginning: &str) -> f64 {
        self.metric_now(beginning).await.unwrap()
    }

    /// The same of one that may not be there yet.
    pub(crate) async fn metric_now(&self, beginning: &str) -> Option<f64> {
        let url = format!("http://127.0.0.1:{}/metrics", self.metrics);
        let text = reqwest::get(url).await.ok()?.text().await.ok()?;
        let lines = text.lines().filter(|line| line.starts_with(beginning));
        let numbers = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
        Some(numbers.sum())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Puts the members of one object over those of another.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
