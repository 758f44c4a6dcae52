//! Everything that runs inside a pod: wiring only.

use std::process::ExitCode;

use clap::Parser as _;
use sandboxrun::pod::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // One thread: relay and supervisor wait most of their life. Disks are served by threads of their own.
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(cli.run()),
        Err(error) => {
            eprintln!("sandboxrun-pod: cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}
