//! An API server over etcd, and nothing else of a cluster: what kubelets, schedulers and other controllers would do, the
//! tests do. One for the whole test program; it ends with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

/// Where the operator's own objects are.
pub(crate) const OPERATOR: &str = "sandboxrun-system";

pub(crate) struct Cluster {
    _dir: tempfile::TempDir,
    kubeconfig: PathBuf,
    _programs: Vec<Program>,
}

/// A program that ends when this process does, however that ends: its shell waits for the end of a pipe.
struct Program(Child);

impl Program {
    fn start(program: &Path, log: &Path, args: &[String]) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let script = "\"$@\" </dev/null & pid=$!; cat >/dev/null; kill $pid";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _status = self.0.wait();
    }
}

/// A port that nobody has. Below those that the system gives to clients, which would take one that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % 100).unwrap() * 100;
    loop {
        let port = 20_000 + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if std::net::TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

fn binaries() -> PathBuf {
    let set = std::env::var_os("SANDBOXRUN_CLUSTER_BIN").map(PathBuf::from);
    let cache = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        cache.unwrap().join("sandboxrun-cluster/bin")
    };
    let bin = set.unwrap_or_else(cache);
    assert!(
        bin.join("kube-apiserver").exists() && bin.join("etcd").exists(),
        "{} has no etcd and kube-apiserver: run e2e/cluster/build, or set SANDBOXRUN_CLUSTER_BIN",
        bin.display()
    );
    bin
}

static CLUSTER: OnceLock<Cluster> = OnceLock::new();

/// The way to it.
pub(crate) fn kubeconfig() -> &'static Path {
    &CLUSTER.get_or_init(Cluster::start).kubeconfig
}

impl Cluster {
    /// The one of this process.
    pub(crate) async fn get() -> &'static Self {
        static READY: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        let cluster = tokio::task::spawn_blocking(|| CLUSTER.get_or_init(Self::start));
        let cluster = cluster.await.unwrap();
        READY.get_or_init(|| cluster.fill()).await;
        cluster
    }

    fn start() -> Self {
        let bin = binaries();
        let dir = tempfile::Builder::new()
            .prefix("sandboxrun-api-")
            .tempdir()
            .unwrap();
        let at = |name: &str| dir.path().join(name);
        let text = |path: PathBuf| path.display().to_string();
        let (etcd, peers, port) = (free_port(), free_port(), free_port());
        let local = |port: u16| format!("http://127.0.0.1:{port}");
        let etcd_args = [
            format!("--data-dir={}", text(at("etcd"))),
            format!("--listen-client-urls={}", local(etcd)),
            format!("--advertise-client-urls={}", local(etcd)),
            format!("--listen-peer-urls={}", local(peers)),
            format!("--initial-advertise-peer-urls={}", local(peers)),
            format!("--initial-cluster=default={}", local(peers)),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=error".to_owned(),
        ];
        let key = at("sa.key");
        let pair =
            rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048);
        std::fs::write(&key, pair.unwrap().serialize_pem()).unwrap();
        std::fs::write(at("tokens"), "admin,admin,1,system:masters\n").unwrap();
        let api_args = [
            format!("--etcd-servers={}", local(etcd)),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            // Its endpoints must not be loopback addresses; nobody goes there.
            "--advertise-address=192.0.2.1".to_owned(),
            format!("--cert-dir={}", text(at("certs"))),
            format!("--token-auth-file={}", text(at("tokens"))),
            "--authorization-mode=RBAC".to_owned(),
            // What a webhook does to pods, without a webhook.
            "--feature-gates=MutatingAdmissionPolicy=true".to_owned(),
            "--runtime-config=admissionregistration.k8s.io/v1beta1=true".to_owned(),
            // A Service's address is one of this machine's own, so that what it leads to answers.
            "--service-cluster-ip-range=127.96.0.0/16".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", text(key.clone())),
            format!("--service-account-key-file={}", text(key)),
        ];
        let programs = vec![
            Program::start(&bin.join("etcd"), &at("etcd.log"), &etcd_args),
            Program::start(&bin.join("kube-apiserver"), &at("api.log"), &api_args),
        ];
        let kubeconfig = at("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": "admin"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self {
            _dir: dir,
            kubeconfig,
            _programs: programs,
        }
    }

    /// Waits for the API server, and makes what an installation has.
    async fn fill(&self) {
        let client = self.client().await;
        let began = Instant::now();
        // The last thing that it does at its start is to make itself known.
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
        while slices.get("kubernetes").await.is_err() {
            let log = std::fs::read_to_string(self.kubeconfig.with_file_name("api.log"));
            let log = log.unwrap_or_default();
            assert!(
                began.elapsed() < Duration::from_mins(2),
                "no API server:\n{log}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
        for name in ["sandboxruns.sandboxrun.dev", "connectors.sandboxrun.dev"] {
            let text = std::fs::read_to_string(crds.join(format!("{name}.yaml"))).unwrap();
            let crd: Value = serde_saphyr::from_str(&text).unwrap();
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &crd_resource());
            let patch = PatchParams::apply("test").force();
            api.patch(name, &patch, &Patch::Apply(&crd)).await.unwrap();
        }
        self.namespace(OPERATOR).await;
    }

    /// A client of the calling test's own runtime.
    pub(crate) async fn client(&self) -> Client {
        let read = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(read, &options)
            .await
            .unwrap();
        Client::try_from(config).unwrap()
    }

    /// A namespace with the service account that a controller would make in it.
    pub(crate) async fn namespace(&self, name: &str) {
        let client = self.client().await;
        for (kind, object) in [
            ("Namespace", json!({"metadata": {"name": name}})),
            (
                "ServiceAccount",
                json!({"metadata": {"name": "default", "namespace": name}}),
            ),
        ] {
            let resource = ApiResource {
                group: String::new(),
                version: "v1".into(),
                api_version: "v1".into(),
                kind: kind.into(),
                plural: format!("{}s", kind.to_lowercase()),
            };
            let api: Api<DynamicObject> = if kind == "Namespace" {
                Api::all_with(client.clone(), &resource)
            } else {
                Api::namespaced_with(client.clone(), name, &resource)
            };
            let object: DynamicObject = serde_json::from_value(object).unwrap();
            api.create(&PostParams::default(), &object).await.unwrap();
        }
    }
}

pub(crate) fn crd_resource() -> ApiResource {
    resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    )
}

pub(crate) fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    }
}
