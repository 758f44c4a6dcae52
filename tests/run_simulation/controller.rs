//! A controller: observes through caches, plans with `run::plan`, acts in single steps between which it may crash.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use sandboxrun::api::wire::{Drift, InputOutcome, UnknownReason};
use sandboxrun::api::{
    Attempt, CommitId, Event, Failure, ObjectFormat, OnDrift, Reason, SandboxRunStatus,
};
use sandboxrun::run::{
    Action, Ending, InputFacts, Limits, Observed, Pod, Policy, RecordFacts, Resolution, SpecFacts,
    Wish, plan, status, write_due,
};

use super::cluster::{Object, look};
use super::kubelet::PodModel;
use super::world::{Failed, Stored, TIMEOUT, World};

#[derive(Debug)]
enum Step {
    Act(Action),
    /// The pod is announced: now it is made.
    MakePod(Attempt),
    Resolved(Attempt),
    WriteStatus(Box<SandboxRunStatus>, u64),
}

pub(crate) struct Controller {
    name: &'static str,
    up: bool,
    steps: VecDeque<Step>,
    waiting: bool,
    resolving: Option<Attempt>,
    resolution: Resolution,
    refused: Option<(Attempt, Failure, Timestamp)>,
}

impl Controller {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            up: true,
            steps: VecDeque::new(),
            waiting: false,
            resolving: None,
            resolution: Resolution::Idle,
            refused: None,
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.up && self.waiting && self.steps.is_empty()
    }

    /// One step, or a crash, or a start.
    pub(crate) fn step(&mut self, world: &mut World) {
        if !self.up {
            self.up = !world.chaos || world.chance.one_in(8);
            return;
        }
        if world.fault(40) {
            world.say(|| {
                format!(
                    "controller {} crashes before {:?}",
                    self.name,
                    self.steps.front()
                )
            });
            *self = Self {
                up: false,
                ..Self::new(self.name)
            };
            return;
        }
        match self.steps.pop_front() {
            Some(step) => {
                world.say(|| format!("controller {} {step:?}", self.name));
                self.act(world, step);
            }
            None => self.think(world),
        }
    }

    fn think(&mut self, world: &mut World) {
        let (seen, stored) = self.observe(world);
        let actions = plan(&seen, world.now);
        let acts = |action: &Action| {
            !matches!(action, Action::Wait(_) | Action::Done | Action::Collect(..))
        };
        self.waiting = !actions.iter().any(acts);
        if seen.record.is_ok() && !world.cluster.object.deleted {
            let status = status(&seen);
            if write_due(stored.1.as_ref(), &status) {
                self.steps
                    .push_back(Step::WriteStatus(Box::new(status), stored.0));
                self.waiting = false;
            }
        }
        self.steps
            .extend(actions.into_iter().filter(acts).map(Step::Act));
    }

    fn observe(&mut self, world: &mut World) -> (Observed, Rc<Stored>) {
        let cached = world.cached();
        // A deleted object is known from the list, after a restart also (K09: the sweep over open records).
        let object = if world.cluster.object.deleted && world.chance.one_in(2) {
            world.cluster.object.clone()
        } else {
            cached.object.clone()
        };
        let record = if world.fault(30) {
            Err(Failure::new(
                Reason::RecordWriteFailed,
                "the record is down",
            ))
        } else {
            Ok(RecordFacts::of(
                world.record.iter().map(|(at, event)| (*at, event)),
            ))
        };
        let facts = record.as_ref().ok();
        let newest = facts.and_then(|facts| facts.newest);
        let announced = facts
            .and_then(RecordFacts::current)
            .is_some_and(|a| a.pod.is_some());
        let mut pod = look(
            newest.and_then(|attempt| cached.pods.get(&attempt)),
            world.now,
        );
        if pod == Pod::Absent && newest.is_some() && (announced || world.chance.one_in(2)) {
            // Absent is never believed to a cache.
            pod = if world.fault(10) {
                Pod::Unknown
            } else {
                look(
                    newest.and_then(|attempt| world.cluster.pods.get(&attempt)),
                    world.now,
                )
            };
        }
        if let (Pod::Absent, Some((attempt, failure, at))) = (&pod, &self.refused)
            && Some(*attempt) == newest
        {
            pod = Pod::Refused(failure.clone(), *at);
        }
        if self.resolving != newest {
            self.resolving = None;
            self.resolution = Resolution::Idle;
        }
        let strays = cached
            .pods
            .iter()
            .filter(|(attempt, pod)| Some(**attempt) < newest && pod.deleting.is_none())
            .map(|(attempt, _)| *attempt)
            .collect();
        let seen = Observed {
            spec: spec(world, &object),
            wish: Wish {
                stop: if object.deleted {
                    Some(Reason::ObjectDeleted)
                } else {
                    object.cancel.then_some(Reason::CancelRequested)
                },
                suspend: object.suspend,
            },
            record,
            resolution: self.resolution.clone(),
            policy: if cached.policy {
                Policy::InForce
            } else {
                Policy::Missing
            },
            pod,
            strays,
            node: None,
            trouble: None,
            limits: Limits::default(),
        };
        (seen, Rc::clone(&cached.status))
    }

    fn act(&mut self, world: &mut World, step: Step) {
        match step {
            Step::Act(action) => self.carry_out(world, action),
            Step::MakePod(attempt) => self.make_pod(world, attempt),
            Step::Resolved(attempt) => self.resolved(world, attempt),
            Step::WriteStatus(status, based_on) => {
                // The version is compared by the server: a stale write is a 409, and is decided again.
                if world.cluster.status.0 == based_on && !world.fault(6) {
                    world.cluster.status = Rc::new((based_on + 1, Some(*status)));
                    world.status_writes += 1;
                }
            }
        }
    }

    fn carry_out(&mut self, world: &mut World, action: Action) {
        let now = world.now;
        match action {
            Action::Create => {
                // From the copy at hand, which may be an old one.
                let rerun = world.cached().object.rerun.clone();
                append(
                    world,
                    vec![Event::RunCreated {
                        digest: "d".into(),
                        rerun,
                        writer: "simulation".into(),
                    }],
                );
            }
            Action::Dispatch(attempt) => append(world, vec![Event::AttemptDispatched { attempt }]),
            Action::Resolve(attempt) => {
                self.resolving = Some(attempt);
                self.resolution = Resolution::Busy { trouble: None };
                self.steps.push_back(Step::Resolved(attempt));
            }
            Action::EnsurePolicy => {
                if !world.fault(5) {
                    world.cluster.policy = true;
                }
            }
            Action::CreatePod(attempt) => {
                let refused_before = self.refused.as_ref().is_some_and(|(of, ..)| *of == attempt);
                let pod = format!("pod-{attempt}");
                let go = refused_before
                    || world.append(vec![Event::PodCreating { attempt, pod }]) == Ok(());
                if go {
                    self.steps.push_front(Step::MakePod(attempt));
                }
            }
            Action::Fail(attempt, failure) => {
                append(world, vec![Event::AttemptFailed { attempt, failure }]);
            }
            Action::Abandon(attempt, reason) => {
                if let (_, Some(event)) = world.state.abandon(attempt, reason) {
                    append(world, vec![event]);
                }
            }
            Action::AgentLost(attempt) => append(
                world,
                vec![Event::AgentEnded {
                    attempt,
                    exit: None,
                    millis: 0,
                }],
            ),
            Action::StopAgent(attempt, reason) => {
                append(world, vec![Event::AgentStopping { attempt, reason }]);
            }
            Action::Terminate(attempt, _) => {
                if !world.fault(4) {
                    world.cluster.delete(attempt, now);
                }
            }
            Action::DeletePod(attempt) => {
                let started = world.starts.iter().any(|(of, _)| *of == attempt);
                let reported =
                    world.has(|e| matches!(e, Event::Output { attempt: of, .. } if *of == attempt));
                if started && !reported {
                    world.broke(format!(
                        "attempt {attempt} was cleaned up before its outcome"
                    ));
                }
                if !world.fault(3) {
                    world.cluster.delete(attempt, now);
                }
            }
            Action::RecordOutcome(attempt, reason) => {
                append(world, unknown(world, attempt, reason));
            }
            Action::Finish(ending) => append(world, vec![end(ending)]),
            Action::Collect(..) | Action::Wait(_) | Action::Done => {}
        }
    }

    fn make_pod(&mut self, world: &mut World, attempt: Attempt) {
        if world.fault(12) {
            return; // the call was lost
        }
        if world.quota_used_up {
            let failure = Failure::new(Reason::QuotaExceeded, "exceeded quota");
            self.refused = Some((attempt, failure, world.now));
            return;
        }
        self.refused = None;
        if world.cluster.pods.contains_key(&attempt) || world.cluster.object.deleted {
            return; // already there and ours; or the owner is gone and it goes at once
        }
        if world.made.contains(&attempt) {
            world.broke(format!(
                "the name of the pod of attempt {attempt} was used twice"
            ));
        }
        let announced =
            world.has(|e| matches!(e, Event::PodCreating { attempt: of, .. } if *of == attempt));
        if !announced {
            world.broke(format!(
                "a pod for attempt {attempt} that the record does not announce"
            ));
        }
        world.made.push(attempt);
        world.cluster.pods.insert(attempt, PodModel::new());
        world.say(|| format!("pod {attempt} is made"));
    }

    fn resolved(&mut self, world: &mut World, attempt: Attempt) {
        if world.fault(4) {
            let failure = Failure::new(Reason::ServerError, "the forge has a fault");
            self.resolution = Resolution::Busy {
                trouble: Some(failure),
            };
            self.steps.push_back(Step::Resolved(attempt));
            return;
        }
        if world.fault(12) {
            let failure = Failure::new(Reason::RefNotFound, "branch `main` is not there");
            self.resolution = Resolution::Failed(failure);
            return;
        }
        let commit: CommitId = format!("{:040x}", world.upstream).parse().unwrap();
        let resolved = world.inputs.iter().map(|input| Event::InputResolved {
            attempt,
            input: input.clone(),
            repository: "https://git.example.com/a.git".into(),
            requested_ref: "branch main".into(),
            resolved_ref: None,
            commit: commit.clone(),
            tag_object: None,
            object_format: ObjectFormat::Sha1,
            connector: None,
            credential_proof: "NotAsked".into(),
        });
        let events = resolved.collect();
        append(world, events);
        self.resolution = Resolution::Idle;
        self.resolving = None;
    }
}

