//! Objects of the API server as what is kept of them. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as PodObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde_json::Value;

use super::pods;
use super::store::{Body, Finished, SeenPod, SeenRun};
use crate::api::{
    Attempt, ConditionStatus, ConditionType, Failure, Phase, Reason, RunKey, RunSpec, RunUid,
    SandboxRunSpec, SandboxRunStatus, SpecError, Wishes,
};
use crate::manifest::{ATTEMPT_LABEL, UID_LABEL, pod_name};

/// The uid of an object, as the API server gave it.
pub(super) fn uid(metadata: &ObjectMeta) -> Option<RunUid> {
    metadata.uid.as_deref()?.parse().ok()
}

/// A run, as it was seen. What is known of the same generation is not parsed again.
pub(super) fn run(mut object: DynamicObject, known: Option<&SeenRun>) -> Option<SeenRun> {
    let metadata = &object.metadata;
    let key = RunKey {
        namespace: metadata.namespace.as_deref()?.parse().ok()?,
        name: metadata.name.as_deref()?.parse().ok()?,
        uid: uid(metadata)?,
    };
    let generation = metadata.generation;
    let created_at = metadata.creation_timestamp.as_ref().map(|at| at.0);
    let deleting = metadata.deletion_timestamp.is_some();
    let status = object.data.get_mut("status").map(Value::take);
    let status: Option<SandboxRunStatus> =
        status.and_then(|status| serde_json::from_value(status).ok());
    let finished = status.as_ref().and_then(|s| finished(s, generation));
    let same = known.filter(|known| known.generation == generation);
    let (wishes, body) = match (same, finished) {
        (Some(known), Some(finished)) => (known.wishes.clone(), Body::Finished(finished)),
        (Some(known), None) => match &known.body {
            Body::Finished(_) => parse(object.data.get_mut("spec").map(Value::take)),
            Body::Whole { .. } | Body::Broken { .. } | Body::Undecodable(_) => {
                (known.wishes.clone(), known.body.clone())
            }
        },
        (None, finished) => {
            let (wishes, body) = parse(object.data.get_mut("spec").map(Value::take));
            (wishes, finished.map_or(body, Body::Finished))
        }
    };
    let status = status.filter(|_| finished.is_none()).map(Arc::new);
    Some(SeenRun {
        key,
        generation,
        created_at,
        deleting,
        wishes,
        body,
        status,
    })
}

/// Whether a status is the last one that this generation of its object gets.
fn finished(status: &SandboxRunStatus, generation: Option<i64>) -> Option<Finished> {
    let recorded = |kind, wanted| {
        let mut conditions = status.conditions.iter();
        conditions.any(|c| c.kind == kind && c.status == wanted)
    };
    let over = match status.phase {
        Phase::Succeeded | Phase::Failed | Phase::Cancelled => true,
        Phase::Pending
        | Phase::Resolving
        | Phase::Provisioning
        | Phase::Running
        | Phase::Collecting => false,
    };
    let last = over
        && status.observed_generation == generation
        && recorded(ConditionType::Recorded, ConditionStatus::True);
    let at: Option<Timestamp> = status
        .finished_at
        .as_deref()
        .and_then(|text| text.parse().ok());
    last.then_some(Finished { at })
}

fn parse(spec: Option<Value>) -> (Wishes, Body) {
    let spec = spec.unwrap_or_default();
    let flat: SandboxRunSpec = match serde_path_to_error::deserialize(&spec) {
        Ok(flat) => flat,
        Err(error) => {
            let at = error.path().to_string();
            let dot = if at == "." { "" } else { "." };
            let at = if at == "." { "" } else { &at };
            let message = format!(
                "spec{dot}{at}: {}; `sandboxrun validate -f FILE` checks it offline",
                error.inner()
            );
            let failure = Failure::new(Reason::NotDecodable, message);
            return (Wishes::default(), Body::Undecodable(failure));
        }
    };
    let digest: Arc<str> = flat.digest().into();
    let wishes = Wishes::parse(&flat).unwrap_or_default();
    let body = match RunSpec::parse(&flat) {
        Ok(spec) => {
            let spec = Arc::new(spec);
            Body::Whole { spec, digest }
        }
        Err(errors) => {
            let failure = SpecError::all(&errors);
            Body::Broken { failure, digest }
        }
    };
    (wishes, body)
}

/// The run and attempt that a pod says it is of, if it has the name for it.
pub(super) fn run_of(pod: &PodObject) -> Option<(RunUid, Attempt)> {
    let labels = pod.metadata.labels.as_ref()?;
    let run: RunUid = labels.get(UID_LABEL)?.parse().ok()?;
    let attempt = Attempt::new(labels.get(ATTEMPT_LABEL)?.parse().ok()?)?;
    let named = pod.metadata.name.as_deref() == Some(&pod_name(&run, attempt));
    // A label is anybody's to write: only an owner reference makes a pod one of ours.
    (named && owner(pod) == Some(run.as_str())).then_some((run, attempt))
}

/// The uid of a pod's controller.
pub(super) fn owner(pod: &PodObject) -> Option<&str> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(&owner.uid)
}

/// What is kept of a pod.
pub(super) fn pod(pod: &PodObject) -> Option<SeenPod> {
    let metadata = &pod.metadata;
    Some(SeenPod {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        namespace: metadata.namespace.clone()?,
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        pod: pods::pod(pod),
        message: pods::broker_message(pod),
        deleting: metadata.deletion_timestamp.is_some(),
        version: super::store::number(metadata.resource_version.as_deref()),
    })
}
