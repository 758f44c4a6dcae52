//! The one task that writes: takes what waits, and commits it together.
//!
//! Requests that come while a commit is on its way wait in the queue and share the next one. So a lone append costs
//! one fsync and no delay, and many at once cost few. A request that the rules refuse does not disturb the others.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use sqlx::{Connection as _, SqliteConnection, SqlitePool};
use tokio::sync::{mpsc, oneshot};

use super::chain::{Entry, event_text};
use super::record::{Clock, connect};
use super::rules::{Abandon, Admitted, Grant, RunState};
use super::{Event, Head, RecordError, RunKey};
use crate::api::{Attempt, Reason};

/// The most requests in one transaction. At a fsync of a millisecond this is 256,000 a second: far beyond what SQLite
/// inserts in that time, so a larger one would only hold the lock longer.
pub(super) const MAX_BATCH: usize = 256;

/// How many runs' states are remembered: far more than are alive on one machine, at about 500 bytes each.
const MAX_KNOWN: usize = 20_000;

/// The events that a run's state is made of: those that `rules::DECIDING` names.
const DECIDING_EVENTS: &str = "SELECT body FROM events WHERE namespace = ? AND uid = ? AND kind IN \
     ('run.created', 'attempt.dispatched', 'input.resolved', 'pod.creating', \
      'inputs.provisioned', 'policy.proof', 'attempt.failed', 'attempt.abandoned', \
      'agent.started', 'output', 'run.ended') ORDER BY sequence";

/// One wish, and where the answer goes.
#[derive(Debug)]
pub(super) struct Request {
    /// `None` for what concerns all runs.
    pub(super) run: Option<RunKey>,
    pub(super) what: What,
    pub(super) reply: oneshot::Sender<Result<Answer, RecordError>>,
}

/// What is wished for.
#[derive(Debug)]
pub(super) enum What {
    /// Events with their canonical texts.
    Append(Vec<(Event, String)>),
    Grant {
        attempt: Attempt,
        nonce: String,
    },
    Abandon {
        attempt: Attempt,
        reason: Reason,
    },
    Prune {
        ended_before: Timestamp,
    },
    Close,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Appended(Head),
    Grant(Grant),
    Abandon(Abandon),
    Pruned(u64),
    Closed,
}

/// What is known of a run's chain. Good as long as its head is still the newest: another process may have written.
#[derive(Debug, Clone, Default)]
struct Known {
    head: Option<Head>,
    state: RunState,
}

#[derive(Debug)]
struct Ended {
    run: RunKey,
    head: Head,
}

/// The writing half of a record.
pub(super) struct Writer {
    path: PathBuf,
    installation: String,
    clock: Clock,
    /// `None` after a failure. SQLite ends some transactions by itself (a full disk), which the driver does not
    /// notice (sqlx 0.9): the connection would refuse every later one.
    connection: Option<SqliteConnection>,
    reader: SqlitePool,
    known: HashMap<RunKey, Known>,
}

impl Writer {
    pub(super) fn new(
        path: PathBuf,
        installation: String,
        clock: Clock,
        connection: SqliteConnection,
        reader: SqlitePool,
    ) -> Self {
        Self {
            path,
            installation,
            clock,
            connection: Some(connection),
            reader,
            known: HashMap::new(),
        }
    }

