//! The record itself: one SQLite file, shared by the processes of one user on one machine.
//!
//! WAL and `synchronous=FULL`: what an append has confirmed survives SIGKILL and power loss. One task writes for the
//! whole process and puts appends that wait at the same time into one transaction, so they share its fsync. Other
//! processes are kept out by the transaction itself (`BEGIN IMMEDIATE`), and heads are read inside it.
//!
//! The file must lie on a local file system: SQLite's locks do not hold over NFS.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool};
use tokio::sync::{mpsc, oneshot};

use super::writer::{Answer, Request, What, Writer};
use super::{Abandon, Event, Grant, Head, RecordError, RunKey, chain};
use crate::api::{Attempt, Reason, hex};

/// Tells the time. A parameter, so that a test can stop it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// How long a transaction waits for another process. Each holds the lock for the milliseconds of one commit; ten
/// seconds is a machine in trouble.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How many requests may wait for the writer before an append waits to be queued. Four full batches.
const QUEUE: usize = 4 * super::writer::MAX_BATCH;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("src/audit/migrations");

/// The record. A clone is the same record; the last one to go ends the writer.
#[derive(Debug, Clone)]
pub struct Record {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    installation: String,
    reader: SqlitePool,
    /// `None`: opened for reading.
    writer: Option<mpsc::Sender<Request>>,
}

impl Record {
    /// Opens the record for writing; makes the file (mode 0600) and its tables when they are not there. The directory
    /// must exist. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// When the file cannot be made, read or written, is damaged, or was made by a newer version.
    pub async fn open(path: &Path) -> Result<Self, RecordError> {
        Self::open_with(path, Arc::new(now)).await
    }

    /// [`Record::open`] with another clock than the system's.
    ///
    /// # Errors
    /// As [`Record::open`].
    pub async fn open_with(path: &Path, clock: Clock) -> Result<Self, RecordError> {
        make_file(path)?;
        let mut connection = connect(path).await?;
        let installation = prepare(path, &mut connection).await?;
        let reader = SqlitePoolOptions::new()
            .max_connections(4)
            .connect_lazy_with(options(path).read_only(true));
        let (sender, requests) = mpsc::channel(QUEUE);
        let writer = Writer::new(
            path.to_owned(),
            installation.clone(),
            clock,
            connection,
            reader.clone(),
        );
        #[expect(
            clippy::disallowed_methods,
            reason = "it ends with the last handle, and `close` waits for it"
        )]
        tokio::spawn(writer.run(requests));
        Ok(Self {
            shared: Arc::new(Shared {
                path: path.to_owned(),
                installation,
                reader,
                writer: Some(sender),
            }),
        })
    }

    /// Opens an existing record for reading: nothing is made or changed. Works on a copy in a read-only directory.
    ///
    /// # Errors
    /// When it is not there, cannot be read, is no record, or was made by a newer version.
    pub async fn open_read(path: &Path) -> Result<Self, RecordError> {
        std::fs::metadata(path).map_err(|source| RecordError::Open {
            path: path.to_owned(),
            source: Arc::new(source),
        })?;
        let read_only = options(path).read_only(true);
        let mut wal = path.as_os_str().to_owned();
        wal.push("-wal");
        // Without a WAL the file alone is the record. SQLite still wants to make one, which a read-only directory
        // forbids; `immutable` says that it need not.
        let choices = if Path::new(&wal).exists() {
            vec![read_only]
        } else {
            vec![read_only.clone(), read_only.immutable(true)]
        };
        let mut first = None;
        for options in choices {
            let reader = SqlitePoolOptions::new()
                .max_connections(4)
                .connect_lazy_with(options);
            match look_inside(path, &reader).await {
                Ok(installation) => {
                    return Ok(Self {
                        shared: Arc::new(Shared {
                            path: path.to_owned(),
                            installation,
                            reader,
                            writer: None,
                        }),
                    });
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or_else(|| RecordError::Closed {
            path: path.to_owned(),
        }))
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The random id that was made with the file. Every hash covers it.
    #[must_use]
    pub fn installation(&self) -> &str {
        &self.shared.installation
    }

    /// Appends one event. `Ok` means: it is on the disk.
    ///
    /// # Errors
    /// When it is not stored. If the answer of a commit was lost it may be there nevertheless.
    pub async fn append(&self, run: &RunKey, event: Event) -> Result<Head, RecordError> {
        self.append_all(run, vec![event]).await
    }

    /// Appends several events of one run in one transaction: all or none.
    ///
    /// # Errors
    /// As [`Record::append`]; also when there are none.
    pub async fn append_all(&self, run: &RunKey, events: Vec<Event>) -> Result<Head, RecordError> {
        let events = events
            .into_iter()
            .map(|event| {
                let text = chain::event_text(&event);
                (event, text)
            })
            .collect();
        match self.ask(Some(run), What::Append(events)).await? {
            Answer::Appended(head) => Ok(head),
            Answer::Grant(_) | Answer::Abandon(_) | Answer::Pruned(_) | Answer::Closed => {
                Err(self.closed())
            }
        }
    }

    /// Asks for the start grant: writes `agent.started` unless something speaks against it. Compare and set, in one
    /// transaction.
    ///
    /// # Errors
    /// When the record cannot be read or written: the agent must not start, and may ask again with the same nonce.
    pub async fn grant(
        &self,
        run: &RunKey,
        attempt: Attempt,
        nonce: &str,
    ) -> Result<Grant, RecordError> {
        let nonce = nonce.to_owned();
        match self.ask(Some(run), What::Grant { attempt, nonce }).await? {
            Answer::Grant(grant) => Ok(grant),
            Answer::Appended(_) | Answer::Abandon(_) | Answer::Pruned(_) | Answer::Closed => {
                Err(self.closed())
            }
        }
    }

    /// Makes sure that no agent ever starts in an attempt: writes `attempt.abandoned` unless it has started. Compare
    /// and set, in one transaction.
    ///
    /// # Errors
    /// When the record cannot be read or written: nothing is known then.
    pub async fn abandon(
        &self,
        run: &RunKey,
        attempt: Attempt,
        reason: Reason,
    ) -> Result<Abandon, RecordError> {
        match self
            .ask(Some(run), What::Abandon { attempt, reason })
            .await?
        {
            Answer::Abandon(abandon) => Ok(abandon),
            Answer::Appended(_) | Answer::Grant(_) | Answer::Pruned(_) | Answer::Closed => {
                Err(self.closed())
            }
        }
    }

    /// Retention: of runs that ended before this time only identities, attempts, starts and last words stay. How many
    /// runs were shortened. `verify` says of them that they were.
    ///
    /// # Errors
    /// When the record cannot be read or written.
    pub async fn prune(&self, ended_before: Timestamp) -> Result<u64, RecordError> {
        match self.ask(None, What::Prune { ended_before }).await? {
            Answer::Pruned(runs) => Ok(runs),
            Answer::Appended(_) | Answer::Grant(_) | Answer::Abandon(_) | Answer::Closed => {
                Err(self.closed())
            }
        }
    }

    /// Waits until everything queued is written, folds the WAL into the file and stops writing. Later appends fail.
    pub async fn close(&self) {
        if let Some(writer) = &self.shared.writer {
            let (reply, done) = oneshot::channel();
            let request = Request {
                run: None,
                what: What::Close,
                reply,
            };
            if writer.send(request).await.is_ok() {
                drop(done.await);
            }
        }
        self.shared.reader.close().await;
    }

    pub(super) fn reader(&self) -> &SqlitePool {
        &self.shared.reader
    }

    pub(super) fn failed(&self, doing: &'static str) -> impl Fn(sqlx::Error) -> RecordError {
        let path = self.shared.path.clone();
        move |source| RecordError::sql(&path, doing, source)
    }

    async fn ask(&self, run: Option<&RunKey>, what: What) -> Result<Answer, RecordError> {
        let writer = self.shared.writer.as_ref().ok_or_else(|| self.closed())?;
        let (reply, answer) = oneshot::channel();
        let request = Request {
            run: run.cloned(),
            what,
            reply,
        };
        writer.send(request).await.map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())?
    }

    fn closed(&self) -> RecordError {
        RecordError::Closed {
            path: self.shared.path.clone(),
        }
    }
}

/// The system's clock: the one place where the record reads it.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock of the record: a parameter everywhere else"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Makes the file, readable by its owner alone. An existing one is not even opened: closing a descriptor would drop
/// the locks that SQLite holds in this process.
fn make_file(path: &Path) -> Result<(), RecordError> {
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(RecordError::Open {
            path: path.to_owned(),
            source: Arc::new(source),
        }),
    }
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(LOCK_WAIT)
        .disable_statement_logging()
}

