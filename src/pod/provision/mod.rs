//! `provision`: puts the pinned inputs into the workspace, all of them or nothing.
//!
//! Everything is made in [`STAGING`] and moved into place once all inputs are whole. The baseline's list of inputs is
//! written last. So a process that is killed at any moment leaves nothing that looks complete, and a second start begins
//! by removing what the first one made. It touches only its own names: the volume may hold others (`lost+found`).

mod attributes;
mod checkout;
mod convert;
mod download;
mod encoding;
mod index_file;
mod repository;
mod safe_path;
mod wildmatch;
mod write_file;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use futures::StreamExt as _;
use rustix::fs::Timespec;
use tokio_util::sync::CancellationToken;

pub use checkout::CheckoutError;
pub use download::DownloadError;
pub use repository::restore;

use crate::api::wire::{Plan, PlannedInput, ProvisionReport, ProvisionedInput};
use crate::api::{Failure, Fault, InputName, Reason, RefName, layout, safe_text};
use crate::pod::baseline::{self, BaselineError, BaselineInput, EntryKind, Manifest, NewEntry};
use crate::pod::client::{CallError, Gateway};
use crate::pod::head;
use crate::pod::install::install;
use crate::pod::objects::{ObjectId, Pack, PackError, PackIndex};
use crate::pod::proof::{ProofError, Prover};
use crate::pod::{retry, summary};

/// What `provision` works on.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where plan and packs come from.
    pub gateway: Gateway,
    /// The inputs' volume.
    pub workspace: PathBuf,
    /// Prompt, context and output.
    pub sandbox: PathBuf,
    /// The baseline's volume.
    pub baseline: PathBuf,
    /// Where the termination message goes.
    pub termination_log: Option<PathBuf>,
    /// What else is to be done in a pod; in a local run, `agent` proves the policy itself.
    pub in_pod: Option<InPod>,
}

/// What provision does in a pod besides.
#[derive(Debug, Clone)]
pub struct InPod {
    /// Where our own program goes, for the agent's container.
    pub install: PathBuf,
    /// Addresses of the pod's node.
    pub nodes: Vec<IpAddr>,
    /// How long an open canary is tried again.
    pub proof_limit: Duration,
}

/// The directory in the workspace where inputs are made before they are whole.
pub const STAGING: &str = ".sandboxrun-staging";

/// Inputs that are downloaded and checked out at once: each takes its own files and up to 100 MB of memory.
const INPUTS_AT_ONCE: usize = 4;