    /// Writes until every sender is gone, or one asks to close.
    pub(super) async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        let mut closing = None;
        while closing.is_none() && requests.recv_many(&mut batch, MAX_BATCH).await > 0 {
            if let Some(at) = batch.iter().position(|r| matches!(r.what, What::Close)) {
                closing = Some(batch.split_off(at));
            }
            self.serve(std::mem::take(&mut batch)).await;
        }
        // The last connection folds the WAL into the file. Nothing is lost when it cannot: the next one will.
        self.reader.close().await;
        self.disconnect().await;
        for request in closing.into_iter().flatten() {
            let answer = match request.what {
                What::Close => Ok(Answer::Closed),
                What::Append(_)
                | What::Grant { .. }
                | What::Abandon { .. }
                | What::Prune { .. } => Err(RecordError::Closed {
                    path: self.path.clone(),
                }),
            };
            drop(request.reply.send(answer)); // who asked may be gone
        }
    }

    /// Commits a batch and answers it. When one of several requests may be the culprit, each gets its own transaction.
    async fn serve(&mut self, batch: Vec<Request>) {
        match self.commit(&batch).await {
            Ok(answers) => {
                for (request, answer) in batch.into_iter().zip(answers) {
                    drop(request.reply.send(answer)); // who asked may be gone
                }
            }
            Err(error) if batch.len() > 1 && error.may_be_one_request() => {
                for request in batch {
                    let answer = match self.commit(std::slice::from_ref(&request)).await {
                        Ok(mut answers) => answers.pop().unwrap_or(Err(error.clone())),
                        Err(error) => Err(error),
                    };
                    drop(request.reply.send(answer)); // who asked may be gone
                }
            }
            Err(error) => {
                tracing::warn!(%error, requests = batch.len(), "the record could not be written");
                for request in batch {
                    drop(request.reply.send(Err(error.clone())));
                }
            }
        }
    }

    /// One transaction. The outer error: nothing of the batch is stored. An inner one: the rules refused that request.
    async fn commit(
        &mut self,
        batch: &[Request],
    ) -> Result<Vec<Result<Answer, RecordError>>, RecordError> {
        let answers = self.transact(batch).await;
        if answers.is_err() {
            self.known.clear(); // it may hold what was rolled back
            self.disconnect().await;
        }
        answers
    }

    async fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "the record was closed without a checkpoint");
        }
    }

    async fn transact(
        &mut self,
        batch: &[Request],
    ) -> Result<Vec<Result<Answer, RecordError>>, RecordError> {
        let path = self.path.clone();
        let failed = |doing| {
            let path = path.clone();
            move |source| RecordError::sql(&path, doing, source)
        };
        if self.known.len() > MAX_KNOWN {
            self.known.clear();
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.path).await?),
        };
        let mut tx = connection
            .begin_with("BEGIN IMMEDIATE")
            .await
            .map_err(failed("beginning"))?;
        let mut write = Transaction {
            connection: &mut tx,
            path: &self.path,
            installation: &self.installation,
            clock: &self.clock,
            known: &mut self.known,
            fresh: HashSet::new(),
            ended: Vec::new(),
        };
        let mut answers = Vec::with_capacity(batch.len());
        for request in batch {
            answers.push(match write.take(request).await {
                Err(error @ RecordError::Rejected { .. }) => Err(error),
                Err(error) => return Err(error),
                Ok(answer) => Ok(answer),
            });
        }
        let ended = write.ended;
        tx.commit().await.map_err(failed("committing"))?;
        for Ended { run, head } in ended {
            self.read_back(&run, &head).await?;
        }
        Ok(answers)
    }

    /// Reads the last word on a run through another connection: clean-up begins on the strength of it.
    async fn read_back(&self, run: &RunKey, head: &Head) -> Result<(), RecordError> {
        let lost = |source: Option<sqlx::Error>| RecordError::ReadBack {
            path: self.path.clone(),
            source: source.map(Arc::new),
        };
        let hash: Option<String> = sqlx::query_scalar(
            "SELECT hash FROM events WHERE namespace = ? AND uid = ? AND sequence = ?",
        )
        .bind(run.namespace.as_str())
        .bind(run.uid.as_str())
        .bind(head.sequence.cast_signed())
        .fetch_optional(&self.reader)
        .await
        .map_err(|e| lost(Some(e)))?;
        if hash.as_deref() == Some(&head.hash) {
            Ok(())
        } else {
            Err(lost(None))
        }
    }
}

/// An open transaction, and what it has learned.
struct Transaction<'a> {
    connection: &'a mut SqliteConnection,
    path: &'a PathBuf,
    installation: &'a str,
    clock: &'a Clock,
    known: &'a mut HashMap<RunKey, Known>,
    /// Runs whose head was compared in this transaction: nobody else can move it now.
    fresh: HashSet<RunKey>,
    ended: Vec<Ended>,
}

