//! A run whose pod is made of real processes: provision, broker and exec, which share directories as containers share
//! volumes, in front of a gateway over TLS.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use demo_forge::{Change, Options, Visibility};
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use sandboxrun::api::wire::{NodeCanary, Summary};
use sandboxrun::api::{
    Attempt, Auth, ConnectorUse, CredentialProofPolicy, Event, Reason, RunKey, RunSpec,
};
use sandboxrun::audit::Record;
use sandboxrun::gateway::{
    Canaries, CanaryPort, Gateway, Identified, Identity, InCluster, Live, LiveParts,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::{World, branch, connector, key_ref, run};
use crate::world::{TICKET_TOKEN, lookup};

/// What a pod's token says at first. One that a search finds.
pub(crate) const FIRST_TOKEN: &str = "canary-pod-first-91c2";

/// Who is known, and by which token.
#[derive(Default)]
pub(crate) struct Door {
    known: Mutex<Option<(String, Identified)>>,
}

impl Door {
    pub(crate) fn open_for(&self, token: &str, who: Identified) {
        *self.known.lock().unwrap() = Some((token.to_owned(), who));
    }
}

impl Identity for Door {
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Identified> {
        let known = self.known.lock().unwrap();
        Box::pin(ready(match &*known {
            Some((of, who)) if of == token => who.clone(),
            Some((_, Identified::NotNow)) => Identified::NotNow,
            Some(_) | None => Identified::Nobody,
        }))
    }
}

/// The pod, its run and its gateway.
pub(crate) struct PodWorld {
    pub(crate) world: World,
    pub(crate) record: Record,
    pub(crate) key: RunKey,
    pub(crate) door: Arc<Door>,
    pub(crate) live: Arc<Live>,
    pub(crate) port: u16,
    spec: RunSpec,
    ca: String,
    tls: Arc<rustls::ServerConfig>,
    stop: CancellationToken,
    pub(crate) relay_port: u16,
    dir: tempfile::TempDir,
}

/// A port that nobody listens on: as good as reserved.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Canaries of this machine, which every process here can reach. `accepted`: the administrator says that this is so.
pub(crate) fn canaries(accepted: bool, node: Option<NodeCanary>) -> InCluster {
    let port = free_port();
    InCluster {
        service: vec!["127.0.0.1".parse().unwrap()],
        ports: vec![CanaryPort {
            service: port,
            listen: port,
        }],
        closed: Vec::new(),
        node,
        accepted,
    }
}

impl PodWorld {
    /// A run with the input `app` (two files) and the lookup `tickets`, for one minute.
    pub(crate) async fn new(what: &InCluster) -> Self {
        Self::with(what, |_| {}).await
    }

    pub(crate) async fn with(what: &InCluster, change: impl FnOnce(&mut RunSpec)) -> Self {
        let world = World::with(Options::new().ticket_token(TICKET_TOKEN)).await;
        let repo = world.forge.create("acme/app", Visibility::Private).unwrap();
        let files = [
            Change::file("a.txt", "one\n"),
            Change::file("b.txt", "two\n"),
        ];
        repo.commit("main", &files).unwrap();
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
        let mut spec = run(vec![], CredentialProofPolicy::Warn);
        spec.lookups = vec![lookup("tickets", &["/rest/api/2/issue/*"])];
        change(&mut spec);
        let dir = tempfile::tempdir().unwrap();
        for name in ["workspace", "sandbox", "baseline", "program"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("token"), FIRST_TOKEN).unwrap();
        let record = Record::open(&dir.path().join("record.sqlite"))
            .await
            .unwrap();
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
        let attempt = Attempt::FIRST;
        let events = vec![created, Event::AttemptDispatched { attempt }];
        record.append_all(&key, events).await.unwrap();
        let live = Arc::new(Live::new(parts(&world, &key, &spec).await));
        let (ca, tls) = certificates();
        let mut made = Self {
            world,
            record,
            key,
            door: Arc::default(),
            live: Arc::clone(&live),
            port: free_port(),
            spec,
            ca,
            tls,
            stop: CancellationToken::new(),
            relay_port: free_port(),
            dir,
        };
        made.door.open_for(FIRST_TOKEN, Identified::Run(live));
        made.serve(what).await;
        made
    }

    /// Ends the gateway, and everything that is connected to it.
    pub(crate) async fn stop_gateway(&mut self) {
        self.stop.cancel();
        let at = ("127.0.0.1", self.port);
        until("the gateway is gone", async || {
            tokio::net::TcpStream::connect(at).await.is_err()
        })
        .await;
        // What is still held was held by the server that ended.
        until("its connections are gone", async || {
            self.live.watch().borrow().grant_streams == 0
        })
        .await;
    }

    /// Serves at the same address (again).
    pub(crate) async fn serve(&mut self, what: &InCluster) {
        self.stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let gateway = Gateway {
            record: self.record.clone(),
            inputs: self.world.inputs.clone(),
            canaries: Canaries::in_cluster(what, &tracker, &self.stop).unwrap(),
            tracker,
        };
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let identity = Arc::clone(&self.door) as Arc<dyn Identity>;
        gateway.serve_tls(listener, Arc::clone(&self.tls), identity, self.stop.clone());
    }

    /// Makes the run's [`Live`] again, as an operator does that has restarted.
    pub(crate) async fn resume(&mut self) {
        let entries = self.record.entries(&self.key.uid).await.unwrap();
        let events: Vec<(Duration, Event)> = entries
            .iter()
            .map(|entry| {
                let at: Timestamp = entry.at.parse().unwrap();
                let ago = Timestamp::now().duration_since(at);
                let ago = Duration::try_from(ago).unwrap_or_default();
                (ago, entry.event().unwrap())
            })
            .collect();
        let events = events.iter().map(|(ago, event)| (*ago, event));
        let parts = parts(&self.world, &self.key, &self.spec).await;
        self.live = Arc::new(Live::resumed(parts, events));
        let who = Identified::Run(Arc::clone(&self.live));
        self.door.open_for(FIRST_TOKEN, who);
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn program(&self, what: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxrun-pod"));
        command.arg(what).stdin(Stdio::null());
        command.arg("--gateway");
        command.arg(format!("https://127.0.0.1:{}", self.port));
        command.arg("--token-file").arg(self.at("token"));
        command.env("SANDBOXRUN_GATEWAY_CA", &self.ca);
        for name in ["workspace", "sandbox", "baseline"] {
            command.arg(format!("--{name}")).arg(self.at(name));
        }
        command
            .arg("--termination-log")
            .arg(self.at(&format!("{what}.message")));
        command
    }

    /// `provision` as the pod's manifest has it.
    pub(crate) fn provision_command(&self) -> Command {
        let mut command = self.program("provision");
        command
            .arg("--install")
            .arg(self.at("program/sandboxrun-pod"));
        command.args(["--proof-millis", "1500"]);
        command
    }

    /// Provisions, which must succeed.
    pub(crate) async fn provision(&self) {
        let mut command = self.provision_command();
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = output.await.unwrap();
        assert!(output.status.success(), "{}", words(&output));
    }

    /// `broker` as the pod's manifest has it, proving every `millis`.
    pub(crate) async fn broker(&self, millis: u64) -> Broker {
        let mut command = self.program("broker");
        command
            .arg("--exec-socket")
            .arg(self.at("program/broker.sock"));
        command.args(["--relay-port", &self.relay_port.to_string()]);
        command.args(["--repeat-millis", &millis.to_string()]);
        command.args(["--agent-wait-secs", "2", "--report-secs", "20"]);
        let broker = Broker(Some(command.spawn().unwrap()));
        let at = ("127.0.0.1", self.relay_port);
        until("the relay listens", async || {
            tokio::net::TcpStream::connect(at).await.is_ok()
        })
        .await;
        broker
    }

    /// `exec`, by the program that provision installed, with a shell script as the agent.
    pub(crate) fn exec(&self, script: &str) -> Exec {
        let mut command = Command::new(self.at("program/sandboxrun-pod"));
        command.arg("exec").arg("--gateway");
        command.arg(format!("unix:{}", self.at("program/broker.sock").display()));
        command.arg("--workdir").arg(self.at("workspace/app"));
        command.args(["--grace-millis", "500", "--gateway-millis", "2000"]);
        command.args(["--", "/bin/sh", "-c", script]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Exec(Some(command.spawn().unwrap()))
    }

    /// `exec` with an agent that has said `up` into a file and waits.
    pub(crate) async fn waiting(&self) -> Exec {
        let up = self.at("up");
        let script = format!(
            "echo changed >> a.txt; echo $$ >> '{}'; while :; do sleep 0.05; done",
            up.display()
        );
        let exec = self.exec(&script);
        until("the agent runs", async || up.exists()).await;
        exec
    }

    /// How often an agent of [`Self::waiting`] was started.
    pub(crate) fn starts(&self) -> usize {
        std::fs::read_to_string(self.at("up")).map_or(0, |text| text.lines().count())
    }

    pub(crate) async fn events(&self) -> Vec<Event> {
        self.record.events(&self.key.uid).await.unwrap()
    }

    pub(crate) async fn has(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.events().await.iter().any(wanted)
    }

    /// Why the agent was asked to stop, by the record.
    pub(crate) async fn stopping(&self) -> Vec<Reason> {
        let events = self.events().await;
        let reason = |event: &Event| match event {
            Event::AgentStopping { reason, .. } => Some(*reason),
            _ => None,
        };
        events.iter().filter_map(reason).collect()
    }

    /// The broker's termination message.
    pub(crate) fn message(&self) -> Option<Summary> {
        let text = std::fs::read_to_string(self.at("broker.message")).ok()?;
        assert!(text.len() <= 2048, "{} bytes", text.len());
        Some(Summary::parse(&text).expect("a message that can be read"))
    }

    /// A client that has the gateway's CA and no token.
    pub(crate) fn stranger(&self) -> reqwest::Client {
        let ca = reqwest::Certificate::from_pem(self.ca.as_bytes()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]).no_proxy();
        client.build().unwrap()
    }
}

impl Drop for PodWorld {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A running broker; killed with the test.
pub(crate) struct Broker(Option<Child>);

impl Broker {
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    /// What the kubelet does when the agent's container has ended.
    pub(crate) fn term(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) async fn ended(mut self) -> Option<i32> {
        let mut child = self.0.take().unwrap();
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap());
        status.await.unwrap().code()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A running exec; ended with the test.
pub(crate) struct Exec(Option<Child>);

impl Exec {
    pub(crate) async fn ended(mut self) -> Output {
        let child = self.0.take().unwrap();
        let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
        output.await.unwrap()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // SIGTERM, so that it ends its agent as well.
            let pid = rustix::process::Pid::from_raw(child.id().try_into().unwrap()).unwrap();
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            drop(child.wait());
        }
    }
}

pub(crate) fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits for a condition; fails after a minute.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_mins(1), waited).await;
    assert!(done.is_ok(), "in vain: {what}");
}

async fn parts(world: &World, key: &RunKey, spec: &RunSpec) -> LiveParts {
    let input = world.one(branch("main")).await.unwrap();
    let pack = world.inputs.pack(&world.namespace, &input).await.unwrap();
    LiveParts {
        key: key.clone(),
        attempt: Attempt::FIRST,
        spec: Arc::new(spec.clone()),
        resolved: vec![input],
        packs: vec![pack],
    }
}

/// A CA in PEM, and a server with a certificate of it for 127.0.0.1.
fn certificates() -> (String, Arc<rustls::ServerConfig>) {
    let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::CertifiedIssuer::self_signed(ca, key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (issuer.pem(), Arc::new(config))
}

/// Every file below a directory, as text.
pub(crate) fn texts(dir: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.push_str(&texts(&path)),
            Ok(kind) if kind.is_file() => {
                all.push_str(&String::from_utf8_lossy(&std::fs::read(&path).unwrap()));
            }
            _ => {}
        }
    }
    all
}
