//! What users see of a run: its status, and an event where somebody would act on it.
//!
//! A patch of a custom resource is the dearest write that an API server knows, so one is made only for what lasts, holds
//! only what differs from the status that is stored, and is bound to the object's uid. The record is the authority: a
//! status that waits for a second has kept nobody waiting.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as EventObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::calls::{CallError, within};
use super::desk::Desk;
use super::life::Life;
use super::store::{Body, SeenRun};
use crate::api::{Failure, Phase, RunKey, SandboxRun, SandboxRunStatus};
use crate::manifest::label_value;
use crate::run::{self, Observed, RecordFacts};

/// States that pass within this time are not shown.
const SETTLED: Duration = Duration::from_secs(1);
/// The longest note of an event, in bytes: the API server takes 1,024.
const NOTE: usize = 1000;

/// Writes the status if it is worth a write. When to come again for it.
///
/// # Errors
/// When the API server does not take it.
pub(super) async fn status(
    desk: &Desk,
    life: &mut Life,
    run: &SeenRun,
    seen: &Observed,
) -> Result<Option<Instant>, CallError> {
    if let Body::Finished(_) = run.body {
        return Ok(None); // the last one is written
    }
    let Some(status) = now_to_show(desk, life, seen).await else {
        return Ok(None);
    };
    settle(desk, life).await?;
    if !run::write_due(life.written.as_deref(), &status) {
        life.unwritten_since = None;
        return Ok(None);
    }
    if status.finished_at.is_none() {
        let since = *life.unwritten_since.get_or_insert_with(Instant::now);
        if since.elapsed() < SETTLED {
            return Ok(Some(since + SETTLED));
        }
    }
    tell(desk, life, &status).await;
    write(desk, life, &status).await?;
    tracing::info!(namespace = %life.key.namespace, name = %life.key.name, uid = %life.key.uid,
        phase = ?status.phase, reason = %status.summary.reason, "a run's state was shown");
    life.written = Some(Arc::new(status));
    life.unwritten_since = None;
    Ok(None)
}

/// K02: shows that a run that has ended is not begun again, since its record was lost.
///
/// # Errors
/// When the API server does not take it.
pub(super) async fn outlived(
    desk: &Desk,
    life: &mut Life,
    seen: &Observed,
) -> Result<(), CallError> {
    settle(desk, life).await?;
    let Some(written) = life.written.clone() else {
        return Ok(());
    };
    let status = run::outlived_status(&written, seen, Timestamp::now());
    if *written == status {
        return Ok(());
    }
    let key = &life.key;
    tracing::error!(namespace = %key.namespace, name = %key.name, uid = %key.uid,
        "the status of a run says that it has ended, and the record does not know it: it is not begun");
    write(desk, life, &status).await?;
    life.written = Some(Arc::new(status));
    Ok(())
}

/// The status as it is to be seen. `None`: there is nothing to show yet.
async fn now_to_show(desk: &Desk, life: &Life, seen: &Observed) -> Option<SandboxRunStatus> {
    let known = life.is_recorded();
    match (&life.record_trouble, &life.recorded) {
        (Some(failure), _) if known => Some(run::unrecorded_status(seen, failure)),
        (Some(failure), _) => {
            let mut seen = seen.clone();
            seen.record = Err(failure.clone());
            Some(run::status(&seen))
        }
        (None, _) if known => Some(run::status(seen)),
        (None, Some(original)) => {
            let facts = life_of(desk, original, &seen.spec.rerun).await?;
            let mut seen = seen.clone();
            seen.record = Ok(facts);
            Some(run::recorded_status(&seen, &original.uid))
        }
        (None, None) => life.trouble.as_ref().map(|_| run::status(seen)),
    }
}

/// The facts of one life of another object, if it has ended.
async fn life_of(desk: &Desk, key: &RunKey, rerun: &str) -> Option<RecordFacts> {
    let entries = desk.gateway.record.entries_after(key, 0).await.ok()?;
    let mut facts = RecordFacts::default();
    for entry in &entries {
        let (Ok(at), Some(event)) = (entry.at.parse::<Timestamp>(), entry.event()) else {
            continue;
        };
        let another = matches!(event, crate::api::Event::RunCreated { .. });
        if another && facts.reruns.last().is_some_and(|last| last == rerun) {
            break;
        }
        facts.take(at, &event);
    }
    let newest = entries.last()?;
    facts.head = Some((newest.sequence, newest.hash.clone()));
    facts.ended.is_some().then_some(facts)
}

