//! `collect`: reads what the run left, once the agent is gone.
//!
//! It runs nothing and trusts nothing that the agent could write: no git, no configuration, no index, no rules of what to
//! ignore. It compares the work tree with the baseline, reads HEAD as text and the output as a regular file.

mod findings;
mod history;
mod output;
mod walk;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::api::wire::{
    Drift, DriftFacts, GitDir, HeadSeen, InputOutcome, Outcome, Plan, UnknownReason,
};
use crate::api::{Failure, Fault as _, InputName, RefName};
use crate::pod::baseline::{self, Baseline, BaselineInput};
use crate::pod::client::Gateway;
use crate::pod::{head, retry, summary};
use findings::Findings;

/// What `collect` works on.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the outcome goes.
    pub gateway: Gateway,
    /// The inputs' volume.
    pub workspace: PathBuf,
    /// Where the output lies.
    pub sandbox: PathBuf,
    /// The baseline's volume.
    pub baseline: PathBuf,
    /// Where the termination message goes.
    pub termination_log: Option<PathBuf>,
    /// What is not compared by then is not known.
    pub budget: Duration,
}

/// Collects, writes the termination message and reports to the gateway.
///
/// # Errors
/// When the gateway did not take the outcome. The termination message then is all there is.
pub async fn run(options: &Options) -> Result<(), Failure> {
    let outcome = read(options).await?;
    summary::write(
        options.termination_log.as_deref(),
        &summary::of_outcome(&outcome, None),
    );
    let gateway = &options.gateway;
    retry(gateway, || gateway.post("/v1/outcome", &outcome))
        .await
        .map_err(|e| e.failure(None))
}

/// Reads what the run left.
///
/// # Errors
/// When the one who reads failed itself.
pub(super) async fn read(options: &Options) -> Result<Outcome, Failure> {
    let deadline = Instant::now() + options.budget;
    let task_options = options.clone();
    let inputs = match baseline::read_manifest(&options.baseline) {
        Ok(manifest) => {
            let compare = move || {
                let inputs = compare_all(&task_options, &manifest.inputs, deadline);
                (inputs, output::read(&task_options.sandbox))
            };
            let (inputs, output) = tokio::task::spawn_blocking(compare)
                .await
                .map_err(|error| {
                    Failure::new(crate::api::Reason::CollectFailed, error.to_string())
                })?;
            return Ok(Outcome { inputs, output });
        }
        Err(error) => without_baseline(&options.gateway, &error.to_string()).await,
    };
    Ok(Outcome {
        inputs,
        output: output::read(&options.sandbox),
    })
}

/// Every input of the baseline, as one that the agent may still change.
pub(super) fn agent_may_run(baseline: &Path) -> Vec<InputOutcome> {
    let inputs = baseline::read_manifest(baseline).map_or_else(|_| Vec::new(), |m| m.inputs);
    inputs
        .into_iter()
        .map(|input| InputOutcome {
            name: input.name,
            drift: Drift::unread(UnknownReason::AgentMayRun),
        })
        .collect()
}

/// How long the gateway is asked which inputs there were: the rest of the time is for reading them.
const ASK_PLAN: Duration = Duration::from_secs(10);

/// Every input of the plan, as not known.
async fn without_baseline(gateway: &Gateway, message: &str) -> Vec<InputOutcome> {
    let plan = retry(gateway, || gateway.get::<Plan>("/v1/plan"));
    let plan = tokio::time::timeout(ASK_PLAN, plan).await;
    let names = plan
        .ok()
        .and_then(Result::ok)
        .map(|plan| plan.inputs)
        .unwrap_or_default();
    names
        .into_iter()
        .map(|input| InputOutcome {
            name: input.name,
            drift: unknown(UnknownReason::NoBaseline, message),
        })
        .collect()
}

fn unknown(reason: UnknownReason, message: impl Into<String>) -> Drift {
    Drift::Unknown {
        reason,
        message: message.into(),
    }
}

fn compare_all(
    options: &Options,
    inputs: &[BaselineInput],
    deadline: Instant,
) -> Vec<InputOutcome> {
    let drift = |input| compare(options, input, deadline);
    inputs
        .iter()
        .map(|input| InputOutcome {
            name: input.name.clone(),
            drift: drift(input),
        })
        .collect()
}

fn compare(options: &Options, input: &BaselineInput, deadline: Instant) -> Drift {
    let bytes = match read_baseline(&options.baseline, &input.name) {
        Ok(bytes) => bytes,
        Err(message) => return unknown(UnknownReason::NoBaseline, message),
    };
    let Some(baseline) = Baseline::parse(&bytes) else {
        return unknown(UnknownReason::NoBaseline, "the baseline is damaged");
    };
    let (findings, head, git_dir) = match open_root(&options.workspace, &input.path) {
        Ok(root) => {
            let seen = head::read(&root);
            let head = where_head_is(&root, &seen, input);
            (walk::compare(root, &baseline, deadline), head, seen.git_dir)
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            let mut findings = Findings::default();
            walk::all_deleted(&baseline, b"", &mut findings);
            (findings, HeadSeen::Unreadable, GitDir::Missing)
        }
        Err(errno) => {
            return unknown(
                UnknownReason::Unreadable,
                format!("cannot open the input: {errno}"),
            );
        }
    };
    judge(findings, head, git_dir)
}

/// What is proven counts; what was not reached makes an equal tree unknown.
fn judge(findings: Findings, head: HeadSeen, git_dir: GitDir) -> Drift {
    let (unreadable, budget) = (findings.unreadable.clone(), findings.out_of_time);
    let facts = DriftFacts {
        head,
        git_dir,
        ..findings.into_facts()
    };
    let changes = [
        facts.modified,
        facts.deleted,
        facts.added,
        facts.type_changed,
        facts.mode_changed,
    ];
    let drifted = changes.iter().any(|count| *count > 0)
        || facts.head != HeadSeen::Pinned
        || facts.git_dir != GitDir::Intact;
    if drifted {
        Drift::Drifted(facts)
    } else if budget {
        unknown(
            UnknownReason::Budget,
            "the time to compare was used up; what was compared is equal",
        )
    } else if let Some(path) = unreadable {
        unknown(
            UnknownReason::Unreadable,
            format!("cannot read `{path}`; what could be read is equal"),
        )
    } else {
        Drift::Unchanged
    }
}

fn read_baseline(directory: &Path, input: &InputName) -> Result<Vec<u8>, String> {
    baseline::read(directory, input).map_err(|error| error.to_string())
}

fn where_head_is(root: &OwnedFd, seen: &head::Seen, input: &BaselineInput) -> HeadSeen {
    if !seen.readable {
        return HeadSeen::Unreadable;
    }
    let branch = input.branch.as_ref().map(RefName::as_str);
    let pinned_is_ancestor = match &seen.commit {
        Some(commit) if *commit == input.commit && seen.branch.as_deref() == branch => {
            return HeadSeen::Pinned;
        }
        Some(commit) => head::open_git_dir(root)
            .ok()
            .and_then(|git| history::is_ancestor(&git, &input.commit, commit)),
        None => None,
    };
    HeadSeen::Moved {
        to: seen.commit.clone(),
        pinned_is_ancestor,
    }
}

/// Opens the directory of an input, no part of its path being a link.
fn open_root(workspace: &Path, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = fs::open(
        workspace,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for part in path.split('/') {
        directory = match fs::openat(&directory, part, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                crate::pod::access::let_us_read(&directory, part.as_bytes(), true);
                fs::openat(&directory, part, flags, Mode::empty())?
            }
            opened => opened?,
        };
    }
    Ok(directory)
}
