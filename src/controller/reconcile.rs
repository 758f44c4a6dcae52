//! One look at one run: read what is new, decide with [`run::plan`], do it, until there is nothing left to do for now;
//! then show it.
//!
//! Decisions that only write the record are gathered and written together: an append is one fsync, and nothing outside
//! happens between them. Whatever else is done comes after its record.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::act::{self, Elder, Rest};
use super::calls::CallError;
use super::desk::Desk;
use super::life::Life;
use super::namespaces::Namespaces;
use super::observe::{self, Asked, Sight};
use super::outcome;
use super::prepare::{Preparation, Ready, SLOW};
use super::publish;
use super::store::{Body, Finished, SeenRun};
use crate::api::{
    Attempt, Event, Failure, Fault as _, Reason, RunKey, RunSpec, RunUid, SandboxRunStatus,
};
use crate::audit::RecordError;
use crate::manifest::{self, pod_name};
use crate::run::{self, Action, AttemptState, Observed, RecordFacts};

/// Far more than any run needs from one wait to the next.
const STEPS: usize = 24;

/// Between two looks at the end of a run that was deleted while it was alive and made again.
const RECORDED_RETRY: Duration = Duration::from_secs(5);

/// Why a run could not be looked after. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookError {
    /// The API server.
    #[error(transparent)]
    Call(CallError),
    /// The record cannot say whose run this is.
    #[error("the record cannot be read")]
    Record(#[source] RecordError),
    /// It goes round in circles.
    #[error("a run did not come to rest")]
    Restless,
}

/// Looks at a run. When to look again, if nothing changes.
///
/// # Errors
/// When it has to be tried again.
pub(super) async fn look(desk: &Desk, uid: &RunUid) -> Result<Option<Instant>, LookError> {
    let seen = desk.store.run(uid);
    if let Some(run) = &seen
        && let Body::Finished(finished) = &run.body
        && desk.store.pods(uid).is_empty()
    {
        // Its end is written everywhere. The record is not even asked.
        if let Some(mut life) = desk.lifes.take(uid) {
            act::end_service(desk, &mut life);
        }
        return put_away(desk, run, *finished).await;
    }
    let mut life = match desk.lifes.take(uid) {
        Some(life) => Some(life),
        None => begin(desk, uid, seen.as_deref()).await?,
    };
    if let (Some(life), Some(run)) = (&mut life, &seen) {
        // Of a finished run no status is kept until its object changes.
        life.written = life.written.take().or_else(|| run.status.clone());
    }
    let Some(mut life) = life else {
        desk.awaited.set(uid, false);
        return Ok(None);
    };
    let looked = Look {
        desk,
        run: seen.as_deref(),
        life: &mut life,
    }
    .until_rest()
    .await;
    let open = life.is_recorded() && life.facts.ended.is_none();
    if seen.is_some() || open {
        desk.lifes.keep(life);
    } else {
        act::end_service(desk, &mut life);
    }
    looked
}

async fn begin(
    desk: &Desk,
    uid: &RunUid,
    seen: Option<&SeenRun>,
) -> Result<Option<Life>, LookError> {
    if let Some(run) = seen {
        return Ok(Some(Life::new(run.key.clone(), run.status.clone())));
    }
    let known = desk.gateway.record.run(uid).await;
    let key: Option<RunKey> = known.map_err(LookError::Record)?;
    Ok(key.map(|key| Life::new(key, None)))
}

/// `deleteAfterFinished`: the object goes when its pod has.
async fn put_away(
    desk: &Desk,
    run: &SeenRun,
    finished: Finished,
) -> Result<Option<Instant>, LookError> {
    let Some(at) = finished.at.filter(|_| run.wishes.delete_after_finished) else {
        return Ok(None);
    };
    let due = at
        .checked_add(manifest::ttl_after_finished(
            &run.wishes,
            &desk.installation,
        ))
        .unwrap_or(Timestamp::MAX);
    let now = Timestamp::now();
    if now < due {
        return Ok(Some(at_instant(due, now)));
    }
    act::delete_run(desk, &run.key)
        .await
        .map_err(LookError::Call)?;
    Ok(None)
}

/// A worker with a run in its hands.
struct Look<'a> {
    desk: &'a Desk,
    /// As the watch shows it; `None`: it is gone.
    run: Option<&'a SeenRun>,
    life: &'a mut Life,
}

