//! A gateway with one run, over TLS and on a socket, in front of a forge.

use std::sync::Arc;
use std::time::Duration;

use demo_forge::Options;
use futures::future::{BoxFuture, ready};
use sandboxrun::api::{
    Attempt, Auth, Call, ConnectorUse, CredentialProofPolicy, EgressHost, Event, Lookup,
    PathPattern, RunKey,
};
use sandboxrun::audit::Record;
use sandboxrun::gateway::{Canaries, Gateway, Identified, Identity, Live, LiveParts, Role};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::{World, connector, key_ref, run};

/// The ticket API's token: one that a search finds.
pub(crate) const TICKET_TOKEN: &str = "canary-ticket-5b1f2a9c";
/// The token of the run's pod.
const POD_TOKEN: &str = "canary-pod-77aa";

pub(crate) struct GatewayWorld {
    pub(crate) world: World,
    pub(crate) client: reqwest::Client,
    gateway: Gateway,
    key: RunKey,
    stop: CancellationToken,
    port: u16,
    roots: rustls::RootCertStore,
    dir: tempfile::TempDir,
}

/// Knows one token.
struct OneRun(Arc<Live>);

impl Identity for OneRun {
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Identified> {
        Box::pin(ready(if token == POD_TOKEN {
            Identified::Run(Arc::clone(&self.0))
        } else {
            Identified::Nobody
        }))
    }
}

/// A lookup through the connector `tracker`, GET and HEAD.
pub(crate) fn lookup(name: &str, paths: &[&str]) -> Lookup {
    Lookup {
        name: name.parse().unwrap(),
        connector: "tracker".parse().unwrap(),
        methods: vec!["GET".into(), "HEAD".into()],
        paths: paths.iter().map(|path| PathPattern::new(path)).collect(),
        max_calls: None,
        max_bytes: None,
        per_minute: None,
        idle_timeout: Duration::from_mins(1),
    }
}

impl GatewayWorld {
    pub(crate) async fn new(lookups: Vec<Lookup>, egress: Vec<EgressHost>) -> Self {
        let world = World::with(Options::new().ticket_token(TICKET_TOKEN)).await;
        let origin = world.forge.origin();
        world
            .manifests
            .add_secret("ticket-token", TICKET_TOKEN.as_bytes(), &origin);
        let auth = Auth::Header {
            name: "authorization".into(),
            prefix: "Bearer ".into(),
            secret: key_ref("ticket-token"),
        };
        let mut tracker = connector("tracker", &origin, auth);
        tracker.uses = vec![ConnectorUse::Lookups];
        world.manifests.add_connector(tracker);
        let dir = tempfile::tempdir().unwrap();
        let record = Record::open(&dir.path().join("record.sqlite"))
            .await
            .unwrap();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let canaries = Canaries::listen(&tasks, &stop).await.unwrap();
        let gateway = Gateway {
            record,
            inputs: world.inputs.clone(),
            canaries,
            tracker: tasks,
        };
        let key = RunKey {
            namespace: world.namespace.clone(),
            name: "test".parse().unwrap(),
            uid: "0a-1".parse().unwrap(),
        };
        let created = Event::RunCreated {
            digest: "00".into(),
            rerun: String::new(),
            writer: "test".into(),
        };
        let events = vec![
            created,
            Event::AttemptDispatched {
                attempt: Attempt::FIRST,
            },
        ];
        gateway.record.append_all(&key, events).await.unwrap();
        let roots = rustls::RootCertStore::empty();
        let client = reqwest::Client::new();
        let mut made = Self {
            world,
            client,
            gateway,
            key,
            stop,
            port: 0,
            roots,
            dir,
        };
        made.restart(lookups, egress).await;
        made
    }

    /// Serves the run anew, with other rules.
    pub(crate) async fn restart(&mut self, lookups: Vec<Lookup>, egress: Vec<EgressHost>) {
        let mut spec = run(vec![], CredentialProofPolicy::Warn);
        (spec.lookups, spec.egress) = (lookups, egress);
        let live = Arc::new(Live::new(LiveParts {
            key: self.key.clone(),
            attempt: Attempt::FIRST,
            spec: Arc::new(spec),
            resolved: vec![],
            packs: vec![],
        }));
        let socket = self.dir.path().join("agent.sock");
        drop(std::fs::remove_file(&socket));
        let unix = UnixListener::bind(socket).unwrap();
        self.gateway
            .serve(unix, Role::Agent, Arc::clone(&live), self.stop.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        self.gateway.serve_tls(
            listener,
            Arc::new(tls),
            Arc::new(OneRun(live)),
            self.stop.clone(),
        );
        let ca = reqwest::Certificate::from_der(made.cert.der()).unwrap();
        self.client = reqwest::Client::builder()
            .tls_certs_only([ca])
            .no_proxy()
            .build()
            .unwrap();
        self.roots.add(made.cert.der().clone()).unwrap();
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// A request of the run's pod.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method.parse().unwrap(), self.url(path));
        request.header(sandboxrun::api::wire::TOKEN_HEADER, POD_TOKEN)
    }

    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.request("GET", path)
    }

    /// A connection to the agent's socket.
    pub(crate) async fn socket(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("agent.sock"))
            .await
            .unwrap()
    }

    /// A TLS handshake for this name through a tunnel.
    pub(crate) async fn tls_for(&self, name: &str, tunnel: UnixStream) -> std::io::Result<()> {
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(name, tunnel).await.map(drop)
    }

    pub(crate) async fn events(&self) -> Vec<Event> {
        self.gateway.record.events(&self.key.uid).await.unwrap()
    }

    pub(crate) async fn calls(&self) -> Vec<Call> {
        let call = |event| {
            if let Event::Call(call) = event {
                Some(call)
            } else {
                None
            }
        };
        self.events().await.into_iter().filter_map(call).collect()
    }

    /// The calls, once they are what is waited for: a last line is written when its answer has ended.
    pub(crate) async fn calls_when(&self, ready: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        let waited = async {
            loop {
                let calls = self.calls().await;
                if ready(&calls) {
                    return calls;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), waited)
            .await
            .expect("the calls never came")
    }
}

impl Drop for GatewayWorld {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
