//! What an administrator sets that shapes pods and policies, and that bounds what runs may ask.
//!
//! Part of the operator's configuration. Every field has a default but the image of the pod program, which goes with
//! the version of the operator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::api::{Quantity, duration_text};

/// The settings of one installation, as `manifest` needs them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Installation {
    /// The image of the pod program, by digest if it can be.
    pub pod_image: String,
    /// When the kubelet pulls that image.
    #[serde(default)]
    pub pod_image_pull_policy: PullPolicy,
    /// Secrets in the run's namespace with which it is pulled, beside those of the run.
    #[serde(default)]
    pub pod_image_pull_secrets: Vec<String>,
    /// The pods that are the gateway: all that a pod of a run may reach.
    #[serde(default)]
    pub operator: Operator,
    /// How long a pod's token is good for; the kubelet renews it. At least 10 minutes, says Kubernetes.
    #[serde(default = "default::token_lifetime", with = "duration_text")]
    pub token_lifetime: Duration,
    /// From SIGTERM to SIGKILL for a pod: 10 s for the agent, 120 s for drift, 20 s for the report.
    #[serde(default = "default::termination_grace", with = "duration_text")]
    pub termination_grace: Duration,
    /// Waiting times inside the pod.
    #[serde(default)]
    pub waits: Waits,
    /// What our own containers ask for and may use at most.
    #[serde(default)]
    pub own_resources: OwnResources,
    /// What the agent's container gets where a run says nothing.
    #[serde(default)]
    pub agent_resources: Resources,
    /// What may be in the agent's home directory, in `/tmp` and in each scratch volume.
    #[serde(default = "default::scratch_size")]
    pub scratch_size: Quantity,
    /// Bounds of what runs may ask.
    #[serde(default)]
    pub limits: Limits,
    /// What a webhook of this cluster may add to pods of runs, in the words in which `PodMutated` names it, such as
    /// `volume vault-secrets` or `env OTEL_*`: `*` at the end stands for anything.
    #[serde(default)]
    pub accepted_mutations: Vec<String>,
    /// What it means that the pod's own node can be reached, which many network plugins exempt from policies.
    #[serde(default)]
    pub node_access: NodeAccess,
    /// Further annotations of pods.
    #[serde(default)]
    pub pod_annotations: BTreeMap<String, String>,
    /// Further labels of pods.
    #[serde(default)]
    pub pod_labels: BTreeMap<String, String>,
}

/// A setting that makes no sense: its field, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SettingError {
    /// Such as `waits.repeat`.
    pub field: &'static str,
    /// What to write instead.
    pub message: &'static str,
}

impl Installation {
    /// Whether the settings fit each other and what Kubernetes takes.
    ///
    /// # Errors
    /// The first one that does not.
    pub fn check(&self) -> Result<(), SettingError> {
        let waits = &self.waits;
        let ending = waits.grace + waits.collect + waits.report;
        let rules = [
            (
                !self.pod_image.trim().is_empty(),
                "podImage",
                "must name the image of the pod program",
            ),
            (
                (Duration::from_mins(10)..=Duration::from_hours(24)).contains(&self.token_lifetime),
                "tokenLifetime",
                "must be from 10m to 24h",
            ),
            (
                self.termination_grace >= ending,
                "terminationGrace",
                "must be at least waits.grace, waits.collect and waits.report together",
            ),
            (
                waits.repeat >= Duration::from_secs(1),
                "waits.repeat",
                "must be at least 1s",
            ),
            (
                !self.operator.namespace.is_empty(),
                "operator.namespace",
                "must name the operator's namespace",
            ),
            (
                !self.operator.pod_labels.is_empty(),
                "operator.podLabels",
                "must hold a label of the operator's pods: without one, runs could reach all pods there",
            ),
        ];
        match rules.into_iter().find(|(good, ..)| !good) {
            Some((_, field, message)) => Err(SettingError { field, message }),
            None => Ok(()),
        }
    }
}

/// Where pods find the gateway. Not a setting: the operator makes the CA, and the Service has the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// The Service's address and port.
    pub address: SocketAddr,
    /// The CA of its certificate, PEM.
    pub ca: String,
}

/// The pods that are the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Operator {
    /// Their namespace.
    pub namespace: String,
    /// Labels that they all have.
    pub pod_labels: BTreeMap<String, String>,
    /// The port that the gateway listens on inside them.
    pub port: u16,
}

