//! The commands that ask a cluster: what its runs are at, what one of them came to, what its agent printed.
//!
//! Everything shown comes from the API server, with the rights of whoever asks. The record is the administrator's:
//! [`exec`] asks the operator's pod for it.

mod exec;
mod page;

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, LogParams, ResourceExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::audit::Format;
use crate::api::{Failure, Reason, SandboxRun};
use crate::local::terminal_text;
use crate::manifest;

pub(super) use exec::audit;

/// Which cluster, and where in it.
#[derive(Debug, Clone, Args)]
pub(super) struct ClusterArgs {
    /// The namespace. Default: that of the kubeconfig's context
    #[arg(short, long)]
    namespace: Option<String>,
    /// The kubeconfig's context. Default: the present one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// List runs of a cluster.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sandboxrun list\n  kubectl sandboxrun list -A")]
pub(super) struct ListArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Of every namespace
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Show one run of a cluster: what it started from, what became of it, why, and what to do.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sandboxrun status fix-flaky-test -n team-a")]
pub(super) struct StatusArgs {
    /// The run
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How to print it; json: its status
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Print what a run's agent wrote. Of control sequences only colour passes.
#[derive(Debug, Args)]
#[command(after_help = "\
The pod of an ended run stays for spec.ttlAfterFinished; then its output is gone.

Examples:
  sandboxrun logs fix-flaky-test
  sandboxrun logs fix-flaky-test -f
  sandboxrun logs fix-flaky-test -c provision")]
pub(super) struct LogsArgs {
    /// The run
    name: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Go on until the agent ends
    #[arg(short, long)]
    follow: bool,
    /// Which container
    #[arg(short, long, value_enum, default_value_t = Container::Agent)]
    container: Container,
}

/// A container of a run's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Container {
    /// The agent
    Agent,
    /// What puts the inputs in place
    Provision,
    /// The relay, and what reads drift
    Broker,
}

/// A cluster that answers.
struct Cluster {
    client: Client,
    namespace: String,
}

impl Cluster {
    async fn connect(args: &ClusterArgs) -> Result<Self, Failure> {
        let lost = |error: &dyn std::error::Error| {
            let message = format!(
                "no cluster can be reached: {}",
                crate::controller::causes(error)
            );
            Failure::new(Reason::ClusterUnusable, message)
        };
        let config = match &args.context {
            None => Config::infer().await.map_err(|error| lost(&error))?,
            Some(context) => {
                let file = Kubeconfig::read().map_err(|error| lost(&error))?;
                let options = KubeConfigOptions {
                    context: Some(context.clone()),
                    ..KubeConfigOptions::default()
                };
                let config = Config::from_custom_kubeconfig(file, &options).await;
                config.map_err(|error| lost(&error))?
            }
        };
        let namespace = args.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| lost(&error))?;
        Ok(Self { client, namespace })
    }

    async fn run(&self, name: &str) -> Result<SandboxRun, Failure> {
        let runs = Api::<SandboxRun>::namespaced(self.client.clone(), &self.namespace);
        let found = runs.get_opt(name).await.map_err(|error| refused(&error))?;
        found.ok_or_else(|| {
            let message = format!(
                "there is no run `{name}` in namespace `{}`: `sandboxrun list -A` shows all",
                self.namespace
            );
            Failure::new(Reason::ClusterUnusable, message)
        })
    }
}

/// What the API server said.
fn refused(error: &kube::Error) -> Failure {
    let message = if let kube::Error::Api(status) = error {
        status.message.clone()
    } else {
        crate::controller::causes(error)
    };
    Failure::new(Reason::ClusterUnusable, message)
}

/// Runs the future on a runtime of its own.
fn block<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Reason::StateUnusable, error.to_string()))?;
    runtime.block_on(work)
}

/// What is printed when it is there. A reader that closed the pipe has seen enough.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

