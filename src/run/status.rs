//! What users see: a pure function of what is observed, without a clock, so that the same facts give the same bytes.
//!
//! Each condition's transition time is the time of the recorded event that made it so. The good path writes three
//! statuses (resolved, running, ended); [`write_due`] says when one is worth its API write.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

use super::conclude::in_words;
use super::seen::{
    AttemptFacts, AttemptState, EndFacts, InputFacts, Observed, RecordFacts, ResolvedInput,
};
use crate::api::wire::{Canary, Change, Drift, DriftFacts, GitDir, HeadSeen, InputOutcome};
use crate::api::{
    Code, Condition, ConditionStatus, ConditionType, CredentialStatus, DriftCounts, DriftStatus,
    ErrorStatus, Failure, Fault as _, HeadStatus, Healing, InputStatus, OutputStatus, PathStatus,
    Phase, Reason, RecordStatus, ResultStatus, RunUid, SandboxRunStatus, StatusSummary, UNSEEN,
};

/// What a status may take: half of what the design allows, measured as JSON, since the API server stores it with
/// managed fields beside it.
const MAX_BYTES: usize = 30 * 1024;

/// The status of a run.
#[must_use]
pub fn status(seen: &Observed) -> SandboxRunStatus {
    let nothing = RecordFacts::default();
    let record = seen.record.as_ref().unwrap_or(&nothing);
    let attempt = record.current();
    let error = failure(seen, record).map(error_status);
    let mut status = SandboxRunStatus {
        observed_generation: seen.spec.generation,
        phase: phase(record),
        attempt: record.newest.map(crate::api::Attempt::number),
        started_at: attempt.and_then(started_at).map(in_text),
        finished_at: record.ended.as_ref().map(|end| in_text(end.at)),
        summary: StatusSummary::default(),
        conditions: conditions(seen, record),
        inputs: inputs(seen, attempt),
        result: (record.ended.as_ref()).map(|end| result(end, attempt, seen.node.as_ref())),
        record: record.head.as_ref().map(|(sequence, hash)| RecordStatus {
            id: seen.spec.uid.to_string(),
            head: format!("{sequence}:{hash}"),
            events: sequence.cast_signed(),
        }),
        truncated: false,
        error,
    };
    status.summary = summary(&status, record);
    keep_small(&mut status);
    status
}

/// The status of a run whose record cannot be read or written now: what is known of it, and that it may not be all.
#[must_use]
pub fn unrecorded_status(seen: &Observed, failure: &Failure) -> SandboxRunStatus {
    let mut status = status(seen);
    let recorded = status.conditions.iter_mut();
    for condition in recorded.filter(|c| c.kind == ConditionType::Recorded) {
        condition.status = ConditionStatus::False;
        failure.reason.as_str().clone_into(&mut condition.reason);
        condition.message.clone_from(&failure.message);
    }
    keep_small(&mut status);
    status
}

/// The status of an object whose spec does not decode: nothing of it ever begins.
#[must_use]
pub fn undecodable_status(
    failure: &Failure,
    generation: Option<i64>,
    at: Timestamp,
) -> SandboxRunStatus {
    use ConditionStatus::{False, True};
    let condition = |kind, status| Condition {
        kind,
        status,
        reason: failure.reason.as_str().to_owned(),
        message: failure.message.clone(),
        observed_generation: generation,
        last_transition_time: in_text(at),
    };
    let mut status = SandboxRunStatus {
        observed_generation: generation,
        phase: Phase::Failed,
        finished_at: Some(in_text(at)),
        conditions: vec![
            condition(ConditionType::Ready, False),
            condition(ConditionType::Reconciling, False),
            condition(ConditionType::Stalled, True),
            condition(ConditionType::Complete, False),
            condition(ConditionType::Failed, True),
        ],
        summary: StatusSummary {
            reason: failure.reason.as_str().to_owned(),
            ..StatusSummary::default()
        },
        error: Some(error_status(failure)),
        ..SandboxRunStatus::default()
    };
    keep_small(&mut status);
    status
}

