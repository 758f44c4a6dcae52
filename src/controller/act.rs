//! What a decision does to the record, to the API server and to what the gateway serves. The record comes first.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use super::calls::{CallError, within};
use super::desk::Desk;
use super::life::{Life, Served};
use super::observe::Asked;
use super::prepare::{Preparation, Ready};
use super::reconcile::Flush;
use super::store::{Body, SeenRun};
use super::{causes, objects, refusals, restore};
use crate::api::{Attempt, Event, Failure, Fault as _, Reason, RunKey, RunSpec, SandboxRun};
use crate::audit::{Abandon, RecordError};
use crate::gateway::{Live, LiveParts};
use crate::inputs::ResolvedInput;
use crate::manifest::{self, ResolvedRun, pod_name};
use crate::run::{AttemptFacts, AttemptState, RecordFacts};

/// How often a pod is sent again at once when the server says that it is no fault of the pod: a namespace is new, a
/// webhook starts.
const TRIES: u32 = 4;
/// Before the second try; doubled for each further one.
const PAUSE: Duration = Duration::from_millis(200);

/// On a pod: the digest of its spec as it was sent.
const SENT: &str = "sandboxrun.dev/sent";

/// What comes after an act.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rest {
    /// Look again at once: something has changed.
    Again,
    /// Nothing until something changes, or until this time.
    Until(Option<Timestamp>),
}

/// Why a run may not begin here: a broken rule, inputs switched off, a bound of the installation.
///
/// # Errors
/// When its namespace cannot be asked.
pub(super) async fn refusal(desk: &Desk, run: &SeenRun) -> Result<Option<Failure>, CallError> {
    let spec = match &run.body {
        Body::Whole { spec, .. } => spec,
        Body::Broken { failure, .. } | Body::Undecodable(failure) => {
            return Ok(Some(failure.clone()));
        }
        Body::Finished(_) => return Ok(None),
    };
    if !spec.inputs.is_empty() {
        let namespace = &run.key.namespace;
        let off = |whose: &str| {
            Failure::new(
                Reason::InputsDisabled,
                format!("workspace inputs are switched off for {whose}"),
            )
        };
        if !desk.inputs_enabled {
            return Ok(Some(off("this installation")));
        }
        if !desk.inputs_of.allow(desk, namespace).await? {
            return Ok(Some(off(&format!("the namespace `{namespace}`"))));
        }
    }
    Ok(manifest::within_limits(spec, &desk.installation).err())
}

/// Another object with the same identity.
#[derive(Debug)]
pub(super) enum Elder {
    /// There is none that counts.
    None,
    /// Its agent may start at any moment: it was deleted, and that has not been written down yet.
    MayStart,
    /// Its agent was started, which counts, whatever became of the object.
    Started(RunKey),
}

/// What became of a run with the same identity.
///
/// # Errors
/// When the record cannot be read.
pub(super) async fn lived_before(desk: &Desk, run: &SeenRun) -> Result<Elder, RecordError> {
    let digest = match &run.body {
        Body::Whole { digest, .. } | Body::Broken { digest, .. } => digest,
        Body::Undecodable(_) | Body::Finished(_) => return Ok(Elder::None),
    };
    let RunKey {
        namespace,
        name,
        uid,
        ..
    } = &run.key;
    let (record, rerun) = (&desk.gateway.record, &run.wishes.rerun);
    // In this order: what starts between the two questions is seen by the second.
    let open = record
        .may_still_start(namespace, name, digest, rerun)
        .await?;
    if open.iter().any(|elder| elder.uid != *uid) {
        return Ok(Elder::MayStart);
    }
    let started = record
        .started_before(namespace, name, digest, rerun)
        .await?;
    let other = started.filter(|started| started.uid != *uid);
    Ok(other.map_or(Elder::None, Elder::Started))
}

/// The first event of a life.
pub(super) fn created(run: &SeenRun) -> Option<Event> {
    let digest = match &run.body {
        Body::Whole { digest, .. } | Body::Broken { digest, .. } => digest,
        Body::Undecodable(_) | Body::Finished(_) => return None,
    };
    Some(Event::RunCreated {
        digest: digest.to_string(),
        rerun: run.wishes.rerun.clone(),
        writer: concat!("sandboxrun ", env!("CARGO_PKG_VERSION")).to_owned(),
    })
}

