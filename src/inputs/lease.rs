//! From a resolved input to the pack that a pod gets.

use std::time::Duration;

use super::retry::{self, Next, Retry};
use super::{Credential, Inputs, ListError, PackLease, Remote, ResolvedInput, Wanted, Wants};
use crate::api::{ConnectorUse, Failure, Fault as _, Healing, Namespace, Transport};

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
        let mut retry = Retry::new(self.settings().times);
        loop {
            let (failure, hold) = match self.pack_once(namespace, input).await {
                Ok(lease) => return Ok(lease),
                Err(missed) => missed,
            };
            let failure = Failure {
                input: Some(input.name.clone()),
                ..failure
            };
            let now = tokio::time::Instant::now();
            match retry.after(&failure, hold, now, retry::chance()) {
                Next::Wait(wait) => {
                    tracing::debug!(
                        namespace = namespace.as_str(),
                        input = input.name.as_str(),
                        reason = failure.reason.as_str(),
                        wait_ms = wait.as_millis(),
                        "input not fetched yet"
                    );
                    tokio::time::sleep(wait).await;
                }
                Next::GiveUp(..) => return Err(failure),
            }
        }
    }

    async fn pack_once(
        &self,
        namespace: &Namespace,
        input: &ResolvedInput,
    ) -> Result<PackLease, (Failure, Option<Duration>)> {
        let credential = match &input.connector {
            Some(name) => self.credential(namespace, name, ConnectorUse::Inputs).await,
            None => Ok(Credential::anonymous(namespace)),
        };
        let credential = credential.map_err(|failure| (failure, None))?;
        let remote = Remote {
            repository: input.repository.clone(),
            credential,
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
    pub(super) async fn cause(
        &self,
        failure: Failure,
        remote: &Remote,
    ) -> (Failure, Option<Duration>) {
        let of_server = failure.reason.healing() != Healing::Permanent
            && failure.code() == crate::api::Code::InputResolutionFailed;
        if !of_server || remote.repository.transport() == Transport::Ssh {
            return (failure, None);
        }
        match self.listing(remote, Wants::default()).await {
            Ok(_) => (failure, None),
            Err(ListError::RateLimited { wait }) => {
                (ListError::RateLimited { wait }.failure(remote), wait)
            }
            Err(error) => (error.failure(remote), None),
        }
    }
}