/// The status of an object that was made again after its run was done: what the record says of that run, and how to run
/// it again. `seen` is the observation of the new object with the record of the old one.
#[must_use]
pub fn recorded_status(seen: &Observed, original: &RunUid) -> SandboxRunStatus {
    let mut status = status(seen);
    let ended = status.finished_at.clone().unwrap_or_default();
    for condition in &mut status.conditions {
        let whole = match condition.kind {
            ConditionType::Ready | ConditionType::Stalled => true,
            ConditionType::Complete | ConditionType::Failed => {
                condition.status == ConditionStatus::True
            }
            ConditionType::Reconciling
            | ConditionType::InputsResolved
            | ConditionType::WorkspaceReady
            | ConditionType::PolicyEnforced
            | ConditionType::Drifted
            | ConditionType::Recorded => false,
        };
        if whole {
            condition.message = format!(
                "this run was done before, as {original}, and ended at {ended} ({}: {}); change spec.rerun to run again",
                condition.reason, condition.message
            );
            "RecordedResult".clone_into(&mut condition.reason);
        }
    }
    if let Some(record) = &mut status.record {
        record.id = original.to_string();
    }
    keep_small(&mut status);
    status
}

/// K02: whether the record is older than the status that an object has: it was lost, or a copy was put in its place. What
/// has ended does not begin again on the strength of it.
#[must_use]
pub fn outlived_its_record(written: &SandboxRunStatus, record: &RecordFacts) -> bool {
    if written.finished_at.is_none() {
        return false;
    }
    let newest = record.newest.map(crate::api::Attempt::number);
    let under_way = record.current().is_some() && record.ended.is_none();
    let unknown = record.reruns.is_empty();
    unknown || newest < written.attempt || under_way && newest == written.attempt
}

/// The status of such an object: what it said of its end stays, and that it is not begun again is said where somebody
/// asks for that. `at`: now, where nothing said so yet.
#[must_use]
pub fn outlived_status(
    written: &SandboxRunStatus,
    seen: &Observed,
    at: Timestamp,
) -> SandboxRunStatus {
    let known = |record: &RecordFacts| record.reruns.contains(&seen.spec.rerun);
    let again = !seen.record.as_ref().is_ok_and(known);
    let mut status = written.clone();
    status.observed_generation = seen.spec.generation;
    for condition in &mut status.conditions {
        condition.observed_generation = seen.spec.generation;
        if again && condition.kind == ConditionType::Stalled {
            if condition.status != ConditionStatus::True {
                condition.status = ConditionStatus::True;
                condition.last_transition_time = in_text(at);
            }
            "RecordLost".clone_into(&mut condition.reason);
            "the record does not know how this run ended, so it is never begun again: apply it under another name"
                .clone_into(&mut condition.message);
        }
    }
    keep_small(&mut status);
    status
}

/// Whether a status is worth an API write, given the last one that was written. At most six in a run's life: trouble
/// while resolving, resolved, trouble while starting, running, ended, recorded at last.
#[must_use]
pub fn write_due(written: Option<&SandboxRunStatus>, status: &SandboxRunStatus) -> bool {
    let seen = |written: &&SandboxRunStatus| written.observed_generation != Some(UNSEEN);
    let Some(written) = written.filter(seen) else {
        return milestone(status) > 0;
    };
    // Another life, or another spec: the steps begin again.
    let restarted = milestone(written) >= ENDED && milestone(status) < ENDED;
    // Whoever waits for a change of the object to be seen waits for this.
    let another_spec = written.observed_generation != status.observed_generation;
    let doubted = is(written, ConditionType::Recorded, ConditionStatus::True)
        && is(status, ConditionType::Recorded, ConditionStatus::False);
    restarted || another_spec || doubted || milestone(status) > milestone(written)
}

const ENDED: u8 = 5;

fn is(status: &SandboxRunStatus, kind: ConditionType, wanted: ConditionStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.kind == kind && c.status == wanted)
}

