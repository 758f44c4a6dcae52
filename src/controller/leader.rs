//! Who leads: a Lease, so that two operators do not work at the same runs.
//!
//! A lease is no fence: what must happen once goes through the record. It keeps a second operator quiet. Times are this
//! process's own: whether another holder fell silent is judged by how long *we* saw its lease unchanged, never by its
//! clock.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use tokio::time::Instant;

use crate::api::{Fault, Reason};

/// One who may lead.
#[derive(Debug, Clone)]
pub struct Candidate {
    leases: Api<Lease>,
    lease: String,
    holder: String,
    /// A new leader may start this long after the old one fell silent.
    duration: Duration,
    /// The longest call.
    timeout: Duration,
}

/// Why leading ended.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// Somebody else holds the lease.
    #[error("another operator took the lease `{0}`")]
    Taken(String),
    /// It could not be renewed in time: somebody else may lead soon.
    #[error("the lease `{lease}` could not be renewed in time")]
    Lost {
        /// Its name.
        lease: String,
        /// The last try.
        #[source]
        last: Option<kube::Error>,
    },
}

impl Fault for LeaderError {
    fn reason(&self) -> Reason {
        Reason::ClusterUnusable
    }
}

/// What a lease looks like to somebody who wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// Nobody holds it.
    Free,
    /// We do.
    Ours,
    /// Somebody else does, and this is the version of it.
    Theirs(String),
}

fn seen(lease: &Lease, me: &str) -> Seen {
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref());
    match holder {
        None | Some("") => Seen::Free,
        Some(holder) if holder == me => Seen::Ours,
        Some(_) => Seen::Theirs(lease.metadata.resource_version.clone().unwrap_or_default()),
    }
}

impl Candidate {
    /// Somebody of this name, for this lease.
    #[must_use]
    pub fn new(
        leases: Api<Lease>,
        lease: &str,
        holder: String,
        duration: Duration,
        timeout: Duration,
    ) -> Self {
        Self {
            leases,
            lease: lease.to_owned(),
            holder,
            duration,
            timeout: timeout.min(duration / 3),
        }
    }

    /// Waits until we lead.
    pub async fn lead(&self) {
        let mut silent: Option<(String, Instant)> = None;
        loop {
            match self.read().await {
                Ok(None) => {
                    if self.take(None).await {
                        return;
                    }
                }
                Ok(Some(lease)) => {
                    let vacant = match seen(&lease, &self.holder) {
                        Seen::Free | Seen::Ours => true,
                        Seen::Theirs(version) => {
                            let same = silent.take().filter(|(same, _)| *same == version);
                            let (_, since) =
                                silent.insert(same.unwrap_or_else(|| (version, Instant::now())));
                            since.elapsed() >= self.duration
                        }
                    };
                    if vacant && self.take(Some(lease)).await {
                        return;
                    }
                }
                Err(error) => {
                    let error = super::causes(&error);
                    tracing::warn!(%error, "the lease could not be read");
                }
            }
            tokio::time::sleep(self.retry()).await;
        }
    }

    /// Renews until that fails for too long, or somebody else holds it. We stop before another may start.
    pub async fn hold(&self) -> LeaderError {
        let give_up = self.duration * 2 / 3;
        let (mut renewed, mut trouble) = (Instant::now(), None);
        loop {
            tokio::time::sleep(self.duration / 3).await;
            let lost = |last| LeaderError::Lost {
                lease: self.lease.clone(),
                last,
            };
            let asked = Instant::now();
            let renewal = tokio::time::timeout_at(renewed + give_up, self.renew());
            match renewal.await {
                Ok(Ok(true)) => renewed = asked,
                Ok(Ok(false)) => return LeaderError::Taken(self.lease.clone()),
                Ok(Err(error)) => {
                    if renewed.elapsed() >= give_up {
                        return lost(Some(error));
                    }
                    trouble = Some(error);
                }
                Err(_) => return lost(trouble),
            }
        }
    }

    /// Lets the next one lead at once. Called when all work has stopped.
    pub async fn resign(&self) {
        let Ok(Some(mut lease)) = self.read().await else {
            return;
        };
        if seen(&lease, &self.holder) != Seen::Ours {
            return;
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        if let Err(error) = self.replace(&lease).await {
            let error = super::causes(&error);
            tracing::debug!(%error, "the lease could not be given back");
        }
    }

    /// Tries to take it. Losing to another who tries is no trouble; all else is said.
    async fn take(&self, found: Option<Lease>) -> bool {
        match self.write(found).await {
            Ok(()) => true,
            Err(kube::Error::Api(status)) if status.code == 409 => false,
            Err(error) => {
                let error = super::causes(&error);
                tracing::warn!(%error, "the lease could not be taken");
                false
            }
        }
    }

    fn retry(&self) -> Duration {
        (self.duration / 7).max(Duration::from_millis(200))
    }

    /// `false`: somebody else holds it.
    async fn renew(&self) -> kube::Result<bool> {
        let Some(lease) = self.read().await? else {
            return self.write(None).await.map(|()| true);
        };
        match seen(&lease, &self.holder) {
            Seen::Ours => match self.write(Some(lease)).await {
                // Somebody wrote it in between: perhaps we, by a call whose answer was lost.
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    let now = self.read().await?;
                    Ok(now.is_some_and(|lease| seen(&lease, &self.holder) == Seen::Ours))
                }
                other => other.map(|()| true),
            },
            Seen::Free | Seen::Theirs(_) => Ok(false),
        }
    }

    async fn read(&self) -> kube::Result<Option<Lease>> {
        self.within(self.leases.get_opt(&self.lease)).await
    }

    /// Takes or renews it, guarded by the version that was read: of two who try, one wins.
    async fn write(&self, found: Option<Lease>) -> kube::Result<()> {
        let now = MicroTime(Timestamp::now());
        let before = found.as_ref().and_then(|lease| lease.spec.clone());
        let ours = before
            .as_ref()
            .is_some_and(|spec| spec.holder_identity.as_deref() == Some(&self.holder));
        let before = before.unwrap_or_default();
        let spec = LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            acquire_time: before
                .acquire_time
                .filter(|_| ours)
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(
                before.lease_transitions.unwrap_or_default() + i32::from(!ours),
            ),
            ..LeaseSpec::default()
        };
        if let Some(lease) = found {
            let spec = Some(spec);
            return self.replace(&Lease { spec, ..lease }).await;
        }
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.lease.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
        };
        let params = PostParams::default();
        let created = self.leases.create(&params, &lease);
        self.within(created).await.map(drop)
    }

    async fn replace(&self, lease: &Lease) -> kube::Result<()> {
        let params = PostParams::default();
        self.within(self.leases.replace(&self.lease, &params, lease))
            .await
            .map(drop)
    }

    async fn within<T>(&self, call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
        let late = |_| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            kube::Error::Service(Box::new(late))
        };
        tokio::time::timeout(self.timeout, call)
            .await
            .map_err(late)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nobody(None, Seen::Free)]
    #[case::given_back(Some(""), Seen::Free)]
    #[case::we(Some("me"), Seen::Ours)]
    #[case::another(Some("other"), Seen::Theirs("7".into()))]
    fn a_lease_is_free_ours_or_theirs(#[case] holder: Option<&str>, #[case] want: Seen) {
        let lease = Lease {
            metadata: ObjectMeta {
                resource_version: Some("7".into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: holder.map(str::to_owned),
                ..LeaseSpec::default()
            }),
        };
        assert_eq!(seen(&lease, "me"), want);
    }
}
