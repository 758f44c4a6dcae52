//! A git server for tests: real `git http-backend` and real `sshd`, with its own certificate authority, tokens,
//! a small ticket API and switchable faults.
//!
//! It exists so that what `sandboxrun` believes about git servers is checked against git itself. It is used by
//! the integration tests, `make quickstart` and the benches, and never by the product. It holds no secret
//! that matters, and it listens where it is told: keep that loopback.
//!
//! ```no_run
//! # async fn example() -> Result<(), demo_forge::ForgeError> {
//! use demo_forge::{Change, Effect, Fault, Forge, Options, Phase, Token, Visibility};
//!
//! let forge = Forge::start(Options::new().token(Token::read("app-read", "secret"))).await?;
//! let repo = forge.create("acme/app", Visibility::Private)?;
//! let commit = repo.commit("main", &[Change::file("README.md", "hello\n")])?;
//! forge.fault("acme/app", Fault::new(Phase::Fetch, Effect::status(503)).first(2));
//! println!("{} {commit} {}", forge.url("acme/app"), forge.ca_pem());
//! # Ok(()) }
//! ```

mod api;
mod auth;
mod body;
mod bulk;
mod cgi;
mod client;
mod error;
mod fault;
mod git;
mod git_http;
mod hostile;
mod log;
mod options;
mod pkt;
mod process;
mod repo;
mod server;
mod ssh;
mod tls;
mod trap;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::doing;
use crate::fault::Faults;
use crate::log::Log;
use crate::process::Processes;
use crate::server::{Counters, Listener};
use crate::tls::Authority;

pub use crate::bulk::noise;
pub use crate::client::{Client, Outcome};
pub use crate::error::ForgeError;
pub use crate::fault::{Effect, Fault, Hook, Phase};
pub use crate::hostile::{Hostile, TreeEntry};
pub use crate::log::{Credential, Request};
pub use crate::options::{Options, Scope, Token, Visibility, literal_or_env};
pub use crate::repo::{Change, ObjectFormat, Repo};
pub use crate::ssh::{KeyType, Ssh, SshKey, SshRequest};
pub use crate::tls::Certificate;
pub use crate::trap::Trap;

/// A running forge. Dropped, it stops: listeners, children and, if it was temporary, its directory.
pub struct Forge {
    state: Arc<State>,
    listener: Listener,
    bad: Vec<(Certificate, Listener)>,
    ca_pem: String,
    _temporary: Option<tempfile::TempDir>,
}

/// What all connections of a forge share.
pub(crate) struct State {
    pub(crate) options: Options,
    root: PathBuf,
    tokens: Mutex<Vec<Token>>,
    repos: Mutex<BTreeMap<String, Visibility>>,
    pub(crate) faults: Faults,
    pub(crate) log: Log,
    pub(crate) counters: Arc<Counters>,
    pub(crate) processes: Processes,
    pub(crate) api: axum::Router,
}

/// What went over a forge's connections so far, above TLS, headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Connections that were opened.
    pub connections: u64,
    /// Bytes that clients sent.
    pub received: u64,
    /// Bytes that were sent to clients.
    pub sent: u64,
}

