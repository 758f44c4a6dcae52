//! What provision and collect call: the plan, packs, and their two reports.

use axum::body::Body;
use http::Response;
use tower::ServiceExt as _;
use tower_http::services::ServeFile;

use super::output;
use super::server::{Answer, Caller, PodRequest, json, read_json, refusal};
use crate::api::wire::{Outcome, Problem, ProvisionReport};
use crate::api::{Fault as _, Reason};
use crate::audit::{Event, RecordError, Rejected};

/// A report of 16 inputs with their first paths is some 100 KiB; the output is up to 1 MiB, escaped.
const REPORT_BYTES: usize = 8 * 1024 * 1024;

pub(super) fn plan(caller: &Caller) -> Response<Body> {
    json(&caller.live.plan())
}

/// `{input}/pack` or `{input}/idx`, with range requests: a download that breaks off goes on where it stopped.
pub(super) async fn pack(which: &str, request: PodRequest, caller: &Caller) -> Answer {
    let unknown = || refusal(&Problem::new(404, Reason::Bug, "no such pack", ""));
    let (name, kind) = which.split_once('/').ok_or_else(unknown)?;
    let parts = &caller.live.parts;
    let found = parts
        .resolved
        .iter()
        .zip(&parts.packs)
        .find(|(input, _)| input.name.as_str() == name);
    let (_, pack) = found.ok_or_else(unknown)?;
    let file = match kind {
        "pack" => &pack.pack,
        "idx" => &pack.index,
        _ => return Err(unknown()),
    };
    match ServeFile::new(file).oneshot(request).await {
        Ok(response) if response.status().is_success() => Ok(response.map(Body::new)),
        // The file is gone, unreadable, or shorter than what was promised of it.
        Ok(response) => {
            let status = response.status();
            let detail = format!("the pack on the host side is not whole any more ({status})");
            Err(refusal(&Problem::new(
                status.as_u16(),
                Reason::PackInvalid,
                detail,
                "",
            )))
        }
        Err(never) => match never {},
    }
}

pub(super) async fn provisioned(request: PodRequest, caller: &Caller) -> Answer {
    let report: ProvisionReport = read_json(request, REPORT_BYTES).await?;
    let attempt = caller.live.parts.attempt;
    let event = match &report {
        ProvisionReport::Done { inputs } => Event::InputsProvisioned {
            attempt,
            inputs: inputs.clone(),
        },
        ProvisionReport::Failed { failure } => Event::AttemptFailed {
            attempt,
            failure: failure.clone(),
        },
    };
    append(caller, vec![event]).await?;
    caller.live.note(|seen| seen.provision = Some(report));
    Ok(json(&serde_json::json!({})))
}

pub(super) async fn outcome(request: PodRequest, caller: &Caller) -> Answer {
    let outcome: Outcome = read_json(request, REPORT_BYTES).await?;
    let parts = &caller.live.parts;
    let attempt = parts.attempt;
    let named = outcome
        .inputs
        .iter()
        .map(|i| &i.name)
        .eq(parts.resolved.iter().map(|i| &i.name));
    if !named {
        return Err(refusal(&Problem::new(
            400,
            Reason::Bug,
            "the outcome names other inputs than the plan",
            "",
        )));
    }
    let (output, output_failure) = output::check(
        &outcome.output,
        parts.spec.agent.output_schema.as_ref(),
        attempt,
    );
    let mut events: Vec<Event> = outcome
        .inputs
        .iter()
        .map(|input| Event::Drift {
            attempt,
            outcome: input.clone(),
        })
        .collect();
    events.push(output);
    let record = &caller.gateway.record;
    match record.append_all(&parts.key, events).await {
        Ok(_) => {}
        // Reported before, and the answer was lost; or given up and recorded as unknown. The first report stays.
        Err(RecordError::Rejected {
            why: Rejected::AlreadyReported | Rejected::Ended,
            ..
        }) => return Ok(json(&serde_json::json!({}))),
        Err(error) => return Err(not_recorded(caller, &error)),
    }
    caller.live.note(|seen| {
        seen.unrecorded = None;
        seen.outcome = Some(outcome);
        seen.output_failure = output_failure;
    });
    Ok(json(&serde_json::json!({})))
}

/// Appends to the run's record, or answers that it cannot be written.
pub(super) async fn append(caller: &Caller, events: Vec<Event>) -> Result<(), Response<Body>> {
    let appended = caller
        .gateway
        .record
        .append_all(&caller.live.parts.key, events)
        .await;
    appended.map_err(|error| not_recorded(caller, &error))?;
    if caller.live.seen().unrecorded.is_some() {
        caller.live.note(|seen| seen.unrecorded = None);
    }
    Ok(())
}

/// The answer that the record cannot be written. What comes of it may have no other cause to show, so this one is kept.
pub(super) fn not_recorded(caller: &Caller, error: &RecordError) -> Response<Body> {
    if let RecordError::Rejected { why, .. } = error {
        // It will not be taken later either: the run went on without it.
        return refusal(&Problem::new(409, Reason::GrantLost, why.to_string(), ""));
    }
    tracing::error!(%error, "a report could not be recorded");
    let failure = error.failure(None);
    let reason = failure.reason;
    caller.live.note(|seen| seen.unrecorded = Some(failure));
    let detail = "the record cannot be written";
    refusal(&Problem::new(503, reason, detail, ""))
}