impl Transaction<'_> {
    async fn take(&mut self, request: &Request) -> Result<Answer, RecordError> {
        let Some(run) = &request.run else {
            return match request.what {
                What::Prune { ended_before } => self.prune(ended_before).await.map(Answer::Pruned),
                What::Append(_) | What::Grant { .. } | What::Abandon { .. } | What::Close => {
                    Ok(Answer::Closed)
                }
            };
        };
        self.look_up(run).await?;
        match &request.what {
            What::Append(events) => self.append(run, events).await.map(Answer::Appended),
            What::Grant { attempt, nonce } => {
                let (grant, event) = self.state(run).grant(*attempt, nonce);
                self.write_decided(run, event).await?;
                Ok(Answer::Grant(grant))
            }
            What::Abandon { attempt, reason } => {
                let (abandon, event) = self.state(run).abandon(*attempt, *reason);
                self.write_decided(run, event).await?;
                Ok(Answer::Abandon(abandon))
            }
            What::Prune { .. } | What::Close => Ok(Answer::Closed),
        }
    }

    async fn prune(&mut self, ended_before: Timestamp) -> Result<u64, RecordError> {
        let failed = |source| RecordError::sql(self.path, "pruning", source);
        let now = in_text((self.clock)());
        let ended: Vec<(String, String, i64, String)> = sqlx::query_as(
            "SELECT e.namespace, e.uid, e.sequence, e.hash FROM events e \
             WHERE e.kind = 'run.ended' AND e.at < ? AND e.sequence = \
               (SELECT MAX(sequence) FROM events WHERE namespace = e.namespace AND uid = e.uid) \
             AND NOT EXISTS (SELECT 1 FROM pruned p WHERE p.namespace = e.namespace \
                             AND p.uid = e.uid AND p.sequence = e.sequence)",
        )
        .bind(in_text(ended_before))
        .fetch_all(&mut *self.connection)
        .await
        .map_err(failed)?;
        for (namespace, uid, sequence, hash) in &ended {
            for statement in [
                "DELETE FROM pruned WHERE namespace = ? AND uid = ?",
                // Attempts stay, since they are counted through all lives of a run; starts, since what was started once
                // is not started again when its object comes back.
                "DELETE FROM events WHERE namespace = ? AND uid = ? AND kind NOT IN \
                 ('run.created', 'attempt.dispatched', 'agent.started', 'run.ended')",
            ] {
                sqlx::query(statement)
                    .bind(namespace)
                    .bind(uid)
                    .execute(&mut *self.connection)
                    .await
                    .map_err(failed)?;
            }
            sqlx::query(
                "INSERT INTO pruned (namespace, uid, at, sequence, hash) VALUES (?, ?, ?, ?, ?)",
            )
            .bind(namespace)
            .bind(uid)
            .bind(&now)
            .bind(sequence)
            .bind(hash)
            .execute(&mut *self.connection)
            .await
            .map_err(failed)?;
        }
        self.known.clear();
        self.fresh.clear();
        Ok(ended.len() as u64)
    }

    fn state(&self, run: &RunKey) -> RunState {
        self.known
            .get(run)
            .map(|known| known.state.clone())
            .unwrap_or_default()
    }

    async fn append(
        &mut self,
        run: &RunKey,
        events: &[(Event, String)],
    ) -> Result<Head, RecordError> {
        let rejected = |event: &Event, why| RecordError::Rejected {
            kind: event.kind(),
            run: run.uid.to_string(),
            why,
        };
        // All are judged before the first is written: all or none, without a savepoint.
        let mut state = self.state(run);
        let mut wanted = Vec::with_capacity(events.len());
        for (event, text) in events {
            match state.admit(event).map_err(|why| rejected(event, why))? {
                Admitted::Write => {
                    state.apply(event);
                    wanted.push((event, text));
                }
                Admitted::AlreadyThere => {}
            }
        }
        for (event, text) in wanted {
            self.write(run, event, text.clone()).await?;
        }
        self.known
            .get(run)
            .and_then(|known| known.head.clone())
            .ok_or_else(|| RecordError::Row {
                path: self.path.clone(),
                what: format!("run {} has no events", run.uid),
            })
    }

    async fn write_decided(
        &mut self,
        run: &RunKey,
        event: Option<Event>,
    ) -> Result<(), RecordError> {
        match event {
            Some(event) => self.write(run, &event, event_text(&event)).await,
            None => Ok(()),
        }
    }

    async fn write(
        &mut self,
        run: &RunKey,
        event: &Event,
        text: String,
    ) -> Result<(), RecordError> {
        let previous = self.known.get(run).and_then(|known| known.head.clone());
        let at = in_text((self.clock)());
        let entry = Entry::next(self.installation, run, previous.as_ref(), at, text);
        if entry.sequence == 1 {
            sqlx::query("INSERT INTO runs (namespace, uid, name) VALUES (?, ?, ?)")
                .bind(run.namespace.as_str())
                .bind(run.uid.as_str())
                .bind(run.name.as_str())
                .execute(&mut *self.connection)
                .await
                .map_err(|e| RecordError::sql(self.path, "adding a run", e))?;
        }
        let head = entry.head();
        sqlx::query(
            "INSERT INTO events (namespace, uid, sequence, at, kind, body, previous, hash) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(run.namespace.as_str())
        .bind(run.uid.as_str())
        .bind(entry.sequence.cast_signed())
        .bind(entry.at)
        .bind(event.kind())
        .bind(entry.body)
        .bind(entry.previous)
        .bind(entry.hash)
        .execute(&mut *self.connection)
        .await
        .map_err(|e| RecordError::sql(self.path, "appending", e))?;
        if let Event::RunEnded { .. } = event {
            self.ended.push(Ended {
                run: run.clone(),
                head: head.clone(),
            });
        }
        let known = self.known.entry(run.clone()).or_default();
        known.head = Some(head);
        known.state.apply(event);
        Ok(())
    }

    /// Makes sure that what is known of a run is what the file says now.
    async fn look_up(&mut self, run: &RunKey) -> Result<(), RecordError> {
        if self.fresh.contains(run) {
            return Ok(());
        }
        let failed = |source| RecordError::sql(self.path, "reading a run", source);
        let newest: Option<(i64, String)> = sqlx::query_as(
            "SELECT sequence, hash FROM events WHERE namespace = ? AND uid = ? \
             ORDER BY sequence DESC LIMIT 1",
        )
        .bind(run.namespace.as_str())
        .bind(run.uid.as_str())
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failed)?;
        let head = newest.map(|(sequence, hash)| Head {
            sequence: sequence.cast_unsigned(),
            hash,
        });
        let current = self.known.get(run).is_some_and(|known| known.head == head);
        if !current {
            let state = self.load_state(run).await?;
            self.known.insert(run.clone(), Known { head, state });
        }
        self.fresh.insert(run.clone());
        Ok(())
    }

    async fn load_state(&mut self, run: &RunKey) -> Result<RunState, RecordError> {
        let failed = |source| RecordError::sql(self.path, "reading a run", source);
        let bodies: Vec<String> = sqlx::query_scalar(DECIDING_EVENTS)
            .bind(run.namespace.as_str())
            .bind(run.uid.as_str())
            .fetch_all(&mut *self.connection)
            .await
            .map_err(failed)?;
        let events: Vec<Event> = bodies
            .iter()
            .map(|body| serde_json::from_str(body))
            .collect::<Result<_, _>>()
            .map_err(|error| RecordError::Row {
                path: self.path.clone(),
                what: format!("an event of run {}: {error}", run.uid),
            })?;
        Ok(RunState::of(&events))
    }
}

/// RFC 3339 with microseconds: a fixed length, so that times sort as texts.
fn in_text(at: Timestamp) -> String {
    DateTimePrinter::new()
        .precision(Some(6))
        .timestamp_to_string(&at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_loaded_from_every_event_that_decides() {
        let quoted: Vec<_> = DECIDING_EVENTS.split('\'').skip(1).step_by(2).collect();
        assert_eq!(quoted, crate::audit::rules::DECIDING);
    }
}
