//! What the administrator sets: the file that the chart writes from its values, read once at start.
//!
//! Every field but the image of pods has a default, unknown ones are refused, and a value that makes no sense names its field.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::api::{Fault, Namespace, Reason, duration_text, quantity_text};
use crate::inputs::{self, AddressException, FetchSettings};
use crate::manifest::Installation;
use crate::run;

/// The whole file. In YAML, camel case.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// What shapes pods, and bounds what runs may ask.
    pub pods: Installation,
    /// Namespaces whose runs are looked after; empty: all.
    #[serde(default)]
    pub watch_namespaces: Vec<String>,
    /// Where everything is written down.
    #[serde(default)]
    pub record: RecordSettings,
    /// Mirrors and packs.
    #[serde(default)]
    pub mirror: MirrorSettings,
    /// Repositories and their servers.
    #[serde(default)]
    pub inputs: InputsSettings,
    /// Closed addresses that may be reached after all, each `HOST=RANGE:PORT`.
    #[serde(default)]
    pub address_exceptions: Vec<String>,
    /// The server that pods talk to.
    #[serde(default)]
    pub gateway: GatewaySettings,
    /// Who leads.
    #[serde(default)]
    pub leader: LeaderSettings,
    /// Network policies.
    #[serde(default)]
    pub policy: PolicySettings,
    /// Waiting times of a run.
    #[serde(default)]
    pub times: run::Limits,
    /// How the controller works.
    #[serde(default)]
    pub controller: ControllerSettings,
}

/// Where everything is written down.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct RecordSettings {
    /// The SQLite file, on a volume of its own.
    pub file: PathBuf,
    /// Ended runs are kept for so long; `null`: for ever. Their identities and results stay.
    #[serde(deserialize_with = "optional_duration")]
    pub retention: Option<Duration>,
}

/// Mirrors and packs.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct MirrorSettings {
    /// Their directory, on a volume of its own.
    pub directory: PathBuf,
    /// The most that all of them take, in bytes.
    #[serde(with = "quantity_text")]
    pub cache_bytes: u64,
    /// The most that one repository takes, in bytes.
    #[serde(with = "quantity_text")]
    pub repository_bytes: u64,
    /// What must stay free on the volume, in bytes.
    #[serde(with = "quantity_text")]
    pub keep_free_bytes: u64,
    /// The address space of one git process, in bytes.
    #[serde(with = "quantity_text")]
    pub git_memory_bytes: u64,
    /// Fetches that are under way at once.
    pub fetches_at_once: usize,
    /// The longest fetch.
    #[serde(with = "duration_text")]
    pub fetch_deadline: Duration,
}

/// Repositories and their servers.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct InputsSettings {
    /// `false`: a run that has inputs ends with `sandbox.workspace_inputs_disabled`.
    pub enabled: bool,
    /// A connection stands within this.
    #[serde(with = "duration_text")]
    pub connect: Duration,
    /// So long without a byte ends an attempt.
    #[serde(with = "duration_text")]
    pub stall: Duration,
    /// What is transient is tried again for so long.
    #[serde(with = "duration_text")]
    pub give_up: Duration,
    /// Refused credentials, and what is not found, are tried again for so long.
    #[serde(with = "duration_text")]
    pub brief: Duration,
    /// A Connector or Secret that is not there yet is waited for so long.
    #[serde(with = "duration_text")]
    pub missing: Duration,
}

/// The server that pods talk to.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its Service in the operator's namespace.
    pub service: String,
    /// The Service's port for it.
    pub port: u16,
    /// Ports that answer here and must not be reachable from a pod.
    pub canaries: Vec<CanaryPort>,
    /// The Secret that holds the CA of its certificate, in the operator's namespace.
    pub ca_secret: String,
}

/// A port of the gateway that must not be reachable from a pod; TCP and UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CanaryPort {
    /// The Service's port.
    pub port: u16,
    /// The port that is listened on here.
    pub listen: u16,
}

/// Who leads.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderSettings {
    /// The Lease in the operator's namespace.
    pub lease: String,
    /// A new leader may start this long after the old one fell silent.
    #[serde(with = "duration_text")]
    pub duration: Duration,
}

/// Network policies.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PolicySettings {
    /// Agents may run although no network policy is enforced; each record then says so.
    pub accept_unenforced: bool,
}