/// Appends to the record.
pub(super) async fn append(desk: &Desk, life: &mut Life, events: Vec<Event>) -> Result<(), Flush> {
    match desk.gateway.record.append_all(&life.key, events).await {
        Ok(_) => Ok(()),
        Err(error) => Err(refused_by_record(life, &error)),
    }
}

fn refused_by_record(life: &mut Life, error: &RecordError) -> Flush {
    if let RecordError::Rejected { .. } = error {
        tracing::debug!(uid = %life.key.uid, %error, "decided on what was not so any more");
        return Flush::Again;
    }
    tracing::warn!(uid = %life.key.uid, error = %causes(error), "the record cannot be written");
    life.record_trouble = Some(error.failure(None));
    Flush::Trouble
}

/// After a record that could not be written: when to try again.
pub(super) fn rest(desk: &Desk, flush: &Flush) -> Rest {
    match flush {
        Flush::Again => Rest::Again,
        Flush::Trouble => Rest::Until(Timestamp::now().checked_add(desk.limits.record_retry).ok()),
    }
}

/// Begins to resolve, unless that is under way.
pub(super) fn resolve(desk: &Desk, life: &mut Life, attempt: Attempt, spec: &Arc<RunSpec>) {
    let under_way = life.preparation.as_ref();
    if under_way.is_none_or(|preparation| preparation.attempt != attempt) {
        life.preparation = Some(Preparation::resolve(desk, &life.key, attempt, spec));
    }
}

/// What the pod of an attempt needs, once it is there. If it is not under way it is begun.
pub(super) fn prepared(
    desk: &Desk,
    life: &mut Life,
    attempt: Attempt,
    spec: &Arc<RunSpec>,
    facts: &RecordFacts,
) -> Option<Ready> {
    let current = life.preparation.as_ref();
    let current = current.filter(|preparation| preparation.attempt == attempt);
    // One that failed is asked for again only because it is time to.
    let current = current.filter(|preparation| preparation.unready().is_none());
    if let Some(preparation) = current {
        return preparation.ready();
    }
    let Some(resolved) = restore::inputs(spec, facts.current()?) else {
        let message = "the record does not hold the inputs that the spec names";
        let failure = Failure::new(Reason::Bug, message);
        life.refused = Some((attempt, failure, Timestamp::now()));
        return None;
    };
    let preparation = Preparation::fetch(desk, &life.key, attempt, spec, resolved);
    let ready = preparation.ready();
    life.preparation = Some(preparation);
    ready
}