impl LookError {
    /// What users see of it. `None`: nothing that they could do anything about.
    fn failure(&self, doing: Option<&Action>) -> Option<Failure> {
        match self {
            Self::Call(error) => {
                let reason = if doing == Some(&Action::EnsurePolicy) {
                    Reason::PolicyRefused
                } else {
                    Reason::CallFailed
                };
                Some(Failure::new(reason, error.to_string()))
            }
            Self::Record(error) => Some(error.failure(None)),
            Self::Restless => None,
        }
    }
}

impl Look<'_> {
    async fn until_rest(&mut self) -> Result<Option<Instant>, LookError> {
        if let Some(Body::Undecodable(failure)) = self.run.map(|run| &run.body) {
            let failure = failure.clone();
            if self.read().await && !self.life.is_recorded() {
                return publish::undecodable(self.desk, self.life, self.run, &failure)
                    .await
                    .map_err(LookError::Call);
            }
        }
        let mut uncleaned = None;
        for _ in 0..STEPS {
            let readable = self.read().await;
            if readable && self.is_lost() {
                act::end_service(self.desk, self.life);
                self.desk.awaited.set(&self.life.key.uid, false);
                let sight = self.sight().await;
                let seen = self.observed(&sight, self.life.facts.clone(), readable);
                let shown = publish::outlived(self.desk, self.life, &seen).await;
                return shown.map(|()| None).map_err(LookError::Call);
            }
            if readable {
                match self.ask_before_it_begins().await {
                    Ok(true) => {}
                    Ok(false) => return Ok(Some(Instant::now() + RECORDED_RETRY)),
                    Err(error) => {
                        let sight = self.sight().await;
                        return Err(self.stumbled(error, None, &sight).await);
                    }
                }
                let spec = self.spec().cloned();
                act::serve(self.desk, self.life, spec.as_ref()).await;
            }
            let now = Timestamp::now();
            let sight = self.sight().await;
            let (action, mut batch, seen, strays) = self.decide(&sight, now, readable);
            for stray in strays {
                // One that cannot be cleaned up keeps nothing else from being done.
                if uncleaned.is_none() {
                    let deleted = act::delete_pod(self.desk, &self.life.key, stray).await;
                    uncleaned = deleted.err();
                }
            }
            let ready = self.prepared(&action, &seen);
            if let (Action::CreatePod(attempt), Some(_)) = (&action, &ready)
                && !is_announced(&seen)
            {
                batch.push(announced(self.life, *attempt));
            }
            let wrote = !batch.is_empty();
            let rest = match self.flush(batch).await {
                // What was written counts with its own time, and is seen by those who look: once more.
                Ok(()) if wrote && is_rest(&action) => Rest::Again,
                Ok(()) => match self.act(action.clone(), ready, &seen).await {
                    Ok(rest) => rest,
                    Err(error) => {
                        let error = LookError::Call(error);
                        return Err(self.stumbled(error, Some(&action), &sight).await);
                    }
                },
                Err(flush) => act::rest(self.desk, &flush),
            };
            let Rest::Until(until) = rest else {
                continue;
            };
            let until = [until, self.life.serve_again].into_iter().flatten().min();
            let next = until.map(|until| at_instant(until, Timestamp::now()));
            self.life.trouble = None;
            let shown = self.show(&sight).await?;
            return match uncleaned {
                Some(error) => Err(LookError::Call(error)),
                None => Ok(earliest(next, shown)),
            };
        }
        Err(LookError::Restless)
    }

    /// A step failed, and is tried again. What is known is shown all the same, and why.
    async fn stumbled(
        &mut self,
        error: LookError,
        doing: Option<&Action>,
        sight: &Sight,
    ) -> LookError {
        if let Some(failure) = error.failure(doing) {
            self.life.trouble = Some(failure);
        }
        if let Err(unshown) = self.show(sight).await {
            tracing::warn!(uid = %self.life.key.uid, error = %super::causes(&unshown), "a run's state could not be shown");
        }
        error
    }

    /// Takes in what is new in the record; false: it cannot be read.
    async fn read(&mut self) -> bool {
        let unrecorded = self
            .life
            .preparation
            .as_ref()
            .and_then(Preparation::unrecorded);
        if unrecorded.is_some() {
            self.life.preparation = None; // to be asked for again
        }
        match self.life.read(&self.desk.gateway.record).await {
            Ok(()) => {
                self.life.record_trouble = unrecorded;
                true
            }
            Err(error) => {
                tracing::warn!(uid = %self.life.key.uid, error = %super::causes(&error), "the record cannot be read");
                self.life.record_trouble = Some(error.failure(None));
                false
            }
        }
    }

    /// Finds out, before a life begins, whether this installation and namespace allow it, and whether it was lived.
    /// False: that is still open.
    async fn ask_before_it_begins(&mut self) -> Result<bool, LookError> {
        let Some(run) = self.run else {
            return Ok(true);
        };
        let facts = &self.life.facts;
        let begun = facts.current().is_some() || facts.ended.is_some();
        let known = run.generation.is_some() && self.life.asked_of == run.generation;
        if known || begun && facts.reruns.contains(&run.wishes.rerun) {
            return Ok(true);
        }
        let refused = act::refusal(self.desk, run)
            .await
            .map_err(LookError::Call)?;
        let elder = act::lived_before(self.desk, run)
            .await
            .map_err(LookError::Record)?;
        self.life.recorded = match elder {
            Elder::None => None,
            Elder::Started(elder) => Some(elder),
            Elder::MayStart => return Ok(false),
        };
        self.life.refused_spec = refused;
        self.life.asked_of = run.generation;
        Ok(true)
    }

    fn spec(&self) -> Option<&Arc<RunSpec>> {
        match &self.run?.body {
            Body::Whole { spec, .. } => Some(spec),
            Body::Broken { .. } | Body::Undecodable(_) | Body::Finished(_) => None,
        }
    }

    /// What is to be seen outside of the record.
    async fn sight(&mut self) -> Sight {
        let uid = &self.life.key.uid;
        let pods = self.desk.store.pods(uid);
        let attempt = self.life.facts.newest;
        let announced = self
            .life
            .facts
            .current()
            .is_some_and(|current| current.pod.is_some() && Some(current.attempt) == attempt);
        let cached = attempt.and_then(|attempt| pods.get(&attempt));
        let asked = match (cached, attempt) {
            // Absence is never believed to a cache.
            (None, Some(attempt)) if announced && !self.refused(attempt) => {
                Some(act::find_pod(self.desk, &self.life.key, attempt).await)
            }
            (None | Some(_), _) => None,
        };
        let found = match (cached, &asked) {
            (Some(pod), _) | (None, Some(Asked::Found(pod))) => Some(pod.as_ref()),
            (None, Some(Asked::Absent | Asked::Foreign(_) | Asked::NoAnswer) | None) => None,
        };
        let policy = observe::policy(self.desk, &self.life.key, attempt, found);
        let preparation = self.life.preparation.as_ref();
        let sight = Sight {
            attempt,
            pods,
            asked,
            policy,
            slow: preparation.and_then(Preparation::is_slow),
        };
        if sight.pod().is_some() {
            self.life.saw = attempt;
        }
        let goes = sight.pod().is_some_and(|pod| pod.deleting)
            || matches!(sight.asked, Some(Asked::Absent));
        if goes && self.life.facts.ended.is_none() && !self.life.namespace_ends {
            let namespace = &self.life.key.namespace;
            self.life.namespace_ends = Namespaces::is_ending(self.desk, namespace).await;
        }
        if let (Some(attempt), Some(node)) = (attempt, sight.node()) {
            self.life.node = Some((attempt, node.to_owned()));
        }
        sight
    }

    fn refused(&self, attempt: Attempt) -> bool {
        let refused = self.life.refused.as_ref();
        refused.is_some_and(|(of, ..)| *of == attempt)
    }

    /// What the pod that is to be made needs, if it is there. If not, it is begun.
    fn prepared(&mut self, action: &Action, seen: &Observed) -> Option<Ready> {
        let (Action::CreatePod(attempt), Ok(facts)) = (action, &seen.record) else {
            return None;
        };
        let spec = self.spec().cloned()?;
        act::prepared(self.desk, self.life, *attempt, &spec, facts)
    }

    /// Decides as far as the record alone is concerned: what to write, what to do then, and which pods to clean up.
    fn decide(
        &mut self,
        sight: &Sight,
        now: Timestamp,
        readable: bool,
    ) -> (Action, Vec<Event>, Observed, Vec<Attempt>) {
        let mut batch: Vec<Event> = Vec::new();
        let mut facts = self.life.facts.clone();
        loop {
            let seen = self.observed(sight, facts.clone(), readable);
            let mut actions = run::plan(&seen, now);
            let action = actions.pop().unwrap_or(Action::Done);
            let events = match readable.then(|| self.events(&action, &seen, sight, now)) {
                Some(Some(events)) if batch.len() < STEPS => events,
                Some(Some(_) | None) | None => {
                    let strays = actions.iter().filter_map(stray).collect();
                    return (action, batch, seen, strays);
                }
            };
            for event in &events {
                facts.take(now, event);
            }
            batch.extend(events);
        }
    }

    fn observed(&self, sight: &Sight, facts: RecordFacts, readable: bool) -> Observed {
        let record = match &self.life.record_trouble {
            Some(failure) if !readable => Err(failure.clone()),
            Some(_) | None => Ok(facts),
        };
        observe::run(self.desk, self.run, self.life, sight, record)
    }

    /// What an action means to the record, if it means nothing else.
    fn events(
        &self,
        action: &Action,
        seen: &Observed,
        sight: &Sight,
        now: Timestamp,
    ) -> Option<Vec<Event>> {
        match action {
            Action::Create => {
                let event = act::created(self.run?)?;
                self.life.recorded.is_none().then(|| vec![event])
            }
            Action::Dispatch(attempt) => Some(vec![Event::AttemptDispatched { attempt: *attempt }]),
            Action::Fail(attempt, failure) => Some(vec![Event::AttemptFailed {
                attempt: *attempt,
                failure: failure.clone(),
            }]),
            Action::AgentLost(attempt) => {
                let facts = seen.record.as_ref().ok()?;
                Some(vec![Event::AgentEnded {
                    attempt: *attempt,
                    exit: None,
                    millis: since(started_at(facts), now),
                }])
            }
            Action::RecordOutcome(attempt, reason) => {
                let facts = seen.record.as_ref().ok()?;
                let lost = outcome::Lost {
                    attempt: *attempt,
                    message: sight.message(*attempt),
                    reason: *reason,
                    spec: self.spec().map(Arc::as_ref),
                    untold_after: (!knows_exit(facts)).then(|| since(started_at(facts), now)),
                };
                let names = seen.spec.inputs.iter().map(|input| &input.name);
                Some(outcome::events(lost, names))
            }
            Action::Finish(ending) => {
                let facts = seen.record.as_ref().ok()?;
                Some(vec![Event::RunEnded {
                    attempt: ending.attempt,
                    exit_code: ending.exit_code,
                    failure: ending.failure.clone(),
                    millis: since(facts.created_at, now),
                }])
            }
            Action::Resolve(_)
            | Action::EnsurePolicy
            | Action::CreatePod(_)
            | Action::Abandon(..)
            | Action::StopAgent(..)
            | Action::Terminate(..)
            | Action::Collect(..)
            | Action::DeletePod(_)
            | Action::Wait(_)
            | Action::Done => None,
        }
    }

    async fn flush(&mut self, events: Vec<Event>) -> Result<(), Flush> {
        if events.is_empty() {
            return Ok(());
        }
        let is_end = |event: &&Event| matches!(event, Event::RunEnded { .. });
        let ended = events.iter().find(is_end).cloned();
        act::append(self.desk, self.life, events).await?;
        if let Some(Event::RunEnded { failure, .. }) = ended {
            self.desk.metrics.run_ended(failure.as_ref());
        }
        Ok(())
    }

    /// Does it.
    async fn act(
        &mut self,
        action: Action,
        ready: Option<Ready>,
        seen: &Observed,
    ) -> Result<Rest, CallError> {
        match action {
            Action::Wait(until) => return Ok(Rest::Until(until)),
            Action::Collect(_, until) => return Ok(Rest::Until(Some(until))),
            Action::Done => return Ok(Rest::Until(self.put_away_at(seen))),
            Action::Create => return Ok(Rest::Until(self.recorded_elsewhere())),
            Action::Resolve(attempt) => {
                let Some(spec) = self.spec().cloned() else {
                    return Ok(Rest::Until(None)); // it is gone, and its deletion decides
                };
                act::resolve(self.desk, self.life, attempt, &spec);
            }
            Action::EnsurePolicy => {
                let namespace = self.life.key.namespace.clone();
                self.desk.policies.ensure(self.desk, &namespace).await?;
            }
            Action::CreatePod(attempt) => {
                let (Some(spec), Some(ready)) = (self.spec().cloned(), ready) else {
                    return Ok(self.unready_until(attempt, seen));
                };
                let created_at = self.run.and_then(|run| run.created_at);
                act::create_pod(self.desk, self.life, attempt, &spec, ready, created_at).await?;
            }
            Action::Abandon(attempt, reason) => {
                return Ok(act::abandon(self.desk, self.life, attempt, reason).await);
            }
            Action::StopAgent(attempt, reason) => {
                return Ok(act::stop_agent(self.desk, self.life, attempt, reason).await);
            }
            Action::Terminate(attempt, _) | Action::DeletePod(attempt) => {
                act::delete_pod(self.desk, &self.life.key, attempt).await?;
            }
            // These are written, and nothing else.
            Action::Dispatch(_)
            | Action::Fail(..)
            | Action::AgentLost(_)
            | Action::RecordOutcome(..)
            | Action::Finish(_) => {}
        }
        Ok(Rest::Again)
    }

    /// K02: the status of this very object says that it has ended, and the record does not know it.
    fn is_lost(&self) -> bool {
        let uid = self.life.key.uid.as_str();
        let own = |status: &&SandboxRunStatus| {
            let record = status.record.as_ref();
            record.is_some_and(|record| record.id == uid)
        };
        // One that was deleted is closed in the record that there is.
        let written = self.run.and(self.life.written.as_deref()).filter(own);
        written.is_some_and(|written| run::outlived_its_record(written, &self.life.facts))
    }

    /// A pod whose inputs are being fetched, or whose run is gone: when to look again, if nothing changes.
    fn unready_until(&self, attempt: Attempt, seen: &Observed) -> Rest {
        if self.refused(attempt) {
            return Rest::Again;
        }
        let facts = seen.record.as_ref().ok();
        let current = facts.and_then(RecordFacts::current);
        let deadline = current.map(|current| run::start_deadline(&seen.spec, current));
        let slow = Timestamp::now().checked_add(SLOW).ok();
        Rest::Until([deadline, slow].into_iter().flatten().min())
    }

    /// A life that was lived under another uid: when to look for its end, if it is still to come.
    fn recorded_elsewhere(&self) -> Option<Timestamp> {
        let open = self.life.recorded.is_some()
            && self
                .life
                .written
                .as_deref()
                .is_none_or(|s| s.finished_at.is_none());
        open.then(|| Timestamp::now().checked_add(RECORDED_RETRY).ok())
            .flatten()
    }

    /// When a finished object goes, if it does.
    fn put_away_at(&self, seen: &Observed) -> Option<Timestamp> {
        let run = self.run.filter(|run| run.wishes.delete_after_finished)?;
        let ended = seen.record.as_ref().ok()?.ended.as_ref()?;
        let ttl = manifest::ttl_after_finished(&run.wishes, &self.desk.installation);
        ended.at.checked_add(ttl).ok()
    }

    /// Shows what is known now, if that is worth a write. When to come again for it.
    async fn show(&mut self, sight: &Sight) -> Result<Option<Instant>, LookError> {
        let Some(run) = self.run else {
            return Ok(None);
        };
        let facts = self.life.facts.clone();
        let seen = observe::run(self.desk, self.run, self.life, sight, Ok(facts));
        publish::status(self.desk, self.life, run, &seen)
            .await
            .map_err(LookError::Call)
    }
}

