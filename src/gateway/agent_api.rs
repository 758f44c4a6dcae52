//! What relay and exec of the agent's sandbox call: the proof, the start grant, and the end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::{Stream, StreamExt as _, stream};
use http::Response;
use tokio::sync::watch;
use tokio::time::Instant;

use super::live::Live;
use super::pod_api::{append, not_recorded};
use super::server::{Answer, Caller, PodRequest, json, read_json, refusal};
use crate::api::wire::{
    AgentEnd, Canary, GrantLine, GrantRequest, Problem, ProofReport, ProvisionReport,
};
use crate::api::{Fault as _, Reason};
use crate::audit::{Event, Grant};

/// A lost gateway is noticed by `exec` after 30 s without a line: six of these.
const ALIVE_EVERY: Duration = Duration::from_secs(5);
/// Reports of the agent's sandbox are small.
const REPORT_BYTES: usize = 256 * 1024;
/// Fewer rounds prove nothing: a fresh network is open at first.
const PROOF_ROUNDS: u32 = 2;
/// A policy that was not proved for this long while an agent lived is a gap that the record shows: four proofs are missing.
const GAP: Duration = Duration::from_mins(1);

/// Hands out a fresh proof, after every canary has answered from here.
pub(super) async fn proof_plan(caller: &Caller) -> Answer {
    let canaries = &caller.gateway.canaries;
    canaries
        .confirm()
        .await
        .map_err(|error| refusal(&Problem::of(503, &error.failure(None))))?;
    let proof = canaries.proof();
    let answer = json(proof.plan());
    caller.live.open_proof(proof);
    Ok(answer)
}

/// Judges a proof by what was seen here, and records it either way. One that repeats what is known has no line of its own;
/// one that fails while the agent may live stops it: a connection that was opened in the gap outlives the repair.
pub(super) async fn proof(request: PodRequest, caller: &Caller) -> Answer {
    let report: ProofReport = read_json(request, REPORT_BYTES).await?;
    // What listened before must listen still, or the silence meant nothing.
    let canaries = &caller.gateway.canaries;
    canaries
        .confirm()
        .await
        .map_err(|error| refusal(&Problem::of(503, &error.failure(None))))?;
    let live = &caller.live;
    let proof = live.take_proof(&report.nonce);
    let proof = proof.ok_or_else(|| {
        refusal(&Problem::new(
            409,
            Reason::CanaryDown,
            "no such proof is under way",
            "",
        ))
    })?;
    let open = proof.judge(&report);
    let enforced = open.iter().all(|canary| canary.tolerated) && report.rounds >= PROOF_ROUNDS;
    let before = live.seen();
    if before.exit.is_some() {
        return Ok(taken()); // nobody is left to be held in
    }
    let alive = before.granted_at.is_some();
    let unproven = Duration::from_millis(report.unproven_millis);
    if enforced && before.proved == Some(true) && unproven < GAP {
        live.note_proved_again();
        return Ok(taken());
    }
    let not_proved = not_taken(&open);
    if !enforced && report.tries_again && !alive {
        return Err(not_proved); // a fresh network that is still open: its last proof has the line
    }
    let mut events = vec![Event::PolicyProof {
        attempt: live.parts.attempt,
        enforced,
        canaries: proof.plan().canaries.clone(),
        open,
        open_millis: report.open_millis,
        unproven_millis: if unproven < GAP {
            0
        } else {
            report.unproven_millis
        },
    }];
    if !enforced && (alive || before.proved == Some(true)) {
        // Before the record, which may be slow: also for a yes that is being given right now.
        live.stop(Reason::PolicyLost);
    }
    if !enforced && alive {
        events.push(Event::AgentStopping {
            attempt: live.parts.attempt,
            reason: Reason::PolicyLost,
        });
    }
    append(caller, events).await?;
    live.note(|seen| {
        seen.proved = Some(enforced);
        if enforced {
            seen.proved_at = Some(Instant::now());
        }
    });
    if enforced {
        Ok(taken())
    } else {
        Err(not_proved)
    }
}

fn taken() -> Response<Body> {
    json(&serde_json::json!({}))
}

fn not_taken(open: &[Canary]) -> Response<Body> {
    let names: Vec<String> = open
        .iter()
        .map(|c| format!("{} ({})", c.name, c.address))
        .collect();
    let detail = format!("reachable from inside the sandbox: {}", names.join(", "));
    refusal(&Problem::new(403, Reason::CanaryOpen, detail, ""))
}