/// A02: a run that does not decode says so itself, and disturbs nobody. Nothing of it is in the record.
///
/// # Errors
/// When the API server does not take it.
pub(super) async fn undecodable(
    desk: &Desk,
    life: &mut Life,
    run: Option<&SeenRun>,
    failure: &Failure,
) -> Result<Option<Instant>, CallError> {
    let Some(run) = run else {
        return Ok(None);
    };
    let at = run.created_at.unwrap_or(Timestamp::UNIX_EPOCH);
    let status = run::undecodable_status(failure, run.generation, at);
    settle(desk, life).await?;
    if life.written.as_deref() == Some(&status) {
        return Ok(None);
    }
    match write(desk, life, &status).await {
        // Some objects are so wrong that the API server takes no status for them either (a rule of the CRD meets another
        // type than it is made for). An event is what is left.
        Err(CallError::Refused { status: said, .. }) if said.is_invalid() => {
            tracing::error!(namespace = %life.key.namespace, name = %life.key.name, error = %failure.message,
                "a run does not decode, and the API server takes no status for it");
        }
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    tell(desk, life, &status).await;
    life.written = Some(Arc::new(status));
    Ok(None)
}

/// Finds out which status is stored, after a write without an answer: a difference to another one would leave members of
/// the one that was stored, such as an error that is over.
async fn settle(desk: &Desk, life: &mut Life) -> Result<(), CallError> {
    if !life.written_unknown {
        return Ok(());
    }
    let key = &life.key;
    let api = objects_of(desk, key);
    let read = api.get_opt(key.name.as_str());
    let read = within(desk.api_timeout, "read the status of a run", read).await;
    let own = read?.filter(|object| object.metadata.uid.as_deref() == Some(key.uid.as_str()));
    if let Some(object) = own {
        let stored = object.data.get("status").cloned();
        life.written = stored
            .and_then(|stored| serde_json::from_value(stored).ok())
            .map(Arc::new);
    }
    life.written_unknown = false;
    Ok(())
}

async fn write(desk: &Desk, life: &mut Life, new: &SandboxRunStatus) -> Result<(), CallError> {
    let key = &life.key;
    let plain = |status: &SandboxRunStatus| serde_json::to_value(status).unwrap_or_default();
    let patch = json!({
        "metadata": {"uid": key.uid.as_str()},
        "status": difference(life.written.as_deref().map(plain), plain(new)),
    });
    let api = objects_of(desk, key);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let written = api.patch_status(key.name.as_str(), &params, &patch);
    let written = within(desk.api_timeout, "write the status of a run", written).await;
    let result = written.as_ref().map_or_else(CallError::result, |_| "ok");
    desk.metrics.api_request("status_patch", result);
    life.written_unknown = written.as_ref().is_err_and(CallError::may_be_done);
    match written {
        // It is gone, or another one has its name: the watch will say so.
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

/// Untyped: a spec that does not decode must not hide that its status was written.
fn objects_of(desk: &Desk, key: &RunKey) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<SandboxRun>(&());
    Api::namespaced_with(desk.client.clone(), key.namespace.as_str(), &resource)
}

/// A merge patch (RFC 7396) that makes the new one of the old one.
fn difference(old: Option<Value>, new: Value) -> Value {
    match (old, new) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let mut patch = Map::new();
            for name in old.keys().filter(|name| !new.contains_key(*name)) {
                patch.insert(name.clone(), Value::Null);
            }
            for (name, value) in new {
                let before = old.get(&name);
                if before != Some(&value) {
                    patch.insert(name, difference(before.cloned(), value));
                }
            }
            Value::Object(patch)
        }
        (_, new) => new,
    }
}

