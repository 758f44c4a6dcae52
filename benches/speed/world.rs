//! A forge with repositories, stock git as its other client, and our host side over it.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use demo_forge::{Client, Forge, Options, Repo, Visibility};
use futures::future::{BoxFuture, ready};
use sandboxrun::api::{
    Agent, Attempt, Auth, ConnectorName, ConnectorType, ConnectorUse, CredentialProofPolicy, Event,
    Input, Lookup, Namespace, OnDrift, ParsedConnector, PathPattern, Placement, RefName,
    RefSelector, Repository, RunKey, RunSpec, SecretKeyRef,
};
use sandboxrun::audit::Record;
use sandboxrun::gateway::{Canaries, Gateway, Live, LiveParts, Role};
use sandboxrun::inputs::{
    Inputs, ORIGIN_ANNOTATION, PackLease, ResolvedInput, SecretBytes, SecretObject, Settings,
    SourceError, Sources,
};
use tokio::net::UnixListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What every measurement returns. Its errors are for the person who runs it.
pub(crate) type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// What the ticket API wants to see.
pub(crate) const TICKET_TOKEN: &str = "ticket-token-of-the-bench";

/// A forge, its clients, and the host side.
pub(crate) struct World {
    pub(crate) forge: Forge,
    pub(crate) git: Client,
    /// Where files are made, for us and for the rival: in memory if there is room, since a disk's own time hides both.
    pub(crate) work: tempfile::TempDir,
    /// Where what must survive is kept: record and state. Always on the disk; everybody may read it.
    pub(crate) disk: tempfile::TempDir,
    /// The pod program as it ships, if `make bench` built it.
    pub(crate) pod: PathBuf,
    pub(crate) gateway: Gateway,
    /// One round of each instead of many.
    pub(crate) quick: bool,
    stop: CancellationToken,
    number: AtomicU64,
}

/// The directories of one pod.
pub(crate) struct Volumes {
    pub(crate) root: PathBuf,
    pub(crate) socket: PathBuf,
}

/// A run that has been resolved, with its sockets.
pub(crate) struct Run {
    pub(crate) live: Arc<Live>,
    pub(crate) volumes: Volumes,
}

