//! What a pod's object says about a run: [`Pod`], from the states of its containers. Pure.
//!
//! The phase of a pod is late and coarse, so the states of the containers come first. What this cannot see (whether the
//! agent may start, did, or ended) is the record's to say.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod as PodObject, PodCondition,
    PodStatus,
};

use crate::api::wire::ProvisionReport;
use crate::api::{Failure, Reason};
use crate::manifest::{AGENT, BROKER, PROVISION};
use crate::run::{Pod, PodTrouble};

/// The longest words of kubelet, scheduler or container runtime that are passed on.
const WORDS: usize = 512;

/// What a pod's object says.
#[must_use]
pub(super) fn pod(pod: &PodObject) -> Pod {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let containers = Containers::of(status);
    if let Some(leaving) = leaving(pod, status, &containers) {
        return leaving;
    }
    let phase = status.phase.as_deref().unwrap_or("Pending");
    if phase == "Unknown" {
        return Pod::Unknown;
    }
    let over = matches!(phase, "Succeeded" | "Failed");
    if let Some(failure) = provision_failure(&containers) {
        return Pod::Ended(Some(failure));
    }
    if over {
        return Pod::Ended(agent_failure(&containers).or_else(|| pod_failure(status, &containers)));
    }
    match (&containers.agent, &containers.broker) {
        (Seen::Terminated(_), Seen::Terminated(_)) => Pod::Ended(agent_failure(&containers)),
        (Seen::Terminated(_), _) => Pod::Collecting(agent_failure(&containers)),
        (Seen::Running(_), Seen::Running(_) | Seen::Absent) => Pod::Running,
        _ => Pod::Starting(trouble(status, &containers)),
    }
}

/// The broker's last words: the summary of what it collected. Nothing that the agent wrote.
#[must_use]
pub(super) fn broker_message(pod: &PodObject) -> Option<String> {
    let status = pod.status.as_ref()?;
    let broker = statuses(status).find(|container| container.name == BROKER)?;
    broker
        .state
        .as_ref()?
        .terminated
        .as_ref()?
        .message
        .clone()
        .filter(|message| !message.is_empty())
}

/// How one container is.
#[derive(Debug)]
enum Seen<'a> {
    /// Nothing is said about it.
    Absent,
    Waiting {
        reason: &'a str,
        message: &'a str,
    },
    Running(Option<Timestamp>),
    Terminated(&'a ContainerStateTerminated),
}

/// Our three, and why a broker that was started again had ended.
#[derive(Debug)]
struct Containers<'a> {
    provision: Seen<'a>,
    broker: Seen<'a>,
    agent: Seen<'a>,
    broker_before: Option<&'a ContainerStateTerminated>,
}

impl<'a> Containers<'a> {
    fn of(status: &'a PodStatus) -> Self {
        let find = |name: &str| statuses(status).find(|container| container.name == name);
        let seen = |name: &str| {
            find(name)
                .and_then(|container| container.state.as_ref())
                .map_or(Seen::Absent, Seen::of)
        };
        Self {
            provision: seen(PROVISION),
            broker: seen(BROKER),
            agent: seen(AGENT),
            broker_before: find(BROKER)
                .and_then(|broker| broker.last_state.as_ref())
                .and_then(|state| state.terminated.as_ref()),
        }
    }
}

impl<'a> Seen<'a> {
    fn of(state: &'a ContainerState) -> Self {
        if let Some(terminated) = &state.terminated {
            Self::Terminated(terminated)
        } else if let Some(running) = &state.running {
            Self::Running(running.started_at.as_ref().map(|at| at.0))
        } else if let Some(waiting) = &state.waiting {
            Self::Waiting {
                reason: waiting.reason.as_deref().unwrap_or_default(),
                message: waiting.message.as_deref().unwrap_or_default(),
            }
        } else {
            Self::Absent
        }
    }

    fn terminated(&self) -> Option<&'a ContainerStateTerminated> {
        match self {
            Self::Terminated(terminated) => Some(terminated),
            Self::Absent | Self::Waiting { .. } | Self::Running(_) => None,
        }
    }
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

