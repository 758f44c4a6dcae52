//! The operator's process, from its settings to its end: what it needs of the cluster, who leads, gateway, work.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::Api;
use kube::client::ClientBuilder;
use kube::client::retry::RetryPolicy;
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::buffer::BufferLayer;
use tower::retry::RetryLayer;

use super::authority::{Authority, AuthorityError};
use super::desk::{Desk, DeskParts};
use super::health::{Readiness, serve_health, serve_metrics};
use super::identity::{Lives, Reviews};
use super::leader::{Candidate, LeaderError};
use super::metrics::Metrics;
use super::settings::{Settings, SettingsError};
use super::sources::KubeSources;
use crate::api::wire::NodeCanary;
use crate::api::{Fault, Reason};
use crate::audit::{Record, RecordError};
use crate::gateway::{Canaries, CanaryError, CanaryPort, Gateway, InCluster};
use crate::inputs::Inputs;
use crate::manifest::{self, NodeAccess};

/// The oldest Kubernetes that knows everything that a pod of a run needs: native sidecars are stable there.
const OLDEST_MINOR: u32 = 33;
/// Where the kubelet of a pod's own node listens.
const KUBELET: u16 = 10250;
/// Requests to the API server that may wait in this process.
const REQUESTS: usize = 1024;
/// Ended runs past their retention are looked for this often.
const PRUNE_EVERY: Duration = Duration::from_hours(1);
/// What is under way when the process ends has so long. Below the 30 s that Kubernetes gives.
const LAST_CALLS: Duration = Duration::from_secs(10);

/// Where this process runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// The operator's namespace.
    pub namespace: String,
    /// The name of its pod.
    pub pod: String,
}

/// Why the operator does not work, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings make no sense.
    #[error(transparent)]
    Settings(SettingsError),
    /// There is no way to the API server.
    #[error("no way to an API server: run in a cluster, or set KUBECONFIG")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It answers, but not with what is needed.
    #[error("{what} cannot be read")]
    Read {
        /// Such as `service sandboxrun-gateway`.
        what: String,
        /// Why.
        #[source]
        source: kube::Error,
    },
    /// Something of the cluster is not as it must be.
    #[error("{0}")]
    Cluster(String),
    /// The CA or certificate.
    #[error(transparent)]
    Authority(AuthorityError),
    /// Another process has the record.
    #[error("another operator has the record {}: one at a time", .0.display())]
    RecordTaken(PathBuf),
    /// The record cannot be used.
    #[error("the record cannot be used")]
    Record(#[source] RecordError),
    /// Nothing could be proved.
    #[error(transparent)]
    Canaries(CanaryError),
    /// An address cannot be listened on, or a file cannot be made.
    #[error("{what} cannot be opened")]
    Open {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Somebody else leads.
    #[error(transparent)]
    Leader(LeaderError),
}

impl Fault for StartError {
    fn reason(&self) -> Reason {
        match self {
            Self::Settings(error) => error.reason(),
            Self::Client(_) | Self::Read { .. } | Self::Cluster(_) => Reason::ClusterUnusable,
            Self::Authority(error) => error.reason(),
            Self::Record(error) => error.reason(),
            Self::Canaries(error) => error.reason(),
            Self::RecordTaken(_) | Self::Open { .. } => Reason::StateUnusable,
            Self::Leader(error) => error.reason(),
        }
    }
}

/// Works until `stop`. Comes back early when it cannot work, or somebody else leads.
///
/// # Errors
/// When the cluster or the settings are not as they must be, or leadership is lost.
pub async fn start(
    settings: Settings,
    place: Place,
    stop: CancellationToken,
) -> Result<(), StartError> {
    let (metrics, ready, tracker) = (Metrics::default(), Readiness::default(), TaskTracker::new());
    let open = |what: &str| {
        let what = what.to_owned();
        move |source| StartError::Open { what, source }
    };
    let control = &settings.controller;
    let health = serve_health(control.health, ready.clone(), stop.child_token()).await;
    tracker.spawn(health.map_err(open("controller.health"))?);
    let numbers = serve_metrics(control.metrics, metrics.clone(), stop.child_token()).await;
    tracker.spawn(numbers.map_err(open("controller.metrics"))?);

    let client = client().await?;
    check_version(&client, control.api_timeout).await?;
    let candidate = Candidate::new(
        Api::namespaced(client.clone(), &place.namespace),
        &settings.leader.lease,
        place.pod.clone(),
        settings.leader.duration,
        control.api_timeout,
    );
    tracing::info!("waiting to lead");
    if stop.run_until_cancelled(candidate.lead()).await.is_none() {
        return Ok(());
    }
    tracing::info!("leading");
    metrics.set_leading(true);
    let inner = stop.child_token();
    let worked = async {
        let operator = Operator {
            settings: &settings,
            place: &place,
            client: &client,
            tracker: &tracker,
            metrics: &metrics,
        };
        operator.work(&ready, inner.clone()).await
    };
    // Losing the lease ends the work in order: the record stays ours until the last call is done.
    let worked = async {
        let worked = worked.await;
        inner.cancel();
        worked
    };
    let held = inner.run_until_cancelled(async {
        let lost = candidate.hold().await;
        inner.cancel();
        lost
    });
    let (worked, lost) = tokio::join!(worked, held);
    let ended = lost.map_or(worked, |lost| Err(StartError::Leader(lost)));
    ready.set(false);
    metrics.set_leading(false);
    tracker.close();
    if tokio::time::timeout(LAST_CALLS, tracker.wait())
        .await
        .is_err()
    {
        tracing::warn!("some calls were still under way at the end");
    }
    candidate.resign().await;
    ended
}

/// What the work needs.
struct Operator<'a> {
    settings: &'a Settings,
    place: &'a Place,
    client: &'a Client,
    tracker: &'a TaskTracker,
    metrics: &'a Metrics,
}

