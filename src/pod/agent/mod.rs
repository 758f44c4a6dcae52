//! `agent` and `exec`: start the agent's command, at most once, under a policy that was proved, and watch it to its end.
//!
//! In a local run `agent` is pid 1 of the agent's sandbox and does everything: relay, proof, grant and [`exec`]. In a pod
//! `exec` is pid 1 of the agent's container and knows only the broker's socket.

mod exec;
mod output;
mod processes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::wire::{AgentEnd, AgentExit};
use crate::api::{Fault, Reason};
use crate::pod::client::Gateway;
use crate::pod::grant::{self, GrantError};
use crate::pod::proof::{ProofError, Prover};
use crate::pod::relay::{Relay, RelayError};
use crate::pod::retry;

pub use exec::ExecError;
pub use processes::Processes;

/// What is started, and how it is watched.
#[derive(Debug, Clone)]
pub struct Supervision {
    /// Where the grant is asked for: the gateway's socket, or the broker's.
    pub gateway: Gateway,
    /// Where the command starts.
    pub workdir: Option<PathBuf>,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// How long the gateway (or the broker) may be away before the grant is given.
    pub grant_limit: Duration,
    /// How long it may be away while the agent lives.
    pub gateway_limit: Duration,
}

/// What `agent` works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command.
    pub supervision: Supervision,
    /// The relay's port on 127.0.0.1.
    pub relay_port: u16,
    /// How long an open canary is tried again.
    pub proof_limit: Duration,
}

/// Why the agent was not started.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The relay could not be made.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The policy is not proved.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// No yes to the start.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The supervisor could not do its work.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

impl Fault for AgentError {
    fn reason(&self) -> Reason {
        match self {
            Self::Relay(_) | Self::Exec(_) => Reason::SandboxUnavailable,
            Self::Proof(error) => error.reason(),
            Self::Grant(error) => error.reason(),
        }
    }
}

/// The exit status when the agent was not started at all. The gateway knows why.
pub const NOT_STARTED: u8 = 125;

/// Proves the policy, asks for the grant, runs the command to its end and reports it.
///
/// # Errors
/// When the command was not started, and never will be.
pub async fn run(options: &Options) -> Result<ExitCode, AgentError> {
    let processes = Processes::prepare().map_err(ExecError::Prepare)?;
    let gateway = &options.supervision.gateway;
    let relay = Relay::bind(options.relay_port, gateway.clone()).await?;
    let relaying = crate::pod::spawn(relay.serve());
    let ready = CancellationToken::new();
    ready.cancel();
    let prover = Prover::new(gateway.clone(), Vec::new());
    prover.prove(options.proof_limit, &ready).await?;
    let status = supervise(&options.supervision, processes).await?;
    relaying.abort();
    Ok(status)
}

/// Asks for the grant, runs the command to its end and reports it.
///
/// # Errors
/// When the command was not started, and never will be.
pub async fn exec(options: &Supervision) -> Result<ExitCode, AgentError> {
    let processes = Processes::prepare().map_err(ExecError::Prepare)?;
    supervise(options, processes).await
}

async fn supervise(options: &Supervision, processes: Processes) -> Result<ExitCode, AgentError> {
    let grant = grant::ask(&options.gateway, options.grant_limit).await?;
    let nonce = grant.nonce().to_owned();
    let (exit, status) = exec::run(options, processes, grant).await;
    report(&options.gateway, nonce, exit).await;
    Ok(ExitCode::from(status))
}

/// Tells the gateway how it ended. If it cannot be told, the end of the grant's connection says that it ended.
async fn report(gateway: &Gateway, nonce: String, exit: AgentExit) {
    let end = AgentEnd { nonce, exit };
    if let Err(error) = retry(gateway, || gateway.post("/v1/ended", &end)).await {
        eprintln!("sandboxrun-pod: cannot report the agent's end: {error}");
    }
}
