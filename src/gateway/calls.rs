//! The lines that a call of the agent leaves in the record: one before anything leaves, one when it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use http::{Method, Response};
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;

use super::lines::{REFUSED, Room};
use super::live::Live;
use super::server::{Caller, refusal};
use crate::api::wire::Problem;
use crate::api::{Reason, sha256_hex};
use crate::audit::{Call, Decision, Event, QueryDigest, Via};

/// Paths and hosts in the record are cut here; the rest is never needed to tell which rule it met.
const TARGET_BYTES: usize = 1024;

/// A call that is being decided or is under way. Ends in exactly one line: refused, failed or allowed.
pub(super) struct OpenCall {
    caller: Caller,
    call: Call,
    began: Instant,
    bytes: Arc<AtomicU64>,
    open: bool,
}

/// Opens a call. Nothing is written yet.
pub(super) fn open(
    caller: &Caller,
    via: Via,
    method: &Method,
    target: &str,
    query: Option<&str>,
) -> OpenCall {
    let query = query.filter(|q| !q.is_empty()).map(|q| QueryDigest {
        bytes: q.len() as u64,
        sha256: sha256_hex(q.as_bytes()),
    });
    let mut target = crate::api::safe_text(target.as_bytes());
    if target.len() > TARGET_BYTES {
        let cut = (0..=TARGET_BYTES)
            .rev()
            .find(|at| target.is_char_boundary(*at))
            .unwrap_or(0);
        target.truncate(cut);
        target.push('…');
    }
    let call = Call {
        attempt: caller.live.parts.attempt,
        via,
        method: method.as_str().to_owned(),
        target,
        query,
        decision: Decision::Begun,
        status: 0,
        bytes: 0,
        millis: 0,
    };
    OpenCall {
        caller: caller.clone(),
        call,
        began: Instant::now(),
        bytes: Arc::default(),
        open: false,
    }
}

/// Why a call does not go on.
pub(super) struct Denied {
    pub(super) status: u16,
    pub(super) reason: Reason,
    pub(super) detail: String,
    /// The rule that refused; `None`: the call failed on the way.
    pub(super) rule: Option<String>,
}

impl Denied {
    /// A rule refuses it.
    pub(super) fn by(
        rule: impl Into<String>,
        status: u16,
        reason: Reason,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            status,
            reason,
            detail: detail.into(),
            rule: Some(rule.into()),
        }
    }
}

/// Refuses a call of a name that the run does not have.
pub(super) async fn unknown(
    caller: &Caller,
    request: &http::request::Parts,
    detail: &str,
    rule: &str,
) -> Response<Body> {
    let (target, query) = (request.uri.path(), request.uri.query());
    let call = open(caller, Via::Other, &request.method, target, query);
    call.refuse(403, Reason::NoRuleAllows, detail, rule).await
}