pub(super) fn list(args: &ListArgs) -> Result<(), Failure> {
    let runs = block(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let api = if args.all_namespaces {
            Api::<SandboxRun>::all(cluster.client)
        } else {
            Api::namespaced(cluster.client, &cluster.namespace)
        };
        let all = api.list(&ListParams::default()).await;
        Ok(all.map_err(|error| refused(&error))?.items)
    })?;
    match args.output {
        Format::Json => {
            let mut text = serde_json::to_string_pretty(&runs).unwrap_or_default();
            text.push('\n');
            print(&text);
        }
        Format::Text => print(&table(&runs, args.all_namespaces, now())),
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "ages are shown as of now: a parameter below"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

fn table(runs: &[SandboxRun], namespaces: bool, now: Timestamp) -> String {
    if runs.is_empty() {
        return "no runs\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let head = ["NAME", "PHASE", "REASON", "INPUTS", "DRIFT", "EXIT", "AGE"];
    let first = namespaces.then_some("NAMESPACE");
    table.set_header(first.into_iter().chain(head));
    for run in runs {
        let status = run.status.clone().unwrap_or_default();
        let exit = status.result.as_ref().and_then(|result| result.exit_code);
        let created = run.metadata.creation_timestamp.as_ref();
        let row = [
            run.name_any(),
            format!("{:?}", status.phase),
            status.summary.reason,
            status.summary.inputs,
            status.summary.drift,
            exit.map_or_else(String::new, |code| code.to_string()),
            created.map_or_else(String::new, |time| page::age(time.0, now)),
        ];
        let first = namespaces.then(|| run.namespace().unwrap_or_default());
        table.add_row(first.into_iter().chain(row));
    }
    let lines = table.lines().map(|line| {
        let line = line.trim_end();
        line.strip_prefix(' ').unwrap_or(line).to_owned() + "\n"
    });
    lines.collect()
}

pub(super) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let run = block(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        cluster.run(&args.name).await
    })?;
    match args.output {
        Format::Json => {
            let mut text = serde_json::to_string_pretty(&run.status).unwrap_or_default();
            text.push('\n');
            print(&text);
        }
        Format::Text => print(&page::page(&run, now())),
    }
    Ok(())
}

pub(super) fn logs(args: &LogsArgs) -> Result<(), Failure> {
    block(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let run = cluster.run(&args.name).await?;
        let none = || {
            let message = format!(
                "run `{}` has no pod yet: `sandboxrun status {0}` says what it waits for",
                args.name
            );
            Failure::new(Reason::ClusterUnusable, message)
        };
        let uid = run.metadata.uid.as_deref().and_then(|uid| uid.parse().ok());
        let attempt = run.status.as_ref().and_then(|status| status.attempt);
        let attempt = attempt.and_then(crate::api::Attempt::new);
        let (Some(uid), Some(attempt)) = (uid, attempt) else {
            return Err(none());
        };
        let pod = manifest::pod_name(&uid, attempt);
        let params = LogParams {
            container: Some(container(args.container).to_owned()),
            follow: args.follow,
            ..LogParams::default()
        };
        let pods = Api::<Pod>::namespaced(cluster.client, &cluster.namespace);
        let lines = pods.log_stream(&pod, &params).await;
        let mut lines = lines.map_err(|error| refused(&error))?.lines();
        loop {
            match lines.try_next().await {
                Ok(Some(line)) => print(&(terminal_text(line.as_bytes(), true) + "\n")),
                Ok(None) => return Ok(()),
                Err(error) => {
                    let message = format!("the output of pod `{pod}` broke off: {error}");
                    return Err(Failure::new(Reason::ClusterUnusable, message));
                }
            }
        }
    })
}

fn container(which: Container) -> &'static str {
    match which {
        Container::Agent => manifest::AGENT,
        Container::Provision => manifest::PROVISION,
        Container::Broker => manifest::BROKER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_a_line_a_run() {
        let run = page::tests::run();
        let now = "2026-11-29T12:10:00Z".parse().unwrap();
        insta::assert_snapshot!(table(&[run.clone(), run], true, now));
        assert_eq!(table(&[], false, now), "no runs\n");
    }
}