impl World {
    /// `files`: where files are made.
    pub(crate) async fn new(quick: bool, files: &Path) -> Done<Self> {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let prefix = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("speed-");
            builder
        };
        let (work, disk) = (prefix().tempdir_in(files)?, prefix().tempdir()?);
        std::fs::set_permissions(disk.path(), std::fs::Permissions::from_mode(0o755))?;
        let options = Options::new()
            .ticket_token(TICKET_TOKEN)
            .root(work.path().join("forge"));
        let forge = Forge::start(options).await?;
        let git = Client::new(&forge)?.deadline(Duration::from_mins(10));
        forge.write_ca(&disk.path().join("ca.pem"))?;
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let gateway = Gateway {
            record: Record::open(&disk.path().join("record.db")).await?,
            inputs: inputs(&forge, &work.path().join("mirror"))?,
            canaries: Canaries::listen(&tracker, &stop).await?,
            tracker,
        };
        let built = std::env::var_os("SANDBOXRUN_POD_PROGRAM").map(PathBuf::from);
        let pod = built.unwrap_or_else(|| env!("CARGO_BIN_EXE_sandboxrun-pod").into());
        Ok(Self {
            forge,
            git,
            work,
            disk,
            pod: pod.canonicalize()?,
            gateway,
            quick,
            stop,
            number: AtomicU64::new(0),
        })
    }

    /// A public repository: both sides get it without a credential.
    pub(crate) fn repository(&self, name: &str) -> Done<Repo> {
        Ok(self.forge.create(name, Visibility::Public)?)
    }

    /// How many rounds to take.
    pub(crate) fn rounds(&self, usual: usize) -> usize {
        if self.quick { 1 } else { usual }
    }

    /// A file or directory that is not there yet.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        self.work.path().join(format!("{name}-{number}"))
    }

    /// The same gateway over a mirror that holds nothing.
    pub(crate) fn cold(&self) -> Done<Gateway> {
        Ok(Gateway {
            inputs: inputs(&self.forge, &self.fresh("mirror"))?,
            ..self.gateway.clone()
        })
    }

    /// From the wish to a run whose packs are there and whose socket is served: what the host side does.
    pub(crate) async fn begin(&self, gateway: &Gateway, spec: RunSpec, role: Role) -> Done<Run> {
        let namespace: Namespace = "bench".parse()?;
        let resolved = gateway.inputs.resolve(&namespace, &spec, &|_| {}).await;
        let resolved = resolved.map_err(|failure| failure.message)?;
        let mut packs = Vec::new();
        for input in &resolved {
            let pack = gateway.inputs.pack(&namespace, input).await;
            packs.push(pack.map_err(|failure| failure.message)?);
        }
        self.dispatch(gateway, spec, resolved, packs, role).await
    }

    /// A run of its own over inputs that are resolved.
    pub(crate) async fn dispatch(
        &self,
        gateway: &Gateway,
        spec: RunSpec,
        resolved: Vec<ResolvedInput>,
        packs: Vec<PackLease>,
        role: Role,
    ) -> Done<Run> {
        let attempt = Attempt::FIRST;
        let key = fresh_key()?;
        let mut events = vec![created(), Event::AttemptDispatched { attempt }];
        events.extend(resolved.iter().map(|input| input.event(attempt)));
        events.push(Event::PodCreating {
            attempt,
            pod: key.uid.to_string(),
        });
        gateway.record.append_all(&key, events).await?;
        let live = Arc::new(Live::new(LiveParts {
            key,
            attempt,
            spec: spec.into(),
            resolved,
            packs,
        }));
        let volumes = Volumes::make(self.fresh("pod"))?;
        self.listen(gateway, &volumes.socket, role, &live)?;
        Ok(Run { live, volumes })
    }

    /// Serves a run on a socket until the end.
    pub(crate) fn listen(
        &self,
        gateway: &Gateway,
        socket: &Path,
        role: Role,
        live: &Arc<Live>,
    ) -> Done<()> {
        let listener = UnixListener::bind(socket)?;
        gateway.serve(listener, role, Arc::clone(live), self.stop.clone());
        Ok(())
    }

    /// Stock git, which must succeed. Returns how long it took and what it printed.
    pub(crate) async fn git(&self, dir: &Path, args: &[&str]) -> Done<(Duration, String)> {
        let start = Instant::now();
        let outcome = self.git.git(dir, args).await?;
        let took = start.elapsed();
        if outcome.success() {
            Ok((took, outcome.stdout))
        } else {
            Err(format!("git {}: {}", args.join(" "), outcome.stderr).into())
        }
    }

    /// The rival of provision.
    pub(crate) async fn clone_shallow(&self, name: &str) -> Done<Duration> {
        let (url, to) = (self.forge.url(name), self.fresh("clone"));
        let target = to.display().to_string();
        let args = ["clone", "--quiet", "--depth", "1", &url, &target];
        let (took, _) = self.git(Path::new("/"), &args).await?;
        std::fs::remove_dir_all(to)?;
        Ok(took)
    }

    /// The pod program as a process.
    pub(crate) async fn run_pod(&self, what: &str, volumes: &Volumes) -> Done<()> {
        let mut command = Command::new(&self.pod);
        command.arg(what).arg("--gateway").arg(volumes.gateway());
        for name in Volumes::NAMES {
            command
                .arg(format!("--{name}"))
                .arg(volumes.root.join(name));
        }
        succeed(&mut command).await
    }

    /// Stops the listeners and waits for what is under way.
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.gateway.tracker.close();
        self.gateway.tracker.wait().await;
        self.gateway.record.close().await;
    }
}

impl Volumes {
    const NAMES: [&str; 3] = ["workspace", "sandbox", "baseline"];

    fn make(root: PathBuf) -> Done<Self> {
        std::fs::create_dir(&root)?;
        for name in Self::NAMES {
            std::fs::create_dir(root.join(name))?;
        }
        let socket = root.join("gateway.sock");
        Ok(Self { root, socket })
    }

    /// How the pod program is told where the gateway is.
    pub(crate) fn gateway(&self) -> String {
        format!("unix:{}", self.socket.display())
    }
}

/// Runs a program that must succeed.
pub(crate) async fn succeed(command: &mut Command) -> Done<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    if output.status.success() {
        return Ok(());
    }
    let (program, said) = (
        command.as_std().get_program().display(),
        String::from_utf8_lossy(&output.stderr),
    );
    Err(format!("{program}: {}: {}", output.status, said.trim()).into())
}