impl OpenCall {
    /// Takes the call up: admitted by its rules, in the run's turn, counted, and announced in the record. Only then may
    /// anything leave. What comes back holds the turn.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub(super) async fn take_up<A>(
        mut self,
        live: &Live,
        admitted: Result<A, Denied>,
        count: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(Self, A, SemaphorePermit<'_>), Response<Body>> {
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(denied) => return Err(self.deny(denied).await),
        };
        let Ok(turn) = live.calls.acquire().await else {
            let gone = self.fail(503, Reason::GatewayBusy, "the run has ended");
            return Err(gone.await);
        };
        if let Err(denied) = count() {
            return Err(self.deny(denied).await);
        }
        self.begin().await?;
        Ok((self, admitted, turn))
    }

    /// Ends the call: refused by a rule, or failed.
    async fn deny(self, denied: Denied) -> Response<Body> {
        let Denied {
            status,
            reason,
            detail,
            rule,
        } = denied;
        match rule {
            Some(rule) => self.refuse(status, reason, &detail, &rule).await,
            None => self.fail(status, reason, &detail).await,
        }
    }

    /// Writes the line that announces the call. Only then may anything leave.
    ///
    /// # Errors
    /// The refusal to answer with, when the line cannot be written.
    pub(super) async fn begin(&mut self) -> Result<(), Response<Body>> {
        if self.caller.live.lines.made() == Room::Full {
            let reason = Reason::RunCallLimit;
            let problem = Problem::new(429, reason, reason.hint(), "calls of one run");
            return Err(refusal(&problem));
        }
        self.append(self.call.clone()).await?;
        self.open = true;
        Ok(())
    }

    /// Refuses the call by a rule of ours.
    pub(super) async fn refuse(
        mut self,
        status: u16,
        reason: Reason,
        detail: &str,
        rule: &str,
    ) -> Response<Body> {
        let problem = Problem::new(status, reason, detail, rule);
        let decision = match self.caller.live.lines.refused() {
            Room::Left => Decision::Refused {
                reason,
                rule: rule.to_owned(),
            },
            Room::Last => Decision::Refused {
                reason: Reason::RefusalLimit,
                rule: format!("the {REFUSED} refused calls of one run that have a line"),
            },
            Room::Full => return refusal(&problem),
        };
        self.end(status, decision, problem).await
    }

    /// Ends a call that was allowed and failed on the way.
    pub(super) async fn fail(
        mut self,
        status: u16,
        reason: Reason,
        detail: &str,
    ) -> Response<Body> {
        self.end(
            status,
            Decision::Failed { reason },
            Problem::new(status, reason, detail, ""),
        )
        .await
    }

    /// The call was answered with this status; its body is counted until it ends, then the line is written.
    pub(super) fn answered(mut self, status: u16) -> Counter {
        self.call.status = status;
        self.call.decision = Decision::Allowed;
        Counter {
            bytes: Arc::clone(&self.bytes),
            call: self,
        }
    }

    async fn end(&mut self, status: u16, decision: Decision, problem: Problem) -> Response<Body> {
        self.open = false;
        let done = self.done(status, decision);
        match self.append(done).await {
            Ok(()) => refusal(&problem),
            Err(not_recorded) => not_recorded,
        }
    }

    fn done(&self, status: u16, decision: Decision) -> Call {
        Call {
            status,
            decision,
            bytes: self.bytes.load(Ordering::Relaxed),
            millis: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..self.call.clone()
        }
    }

    async fn append(&self, call: Call) -> Result<(), Response<Body>> {
        let record = &self.caller.gateway.record;
        // A closed queue is never: it lives as long as the run.
        let _turn = self.caller.live.lines.turns.acquire().await;
        let appended = record
            .append(&self.caller.live.parts.key, Event::Call(call))
            .await;
        self.caller.live.note(|_| ()); // whoever watches the run sees the call now
        appended.map(drop).map_err(|error| {
            tracing::error!(%error, "a call could not be recorded, so it is refused");
            refusal(&Problem::new(
                503,
                Reason::RecordNotWritten,
                "the record cannot be written",
                "",
            ))
        })
    }
}

impl Drop for OpenCall {
    /// However a call ends (the agent hung up, the other server broke off), its last line is written.
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        let decision = if self.call.decision == Decision::Begun {
            Decision::Failed {
                reason: Reason::UpstreamUnreachable,
            }
        } else {
            self.call.decision.clone()
        };
        let done = self.done(self.call.status, decision);
        let (record, key) = (
            self.caller.gateway.record.clone(),
            self.caller.live.parts.key.clone(),
        );
        self.caller.gateway.tracker.spawn(async move {
            if let Err(error) = record.append(&key, Event::Call(done)).await {
                tracing::error!(%error, "the end of a call could not be recorded");
            }
        });
    }
}

/// Counts the bytes of an answer while it streams. Dropping it writes the call's last line.
pub(super) struct Counter {
    bytes: Arc<AtomicU64>,
    call: OpenCall,
}

impl Counter {
    /// Counts bytes that went to the agent.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The same count, for a copy that runs beside this.
    pub(super) fn bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes)
    }

    /// The answer broke off for this reason.
    pub(super) fn broke_off(&mut self, reason: Reason) {
        self.call.call.decision = Decision::Failed { reason };
    }
}
