//! `sandboxrun run`: one run on this machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::api::manifest::{self, Document, ManifestError, SecretBytes, SecretManifest};
use crate::api::{
    ConnectorName, Fault, Namespace, ParsedConnector, Reason, RunName, RunSpec, SandboxRun,
    SpecError,
};
use crate::inputs::{AddressException, SecretObject};
use crate::local::privileges::{StandingError, stand};
use crate::local::{self, LocalError, Manifests, Options, Screen};

/// A Secret's value is at most what Kubernetes takes: 1 MiB.
const SECRET_BYTES: u64 = 1 << 20;

/// Do one run on this machine: pin the inputs, seal the agent in, compare what it left, write it all down.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sandboxrun run -f run.yaml
  sandboxrun run -f run.yaml -f connectors.yaml --secret forge-token/token=env:FORGE_TOKEN
  sandboxrun run -f - -o json < run.yaml

The exit code is the agent's own, or 240 to 254: `sandboxrun explain` lists them.")]
pub(super) struct RunArgs {
    /// A manifest: one SandboxRun, and the Connectors and Secrets that it names. `-` is stdin. May be repeated.
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The value of a Secret's key: NAME/KEY=env:VAR or NAME/KEY=file:PATH. May be repeated.
    #[arg(long, value_name = "NAME/KEY=SOURCE")]
    secret: Vec<SecretFlag>,
    /// A closed address that may be reached: HOST=RANGE:PORT, such as git.example.com=10.1.0.0/16:443. May be repeated.
    #[arg(long, value_name = "HOST=RANGE:PORT")]
    allow_address: Vec<AddressException>,
    /// Show this path of the machine to the agent, read-only. May be repeated.
    #[arg(long, value_name = "PATH")]
    ro_bind: Vec<PathBuf>,
    /// Keep nothing of the workspace.
    #[arg(long)]
    discard: bool,
    /// What to print at the end.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// Do not show the life of the run as it happens.
    #[arg(short, long)]
    quiet: bool,
    /// Where record, mirror and workspaces are kept.
    #[arg(long, value_name = "DIR", env = "SANDBOXRUN_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// The program that runs inside sandboxes; default: sandboxrun-pod beside this one.
    #[arg(long, value_name = "FILE", env = "SANDBOXRUN_POD_PROGRAM")]
    pod_program: Option<PathBuf>,
}

/// What to print at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A summary for people.
    Text,
    /// The status that the custom resource would have, on stdout; all else goes to stderr.
    Json,
}

/// `NAME/KEY=env:VAR` or `NAME/KEY=file:PATH`.
#[derive(Debug, Clone)]
struct SecretFlag {
    name: String,
    key: String,
    source: SecretSource,
}

#[derive(Debug, Clone)]
enum SecretSource {
    Env(String),
    File(PathBuf),
}

impl std::str::FromStr for SecretFlag {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Not the text: somebody may have written the value itself.
        let usage = "write NAME/KEY=env:VAR or NAME/KEY=file:PATH; the value itself never stands on the command line";
        let (target, source) = text.split_once('=').ok_or(usage)?;
        let (name, key) = target
            .split_once('/')
            .filter(|(name, key)| !name.is_empty() && !key.is_empty())
            .ok_or(usage)?;
        let source = match source.split_once(':') {
            Some(("env", variable)) if !variable.is_empty() => {
                SecretSource::Env(variable.to_owned())
            }
            Some(("file", path)) if !path.is_empty() => SecretSource::File(path.into()),
            _ => return Err(usage),
        };
        Ok(Self {
            name: name.to_owned(),
            key: key.to_owned(),
            source,
        })
    }
}

