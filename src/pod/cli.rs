//! The command line of `sandboxrun-pod`. Its callers are programs: the manifest of a pod, or a local run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use super::client::Gateway;
use super::{agent, collect, provision};
use crate::api::{Failure, Fault as _, layout};

/// Everything that runs inside a sandbox of sandboxrun.
#[derive(Debug, Parser)]
#[command(name = "sandboxrun-pod", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put the pinned inputs into the workspace, all of them or nothing.
    Provision(Volumes),
    /// Prove the policy, ask for the grant, run the agent's command to its end.
    Agent(AgentArgs),
    /// Compare the workspace with its baseline and read the output.
    Collect(CollectArgs),
}

#[derive(Debug, Args)]
struct Volumes {
    /// The gateway: `unix:/path/of/socket`.
    #[arg(long)]
    gateway: Gateway,
    /// Where the inputs lie.
    #[arg(long, default_value = layout::WORKSPACE)]
    workspace: PathBuf,
    /// Where prompt, context and output lie.
    #[arg(long, default_value = layout::SANDBOX)]
    sandbox: PathBuf,
    /// Where the baseline lies, out of the agent's sight.
    #[arg(long, default_value = layout::BASELINE)]
    baseline: PathBuf,
    /// Where a summary of at most 2048 bytes goes.
    #[arg(long)]
    termination_log: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct CollectArgs {
    #[command(flatten)]
    volumes: Volumes,
    /// What is not compared after this many seconds is not known.
    #[arg(long, default_value_t = 120)]
    budget_secs: u64,
}

#[derive(Debug, Args)]
struct AgentArgs {
    /// The gateway: `unix:/path/of/socket`.
    #[arg(long)]
    gateway: Gateway,
    /// The relay's port on 127.0.0.1.
    #[arg(long, default_value_t = layout::RELAY_PORT)]
    relay_port: u16,
    /// Where the command starts.
    #[arg(long)]
    workdir: Option<PathBuf>,
    /// From SIGTERM to SIGKILL, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    grace_millis: u64,
    /// How long an open canary is tried again, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    proof_millis: u64,
    /// How long the gateway may be away while the agent lives, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    gateway_millis: u64,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Cli {
    /// Does what the command line says.
    pub async fn run(self) -> ExitCode {
        match self.command {
            Command::Provision(volumes) => done("provision", provision::run(&volumes.into()).await),
            Command::Collect(args) => {
                let budget = Duration::from_secs(args.budget_secs);
                done(
                    "collect",
                    collect::run(&args.volumes.for_collect(budget)).await,
                )
            }
            Command::Agent(args) => match agent::run(&args.into()).await {
                Ok(status) => status,
                Err(error) => {
                    report("agent", &error.failure(None));
                    ExitCode::from(agent::NOT_STARTED)
                }
            },
        }
    }
}

impl From<Volumes> for provision::Options {
    fn from(volumes: Volumes) -> Self {
        let Volumes {
            gateway,
            workspace,
            sandbox,
            baseline,
            termination_log,
        } = volumes;
        Self {
            gateway,
            workspace,
            sandbox,
            baseline,
            termination_log,
        }
    }
}

impl Volumes {
    fn for_collect(self, budget: Duration) -> collect::Options {
        let Self {
            gateway,
            workspace,
            sandbox,
            baseline,
            termination_log,
        } = self;
        collect::Options {
            gateway,
            workspace,
            sandbox,
            baseline,
            termination_log,
            budget,
        }
    }
}

impl From<AgentArgs> for agent::Options {
    fn from(args: AgentArgs) -> Self {
        Self {
            gateway: args.gateway,
            relay_port: args.relay_port,
            workdir: args.workdir,
            command: args.command,
            grace: Duration::from_millis(args.grace_millis),
            proof_limit: Duration::from_millis(args.proof_millis),
            gateway_limit: Duration::from_millis(args.gateway_millis),
        }
    }
}

fn done(what: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(what, &failure);
            ExitCode::FAILURE
        }
    }
}

/// One line on standard error: code, reason, input and sentence.
fn report(what: &str, failure: &Failure) {
    let input = failure
        .input
        .as_ref()
        .map_or(String::new(), |name| format!(" input `{name}`:"));
    let (code, reason) = (failure.code(), failure.reason);
    eprintln!(
        "sandboxrun-pod {what}: {code} ({reason}):{input} {}",
        failure.message
    );
}