/// Gives the start grant: only on a whole workspace and a proved policy, and once, by the record's word.
pub(super) async fn grant(request: PodRequest, caller: &Caller) -> Answer {
    let ask: GrantRequest = read_json(request, REPORT_BYTES).await?;
    let no = |status, reason, detail: &str| refusal(&Problem::new(status, reason, detail, ""));
    if ask.nonce.len() != 32 || !ask.nonce.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(no(
            400,
            Reason::GrantLost,
            "the nonce must be 32 hex digits",
        ));
    }
    let live = &caller.live;
    let seen = live.seen();
    // Who has the yes gets it again, whatever has become of the rest: it is told to stop over this very connection.
    if !live.holds_grant(&ask.nonce) {
        if !matches!(seen.provision, Some(ProvisionReport::Done { .. })) {
            return Err(no(409, Reason::GrantLost, "the inputs are not provisioned"));
        }
        if seen.proved != Some(true) {
            return Err(no(409, Reason::CanaryOpen, "the policy is not proved"));
        }
        if let Some(reason) = live.stopping() {
            return Err(no(409, reason, "the run is being stopped"));
        }
    }
    let record = &caller.gateway.record;
    match record
        .grant(&live.parts.key, live.parts.attempt, &ask.nonce)
        .await
    {
        Ok(Grant::Granted { .. }) => {
            live.note_grant(&ask.nonce);
            Ok(grant_stream(live))
        }
        Ok(Grant::Refused(why)) => Err(no(409, Reason::GrantLost, &why.to_string())),
        Err(error) => Err(not_recorded(caller, &error)),
    }
}

/// How the agent's command ended, by the word of the `exec` that holds the grant.
pub(super) async fn ended(request: PodRequest, caller: &Caller) -> Answer {
    let end: AgentEnd = read_json(request, REPORT_BYTES).await?;
    let live = &caller.live;
    let attempt = live.parts.attempt;
    // Asked again with the same nonce the record says yes again; with another one it is not our exec.
    match caller
        .gateway
        .record
        .grant(&live.parts.key, attempt, &end.nonce)
        .await
    {
        Ok(Grant::Granted { .. }) => {}
        Ok(Grant::Refused(_)) => {
            return Err(refusal(&Problem::new(
                409,
                Reason::GrantLost,
                "this exec holds no grant",
                "",
            )));
        }
        Err(error) => return Err(not_recorded(caller, &error)),
    }
    let seen = live.seen();
    if seen.exit.is_none() {
        let millis = seen.granted_at.map_or(0, |at| at.elapsed().as_millis());
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        append(
            caller,
            vec![Event::AgentEnded {
                attempt,
                exit: Some(end.exit.clone()),
                millis,
            }],
        )
        .await?;
        live.note(|seen| seen.exit = Some(end.exit));
    }
    Ok(json(&serde_json::json!({})))
}

/// The open answer to a grant: lives as long as `exec` does. Its end is how the gateway knows that the agent is gone.
fn grant_stream(live: &Arc<Live>) -> Response<Body> {
    let held = Held::new(Arc::clone(live));
    let first = line(&live.granted_line());
    let body = stream::once(std::future::ready(first)).chain(later_lines(held, live.stop_signal()));
    let mut response = Response::new(Body::from_stream(body.map(Ok::<_, Infallible>)));
    let lines = http::HeaderValue::from_static("application/jsonl");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, lines);
    response
}

/// `Stop` at once when asked for, else `Alive` now and then. Never ends by itself.
fn later_lines(held: Held, stop: watch::Receiver<Option<Reason>>) -> impl Stream<Item = Bytes> {
    stream::unfold((held, stop, false), |(held, mut stop, told)| async move {
        let reason = *stop.borrow_and_update();
        if let (Some(reason), false) = (reason, told) {
            return Some((line(&GrantLine::Stop { reason }), (held, stop, true)));
        }
        let changed = tokio::time::timeout(ALIVE_EVERY, async {
            if stop.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        match changed.await {
            Ok(()) if !told => {
                let reason = (*stop.borrow_and_update()).unwrap_or(Reason::CancelRequested);
                Some((line(&GrantLine::Stop { reason }), (held, stop, true)))
            }
            Ok(()) | Err(_) => Some((line(&GrantLine::Alive), (held, stop, told))),
        }
    })
}

fn line(line: &GrantLine) -> Bytes {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// An open grant stream. Dropped with its connection.
struct Held(Arc<Live>);

impl Held {
    fn new(live: Arc<Live>) -> Self {
        live.note(|seen| {
            seen.granted_at.get_or_insert_with(Instant::now);
            seen.grant_streams += 1;
        });
        Self(live)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0
            .note(|seen| seen.grant_streams = seen.grant_streams.saturating_sub(1));
    }
}
