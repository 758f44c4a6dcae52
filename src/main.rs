//! Everything on the host side: the gateway, the local run and the command line.

use std::process::ExitCode;

use clap::Parser as _;
use sandboxrun::cli::Cli;

fn main() -> ExitCode {
    // Fails only if there is one already, and then it is this one.
    let _already = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Cli::parse().run()
}
