//! `agent`: starts the agent's command, at most once, under a policy that was proved, and watches it to its end.
//!
//! In a local run this is pid 1 of the agent's sandbox and does everything: [`relay`], [`proof`], [`grant`] and
//! [`exec`]. In a cluster the same parts run as broker and exec.

mod exec;
mod grant;
mod output;
mod processes;
mod proof;
mod relay;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::api::wire::{AgentEnd, AgentExit};
use crate::api::{Fault, Reason};
use crate::pod::client::Gateway;
use crate::pod::retry;

pub use exec::ExecError;
pub use grant::GrantError;
pub use processes::Processes;
pub use proof::ProofError;
pub use relay::RelayError;

/// What `agent` works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Proof, grant and everything that the relay forwards.
    pub gateway: Gateway,
    /// The relay's port on 127.0.0.1.
    pub relay_port: u16,
    /// Where the command starts.
    pub workdir: Option<PathBuf>,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// From SIGTERM to SIGKILL.
    pub grace: Duration,
    /// How long an open canary is tried again.
    pub proof_limit: Duration,
    /// How long the gateway may be away while the agent lives.
    pub gateway_limit: Duration,
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
    let relay = relay::Relay::bind(options.relay_port, options.gateway.clone()).await?;
    let relaying = tokio::spawn(relay.serve());
    proof::prove(&options.gateway, options.proof_limit).await?;
    let grant = grant::ask(&options.gateway).await?;
    let nonce = grant.nonce().to_owned();
    let (exit, status) = exec::run(options, processes, grant).await;
    report(&options.gateway, nonce, exit).await;
    relaying.abort();
    Ok(ExitCode::from(status))
}

/// Tells the gateway how it ended. If it cannot be told, the end of the grant's connection says that it ended.
async fn report(gateway: &Gateway, nonce: String, exit: AgentExit) {
    let end = AgentEnd { nonce, exit };
    if let Err(error) = retry(|| gateway.post("/v1/ended", &end)).await {
        eprintln!("sandboxrun-pod: cannot report the agent's end: {error}");
    }
}
