//! A forge, connectors and Secrets in memory, and an [`Inputs`] over them whose waits are short.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use demo_forge::{Forge, Options};
use futures::future::{BoxFuture, ready};
use sandboxrun::api::{
    Agent, Auth, ConnectorName, ConnectorType, ConnectorUse, CredentialProofPolicy, Failure, Input,
    Namespace, OnDrift, ParsedConnector, Placement, RefName, RefSelector, Repository, RunSpec,
    SecretKeyRef,
};
use sandboxrun::inputs::{
    Inputs, Names, ORIGIN_ANNOTATION, Progress, ResolvedInput, SecretBytes, SecretObject, Settings,
    SourceError, Sources, SystemNames,
};

/// Every token of these tests is one that a search finds.
pub(crate) const READ_TOKEN: &str = "canary-read-d41d8cd98f";
pub(crate) const WRITE_TOKEN: &str = "canary-write-9f3c2b7a11";

/// Connectors and Secrets as a local run has them: in memory, by name.
#[derive(Default)]
pub(crate) struct Manifests {
    connectors: Mutex<BTreeMap<ConnectorName, ParsedConnector>>,
    secrets: Mutex<BTreeMap<String, SecretObject>>,
}

impl Manifests {
    pub(crate) fn add_connector(&self, connector: ParsedConnector) {
        self.connectors
            .lock()
            .unwrap()
            .insert(connector.name.clone(), connector);
    }

    /// A Secret with one key, `value`, that may go to `origin`.
    pub(crate) fn add_secret(&self, name: &str, value: &[u8], origin: &str) {
        let object = SecretObject {
            annotations: BTreeMap::from([(ORIGIN_ANNOTATION.to_owned(), origin.to_owned())]),
            data: BTreeMap::from([("value".to_owned(), SecretBytes::new(value.to_vec()))]),
        };
        self.secrets.lock().unwrap().insert(name.to_owned(), object);
    }
}

impl Sources for Manifests {
    fn connector<'a>(
        &'a self,
        _: &'a Namespace,
        name: &'a ConnectorName,
    ) -> BoxFuture<'a, Result<Option<ParsedConnector>, SourceError>> {
        Box::pin(ready(Ok(self
            .connectors
            .lock()
            .unwrap()
            .get(name)
            .cloned())))
    }

    fn secret<'a>(
        &'a self,
        _: &'a Namespace,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<SecretObject>, SourceError>> {
        Box::pin(ready(Ok(self.secrets.lock().unwrap().get(name).cloned())))
    }
}

/// Names that lead where a test says.
pub(crate) struct Hosts(pub(crate) BTreeMap<&'static str, Vec<IpAddr>>);

impl Names for Hosts {
    fn lookup<'a>(&'a self, host: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        let found = self.0.get(host).cloned();
        Box::pin(ready(
            found.ok_or_else(|| std::io::Error::other("no such host")),
        ))
    }
}

/// A forge and the host side over it. Namespace `team-a`, connectors `forge` (reads), `forge-write`, `public`
/// (anonymous, with the forge's CA).
pub(crate) struct World {
    pub(crate) forge: Forge,
    pub(crate) manifests: Arc<Manifests>,
    pub(crate) inputs: Inputs,
    pub(crate) namespace: Namespace,
    state: tempfile::TempDir,
    settings: Settings,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Options::new()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        Self::tuned(options, |_| {}).await
    }

    pub(crate) async fn tuned(options: Options, tune: impl FnOnce(&mut Settings)) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let options = options
            .token(demo_forge::Token::read("reader", READ_TOKEN))
            .token(demo_forge::Token::write("writer", WRITE_TOKEN));
        let forge = Forge::start(options).await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(state.path());
        let exception = format!("127.0.0.1=127.0.0.0/8:{}", forge.addr().port());
        settings.address_exceptions.push(exception.parse().unwrap());
        settings.times.connect = Duration::from_secs(20);
        settings.times.stall = Duration::from_secs(20);
        settings.times.backoff_first = Duration::from_millis(20);
        settings.times.backoff_max = Duration::from_millis(50);
        settings.times.give_up = Duration::from_secs(20);
        settings.times.brief = Duration::from_millis(150);
        settings.times.missing = Duration::from_secs(20);
        settings.times.missing_every = Duration::from_millis(20);
        settings.fetch.helper_program = env!("CARGO_BIN_EXE_sandboxrun").into();
        tune(&mut settings);
        let manifests = Arc::new(Manifests::default());
        let origin = forge.origin();
        manifests.add_secret("read-token", READ_TOKEN.as_bytes(), &origin);
        manifests.add_secret("write-token", WRITE_TOKEN.as_bytes(), &origin);
        manifests.add_secret("ca", forge.ca_pem().as_bytes(), &origin);
        manifests.add_connector(connector("forge", &origin, token("read-token")));
        manifests.add_connector(connector("forge-write", &origin, token("write-token")));
        manifests.add_connector(connector("public", &origin, Auth::Anonymous));
        let inputs = Inputs::new(settings.clone(), Arc::clone(&manifests) as Arc<dyn Sources>);
        let namespace = "team-a".parse().unwrap();
        Self {
            forge,
            manifests,
            inputs,
            namespace,
            state,
            settings,
        }
    }

    /// The same host side over other names.
    pub(crate) fn rename(&mut self, names: Arc<dyn Names>) {
        let sources = Arc::clone(&self.manifests) as Arc<dyn Sources>;
        self.inputs = Inputs::over(self.settings.clone(), sources, names);
    }

    /// Opens a closed address as an administrator would: `HOST=RANGE:PORT`.
    pub(crate) fn allow(&mut self, exception: &str) {
        self.settings
            .address_exceptions
            .push(exception.parse().unwrap());
        self.rename(Arc::new(SystemNames));
    }

    pub(crate) fn state_dir(&self) -> &std::path::Path {
        self.state.path()
    }

    /// Resolves inputs as a run with the policy `Warn`.
    pub(crate) async fn resolve(&self, inputs: Vec<Input>) -> Result<Vec<ResolvedInput>, Failure> {
        self.resolve_as(run(inputs, CredentialProofPolicy::Warn), &|_| {})
            .await
    }

    pub(crate) async fn resolve_as(
        &self,
        spec: RunSpec,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Vec<ResolvedInput>, Failure> {
        self.inputs.resolve(&self.namespace, &spec, progress).await
    }

    /// Resolves one input of `acme/app` through the connector `forge`.
    pub(crate) async fn one(&self, selector: RefSelector) -> Result<ResolvedInput, Failure> {
        let resolved = self
            .resolve(vec![input("app", "acme/app", selector)])
            .await?;
        Ok(resolved.into_iter().next().unwrap())
    }
}

