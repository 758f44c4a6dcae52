//! What this process alone knows of a run that it looks after: what of the record it has read, what is under way, and
//! what it has written. All of it can be lost: the next process begins with the record and the cluster.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use tokio::time::Instant;

use super::prepare::Preparation;
use crate::api::{Attempt, Failure, RunKey, RunUid, SandboxRunStatus};
use crate::audit::{Record, RecordError};
use crate::gateway::Live;
use crate::run::RecordFacts;

/// A run that is looked after.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) key: RunKey,
    pub(super) facts: RecordFacts,
    /// The newest entry that `facts` have.
    sequence: u64,
    /// The record could not be read or written when it was last tried.
    pub(super) record_trouble: Option<Failure>,
    /// Why the last step failed, until one is done.
    pub(super) trouble: Option<Failure>,
    /// The generation for which the next two were found out.
    pub(super) asked_of: Option<i64>,
    /// Why the spec cannot run at all.
    pub(super) refused_spec: Option<Failure>,
    /// The same run was done before, under another uid.
    pub(super) recorded: Option<RunKey>,
    /// Commits and packs of an attempt, in the making or made.
    pub(super) preparation: Option<Preparation>,
    /// The attempt as the gateway knows it.
    pub(super) live: Option<Served>,
    /// When to try again to serve it, after its packs could not be fetched.
    pub(super) serve_again: Option<Timestamp>,
    /// A pod that was certainly not made.
    pub(super) refused: Option<(Attempt, Failure, Timestamp)>,
    /// The attempt whose pod was last seen, and the one whose pod was last asked for, with when.
    pub(super) saw: Option<Attempt>,
    pub(super) asked_for: Option<(Attempt, Timestamp)>,
    /// A pod that was made otherwise than it was sent.
    pub(super) mutated: Option<(Attempt, Failure)>,
    /// The attempt whose pod cannot be compared with what was sent.
    pub(super) incomparable: Option<Attempt>,
    /// K06: its namespace is being deleted, so its pod may go before its object does.
    pub(super) namespace_ends: bool,
    /// The node of the newest attempt's pod.
    pub(super) node: Option<(Attempt, String)>,
    /// The status as it is stored, by our own word or by the watch's.
    pub(super) written: Option<Arc<SandboxRunStatus>>,
    /// The last write of it got no answer, so it may be another one.
    pub(super) written_unknown: bool,
    /// Since when a status waits to be written.
    pub(super) unwritten_since: Option<Instant>,
    /// What the last event was about.
    pub(super) told: Option<String>,
}

/// An attempt that the gateway serves.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) pod_uid: String,
    pub(super) live: Arc<Live>,
}

impl Life {
    /// A run of which nothing is known yet.
    pub(super) fn new(key: RunKey, written: Option<Arc<SandboxRunStatus>>) -> Self {
        Self {
            key,
            facts: RecordFacts::default(),
            sequence: 0,
            record_trouble: None,
            trouble: None,
            asked_of: None,
            refused_spec: None,
            recorded: None,
            preparation: None,
            live: None,
            serve_again: None,
            refused: None,
            saw: None,
            asked_for: None,
            mutated: None,
            incomparable: None,
            namespace_ends: false,
            node: None,
            written,
            written_unknown: false,
            unwritten_since: None,
            told: None,
        }
    }

    /// Takes in what is new in the record.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) async fn read(&mut self, record: &Record) -> Result<(), RecordError> {
        for entry in record.entries_after(&self.key, self.sequence).await? {
            if let (Ok(at), Some(event)) = (entry.at.parse(), entry.event()) {
                self.facts.take(at, &event);
            }
            self.sequence = entry.sequence;
            self.facts.head = Some((entry.sequence, entry.hash));
        }
        Ok(())
    }

    /// Whether the record knows of it.
    pub(super) fn is_recorded(&self) -> bool {
        self.sequence > 0
    }
}

/// The runs that are looked after, while no worker has them.
#[derive(Debug, Default)]
pub(super) struct Lifes(Mutex<HashMap<RunUid, Life>>);

impl Lifes {
    /// Takes a run out: the queue gives it to one worker at a time.
    pub(super) fn take(&self, run: &RunUid) -> Option<Life> {
        let mut lifes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lifes.remove(run)
    }

    /// Puts it back.
    pub(super) fn keep(&self, life: Life) {
        let mut lifes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lifes.insert(life.key.uid.clone(), life);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Runs whose pod is there and that the gateway does not serve yet: they have not been read, or their packs are being
/// fetched again.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<HashSet<RunUid>>);

impl Awaited {
    /// Whether a run is one of them from now on.
    pub(super) fn set(&self, run: &RunUid, awaited: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if awaited {
            all.insert(run.clone());
        } else {
            all.remove(run);
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.is_empty()
    }
}