/// Why provisioning failed.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The plan is not to be had.
    #[error("cannot get the plan")]
    Plan(#[source] CallError),
    /// The plan is not one that can be carried out.
    #[error("the plan is not usable: {0}")]
    BadPlan(String),
    /// A pack or index did not arrive.
    #[error(transparent)]
    Download(#[from] DownloadError),
    /// A pack cannot be used.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The commit cannot be written to disk.
    #[error(transparent)]
    Checkout(#[from] CheckoutError),
    /// Something of ours cannot be written.
    #[error("cannot write {what}")]
    Write {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The baseline cannot be written.
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// What is there is not what was pinned.
    #[error("HEAD is not the pinned commit {0}")]
    NotPinned(String),
}

impl Fault for ProvisionError {
    fn reason(&self) -> Reason {
        match self {
            Self::Plan(error) => error.reason(),
            Self::BadPlan(_) => Reason::Bug,
            Self::Download(error) => error.reason(),
            Self::Pack(_) => Reason::PackInvalid,
            Self::Checkout(error) => error.reason(),
            Self::Write { source, .. } | Self::Baseline(BaselineError::Io { source, .. })
                if is_no_space(source) =>
            {
                Reason::NoSpaceForInputs
            }
            Self::Write { .. } | Self::Baseline(_) | Self::NotPinned(_) => Reason::CheckoutFailed,
        }
    }
}

/// Whether the volume is full, or a limit of its size was met.
fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Provisions, reports to the gateway and writes the termination message. In a pod it also proves the policy, and returns
/// only when both are done.
///
/// # Errors
/// The failure that was reported. Nothing starts then.
pub async fn run(options: &Options) -> Result<(), Failure> {
    let done = match &options.in_pod {
        None => provision_and_report(options, &CancellationToken::new()).await,
        Some(in_pod) => in_a_pod(options, in_pod).await,
    };
    let report = match &done {
        Ok(inputs) => ProvisionReport::Done {
            inputs: inputs.clone(),
        },
        Err(failure) => ProvisionReport::Failed {
            failure: failure.clone(),
        },
    };
    summary::write(
        options.termination_log.as_deref(),
        &summary::of_provision(&report),
    );
    match done {
        Ok(_) => Ok(()),
        Err(failure) => {
            // If it cannot be told, the termination message says it.
            let gateway = &options.gateway;
            let _untold = retry(gateway, || gateway.post("/v1/provisioned", &report)).await;
            Err(failure)
        }
    }
}

/// Provisions and reports it. `in_place` is cancelled in between.
async fn provision_and_report(
    options: &Options,
    in_place: &CancellationToken,
) -> Result<Vec<ProvisionedInput>, Failure> {
    let inputs = provision(options).await?;
    in_place.cancel();
    let report = ProvisionReport::Done {
        inputs: inputs.clone(),
    };
    let gateway = &options.gateway;
    // A workspace that nobody knows to be ready is not ready.
    retry(gateway, || gateway.post("/v1/provisioned", &report))
        .await
        .map_err(|error| error.failure(None))?;
    Ok(inputs)
}

/// Download and checkout, and the proof beside them: its last round begins after the checkout. Whichever fails first is the
/// failure.
async fn in_a_pod(options: &Options, in_pod: &InPod) -> Result<Vec<ProvisionedInput>, Failure> {
    install(&in_pod.install).map_err(|source| {
        let what = "our program";
        ProvisionError::Write { what, source }.failure(None)
    })?;
    let in_place = CancellationToken::new();
    let provisioning = provision_and_report(options, &in_place);
    let prover = Prover::new(options.gateway.clone(), in_pod.nodes.clone());
    let proving = async {
        let proof = prover.prove(in_pod.proof_limit, &in_place).await;
        proof.map_err(|error: ProofError| error.failure(None))
    };
    let (inputs, ()) = tokio::try_join!(provisioning, proving)?;
    Ok(inputs)
}

async fn provision(options: &Options) -> Result<Vec<ProvisionedInput>, Failure> {
    let plan: Plan = retry(&options.gateway, || options.gateway.get("/v1/plan"))
        .await
        .map_err(|e| ProvisionError::Plan(e).failure(None))?;
    check_plan(&plan).map_err(|e| e.failure(None))?;
    clear(options, &plan).map_err(|e| e.failure(None))?;
    let made = make_all(options, &plan).await;
    let done = made.and_then(|inputs| {
        put_in_place(options, &plan)
            .map_err(|error| described(options, &plan, error.failure(None)))?;
        Ok(inputs)
    });
    if done.is_err() {
        // What cannot be removed still has no manifest, and no report that says it is whole.
        let _removed = clear(options, &plan);
    }
    done
}

/// The gateway is ours, but a path is checked where it is used.
fn check_plan(plan: &Plan) -> Result<(), ProvisionError> {
    let relative = |path: &str| {
        !path.is_empty()
            && path
                .split('/')
                .all(|part| safe_path::check(part.as_bytes(), path.len(), false).is_ok())
    };
    for input in &plan.inputs {
        if !relative(&input.path) || input.path.split('/').next() == Some(STAGING) {
            let (name, path) = (&input.name, safe_text(input.path.as_bytes()));
            return Err(ProvisionError::BadPlan(format!(
                "path `{path}` of input `{name}`"
            )));
        }
    }
    for file in &plan.context {
        if !relative(&file.path) {
            let path = safe_text(file.path.as_bytes());
            return Err(ProvisionError::BadPlan(format!(
                "path `{path}` of the context"
            )));
        }
    }
    Ok(())
}

/// Removes what an earlier start made, and nothing else.
fn clear(options: &Options, plan: &Plan) -> Result<(), ProvisionError> {
    let names: Vec<InputName> = plan.inputs.iter().map(|input| input.name.clone()).collect();
    baseline::clear(&options.baseline, &names)?;
    let failed = |source| ProvisionError::Write {
        what: "the workspace",
        source,
    };
    remove(&options.workspace.join(STAGING)).map_err(failed)?;
    for input in &plan.inputs {
        remove(&options.workspace.join(&input.path)).map_err(failed)?;
    }
    let failed = |source| ProvisionError::Write {
        what: "prompt and context",
        source,
    };
    for path in [layout::PROMPT, layout::CONTEXT, layout::OUTPUT] {
        remove(&inside(&options.sandbox, path)).map_err(failed)?;
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A path of [`layout`] below another root.
fn inside(sandbox: &Path, path: &str) -> PathBuf {
    let relative = path.strip_prefix(layout::SANDBOX).unwrap_or(path);
    sandbox.join(relative.trim_start_matches('/'))
}

/// Makes every input in the staging directory. Waits for all, so that nothing writes while we clean up.
async fn make_all(options: &Options, plan: &Plan) -> Result<Vec<ProvisionedInput>, Failure> {
    let made: Vec<_> = futures::stream::iter(&plan.inputs)
        .map(|input| async move {
            make(options, input)
                .await
                .map_err(|error| described(options, plan, error.failure(Some(input.name.clone()))))
        })
        .buffered(INPUTS_AT_ONCE)
        .collect()
        .await;
    made.into_iter().collect()
}

/// Says how large everything is where a volume was full.
fn described(options: &Options, plan: &Plan, mut failure: Failure) -> Failure {
    if failure.reason == Reason::NoSpaceForInputs
        && let Ok(volume) = rustix::fs::statvfs(&options.workspace)
    {
        let packs: u64 = plan
            .inputs
            .iter()
            .map(|i| i.pack.bytes + i.index.bytes)
            .sum();
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let (all, free) = (volume.f_blocks, volume.f_bavail);
        let (all, free) = (
            mib(all.saturating_mul(volume.f_frsize)),
            mib(free.saturating_mul(volume.f_frsize)),
        );
        let packs = mib(packs);
        failure.message = format!(
            "{}; the volume has {all} MiB, {free} MiB of them free, and the packs alone take {packs} MiB",
            failure.message
        );
    }
    failure
}

async fn make(options: &Options, input: &PlannedInput) -> Result<ProvisionedInput, ProvisionError> {
    let start = Instant::now();
    let root = options.workspace.join(STAGING).join(input.name.as_str());
    let packs = repository::create(&root).map_err(|source| ProvisionError::Write {
        what: "the repository",
        source,
    })?;
    let (pack, index) = (packs.join("tmp_pack"), packs.join("tmp_idx"));
    let path = |part: &str| format!("/v1/packs/{}/{part}", input.name);
    let (pack_path, index_path) = (path("pack"), path("idx"));
    let (got_pack, got_index) = tokio::join!(
        download::download(&options.gateway, &pack_path, "pack", &input.pack, &pack),
        download::download(
            &options.gateway,
            &index_path,
            "pack's index",
            &input.index,
            &index
        ),
    );
    got_pack?;
    got_index?;
    let (task_input, baseline) = (input.clone(), options.baseline.clone());
    let built = tokio::task::spawn_blocking(move || build(&task_input, &root, &baseline)).await;
    let mut done = built.map_err(|e| ProvisionError::BadPlan(e.to_string()))??;
    done.millis = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(done)
}

/// From a pack on disk to a work tree with its `.git` and its baseline.
fn build(
    input: &PlannedInput,
    root: &Path,
    baseline_dir: &Path,
) -> Result<ProvisionedInput, ProvisionError> {
    let write_failed = |what| move |source| ProvisionError::Write { what, source };
    let pack = adopt_pack(input, &root.join(repository::PACKS))?;
    let commit = ObjectId::from_hex(input.commit.as_str().as_bytes())
        .ok_or_else(|| ProvisionError::BadPlan(input.commit.to_string()))?;
    let directory = rustix::fs::open(root, checkout::DIRECTORY, rustix::fs::Mode::empty())
        .map_err(|errno| write_failed("the work tree")(errno.into()))?;
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8);
    let mut tree = checkout::checkout(&pack, &commit, directory, earlier(), threads)?;
    let entries: Vec<_> = tree
        .entries
        .iter()
        .map(|entry| index_file::IndexEntry {
            path: &entry.path,
            mode: entry.mode,
            id: entry.id,
            stat: entry.stat,
        })
        .collect();
    let trees = if tree.empty_trees {
        &mut [][..]
    } else {
        tree.trees.as_mut_slice()
    };
    let index = index_file::write(input.commit.format(), &entries, trees)
        .ok_or_else(|| write_failed("the index")(io::ErrorKind::FileTooLarge.into()))?;
    repository::finish(root, input, &index).map_err(write_failed("the repository"))?;
    fs::write(baseline_dir.join(baseline::index_name(&input.name)), &index)
        .map_err(write_failed("the baseline's index"))?;
    assert_pinned(root, input)?;
    baseline::write(baseline_dir, &input.name, baseline_entries(&tree))?;
    let files = tree
        .entries
        .iter()
        .filter(|e| e.mode != checkout::SUBMODULE);
    Ok(ProvisionedInput {
        name: input.name.clone(),
        files: files.clone().count() as u64,
        bytes: files.map(|e| e.size).sum(),
        submodules: tree
            .entries
            .iter()
            .filter(|e| e.mode == checkout::SUBMODULE)
            .take(20)
            .map(|e| safe_text(&e.path))
            .collect(),
        lfs_pointers: tree.entries.iter().filter(|e| e.lfs_pointer).count() as u64,
        millis: 0,
    })
}

/// Opens the downloaded pack and gives both files the names that git looks for.
fn adopt_pack(input: &PlannedInput, packs: &Path) -> Result<Pack, ProvisionError> {
    let failed = |source| ProvisionError::Write {
        what: "the pack",
        source,
    };
    let format = input.commit.format();
    let bytes = fs::read(packs.join("tmp_idx")).map_err(failed)?;
    let index = PackIndex::parse(bytes, format).map_err(PackError::Index)?;
    let name = crate::pod::objects::hex(index.pack_checksum().unwrap_or_default());
    for (from, to) in [("tmp_pack", "pack"), ("tmp_idx", "idx")] {
        let to = packs.join(format!("pack-{name}.{to}"));
        fs::rename(packs.join(from), &to).map_err(failed)?;
        let read_only = std::os::unix::fs::PermissionsExt::from_mode(0o444);
        fs::set_permissions(&to, read_only).map_err(failed)?;
    }
    let file = fs::File::open(packs.join(format!("pack-{name}.pack"))).map_err(failed)?;
    Ok(Pack::open(file, index, format)?)
}

/// All files are two seconds older than the index. git takes a file that is as old as its index for one that may have
/// changed meanwhile, and would read all of them again with the first `git status`.
#[expect(
    clippy::disallowed_methods,
    reason = "what is written is the age of files"
)]
fn earlier() -> Timespec {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(0).saturating_sub(2);
    Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    }
}

/// Reads HEAD back as `collect` will read it.
fn assert_pinned(root: &Path, input: &PlannedInput) -> Result<(), ProvisionError> {
    let seen = rustix::fs::open(root, checkout::DIRECTORY, rustix::fs::Mode::empty())
        .ok()
        .map(|root| head::read(&root));
    let pinned = seen.is_some_and(|seen| {
        seen.commit.as_ref() == Some(&input.commit)
            && seen.branch.as_deref() == repository::branch(input).map(RefName::as_str)
    });
    if pinned {
        Ok(())
    } else {
        Err(ProvisionError::NotPinned(input.commit.to_string()))
    }
}

fn baseline_entries(tree: &checkout::CheckedOut) -> Vec<NewEntry<'_>> {
    let files = tree.entries.iter().map(|entry| NewEntry {
        path: &entry.path,
        kind: match entry.mode {
            checkout::LINK => EntryKind::Symlink,
            checkout::SUBMODULE => EntryKind::Submodule,
            checkout::EXECUTABLE => EntryKind::Executable,
            _ => EntryKind::File,
        },
        size: entry.size,
        sha256: entry.sha256,
    });
    let directories = tree
        .trees
        .iter()
        .filter(|t| !t.path.is_empty())
        .map(|tree| NewEntry {
            path: &tree.path,
            kind: EntryKind::Directory,
            size: 0,
            sha256: [0; 32],
        });
    files.chain(directories).collect()
}