/// Connects the writer. Turning WAL on needs the file for itself, and SQLite does not wait for that, so we do.
pub(super) async fn connect(path: &Path) -> Result<SqliteConnection, RecordError> {
    let options = options(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pause = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    loop {
        match options
            .connect()
            .await
            .map_err(|e| RecordError::sql(path, "opening", e))
        {
            Err(RecordError::Locked { .. }) if waited < LOCK_WAIT => {
                tokio::time::sleep(pause).await;
                waited += pause;
            }
            other => return other,
        }
    }
}

/// Makes or updates the tables, in one transaction against other processes, and reads the installation's id.
async fn prepare(path: &Path, connection: &mut SqliteConnection) -> Result<String, RecordError> {
    let failed = |source| RecordError::sql(path, "preparing its tables", source);
    let mut tx = connection
        .begin_with("BEGIN IMMEDIATE")
        .await
        .map_err(failed)?;
    MIGRATIONS
        .run_direct(None, &mut *tx, false)
        .await
        .map_err(|e| RecordError::migrate(path, e))?;
    let mut random = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| failed(sqlx::Error::Protocol("no random numbers".into())))?;
    sqlx::query(
        "INSERT INTO installation (id) SELECT ? WHERE NOT EXISTS (SELECT 1 FROM installation)",
    )
    .bind(hex(&random))
    .execute(&mut *tx)
    .await
    .map_err(failed)?;
    let id = sqlx::query_scalar("SELECT id FROM installation")
        .fetch_one(&mut *tx)
        .await
        .map_err(failed)?;
    tx.commit().await.map_err(failed)?;
    Ok(id)
}

/// Reads the installation's id of a record that may not be changed.
async fn look_inside(path: &Path, reader: &SqlitePool) -> Result<String, RecordError> {
    let failed = |source| RecordError::sql(path, "opening", source);
    let newest: i64 = sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations")
        .fetch_one(reader)
        .await
        .map_err(failed)?;
    if !MIGRATIONS.version_exists(newest) {
        return Err(RecordError::migrate(
            path,
            sqlx::migrate::MigrateError::VersionMissing(newest),
        ));
    }
    sqlx::query_scalar("SELECT id FROM installation")
        .fetch_one(reader)
        .await
        .map_err(failed)
}
