//! One attempt of one run, as the gateway and its shell see it while it lives.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::canary::Proof;
use super::lines::Lines;
use crate::api::wire::{AgentExit, Blob, GrantLine, Outcome, Plan, PlannedInput, ProvisionReport};
use crate::api::{Attempt, Decision, Event, Lookup, LookupName, Reason, RunSpec, Via, hex};
use crate::audit::RunKey;
use crate::inputs::{PackLease, ResolvedInput};

/// Calls of one run that may be under way at once; more wait. Fair between runs: each has its own.
const CALLS_AT_ONCE: usize = 64;
/// Connections of one run over TLS: the relay's 256, and room for the broker's own, which an agent cannot take.
const CONNECTIONS: usize = 288;
/// Fetches of one run over ssh that may be under way at once: each is a process.
const SSH_AT_ONCE: usize = 4;

/// What makes a [`Live`] run.
#[derive(Debug)]
pub struct LiveParts {
    /// Whose record.
    pub key: RunKey,
    /// Which attempt.
    pub attempt: Attempt,
    /// What the run asks for.
    pub spec: Arc<RunSpec>,
    /// The pinned inputs.
    pub resolved: Vec<ResolvedInput>,
    /// Their packs, in the same order, held against eviction. None once the workspace is made: nobody asks for them.
    pub packs: Vec<PackLease>,
}

/// One attempt of one run while it lives.
#[derive(Debug)]
pub struct Live {
    pub(super) parts: LiveParts,
    pub(super) calls: Semaphore,
    pub(super) places: Arc<Semaphore>,
    pub(super) over_ssh: Arc<Semaphore>,
    /// What the run's calls have written into the record.
    pub(super) lines: Lines,
    /// The nonce of the `exec` that got the yes.
    granted: Mutex<Option<String>>,
    proof: Mutex<Option<Proof>>,
    usage: Mutex<HashMap<LookupName, Usage>>,
    seen: watch::Sender<Seen>,
    stop: watch::Sender<Option<Reason>>,
}

/// What has been seen of an attempt so far. Only ever grows.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// How provision ended.
    pub provision: Option<ProvisionReport>,
    /// Whether the policy was proved; `Some(false)`: shown not to hold.
    pub proved: Option<bool>,
    /// When it was last proved. Repeated proofs wake nobody.
    pub proved_at: Option<Instant>,
    /// When the start grant was given.
    pub granted_at: Option<Instant>,
    /// How many grant streams are open: 0 after [`Seen::granted_at`] means that `exec` is gone or cut off.
    pub grant_streams: usize,
    /// How the agent's command ended, by `exec`'s word.
    pub exit: Option<AgentExit>,
    /// What the run left, by `collect`'s word.
    pub outcome: Option<Outcome>,
    /// Whether the output keeps the run's schema; set with the outcome.
    pub output_failure: Option<crate::api::Failure>,
    /// Why the record did not take the last thing that this attempt's programs reported.
    pub unrecorded: Option<crate::api::Failure>,
}

/// What a lookup has used up.
#[derive(Debug, Default)]
struct Usage {
    calls: u64,
    bytes: u64,
    recent: VecDeque<Instant>,
}

impl Live {
    /// A run that has been resolved and whose packs are ready.
    #[must_use]
    pub fn new(parts: LiveParts) -> Self {
        Self {
            parts,
            calls: Semaphore::new(CALLS_AT_ONCE),
            places: Arc::new(Semaphore::new(CONNECTIONS)),
            over_ssh: Arc::new(Semaphore::new(SSH_AT_ONCE)),
            lines: Lines::default(),
            granted: Mutex::default(),
            proof: Mutex::default(),
            usage: Mutex::default(),
            seen: watch::Sender::default(),
            stop: watch::Sender::default(),
        }
    }

    /// The same, after a restart of the gateway: with what the record knows of this attempt. Each event comes with how
    /// long ago it was written; those of other attempts count for nothing.
    ///
    /// `exec` then gets its yes again, limits of lookups go on where they were, and an agent that was to stop still is.
    #[must_use]
    pub fn resumed<'e>(
        parts: LiveParts,
        events: impl IntoIterator<Item = (Duration, &'e Event)>,
    ) -> Self {
        let live = Self::new(parts);
        let now = Instant::now();
        for (ago, event) in events {
            live.recall(event, now.checked_sub(ago).unwrap_or(now));
        }
        live
    }

