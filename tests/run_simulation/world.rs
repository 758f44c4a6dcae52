//! The whole: clock, record, objects, users, faults; and the promises that are asserted on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use sandboxrun::api::{Attempt, CommitId, Event, InputName, Reason, SandboxRunStatus};
use sandboxrun::audit::RunState;
use sandboxrun::audit::rules::Admitted;

use super::chance::Chance;
use super::cluster::{Cluster, Object};
use super::controller::Controller;

/// Whether the model's record refuses what the real one refuses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    AsInTheRecord,
    Ignored,
}

/// Why an append did not come back with a yes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Nothing was written.
    Down,
    /// It was written, and nobody heard.
    AnswerLost,
    /// The rules say no.
    Rejected,
}

pub(crate) struct World {
    pub(crate) chance: Chance,
    pub(crate) now: Timestamp,
    /// Faults happen; later they stop, and the run must end.
    pub(crate) chaos: bool,
    pub(crate) tell: bool,
    rules: Rules,
    pub(crate) record: Vec<(Timestamp, Event)>,
    pub(crate) state: RunState,
    pub(crate) cluster: Cluster,
    /// Where the branch points now.
    pub(crate) upstream: u64,
    /// Attempts for which a pod was made: their names.
    pub(crate) made: Vec<Attempt>,
    /// Every agent start.
    pub(crate) starts: Vec<(Attempt, String)>,
    pub(crate) refused_grants: usize,
    pub(crate) status_writes: usize,
    pub(crate) retries: u32,
    pub(crate) inputs: Vec<InputName>,
    pub(crate) broken: Option<String>,
    /// No pod is admitted for now.
    pub(crate) quota_used_up: bool,
    checked: usize,
}

pub(crate) const TIMEOUT: Duration = Duration::from_mins(4);
const CHAOS_STEPS: usize = 500;
/// Faults go on for so long after the end: old copies come back then.
const CHAOS_AFTER_END: usize = 100;
/// Far more than any life needs once faults have stopped.
const CALM_STEPS: usize = 4000;

impl World {
    pub(crate) fn new(seed: u64, rules: Rules) -> Self {
        let mut chance = Chance::new(seed);
        let retries = u32::try_from(chance.below(4)).unwrap();
        let inputs = ["app", "lib", "docs"]
            .iter()
            .take(usize::try_from(chance.below(4)).unwrap());
        let inputs = inputs.map(|name| name.parse().unwrap()).collect();
        Self {
            chance,
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            chaos: true,
            tell: false,
            rules,
            record: Vec::new(),
            state: RunState::default(),
            cluster: Cluster::new(),
            upstream: 1,
            made: Vec::new(),
            starts: Vec::new(),
            refused_grants: 0,
            status_writes: 0,
            retries,
            inputs,
            broken: None,
            quota_used_up: false,
            checked: 0,
        }
    }

    /// No faults from the first step on.
    pub(crate) fn calm(seed: u64) -> Self {
        Self {
            chaos: false,
            ..Self::new(seed, Rules::AsInTheRecord)
        }
    }

    /// Lets the run live: first with faults, then without, until it has ended and is cleaned up.
    pub(crate) fn live(mut self) -> Result<Self, String> {
        let mut controllers = [Controller::new("A"), Controller::new("B")];
        let mut after_end = 0;
        for step in 0..CHAOS_STEPS + CALM_STEPS {
            let over = !self.record.is_empty() && !self.state.is_open() && self.all_lives_lived();
            after_end = if over { after_end + 1 } else { 0 };
            if self.chaos && (step == CHAOS_STEPS || after_end == CHAOS_AFTER_END) {
                self.calm_down();
            }
            let quickly = if self.chaos { 12 } else { 3 };
            self.now += Duration::from_secs(self.chance.below(quickly));
            if self.chaos {
                self.users();
                self.cluster_faults();
            }
            self.kubelets();
            let acting = if self.chaos {
                self.chance.below(2)
            } else {
                step as u64 % 2
            };
            controllers[usize::try_from(acting).unwrap()].step(&mut self);
            self.snapshot();
            self.check()?;
            if !self.chaos && self.is_over() {
                return Ok(self);
            }
            if !self.chaos && controllers.iter().all(Controller::is_waiting) {
                // Nothing but time can change anything, unless a pod is still at work.
                self.now += Duration::from_secs(if self.cluster.at_work() { 5 } else { 60 });
            }
        }
        Err(format!(
            "the run did not end and clean up: {:?}",
            self.record.last()
        ))
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.tell {
            println!("{} {}", self.now, what());
        }
    }

