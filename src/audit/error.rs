//! What can go wrong with the record, and the one place that reads SQL errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Rejected;
use crate::api::{Fault, Reason};

/// An operation on the record failed. Nothing of it is stored, except where a commit's answer was lost.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be made or opened.
    #[error("the record {} cannot be opened", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// Another process holds the write lock for longer than we wait.
    #[error("the record {} is locked by another process, and stayed so for 10 s", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
        /// The database's words.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// No space, or a quota.
    #[error("the disk that holds the record {} is full", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The database's words.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// File or directory may not be written.
    #[error("the record {} and its directory must be writable for this user", path.display())]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// The database's words.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The file is no database, or a damaged one.
    #[error("the record {} is damaged or is no record", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The database's words.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A newer version made it.
    #[error("the record {} was written by a newer version of sandboxrun", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The database's words.
        #[source]
        source: Arc<sqlx::migrate::MigrateError>,
    },
    /// Anything else that the database says.
    #[error("the record {} failed while {doing}", path.display())]
    Sql {
        /// The file.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The database's first words: later ones only say that a transaction is aborted.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The event may not follow what is there.
    #[error("`{kind}` cannot be recorded for run {run}: {why}")]
    Rejected {
        /// The event.
        kind: &'static str,
        /// The run's uid.
        run: String,
        /// Why not.
        why: Rejected,
    },
    /// What was committed cannot be read again.
    #[error("the record {} confirmed an event that cannot be read back", path.display())]
    ReadBack {
        /// The file.
        path: PathBuf,
        /// The database's words; absent: the event is not there.
        #[source]
        source: Option<Arc<sqlx::Error>>,
    },
    /// A stored row cannot be read: `verify` says more.
    #[error("the record {} holds a row that cannot be read: {what}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Which.
        what: String,
    },
    /// It was opened for reading, or is closed.
    #[error("the record {} is not open for writing", path.display())]
    Closed {
        /// The file.
        path: PathBuf,
    },
}

impl Fault for RecordError {
    fn reason(&self) -> Reason {
        match self {
            Self::Locked { .. } => Reason::RecordLocked,
            Self::Damaged { .. } | Self::Newer { .. } | Self::Row { .. } => {
                Reason::RecordUnreadable
            }
            Self::Rejected { .. } => Reason::Bug,
            Self::Open { .. }
            | Self::Full { .. }
            | Self::NotWritable { .. }
            | Self::Sql { .. }
            | Self::ReadBack { .. }
            | Self::Closed { .. } => Reason::RecordWriteFailed,
        }
    }
}

impl RecordError {
    /// Reads what SQLite says. Its codes are stable; the low byte is the primary one.
    pub(super) fn sql(path: &Path, doing: &'static str, source: sqlx::Error) -> Self {
        let code = source
            .as_database_error()
            .and_then(|e| e.code()?.parse::<i32>().ok())
            .map(|code| code & 0xff);
        let path = path.to_owned();
        let source = Arc::new(source);
        match code {
            Some(5 | 6) => Self::Locked { path, source }, // BUSY, LOCKED
            Some(13) => Self::Full { path, source },      // FULL
            Some(3 | 8 | 14 | 23) => Self::NotWritable { path, source }, // PERM, READONLY, CANTOPEN, AUTH
            Some(11 | 26) => Self::Damaged { path, source },             // CORRUPT, NOTADB
            _ => Self::Sql {
                path,
                doing,
                source,
            },
        }
    }

    /// Reads what a migration says.
    pub(super) fn migrate(path: &Path, source: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError;
        let doing = "preparing its tables";
        if let MigrateError::VersionMissing(_) | MigrateError::VersionMismatch(_) = source {
            return Self::Newer {
                path: path.to_owned(),
                source: Arc::new(source),
            };
        }
        if let MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) = source {
            return Self::sql(path, doing, source);
        }
        Self::sql(path, doing, sqlx::Error::Migrate(Box::new(source)))
    }

    /// Whether one request of a batch may be the cause, so that the others are worth a try of their own.
    pub(super) fn may_be_one_request(&self) -> bool {
        matches!(self, Self::Sql { .. } | Self::Row { .. })
    }
}