/// Deleted, evicted, lost with its node, or turned away by the node before anything ran.
fn leaving(pod: &PodObject, status: &PodStatus, containers: &Containers<'_>) -> Option<Pod> {
    let disruption = condition(status, "DisruptionTarget").filter(|c| c.status == "True");
    let over = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let reason = status.reason.as_deref().unwrap_or_default();
    let said = words(status.message.as_deref().unwrap_or_default());
    if let Some(deletion) = &pod.metadata.deletion_timestamp {
        // The object's time is the one by which it has to be gone.
        let grace = pod
            .metadata
            .deletion_grace_period_seconds
            .unwrap_or_default();
        let grace = jiff::SignedDuration::from_secs(grace);
        let since = deletion.0.checked_sub(grace).unwrap_or(deletion.0);
        let (reason, words) = if reason == "NodeLost" {
            (Reason::NodeLost, said)
        } else if reason == "Evicted" && disruption.is_none() {
            (Reason::WorkspaceEvicted, said)
        } else {
            disruption.map_or((Reason::PodDeletedByHand, String::new()), disrupted)
        };
        return Some(Pod::Leaving {
            reason,
            since,
            deleted: true,
            words,
        });
    }
    let (why, words) = match (reason, disruption) {
        ("NodeLost", _) => (Reason::NodeLost, said),
        ("Evicted", None) => (Reason::WorkspaceEvicted, said),
        ("Evicted", Some(_)) => (Reason::PodEvicted, said),
        (_, Some(disruption)) if over => disrupted(disruption),
        // The node had no place for it after all; another one may.
        ("NodeAffinity" | "NodeShutdown" | "Preempting" | "UnexpectedAdmissionError", _)
            if over =>
        {
            (Reason::PodEvicted, format!("{reason}: {said}"))
        }
        (reason, _) if over && reason.starts_with("OutOf") => {
            (Reason::PodEvicted, format!("{reason}: {said}"))
        }
        _ => return None,
    };
    Some(Pod::Leaving {
        reason: why,
        since: last_moment(pod, disruption, containers),
        deleted: false,
        words,
    })
}

/// In the words of the condition that whoever takes a pod away sets.
fn disrupted(condition: &PodCondition) -> (Reason, String) {
    let by = condition.reason.as_deref().unwrap_or("Disruption");
    let message = condition.message.as_deref().unwrap_or_default();
    let reason = match by {
        "DeletionByTaintManager" | "DeletionByPodGC" => Reason::NodeLost,
        _ => Reason::PodEvicted,
    };
    (reason, words(&format!("{by}: {message}")))
}