impl Default for Operator {
    fn default() -> Self {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            namespace: "sandboxrun-system".to_owned(),
            pod_labels: BTreeMap::from([label("app.kubernetes.io/name", "sandboxrun")]),
            port: 8443,
        }
    }
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum PullPolicy {
    /// Unless the node has it.
    #[default]
    IfNotPresent,
    /// Each time.
    Always,
    /// It is loaded by other means.
    Never,
}

impl PullPolicy {
    /// The word of Kubernetes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

/// What it means that the pod's own node can be reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum NodeAccess {
    /// It is recorded.
    #[default]
    Warn,
    /// No agent starts.
    Deny,
}

/// Waiting times inside a pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Waits {
    /// How long the proof of the policy is tried: fresh pods are open for some seconds on real network plugins.
    #[serde(with = "duration_text")]
    pub proof: Duration,
    /// From one proof to the next while the agent lives.
    #[serde(with = "duration_text")]
    pub repeat: Duration,
    /// From SIGTERM to SIGKILL for the agent.
    #[serde(with = "duration_text")]
    pub grace: Duration,
    /// How long the agent may still live once the pod is told to end; then what it left is not known.
    #[serde(with = "duration_text")]
    pub agent_gone: Duration,
    /// For reading drift and output.
    #[serde(with = "duration_text")]
    pub collect: Duration,
    /// How long the gateway may take to hear what the run left.
    #[serde(with = "duration_text")]
    pub report: Duration,
    /// How long the broker and the gateway may be away before the agent is granted its start.
    #[serde(with = "duration_text")]
    pub grant: Duration,
    /// How long the agent may live without its gateway.
    #[serde(with = "duration_text")]
    pub gateway: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            proof: Duration::from_secs(30),
            repeat: Duration::from_secs(15),
            grace: Duration::from_secs(10),
            agent_gone: Duration::from_secs(20),
            collect: Duration::from_mins(2),
            report: Duration::from_secs(20),
            grant: Duration::from_mins(5),
            gateway: Duration::from_secs(30),
        }
    }
}

/// What a container asks for and may use at most, by name of the resource.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resources {
    /// What a node must have free.
    pub requests: BTreeMap<String, Quantity>,
    /// What it may use at most.
    pub limits: BTreeMap<String, Quantity>,
}

impl Default for Resources {
    /// Those of an agent: a small program that builds something.
    fn default() -> Self {
        Self {
            requests: default::amounts(&[
                ("cpu", "250m"),
                ("memory", "512Mi"),
                ("ephemeral-storage", "1Gi"),
            ]),
            limits: default::amounts(&[
                ("cpu", "2"),
                ("memory", "4Gi"),
                ("ephemeral-storage", "10Gi"),
            ]),
        }
    }
}

/// What our own containers ask for and may use at most.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OwnResources {
    /// `provision`: it unpacks and writes the inputs, and is gone before the agent starts.
    pub provision: Resources,
    /// `broker`: the relay, 15 MiB; then it reads drift, which is when it needs more.
    pub broker: Resources,
}

impl Default for OwnResources {
    fn default() -> Self {
        Self {
            provision: Resources {
                requests: default::amounts(&[
                    ("cpu", "100m"),
                    ("memory", "128Mi"),
                    ("ephemeral-storage", "64Mi"),
                ]),
                limits: default::amounts(&[
                    ("cpu", "2"),
                    ("memory", "1Gi"),
                    ("ephemeral-storage", "64Mi"),
                ]),
            },
            broker: Resources {
                requests: default::amounts(&[
                    ("cpu", "20m"),
                    ("memory", "64Mi"),
                    ("ephemeral-storage", "64Mi"),
                ]),
                limits: default::amounts(&[
                    ("cpu", "1"),
                    ("memory", "512Mi"),
                    ("ephemeral-storage", "64Mi"),
                ]),
            },
        }
    }
}

