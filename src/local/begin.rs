//! One local run from the outside: what it is given, what it gives back, and what is made and removed around it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::abandoned;
use super::privileges::Standing;
use super::shell::{Lost, Shell};
use super::sources::{ManifestSources, Manifests};
use super::state::{State, StateError};
use super::terminal::Screen;
use super::watch::signals;
use crate::api::{Fault, NameError, Reason, RunUid, SandboxRunStatus};
use crate::audit::{Entry, Record, RecordError, RunKey};
use crate::gateway::{Canaries, CanaryError, Gateway};
use crate::inputs::{AddressException, Inputs, Settings};
use crate::run;

/// What the command line says about a local run.
#[derive(Debug, Clone)]
pub struct Options {
    /// What this process has become.
    pub standing: Standing,
    /// Closed addresses that may be reached after all.
    pub address_exceptions: Vec<AddressException>,
    /// More of this machine for the agent, read-only.
    pub ro_binds: Vec<PathBuf>,
    /// Remove the workspace at the end.
    pub discard: bool,
}

/// A run that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its key in the record.
    pub key: RunKey,
    /// What the custom resource would show.
    pub status: SandboxRunStatus,
    /// The whole chain.
    pub entries: Vec<Entry>,
    /// The last word.
    pub end: run::EndFacts,
    /// Where what it left is kept.
    pub kept: Option<PathBuf>,
}

/// Why a run could not be begun: nothing of it is in the record.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The state directory.
    #[error(transparent)]
    State(StateError),
    /// The record.
    #[error(transparent)]
    Record(RecordError),
    /// The record was lost on the way.
    #[error("the run ended without its last word, which the next run will write{}", kept_in(.kept.as_deref()))]
    Lost {
        /// Why.
        #[source]
        source: RecordError,
        /// Where the workspace is, if an agent had started in it.
        kept: Option<PathBuf>,
    },
    /// Signals cannot be taken, or the kernel refuses something as basic.
    #[error("this process cannot be set up")]
    Process(#[source] std::io::Error),
    /// The canaries.
    #[error(transparent)]
    Canaries(CanaryError),
    /// No uid could be made.
    #[error("no uid could be made for the run")]
    Uid(#[source] NameError),
    /// The record holds no end of a run that has ended.
    #[error("the record holds no end of this run")]
    NoEnd,
}

impl Fault for LocalError {
    fn reason(&self) -> Reason {
        match self {
            Self::State(error) => error.reason(),
            Self::Record(error) | Self::Lost { source: error, .. } => error.reason(),
            Self::Process(_) | Self::Uid(_) | Self::NoEnd => Reason::Bug,
            Self::Canaries(error) => error.reason(),
        }
    }
}

/// Does one run, from its first event to its last.
///
/// # Errors
/// When nothing could be begun, or the record was lost on the way. All else is an [`Ended`] run, failed or not.
pub async fn run(
    manifests: Manifests,
    options: Options,
    screen: &Screen,
) -> Result<Ended, LocalError> {
    let state = State::new(options.standing.state_dir.clone());
    let record = Record::open(&state.record())
        .await
        .map_err(LocalError::Record)?;
    abandoned::close(&record, &state, screen)
        .await
        .map_err(LocalError::Record)?;
    state.prune().map_err(LocalError::State)?;
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let urgency = signals(&tracker, &stop).map_err(LocalError::Process)?;
    let canaries = Canaries::listen(&tracker, &stop)
        .await
        .map_err(LocalError::Canaries)?;
    let inputs = Inputs::new(
        settings(&state, &options),
        Arc::new(ManifestSources(manifests.clone())),
    );
    let gateway = Gateway {
        record: record.clone(),
        inputs,
        canaries,
        tracker: tracker.clone(),
    };
    let key = RunKey {
        namespace: manifests.namespace.clone(),
        name: manifests.name.clone(),
        uid: fresh_uid().map_err(LocalError::Uid)?,
    };
    let uid = key.uid.clone();
    let (dirs, lock) = state.make_run(&key.uid).map_err(LocalError::State)?;
    let mut shell = Shell::new(
        gateway,
        manifests,
        options,
        key,
        dirs,
        urgency,
        stop.clone(),
        screen,
    );
    let ended = shell.live().await;
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    record.close().await;
    let kept = match &ended {
        Ok(Some(Ended { kept, .. })) | Err(Lost { kept, .. }) => kept.is_some(),
        Ok(None) => false,
    };
    let removed = if kept { Ok(()) } else { state.remove_run(&uid) };
    drop(lock);
    // What became of the record is said first.
    let ended = ended.map_err(|Lost { source, kept }| LocalError::Lost { source, kept })?;
    removed.map_err(LocalError::State)?;
    ended.ok_or(LocalError::NoEnd)
}

fn kept_in(kept: Option<&Path>) -> String {
    kept.map(|path| format!("; what the agent left is in {}", path.display()))
        .unwrap_or_default()
}

fn settings(state: &State, options: &Options) -> Settings {
    let mut settings = Settings::new(state.mirror());
    settings
        .address_exceptions
        .clone_from(&options.address_exceptions);
    settings
        .fetch
        .helper_program
        .clone_from(&options.standing.programs.host);
    // What is not in the manifests now will not come later.
    settings.times.missing = Duration::ZERO;
    settings
}

/// A random uid, as the API server makes them.
fn fresh_uid() -> Result<RunUid, NameError> {
    uuid::Uuid::new_v4().to_string().parse()
}