fn milestone(status: &SandboxRunStatus) -> u8 {
    let is_true = |kind| is(status, kind, ConditionStatus::True);
    match status.phase {
        Phase::Succeeded | Phase::Failed | Phase::Cancelled => {
            ENDED + u8::from(is_true(ConditionType::Recorded))
        }
        Phase::Running | Phase::Collecting => 4,
        Phase::Pending | Phase::Resolving | Phase::Provisioning => {
            let resolved = is_true(ConditionType::InputsResolved);
            2 * u8::from(resolved) + u8::from(status.error.is_some())
        }
    }
}

fn phase(record: &RecordFacts) -> Phase {
    if let Some(end) = &record.ended {
        return match &end.failure {
            None => Phase::Succeeded,
            Some(failure) if failure.reason.code() == Code::Cancelled => Phase::Cancelled,
            Some(_) => Phase::Failed,
        };
    }
    let Some(attempt) = record.current() else {
        return Phase::Pending;
    };
    match &attempt.state {
        AttemptState::Started(_) if attempt.agent_ended.is_some() => Phase::Collecting,
        AttemptState::Started(_) => Phase::Running,
        AttemptState::Open if attempt.pod.is_some() => Phase::Provisioning,
        AttemptState::Open | AttemptState::Failed(..) | AttemptState::Abandoned(..) => {
            if attempt.resolved_at.is_some() {
                Phase::Provisioning
            } else {
                Phase::Resolving
            }
        }
    }
}

/// Why it failed; while it is under way, what it waits for.
fn failure<'a>(seen: &'a Observed, record: &'a RecordFacts) -> Option<&'a Failure> {
    if let Some(end) = &record.ended {
        return end.failure.as_ref();
    }
    if let Err(failure) = &seen.record {
        return Some(failure);
    }
    match record.current().map(|attempt| &attempt.state) {
        Some(AttemptState::Failed(_, failure)) => Some(failure),
        Some(AttemptState::Started(_) | AttemptState::Abandoned(..)) => None,
        Some(AttemptState::Open) => seen.trouble(),
        None => seen.trouble.as_ref(),
    }
}

fn error_status(failure: &Failure) -> ErrorStatus {
    ErrorStatus {
        code: failure.reason.code().to_string(),
        reason: failure.reason.to_string(),
        message: failure.message.clone(),
        retryable: failure.healing() == Healing::Transient,
        hint: failure.hint().to_owned(),
        input: failure.input.as_ref().map(ToString::to_string),
    }
}

fn result(end: &EndFacts, attempt: Option<&AttemptFacts>, node: Option<&String>) -> ResultStatus {
    let output = attempt
        .and_then(|a| a.outcome.as_ref())
        .map(|outcome| &outcome.output);
    ResultStatus {
        exit_code: end.exit_code,
        reason: end
            .failure
            .as_ref()
            .map_or("Succeeded", |f| f.reason.as_str())
            .to_owned(),
        output: output.and_then(|output| {
            Some(OutputStatus {
                sha256: output.sha256.clone()?,
                bytes: output.bytes.cast_signed(),
                value: output.text.clone(),
            })
        }),
        pod: attempt
            .and_then(|a| a.pod.as_ref())
            .map(|(_, name)| name.clone()),
        node: node.cloned(),
    }
}

fn inputs(seen: &Observed, attempt: Option<&AttemptFacts>) -> Vec<InputStatus> {
    let resolved = attempt.map_or(&[][..], |a| &a.inputs);
    let outcomes = attempt
        .and_then(|a| a.outcome.as_ref())
        .map_or(&[][..], |o| &o.inputs);
    seen.spec
        .inputs
        .iter()
        .map(|input| {
            let resolved = resolved.iter().find(|r| r.name == input.name);
            let outcome = outcomes.iter().find(|o| o.name == input.name);
            input_status(input, resolved, outcome)
        })
        .collect()
}