    /// Takes what the record says as seen.
    fn recall(&self, event: &Event, at: Instant) {
        let own = self.parts.attempt;
        match event {
            Event::InputsProvisioned { attempt, inputs } if *attempt == own => {
                let inputs = inputs.clone();
                self.note(|seen| seen.provision = Some(ProvisionReport::Done { inputs }));
            }
            Event::PolicyProof {
                attempt, enforced, ..
            } if *attempt == own => self.note(|seen| {
                seen.proved = Some(*enforced);
                if *enforced {
                    seen.proved_at = Some(at);
                }
            }),
            Event::AgentStarted { attempt, nonce } if *attempt == own => {
                self.note_grant(nonce);
                self.note(|seen| seen.granted_at = Some(at));
            }
            Event::AgentStopping { attempt, reason } if *attempt == own => self.stop(*reason),
            Event::AgentEnded { attempt, exit, .. } if *attempt == own => {
                self.note(|seen| seen.exit.clone_from(exit));
            }
            Event::Call(call) if call.attempt == own => {
                self.lines.recall(&call.decision);
                if let Via::Lookup(name) = &call.via {
                    self.recall_usage(name, &call.decision, call.bytes, at);
                }
            }
            Event::RunCreated { .. }
            | Event::AttemptDispatched { .. }
            | Event::InputResolved { .. }
            | Event::AttemptFailed { .. }
            | Event::PodCreating { .. }
            | Event::InputsProvisioned { .. }
            | Event::PolicyProof { .. }
            | Event::AgentStarted { .. }
            | Event::AttemptAbandoned { .. }
            | Event::AgentStopping { .. }
            | Event::AgentEnded { .. }
            | Event::Call(_)
            | Event::Drift { .. }
            | Event::Output { .. }
            | Event::RunEnded { .. } => {}
        }
    }

    fn recall_usage(&self, name: &LookupName, decision: &Decision, bytes: u64, at: Instant) {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = usage.entry(name.clone()).or_default();
        match decision {
            Decision::Begun => {
                usage.calls += 1;
                usage.recent.push_back(at);
            }
            Decision::Allowed | Decision::Failed { .. } => {
                usage.bytes = usage.bytes.saturating_add(bytes);
            }
            Decision::Refused { .. } => {}
        }
    }

    /// Whose record.
    #[must_use]
    pub fn key(&self) -> &RunKey {
        &self.parts.key
    }