/// An answer that does not come, or a no, means the same here: look again.
fn append(world: &mut World, events: Vec<Event>) {
    let answer = world.append(events);
    if let Err(why) = answer {
        world.say(|| format!("not appended: {why:?}"));
        debug_assert!(matches!(
            why,
            Failed::Down | Failed::AnswerLost | Failed::Rejected
        ));
    }
}

fn unknown(world: &World, attempt: Attempt, reason: UnknownReason) -> Vec<Event> {
    let mut events: Vec<_> = (world.inputs.iter().cloned())
        .map(|name| Event::Drift {
            attempt,
            outcome: InputOutcome {
                name,
                drift: Drift::Unknown {
                    reason,
                    message: "lost".into(),
                },
            },
        })
        .collect();
    events.push(Event::Output {
        attempt,
        sha256: None,
        bytes: 0,
        text: None,
        failure: None,
    });
    events
}

fn end(ending: Ending) -> Event {
    Event::RunEnded {
        attempt: ending.attempt,
        exit_code: ending.exit_code,
        failure: ending.failure,
        millis: 1,
    }
}

fn spec(world: &World, object: &Object) -> SpecFacts {
    SpecFacts {
        namespace: "team".parse().unwrap(),
        name: "fix-it".parse().unwrap(),
        uid: "1".parse().unwrap(),
        generation: Some(1),
        rerun: object.rerun.clone(),
        inputs: world
            .inputs
            .iter()
            .map(|name| InputFacts {
                name: name.clone(),
                repository: "https://git.example.com/a.git".into(),
                requested_ref: "branch main".into(),
            })
            .collect(),
        refused: None,
        on_drift: OnDrift::Report,
        timeout: TIMEOUT,
        start_timeout: Duration::from_mins(10),
        infrastructure_retries: world.retries,
        ttl_after_finished: Duration::from_mins(30),
    }
}
