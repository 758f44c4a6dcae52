//! `demo-forge`: a forge started by hand, for the quickstart, for benches and for a container in a test cluster.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Parser;
use demo_forge::{Change, Forge, ForgeError, Options, Repo, Token, Visibility, literal_or_env};
use tokio::signal::unix::{SignalKind, signal};

/// Serves git repositories and a ticket API over HTTPS until SIGTERM or Ctrl-C. For tests, not for production.
#[derive(Parser)]
#[command(
    after_help = "Example:\n  demo-forge --root forge-data --ca-out ca.pem --url-out url \\\n    \
    --token app-read=env:TOKEN:read --repo acme/app=.:private --sample acme/tools"
)]
struct Args {
    /// Keeps what it makes below this directory.
    #[arg(long)]
    root: PathBuf,
    /// Listens here; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// One more host name or address for the certificate. May be repeated.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Writes the certificate of its CA to this file.
    #[arg(long, value_name = "FILE")]
    ca_out: Option<PathBuf>,
    /// Writes its URL to this file as soon as it serves.
    #[arg(long, value_name = "FILE")]
    url_out: Option<PathBuf>,
    /// A token for git: NAME=VALUE:read or NAME=VALUE:write; VALUE may be env:VAR. May be repeated.
    #[arg(long, value_name = "TOKEN")]
    token: Vec<Token>,
    /// The user name that tokens are sent with; absent: any.
    #[arg(long, value_name = "NAME")]
    user_name: Option<String>,
    /// Serves a repository that is on disk: OWNER/NAME=PATH, with :private at the end if it needs a token.
    #[arg(long, value_name = "REPO")]
    repo: Vec<Existing>,
    /// Makes and serves a small repository: OWNER/NAME, with :private at the end if it needs a token.
    #[arg(long, value_name = "REPO")]
    sample: Vec<Named>,
    /// The token of the ticket API, or env:VAR; absent: open to all.
    #[arg(long, value_name = "VALUE")]
    ticket_token: Option<String>,
    /// The header that holds it, bare; absent: Authorization: Bearer.
    #[arg(long, value_name = "NAME")]
    ticket_header: Option<String>,
}

#[derive(Clone)]
struct Named {
    name: String,
    visibility: Visibility,
}

impl FromStr for Named {
    type Err = ForgeError;

    fn from_str(text: &str) -> Result<Self, ForgeError> {
        let (name, visibility) = match text.strip_suffix(":private") {
            Some(name) => (name, Visibility::Private),
            None => (text, Visibility::Public),
        };
        Ok(Self {
            name: name.to_owned(),
            visibility,
        })
    }
}

#[derive(Clone)]
struct Existing {
    named: Named,
    path: PathBuf,
}

impl FromStr for Existing {
    type Err = ForgeError;

    fn from_str(text: &str) -> Result<Self, ForgeError> {
        let bad =
            || ForgeError::Bad("a repository is written OWNER/NAME=PATH[:private]".to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(bad)?;
        let path: Named = rest.parse()?;
        let named = Named {
            name: name.to_owned(),
            visibility: path.visibility,
        };
        Ok(Self {
            named,
            path: path.name.into(),
        })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = std::error::Error::source(&error);
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("demo-forge: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), ForgeError> {
    let io = |doing: &str| {
        let doing = doing.to_owned();
        move |source| ForgeError::Io { doing, source }
    };
    // Before anything is written: a SIGTERM that comes early must not be lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(io("waiting for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("waiting for Ctrl-C"))?;
    let mut options = Options::new().root(&args.root).listen(args.listen);
    options = args.host.into_iter().fold(options, Options::host);
    options = args.token.into_iter().fold(options, Options::token);
    if let Some(name) = args.user_name {
        options = options.user_name(name);
    }
    if let Some(value) = args.ticket_token {
        options = options.ticket_token(literal_or_env(&value)?);
    }
    if let Some(name) = args.ticket_header {
        options = options.ticket_header(name);
    }
    let forge = Forge::start(options).await?;
    for Existing { named, path } in args.repo {
        forge.serve(&named.name, &path, named.visibility)?;
    }
    for Named { name, visibility } in args.sample {
        fill(&forge.create(&name, visibility)?)?;
    }
    if let Some(file) = args.ca_out {
        forge.write_ca(&file)?;
    }
    if let Some(file) = args.url_out {
        publish(&file, &forge.origin()).map_err(io("writing the URL"))?;
    }
    eprintln!("demo-forge: serving {}", forge.origin());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// A small repository with a branch to follow and a tag to pin.
fn fill(repo: &Repo) -> Result<(), ForgeError> {
    if repo.find("refs/heads/main").is_some() {
        return Ok(());
    }
    let first = repo.commit(
        "main",
        &[
            Change::file("README.md", "# Tools\n\nHello, nobody.\n"),
            Change::executable("bin/greet", "#!/bin/sh\necho \"Hello, ${1:-nobody}.\"\n"),
            Change::symlink("greet", "bin/greet"),
        ],
    )?;
    repo.annotated_tag("v1.0.0", &first)?;
    repo.commit(
        "main",
        &[Change::file("CHANGELOG.md", "- greets by name\n")],
    )?;
    Ok(())
}

/// Writes the file as a whole, so that who waits for it never reads half of it.
fn publish(file: &Path, url: &str) -> std::io::Result<()> {
    let draft = file.with_extension("part");
    fs::write(&draft, format!("{url}\n"))?;
    fs::rename(&draft, file)
}