fn input_status(
    input: &InputFacts,
    resolved: Option<&ResolvedInput>,
    outcome: Option<&InputOutcome>,
) -> InputStatus {
    InputStatus {
        name: input.name.to_string(),
        repository: resolved
            .map_or(&input.repository, |r| &r.repository)
            .clone(),
        requested_ref: input.requested_ref.clone(),
        resolved_ref: resolved
            .and_then(|r| r.resolved_ref.as_ref())
            .map(ToString::to_string),
        commit: resolved.map(|r| r.commit.to_string()),
        tag_object: resolved
            .and_then(|r| r.tag_object.as_ref())
            .map(ToString::to_string),
        object_format: resolved.map(|r| r.object_format.to_string()),
        resolved_at: resolved.map(|r| in_text(r.at)),
        credential: resolved.and_then(|r| {
            Some(CredentialStatus {
                connector: r.connector.clone()?,
                proof: r.credential_proof.clone(),
            })
        }),
        head: outcome.and_then(|o| head_status(&o.drift)),
        drift: outcome.map(|o| drift_status(&o.drift)),
    }
}

fn head_status(drift: &Drift) -> Option<HeadStatus> {
    let pinned = DriftFacts::default();
    let facts = match drift {
        Drift::Unchanged => &pinned,
        Drift::Drifted(facts) => facts,
        Drift::Unknown { .. } => return None,
    };
    let (state, commit, pinned_is_ancestor) = match &facts.head {
        HeadSeen::Pinned => ("Pinned", None, None),
        HeadSeen::Moved {
            to,
            pinned_is_ancestor,
        } => (
            "Moved",
            to.as_ref().map(ToString::to_string),
            *pinned_is_ancestor,
        ),
        HeadSeen::Unreadable => ("Unreadable", None, None),
    };
    let git_dir = match facts.git_dir {
        GitDir::Intact => "Intact",
        GitDir::Missing => "Missing",
        GitDir::Replaced => "Replaced",
    };
    Some(HeadStatus {
        state: state.to_owned(),
        commit,
        pinned_is_ancestor,
        git_dir: git_dir.to_owned(),
    })
}

fn drift_status(drift: &Drift) -> DriftStatus {
    let mut status = DriftStatus {
        state: drift_word(drift).to_owned(),
        reason: None,
        message: None,
        counts: None,
        paths: Vec::new(),
        truncated: false,
        incomplete: false,
    };
    match drift {
        Drift::Unchanged => {}
        Drift::Unknown { reason, message } => {
            status.reason = Some(format!("{reason:?}"));
            status.message = Some(message.clone());
        }
        Drift::Drifted(facts) => {
            status.counts = Some(DriftCounts {
                modified: facts.modified.cast_signed(),
                deleted: facts.deleted.cast_signed(),
                added: facts.added.cast_signed(),
                type_changed: facts.type_changed.cast_signed(),
                mode_changed: facts.mode_changed.cast_signed(),
            });
            let changed = facts.paths.iter().map(|changed| PathStatus {
                path: changed.path.clone(),
                change: change_word(changed.change).to_owned(),
            });
            status.paths = changed.collect();
            status.truncated = facts.truncated;
            status.incomplete = facts.incomplete;
        }
    }
    status
}

fn drift_word(drift: &Drift) -> &'static str {
    match drift {
        Drift::Unchanged => "Unchanged",
        Drift::Drifted(_) => "Drifted",
        Drift::Unknown { .. } => "Unknown",
    }
}

fn change_word(change: Change) -> &'static str {
    match change {
        Change::Modified => "modified",
        Change::Deleted => "deleted",
        Change::Added => "added",
        Change::TypeChanged => "typeChanged",
        Change::ModeChanged => "modeChanged",
    }
}

