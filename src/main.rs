//! Everything on the host side: the gateway, the local run and the command line.

use std::process::ExitCode;

use clap::Parser as _;
use sandboxrun::cli::Cli;

fn main() -> ExitCode {
    // Fails only if there is one already, and then it is this one.
    let _already = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = Cli::parse();
    let default = if cli.is_service() { "info" } else { "error" };
    let filter = tracing_subscriber::EnvFilter::try_from_env("SANDBOXRUN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if cli.is_service() {
        logs.json().flatten_event(true).init();
    } else {
        logs.init();
    }
    cli.run()
}
