//! A resolved run as a Pod. Pure.
//!
//! Nothing in here depends on what a run asks for except where the name says so: a run cannot make its pod less safe.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, LocalObjectReference, Pod, PodDNSConfig, PodSecurityContext, PodSpec,
    ProjectedVolumeSource, SeccompProfile, ServiceAccountTokenProjection, Sysctl, Toleration,
    Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::containers;
use super::names::{owner, pod_annotations, pod_labels, pod_name};
use super::{Gateway, Installation};
use crate::api::{
    Attempt, InputName, Quantity, RunKey, RunSpec, TaintEffect, TolerationOperator, TolerationSpec,
    layout,
};

/// The container of `provision`.
pub const PROVISION: &str = "provision";
/// The container of the broker.
pub const BROKER: &str = "broker";
/// The container of the agent.
pub const AGENT: &str = "agent";
/// The volume that holds the inputs.
pub const WORKSPACE_VOLUME: &str = "workspace";

/// A run whose inputs are pinned: all that its pod depends on.
#[derive(Debug, Clone, Copy)]
pub struct ResolvedRun<'a> {
    /// Whose pod.
    pub key: &'a RunKey,
    /// What was asked.
    pub spec: &'a RunSpec,
    /// The address that `origin` has in each input, without secrets.
    pub origins: &'a BTreeMap<InputName, String>,
}

/// The token's audience: it is good for the gateway alone.
pub const AUDIENCE: &str = "sandboxrun-gateway";
/// What the kubelet's clock and its own steps may take beside the times that were given.
const DEADLINE_MARGIN: Duration = Duration::from_mins(1);
/// What the copy of our program and the broker's socket need, several times over.
const PROGRAM_SIZE: &str = "64Mi";

/// The pod of one attempt.
#[must_use]
pub fn pod(
    run: &ResolvedRun<'_>,
    attempt: Attempt,
    installation: &Installation,
    gateway: &Gateway,
) -> Pod {
    let ResolvedRun { key, spec, .. } = run;
    let place = &spec.placement;
    let user = place.run_as_user;
    let volumes = volumes(spec, installation);
    let [provision, broker] = containers::own(spec, installation, gateway);
    let agent = containers::agent(run, installation, &volumes);
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(&key.uid, attempt)),
            namespace: Some(key.namespace.to_string()),
            labels: Some(pod_labels(key, attempt, installation)),
            annotations: Some(pod_annotations(key, installation)),
            owner_references: Some(vec![owner(key)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            init_containers: Some(vec![provision, broker]),
            containers: vec![agent],
            volumes: Some(volumes),
            restart_policy: Some("Never".to_owned()),
            active_deadline_seconds: Some(deadline(spec, installation)),
            termination_grace_period_seconds: Some(seconds(installation.termination_grace)),
            // A stray look-up fails at once: nobody listens there.
            dns_policy: Some("None".to_owned()),
            dns_config: Some(PodDNSConfig {
                nameservers: Some(vec!["127.0.0.1".to_owned()]),
                ..PodDNSConfig::default()
            }),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            share_process_namespace: Some(false),
            host_network: Some(false),
            host_pid: Some(false),
            host_ipc: Some(false),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(user),
                run_as_group: Some(user),
                seccomp_profile: Some(runtime_default()),
                // No group may open ICMP sockets: these are a way out that no port names.
                sysctls: Some(vec![Sysctl {
                    name: "net.ipv4.ping_group_range".to_owned(),
                    value: "1 0".to_owned(),
                }]),
                ..PodSecurityContext::default()
            }),
            image_pull_secrets: pull_secrets(spec, installation),
            runtime_class_name: spec.runtime_class_name.clone(),
            priority_class_name: place.priority_class_name.clone(),
            node_selector: Some(place.node_selector.clone()).filter(|labels| !labels.is_empty()),
            tolerations: Some(place.tolerations.iter().map(toleration).collect())
                .filter(|list: &Vec<Toleration>| !list.is_empty()),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// P09: the agent gets its whole time, whatever pull and provision took; then drift and output are read.
