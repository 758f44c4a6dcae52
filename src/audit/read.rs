//! Reading the record: which runs there are, what happened to one, and whether the chains hold.

use futures::TryStreamExt as _;
use serde::Serialize;

use super::chain::{ChainFault, Checker, Entry};
use super::{Event, Head, Record, RecordError, RunKey};
use crate::api::{Attempt, Failure, Namespace, RunName, RunUid};

/// Which runs are wanted. The default: the newest 1,000.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only of this tenant.
    pub namespace: Option<Namespace>,
    /// Only of this name.
    pub name: Option<RunName>,
    /// Only those that have not ended (`true`), or have (`false`).
    pub open: Option<bool>,
    /// At most so many, newest first.
    pub limit: Option<u32>,
}

/// A run, as a list shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSummary {
    /// Which one.
    #[serde(flatten)]
    pub run: RunKey,
    /// When its present life began.
    pub created_at: String,
    /// The digest of its spec.
    pub digest: String,
    /// `spec.rerun`.
    pub rerun: String,
    /// How it ended; absent: it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<RunEnd>,
    /// The newest entry.
    pub head: Head,
}

/// The last word on a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunEnd {
    /// When.
    pub at: String,
    /// In which attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// The agent's exit status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it failed; absent: it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// From the creation, in milliseconds.
    pub millis: u64,
}

/// What was found about one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// Which one.
    #[serde(flatten)]
    pub run: RunKey,
    /// How many events are there.
    pub events: u64,
    /// What they show.
    pub finding: Finding,
}

/// What a chain shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "is", rename_all_fields = "camelCase")]
pub enum Finding {
    /// Consistent, and the head that was kept is in it: nothing up to there was changed or cut off.
    Complete {
        /// The newest entry.
        head: Head,
    },
    /// Consistent. Without a head at hand, events cut off from the end would not show.
    TailNotProven {
        /// The newest entry.
        head: Head,
    },
    /// Retention took events out; what it left (the identity, the attempts, the last word) holds.
    Pruned {
        /// The newest entry.
        head: Head,
    },
    /// The chain does not hold.
    Broken {
        /// The first place where it shows.
        #[serde(flatten)]
        fault: ChainFault,
    },
}

impl Finding {
    /// What the check of a chain showed.
    pub(super) fn of(checked: Result<Head, ChainFault>, kept: Option<&Head>) -> Self {
        match checked {
            Ok(head) if kept.is_some() => Self::Complete { head },
            Ok(head) => Self::TailNotProven { head },
            Err(fault) => Self::Broken { fault },
        }
    }

    /// Whether nothing speaks against the chain.
    #[must_use]
    pub fn holds(&self) -> bool {
        match self {
            Self::Complete { .. } | Self::TailNotProven { .. } | Self::Pruned { .. } => true,
            Self::Broken { .. } => false,
        }
    }
}

#[derive(sqlx::FromRow)]
struct SummaryRow {
    namespace: String,
    uid: String,
    name: String,
    created_at: String,
    created: String,
    ended_at: Option<String>,
    ended: Option<String>,
    sequence: i64,
    hash: String,
}

/// Texts are read as bytes: a byte that was changed must show as a finding, not as a text that cannot be read.
#[derive(sqlx::FromRow)]
struct EventRow {
    sequence: i64,
    at: Vec<u8>,
    kind: Vec<u8>,
    body: Vec<u8>,
    previous: Vec<u8>,
    hash: Vec<u8>,
}

/// What became of one run object of an identity.
struct Lived {
    key: RunKey,
    started_at: Option<String>,
    open: bool,
}

