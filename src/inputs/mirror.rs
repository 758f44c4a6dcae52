//! The half of `inputs` that fetches: one upstream fetch for each commit, however many runs want it.
//!
//! Who wants a commit that is being fetched waits for that fetch. Whoever waits drives it: a waiter that goes away stops
//! nobody else's, and when the last one is gone, git is stopped.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::{OnceCell, Semaphore};

use super::fetch::{Fetch, Made};
use super::fetch_error::FetchError;
use super::git::Git;
use super::holds::Holds;
use super::packs::{self, PackLease, Verified};
use super::session::Session;
use super::ssh::Ssh;
use super::store::Store;
use super::{
    AddressGuard, CredentialKey, CredentialProof, GitSide, Listing, ObjectSeen, Remote, Settings,
    UploadPack, Wanted, Wants, ssh_relay, ssh_side,
};
use crate::api::{CommitId, Failure, Fault, Reason, RepoUrl};

/// Mirrors and packs of all namespaces. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Mirror(Arc<Inner>);

struct Inner {
    settings: Settings,
    guard: AddressGuard,
    holds: Arc<Holds>,
    ready: OnceCell<Ready>,
    at_once: Semaphore,
    flights: Flights,
    verified: Arc<Verified>,
    fetches: AtomicU64,
}

/// What is found and made at the first use, and tried again if that fails.
struct Ready {
    git: Git,
    session: Arc<Session>,
    store: Arc<Store>,
}

/// What all who want the same share.
type Shareable = Result<Answer, Failure>;

#[derive(Debug, Clone)]
enum Answer {
    Pack(PackLease),
    Other(ObjectSeen),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    credential: CredentialKey,
    repository: RepoUrl,
    id: CommitId,
    depth: Option<u32>,
}

#[derive(Default)]
struct Flights(Mutex<HashMap<Key, WeakShared<BoxFuture<'static, Shareable>>>>);

impl Mirror {
    /// A mirror below the settings' state directory. Nothing is touched before the first use.
    #[must_use]
    pub fn new(settings: &Settings, guard: AddressGuard) -> Self {
        Self::holding(settings, guard, Arc::default())
    }

    /// The same, which keeps with others what servers ask for.
    pub(super) fn holding(settings: &Settings, guard: AddressGuard, holds: Arc<Holds>) -> Self {
        Self(Arc::new(Inner {
            settings: settings.clone(),
            guard,
            holds,
            ready: OnceCell::new(),
            at_once: Semaphore::new(settings.fetch.at_once),
            flights: Flights::default(),
            verified: Arc::default(),
            fetches: AtomicU64::new(0),
        }))
    }

    /// Finds git, and ends and removes what killed processes have left below the state directory. Call it at the start;
    /// else the first fetch does it.
    ///
    /// # Errors
    /// `ProgramMissing` or `StateUnusable`; the message says what to do.
    pub async fn open(&self) -> Result<(), Failure> {
        self.0.ready().await.map(|_| ())
    }

    /// The pack of a commit and its history, made if it is not there. One attempt.
    ///
    /// # Errors
    /// As [`GitSide::bring`]; `NotACommit` if the object is none.
    pub async fn pack(&self, wanted: &Wanted) -> Result<PackLease, Failure> {
        match self.answer(wanted).await? {
            Answer::Pack(lease) => Ok(lease),
            Answer::Other(seen) => Err(not_a_commit(wanted, &seen)),
        }
    }

    /// How often git was started to fetch from a server, by this process.
    #[must_use]
    pub fn fetches(&self) -> u64 {
        self.0.fetches.load(Ordering::Relaxed)
    }

    /// The server's own `git-upload-pack`, asked one question.
    pub(super) async fn ask_ssh(
        &self,
        remote: &Remote,
        question: &[u8],
    ) -> Result<UploadPack, Failure> {
        remote.credential.covers(&remote.repository)?;
        let ssh = self.0.ssh(remote).await?;
        ssh_relay::ask(ssh, remote, question, &self.0.settings).await
    }

    async fn answer(&self, wanted: &Wanted) -> Shareable {
        wanted.remote.credential.covers(&wanted.remote.repository)?;
        let key = Key {
            credential: wanted.remote.credential.key(),
            repository: wanted.remote.repository.clone(),
            id: wanted.id.clone(),
            depth: wanted.depth,
        };
        let (inner, wanted) = (Arc::clone(&self.0), wanted.clone());
        self.0
            .flights
            .join(key, || async move { inner.make(&wanted).await }.boxed())
            .await
    }
}

impl Flights {
    fn join(
        &self,
        key: Key,
        start: impl FnOnce() -> BoxFuture<'static, Shareable>,
    ) -> Shared<BoxFuture<'static, Shareable>> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| {
            flight
                .upgrade()
                .is_some_and(|flight| flight.peek().is_none())
        });
        if let Some(flight) = flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let flight = start().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(key, weak);
        }
        flight
    }
}

impl Inner {
    async fn ready(&self) -> Result<&Ready, Failure> {
        let make = || async {
            let state_dir = self.settings.state_dir.clone();
            let open = tokio::task::spawn_blocking(move || Session::open(&state_dir)).await;
            let session = open
                .map_err(std::io::Error::other)
                .flatten()
                .map_err(|error| self.state_failure(error))?;
            let fetch = &self.settings.fetch;
            let git = Git::find(fetch, session.home()).await;
            let git = git.map_err(|error| error.failure(None))?;
            let store = Arc::new(Store::new(&self.settings.state_dir, &session, fetch));
            Ok(Ready {
                git,
                session,
                store,
            })
        };
        self.ready.get_or_try_init(make).await
    }