impl Forge {
    /// Starts a forge. It needs a tokio runtime, which must live as long as it.
    ///
    /// # Errors
    /// When the directory, the certificates or the listeners cannot be made.
    #[expect(
        clippy::unused_async,
        reason = "starting needs a runtime, and the signature says so"
    )]
    pub async fn start(options: Options) -> Result<Self, ForgeError> {
        let (root, temporary) = if let Some(root) = &options.root {
            (root.clone(), None)
        } else {
            let dir = tempfile::Builder::new()
                .prefix("demo-forge-")
                .tempdir()
                .map_err(doing("making a temporary directory"))?;
            (dir.path().to_owned(), Some(dir))
        };
        let repos = root.join("repos");
        fs::create_dir_all(&repos).map_err(doing(format!("making {}", repos.display())))?;
        let root = root
            .canonicalize()
            .map_err(doing("finding the root directory"))?;
        let authority = Authority::new(&options.hosts, &root.join("ca-key.pem"))?;
        let state = Arc::new(State {
            tokens: Mutex::new(options.tokens.clone()),
            repos: Mutex::default(),
            faults: Faults::default(),
            log: Log::default(),
            counters: Arc::default(),
            processes: Processes::default(),
            api: api::router(options.ticket_token.clone(), options.ticket_header.clone()),
            root,
            options,
        });
        let good = authority.server(Certificate::Good)?;
        let listener = server::listen(&state, state.options.listen, good)?;
        let mut bad = Vec::new();
        if state.options.bad_certificates {
            let any_port = SocketAddr::new(state.options.listen.ip(), 0);
            for kind in Certificate::BAD {
                bad.push((
                    kind,
                    server::listen(&state, any_port, authority.server(kind)?)?,
                ));
            }
        }
        Ok(Self {
            state,
            listener,
            bad,
            ca_pem: authority.pem(),
            _temporary: temporary,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr
    }

    /// `https://127.0.0.1:PORT`, without a slash at the end.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("https://{}", reachable(self.listener.addr))
    }

    /// The URL of a repository: `forge.url("acme/app")`.
    #[must_use]
    pub fn url(&self, repo: &str) -> String {
        format!("{}/{repo}.git", self.origin())
    }

    /// The URL of a repository behind a certificate of this kind. The bad ones are there with
    /// [`Options::bad_certificates`] only.
    ///
    /// # Errors
    /// When no such listener was asked for.
    pub fn url_with(&self, certificate: Certificate, repo: &str) -> Result<String, ForgeError> {
        if certificate == Certificate::Good {
            return Ok(self.url(repo));
        }
        let (_, listener) = self
            .bad
            .iter()
            .find(|(kind, _)| *kind == certificate)
            .ok_or_else(|| {
                ForgeError::Bad("start the forge with Options::bad_certificates()".to_owned())
            })?;
        Ok(format!("https://{}/{repo}.git", reachable(listener.addr)))
    }

    /// The certificate of its CA.
    #[must_use]
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Writes the CA's certificate to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_ca(&self, file: &Path) -> Result<(), ForgeError> {
        fs::write(file, &self.ca_pem).map_err(doing(format!("writing {}", file.display())))
    }

    /// The directory of this forge.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.state.root
    }

    /// Makes an empty SHA-1 repository whose HEAD is `main`.
    ///
    /// # Errors
    /// When the name is not one, or git fails.
    pub fn create(&self, name: &str, visibility: Visibility) -> Result<Repo, ForgeError> {
        self.create_as(name, visibility, ObjectFormat::Sha1)
    }

    /// Makes an empty repository of this object format.
    ///
    /// # Errors
    /// When the name is not one, or git fails.
    pub fn create_as(
        &self,
        name: &str,
        visibility: Visibility,
        format: ObjectFormat,
    ) -> Result<Repo, ForgeError> {
        check_repo_name(name)?;
        let repo = Repo::init(self.state.git_dir(name), format)?;
        self.set_visibility(name, visibility);
        Ok(repo)
    }

    /// Serves a repository that is on disk already, bare or not, whoever owns it.
    ///
    /// # Errors
    /// When `path` is no repository.
    pub fn serve(
        &self,
        name: &str,
        path: &Path,
        visibility: Visibility,
    ) -> Result<Repo, ForgeError> {
        check_repo_name(name)?;
        let found = git::run(
            path,
            &["rev-parse", "--path-format=absolute", "--git-common-dir"],
            &[],
            b"",
        )?;
        let found = PathBuf::from(String::from_utf8_lossy(&found).trim_end());
        let link = self.state.git_dir(name);
        if let Some(parent) = link.parent() {
            fs::create_dir_all(parent).map_err(doing(format!("making {}", parent.display())))?;
        }
        if link.is_symlink() {
            fs::remove_file(&link).map_err(doing(format!("removing {}", link.display())))?;
        }
        std::os::unix::fs::symlink(&found, &link)
            .map_err(doing(format!("linking {}", link.display())))?;
        self.set_visibility(name, visibility);
        Ok(Repo::open(found))
    }

    /// Changes who may see a repository, from the next request on.
    pub fn set_visibility(&self, name: &str, visibility: Visibility) {
        let mut repos = self
            .state
            .repos
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        repos.insert(name.to_owned(), visibility);
    }

    /// Forgets a repository: from the next request on it does not exist. Its files stay.
    pub fn forget(&self, name: &str) {
        self.state
            .repos
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
    }

    /// Knows one more token.
    pub fn token(&self, token: Token) {
        self.state
            .tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(token);
    }

    /// Does not know the token of this name any more.
    pub fn revoke(&self, name: &str) {
        let mut tokens = self
            .state
            .tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|token| token.name != name);
    }

    /// Adds a fault to a repository; several act together, in the order in which they were added.
    pub fn fault(&self, repo: &str, fault: Fault) {
        self.state.faults.add(repo, fault);
    }

    /// Takes all faults of a repository away.
    pub fn clear_faults(&self, repo: &str) {
        self.state.faults.clear(repo);
    }

    /// All requests so far, in the order in which they came.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.state.log.requests()
    }

    /// The requests of one phase of one repository.
    #[must_use]
    pub fn requests_of(&self, repo: &str, phase: Phase) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|r| r.repo.as_deref() == Some(repo) && r.phase == Some(phase));
        requests
    }

    /// How often a pack of a repository was given out. (One fetch may take several requests, of which the
    /// last is answered with the pack.)
    #[must_use]
    pub fn fetches(&self, repo: &str) -> usize {
        self.requests_of(repo, Phase::Fetch)
            .iter()
            .filter(|request| request.pack_sent)
            .count()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.state.log.clear();
    }

    /// What went over its connections so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let counters = &self.state.counters;
        Traffic {
            connections: counters.connections.load(Ordering::Relaxed),
            received: counters.received.load(Ordering::Relaxed),
            sent: counters.sent.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Forge {
    fn drop(&mut self) {
        self.state.processes.close();
    }
}

impl State {
    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn visibility(&self, repo: &str) -> Option<Visibility> {
        self.repos
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(repo)
            .copied()
    }

    pub(crate) fn git_dir(&self, repo: &str) -> PathBuf {
        self.root.join("repos").join(format!("{repo}.git"))
    }
}

/// Whether `OWNER/NAME` (or deeper) is a name that is safe as a path below the root.
pub(crate) fn is_repo_name(name: &str) -> bool {
    name.contains('/')
        && name.split('/').all(|part| {
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && !part.contains(['\\', '\'', '"'])
                && !part.chars().any(char::is_control)
        })
}

fn check_repo_name(name: &str) -> Result<(), ForgeError> {
    if is_repo_name(name) {
        return Ok(());
    }
    let rule = "a repository is named OWNER/NAME, without quotes, and no part begins with . or -";
    Err(ForgeError::Bad(format!("{rule}: `{name}`")))
}

/// The address that a client on this machine connects to.
fn reachable(addr: SocketAddr) -> SocketAddr {
    if !addr.ip().is_unspecified() {
        return addr;
    }
    let ip: std::net::IpAddr = match addr {
        SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, addr.port())
}
