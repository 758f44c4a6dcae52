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
use crate::run;

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
    let wishes = Wishes::of_good_fields(&flat);
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
    let seen = pods::pod(pod);
    let labels =
        (!matches!(seen, run::Pod::Ended(_))).then(|| metadata.labels.clone().unwrap_or_default());
    Some(SeenPod {
        name: metadata.name.clone()?,
        uid: metadata.uid.clone()?,
        namespace: metadata.namespace.clone()?,
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        pod: seen,
        message: pods::broker_message(pod),
        labels,
        deleting: metadata.deletion_timestamp.is_some(),
        version: super::store::number(metadata.resource_version.as_deref()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "called with literals")]
    fn object(generation: i64, spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "nightly", "namespace": "team", "uid": "0a", "generation": generation},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn good() -> Value {
        json!({"agent": {"image": "i", "command": ["true"]}, "rerun": "2"})
    }

    fn over(phase: &str, of: i64, recorded: &str) -> Value {
        let condition = json!({"type": "Recorded", "status": recorded, "reason": "r", "message": "",
            "lastTransitionTime": "2026-03-01T10:00:00Z"});
        json!({"phase": phase, "observedGeneration": of, "finishedAt": "2026-03-01T10:00:00Z", "conditions": [condition]})
    }

    fn word(seen: &SeenRun) -> String {
        match &seen.body {
            Body::Whole { .. } => "whole".into(),
            Body::Broken { failure, .. } | Body::Undecodable(failure) => {
                format!("{}: {}", failure.reason, failure.message)
            }
            Body::Finished(_) => "finished".into(),
        }
    }

    #[rstest]
    #[case::new(good(), json!(null), "whole")]
    #[case::running(good(), over("Running", 1, "True"), "whole")]
    #[case::ended(good(), over("Succeeded", 1, "True"), "finished")]
    #[case::l02_ended_and_not_recorded(good(), over("Succeeded", 1, "False"), "whole")]
    #[case::changed_since(good(), over("Succeeded", 0, "True"), "whole")]
    #[case::a02_no_such_word(
        json!({"agent": {"image": "i", "command": ["true"]}, "policy": {"onDrift": "Perhaps"}}), json!(null),
        "NotDecodable: spec.policy.onDrift: unknown variant `Perhaps`, expected `Report` or `Fail`; \
         `sandboxrun validate -f FILE` checks it offline")]
    #[case::a02_no_spec(json!(null), json!(null),
        "NotDecodable: spec: invalid type: null, expected struct SandboxRunSpec; `sandboxrun validate -f FILE` checks it offline")]
    #[case::a02_a_status_of_another_version(good(), json!({"phase": "Dreaming"}), "whole")]
    fn what_is_kept_of_a_run(#[case] spec: Value, #[case] status: Value, #[case] want: &str) {
        let seen = run(object(1, spec, status), None).unwrap();
        assert_eq!(word(&seen), want);
        assert_eq!(
            seen.status.is_none(),
            want == "finished" || seen.status.is_none()
        );
    }

    #[test]
    fn the_same_generation_is_not_parsed_again_and_a_finished_run_keeps_its_wishes() {
        let first = run(object(1, good(), json!(null)), None).unwrap();
        let again = run(
            object(1, json!(null), over("Running", 1, "True")),
            Some(&first),
        )
        .unwrap();
        let (Body::Whole { spec, .. }, Body::Whole { spec: known, .. }) =
            (&again.body, &first.body)
        else {
            panic!("{again:?}");
        };
        assert!(Arc::ptr_eq(spec, known));
        let last = run(
            object(1, json!(null), over("Succeeded", 1, "True")),
            Some(&again),
        )
        .unwrap();
        assert_eq!(
            (word(&last).as_str(), last.wishes.rerun.as_str()),
            ("finished", "2")
        );
        assert_eq!(last.status, None);
        let changed = run(object(2, good(), over("Succeeded", 1, "True")), Some(&last)).unwrap();
        assert_eq!(word(&changed), "whole");
    }

    /// K08: neither a label nor a name makes a pod ours.
    #[rstest]
    #[case::ours("sandboxrun-0a-2", "2", Some("0a"), true)]
    #[case::of_another_name("build", "2", Some("0a"), false)]
    #[case::of_another_attempt("sandboxrun-0a-2", "3", Some("0a"), false)]
    #[case::of_another_owner("sandboxrun-0a-2", "2", Some("0b"), false)]
    #[case::of_nobody("sandboxrun-0a-2", "2", None, false)]
    fn k08_only_an_owner_makes_a_pod_ours(
        #[case] name: &str,
        #[case] attempt: &str,
        #[case] owner: Option<&str>,
        #[case] ours: bool,
    ) {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"apiVersion": "v", "kind": "k", "name": "n", "uid": uid, "controller": true}))
            .into_iter()
            .collect();
        let pod: PodObject = serde_json::from_value(json!({"metadata": {
            "name": name, "labels": {UID_LABEL: "0a", ATTEMPT_LABEL: attempt}, "ownerReferences": owners,
        }}))
        .unwrap();
        assert_eq!(run_of(&pod).is_some(), ours);
    }
}