/// An input below the connector `forge`.
pub(crate) fn input(name: &str, path: &str, selector: RefSelector) -> Input {
    through("forge", name, path, selector)
}

/// An input below a connector.
pub(crate) fn through(connector: &str, name: &str, path: &str, selector: RefSelector) -> Input {
    Input {
        name: name.parse().unwrap(),
        repository: Repository::BelowConnector(path.to_owned()),
        connector: Some(connector.parse().unwrap()),
        selector,
        path: name.to_owned(),
        depth: Some(1),
        read_only: false,
        fetch: true,
    }
}

/// An input by its whole address.
pub(crate) fn at(url: &str, connector: Option<&str>, selector: RefSelector) -> Input {
    Input {
        repository: Repository::Url(url.parse().unwrap()),
        connector: connector.map(|name| name.parse().unwrap()),
        ..through("none", "app", "none", selector)
    }
}

pub(crate) fn branch(name: &str) -> RefSelector {
    RefSelector::Branch(RefName::branch(name).unwrap())
}

pub(crate) fn tag(name: &str) -> RefSelector {
    RefSelector::Tag(RefName::tag(name).unwrap())
}

pub(crate) fn named(name: &str) -> RefSelector {
    RefSelector::Name(name.parse().unwrap())
}

pub(crate) fn commit(id: &str) -> RefSelector {
    RefSelector::Commit(id.parse().unwrap())
}

/// A connector for inputs and lookups, with the forge's CA.
pub(crate) fn connector(name: &str, origin: &str, auth: Auth) -> ParsedConnector {
    ParsedConnector {
        name: name.parse().unwrap(),
        kind: ConnectorType::Git,
        origin: origin.parse().unwrap(),
        auth,
        ca: Some(key_ref("ca")),
        uses: vec![ConnectorUse::Inputs, ConnectorUse::Lookups],
        allowed_repositories: Vec::new(),
        allowed_methods: Vec::new(),
        allowed_paths: Vec::new(),
    }
}

pub(crate) fn token(secret: &str) -> Auth {
    Auth::Token {
        secret: key_ref(secret),
        username: None,
    }
}

pub(crate) fn key_ref(secret: &str) -> SecretKeyRef {
    SecretKeyRef {
        name: secret.to_owned(),
        key: "value".to_owned(),
    }
}

pub(crate) fn run(inputs: Vec<Input>, credential_proof: CredentialProofPolicy) -> RunSpec {
    RunSpec {
        inputs,
        agent: Agent {
            image: "none".to_owned(),
            command: vec!["true".to_owned()],
            env: Vec::new(),
            working_dir: "/workspace".to_owned(),
            scratch: Vec::new(),
            prompt: None,
            context: Vec::new(),
            timeout: Duration::from_mins(1),
            stall_timeout: None,
            output_schema: None,
        },
        lookups: Vec::new(),
        egress: Vec::new(),
        on_drift: OnDrift::Report,
        credential_proof,
        runtime_class_name: None,
        placement: Placement::default(),
    }
}