/// Why what was decided is not written.
pub(super) enum Flush {
    /// It came too late: what the record says now decides anew.
    Again,
    /// The record cannot be written.
    Trouble,
}

fn stray(action: &Action) -> Option<Attempt> {
    if let Action::DeletePod(attempt) = action {
        Some(*attempt)
    } else {
        None
    }
}

fn is_rest(action: &Action) -> bool {
    matches!(action, Action::Wait(_) | Action::Collect(..) | Action::Done)
}

/// Whether the record says that the pod of the newest attempt is made.
fn is_announced(seen: &Observed) -> bool {
    let facts = seen.record.as_ref().ok();
    let current = facts.and_then(RecordFacts::current);
    current.is_some_and(|current| current.pod.is_some())
}

fn started_at(facts: &RecordFacts) -> Option<Timestamp> {
    match facts.current()?.state {
        AttemptState::Started(at) => Some(at),
        AttemptState::Open | AttemptState::Abandoned(..) | AttemptState::Failed(..) => None,
    }
}

/// Whether the record says how the agent ended, and not only that it did.
fn knows_exit(facts: &RecordFacts) -> bool {
    let current = facts.current();
    let ended = current.and_then(|current| current.agent_ended.as_ref());
    ended.is_some_and(|(_, exit)| exit.is_some())
}

/// Milliseconds from then to now.
fn since(then: Option<Timestamp>, now: Timestamp) -> u64 {
    let passed = then.map_or(0, |then| now.duration_since(then).as_millis());
    u64::try_from(passed).unwrap_or(0)
}

fn at_instant(until: Timestamp, now: Timestamp) -> Instant {
    let left = Duration::try_from(now.duration_until(until)).unwrap_or_default();
    let begin = Instant::now();
    // A year is as good as for ever, and never too much for a clock.
    begin + left.min(Duration::from_hours(24 * 365))
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The name of the pod of an attempt, for what is written before it is made.
pub(super) fn announced(life: &Life, attempt: Attempt) -> Event {
    Event::PodCreating {
        attempt,
        pod: pod_name(&life.key.uid, attempt),
    }
}