/// When a pod that nobody deleted stopped being one: by its condition, else by its last container, else its creation.
fn last_moment(
    pod: &PodObject,
    disruption: Option<&PodCondition>,
    containers: &Containers<'_>,
) -> Timestamp {
    let by_condition = disruption.and_then(|c| c.last_transition_time.as_ref());
    let finished = [&containers.provision, &containers.broker, &containers.agent]
        .into_iter()
        .filter_map(|seen| seen.terminated()?.finished_at.as_ref())
        .map(|at| at.0)
        .max();
    by_condition
        .map(|at| at.0)
        .or(finished)
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|at| at.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Provision ended otherwise than well: no agent starts in this pod.
fn provision_failure(containers: &Containers<'_>) -> Option<Failure> {
    let ended = containers.provision.terminated()?;
    if ended.exit_code == 0 {
        return None;
    }
    Some(out_of_memory(PROVISION, ended).unwrap_or_else(|| reported(ended)))
}

/// Provision's own report, if it left one.
fn reported(ended: &ContainerStateTerminated) -> Failure {
    let message = ended.message.as_deref().unwrap_or_default();
    if let Ok(ProvisionReport::Failed { failure }) = serde_json::from_str(message) {
        return failure;
    }
    let mut text = format!("provision ended with status {}", ended.exit_code);
    for words in [ended.reason.as_deref().unwrap_or_default(), &words(message)] {
        if !words.is_empty() && words != "Error" {
            text.push_str(": ");
            text.push_str(words);
        }
    }
    Failure::new(Reason::ProvisionKilled, text)
}

/// What the kubelet says of the agent's end that `exec` cannot: memory, and a container that never came to life.
fn agent_failure(containers: &Containers<'_>) -> Option<Failure> {
    let agent = containers.agent.terminated()?;
    if let Some(failure) = out_of_memory(AGENT, agent) {
        return Some(failure);
    }
    let reason = agent.reason.as_deref().unwrap_or_default();
    if matches!(reason, "StartError" | "ContainerCannotRun") {
        let message = words(agent.message.as_deref().unwrap_or_default());
        return Some(Failure::new(
            Reason::ContainerConfigInvalid,
            format!("the container `{AGENT}` could not be started: {message}"),
        ));
    }
    // What happened to the broker after the agent's end changes nothing.
    let before_agent =
        |broker: &&ContainerStateTerminated| match (&broker.finished_at, &agent.finished_at) {
            (Some(broker), Some(agent)) => broker.0 < agent.0,
            (Some(_) | None, Some(_) | None) => false,
        };
    containers
        .broker_before
        .or_else(|| containers.broker.terminated())
        .filter(before_agent)
        .and_then(|broker| out_of_memory(BROKER, broker))
}

/// Why a pod ended in which no agent's container did.
fn pod_failure(status: &PodStatus, containers: &Containers<'_>) -> Option<Failure> {
    let reason = status.reason.as_deref().unwrap_or_default();
    let said = words(status.message.as_deref().unwrap_or_default());
    let broker = containers
        .broker
        .terminated()
        .filter(|_| containers.agent.terminated().is_none())
        .and_then(|broker| out_of_memory(BROKER, broker));
    if broker.is_some() {
        return broker;
    }
    match (reason, &containers.agent) {
        ("", _) => None,
        ("DeadlineExceeded", Seen::Terminated(_) | Seen::Running(_)) => Some(Failure::new(
            Reason::TimeoutReached,
            "the pod's own deadline was over",
        )),
        ("DeadlineExceeded", Seen::Absent | Seen::Waiting { .. }) => Some(Failure::new(
            Reason::GrantLost,
            "the pod's own deadline was over before the agent started",
        )),
        (reason, _) => Some(Failure::new(
            Reason::PodRejectedByPolicy,
            format!("the node refused the pod: {reason}: {said}"),
        )),
    }
}

/// What keeps a pod from starting: no node, then each container in its turn.
fn trouble(status: &PodStatus, containers: &Containers<'_>) -> Option<PodTrouble> {
    let scheduled = condition(status, "PodScheduled");
    let transition = |condition: Option<&PodCondition>| {
        condition
            .and_then(|c| c.last_transition_time.as_ref())
            .map_or(Timestamp::UNIX_EPOCH, |at| at.0)
    };
    if let Some(condition) = scheduled.filter(|c| c.status == "False") {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        let message = words(condition.message.as_deref().unwrap_or_default());
        return Some(PodTrouble {
            failure: Failure::new(Reason::NoNodeFits, format!("{reason}: {message}")),
            since: transition(scheduled),
        });
    }
    // A waiting container has no time of its own: it began to wait when the one before it was done.
    let placed = transition(scheduled);
    let provisioned = containers
        .provision
        .terminated()
        .and_then(|ended| ended.finished_at.as_ref())
        .map_or(placed, |at| at.0);
    let attended = match &containers.broker {
        Seen::Running(Some(at)) => *at,
        Seen::Running(None) | Seen::Absent | Seen::Waiting { .. } | Seen::Terminated(_) => {
            provisioned
        }
    };
    let waits = [
        (PROVISION, &containers.provision, placed),
        (BROKER, &containers.broker, provisioned),
        (AGENT, &containers.agent, attended),
    ];
    let kept = waits.into_iter().find_map(|(name, seen, since)| {
        let failure = waiting(name, seen)?;
        Some(PodTrouble { failure, since })
    });
    let killed = containers
        .broker_before
        .or_else(|| containers.broker.terminated());
    if let Some(failure) = killed.and_then(|broker| out_of_memory(BROKER, broker)) {
        let since = provisioned;
        return Some(PodTrouble { failure, since });
    }
    kept.or_else(|| {
        let broker = containers.broker.terminated()?;
        let message = format!("the broker ended with status {}", broker.exit_code);
        Some(PodTrouble {
            failure: Failure::new(Reason::BrokerNotReady, message),
            since: provisioned,
        })
    })
}

/// What a waiting container waits for, if that is trouble.
fn waiting(name: &str, seen: &Seen<'_>) -> Option<Failure> {
    let Seen::Waiting { reason, message } = seen else {
        return None;
    };
    let code = match *reason {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Reason::ImagePullFailed,
        "InvalidImageName" => Reason::ImageNameInvalid,
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "PreCreateHookError"
        | "PreStartHookError"
        | "PostStartHookError" => Reason::ContainerConfigInvalid,
        "CrashLoopBackOff" if name == BROKER => Reason::BrokerNotReady,
        _ => return None, // on its way: `ContainerCreating`, `PodInitializing`
    };
    let text = format!("container `{name}`: {reason}: {}", words(message));
    Some(Failure::new(code, text))
}

fn out_of_memory(name: &str, ended: &ContainerStateTerminated) -> Option<Failure> {
    (ended.reason.as_deref() == Some("OOMKilled")).then(|| {
        let message = format!("the container `{name}` reached its memory limit and was killed");
        Failure::new(Reason::MemoryLimitReached, message)
    })
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// Somebody else's words: made safe, and cut.
fn words(text: &str) -> String {
    let safe = crate::api::safe_text(text.as_bytes());
    match safe.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", safe.get(..end).unwrap_or_default()),
        None => safe,
    }
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