fn summary(status: &SandboxRunStatus, record: &RecordFacts) -> StatusSummary {
    let short = |input: &InputStatus| {
        let commit = input.commit.as_deref()?;
        Some(format!(
            "{}@{}",
            input.name,
            commit.get(..10).unwrap_or(commit)
        ))
    };
    let commits: Vec<_> = status.inputs.iter().filter_map(short).collect();
    let drifts: Vec<_> = status
        .inputs
        .iter()
        .filter_map(|i| i.drift.as_ref())
        .collect();
    let changed = |d: &DriftStatus| {
        d.counts.as_ref().map_or(0, |c| {
            c.modified + c.deleted + c.added + c.type_changed + c.mode_changed
        })
    };
    let drift = if drifts.is_empty() {
        String::new()
    } else if drifts.iter().any(|d| d.state == "Drifted") {
        format!(
            "Drifted ({})",
            drifts.iter().map(|d| changed(d)).sum::<i64>()
        )
    } else if drifts.iter().any(|d| d.state == "Unknown") {
        "Unknown".to_owned()
    } else {
        "Unchanged".to_owned()
    };
    let duration = match (record.current().and_then(started_at), &record.ended) {
        (Some(started), Some(end)) => in_words(
            end.at
                .duration_since(started)
                .try_into()
                .unwrap_or_default(),
        ),
        (Some(_) | None, Some(_) | None) => String::new(),
    };
    StatusSummary {
        inputs: commits.join(","),
        drift,
        reason: status
            .error
            .as_ref()
            .map_or(String::new(), |error| error.reason.clone()),
        duration,
    }
}

/// A condition before its generation and time are known.
struct Draft {
    status: ConditionStatus,
    reason: String,
    message: String,
    at: Option<Timestamp>,
}

impl Draft {
    fn new(
        status: ConditionStatus,
        reason: &str,
        message: impl Into<String>,
        at: Option<Timestamp>,
    ) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            message: message.into(),
            at,
        }
    }
}

fn conditions(seen: &Observed, record: &RecordFacts) -> Vec<Condition> {
    use ConditionStatus::{False, True, Unknown};
    let created = record.created_at;
    let phase = phase(record);
    let started = matches!(
        record.current().map(|attempt| &attempt.state),
        Some(AttemptState::Started(_))
    );
    let (under_way, message) = match failure(seen, record) {
        Some(failure) => (format!("{phase:?}"), failure.message.clone()),
        None if seen.wish.suspend && started => (
            format!("{phase:?}"),
            "spec.suspend does nothing once the agent has started: spec.cancel ends it".to_owned(),
        ),
        None if seen.wish.suspend => (
            "Suspended".to_owned(),
            "no pod is made while spec.suspend is true".to_owned(),
        ),
        None => (format!("{phase:?}"), String::new()),
    };
    let whole = |done: ConditionStatus, failed: ConditionStatus, alive: ConditionStatus| {
        match &record.ended {
            None => Draft::new(alive, &under_way, message.clone(), created),
            Some(end) => match &end.failure {
                None => Draft::new(done, "Succeeded", "the agent ended well", Some(end.at)),
                Some(f) => Draft::new(failed, f.reason.as_str(), f.message.clone(), Some(end.at)),
            },
        }
    };
    let attempt = record.current();
    let drafts = [
        (ConditionType::Ready, whole(True, False, Unknown)),
        (ConditionType::Reconciling, whole(False, False, True)),
        (ConditionType::Stalled, whole(False, True, False)),
        (ConditionType::Complete, whole(True, False, False)),
        (ConditionType::Failed, whole(False, True, False)),
        (
            ConditionType::InputsResolved,
            inputs_resolved(seen, record, attempt),
        ),
        (
            ConditionType::WorkspaceReady,
            workspace_ready(record, attempt),
        ),
        (
            ConditionType::PolicyEnforced,
            policy_enforced(record, attempt),
        ),
        (ConditionType::Drifted, drifted(seen, record, attempt)),
        (ConditionType::Recorded, recorded(seen, record)),
    ];
    drafts
        .into_iter()
        .map(|(kind, draft)| Condition {
            kind,
            status: draft.status,
            reason: draft.reason,
            message: draft.message,
            observed_generation: seen.spec.generation,
            last_transition_time: in_text(draft.at.or(created).unwrap_or(Timestamp::UNIX_EPOCH)),
        })
        .collect()
}