impl Operator<'_> {
    /// Opens the record, the gateway and the watches, and looks after runs until `stop`.
    async fn work(&self, ready: &Readiness, stop: CancellationToken) -> Result<(), StartError> {
        let settings = self.settings;
        let door = self.door().await?;
        let closed = self.api_server().await?;
        let authority = Authority::open(
            Api::<Secret>::namespaced(self.client.clone(), &self.place.namespace),
            &settings.gateway.ca_secret,
            door.clone(),
            settings.controller.api_timeout,
            Timestamp::now(),
        );
        let authority = authority.await.map_err(StartError::Authority)?;
        let fresh = authority.clone();
        self.spawn(&stop, async move { fresh.keep_fresh(Timestamp::now).await });

        let _taken = take(&settings.record.file)?;
        let record = Record::open(&settings.record.file).await;
        let record = record.map_err(StartError::Record)?;
        self.prune(&record, &stop);
        let mut inputs = settings.inputs().map_err(StartError::Settings)?;
        inputs.always_refused = closed.iter().map(|(_, address)| address.ip()).collect();
        let sources = KubeSources::new(self.client.clone(), settings.controller.api_timeout);
        let canaries = Canaries::in_cluster(
            &InCluster {
                service: door.clone(),
                ports: settings
                    .gateway
                    .canaries
                    .iter()
                    .map(|canary| CanaryPort {
                        service: canary.port,
                        listen: canary.listen,
                    })
                    .collect(),
                closed,
                node: Some(NodeCanary {
                    port: KUBELET,
                    tolerated: settings.pods.node_access == NodeAccess::Warn,
                }),
                accepted: settings.policy.accept_unenforced,
            },
            self.tracker,
            &stop,
        );
        let gateway = Gateway {
            record: record.clone(),
            inputs: Inputs::new(inputs, Arc::new(sources)),
            canaries: canaries.map_err(StartError::Canaries)?,
            tracker: self.tracker.clone(),
        };
        let lives = Lives::default();
        let reviews = Reviews::new(
            Api::all(self.client.clone()),
            lives.clone(),
            settings.controller.api_timeout,
        );
        let listener = TcpListener::bind(settings.gateway.listen).await;
        let listener = listener.map_err(|source| StartError::Open {
            what: "gateway.listen".to_owned(),
            source,
        })?;
        let tls = authority.server_config().map_err(StartError::Authority)?;
        gateway.serve_tls(listener, tls, Arc::new(reviews), stop.clone());

        let first = door.first().copied();
        let first = first.ok_or_else(|| StartError::Cluster(self.without_address()))?;
        let address = SocketAddr::new(first, settings.gateway.port);
        let desk = Desk::new(DeskParts {
            client: self.client.clone(),
            gateway,
            lives,
            installation: settings.pods.clone(),
            door: Box::new(move || manifest::Gateway {
                address,
                ca: authority.bundle(),
            }),
            limits: settings.times,
            inputs_enabled: settings.inputs.enabled,
            namespaces: settings.namespaces().map_err(StartError::Settings)?,
            api_timeout: settings.controller.api_timeout,
            concurrency: settings.controller.concurrency.into(),
            metrics: self.metrics.clone(),
            instance: self.place.pod.clone(),
        });
        desk.work(stop, || {
            ready.set(true);
            tracing::info!("ready");
        })
        .await;
        record.close().await;
        Ok(())
    }

    fn spawn(&self, stop: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker
            .spawn(stop.clone().run_until_cancelled_owned(task));
    }

    /// The addresses of the gateway's Service.
    async fn door(&self) -> Result<Vec<IpAddr>, StartError> {
        let name = &self.settings.gateway.service;
        let services = Api::<Service>::namespaced(self.client.clone(), &self.place.namespace);
        let service = services.get(name);
        let service = self.read(&format!("service `{name}`"), service).await?;
        let spec = service.spec.unwrap_or_default();
        let addresses = spec.cluster_ips.unwrap_or_default();
        let addresses: Vec<IpAddr> = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
        if addresses.is_empty() {
            return Err(StartError::Cluster(self.without_address()));
        }
        Ok(addresses)
    }

    async fn read<T>(
        &self,
        what: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, StartError> {
        read(self.settings.controller.api_timeout, what, call).await
    }

    fn without_address(&self) -> String {
        let name = &self.settings.gateway.service;
        format!(
            "service `{name}` has no address: pods find the gateway by it, so it must not be headless"
        )
    }

    /// The API server by its Service and by its own addresses.
    async fn api_server(&self) -> Result<Vec<(String, SocketAddr)>, StartError> {
        let named = |address: SocketAddr| (format!("API server {address}"), address);
        let mut all: Vec<_> = in_cluster_address().into_iter().map(named).collect();
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), "default");
        let slice = slices.get("kubernetes");
        let slice = self
            .read("endpointslice `kubernetes` in namespace `default`", slice)
            .await?;
        let ports = slice.ports.unwrap_or_default();
        let ports = ports.iter().filter_map(|port| port.port);
        for port in ports.filter_map(|port| u16::try_from(port).ok()) {
            let endpoints = slice.endpoints.iter().flat_map(|one| &one.addresses);
            let addresses = endpoints.filter_map(|ip| ip.parse().ok());
            all.extend(addresses.map(|ip: IpAddr| named(SocketAddr::new(ip, port))));
        }
        if all.is_empty() {
            let message = "the API server's own addresses are not known: pods must not reach them";
            return Err(StartError::Cluster(message.to_owned()));
        }
        Ok(all)
    }

    fn prune(&self, record: &Record, stop: &CancellationToken) {
        let Some(retention) = self.settings.record.retention else {
            return;
        };
        let record = record.clone();
        self.spawn(stop, async move {
            loop {
                let before = Timestamp::now().checked_sub(retention);
                match record.prune(before.unwrap_or(Timestamp::MIN)).await {
                    Ok(0) => {}
                    Ok(runs) => {
                        tracing::info!(runs, "ended runs past their retention were removed");
                    }
                    Err(error) => {
                        let error = super::causes(&error);
                        tracing::warn!(%error, "the record could not be pruned");
                    }
                }
                tokio::time::sleep(PRUNE_EVERY).await;
            }
        });
    }
}

