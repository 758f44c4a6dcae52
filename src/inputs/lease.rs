//! From a resolved input to the pack that a pod gets.

use super::resolve;
use super::retry::{self, Missed};
use super::{Credential, Inputs, PackLease, Progress, Remote, ResolvedInput, Wanted, Wants};
use crate::api::{Code, ConnectorUse, Failure, Fault as _, Healing, Namespace, Transport};

impl Inputs {
    /// The pack of a resolved input: exactly its commit, and the history that it asks for. Made once, then served as
    /// plain files. Waits and tries again as the settings say; dropping the future disturbs nobody who waits for the
    /// same.
    ///
    /// # Errors
    /// The first failure that cannot heal, or did not in time. It names the input.
    pub async fn pack(
        &self,
        namespace: &Namespace,
        input: &ResolvedInput,
    ) -> Result<PackLease, Failure> {
        self.pack_telling(namespace, input, &|_| {}).await
    }

    /// [`Inputs::pack`], telling `progress` why it waits.
    ///
    /// # Errors
    /// As [`Inputs::pack`].
    pub async fn pack_telling(
        &self,
        namespace: &Namespace,
        input: &ResolvedInput,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PackLease, Failure> {
        let tried = || self.pack_once(namespace, input);
        let waiting = |failure: &Failure| {
            progress(Progress {
                input: input.name.clone(),
                waiting_for: failure.clone(),
            });
        };
        retry::until_settled(self.settings().times, &input.name, tried, waiting).await
    }

    async fn pack_once(
        &self,
        namespace: &Namespace,
        input: &ResolvedInput,
    ) -> Result<PackLease, Missed> {
        let credential = match &input.connector {
            Some(name) => self.credential(namespace, name, ConnectorUse::Inputs).await,
            None => Ok(Credential::anonymous(namespace)),
        };
        let remote = Remote {
            repository: input.repository.clone(),
            credential: credential?,
        };
        let wanted = Wanted {
            remote,
            id: input.commit.clone(),
            via: input.resolved_ref.clone(),
            depth: input.depth,
        };
        match self.mirror().pack(&wanted).await {
            Ok(lease) => Ok(lease),
            Err(failure) => Err(self.cause(failure, &wanted.remote).await),
        }
    }

    /// The same failure, or what our own client sees when it asks. git hides how long a server wants to be left alone,
    /// and tells most of what it met by a few words.
    pub(super) async fn cause(&self, failure: Failure, remote: &Remote) -> Missed {
        let of_server = failure.reason.healing() != Healing::Permanent
            && failure.code() == Code::InputResolutionFailed;
        if !of_server || remote.repository.transport() == Transport::Ssh {
            return failure.into();
        }
        match self.listing(remote, Wants::default()).await {
            Ok(_) => failure.into(),
            Err(error) => resolve::missed(&error, remote),
        }
    }
}