/// Moves all inputs to where they belong, writes prompt and context, and at last the list of inputs.
fn put_in_place(options: &Options, plan: &Plan) -> Result<(), ProvisionError> {
    let failed = |source| ProvisionError::Write {
        what: "the workspace",
        source,
    };
    for input in &plan.inputs {
        let to = options.workspace.join(&input.path);
        to.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .map_err(failed)?;
        fs::rename(
            options.workspace.join(STAGING).join(input.name.as_str()),
            to,
        )
        .map_err(failed)?;
    }
    remove(&options.workspace.join(STAGING)).map_err(failed)?;
    write_sandbox(options, plan).map_err(|source| ProvisionError::Write {
        what: "prompt and context",
        source,
    })?;
    let inputs = plan.inputs.iter().map(|input| BaselineInput {
        name: input.name.clone(),
        path: input.path.clone(),
        commit: input.commit.clone(),
        branch: repository::branch(input).cloned(),
    });
    Ok(baseline::write_manifest(
        &options.baseline,
        &Manifest {
            inputs: inputs.collect(),
        },
    )?)
}

fn write_sandbox(options: &Options, plan: &Plan) -> io::Result<()> {
    fs::create_dir_all(inside(&options.sandbox, layout::OUTPUT))?;
    if let Some(prompt) = &plan.prompt {
        fs::write(inside(&options.sandbox, layout::PROMPT), prompt)?;
    }
    let context = inside(&options.sandbox, layout::CONTEXT);
    for file in &plan.context {
        let path = context.join(&file.path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, &file.content)?;
    }
    Ok(())
}