/// Why nothing was begun.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("{}", listed(.0))]
    Manifest(Vec<ManifestError>),
    #[error("{file}: {}", specs(.errors))]
    Spec {
        file: String,
        errors: Vec<SpecError>,
    },
    #[error("cannot read {path}")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{0}")]
    Manifests(String),
    #[error("{file}: {why}")]
    NotHere { file: String, why: &'static str },
    #[error("--secret {name}/{key}: {why}")]
    Secret {
        name: String,
        key: String,
        why: String,
    },
    #[error(transparent)]
    Standing(StandingError),
    #[error("this process cannot be set up")]
    Process(#[source] io::Error),
    #[error(transparent)]
    Local(LocalError),
}

impl Fault for RunError {
    fn reason(&self) -> Reason {
        match self {
            Self::Manifest(errors) => errors.first().map_or(Reason::NotDecodable, Fault::reason),
            Self::Spec { .. } | Self::Manifests(_) => Reason::RuleBroken,
            Self::Read { .. } => Reason::NotDecodable,
            Self::NotHere { .. } => Reason::NotOnThisMachine,
            Self::Secret { .. } => Reason::SecretInvalid,
            Self::Standing(error) => error.reason(),
            Self::Process(_) => Reason::Bug,
            Self::Local(error) => error.reason(),
        }
    }
}

fn listed(errors: &[ManifestError]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

fn specs(errors: &[SpecError]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Runs `sandboxrun run`. Called before any thread is there: root is given up here.
pub(super) fn main(args: RunArgs) -> ExitCode {
    let machine = args.output == Output::Json;
    let screen = Screen::new(machine, args.quiet);
    match begin(args, &screen) {
        Ok(ended) => {
            let shown = if machine {
                super::summary::json(&ended)
            } else {
                super::summary::text(&ended, &screen)
            };
            // A closed pipe is the reader's choice.
            let _closed = io::stdout().write_all(shown.as_bytes());
            ExitCode::from(exit_code(&ended))
        }
        Err(error) => super::refuse(&error.failure(None)),
    }
}

fn begin(args: RunArgs, screen: &Screen) -> Result<local::Ended, RunError> {
    // What only root may read is read now.
    let manifests = load(&args.files, &args.secret)?;
    let standing = stand(args.state_dir, args.pod_program).map_err(RunError::Standing)?;
    if let Some(user) = &standing.became {
        screen.step(
            "user",
            &format!("started as root: this is now user {user}, and so is everything it starts"),
        );
    }
    screen.step(
        "image",
        &format!(
            "agent.image ({}) is not used: the agent finds this machine's programs",
            manifests.image
        ),
    );
    if !manifests.unused.is_empty() {
        let fields = manifests.unused.join(", ");
        screen.step(
            "unused",
            &format!("of no meaning on this machine: {fields}"),
        );
    }
    let options = Options {
        standing,
        address_exceptions: args.allow_address,
        ro_binds: args.ro_bind,
        discard: args.discard,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(RunError::Process)?;
    runtime
        .block_on(local::run(manifests.run, options, screen))
        .map_err(RunError::Local)
}

/// The agent's own status, or the one of our code.
fn exit_code(ended: &local::Ended) -> u8 {
    let Some(failure) = &ended.end.failure else {
        return 0;
    };
    failure.code().exit_code().unwrap_or_else(|| {
        ended
            .end
            .exit_code
            .and_then(|code| u8::try_from(code).ok())
            .filter(|code| *code != 0)
            .unwrap_or(254)
    })
}

struct Loaded {
    run: Manifests,
    image: String,
    unused: Vec<&'static str>,
}

/// Reads all manifests and secrets: exactly one run, no name twice, all in one namespace.
fn load(files: &[PathBuf], secrets: &[SecretFlag]) -> Result<Loaded, RunError> {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for file in files {
        let name = file.display().to_string();
        for read in manifest::read(&name, &read_file(file)?) {
            match read {
                Ok(document) => documents.push((name.clone(), document)),
                Err(error) => errors.push(error),
            }
        }
    }
    if !errors.is_empty() {
        return Err(RunError::Manifest(errors));
    }
    let mut loaded = gather(documents)?;
    for flag in secrets {
        let SecretFlag { name, key, source } = flag;
        let value = secret_value(source).map_err(|why| RunError::Secret {
            name: name.clone(),
            key: key.clone(),
            why,
        })?;
        let Some(secret) = loaded.run.secrets.get_mut(name) else {
            let why = "no manifest has a Secret of this name: add one with the annotation sandboxrun.dev/origin";
            return Err(RunError::Secret {
                name: name.clone(),
                key: key.clone(),
                why: why.to_owned(),
            });
        };
        secret.data.insert(key.clone(), value);
    }
    Ok(loaded)
}

fn read_file(path: &Path) -> Result<Vec<u8>, RunError> {
    super::files::read_manifest(path).map_err(|source| RunError::Read {
        path: path.display().to_string(),
        source,
    })
}

fn secret_value(source: &SecretSource) -> Result<SecretBytes, String> {
    match source {
        SecretSource::Env(variable) => {
            use std::os::unix::ffi::OsStringExt as _;
            let value = std::env::var_os(variable)
                .ok_or_else(|| format!("the environment variable {variable} is not set"))?;
            Ok(SecretBytes::new(value.into_vec()))
        }
        SecretSource::File(path) => {
            let mut bytes = Vec::new();
            let read = File::open(path)
                .and_then(|file| file.take(SECRET_BYTES + 1).read_to_end(&mut bytes));
            match read {
                Ok(_) if bytes.len() as u64 > SECRET_BYTES => {
                    Err(format!("{} is larger than 1 MiB", path.display()))
                }
                Ok(_) => Ok(SecretBytes::new(bytes)),
                Err(error) => Err(format!("cannot read {}: {error}", path.display())),
            }
        }
    }
}

fn gather(documents: Vec<(String, Document)>) -> Result<Loaded, RunError> {
    let wrong = |text: String| RunError::Manifests(text);
    let namespaces: std::collections::BTreeSet<&str> = documents
        .iter()
        .map(|(_, document)| document.namespace().unwrap_or("default"))
        .collect();
    if namespaces.len() > 1 {
        let all: Vec<&str> = namespaces.into_iter().collect();
        return Err(wrong(format!(
            "all manifests of a run must be in one namespace, and these are in {}",
            all.join(", ")
        )));
    }
    let namespace = namespaces.first().copied().unwrap_or("default");
    let namespace: Namespace = namespace
        .parse()
        .map_err(|error| wrong(format!("metadata.namespace: {error}")))?;
    let mut runs: Vec<(String, Box<SandboxRun>)> = Vec::new();
    let mut connectors = std::collections::BTreeMap::new();
    let mut secrets = std::collections::BTreeMap::new();
    for (file, document) in documents {
        match document {
            Document::Run(run) => runs.push((file, run)),
            Document::Connector(connector) => {
                let name = connector.metadata.name.clone().unwrap_or_default();
                let name: ConnectorName = name
                    .parse()
                    .map_err(|error| wrong(format!("{file}: metadata.name: {error}")))?;
                let parsed = ParsedConnector::parse(&name, &connector.spec).map_err(|errors| {
                    RunError::Spec {
                        file: file.clone(),
                        errors,
                    }
                })?;
                if connectors.insert(name.clone(), parsed).is_some() {
                    return Err(wrong(format!(
                        "{file}: there are two Connectors {name}: keep one"
                    )));
                }
            }
            Document::Secret(SecretManifest {
                name,
                annotations,
                values,
                ..
            }) => {
                let object = SecretObject {
                    annotations,
                    data: values,
                };
                if secrets.insert(name.clone(), object).is_some() {
                    return Err(wrong(format!(
                        "{file}: there are two Secrets {name}: keep one"
                    )));
                }
            }
        }
    }
    let count = runs.len();
    let [(file, run)] = <[_; 1]>::try_from(runs).map_err(|_| {
        wrong(format!(
            "the manifests hold {count} SandboxRuns: give exactly one"
        ))
    })?;
    let generated = run
        .metadata
        .generate_name
        .as_deref()
        .map(|name| name.trim_end_matches('-'));
    let name = run.metadata.name.as_deref().or(generated);
    let name: RunName = name
        .unwrap_or_default()
        .parse()
        .map_err(|error| wrong(format!("{file}: metadata.name: {error}")))?;
    if let Some(why) = super::here::refused(&run.spec) {
        return Err(RunError::NotHere { file, why });
    }
    let spec = RunSpec::parse(&run.spec).map_err(|errors| RunError::Spec { file, errors })?;
    let image = spec.agent.image.clone();
    let digest = run.spec.digest();
    Ok(Loaded {
        run: Manifests {
            namespace,
            name,
            spec,
            digest,
            connectors,
            secrets,
        },
        image,
        unused: super::here::unused(&run.spec),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::env("forge-token/token=env:TOKEN", true)]
    #[case::file("forge-token/token=file:/x", true)]
    #[case::the_value_itself("forge-token/token=canary", false)]
    #[case::no_key("forge-token=env:TOKEN", false)]
    fn a_secrets_value_never_stands_on_the_command_line(#[case] text: &str, #[case] good: bool) {
        let parsed = text.parse::<SecretFlag>();
        assert_eq!(parsed.is_ok(), good);
        if let Err(error) = parsed {
            assert!(!error.contains("canary"));
        }
    }
}
