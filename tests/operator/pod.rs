//! What kubelet, provision, broker and exec do for a pod, played by a test: states of containers, and calls to the gateway.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use sandboxrun::api::wire::{Plan, ProofPlan, TOKEN_HEADER};
use serde_json::{Value, json};

use super::operator::Operator;

pub(crate) struct Played<'a> {
    operator: &'a Operator,
    pub(crate) pod: Pod,
}

/// The answer to a grant, which stays open while the agent lives.
pub(crate) struct Grant(pub(crate) reqwest::Response);

impl Grant {
    /// Waits until the agent is told to stop.
    pub(crate) async fn stopped(mut self) -> String {
        let told = async {
            while let Some(bytes) = self.0.chunk().await.unwrap() {
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                if let Some(line) = text.lines().find(|line| line.contains("reason")) {
                    return line.to_owned();
                }
            }
            panic!("the stream ended and nobody said to stop");
        };
        tokio::time::timeout(super::operator::PATIENCE, told)
            .await
            .unwrap()
    }
}

pub(crate) fn running() -> Value {
    json!({"running": {"startedAt": Timestamp::now()}})
}

pub(crate) fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": "as it is"}})
}

pub(crate) fn ended(code: i32, reason: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": Timestamp::now(), "startedAt": Timestamp::now()}})
}

impl<'a> Played<'a> {
    pub(crate) fn new(operator: &'a Operator, pod: Pod) -> Self {
        Self { operator, pod }
    }

    pub(crate) fn name(&self) -> String {
        self.pod.name_any()
    }

