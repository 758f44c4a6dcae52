//! What a broker must still know after it was restarted. Lies beside the baseline, which no agent can see.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::api::wire::AgentEnd;

/// The yes that `exec` got, and how the agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Granted {
    /// Whose yes it is.
    pub(super) nonce: String,
    /// The agent's time, in seconds.
    pub(super) timeout_secs: u64,
    /// Its longest silence, in seconds.
    pub(super) stall_secs: Option<u64>,
    /// How it ended, by the word of that `exec`.
    pub(super) end: Option<AgentEnd>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Notes(PathBuf);

impl Notes {
    pub(super) fn beside(baseline: &Path) -> Self {
        Self(baseline.join("broker.json"))
    }

    /// What an earlier broker of this pod noted.
    pub(super) fn read(&self) -> Option<Granted> {
        serde_json::from_slice(&fs::read(&self.0).ok()?).ok()
    }

    /// Notes it, whole or not at all.
    pub(super) fn write(&self, granted: &Granted) -> io::Result<()> {
        let made = self.0.with_extension("new");
        fs::write(&made, serde_json::to_vec(granted)?)?;
        fs::rename(made, &self.0)
    }
}
