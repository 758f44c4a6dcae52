//! [`Inputs`]: the face of the room, and the state that its clones share.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::client::{Clients, Endpoint};
use super::flight::{Flights, Gather};
use super::holds::{Holds, Turns};
use super::list_error::ListError;
use super::{
    AddressGuard, Credential, CredentialKey, GitSide as _, Listing, Mirror, Names, OriginClient,
    Remote, Settings, Sources, SystemNames, UploadPack, Wants, credential, http, resolve,
};
use crate::api::{
    Attempt, CommitId, ConnectorName, ConnectorUse, Event, Failure, InputName, Namespace,
    ObjectFormat, Reason, RefName, RefSelector, RepoUrl, RunSpec, Transport,
};

/// The host side of inputs. Cheap to clone; all clones share one guard, one mirror, and one question to a server at a
/// time.
#[derive(Clone)]
pub struct Inputs(Arc<Inner>);

struct Inner {
    settings: Settings,
    sources: Arc<dyn Sources>,
    guard: AddressGuard,
    mirror: Mirror,
    clients: Clients,
    holds: Arc<Holds>,
    turns: Turns,
    listings: Flights<Question, Wants, Result<Arc<Listing>, ListError>>,
    proofs: Flights<Question, (), Result<CredentialProof, ListError>>,
}

/// What makes two questions the same: the address as it is sent, and who asks.
type Question = (String, CredentialKey);

/// One input, pinned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedInput {
    /// Its name.
    pub name: InputName,
    /// Where it is: the address that was asked, with a connector's url before a short path.
    pub repository: RepoUrl,
    /// What the run asks for.
    pub requested: RefSelector,
    /// The full name that led to the commit; `None` for a plain commit and for a detached HEAD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_ref: Option<RefName>,
    /// The pinned commit.
    pub commit: CommitId,
    /// The annotated tag that led there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag_object: Option<CommitId>,
    /// How the repository names its objects.
    pub object_format: ObjectFormat,
    /// Whose credential was used; `None`: anonymous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connector: Option<ConnectorName>,
    /// Whether that credential may write.
    pub proof: CredentialProof,
    /// When the server gave its answer.
    pub resolved_at: Timestamp,
    /// 1..; `None`: the whole history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Where it goes below the workspace.
    pub path: String,
    /// The agent's mount is read-only.
    pub read_only: bool,
    /// The agent may `git fetch` more of it.
    pub fetch: bool,
}

impl ResolvedInput {
    /// The input as it is written down in this attempt.
    #[must_use]
    pub fn event(&self, attempt: Attempt) -> Event {
        Event::InputResolved {
            attempt,
            input: self.name.clone(),
            repository: self.repository.to_string(),
            requested_ref: self.requested.to_string(),
            resolved_ref: self.resolved_ref.clone(),
            commit: self.commit.clone(),
            tag_object: self.tag_object.clone(),
            object_format: self.object_format,
            connector: self.connector.clone(),
            credential_proof: format!("{:?}", self.proof),
        }
    }
}

/// Whether an input's credential may write to its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialProof {
    /// The server refused to let it push.
    ReadOnly,
    /// The server would let it push.
    CanWrite,
    /// The server did not say.
    Unknown,
    /// Nobody asked: there is no credential, or the policy is `Off`.
    NotAsked,
}

/// What a resolution waits for, for the status of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The input.
    pub input: InputName,
    /// Why it is not resolved yet. It will be tried again.
    pub waiting_for: Failure,
}

impl Gather for Wants {
    fn add(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }
}

impl Gather for () {
    fn add(&mut self, (): &Self) {}
}

impl Inputs {
    /// The host side of inputs, over the names of this machine.
    #[must_use]
    pub fn new(settings: Settings, sources: Arc<dyn Sources>) -> Self {
        Self::over(settings, sources, Arc::new(SystemNames))
    }

    /// The same over other names.
    #[must_use]
    pub fn over(settings: Settings, sources: Arc<dyn Sources>, names: Arc<dyn Names>) -> Self {
        let guard = AddressGuard::new(&settings, names);
        let holds = Arc::new(Holds::default());
        Self(Arc::new(Inner {
            mirror: Mirror::holding(&settings, guard.clone(), Arc::clone(&holds)),
            guard,
            turns: Turns::new(settings.limits.listings_at_once),
            settings,
            sources,
            clients: Clients::default(),
            holds,
            listings: Flights::default(),
            proofs: Flights::default(),
        }))
    }

    /// What the administrator set.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Which addresses may be connected to: inputs, lookups and egress alike.
    #[must_use]
    pub fn guard(&self) -> &AddressGuard {
        &self.0.guard
    }