    pub(crate) fn broke(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// True once in `n` times while faults happen.
    pub(crate) fn fault(&mut self, n: u64) -> bool {
        self.chaos && self.chance.one_in(n)
    }

    /// Appends all or none, as the record does.
    pub(crate) fn append(&mut self, events: Vec<Event>) -> Result<(), Failed> {
        if self.fault(25) {
            return Err(Failed::Down);
        }
        let mut state = self.state.clone();
        let mut wanted = Vec::new();
        for event in events {
            match state.admit(&event) {
                Ok(Admitted::AlreadyThere) if self.rules == Rules::AsInTheRecord => {}
                Err(_) if self.rules == Rules::AsInTheRecord => return Err(Failed::Rejected),
                Ok(_) | Err(_) => {
                    state.apply(&event);
                    wanted.push(event);
                }
            }
        }
        self.state = state;
        for event in wanted {
            self.say(|| format!("record {event:?}"));
            if let Event::RunCreated { .. } = event {
                self.status_writes = 0;
            }
            self.record.push((self.now, event));
        }
        if self.fault(30) {
            Err(Failed::AnswerLost)
        } else {
            Ok(())
        }
    }

    /// Whether the gateway does without compare and set.
    pub(crate) fn careless(&self) -> bool {
        self.rules == Rules::Ignored
    }

    /// The commit of an input that is recorded for an attempt.
    pub(crate) fn commit_of(&self, attempt: Attempt, wanted: &InputName) -> Option<CommitId> {
        self.record.iter().find_map(|(_, event)| match event {
            Event::InputResolved {
                attempt: of,
                input,
                commit,
                ..
            } if *of == attempt && input == wanted => Some(commit.clone()),
            _ => None,
        })
    }

    pub(crate) fn has(&self, mut wanted: impl FnMut(&Event) -> bool) -> bool {
        self.record.iter().any(|(_, event)| wanted(event))
    }

    pub(crate) fn lives(&self) -> usize {
        self.record
            .iter()
            .filter(|(_, e)| matches!(e, Event::RunCreated { .. }))
            .count()
    }

    pub(crate) fn endings(&self) -> Vec<String> {
        let ended = self.record.iter().filter_map(|(_, event)| match event {
            Event::RunEnded { failure, .. } => Some(failure.as_ref().map(|f| f.reason)),
            _ => None,
        });
        ended
            .map(|reason| reason.map_or("Succeeded", Reason::as_str).to_owned())
            .collect()
    }

    /// What people do.
    fn users(&mut self) {
        let mut object = self.cluster.object.clone();
        if self.chance.one_in(20) {
            self.upstream += 1; // the branch moves
        }
        if self.chance.one_in(700) {
            object.cancel = true;
        }
        if self.chance.one_in(150) {
            object.suspend = !object.suspend;
        }
        if self.chance.one_in(1500) {
            object.deleted = true;
            self.cluster.collect_garbage(self.now);
        }
        let ended = !self.state.is_open() && !self.record.is_empty();
        if ended && object.rerun.is_empty() && self.chance.one_in(60) {
            object.rerun = "again".into();
            object.cancel = false;
        }
        if object != self.cluster.object {
            self.say(|| format!("user {object:?}"));
            self.cluster.object = object;
        }
    }

    fn calm_down(&mut self) {
        self.say(|| "the faults stop".into());
        self.chaos = false;
        self.quota_used_up = false;
        self.cluster.object.suspend = false;
        // Half of the lost nodes stay lost: their pods are never seen to end.
        let stay = self.chance.one_in(2);
        self.cluster.heal(stay);
    }

    fn is_over(&self) -> bool {
        let lost = self.cluster.pods.values().all(|pod| pod.cut_off.is_some());
        !self.record.is_empty() && !self.state.is_open() && lost && self.all_lives_lived()
    }

    fn all_lives_lived(&self) -> bool {
        let object: &Object = &self.cluster.object;
        object.deleted
            || self.has(|e| matches!(e, Event::RunCreated { rerun, .. } if *rerun == object.rerun))
    }

    /// The promises.
    fn check(&mut self) -> Result<(), String> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        if self.status_writes > 6 {
            return Err(format!("{} status writes", self.status_writes));
        }
        if self.checked == self.record.len() {
            return Ok(());
        }
        self.checked = self.record.len();
        let mut commits: BTreeMap<(Attempt, &InputName), &CommitId> = BTreeMap::new();
        let (mut open, mut started_in_life, mut counted) = (false, 0, 0);
        let mut reported = BTreeSet::new();
        for (_, event) in &self.record {
            match event {
                Event::RunCreated { .. } => {
                    if open {
                        return Err("created twice".into());
                    }
                    (open, started_in_life, counted) = (true, 0, 0);
                }
                Event::InputResolved {
                    attempt,
                    input,
                    commit,
                    ..
                } => {
                    let first = *commits.entry((*attempt, input)).or_insert(commit);
                    if first != commit {
                        return Err(format!("pinned: commit changed in attempt {attempt}"));
                    }
                }
                Event::AttemptDispatched { .. } => counted += 1,
                Event::AttemptAbandoned { reason, .. } if *reason == Reason::SuspendRequested => {
                    counted -= 1;
                }
                Event::AgentStarted { .. } => started_in_life += 1,
                Event::Output { attempt, .. } => {
                    let first = reported.insert(*attempt);
                    if !first {
                        return Err(format!("the outcome of attempt {attempt} changed"));
                    }
                }
                Event::RunEnded {
                    attempt, failure, ..
                } => {
                    if !open {
                        return Err("ended twice".into());
                    }
                    open = false;
                    let started = attempt.is_some_and(|a| self.starts.iter().any(|s| s.0 == a));
                    let recorded = attempt.is_some_and(|a| reported.contains(&a));
                    if started && !recorded {
                        return Err("ended before its outcome was recorded".into());
                    }
                    if failure.is_none() && !(started && recorded) {
                        return Err("succeeded without an agent".into());
                    }
                }
                _ => {}
            }
            if started_in_life > 1 {
                return Err("started twice in one life".into());
            }
            if counted > 1 + i64::from(self.retries) {
                return Err(format!("{counted} attempts, {} retries", self.retries));
            }
        }
        Ok(())
    }
}

/// The status as it is stored, and its version.
pub(crate) type Stored = (u64, Option<SandboxRunStatus>);