/// One event for the end of a run, and one for each trouble that it waits with. One that gets lost is not tried again.
async fn tell(desk: &Desk, life: &mut Life, status: &SandboxRunStatus) {
    let (kind, reason, note) = match (&status.error, status.phase) {
        (Some(error), _) => {
            // What to do is worth more than the end of somebody else's words.
            let room = NOTE.saturating_sub(error.hint.len() + 2);
            let note = format!("{}: {}", beginning(&error.message, room), error.hint);
            ("Warning", error.reason.clone(), note)
        }
        (None, Phase::Succeeded) => {
            let drift = match status.summary.drift.as_str() {
                "" => String::new(),
                drift => format!(", drift: {drift}"),
            };
            let note = format!("the agent ended well{drift}");
            ("Normal", "Succeeded".to_owned(), note)
        }
        (None, _) => return,
    };
    let about = format!("{reason} {}", status.finished_at.is_some());
    if life.told.as_ref() == Some(&about) {
        return;
    }
    let event = event(desk, &life.key, status, kind, &reason, &note);
    let api: Api<EventObject> = Api::namespaced(desk.client.clone(), life.key.namespace.as_str());
    let params = PostParams::default();
    let create = async { api.create(&params, &event).await.map(drop) };
    let made = within(desk.api_timeout, "make an event", create).await;
    let result = made.as_ref().map_or_else(CallError::result, |()| "ok");
    desk.metrics.api_request("event_create", result);
    life.told = Some(about);
}

fn event(
    desk: &Desk,
    key: &RunKey,
    status: &SandboxRunStatus,
    kind: &str,
    reason: &str,
    note: &str,
) -> EventObject {
    // The same thing that is told twice, by a process that was ended in between, has one name and is one event.
    let attempt = status.attempt.unwrap_or_default();
    let last = if status.finished_at.is_some() {
        "ended"
    } else {
        "waits"
    };
    let name = format!("{}-{attempt}-{}-{last}", key.uid, reason.to_lowercase());
    let note = beginning(note, NOTE).to_owned();
    EventObject {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(key.namespace.to_string()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        action: Some("Run".to_owned()),
        note: Some(note),
        reporting_controller: Some("sandboxrun.dev/controller".to_owned()),
        reporting_instance: Some(label_value(&desk.instance)),
        regarding: Some(ObjectReference {
            api_version: Some("sandboxrun.dev/v1alpha1".to_owned()),
            kind: Some("SandboxRun".to_owned()),
            namespace: Some(key.namespace.to_string()),
            name: Some(key.name.to_string()),
            uid: Some(key.uid.to_string()),
            ..ObjectReference::default()
        }),
        ..EventObject::default()
    }
}

/// As much of a text as fits into so many bytes.
fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev();
    end.into_iter()
        .find_map(|end| text.get(..end))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 7396, as it is written there.
    fn merge(target: &Value, patch: Value) -> Value {
        let Value::Object(patch) = patch else {
            return patch;
        };
        let mut target = target.as_object().cloned().unwrap_or_default();
        for (name, value) in patch {
            if value.is_null() {
                target.remove(&name);
            } else {
                let before = target.remove(&name).unwrap_or(Value::Null);
                target.insert(name, merge(&before, value));
            }
        }
        Value::Object(target)
    }

    /// As a status is: nothing is null.
    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..3_i64).prop_map(Value::from),
            proptest::collection::vec((0..3_i64).prop_map(Value::from), 0..3).prop_map(Value::from),
        ];
        let members = |inner| proptest::collection::btree_map("[a-d]", inner, 0..4);
        let object = |members: std::collections::BTreeMap<String, Value>| {
            Value::Object(members.into_iter().collect())
        };
        members(
            leaf.prop_recursive(3, 20, 4, move |inner| members(inner).prop_map(object))
                .boxed(),
        )
        .prop_map(object)
    }

    proptest! {
        #[test]
        fn a_patch_makes_the_new_status_of_the_old_one(old in values(), new in values()) {
            let patch = difference(Some(old.clone()), new.clone());
            prop_assert_eq!(merge(&old, patch.clone()), new.clone());
            prop_assert_eq!(merge(&json!({}), difference(None, new.clone())), new);
        }
    }

    #[test]
    fn what_is_the_same_is_not_sent() {
        let old =
            json!({"phase": "Running", "error": {"code": "x"}, "list": [1], "same": {"a": 1}});
        let new = json!({"phase": "Succeeded", "list": [2], "same": {"a": 1}});
        let patch = json!({"phase": "Succeeded", "error": null, "list": [2]});
        assert_eq!(difference(Some(old), new), patch);
    }
}