/// A client that tries a few times and not for minutes: each call has its own deadline where it is made.
async fn client() -> Result<Client, StartError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| StartError::Client(error);
    let mut config = Config::infer().await.map_err(|e| failed(Box::new(e)))?;
    config.default_retry = false;
    let policy = RetryPolicy::new(Duration::from_millis(100), Duration::from_secs(2), 3, true);
    let policy = policy.map_err(|e| failed(Box::new(e)))?;
    let builder = ClientBuilder::try_from(config).map_err(|e| failed(Box::new(e)))?;
    Ok(builder
        .with_layer(&BufferLayer::new(REQUESTS))
        .with_layer(&RetryLayer::new(policy))
        .build())
}

/// What the API server answers, within this time.
async fn read<T>(
    timeout: Duration,
    what: &str,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, StartError> {
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer.map_err(|source| StartError::Read {
            what: what.to_owned(),
            source,
        }),
        Err(_) => Err(StartError::Cluster(format!(
            "{what} could not be read: the API server does not answer"
        ))),
    }
}

async fn check_version(client: &Client, timeout: Duration) -> Result<(), StartError> {
    let version = client.apiserver_version();
    let version = read(timeout, "the version of the API server", version).await?;
    if is_new_enough(&version.major, &version.minor) {
        return Ok(());
    }
    let found = format!("{}.{}", version.major, version.minor);
    Err(StartError::Cluster(format!(
        "Kubernetes is {found}: sandboxrun needs 1.{OLDEST_MINOR} or newer, for sidecar containers"
    )))
}

/// P08. A minor version may have a sign behind it, such as `33+`.
fn is_new_enough(major: &str, minor: &str) -> bool {
    let number = |text: &str| -> Option<u32> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        digits.parse().ok()
    };
    match (number(major), number(minor)) {
        (Some(1), Some(minor)) => minor >= OLDEST_MINOR,
        (Some(major), Some(_)) => major > 1,
        (None, _) | (_, None) => false,
    }
}

/// Where pods find the API server.
fn in_cluster_address() -> Option<SocketAddr> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?;
    Some(SocketAddr::new(host.parse().ok()?, port.parse().ok()?))
}

/// Takes the record for this process alone, for as long as the file is held. SQLite would let two in.
fn take(record: &std::path::Path) -> Result<File, StartError> {
    let path = record.with_extension("lock");
    let open = |source| StartError::Open {
        what: format!("the lock {}", path.display()),
        source,
    };
    let file = File::create(&path).map_err(open)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(StartError::RecordTaken(record.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(open(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::oldest("1", "33", true)]
    #[case::with_a_sign("1", "34+", true)]
    #[case::older("1", "32", false)]
    #[case::next_major("2", "0", true)]
    #[case::nonsense("", "x", false)]
    fn p08_an_old_kubernetes_is_refused(
        #[case] major: &str,
        #[case] minor: &str,
        #[case] good: bool,
    ) {
        assert_eq!(is_new_enough(major, minor), good);
    }

    #[test]
    fn a_second_operator_on_the_same_record_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.db");
        let first = take(&path).unwrap();
        assert!(matches!(take(&path), Err(StartError::RecordTaken(_))));
        drop(first);
        take(&path).unwrap();
    }
}