/// How the controller works.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ControllerSettings {
    /// Runs that are worked at at once.
    pub concurrency: u16,
    /// The longest call to the API server.
    #[serde(with = "duration_text")]
    pub api_timeout: Duration,
    /// Where `/healthz` and `/readyz` are.
    pub health: SocketAddr,
    /// Where `/metrics` is.
    pub metrics: SocketAddr,
}

impl Default for RecordSettings {
    fn default() -> Self {
        Self {
            file: "/var/lib/sandboxrun/record/record.db".into(),
            retention: None,
        }
    }
}

impl Default for MirrorSettings {
    fn default() -> Self {
        let fetch = FetchSettings::default();
        Self {
            directory: "/var/lib/sandboxrun/mirror".into(),
            cache_bytes: fetch.cache_bytes,
            repository_bytes: fetch.mirror_bytes,
            keep_free_bytes: fetch.keep_free_bytes,
            git_memory_bytes: fetch.memory_bytes,
            fetches_at_once: fetch.at_once,
            fetch_deadline: fetch.deadline,
        }
    }
}

impl Default for InputsSettings {
    fn default() -> Self {
        let times = inputs::Times::default();
        Self {
            enabled: true,
            connect: times.connect,
            stall: times.stall,
            give_up: times.give_up,
            brief: times.brief,
            missing: times.missing,
        }
    }
}

impl Default for GatewaySettings {
    fn default() -> Self {
        let canary = |port, listen| CanaryPort { port, listen };
        Self {
            listen: everywhere(8443),
            service: "sandboxrun-gateway".into(),
            port: 8443,
            canaries: vec![canary(8444, 8444), canary(53, 8053), canary(443, 8445)],
            ca_secret: "sandboxrun-gateway-ca".into(),
        }
    }
}

impl Default for LeaderSettings {
    fn default() -> Self {
        Self {
            lease: "sandboxrun".into(),
            duration: Duration::from_secs(15),
        }
    }
}

#[expect(
    clippy::derivable_impls,
    reason = "beside the others, each default is to be seen"
)]
impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            accept_unenforced: false,
        }
    }
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            concurrency: 16,
            api_timeout: Duration::from_secs(20),
            health: everywhere(8081),
            metrics: everywhere(8080),
        }
    }
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not what is expected.
    #[error("the settings {} do not decode: {message}", path.display())]
    Decode {
        /// Which file.
        path: PathBuf,
        /// Where, and what is wrong with it.
        message: String,
    },
    /// A value makes no sense.
    #[error("{field}: {message}")]
    Value {
        /// Such as `addressExceptions[0]`.
        field: String,
        /// What to write instead.
        message: String,
    },
}

impl Fault for SettingsError {
    fn reason(&self) -> Reason {
        Reason::SettingsInvalid
    }
}

