//! The way to a server: addresses, roots, credential or key, as `git` is told of them.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use super::credential_helper::{Bound, Helper};
use super::fetch_error::FetchError;
use super::git::{Call, GitError, start_error};
use super::process::{Bounds, Ended};
use super::session::{PrivateDir, Session};
use super::ssh::{Ssh, SshError};
use super::{Remote, Settings, Shown, trace};
use crate::api::Transport;

/// Where system roots lie, by distribution. The first that is there counts.
const SYSTEM_ROOTS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// How the server is reached, with everything that must live as long as the fetch.
pub(super) enum Way {
    Https {
        config: Vec<(String, String)>,
        credential: Option<(Helper, Bound)>,
        _ca: Option<PrivateDir>,
    },
    Ssh(Ssh),
}

impl Way {
    /// Makes ready what the transport needs. The connection will go to these addresses and nowhere else.
    pub(super) fn open(
        settings: &Settings,
        session: &Arc<Session>,
        remote: &Remote,
        addresses: &[SocketAddr],
    ) -> Result<Self, FetchError> {
        match remote.repository.transport() {
            Transport::Https => Self::https(settings, session, remote, addresses),
            Transport::Ssh => Self::ssh(settings, session, remote, addresses),
        }
    }

    fn https(
        settings: &Settings,
        session: &Arc<Session>,
        remote: &Remote,
        addresses: &[SocketAddr],
    ) -> Result<Self, FetchError> {
        let repository = &remote.repository;
        let mut config = Vec::new();
        let (host, port) = (repository.host(), repository.port());
        if host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_err()
        {
            let addresses: Vec<String> = addresses
                .iter()
                .map(|address| address.ip().to_string())
                .collect();
            let resolved = format!("{host}:{port}:{}", addresses.join(","));
            config.push(("http.curloptResolve".to_owned(), resolved));
        }
        // The directory of single roots, which Debian's curl reads as well, holds the same ones and costs 50 ms.
        let system = SYSTEM_ROOTS.iter().find(|file| Path::new(file).is_file());
        if let Some(system) = system {
            config.push(("http.sslCAInfo".to_owned(), (*system).to_owned()));
            let empty = session.home().to_string_lossy().into_owned();
            config.push(("http.sslCAPath".to_owned(), empty));
        }
        let ca = remote
            .credential
            .ca()
            .map(|ca| trusted(ca, session))
            .transpose();
        let ca = ca.map_err(FetchError::State)?;
        if let Some(ca) = &ca {
            let file = ca.path().join(ROOTS).to_string_lossy().into_owned();
            config.push(("http.sslCAInfo".to_owned(), file));
        }
        let credential = match remote.credential.shown() {
            Shown::Basic { username, password } => {
                let helper = Helper::open(session).map_err(FetchError::State)?;
                config.extend(helper.config(&settings.fetch.helper_program, repository));
                Some((helper, Bound::new(repository, username, password)))
            }
            Shown::Anonymous | Shown::Ssh { .. } => None,
            Shown::Header { .. } => {
                let connector = remote.credential.name().map_or("", |name| name.as_str());
                return Err(FetchError::HeaderCredential(connector.to_owned()));
            }
        };
        Ok(Self::Https {
            config,
            credential,
            _ca: ca,
        })
    }

    fn ssh(
        settings: &Settings,
        session: &Arc<Session>,
        remote: &Remote,
        addresses: &[SocketAddr],
    ) -> Result<Self, FetchError> {
        let repository = &remote.repository;
        let (fetch, times) = (&settings.fetch, settings.times);
        let address = addresses
            .first()
            .copied()
            .ok_or(FetchError::Ssh(SshError::NoKey))?;
        let shown = remote.credential.shown();
        let ssh = Ssh::open(fetch, times, session, repository, address, shown);
        ssh.map(Self::Ssh).map_err(FetchError::Ssh)
    }

    /// The call that will reach the server.
    pub(super) fn prepare<'a>(&self, call: Call<'a>) -> Call<'a> {
        match self {
            Self::Https { config, .. } => {
                let call = trace::VARIABLES
                    .iter()
                    .fold(call, |call, (name, value)| call.env(name, value));
                // Configuration stands before the command, whenever it is given.
                config
                    .iter()
                    .fold(call, |call, (name, value)| call.config(name, value))
            }
            Self::Ssh(ssh) => call.env("GIT_SSH_COMMAND", ssh.command()),
        }
    }

    /// Runs the call, and answers its one question for a credential.
    pub(super) async fn run(&self, call: Call<'_>, bounds: Bounds) -> Result<Ended, GitError> {
        let credential = match self {
            Self::Https { credential, .. } => credential.as_ref(),
            Self::Ssh(_) => None,
        };
        let (running, bounds) = call.spawn(bounds)?;
        let group = running.group();
        let finished = running.finish(b"", &bounds);
        let answers = async {
            if let Some((helper, bound)) = credential {
                // A socket that fails leaves git without a credential, and git says so.
                drop(helper.serve(bound, group).await);
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            ended = finished => ended.map_err(start_error("git")),
            never = answers => match never {},
        }
    }
}

const ROOTS: &str = "roots.pem";

/// A file with the system's roots and a CA: curl takes one file, and it replaces its own.
fn trusted(ca: &str, session: &Arc<Session>) -> io::Result<PrivateDir> {
    let dir = session.dir()?;
    let system = SYSTEM_ROOTS
        .iter()
        .find_map(|file| fs::read_to_string(file).ok());
    fs::write(
        dir.path().join(ROOTS),
        format!("{}\n{ca}\n", system.unwrap_or_default()),
    )?;
    Ok(dir)
}
