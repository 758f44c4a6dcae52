//! What a resolution needs of the system's `git` and `ssh`: the one seam between the half that resolves and the half
//! that fetches.

use futures::future::BoxFuture;

use super::{Credential, CredentialProof, Listing, Wants};
use crate::api::{CommitId, Failure, RefName, RepoUrl};

/// The half of `inputs` that runs programs. The mirror implements it.
///
/// Every method makes one attempt: the caller decides by the failure's reason whether to call again. A future that is
/// dropped ends what it started, unless somebody else waits for the same.
pub trait GitSide: Send + Sync {
    /// Lists refs over ssh. [`super::protocol::list_over`] speaks the protocol on any pair of streams.
    fn list_ssh<'a>(
        &'a self,
        remote: &'a Remote,
        wants: &'a Wants,
    ) -> BoxFuture<'a, Result<Listing, Failure>>;

    /// Whether the ssh key may push: asks for `git-receive-pack` and ends.
    fn prove_ssh<'a>(&'a self, remote: &'a Remote) -> BoxFuture<'a, CredentialProof>;

    /// Brings an object to this side, with the history that is wanted, and says what it is.
    ///
    /// # Errors
    /// `CommitNotFound` if the server has none such, or does not give it out to this credential; else as listings.
    fn bring<'a>(&'a self, object: &'a Wanted) -> BoxFuture<'a, Result<ObjectSeen, Failure>>;
}

/// A repository and who asks for it. The credential covers the repository.
#[derive(Debug, Clone)]
pub struct Remote {
    /// The repository.
    pub repository: RepoUrl,
    /// Who asks.
    pub credential: Credential,
}

/// An object to bring to this side.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Whence.
    pub remote: Remote,
    /// Its id: a commit, as far as is known.
    pub id: CommitId,
    /// A name that led to it, for servers that give out only what they advertise.
    pub via: Option<RefName>,
    /// 1..; `None`: the whole history.
    pub depth: Option<u32>,
}

/// What an id turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectSeen {
    /// A commit; it is on this side now.
    Commit,
    /// An annotated tag, which leads to this commit in the end.
    TagOfCommit(CommitId),
    /// A tree, a blob, or a tag that leads to one; git's own word for what it leads to.
    NotACommit(&'static str),
}
