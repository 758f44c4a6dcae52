//! What people type, and what it prints: raw flags become a validated configuration, then a room does the work.

pub mod audit;
mod cluster;
mod controller;
mod crd;
mod docs;
mod explain;
mod files;
mod here;
mod run;
mod summary;
mod validate;

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
    List(cluster::ListArgs),
    Status(cluster::StatusArgs),
    Logs(cluster::LogsArgs),
    Validate(validate::ValidateArgs),
    Explain(explain::ExplainArgs),
    Crd(crd::CrdArgs),
    Controller(controller::ControllerArgs),
    /// Print the version.
    Version,
    /// Write the generated reference pages.
    #[command(hide = true)]
    Docs(docs::DocsArgs),
    /// Answers git's question for a credential, once. Started by git.
    #[command(name = credential_helper::COMMAND, hide = true)]
    CredentialHelper {
        socket: PathBuf,
        action: String,
    },
}

impl Cli {
    /// Whether this is a service: it logs what it does, in JSON. A command for people logs nothing but errors.
    #[must_use]
    pub fn is_service(&self) -> bool {
        matches!(self.command, Command::Controller(_))
    }

    /// Does what the command line says. Called before any thread is there.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Run(args) => run::main(args),
            Command::Audit(args) if args.cluster || is_plugin() => match cluster::audit(
                &args.system_namespace,
                args.context,
                audit::words_for_the_operator(std::env::args_os()),
            ) {
                Ok(code) => ExitCode::from(code),
                Err(failure) => refuse(&failure),
            },
            Command::Audit(args) => audit_main(args),
            Command::List(args) => done(cluster::list(&args)),
            Command::Status(args) => done(cluster::status(&args)),
            Command::Logs(args) => done(cluster::logs(&args)),
            Command::Validate(args) => printed(|out| {
                let verdict = validate::run(&args, out)?;
                if let validate::Verdict::Unreadable(error) = &verdict {
                    complain(&error.to_string());
                }
                Ok(verdict.exit_code())
            }),
            Command::Explain(args) => printed(|out| match explain::run(&args, out)? {
                Ok(()) => Ok(0),
                Err(error) => {
                    complain(&error.to_string());
                    Ok(USAGE)
                }
            }),
            Command::Controller(args) => done(controller::run(args)),
            Command::Crd(args) => printed(|out| crd::run(&args, out).map(|()| 0)),
            Command::Version => {
                printed(|out| writeln!(out, "sandboxrun {}", env!("CARGO_PKG_VERSION")).map(|()| 0))
            }
            Command::Docs(args) => printed(|_| docs::run(&args).map(|()| 0)),
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

/// The exit code of a command line that is wrong, as clap has it.
const USAGE: u8 = 2;

/// Runs a command that only prints. A reader that closed the pipe has seen enough.
fn printed(command: impl FnOnce(&mut dyn io::Write) -> io::Result<u8>) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let done = match command(&mut out) {
        Ok(code) => out
            .flush()
            .or_else(|error| if closed(&error) { Ok(()) } else { Err(error) })
            .map(|()| code),
        Err(error) => Err(error),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) if closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("cannot write: {error}"));
            ExitCode::from(USAGE)
        }
    }
}

/// Whether this was started as `kubectl sandboxrun`: then it is always about a cluster.
fn is_plugin() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref()
        .and_then(std::path::Path::file_name)
        .is_some_and(|name| name == "kubectl-sandboxrun")
}

/// Shows a failure, if there is one.
fn done(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => refuse(&failure),
    }
}

/// One line on stderr.
fn complain(message: &str) {
    let text = terminal_text(message.as_bytes(), false);
    // With stderr closed there is nobody to tell.
    let _closed = writeln!(io::stderr(), "error: {text}");
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