fn deadline(spec: &RunSpec, installation: &Installation) -> i64 {
    let total = spec
        .placement
        .start_timeout
        .saturating_add(spec.agent.timeout)
        .saturating_add(installation.termination_grace)
        .saturating_add(DEADLINE_MARGIN);
    seconds(total)
}

/// Whole seconds, rounded up.
pub(super) fn seconds(duration: Duration) -> i64 {
    let more = u64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs().saturating_add(more)).unwrap_or(i64::MAX)
}

pub(super) fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

fn pull_secrets(spec: &RunSpec, installation: &Installation) -> Option<Vec<LocalObjectReference>> {
    let all = spec.placement.image_pull_secrets.iter();
    let all = all.chain(&installation.pod_image_pull_secrets);
    let all: std::collections::BTreeSet<&String> = all.collect();
    let references = all
        .into_iter()
        .map(|name| LocalObjectReference { name: name.clone() });
    Some(references.collect()).filter(|list: &Vec<_>| !list.is_empty())
}

fn toleration(spec: &TolerationSpec) -> Toleration {
    let operator = match spec.operator.unwrap_or_default() {
        TolerationOperator::Equal => "Equal",
        TolerationOperator::Exists => "Exists",
    };
    let effect = spec.effect.map(|effect| match effect {
        TaintEffect::NoSchedule => "NoSchedule",
        TaintEffect::PreferNoSchedule => "PreferNoSchedule",
        TaintEffect::NoExecute => "NoExecute",
    });
    Toleration {
        key: spec.key.clone(),
        operator: Some(operator.to_owned()),
        value: spec.value.clone(),
        effect: effect.map(str::to_owned),
        toleration_seconds: spec.toleration_seconds,
    }
}

/// Every volume, each with a bound. The agent's container mounts neither `baseline` nor `token`.
fn volumes(spec: &RunSpec, installation: &Installation) -> Vec<Volume> {
    let scratch = &installation.scratch_size;
    let size = |quantity: &Quantity| quantity.to_string();
    let mut all = vec![
        empty(
            WORKSPACE_VOLUME.to_owned(),
            size(&spec.placement.workspace_size),
        ),
        empty("sandbox".to_owned(), size(scratch)),
        empty("baseline".to_owned(), size(scratch)),
        empty("program".to_owned(), PROGRAM_SIZE.to_owned()),
        empty("home".to_owned(), size(scratch)),
        empty("tmp".to_owned(), size(scratch)),
    ];
    let own = (0..spec.agent.scratch.len()).map(|at| empty(scratch_volume(at), size(scratch)));
    all.extend(own);
    all.push(token(installation));
    all
}

/// The volume of the run's scratch path at this place of its list.
pub(super) fn scratch_volume(at: usize) -> String {
    format!("scratch-{at}")
}

fn empty(name: String, size: String) -> Volume {
    Volume {
        name,
        empty_dir: Some(EmptyDirVolumeSource {
            medium: None,
            size_limit: Some(resource::Quantity(size)),
        }),
        ..Volume::default()
    }
}

/// The token that says to the gateway which pod this is: bound to the pod, good for nothing else.
fn token(installation: &Installation) -> Volume {
    Volume {
        name: "token".to_owned(),
        projected: Some(ProjectedVolumeSource {
            // The kubelet makes it 0600 of the one user that all containers have.
            default_mode: Some(0o400),
            sources: Some(vec![VolumeProjection {
                service_account_token: Some(ServiceAccountTokenProjection {
                    audience: Some(AUDIENCE.to_owned()),
                    expiration_seconds: Some(seconds(installation.token_lifetime)),
                    path: layout::TOKEN_NAME.to_owned(),
                }),
                ..VolumeProjection::default()
            }]),
        }),
        ..Volume::default()
    }
}

/// How the gateway is named in arguments: an address, since there is no DNS in a pod of a run.
pub(super) fn gateway_url(address: SocketAddr) -> String {
    format!("https://{address}")
}