    /// Which attempt.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.parts.attempt
    }

    /// What the run asks for.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.parts.spec
    }

    /// The pinned inputs.
    #[must_use]
    pub fn inputs(&self) -> &[ResolvedInput] {
        &self.parts.resolved
    }

    /// The packs of the inputs, in the same order.
    #[must_use]
    pub fn packs(&self) -> &[PackLease] {
        &self.parts.packs
    }

    /// Watches what is seen of the attempt.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Asks `exec` to stop the agent. The first reason stays.
    pub fn stop(&self, reason: Reason) {
        self.stop.send_if_modified(|now| {
            let first = now.is_none();
            now.get_or_insert(reason);
            first
        });
    }

    /// Whether and why the agent was asked to stop.
    #[must_use]
    pub fn stopping(&self) -> Option<Reason> {
        *self.stop.borrow()
    }

    /// What provision is told to do.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let LiveParts {
            key,
            attempt,
            spec,
            resolved,
            packs,
        } = &self.parts;
        let mut packs = packs.iter();
        let inputs = resolved
            .iter()
            .map(|input| planned(input, packs.next()))
            .collect();
        let context = spec
            .agent
            .context
            .iter()
            .map(|file| crate::api::wire::ContextFile {
                path: file.path.clone(),
                content: file.content.clone(),
            });
        Plan {
            run: key.uid.clone(),
            attempt: *attempt,
            inputs,
            prompt: spec.agent.prompt.clone(),
            context: context.collect(),
        }
    }

    /// The grant's first line.
    pub(super) fn granted_line(&self) -> GrantLine {
        let agent = &self.parts.spec.agent;
        GrantLine::Granted {
            timeout_secs: agent.timeout.as_secs(),
            stall_secs: agent.stall_timeout.map(|d| d.as_secs()),
        }
    }

    pub(super) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(change);
    }

    /// The policy was proved once more: a fact for whoever asks, and no news.
    pub(super) fn note_proved_again(&self) {
        self.seen.send_if_modified(|seen| {
            seen.proved_at = Some(Instant::now());
            false
        });
    }

    /// Remembers whose yes it is.
    pub(super) fn note_grant(&self, nonce: &str) {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        *granted = Some(nonce.to_owned());
    }

    /// Whether this `exec` got the yes before.
    pub(super) fn holds_grant(&self, nonce: &str) -> bool {
        let granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        granted.as_deref() == Some(nonce)
    }

    pub(super) fn stop_signal(&self) -> watch::Receiver<Option<Reason>> {
        self.stop.subscribe()
    }

    /// Keeps the proof that was handed out last; an older one no longer counts.
    pub(super) fn open_proof(&self, proof: Proof) {
        *self.proof.lock().unwrap_or_else(PoisonError::into_inner) = Some(proof);
    }

    /// Takes the open proof of this nonce: each counts once.
    pub(super) fn take_proof(&self, nonce: &str) -> Option<Proof> {
        self.proof
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_if(|proof| proof.plan().nonce == nonce)
    }

    /// Counts a call of a lookup, if its limits leave room for it.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn count_call(&self, lookup: &Lookup, now: Instant) -> Result<(), Reason> {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = usage.entry(lookup.name.clone()).or_default();
        while usage
            .recent
            .front()
            .is_some_and(|at| now.duration_since(*at) >= Duration::from_mins(1))
        {
            usage.recent.pop_front();
        }
        if lookup.max_calls.is_some_and(|max| usage.calls >= max) {
            return Err(Reason::CallLimit);
        }
        if lookup.max_bytes.is_some_and(|max| usage.bytes >= max) {
            return Err(Reason::ByteLimit);
        }
        if let Some(max) = lookup.per_minute {
            if usage.recent.len() as u64 >= max {
                return Err(Reason::RateLimit);
            }
            usage.recent.push_back(now);
        }
        usage.calls += 1;
        Ok(())
    }

    /// Whether an answer of so many bytes stays below the lookup's limit.
    pub(super) fn has_room(&self, lookup: &Lookup, bytes: u64) -> bool {
        let usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let used = usage.get(&lookup.name).map_or(0, |usage| usage.bytes);
        lookup
            .max_bytes
            .is_none_or(|max| used.saturating_add(bytes) <= max)
    }

    /// Counts bytes of a lookup's answer; false when the limit is passed.
    pub(super) fn count_bytes(&self, lookup: &Lookup, bytes: u64) -> bool {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = usage.entry(lookup.name.clone()).or_default();
        usage.bytes = usage.bytes.saturating_add(bytes);
        lookup.max_bytes.is_none_or(|max| usage.bytes <= max)
    }
}

/// What provision is told of one input; without a pack, what a broker that reads what the agent left needs of it.
fn planned(input: &ResolvedInput, pack: Option<&PackLease>) -> PlannedInput {
    let nothing = || Blob {
        bytes: 0,
        sha256: String::new(),
    };
    PlannedInput {
        name: input.name.clone(),
        path: input.path.clone(),
        commit: input.commit.clone(),
        resolved_ref: input.resolved_ref.clone(),
        origin: input.repository.to_string(),
        read_only: input.read_only,
        shallow: pack.map(|pack| pack.shallow.clone()).unwrap_or_default(),
        pack: pack.map_or_else(nothing, |pack| pack.pack_blob.clone()),
        index: pack.map_or_else(nothing, |pack| pack.index_blob.clone()),
    }
}

/// A word that nobody can guess: 32 hex digits.
pub(super) fn fresh_word() -> String {
    let mut bytes = [0; 16];
    // The generator of aws-lc fails only if the kernel has no randomness; an all-zero word then opens nothing by itself.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        tracing::error!("the kernel gives no randomness");
    }
    hex(&bytes)
}
