//! From what a run asks for to what it gets: one commit for each input, or one failure.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AddressGuard, Credential, GitSide, Settings, Sources, SystemNames, credential};
use crate::api::{
    CommitId, ConnectorName, ConnectorUse, Failure, InputName, Namespace, ObjectFormat, Reason,
    RefName, RefSelector, RepoUrl, RunSpec,
};

/// The host side of inputs. Cheap to clone; all clones share one guard, one mirror and one flight per question.
#[derive(Clone)]
pub struct Inputs(Arc<Inner>);

struct Inner {
    settings: Settings,
    sources: Arc<dyn Sources>,
    guard: AddressGuard,
    git: Option<Arc<dyn GitSide>>,
}

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

impl Inputs {
    /// The host side of inputs, over the names of this machine.
    #[must_use]
    pub fn new(settings: Settings, sources: Arc<dyn Sources>) -> Self {
        let guard = AddressGuard::new(&settings, Arc::new(SystemNames));
        Self(Arc::new(Inner {
            settings,
            sources,
            guard,
            git: None,
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

    /// The commit of every input, or one failure. Waits and tries again as the settings say; dropping the future
    /// ends it and disturbs nobody who waits for the same.
    ///
    /// # Errors
    /// The first failure that cannot heal, or did not in time. It names the input.
    pub async fn resolve(
        &self,
        namespace: &Namespace,
        spec: &RunSpec,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Vec<ResolvedInput>, Failure> {
        let _ = (namespace, spec, progress, &self.0.git);
        std::future::ready(Err(Failure::new(
            Reason::Bug,
            "resolution is not built yet",
        )))
        .await
    }

    /// A connector with the values of its Secrets, checked for a use. Asked for at each use: nothing is kept.
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
}