/// A run with this branch of a repository, and `true`.
pub(crate) fn spec(repository: Option<&str>) -> Done<RunSpec> {
    let input = |path: &str| -> Done<Input> {
        Ok(Input {
            name: "app".parse()?,
            repository: Repository::BelowConnector(path.to_owned()),
            connector: Some("forge".parse()?),
            selector: RefSelector::Branch(RefName::branch("main")?),
            path: "app".to_owned(),
            depth: Some(1),
            read_only: false,
            fetch: true,
        })
    };
    Ok(RunSpec {
        inputs: repository.map(input).transpose()?.into_iter().collect(),
        agent: Agent {
            image: "none".to_owned(),
            command: vec!["true".to_owned()],
            env: Vec::new(),
            working_dir: "/workspace".to_owned(),
            scratch: Vec::new(),
            prompt: None,
            context: Vec::new(),
            timeout: Duration::from_mins(10),
            stall_timeout: None,
            output_schema: None,
        },
        lookups: vec![Lookup {
            name: "tickets".parse()?,
            connector: "tracker".parse()?,
            methods: vec!["GET".to_owned()],
            paths: vec![PathPattern::new("/rest/api/2/issue/*")],
            max_calls: None,
            max_bytes: None,
            per_minute: None,
            idle_timeout: Duration::from_mins(1),
        }],
        egress: Vec::new(),
        on_drift: OnDrift::Report,
        credential_proof: CredentialProofPolicy::Off,
        runtime_class_name: None,
        placement: Placement::default(),
    })
}

/// A run's identity that nobody has.
pub(crate) fn fresh_key() -> Done<RunKey> {
    Ok(RunKey {
        namespace: "bench".parse()?,
        name: "speed".parse()?,
        uid: uuid::Uuid::new_v4().to_string().parse()?,
    })
}

/// The first event of a run.
pub(crate) fn created() -> Event {
    Event::RunCreated {
        digest: "0".repeat(64),
        rerun: String::new(),
        writer: "speed".to_owned(),
    }
}

/// The host side over an empty state directory.
pub(crate) fn inputs(forge: &Forge, state_dir: &Path) -> Done<Inputs> {
    let mut settings = Settings::new(state_dir);
    let exception = format!("127.0.0.1=127.0.0.0/8:{}", forge.addr().port());
    settings.address_exceptions.push(exception.parse()?);
    settings.fetch.helper_program = env!("CARGO_BIN_EXE_sandboxrun").into();
    Ok(Inputs::new(settings, Arc::new(Objects::of(forge)?)))
}

/// Connectors and Secrets, in memory.
struct Objects {
    connectors: BTreeMap<ConnectorName, ParsedConnector>,
    secrets: BTreeMap<String, SecretObject>,
}

impl Objects {
    fn of(forge: &Forge) -> Done<Self> {
        let origin = forge.origin();
        let connector = |name: &str, auth: Auth| -> Done<(ConnectorName, ParsedConnector)> {
            let name: ConnectorName = name.parse()?;
            let connector = ParsedConnector {
                name: name.clone(),
                kind: ConnectorType::Git,
                origin: origin.parse()?,
                auth,
                ca: Some(key("ca")),
                uses: vec![ConnectorUse::Inputs, ConnectorUse::Lookups],
                allowed_repositories: Vec::new(),
                allowed_methods: Vec::new(),
                allowed_paths: Vec::new(),
            };
            Ok((name, connector))
        };
        let secret = |name: &str, value: &str| {
            let value = SecretBytes::new(value.as_bytes().to_vec());
            let object = SecretObject {
                annotations: BTreeMap::from([(ORIGIN_ANNOTATION.to_owned(), origin.clone())]),
                data: BTreeMap::from([("value".to_owned(), value)]),
            };
            (name.to_owned(), object)
        };
        let bearer = Auth::Header {
            name: "Authorization".to_owned(),
            prefix: "Bearer ".to_owned(),
            secret: key("ticket"),
        };
        Ok(Self {
            connectors: BTreeMap::from([
                connector("forge", Auth::Anonymous)?,
                connector("tracker", bearer)?,
            ]),
            secrets: BTreeMap::from([secret("ca", forge.ca_pem()), secret("ticket", TICKET_TOKEN)]),
        })
    }
}

fn key(secret: &str) -> SecretKeyRef {
    SecretKeyRef {
        name: secret.to_owned(),
        key: "value".to_owned(),
    }
}

impl Sources for Objects {
    fn connector<'a>(
        &'a self,
        _: &'a Namespace,
        name: &'a ConnectorName,
    ) -> BoxFuture<'a, Result<Option<ParsedConnector>, SourceError>> {
        Box::pin(ready(Ok(self.connectors.get(name).cloned())))
    }

    fn secret<'a>(
        &'a self,
        _: &'a Namespace,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretObject>, SourceError>> {
        Box::pin(ready(Ok(self.secrets.get(name).cloned())))
    }
}
