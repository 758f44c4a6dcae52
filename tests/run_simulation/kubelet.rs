//! What happens inside pods, and between them and the gateway.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sandboxrun::api::wire::{AgentExit, Drift, InputOutcome};
use sandboxrun::api::{Attempt, CommitId, Event, Failure, InputName, Reason};
use sandboxrun::audit::Grant;
use sandboxrun::run::PodTrouble;

use super::world::{Failed, TIMEOUT, World};

/// How far a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    Pending,
    Provisioning,
    Proving,
    Asking,
    Running(Timestamp),
    /// The agent ended; the gateway does not know yet.
    Ended(Option<AgentExit>),
    /// The gateway knows; drift and output are read.
    Told,
    Over(Option<Failure>),
}

#[derive(Debug, Clone)]
pub(crate) struct PodModel {
    pub(crate) stage: Stage,
    pub(crate) deleting: Option<Timestamp>,
    pub(crate) evicted: Option<Timestamp>,
    /// Its node is lost: it reaches nobody and nobody reaches it, and it may run on.
    pub(crate) cut_off: Option<Timestamp>,
    pub(crate) trouble: Option<PodTrouble>,
    commits: BTreeMap<InputName, CommitId>,
    nonce: Option<String>,
}

impl PodModel {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Pending,
            deleting: None,
            evicted: None,
            cut_off: None,
            trouble: None,
            commits: BTreeMap::new(),
            nonce: None,
        }
    }

    /// A second of grace: the agent is dead and nobody read what it left.
    pub(crate) fn evict(&mut self, now: Timestamp) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.evicted = Some(now);
            self.stage = Stage::Over(None);
        }
    }
}

impl World {
    pub(crate) fn kubelets(&mut self) {
        let attempts: Vec<_> = self.cluster.pods.keys().copied().collect();
        for attempt in attempts {
            if !self.chance.one_in(3) {
                continue; // pods are not in step
            }
            let mut pod = self.cluster.pods.remove(&attempt).unwrap();
            let before = pod.stage.clone();
            let stays = self.kubelet(attempt, &mut pod);
            if pod.stage != before {
                self.say(|| format!("pod {attempt} {:?}", pod.stage));
            }
            if stays {
                self.cluster.pods.insert(attempt, pod);
            } else {
                self.say(|| format!("pod {attempt} is gone"));
            }
        }
    }

    /// One step of one pod; false: the object is gone.
    fn kubelet(&mut self, attempt: Attempt, pod: &mut PodModel) -> bool {
        let gone = |pod: &PodModel| pod.deleting.is_some() && pod.cut_off.is_none();
        match pod.stage.clone() {
            Stage::Over(_) => return !gone(pod),
            Stage::Pending | Stage::Provisioning | Stage::Proving | Stage::Asking if gone(pod) => {
                pod.stage = Stage::Over(None);
            }
            Stage::Running(since) => self.run_agent(attempt, pod, since),
            _ if pod.cut_off.is_some() => {}
            Stage::Pending if pod.trouble.is_some() => {}
            Stage::Pending => pod.stage = Stage::Provisioning,
            Stage::Provisioning => self.provision(attempt, pod),
            Stage::Proving => self.prove(attempt, pod),
            Stage::Asking => self.ask(attempt, pod),
            Stage::Ended(exit) => {
                let event = Event::AgentEnded {
                    attempt,
                    exit,
                    millis: 1,
                };
                if self.append(vec![event]) != Err(Failed::Down) {
                    pod.stage = Stage::Told;
                }
            }
            Stage::Told => self.report(attempt, pod),
        }
        true
    }

    fn provision(&mut self, attempt: Attempt, pod: &mut PodModel) {
        for input in self.inputs.clone() {
            match self.commit_of(attempt, &input) {
                Some(commit) => {
                    pod.commits.insert(input, commit);
                }
                None => self.broke(format!("a pod for attempt {attempt} without commits")),
            }
        }
        if self.fault(25) {
            let failure = Failure::new(Reason::PackInvalid, "the pack is cut off");
            pod.stage = Stage::Over(Some(failure));
            return;
        }
        let inputs = Vec::new();
        match self.append(vec![Event::InputsProvisioned { attempt, inputs }]) {
            Ok(()) | Err(Failed::AnswerLost) => pod.stage = Stage::Proving,
            Err(Failed::Down) => {}
            Err(Failed::Rejected) => pod.stage = Stage::Over(None),
        }
    }

