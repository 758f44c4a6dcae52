//! What can go wrong while a demo forge is set up.

use std::io;

/// Why a forge, a repository or a key could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    /// A file, a socket or a process could not be had.
    #[error("{doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A `git` (or `ssh-keygen`) call ended with an error.
    #[error("`{command}` ended with {status}: {stderr}")]
    Command {
        /// The program and its arguments.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it printed, one line.
        stderr: String,
    },
    /// A certificate or a key could not be made.
    #[error("making a certificate")]
    Certificate(#[source] rcgen::Error),
    /// The TLS library refused what was made.
    #[error("setting up TLS")]
    Tls(#[source] rustls::Error),
    /// Something was asked for that the forge does not understand.
    #[error("{0}")]
    Bad(String),
    /// A program that the forge needs is not installed.
    #[error("`{program}` is not installed: apt-get install {package}")]
    Missing {
        /// The program's name or path.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
}

/// Names what was being done, for an [`io::Error`].
pub(crate) fn doing(text: impl Into<String>) -> impl FnOnce(io::Error) -> ForgeError {
    let doing = text.into();
    move |source| ForgeError::Io { doing, source }
}