impl Record {
    /// Runs without a last word.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn open_runs(&self) -> Result<Vec<RunSummary>, RecordError> {
        let limit = Some(u32::MAX);
        self.runs(&RunFilter {
            open: Some(true),
            limit,
            ..RunFilter::default()
        })
        .await
    }

    /// Runs, newest first.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn runs(&self, filter: &RunFilter) -> Result<Vec<RunSummary>, RecordError> {
        let rows: Vec<SummaryRow> = sqlx::query_as(
            "SELECT r.namespace, r.uid, r.name, c.at AS created_at, c.body AS created, \
                    e.at AS ended_at, e.body AS ended, h.sequence, h.hash \
             FROM runs r \
             JOIN events h ON h.namespace = r.namespace AND h.uid = r.uid AND h.sequence = \
               (SELECT MAX(sequence) FROM events WHERE namespace = r.namespace AND uid = r.uid) \
             JOIN events c ON c.namespace = r.namespace AND c.uid = r.uid AND c.sequence = \
               (SELECT MAX(sequence) FROM events WHERE namespace = r.namespace AND uid = r.uid \
                AND kind = 'run.created') \
             LEFT JOIN events e ON e.namespace = r.namespace AND e.uid = r.uid \
               AND e.kind = 'run.ended' AND e.sequence > c.sequence \
             WHERE (?1 IS NULL OR r.namespace = ?1) AND (?2 IS NULL OR r.name = ?2) \
               AND (?3 IS NULL OR ?3 = (e.sequence IS NULL)) \
             ORDER BY c.at DESC, r.namespace, r.uid LIMIT ?4",
        )
        .bind(filter.namespace.as_ref().map(Namespace::as_str))
        .bind(filter.name.as_ref().map(RunName::as_str))
        .bind(filter.open)
        .bind(i64::from(filter.limit.unwrap_or(1_000)))
        .fetch_all(self.reader())
        .await
        .map_err(self.failed("listing runs"))?;
        rows.into_iter().map(|row| self.summary(row)).collect()
    }

    /// The run of this uid.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn run(&self, uid: &RunUid) -> Result<Option<RunKey>, RecordError> {
        let row: Option<(String, String)> =
            sqlx::query_as("SELECT namespace, name FROM runs WHERE uid = ?")
                .bind(uid.as_str())
                .fetch_optional(self.reader())
                .await
                .map_err(self.failed("reading a run"))?;
        row.map(|(namespace, name)| self.key(&namespace, &name, uid.as_str()))
            .transpose()
    }

    /// The newest entry of a run; `None`: it is not in the record.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn head(&self, uid: &RunUid) -> Result<Option<Head>, RecordError> {
        let row: Option<(i64, String)> = sqlx::query_as(
            "SELECT e.sequence, e.hash FROM events e \
             JOIN runs r ON r.namespace = e.namespace AND r.uid = e.uid \
             WHERE r.uid = ? ORDER BY e.sequence DESC LIMIT 1",
        )
        .bind(uid.as_str())
        .fetch_optional(self.reader())
        .await
        .map_err(self.failed("reading a head"))?;
        Ok(row.map(|(sequence, hash)| Head {
            sequence: sequence.cast_unsigned(),
            hash,
        }))
    }

    /// Everything that happened to a run, in order. Empty: it is not in the record.
    ///
    /// # Errors
    /// When the record cannot be read, or holds something that is no event.
    pub async fn events(&self, uid: &RunUid) -> Result<Vec<Event>, RecordError> {
        let entries = self.entries(uid).await?;
        entries
            .iter()
            .map(|entry| {
                entry.event().ok_or_else(|| {
                    self.row(format!("event {} of run {uid} is unknown", entry.sequence))
                })
            })
            .collect()
    }

    /// The same as stored entries, with times and hashes.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn entries(&self, uid: &RunUid) -> Result<Vec<Entry>, RecordError> {
        match self.run(uid).await? {
            Some(key) => self.entries_after(&key, 0).await,
            None => Ok(Vec::new()),
        }
    }

    /// What was written after this entry: a shell that keeps the facts of a run reads only what is new. 0: everything.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn entries_after(
        &self,
        run: &RunKey,
        sequence: u64,
    ) -> Result<Vec<Entry>, RecordError> {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT sequence, at, kind, body, previous, hash FROM events \
             WHERE namespace = ? AND uid = ? AND sequence > ? ORDER BY sequence",
        )
        .bind(run.namespace.as_str())
        .bind(run.uid.as_str())
        .bind(sequence.cast_signed())
        .fetch_all(self.reader())
        .await
        .map_err(self.failed("reading events"))?;
        Ok(rows.into_iter().map(|row| self.entry(run, row)).collect())
    }

    /// The newest run object of this name that had an agent started for this digest and this `rerun`: such a run is
    /// not done again when its object is made again. `None`: no agent was.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn started_before(
        &self,
        namespace: &Namespace,
        name: &RunName,
        digest: &str,
        rerun: &str,
    ) -> Result<Option<RunKey>, RecordError> {
        let lives = self.lives(namespace, name, digest, rerun).await?;
        let started = lives
            .into_iter()
            .filter_map(|life| Some((life.started_at?, life.key)));
        Ok(started
            .max_by(|(at, _), (other, _)| at.cmp(other))
            .map(|(_, key)| key))
    }

    /// Run objects of this name, digest and `rerun` whose agent has not started and still may: no other one begins beside
    /// them, or both may start.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn may_still_start(
        &self,
        namespace: &Namespace,
        name: &RunName,
        digest: &str,
        rerun: &str,
    ) -> Result<Vec<RunKey>, RecordError> {
        let lives = self.lives(namespace, name, digest, rerun).await?;
        let may_start = |life: &Lived| life.open && life.started_at.is_none();
        Ok(lives
            .into_iter()
            .filter(may_start)
            .map(|life| life.key)
            .collect())
    }

    /// What became of each run object of this identity.
    async fn lives(
        &self,
        namespace: &Namespace,
        name: &RunName,
        digest: &str,
        rerun: &str,
    ) -> Result<Vec<Lived>, RecordError> {
        let rows: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT e.uid, e.at, e.body FROM runs r \
             JOIN events e ON e.namespace = r.namespace AND e.uid = r.uid \
             WHERE r.namespace = ? AND r.name = ? AND e.kind IN ('run.created', 'agent.started', 'run.ended') \
             ORDER BY e.uid, e.sequence",
        )
        .bind(namespace.as_str())
        .bind(name.as_str())
        .fetch_all(self.reader())
        .await
        .map_err(self.failed("reading runs of a name"))?;
        let mut lives: Vec<Lived> = Vec::new();
        // Whether the present life of an object is one of this identity.
        let mut same = false;
        for (uid, at, body) in rows {
            let event = serde_json::from_str(&body)
                .map_err(|error| self.row(format!("an event of run {uid}: {error}")))?;
            if let Event::RunCreated {
                digest: of,
                rerun: again,
                ..
            } = &event
            {
                same = of == digest && again == rerun;
                if same {
                    lives.push(Lived {
                        key: self.key(namespace.as_str(), name.as_str(), &uid)?,
                        started_at: None,
                        open: true,
                    });
                }
            } else if let Some(life) = lives.last_mut().filter(|_| same) {
                if let Event::RunEnded { .. } = event {
                    life.open = false;
                } else {
                    life.started_at = Some(at);
                }
            }
        }
        Ok(lives)
    }

    /// Checks the chain of one run; with a head that was kept, also that its end was not cut off. `None`: the run is
    /// not in the record.
    ///
    /// # Errors
    /// When the record cannot be read. A chain that does not hold is a finding and no error.
    pub async fn verify(
        &self,
        uid: &RunUid,
        kept: Option<&Head>,
    ) -> Result<Option<Verdict>, RecordError> {
        match self.run(uid).await? {
            Some(key) => self.verify_run(key, kept).await.map(Some),
            None => Ok(None),
        }
    }

    /// Checks every chain.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub async fn verify_all(&self) -> Result<Vec<Verdict>, RecordError> {
        let orphan: Option<String> = sqlx::query_scalar(
            "SELECT e.uid FROM events e WHERE NOT EXISTS \
             (SELECT 1 FROM runs r WHERE r.namespace = e.namespace AND r.uid = e.uid) LIMIT 1",
        )
        .fetch_optional(self.reader())
        .await
        .map_err(self.failed("listing runs"))?;
        if let Some(uid) = orphan {
            return Err(self.row(format!("events of {uid} belong to no run that is listed")));
        }
        let mut verdicts = Vec::new();
        for key in self.keys().await? {
            verdicts.push(self.verify_run(key, None).await?);
        }
        Ok(verdicts)
    }

    /// Every run in the record, by namespace, name and uid.
    pub(super) async fn keys(&self) -> Result<Vec<RunKey>, RecordError> {
        let rows: Vec<(String, String, String)> =
            sqlx::query_as("SELECT namespace, name, uid FROM runs ORDER BY namespace, name, uid")
                .fetch_all(self.reader())
                .await
                .map_err(self.failed("listing runs"))?;
        rows.iter()
            .map(|(namespace, name, uid)| self.key(namespace, name, uid))
            .collect()
    }

    async fn verify_run(&self, key: RunKey, kept: Option<&Head>) -> Result<Verdict, RecordError> {
        let pruned = self.pruned(&key).await?;
        let mut rows = sqlx::query_as::<_, EventRow>(
            "SELECT sequence, at, kind, body, previous, hash FROM events \
             WHERE namespace = ? AND uid = ? ORDER BY sequence",
        )
        .bind(key.namespace.as_str())
        .bind(key.uid.as_str())
        .fetch(self.reader());
        let mut checker = Checker::new(self.installation(), &key, kept).pruned(pruned.as_ref());
        let mut events = 0;
        let mut fault = None;
        while let Some(row) = rows
            .try_next()
            .await
            .map_err(self.failed("reading events"))?
        {
            events += 1;
            if fault.is_some() {
                continue;
            }
            let kind = row.kind.clone();
            let entry = self.entry(&key, row);
            let sequence = entry.sequence;
            fault = checker.take(&entry).err().or_else(|| {
                let own = entry.event().map(|event| event.kind());
                (own.map(str::as_bytes) != Some(kind.as_slice()))
                    .then_some(ChainFault::Misfiled { sequence })
            });
        }
        drop(rows);
        let mut finding = Finding::of(fault.map_or_else(|| checker.finish(), Err), kept);
        if let (Some(_), Finding::Complete { head } | Finding::TailNotProven { head }) =
            (&pruned, &finding)
        {
            finding = Finding::Pruned { head: head.clone() };
        }
        Ok(Verdict {
            run: key,
            events,
            finding,
        })
    }

    async fn pruned(&self, key: &RunKey) -> Result<Option<Head>, RecordError> {
        let row: Option<(i64, String)> =
            sqlx::query_as("SELECT sequence, hash FROM pruned WHERE namespace = ? AND uid = ?")
                .bind(key.namespace.as_str())
                .bind(key.uid.as_str())
                .fetch_optional(self.reader())
                .await
                .map_err(self.failed("reading a run"))?;
        Ok(row.map(|(sequence, hash)| Head {
            sequence: sequence.cast_unsigned(),
            hash,
        }))
    }

    fn entry(&self, key: &RunKey, row: EventRow) -> Entry {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Entry {
            installation: self.installation().to_owned(),
            run: key.clone(),
            sequence: row.sequence.cast_unsigned(),
            at: text(row.at),
            body: text(row.body),
            previous: text(row.previous),
            hash: text(row.hash),
        }
    }

    fn summary(&self, row: SummaryRow) -> Result<RunSummary, RecordError> {
        let run = self.key(&row.namespace, &row.name, &row.uid)?;
        let event = |body: &str| {
            serde_json::from_str(body)
                .map_err(|error| self.row(format!("an event of run {}: {error}", row.uid)))
        };
        let Event::RunCreated { digest, rerun, .. } = event(&row.created)? else {
            return Err(self.row(format!("run {} does not begin with its creation", row.uid)));
        };
        let ended = match (row.ended_at, row.ended) {
            (Some(at), Some(body)) => {
                let Event::RunEnded {
                    attempt,
                    exit_code,
                    failure,
                    millis,
                } = event(&body)?
                else {
                    return Err(self.row(format!("the end of run {} is something else", row.uid)));
                };
                Some(RunEnd {
                    at,
                    attempt,
                    exit_code,
                    failure,
                    millis,
                })
            }
            _ => None,
        };
        Ok(RunSummary {
            run,
            created_at: row.created_at,
            digest,
            rerun,
            ended,
            head: Head {
                sequence: row.sequence.cast_unsigned(),
                hash: row.hash,
            },
        })
    }

    fn key(&self, namespace: &str, name: &str, uid: &str) -> Result<RunKey, RecordError> {
        let bad = |error| self.row(format!("run {uid}: {error}"));
        Ok(RunKey {
            namespace: namespace.parse().map_err(bad)?,
            name: name.parse().map_err(bad)?,
            uid: uid.parse().map_err(bad)?,
        })
    }

    fn row(&self, what: String) -> RecordError {
        RecordError::Row {
            path: self.path().to_owned(),
            what,
        }
    }
}