    fn prove(&mut self, attempt: Attempt, pod: &mut PodModel) {
        let enforced = self.cluster.policy;
        let event = Event::PolicyProof {
            attempt,
            enforced,
            canaries: Vec::new(),
            open: Vec::new(),
            open_millis: 0,
            unproven_millis: 0,
        };
        match self.append(vec![event]) {
            Ok(()) | Err(Failed::AnswerLost) if enforced => pod.stage = Stage::Asking,
            Err(Failed::Down) => {}
            Ok(()) | Err(_) => {
                let failure = Failure::new(Reason::CanaryOpen, "a canary answered");
                pod.stage = Stage::Over(Some(failure));
            }
        }
    }

    /// The start grant.
    fn ask(&mut self, attempt: Attempt, pod: &mut PodModel) {
        if self.fault(30) {
            pod.nonce = None; // the container was started again
        }
        let fresh = format!("{attempt}-{}", self.chance.below(u64::MAX));
        let nonce = pod.nonce.get_or_insert(fresh).clone();
        match self.granted(attempt, &nonce) {
            Some(true) => {
                self.start(attempt, &nonce, pod);
                pod.stage = Stage::Running(self.now);
            }
            Some(false) => {
                self.refused_grants += 1;
                pod.stage = Stage::Over(None);
            }
            None => {} // asks again, with the same nonce
        }
    }

    /// The gateway's answer, if one arrives.
    fn granted(&mut self, attempt: Attempt, nonce: &str) -> Option<bool> {
        let (grant, event) = self.state.grant(attempt, nonce);
        let started = Event::AgentStarted {
            attempt,
            nonce: nonce.to_owned(),
        };
        // With the rules off, the gateway looks first and writes then, like a careless one.
        let event = event.or_else(|| self.careless().then_some(started));
        if let Some(event) = event {
            return self.append(vec![event]).ok().map(|()| true);
        }
        let lost = self.fault(8);
        (!lost).then_some(matches!(grant, Grant::Granted { .. }))
    }

    fn start(&mut self, attempt: Attempt, nonce: &str, pod: &PodModel) {
        if self.starts.iter().any(|(of, _)| *of == attempt) {
            self.broke(format!("at most once: attempt {attempt} started twice"));
        }
        if self.has(|e| matches!(e, Event::AttemptAbandoned { attempt: of, .. } | Event::AttemptFailed { attempt: of, .. } if *of == attempt)) {
            self.broke(format!("attempt {attempt} started after it was given up"));
        }
        let proved = self.has(|e| matches!(e, Event::PolicyProof { attempt: of, enforced: true, .. } if *of == attempt));
        let whole = self
            .has(|e| matches!(e, Event::InputsProvisioned { attempt: of, .. } if *of == attempt));
        if !proved || !whole {
            self.broke(format!(
                "fail closed: attempt {attempt} started unproved or unprovisioned"
            ));
        }
        for (input, commit) in &pod.commits {
            if self.commit_of(attempt, input).as_ref() != Some(commit) {
                self.broke(format!(
                    "pinned: commit changed for the agent of attempt {attempt}"
                ));
                break;
            }
        }
        self.starts.push((attempt, nonce.to_owned()));
    }

    fn run_agent(&mut self, attempt: Attempt, pod: &mut PodModel, since: Timestamp) {
        let reached = pod.cut_off.is_none();
        let stop = self.record.iter().find_map(|(_, event)| match event {
            Event::AgentStopping {
                attempt: of,
                reason,
            } if *of == attempt => Some(*reason),
            _ => None,
        });
        let stopped = |reason| Stage::Ended(Some(AgentExit::Stopped { reason }));
        if let (true, Some(reason)) = (reached, stop) {
            pod.stage = stopped(reason);
        } else if reached && pod.deleting.is_some() {
            pod.stage = stopped(Reason::SandboxEnding);
        } else if self.now >= since + TIMEOUT {
            pod.stage = stopped(Reason::TimeoutReached);
        } else if self.fault(60) && reached {
            // The container is started again: its `exec` has another nonce and gets a no.
            let again = format!("{attempt}-again");
            if self.granted(attempt, &again) == Some(true) {
                self.start(attempt, &again, pod);
            }
            pod.stage = Stage::Ended(None);
        } else if self.chance.one_in(14) {
            let code = i32::from(self.chance.one_in(3));
            pod.stage = Stage::Ended(Some(AgentExit::Exited { code }));
        }
    }

    /// Drift and output, recorded before the broker ends.
    fn report(&mut self, attempt: Attempt, pod: &mut PodModel) {
        let mut events: Vec<_> = (self.inputs.iter().cloned())
            .map(|name| Event::Drift {
                attempt,
                outcome: InputOutcome {
                    name,
                    drift: Drift::Unchanged,
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
        match self.append(events) {
            Err(Failed::Down) => {}
            Ok(()) | Err(_) => pod.stage = Stage::Over(None),
        }
    }
}