impl Settings {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, has an unknown field, or a value that makes no sense.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|source| SettingsError::Read {
            path: path.to_owned(),
            source,
        })?;
        let settings: Self =
            serde_saphyr::from_str(&text).map_err(|error| SettingsError::Decode {
                path: path.to_owned(),
                message: error.to_string(),
            })?;
        settings.check()?;
        Ok(settings)
    }

    /// The namespaces that are watched, as names; empty: all.
    ///
    /// # Errors
    /// When one of them is none.
    pub fn namespaces(&self) -> Result<Vec<Namespace>, SettingsError> {
        let parsed = self.watch_namespaces.iter().enumerate().map(|(at, name)| {
            name.parse()
                .map_err(|error| wrong(format!("watchNamespaces[{at}]"), &error))
        });
        parsed.collect()
    }

    /// The host side of inputs, as it is set up here.
    ///
    /// # Errors
    /// When an exception is none.
    pub fn inputs(&self) -> Result<inputs::Settings, SettingsError> {
        let mut settings = inputs::Settings::new(&self.mirror.directory);
        settings.enabled = self.inputs.enabled;
        settings.address_exceptions = self.exceptions()?;
        settings.times.connect = self.inputs.connect;
        settings.times.stall = self.inputs.stall;
        settings.times.give_up = self.inputs.give_up;
        settings.times.brief = self.inputs.brief;
        settings.times.missing = self.inputs.missing;
        settings.fetch.cache_bytes = self.mirror.cache_bytes;
        settings.fetch.mirror_bytes = self.mirror.repository_bytes;
        settings.fetch.keep_free_bytes = self.mirror.keep_free_bytes;
        settings.fetch.memory_bytes = self.mirror.git_memory_bytes;
        settings.fetch.at_once = self.mirror.fetches_at_once;
        settings.fetch.deadline = self.mirror.fetch_deadline;
        Ok(settings)
    }

    fn exceptions(&self) -> Result<Vec<AddressException>, SettingsError> {
        let parsed = self
            .address_exceptions
            .iter()
            .enumerate()
            .map(|(at, text)| {
                text.parse()
                    .map_err(|error| wrong(format!("addressExceptions[{at}]"), &error))
            });
        parsed.collect()
    }

    fn check(&self) -> Result<(), SettingsError> {
        self.exceptions()?;
        self.namespaces()?;
        if let Err(error) = self.pods.check() {
            return Err(wrong(format!("pods.{}", error.field), &error.message));
        }
        let at_least_one = |field: &str, good: bool| {
            good.then_some(())
                .ok_or_else(|| wrong(field, &"must be at least 1"))
        };
        at_least_one("controller.concurrency", self.controller.concurrency > 0)?;
        at_least_one("mirror.fetchesAtOnce", self.mirror.fetches_at_once > 0)?;
        if self.gateway.canaries.is_empty() {
            let message = "without a canary no policy can be proved: name at least one port";
            return Err(wrong("gateway.canaries", &message));
        }
        if self.leader.duration < Duration::from_secs(3) {
            return Err(wrong("leader.duration", &"must be at least 3s"));
        }
        Ok(())
    }
}

fn wrong(field: impl Into<String>, message: &dyn std::fmt::Display) -> SettingsError {
    SettingsError::Value {
        field: field.into(),
        message: message.to_string(),
    }
}

fn everywhere(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn optional_duration<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    struct Text(#[serde(with = "duration_text")] Duration);
    Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(duration)| duration))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(text: &str) -> Result<Settings, SettingsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let pods = if text.contains("pods:") {
            ""
        } else {
            "pods: {podImage: i}\n"
        };
        std::fs::write(&path, format!("{pods}{text}")).unwrap();
        Settings::read(&path)
    }

    #[test]
    fn what_is_not_written_has_a_default() {
        let settings = read("").unwrap();
        assert_eq!(settings.gateway.port, 8443);
        assert_eq!(settings.times, run::Limits::default());
        assert!(settings.inputs().unwrap().enabled);
    }

    #[test]
    fn what_is_written_counts() {
        let settings = read(concat!(
            "inputs: {enabled: false, giveUp: 7s}\n",
            "mirror: {cacheBytes: 3Gi}\n",
            "record: {retention: 2160h}\n",
            "times: {image: 9s}\n",
            "addressExceptions: ['git.internal=10.0.0.0/8:443']\n",
        ))
        .unwrap();
        let inputs = settings.inputs().unwrap();
        assert!(!inputs.enabled);
        assert_eq!(inputs.times.give_up, Duration::from_secs(7));
        assert_eq!(inputs.fetch.cache_bytes, 3 << 30);
        assert_eq!(settings.times.image, Duration::from_secs(9));
        assert_eq!(settings.record.retention, Some(Duration::from_hours(2160)));
        assert_eq!(inputs.address_exceptions.len(), 1);
    }

    #[rstest]
    #[case::unknown_field("gatway: {}", "gatway")]
    #[case::no_duration("times: {image: soon}", "write a duration")]
    #[case::no_exception(
        "addressExceptions: [10.0.0.0/8]",
        "addressExceptions[0]: must be HOST=RANGE:PORT"
    )]
    #[case::no_worker("controller: {concurrency: 0}", "controller.concurrency")]
    #[case::no_canary("gateway: {canaries: []}", "gateway.canaries")]
    #[case::no_pod_image("pods: {podImage: ' '}", "pods.podImage")]
    #[case::token_too_short("pods: {podImage: i, tokenLifetime: 1m}", "pods.tokenLifetime")]
    #[case::no_namespace("watchNamespaces: [Nope]", "watchNamespaces[0]")]
    fn a_value_that_makes_no_sense_is_named(#[case] text: &str, #[case] says: &str) {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