/// Bounds of what runs may ask. An absent one bounds nothing; an empty list allows nothing.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// `policy.runtimeClassName`.
    pub runtime_classes: Option<Vec<String>>,
    /// Whether a run must name one of [`Limits::runtime_classes`].
    pub require_runtime_class: bool,
    /// `scheduling.priorityClassName`. By default none: a run could push out what is more important.
    pub priority_classes: Option<Vec<String>>,
    /// What `agent.image` must begin with.
    pub image_prefixes: Option<Vec<String>>,
    /// Labels that a `scheduling.nodeSelector` may name.
    pub node_selector_labels: Option<Vec<String>>,
    /// Keys of taints that a run may tolerate. By default none.
    pub toleration_keys: Option<Vec<String>>,
    /// The most of each resource that a run may ask for; others are not bounded.
    pub max_resources: BTreeMap<String, Quantity>,
    /// Whether resources that [`Limits::max_resources`] does not name are refused.
    pub only_listed_resources: bool,
    /// `workspace.size`.
    pub max_workspace_size: Option<Quantity>,
    /// `agent.timeout`.
    #[serde(with = "duration_text")]
    pub max_timeout: Duration,
    /// `scheduling.startTimeout`.
    #[serde(with = "duration_text")]
    pub max_start_timeout: Duration,
    /// `infrastructureRetries`.
    pub max_infrastructure_retries: u32,
    /// `ttlAfterFinished`: a pod that has ended still holds a name and its volumes.
    #[serde(with = "duration_text")]
    pub max_ttl_after_finished: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            runtime_classes: None,
            require_runtime_class: false,
            priority_classes: Some(Vec::new()),
            image_prefixes: None,
            node_selector_labels: None,
            toleration_keys: Some(Vec::new()),
            max_resources: BTreeMap::new(),
            only_listed_resources: false,
            max_workspace_size: None,
            max_timeout: Duration::from_hours(24),
            max_start_timeout: Duration::from_hours(24),
            max_infrastructure_retries: 10,
            max_ttl_after_finished: Duration::from_hours(24 * 365),
        }
    }
}

/// Values where a field is absent, and the only way to amounts that are written in the program.
mod default {
    use super::{BTreeMap, Duration, Quantity};

    pub(super) fn token_lifetime() -> Duration {
        Duration::from_hours(1)
    }

    pub(super) fn termination_grace() -> Duration {
        Duration::from_secs(150)
    }

    pub(super) fn scratch_size() -> Quantity {
        Quantity::gibibytes(2)
    }

    /// Those of the texts that are amounts: a test holds that all are.
    pub(super) fn amounts(list: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
        list.iter()
            .filter_map(|(name, text)| Some(((*name).to_owned(), text.parse().ok()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_image_is_all_that_must_be_said() {
        let installation: Installation =
            serde_json::from_value(json!({"podImage": "example.com/pod:1"})).unwrap();
        insta::assert_debug_snapshot!(installation);
        for resources in [
            &installation.agent_resources,
            &installation.own_resources.provision,
            &installation.own_resources.broker,
        ] {
            assert_eq!(resources.requests.len(), 3);
            assert_eq!(resources.limits.len(), 3);
        }
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_refused_by_its_field() {
        for (patch, field) in [
            (json!({"podImage": " "}), "podImage"),
            (json!({"tokenLifetime": "5m"}), "tokenLifetime"),
            (json!({"terminationGrace": "149s"}), "terminationGrace"),
            (json!({"waits": {"repeat": "500ms"}}), "waits.repeat"),
            (json!({"operator": {"podLabels": {}}}), "operator.podLabels"),
            (json!({"operator": {"namespace": ""}}), "operator.namespace"),
        ] {
            let mut all = json!({"podImage": "a"});
            all.as_object_mut()
                .unwrap()
                .extend(patch.as_object().unwrap().clone());
            let installation: Installation = serde_json::from_value(all).unwrap();
            assert_eq!(installation.check().unwrap_err().field, field);
        }
        let installation: Installation = serde_json::from_value(json!({"podImage": "a"})).unwrap();
        assert_eq!(installation.check(), Ok(()));
    }

    #[test]
    fn a_setting_that_does_nothing_is_refused() {
        let wrong = json!({"podImage": "a", "limits": {"maxTimeuot": "1h"}});
        let error = serde_json::from_value::<Installation>(wrong).unwrap_err();
        assert!(
            error.to_string().contains("unknown field `maxTimeuot`"),
            "{error}"
        );
        let wrong = json!({"podImage": "a", "waits": {"proof": "30"}});
        let error = serde_json::from_value::<Installation>(wrong).unwrap_err();
        assert_eq!(
            error.to_string(),
            "write a duration such as 90s, 20m or 1h30m"
        );
    }
}
