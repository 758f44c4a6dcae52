//! What can go wrong with a fetch, beside what a listing tells.

use std::io;
use std::time::Duration;

use super::ListError;
use super::git::GitError;
use super::ssh::SshError;
use crate::api::{CommitId, Fault, Reason};

/// Why a commit could not be fetched: the end of a sentence that begins with the repository. Holds no secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The server, or what lies between, refused or failed.
    #[error("git fetch failed: {words}")]
    Refused {
        /// Which reason its words are.
        reason: Reason,
        /// Its words.
        words: String,
    },
    /// The server's own answer, as git's client heard it.
    #[error("{0}")]
    Answered(ListError),
    /// No such commit.
    #[error("it has no commit {0}, or does not give it to this credential")]
    NotFound(CommitId),
    /// It took longer than a fetch may.
    #[error("the fetch took longer than the {} s that one may take", .0.as_secs())]
    Deadline(Duration),
    /// The server went silent.
    #[error("the server sent nothing for {} s", .0.as_secs())]
    Stalled(Duration),
    /// More than one fetch may use.
    #[error("it needs more than the {0} bytes of disk that a mirror may take")]
    TooLarge(u64),
    /// The volume is full.
    #[error("the volume of the state directory is full: less than {0} bytes are free")]
    DiskFull(u64),
    /// The credential's type does not fit.
    #[error("connector `{0}` shows itself by a header, and git inputs cannot: write auth.token")]
    HeaderCredential(String),
    /// `git` cannot be called.
    #[error(transparent)]
    Git(GitError),
    /// `ssh` cannot be used.
    #[error(transparent)]
    Ssh(SshError),
    /// The state directory cannot be used.
    #[error("the state directory cannot be used: {0}")]
    State(io::Error),
    /// The mirror is damaged, or git said something that nobody foresaw. It is thrown away and made anew, once.
    #[error("git fetch failed: {0}")]
    Damaged(String),
    /// The server does not give out the object by its id, or has no such ref.
    #[error("it does not give out {0} by its id")]
    NotAdvertised(CommitId),
}

impl Fault for FetchError {
    fn reason(&self) -> Reason {
        match self {
            Self::Refused { reason, .. } => *reason,
            Self::Answered(answer) => answer.reason(),
            Self::NotFound(_) | Self::NotAdvertised(_) => Reason::CommitNotFound,
            Self::Deadline(_) | Self::Damaged(_) => Reason::FetchFailed,
            Self::Stalled(_) => Reason::TransferStalled,
            Self::TooLarge(_) => Reason::InputTooLarge,
            Self::DiskFull(_) => Reason::HostDiskFull,
            Self::HeaderCredential(_) => Reason::ConnectorInvalid,
            Self::Git(error) => error.reason(),
            Self::Ssh(error) => error.reason(),
            Self::State(error) if error.kind() == io::ErrorKind::StorageFull => {
                Reason::HostDiskFull
            }
            Self::State(_) => Reason::StateUnusable,
        }
    }
}
