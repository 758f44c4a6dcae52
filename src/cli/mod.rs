//! What people type, and what it prints: raw flags become a validated configuration, then a room does the work.

pub mod audit;
mod run;
mod summary;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::api::{Failure, Fault};
use crate::inputs::credential_helper;
use crate::local::privileges::{StandingError, stand_to_read};
use crate::local::{State, terminal_text};

/// Runs coding agents on pinned inputs, without credentials, and keeps a verifiable record.
#[derive(Debug, Parser)]
#[command(name = "sandboxrun", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Audit(audit::AuditArgs),
    /// Answers git's question for a credential, once. Started by git.
    #[command(name = credential_helper::COMMAND, hide = true)]
    CredentialHelper {
        socket: PathBuf,
        action: String,
    },
}

impl Cli {
    /// Does what the command line says. Called before any thread is there.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::main(args),
            Command::Audit(args) => audit_main(args),
            Command::CredentialHelper { socket, action } => {
                credential_helper::main(&socket, &action)
            }
        }
    }
}

/// `sandboxrun audit`, on the record that `sandboxrun run` writes where no other is named.
fn audit_main(args: audit::AuditArgs) -> ExitCode {
    let default_record = match &args.record {
        Some(_) => Ok(PathBuf::new()),
        None => stand_to_read(std::env::var_os("SANDBOXRUN_STATE_DIR").map(PathBuf::from))
            .map(|dir| State::new(dir).record()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StandingError::OwnProgram);
    let (default_record, runtime) = match default_record.and_then(|record| Ok((record, runtime?))) {
        Ok(pair) => pair,
        Err(error) => return refuse(&error.failure(None)),
    };
    match runtime.block_on(audit::run(args, &default_record, &mut io::stdout())) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let code = error.exit_code();
            report(&error.failure(None));
            ExitCode::from(code)
        }
    }
}

/// Shows a failure and gives its exit code.
fn refuse(failure: &Failure) -> ExitCode {
    report(failure);
    ExitCode::from(failure.code().exit_code().unwrap_or(254))
}

/// A failure as it is shown: what happened, the code, and what to do.
fn report(failure: &Failure) {
    let lines: Vec<String> = failure
        .message
        .split("\\n")
        .map(|line| terminal_text(line.as_bytes(), false))
        .collect();
    let (code, reason, hint) = (failure.code(), failure.reason, failure.hint());
    let text = format!(
        "error: {}\n  {code} {reason}\n  {hint}\n",
        lines.join("\n       ")
    );
    // With stderr closed there is nobody to tell.
    let _closed = io::stderr().write_all(text.as_bytes());
}