fn inputs_resolved(seen: &Observed, record: &RecordFacts, attempt: Option<&AttemptFacts>) -> Draft {
    use ConditionStatus::{False, True, Unknown};
    let Some(attempt) = attempt else {
        return undecided(record, "NotBegun");
    };
    if attempt.inputs.len() >= seen.spec.inputs.len() {
        let message = format!("pinned inputs: {}", attempt.inputs.len());
        let at = attempt.resolved_at.unwrap_or(attempt.dispatched_at);
        return Draft::new(True, "Resolved", message, Some(at));
    }
    match &attempt.state {
        AttemptState::Failed(at, failure) => Draft::new(
            False,
            failure.reason.as_str(),
            failure.message.clone(),
            Some(*at),
        ),
        AttemptState::Abandoned(at, reason) => Draft::new(
            False,
            reason.as_str(),
            "the attempt was abandoned",
            Some(*at),
        ),
        AttemptState::Open | AttemptState::Started(_) => match seen.resolution.trouble() {
            Some(failure) => Draft::new(
                Unknown,
                failure.reason.as_str(),
                failure.message.clone(),
                None,
            ),
            None => Draft::new(Unknown, "Resolving", "", None),
        },
    }
}

fn workspace_ready(record: &RecordFacts, attempt: Option<&AttemptFacts>) -> Draft {
    use ConditionStatus::{False, True};
    match attempt {
        Some(AttemptFacts {
            provisioned: Some((at, inputs)),
            ..
        }) => {
            let files: u64 = inputs.iter().map(|input| input.files).sum();
            let message = format!("inputs: {}, files: {files}", inputs.len());
            Draft::new(True, "Provisioned", message, Some(*at))
        }
        Some(AttemptFacts {
            state: AttemptState::Failed(at, failure),
            ..
        }) => Draft::new(
            False,
            failure.reason.as_str(),
            failure.message.clone(),
            Some(*at),
        ),
        Some(_) | None => undecided(record, "NotProvisioned"),
    }
}

fn policy_enforced(record: &RecordFacts, attempt: Option<&AttemptFacts>) -> Draft {
    use ConditionStatus::{False, True};
    let Some(attempt) = attempt else {
        return undecided(record, "NotProved");
    };
    if let Some((at, Reason::PolicyLost)) = attempt.stopping {
        let message = "the policy was not in force while the agent ran";
        return Draft::new(False, "PolicyLost", message, Some(at));
    }
    match &attempt.proof {
        Some((at, true, open)) => {
            let reachable = open.join(", ");
            if open.is_empty() {
                let message = "no canary could be reached from inside";
                Draft::new(True, "Proved", message, Some(*at))
            } else if open.iter().all(|name| name.starts_with(Canary::OWN_NODE)) {
                // Many network plugins exempt it from every policy.
                let message = format!("no canary could be reached from inside, but {reachable}");
                Draft::new(True, "Proved", message, Some(*at))
            } else {
                let message =
                    format!("reachable from inside, as the administrator accepts: {reachable}");
                Draft::new(False, "NotEnforcedAccepted", message, Some(*at))
            }
        }
        Some((at, false, open)) => {
            let message = format!("reachable from inside: {}", open.join(", "));
            Draft::new(False, "CanaryOpen", message, Some(*at))
        }
        None => undecided(record, "NotProved"),
    }
}