    fn state_failure(&self, error: std::io::Error) -> Failure {
        let failure = FetchError::State(error).failure(None);
        let dir = self.settings.state_dir.display();
        Failure {
            message: format!("{dir}: {}", failure.message),
            ..failure
        }
    }

    async fn make(&self, wanted: &Wanted) -> Shareable {
        let ready = self.ready().await?;
        let place = ready
            .store
            .place(&wanted.remote)
            .map_err(|e| self.state_failure(e))?;
        let pack = place.pack(&wanted.id, wanted.depth);
        if let Some(lease) = self.open(ready, &pack).await? {
            return Ok(Answer::Pack(lease));
        }
        // Only who holds a place waits for a turn, so that waiters for one mirror do not hold up the others.
        let locked = place.lock().await.map_err(|e| self.state_failure(e))?;
        let _turn = self.at_once.acquire().await;
        if let Some(lease) = self.open(ready, &pack).await? {
            return Ok(Answer::Pack(lease));
        }
        let store = Arc::clone(&ready.store);
        let has_room = tokio::task::spawn_blocking(move || store.make_room()).await;
        if !has_room.unwrap_or(false) {
            let keep_free = self.settings.fetch.keep_free_bytes;
            let full = FetchError::DiskFull(keep_free);
            return Err(about(&wanted.remote.repository, &full));
        }
        let addresses = self.addresses(&wanted.remote.repository).await?;
        let fetch = Fetch {
            git: &ready.git,
            settings: &self.settings,
            session: &ready.session,
            verified: &self.verified,
            count: &self.fetches,
            holds: &self.holds,
            wanted,
            addresses: &addresses,
            locked: &locked,
            place: pack,
        };
        match fetch.make().await {
            Ok(Made::Pack(lease)) => Ok(Answer::Pack(lease)),
            Ok(Made::Other(seen)) => Ok(Answer::Other(seen)),
            Err(error) => Err(about(&wanted.remote.repository, &error)),
        }
    }

    async fn open(
        &self,
        ready: &Ready,
        pack: &std::path::Path,
    ) -> Result<Option<PackLease>, Failure> {
        let (pack, verified, session) = (
            pack.to_owned(),
            Arc::clone(&self.verified),
            Arc::clone(&ready.session),
        );
        let open = move || packs::open(&pack, &verified, &session);
        let open = tokio::task::spawn_blocking(open).await;
        open.map_err(std::io::Error::other)
            .flatten()
            .map_err(|e| self.state_failure(e))
    }

    async fn ssh(&self, remote: &Remote) -> Result<Ssh, Failure> {
        let ready = self.ready().await?;
        let addresses = self.addresses(&remote.repository).await?;
        let Some(address) = addresses.first().copied() else {
            let text = format!("{} has no address", remote.repository);
            return Err(Failure::new(Reason::HostUnreachable, text));
        };
        let (fetch, times) = (&self.settings.fetch, self.settings.times);
        let (repository, shown) = (&remote.repository, remote.credential.shown());
        Ssh::open(fetch, times, &ready.session, repository, address, shown)
            .map_err(|error| about(repository, &error))
    }

    /// The addresses to connect to. All that the host's name leads to have passed.
    async fn addresses(&self, repository: &RepoUrl) -> Result<Vec<SocketAddr>, Failure> {
        let addresses = self
            .guard
            .resolve(repository.host(), repository.port())
            .await;
        addresses.map_err(|error| about(repository, &error))
    }
}

impl GitSide for Mirror {
    fn list_ssh<'a>(
        &'a self,
        remote: &'a Remote,
        wants: &'a Wants,
    ) -> BoxFuture<'a, Result<Listing, Failure>> {
        async move {
            let ssh = self.0.ssh(remote).await?;
            ssh_side::list(&ssh, remote, wants, &self.0.settings).await
        }
        .boxed()
    }

    fn prove_ssh<'a>(&'a self, remote: &'a Remote) -> BoxFuture<'a, CredentialProof> {
        async move {
            match self.0.ssh(remote).await {
                Ok(ssh) => ssh_side::prove(&ssh, &self.0.settings).await,
                Err(_) => CredentialProof::Unknown,
            }
        }
        .boxed()
    }

    fn bring<'a>(&'a self, object: &'a Wanted) -> BoxFuture<'a, Result<ObjectSeen, Failure>> {
        async move {
            match self.answer(object).await? {
                Answer::Pack(_) => Ok(ObjectSeen::Commit),
                Answer::Other(seen) => Ok(seen),
            }
        }
        .boxed()
    }
}

/// A failure that names its repository.
fn about(repository: &RepoUrl, error: &impl Fault) -> Failure {
    let failure = error.failure(None);
    Failure {
        message: format!("{repository}: {}", failure.message),
        ..failure
    }
}

fn not_a_commit(wanted: &Wanted, seen: &ObjectSeen) -> Failure {
    let (repository, id) = (&wanted.remote.repository, &wanted.id);
    let text = match seen {
        ObjectSeen::TagOfCommit(commit) => {
            format!("{repository}: {id} is an annotated tag: write its commit, {commit}")
        }
        ObjectSeen::NotACommit(kind) => {
            format!("{repository}: {id} leads to a {kind}, not to a commit")
        }
        // A commit has a pack.
        ObjectSeen::Commit => format!("{repository}: {id} has no pack"),
    };
    Failure::new(Reason::NotACommit, text)
}