    /// The commit of every input, or one failure. Waits and tries again as the settings say, telling `progress` why.
    /// Dropping the future ends it and disturbs nobody who waits for the same.
    ///
    /// # Errors
    /// The first failure that cannot heal, or did not in time. It names the input.
    pub async fn resolve(
        &self,
        namespace: &Namespace,
        spec: &RunSpec,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Vec<ResolvedInput>, Failure> {
        resolve::all(self, namespace, spec, progress).await
    }

    /// A connector with the values of its Secrets, checked for a use. Asked for at each use: nothing is kept, and
    /// nothing is waited for.
    ///
    /// # Errors
    /// When connector, Secret or key is missing, invalid, or not meant for this.
    pub async fn credential(
        &self,
        namespace: &Namespace,
        connector: &ConnectorName,
        wanted: ConnectorUse,
    ) -> Result<Credential, Failure> {
        let loaded = credential::load(&*self.0.sources, namespace, connector, wanted).await;
        match wanted {
            ConnectorUse::Inputs => loaded,
            ConnectorUse::Lookups => loaded.map_err(credential::for_lookups),
        }
    }

    /// A client for the origin of the credential's connector. `idle` without a byte ends a request.
    ///
    /// # Errors
    /// When the credential has no connector, or its url leads to a closed address.
    pub fn client(&self, credential: &Credential, idle: Duration) -> Result<OriginClient, Failure> {
        let connector = credential.connector().ok_or_else(|| {
            Failure::new(Reason::Bug, "a client was asked for without a connector")
        })?;
        self.client_to(credential, Endpoint::from(&connector.origin), idle)
    }

    /// A client for a repository that is reached over https.
    ///
    /// # Errors
    /// When the credential does not cover the repository, or its host is a closed address.
    pub fn repository_client(
        &self,
        credential: &Credential,
        repository: &RepoUrl,
    ) -> Result<OriginClient, Failure> {
        credential.covers(repository)?;
        let stall = self.0.settings.times.stall;
        self.client_to(credential, Endpoint::from(repository), stall)
    }

    /// A repository that is reached over ssh: its own `git-upload-pack`, asked one question of protocol v2.
    ///
    /// # Errors
    /// When the credential does not cover the repository, the server cannot be reached, or does not speak that protocol.
    pub async fn ask_over_ssh(
        &self,
        credential: &Credential,
        repository: &RepoUrl,
        question: &[u8],
    ) -> Result<UploadPack, Failure> {
        let remote = Remote {
            repository: repository.clone(),
            credential: credential.clone(),
        };
        self.0.mirror.ask_ssh(&remote, question).await
    }

    fn client_to(
        &self,
        credential: &Credential,
        endpoint: Endpoint,
        stall: Duration,
    ) -> Result<OriginClient, Failure> {
        let connect = self.0.settings.times.connect;
        self.0
            .clients
            .client(&self.0.guard, credential, endpoint, connect, stall)
    }

    /// Mirrors and packs.
    #[must_use]
    pub fn mirror(&self) -> &Mirror {
        &self.0.mirror
    }

    /// Lists once, together with all who ask the same server the same way.
    pub(super) async fn listing(
        &self,
        remote: &Remote,
        wants: Wants,
    ) -> Result<Arc<Listing>, ListError> {
        let (inputs, asked) = (self.clone(), remote.clone());
        let answer = self
            .0
            .listings
            .ask(question(remote), wants, move |ticket| async move {
                let list = inputs.list_once(&asked, || ticket.close());
                inputs.once(&asked, list.boxed()).await.map(Arc::new)
            });
        answer.await
    }

    /// Asks once whether the credential may push, together with all who ask the same.
    pub(super) async fn proof(&self, remote: &Remote) -> Result<CredentialProof, ListError> {
        let (inputs, asked) = (self.clone(), remote.clone());
        let answer = self
            .0
            .proofs
            .ask(question(remote), (), move |_ticket| async move {
                inputs.once(&asked, inputs.prove_once(&asked).boxed()).await
            });
        answer.await
    }

    /// One attempt: in its turn, not while the server wants to be left alone, and not for ever.
    async fn once<T>(
        &self,
        remote: &Remote,
        attempt: futures::future::BoxFuture<'_, Result<T, ListError>>,
    ) -> Result<T, ListError> {
        let _turn = self.0.turns.turn(remote.credential.namespace()).await;
        if let Some(wait) = self.0.holds.left(remote) {
            return Err(ListError::RateLimited { wait: Some(wait) });
        }
        let longest = self.0.settings.times.attempt;
        let answer = tokio::time::timeout(longest, attempt).await;
        let answer = answer.unwrap_or(Err(ListError::Stalled));
        if let Err(ListError::RateLimited { wait: Some(wait) }) = &answer {
            self.0.holds.hold(remote, *wait);
        }
        answer
    }

    async fn list_once(
        &self,
        remote: &Remote,
        close: impl FnOnce() -> Wants + Send,
    ) -> Result<Listing, ListError> {
        match remote.repository.transport() {
            Transport::Https => {
                let client = self.https(remote)?;
                http::list(&client, remote, close, self.0.settings.limits.listing_bytes).await
            }
            Transport::Ssh => {
                let listed = self.0.mirror.list_ssh(remote, &close()).await;
                listed.map_err(ListError::Git)
            }
        }
    }

    fn https(&self, remote: &Remote) -> Result<OriginClient, ListError> {
        let repository = &remote.repository;
        let literal = self
            .0
            .guard
            .check_literal(repository.host(), repository.port());
        literal.map_err(ListError::Address)?;
        self.repository_client(&remote.credential, repository)
            .map_err(ListError::Git)
    }

    async fn prove_once(&self, remote: &Remote) -> Result<CredentialProof, ListError> {
        match remote.repository.transport() {
            Transport::Https => http::prove(&self.https(remote)?, remote).await,
            Transport::Ssh => Ok(self.0.mirror.prove_ssh(remote).await),
        }
    }
}

fn question(remote: &Remote) -> Question {
    (
        remote.repository.as_str().to_owned(),
        remote.credential.key(),
    )
}