fn drifted(seen: &Observed, record: &RecordFacts, attempt: Option<&AttemptFacts>) -> Draft {
    use ConditionStatus::{False, True, Unknown};
    let Some(outcome) = attempt.and_then(|a| a.outcome.as_ref()) else {
        return undecided(record, "NotCompared");
    };
    let at = Some(outcome.at);
    let names = |word: &str| {
        let named = outcome
            .inputs
            .iter()
            .filter(|i| drift_word(&i.drift) == word);
        named
            .map(|i| i.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    if seen.spec.inputs.is_empty() {
        return Draft::new(False, "NoInputs", "there is nothing to compare", at);
    }
    let (changed, unknown) = (names("Drifted"), names("Unknown"));
    if !changed.is_empty() {
        Draft::new(True, "Drifted", format!("changed: {changed}"), at)
    } else if !unknown.is_empty() {
        Draft::new(
            Unknown,
            "NotKnown",
            format!("could not be compared: {unknown}"),
            at,
        )
    } else {
        Draft::new(
            False,
            "Unchanged",
            "every input is what was provisioned",
            at,
        )
    }
}

fn recorded(seen: &Observed, record: &RecordFacts) -> Draft {
    use ConditionStatus::{False, True};
    match &seen.record {
        Err(failure) => Draft::new(
            False,
            failure.reason.as_str(),
            failure.message.clone(),
            None,
        ),
        Ok(_) => Draft::new(
            True,
            "Recorded",
            "everything so far is in the record",
            record.created_at,
        ),
    }
}

/// What has not been shown: not known while it may come, false when the run ended without it.
fn undecided(record: &RecordFacts, reason: &str) -> Draft {
    match &record.ended {
        None => Draft::new(ConditionStatus::Unknown, reason, "", None),
        Some(end) => {
            let message = "the run ended before it came to that";
            Draft::new(ConditionStatus::Unknown, reason, message, Some(end.at))
        }
    }
}

fn started_at(attempt: &AttemptFacts) -> Option<Timestamp> {
    match attempt.state {
        AttemptState::Started(at) => Some(at),
        AttemptState::Open | AttemptState::Abandoned(..) | AttemptState::Failed(..) => None,
    }
}

/// Whole seconds, as Kubernetes writes them.
fn in_text(at: Timestamp) -> String {
    DateTimePrinter::new()
        .precision(Some(0))
        .timestamp_to_string(&at)
}

/// Cuts until it fits: first paths, then long texts, then the output's value. Counts always stay.
fn keep_small(status: &mut SandboxRunStatus) {
    for (paths, text) in [(20, 1024), (10, 512), (3, 256), (1, 160), (0, 120)] {
        cut(status, paths, text);
        let bytes = serde_json::to_vec(status).map_or(0, |json| json.len());
        if bytes <= MAX_BYTES {
            return;
        }
    }
    if let Some(output) = status.result.as_mut().and_then(|r| r.output.as_mut()) {
        status.truncated |= output.value.take().is_some();
    }
}

fn cut(status: &mut SandboxRunStatus, paths: usize, text: usize) {
    let mut truncated = status.truncated;
    let mut shorten = |value: &mut String| truncated |= cut_text(value, text);
    for condition in &mut status.conditions {
        shorten(&mut condition.message);
    }
    if let Some(error) = &mut status.error {
        shorten(&mut error.message);
    }
    for input in &mut status.inputs {
        shorten(&mut input.repository);
        shorten(&mut input.requested_ref);
        input.resolved_ref.iter_mut().for_each(&mut shorten);
        if let Some(credential) = &mut input.credential {
            shorten(&mut credential.connector);
        }
        if let Some(drift) = &mut input.drift {
            drift.message.iter_mut().for_each(&mut shorten);
            if drift.paths.len() > paths {
                drift.paths.truncate(paths);
                drift.truncated = true;
            }
            for changed in &mut drift.paths {
                shorten(&mut changed.path);
            }
        }
    }
    shorten(&mut status.summary.inputs);
    status.truncated = truncated;
}

/// Cuts a text to so many bytes of JSON, the mark included.
fn cut_text(value: &mut String, most: usize) -> bool {
    let escaped = |c: char| match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        c if c < ' ' => 6,
        c => c.len_utf8(),
    };
    let room = most.saturating_sub('…'.len_utf8());
    let (mut used, mut fits) = (0, 0);
    for (at, c) in value.char_indices() {
        used += escaped(c);
        if used <= room {
            fits = at + c.len_utf8();
        } else if used > most {
            value.truncate(fits);
            value.push('…');
            return true;
        }
    }
    false
}
