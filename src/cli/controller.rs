//! `sandboxrun controller`: the operator, as its pod starts it.

use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::api::{Failure, Fault as _};
use crate::controller::{self, Place, Settings};

/// Look after the runs of a cluster: the operator. The chart starts it.
#[derive(Debug, Args)]
pub(super) struct ControllerArgs {
    /// The settings, as the chart writes them.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/sandboxrun/config.yaml"
    )]
    config: PathBuf,
    /// The operator's own namespace.
    #[arg(
        long,
        env = "SANDBOXRUN_NAMESPACE",
        default_value = "sandboxrun-system"
    )]
    namespace: String,
    /// The name of its pod.
    #[arg(long, env = "SANDBOXRUN_POD", default_value = "sandboxrun")]
    pod: String,
}

/// Works until it is told to end, or cannot.
pub(super) fn run(args: ControllerArgs) -> Result<(), Failure> {
    let settings = Settings::read(&args.config).map_err(|error| error.failure(None))?;
    let place = Place {
        namespace: args.namespace,
        pod: args.pod,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| failure(&error))?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut term = signal(SignalKind::terminate()).map_err(|error| failure(&error))?;
        let mut int = signal(SignalKind::interrupt()).map_err(|error| failure(&error))?;
        let told = stop.clone();
        let ended = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            told.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            done = controller::start(settings, place, stop) => done.map_err(|error| {
                Failure { message: controller::causes(&error), ..error.failure(None) }
            }),
            () = ended => Ok(()),
        }
    })
}

fn failure(error: &std::io::Error) -> Failure {
    let message = format!("the process could not be set up: {error}");
    Failure::new(crate::api::Reason::StateUnusable, message)
}