/// Makes the pod of an attempt, which is announced, and lets the gateway serve it.
///
/// # Errors
/// When nobody knows whether it was made.
pub(super) async fn create_pod(
    desk: &Desk,
    life: &mut Life,
    attempt: Attempt,
    spec: &Arc<RunSpec>,
    ready: Ready,
    created_at: Option<Timestamp>,
) -> Result<(), CallError> {
    let sent = pod(desk, &life.key, attempt, spec, &ready.resolved);
    let api = pods(desk, &life.key);
    life.refused = None;
    life.asked_for = Some((attempt, Timestamp::now()));
    let (params, mut pause) = (PostParams::default(), PAUSE);
    for tried in 1..=TRIES {
        let create = api.create(&params, &sent);
        let created = within(desk.api_timeout, "create a pod", create).await;
        let result = created.as_ref().map_or_else(CallError::result, |_| "ok");
        desk.metrics.api_request("pod_create", result);
        let status = match created {
            Ok(made) => {
                life.saw = Some(attempt);
                if let Some(at) = created_at {
                    let after = Timestamp::now().duration_since(at);
                    desk.metrics
                        .pod_created(after.try_into().unwrap_or_default());
                }
                made_pod(desk, life, attempt, spec, ready, &sent, &made);
                return Ok(());
            }
            // One of that name is there: by our own call whose answer was lost, or somebody else's. It is looked at.
            Err(CallError::Refused { status, .. }) if status.is_already_exists() => return Ok(()),
            Err(CallError::Refused { status, .. }) => status,
            Err(error @ CallError::NoAnswer { .. }) => {
                tracing::warn!(uid = %life.key.uid, error = %causes(&error), "whether a pod was made is not known");
                return Ok(());
            }
            Err(error @ CallError::Changed { .. }) => return Err(error),
        };
        let failure = refusals::of_pod(&status);
        if failure.reason != Reason::PodRefusedForNow || tried == TRIES {
            life.refused = Some((attempt, failure, Timestamp::now()));
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Ok(())
}

/// P13: what was made is what was sent; only then does it speak for the run.
fn made_pod(
    desk: &Desk,
    life: &mut Life,
    attempt: Attempt,
    spec: &Arc<RunSpec>,
    ready: Ready,
    sent: &PodObject,
    made: &PodObject,
) {
    if let Some(seen) = objects::pod(made) {
        let uid = seen.uid.clone();
        desk.store.put_pod(&life.key.uid, attempt, seen);
        if let Some(failure) = mutated(desk, sent, made) {
            life.mutated = Some((attempt, failure));
        } else {
            let made = Live::new(parts(life, attempt, spec, ready));
            begin_service(desk, life, uid, made);
        }
    }
}

fn mutated(desk: &Desk, sent: &PodObject, made: &PodObject) -> Option<Failure> {
    let mutations = manifest::mutations(sent, made, &desk.installation);
    if mutations.is_empty() {
        return None;
    }
    let message = format!("the pod is not what was sent: {}", mutations.join(", "));
    Some(Failure::new(Reason::PodMutated, message))
}

/// What a pod turned out to be whose maker was ended before it could compare.
enum Compared {
    AsSent,
    Mutated(Failure),
    /// It was sent by an operator with other settings, or does not say what was sent.
    Incomparable,
    /// Nobody knows.
    NoAnswer,
}

async fn compare(
    desk: &Desk,
    key: &RunKey,
    attempt: Attempt,
    spec: &RunSpec,
    resolved: &[ResolvedInput],
) -> Compared {
    let sent = pod(desk, key, attempt, spec, resolved);
    let (api, name) = (pods(desk, key), pod_name(&key.uid, attempt));
    let made = within(desk.api_timeout, "read a pod", api.get(&name));
    let Ok(made) = made.await else {
        return Compared::NoAnswer;
    };
    let word = |pod: &PodObject| pod.metadata.annotations.as_ref()?.get(SENT).cloned();
    if word(&sent) != word(&made) {
        return Compared::Incomparable;
    }
    mutated(desk, &sent, &made).map_or(Compared::AsSent, Compared::Mutated)
}

fn parts(life: &Life, attempt: Attempt, spec: &Arc<RunSpec>, ready: Ready) -> LiveParts {
    LiveParts {
        key: life.key.clone(),
        attempt,
        spec: Arc::clone(spec),
        resolved: ready.resolved,
        packs: ready.packs,
    }
}

fn begin_service(desk: &Desk, life: &mut Life, pod_uid: String, served: Live) {
    end_service(desk, life);
    let served = Arc::new(served);
    let mut seen = served.watch();
    let (of, uid) = (desk.clone(), life.key.uid.clone());
    let tracker = &desk.gateway.tracker;
    tracker.spawn(desk.stop.clone().run_until_cancelled_owned(async move {
        // It ends with the attempt: the sender is a part of it.
        while seen.changed().await.is_ok() {
            of.queue.wake(&uid);
        }
    }));
    desk.awaited.set(&life.key.uid, false);
    desk.lives.insert(&pod_uid, Arc::clone(&served));
    life.live = Some(Served {
        pod_uid,
        live: served,
    });
}

/// The gateway serves the run no more.
pub(super) fn end_service(desk: &Desk, life: &mut Life) {
    if let Some(served) = life.live.take() {
        desk.lives.remove(&served.pod_uid);
    }
}

/// Lets the gateway serve an attempt that another process began, and no attempt whose pod has nothing to ask any more.
pub(super) async fn serve(desk: &Desk, life: &mut Life, spec: Option<&Arc<RunSpec>>) {
    let Some(current) = life
        .facts
        .current()
        .filter(|current| needs_gateway(current))
    else {
        end_service(desk, life);
        desk.awaited.set(&life.key.uid, false);
        if life.facts.ended.is_some() {
            life.preparation = None;
        }
        return;
    };
    let attempt = current.attempt;
    let served = life.live.as_ref();
    if served.is_some_and(|served| served.live.attempt() == attempt) || current.pod.is_none() {
        desk.awaited.set(&life.key.uid, false);
        return;
    }
    let mutated = life.mutated.as_ref().is_some_and(|(of, _)| *of == attempt)
        || life.incomparable == Some(attempt);
    let pod = desk.store.pods(&life.key.uid).get(&attempt).cloned();
    let (Some(spec), Some(pod), false) = (spec, pod, mutated) else {
        desk.awaited.set(&life.key.uid, false);
        return;
    };
    let facts = life.facts.clone();
    let failed = life.preparation.as_ref().and_then(Preparation::unready);
    let again = failed.and_then(|(_, at)| at.checked_add(desk.limits.pod_retry).ok());
    life.serve_again = again.filter(|again| Timestamp::now() < *again);
    let ready = if let Some(resolved) = begun(spec, &facts) {
        // Nobody downloads any more: a living agent waits neither for a forge nor for a Secret.
        life.serve_again = None;
        let packs = Vec::new();
        Some(Ready { resolved, packs })
    } else if life.serve_again.is_none() {
        prepared(desk, life, attempt, spec, &facts)
    } else {
        None
    };
    let Some(ready) = ready else {
        desk.awaited.set(&life.key.uid, true);
        return;
    };
    // Whatever was provisioned was compared before.
    if current_is_fresh(&facts) {
        match compare(desk, &life.key, attempt, spec, &ready.resolved).await {
            Compared::AsSent => {}
            Compared::Mutated(failure) => {
                life.mutated = Some((attempt, failure));
                desk.awaited.set(&life.key.uid, false);
                return;
            }
            Compared::Incomparable => {
                life.incomparable = Some(attempt);
                desk.awaited.set(&life.key.uid, false);
                return;
            }
            Compared::NoAnswer => {
                life.serve_again = Timestamp::now().checked_add(desk.limits.pod_retry).ok();
                desk.awaited.set(&life.key.uid, true);
                return;
            }
        }
    }
    let parts = parts(life, attempt, spec, ready);
    let Ok(entries) = desk.gateway.record.entries_after(&life.key, 0).await else {
        life.serve_again = Timestamp::now().checked_add(desk.limits.record_retry).ok();
        desk.awaited.set(&life.key.uid, true);
        return;
    };
    let now = Timestamp::now();
    let events: Vec<(Duration, Event)> = entries
        .iter()
        .filter_map(|entry| {
            let at: Timestamp = entry.at.parse().ok()?;
            let ago = now.duration_since(at).try_into().unwrap_or_default();
            Some((ago, entry.event()?))
        })
        .collect();
    let resumed = Live::resumed(parts, events.iter().map(|(ago, event)| (*ago, event)));
    begin_service(desk, life, pod.uid.clone(), resumed);
}

fn current_is_fresh(facts: &RecordFacts) -> bool {
    facts
        .current()
        .is_some_and(|current| current.provisioned.is_none())
}

/// The pinned inputs of an attempt whose agent was started: its workspace is made.
fn begun(spec: &RunSpec, facts: &RecordFacts) -> Option<Vec<ResolvedInput>> {
    let current = facts.current()?;
    match current.state {
        AttemptState::Started(_) => restore::inputs(spec, current),
        AttemptState::Open | AttemptState::Abandoned(..) | AttemptState::Failed(..) => None,
    }
}

/// Whether a pod of this attempt may still ask for anything.
fn needs_gateway(attempt: &AttemptFacts) -> bool {
    match attempt.state {
        AttemptState::Open => true,
        AttemptState::Started(_) => attempt.outcome.is_none(),
        AttemptState::Abandoned(..) | AttemptState::Failed(..) => false,
    }
}

/// Makes sure that no agent ever starts in an attempt.
pub(super) async fn abandon(
    desk: &Desk,
    life: &mut Life,
    attempt: Attempt,
    reason: Reason,
) -> Rest {
    let record = &desk.gateway.record;
    match record.abandon(&life.key, attempt, reason).await {
        Ok(Abandon::Abandoned) => {
            desk.metrics.attempt_abandoned(reason);
            life.preparation = None;
            Rest::Again
        }
        Ok(Abandon::AlreadyStarted { .. }) => Rest::Again,
        Err(error) => {
            let flush = refused_by_record(life, &error);
            rest(desk, &flush)
        }
    }
}

/// Tells the agent to stop.
pub(super) async fn stop_agent(
    desk: &Desk,
    life: &mut Life,
    attempt: Attempt,
    reason: Reason,
) -> Rest {
    let stopping = vec![Event::AgentStopping { attempt, reason }];
    match append(desk, life, stopping).await {
        Ok(()) => {
            if let Some(served) = &life.live {
                served.live.stop(reason);
            }
            Rest::Again
        }
        Err(flush) => rest(desk, &flush),
    }
}

/// Deletes the pod of an attempt, if it still is the one that is known.
///
/// # Errors
/// When the API server does not take it.
pub(super) async fn delete_pod(
    desk: &Desk,
    key: &RunKey,
    attempt: Attempt,
) -> Result<(), CallError> {
    let Some(known) = desk.store.pods(&key.uid).get(&attempt).cloned() else {
        return Ok(());
    };
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(known.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let api = pods(desk, key);
    let delete = api.delete(&known.name, &params);
    let deleted = within(desk.api_timeout, "delete a pod", delete).await;
    let result = deleted.as_ref().map_or_else(CallError::result, |_| "ok");
    desk.metrics.api_request("pod_delete", result);
    match deleted {
        Ok(answer) => {
            // What is on its way out shows so at once; what went at once is gone.
            match answer.left().as_ref().and_then(objects::pod) {
                Some(seen) if seen.deleting => {
                    desk.store.put_pod(&key.uid, attempt, seen);
                }
                Some(_) | None => desk.store.drop_pod(&key.uid, attempt, &known.uid),
            }
            Ok(())
        }
        Err(error) if error.is_gone() => {
            desk.store.drop_pod(&key.uid, attempt, &known.uid);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Deletes a run that asked for it.
///
/// # Errors
/// When the API server does not take it.
pub(super) async fn delete_run(desk: &Desk, key: &RunKey) -> Result<(), CallError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(key.uid.to_string()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    let api: Api<SandboxRun> = Api::namespaced(desk.client.clone(), key.namespace.as_str());
    let delete = async { api.delete(key.name.as_str(), &params).await.map(drop) };
    let deleted = within(desk.api_timeout, "delete a finished run", delete).await;
    let result = deleted.as_ref().map_or_else(CallError::result, |()| "ok");
    desk.metrics.api_request("run_delete", result);
    match deleted {
        Err(error) if !error.is_gone() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Asks the API server for the pod of an attempt.
pub(super) async fn find_pod(desk: &Desk, key: &RunKey, attempt: Attempt) -> Asked {
    let api = pods(desk, key);
    let name = pod_name(&key.uid, attempt);
    let found = within(desk.api_timeout, "read a pod", api.get_opt(&name)).await;
    match found {
        Ok(None) => Asked::Absent,
        Ok(Some(pod)) if objects::owner(&pod) == Some(key.uid.as_str()) => {
            match objects::pod(&pod) {
                Some(seen) => {
                    desk.store.put_pod(&key.uid, attempt, seen.clone());
                    Asked::Found(Arc::new(seen))
                }
                None => Asked::NoAnswer,
            }
        }
        Ok(Some(_)) => {
            let message =
                format!("a pod of the name `{name}` is there and belongs to somebody else");
            Asked::Foreign(Failure::new(Reason::NameTaken, message))
        }
        Err(error) => {
            tracing::warn!(uid = %key.uid, error = %causes(&error), "a pod could not be looked for");
            Asked::NoAnswer
        }
    }
}

fn pods(desk: &Desk, key: &RunKey) -> Api<PodObject> {
    Api::namespaced(desk.client.clone(), key.namespace.as_str())
}

fn pod(
    desk: &Desk,
    key: &RunKey,
    attempt: Attempt,
    spec: &RunSpec,
    resolved: &[ResolvedInput],
) -> PodObject {
    let origins = resolved
        .iter()
        .map(|input| (input.name.clone(), input.repository.to_string()))
        .collect();
    let run = ResolvedRun {
        key,
        spec,
        origins: &origins,
    };
    let mut pod = manifest::pod(&run, attempt, &desk.installation, &(desk.door)());
    let sent = serde_json::to_value(&pod.spec).unwrap_or_default();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SENT.to_owned(), crate::api::digest(&sent));
    pod
}