    /// Puts it on a node, so that a deletion waits for a kubelet.
    pub(crate) async fn bind(&self) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": self.name()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
        });
        let body = serde_json::to_vec(&binding).unwrap();
        let uri = format!(
            "/api/v1/namespaces/{}/pods/{}/binding",
            self.operator.namespace,
            self.name()
        );
        let request = http::Request::post(uri)
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        self.operator
            .client
            .request::<Value>(request)
            .await
            .unwrap();
    }

    /// Its containers are in these states: provision, broker, agent.
    pub(crate) async fn containers(&self, phase: &str, [provision, broker, agent]: [Value; 3]) {
        let container = |name: &str, state: Value| json!({"name": name, "state": state, "ready": false, "restartCount": 0, "image": "i", "imageID": ""});
        self.patch(json!({
            "phase": phase,
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": Timestamp::now()}],
            "initContainerStatuses": [container("provision", provision), container("broker", broker)],
            "containerStatuses": [container("agent", agent)],
        }))
        .await;
    }

    pub(crate) async fn patch(&self, status: Value) {
        let patch = json!({"status": status});
        let params = PatchParams::default();
        let pods = self.operator.pods();
        pods.patch_status(&self.name(), &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// Everything runs.
    pub(crate) async fn runs(&self) {
        let well = ended(0, "Completed");
        self.containers("Running", [well, running(), running()])
            .await;
    }

    /// Everything has ended.
    pub(crate) async fn is_over(&self, agent: Value) {
        let well = || ended(0, "Completed");
        self.containers("Succeeded", [well(), well(), agent]).await;
    }

    /// Somebody deletes it.
    pub(crate) async fn delete(&self) {
        let pods = self.operator.pods();
        pods.delete(&self.name(), &DeleteParams::default())
            .await
            .unwrap();
    }

    /// A kubelet is done with it.
    pub(crate) async fn is_gone(&self) {
        let now = DeleteParams::default().grace_period(0);
        let _gone = self.operator.pods().delete(&self.name(), &now).await;
        self.operator
            .until("the pod to go", || async {
                let found = self.operator.pods().get_opt(&self.name()).await.unwrap();
                found.is_none().then_some(())
            })
            .await;
    }

    /// Waits until somebody asks for its end.
    pub(crate) async fn is_deleted(&self) {
        self.operator
            .until(&format!("{} to be deleted", self.name()), || async {
                let found = self.operator.pods().get_opt(&self.name()).await.unwrap();
                let going = found.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
                going.then_some(())
            })
            .await;
    }

    /// The kubelet's token for it.
    async fn token(&self) -> String {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec!["sandboxrun-gateway".into()],
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(self.name()),
                    uid: self.pod.uid(),
                }),
                expiration_seconds: Some(600),
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.operator.client.clone(), &self.operator.namespace);
        let params = PostParams::default();
        let made = accounts.create_token_request("default", &params, &request);
        made.await.unwrap().status.unwrap().token
    }

    /// A client as provision and broker have: it trusts what the pod's spec says.
    fn client(&self) -> reqwest::Client {
        let spec = self.pod.spec.as_ref().unwrap();
        let provision = &spec.init_containers.as_ref().unwrap()[0];
        let env = provision.env.as_ref().unwrap();
        let ca = env
            .iter()
            .find(|one| one.name == "SANDBOXRUN_GATEWAY_CA")
            .unwrap();
        let ca = reqwest::Certificate::from_pem(ca.value.as_ref().unwrap().as_bytes()).unwrap();
        reqwest::Client::builder()
            .tls_certs_only([ca])
            .no_proxy()
            .timeout(Duration::from_secs(30))
            .build()
            .unwrap()
    }

    /// One call to the gateway, until it is there.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> reqwest::Response {
        let (client, token) = (self.client(), self.token().await);
        let url = format!("{}{path}", self.operator.gateway);
        self.operator
            .until(&format!("an answer to {path}"), || async {
                let mut request = client
                    .request(method.parse().unwrap(), &url)
                    .header(TOKEN_HEADER, &token);
                if let Some(body) = body {
                    request = request.json(body);
                }
                let answer = request.send().await.ok()?;
                (answer.status() != 503).then_some(answer)
            })
            .await
    }

    async fn post(&self, path: &str, body: Value) -> reqwest::Response {
        let answer = self.call("POST", path, Some(&body)).await;
        let status = answer.status();
        if status.is_success() {
            return answer;
        }
        panic!("{path}: {status} {}", answer.text().await.unwrap());
    }

    /// Provision does its work.
    pub(crate) async fn provision(&self) -> Plan {
        let plan = self.call("GET", "/v1/plan", None).await;
        let plan: Plan = plan.error_for_status().unwrap().json().await.unwrap();
        let inputs: Vec<Value> = plan
            .inputs
            .iter()
            .map(|input| json!({"name": input.name, "files": 1, "bytes": 1, "millis": 1}))
            .collect();
        self.post(
            "/v1/provisioned",
            json!({"result": "done", "inputs": inputs}),
        )
        .await;
        self.prove(&[]).await;
        plan
    }

    /// The policy is proved, or is not: these were open.
    pub(crate) async fn prove(&self, open: &[Value]) {
        let plan = self.call("GET", "/v1/proof", None).await;
        let plan: ProofPlan = plan.error_for_status().unwrap().json().await.unwrap();
        let report = json!({"nonce": plan.nonce, "rounds": 2, "open": open, "openMillis": 0});
        self.post("/v1/proof", report).await;
    }

    /// `exec` asks for its grant.
    pub(crate) async fn ask(&self, nonce: char) -> reqwest::Response {
        let ask = json!({"nonce": nonce.to_string().repeat(32)});
        self.call("POST", "/v1/grant", Some(&ask)).await
    }

    /// `exec` gets its grant: the agent starts.
    pub(crate) async fn start(&self, nonce: char) -> Grant {
        Grant(self.ask(nonce).await.error_for_status().unwrap())
    }

    /// Everything from provision to the agent's start.
    pub(crate) async fn up(&self) -> Grant {
        self.bind().await;
        self.provision().await;
        self.runs().await;
        self.start('a').await
    }

    /// The agent's command ends.
    pub(crate) async fn end(&self, nonce: char, exit: Value) {
        let end = json!({"nonce": nonce.to_string().repeat(32), "exit": exit});
        self.post("/v1/ended", end).await;
    }

    /// The broker reports what was left: every input unchanged, no output.
    pub(crate) async fn report(&self) {
        let plan = self.call("GET", "/v1/plan", None).await;
        let plan: Plan = plan.error_for_status().unwrap().json().await.unwrap();
        let inputs: Vec<Value> = plan
            .inputs
            .iter()
            .map(|input| json!({"name": input.name, "drift": {"state": "unchanged"}}))
            .collect();
        self.post(
            "/v1/outcome",
            json!({"inputs": inputs, "output": {"file": "absent"}}),
        )
        .await;
    }

    /// A whole good life.
    pub(crate) async fn lives_well(&self) {
        let grant = self.up().await;
        self.end('a', json!({"end": "exited", "code": 0})).await;
        drop(grant);
        self.report().await;
        self.is_over(ended(0, "Completed")).await;
    }
}
