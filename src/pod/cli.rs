//! The command line of `sandboxrun-pod`. Its callers are programs: the manifest of a pod, or a local run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use super::client::{Gateway, GatewayAddress, GatewayError};
use super::proof::Prover;
use super::{agent, broker, collect, provision};
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
    /// Put the pinned inputs into the workspace, all of them or nothing. In a pod: prove the policy, too.
    Provision(ProvisionArgs),
    /// In a local run: prove the policy, ask for the grant, run the agent's command to its end.
    Agent(AgentArgs),
    /// Compare the workspace with its baseline and read the output.
    Collect(CollectArgs),
    /// In a pod, in the agent's container: ask the broker for the grant, run the agent's command to its end.
    Exec(ExecArgs),
    /// In a pod, beside the agent: relay its calls, prove the policy again and again; on SIGTERM, collect.
    Broker(BrokerArgs),
}

#[derive(Debug, Args)]
struct GatewayArgs {
    /// The gateway: `unix:/path/of/socket` or `https://IP:PORT`. The CA of the latter, in PEM, is in the environment:
    /// `SANDBOXRUN_GATEWAY_CA`.
    #[arg(long)]
    gateway: GatewayAddress,
    /// Where the token lies that is shown to a gateway at https://. Read anew for each call.
    #[arg(long)]
    token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Volumes {
    #[command(flatten)]
    gateway: GatewayArgs,
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
struct ProvisionArgs {
    #[command(flatten)]
    volumes: Volumes,
    /// In a pod: copy this program here, for the agent's container, and prove the policy beside the download.
    #[arg(long)]
    install: Option<PathBuf>,
    /// How long an open canary is tried again, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    proof_millis: u64,
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
struct CommandArgs {
    /// Where the command starts.
    #[arg(long)]
    workdir: Option<PathBuf>,
    /// From SIGTERM to SIGKILL, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    grace_millis: u64,
    /// How long the gateway (for `exec`: the broker) may be away while the agent lives, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    gateway_millis: u64,
    /// The command and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct AgentArgs {
    /// The gateway: `unix:/path/of/socket`.
    #[arg(long)]
    gateway: GatewayAddress,
    /// The relay's port on 127.0.0.1.
    #[arg(long, default_value_t = layout::RELAY_PORT)]
    relay_port: u16,
    /// How long an open canary is tried again, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    proof_millis: u64,
    #[command(flatten)]
    command: CommandArgs,
}

#[derive(Debug, Args)]
struct ExecArgs {
    /// The broker: `unix:/path/of/socket`.
    #[arg(long)]
    gateway: GatewayAddress,
    /// How long broker and gateway may be away before the grant is given, in milliseconds.
    #[arg(long, default_value_t = 300_000)]
    grant_millis: u64,
    #[command(flatten)]
    command: CommandArgs,
}

#[derive(Debug, Args)]
struct BrokerArgs {
    #[command(flatten)]
    volumes: Volumes,
    /// The Unix socket that `exec` asks.
    #[arg(long, default_value = layout::BROKER_SOCKET)]
    exec_socket: PathBuf,
    /// The relay's port on 127.0.0.1.
    #[arg(long, default_value_t = layout::RELAY_PORT)]
    relay_port: u16,
    /// How often the policy is proved again, in milliseconds.
    #[arg(long, default_value_t = 15_000, value_parser = clap::value_parser!(u64).range(1..))]
    repeat_millis: u64,
    /// How long the agent may still live after SIGTERM, in seconds; then what it left is not known.
    #[arg(long, default_value_t = 20)]
    agent_wait_secs: u64,
    /// What is not compared after this many seconds is not known.
    #[arg(long, default_value_t = 120)]
    budget_secs: u64,
    /// How long the gateway may take to hear the outcome, in seconds.
    #[arg(long, default_value_t = 20)]
    report_secs: u64,
}

impl Cli {
    /// Does what the command line says.
    pub async fn run(self) -> ExitCode {
        match self.command {
            Command::Provision(args) => match args.options() {
                Ok(options) => done("provision", provision::run(&options).await),
                Err(error) => done("provision", Err(error.failure(None))),
            },
            Command::Collect(args) => {
                match args.volumes.options(Duration::from_secs(args.budget_secs)) {
                    Ok(options) => done("collect", collect::run(&options).await),
                    Err(error) => done("collect", Err(error.failure(None))),
                }
            }
            Command::Broker(args) => match args.options() {
                Ok(options) => done("broker", broker::run(&options).await),
                Err(error) => done("broker", Err(error.failure(None))),
            },
            Command::Agent(args) => match args.options() {
                Ok(options) => started("agent", agent::run(&options).await),
                Err(error) => done("agent", Err(error.failure(None))),
            },
            Command::Exec(args) => match args.options() {
                Ok(options) => started("exec", agent::exec(&options).await),
                Err(error) => done("exec", Err(error.failure(None))),
            },
        }
    }
}

impl GatewayArgs {
    fn open(self) -> Result<Gateway, GatewayError> {
        let ca = std::env::var(layout::CA_VARIABLE).ok();
        Gateway::new(self.gateway, ca.as_deref(), self.token_file)
    }
}

/// A gateway, or a broker, on a socket of this sandbox.
fn on_socket(gateway: GatewayAddress) -> Result<Gateway, GatewayError> {
    Gateway::new(gateway, None, None)
}

impl ProvisionArgs {
    fn options(self) -> Result<provision::Options, GatewayError> {
        let Volumes {
            gateway,
            workspace,
            sandbox,
            baseline,
            termination_log,
        } = self.volumes;
        let in_pod = self.install.map(|install| provision::InPod {
            install,
            nodes: Prover::node_addresses(),
            proof_limit: Duration::from_millis(self.proof_millis),
        });
        Ok(provision::Options {
            gateway: gateway.open()?,
            workspace,
            sandbox,
            baseline,
            termination_log,
            in_pod,
        })
    }
}

impl Volumes {
    fn options(self, budget: Duration) -> Result<collect::Options, GatewayError> {
        let Self {
            gateway,
            workspace,
            sandbox,
            baseline,
            termination_log,
        } = self;
        Ok(collect::Options {
            gateway: gateway.open()?,
            workspace,
            sandbox,
            baseline,
            termination_log,
            budget,
        })
    }
}

impl CommandArgs {
    fn supervision(self, gateway: Gateway, grant_limit: Duration) -> agent::Supervision {
        agent::Supervision {
            gateway,
            workdir: self.workdir,
            command: self.command,
            grace: Duration::from_millis(self.grace_millis),
            grant_limit,
            gateway_limit: Duration::from_millis(self.gateway_millis),
        }
    }
}

/// For how long a local run asks for its grant: the gateway is the program that started it, and its record waits 10 s for
/// another process.
const LOCAL_GRANT: Duration = Duration::from_secs(15);

impl AgentArgs {
    fn options(self) -> Result<agent::Options, GatewayError> {
        let gateway = on_socket(self.gateway)?;
        Ok(agent::Options {
            supervision: self.command.supervision(gateway, LOCAL_GRANT),
            relay_port: self.relay_port,
            proof_limit: Duration::from_millis(self.proof_millis),
        })
    }
}

impl ExecArgs {
    fn options(self) -> Result<agent::Supervision, GatewayError> {
        let gateway = on_socket(self.gateway)?;
        let grant_limit = Duration::from_millis(self.grant_millis);
        Ok(self.command.supervision(gateway, grant_limit))
    }
}

impl BrokerArgs {
    fn options(self) -> Result<broker::Options, GatewayError> {
        Ok(broker::Options {
            collect: self
                .volumes
                .options(Duration::from_secs(self.budget_secs))?,
            relay_port: self.relay_port,
            exec_socket: self.exec_socket,
            nodes: Prover::node_addresses(),
            proof_every: Duration::from_millis(self.repeat_millis),
            agent_wait: Duration::from_secs(self.agent_wait_secs),
            report_limit: Duration::from_secs(self.report_secs),
        })
    }
}

fn started(what: &str, result: Result<ExitCode, agent::AgentError>) -> ExitCode {
    match result {
        Ok(status) => status,
        Err(error) => {
            report(what, &error.failure(None));
            ExitCode::from(agent::NOT_STARTED)
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
