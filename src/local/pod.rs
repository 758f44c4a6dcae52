//! The pod of a local run: three sandboxes, one after the other, and the two sockets that they talk to.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::process::{Child, ChildStderr};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::privileges::Programs;
use super::sandbox::{self, Inside};
use super::state::RunPaths;
use super::terminal::{LINE_BYTES, Screen};
use crate::api::wire::ProvisionReport;
use crate::api::{
    EnvVar, Event, Failure, Fault as _, FetchableInput, Reason, RunSpec, layout, relay_environment,
};
use crate::gateway::{Gateway, Live, Role};
use crate::inputs::ResolvedInput;
use crate::run::Pod;

/// `collect` has 120 s for drift; the rest is for its report.
const COLLECT: Duration = Duration::from_secs(150);
/// How much of the agent's output is kept as a file; the rest is shown and not kept.
const LOG_BYTES: u64 = 16 << 20;
/// How much of what our own programs say is kept for an error's text.
const SAID_BYTES: u64 = 4096;
/// What a sandbox finds programs by.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the three sandboxes of one run have in common.
#[derive(Clone)]
pub(super) struct LocalPod {
    pub(super) dirs: RunPaths,
    pub(super) programs: Programs,
    pub(super) screen: Screen,
    pub(super) ro_binds: Vec<PathBuf>,
}

/// How far the sandboxes are.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// Provision runs.
    Provisioning,
    /// The agent's sandbox is there; whether the agent runs, the record knows.
    Agent,
    /// The agent's sandbox is gone, and collect runs.
    Collecting,
    /// All are gone. The failure is what kept an agent from starting, where nothing else says it.
    Over(Option<Failure>),
}

impl Stage {
    /// The same in the words of `run`.
    pub(super) fn pod(&self) -> Pod {
        match self {
            Self::Provisioning => Pod::Starting(None),
            Self::Agent | Self::Collecting => Pod::Running,
            Self::Over(failure) => Pod::Ended(failure.clone()),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }
}

impl LocalPod {
    /// Listens on both sockets until `stop`.
    pub(super) fn serve(
        &self,
        gateway: &Gateway,
        live: &Arc<Live>,
        stop: &CancellationToken,
    ) -> std::io::Result<()> {
        for (path, role) in [
            (self.dirs.pod_socket(), Role::Pod),
            (self.dirs.agent_socket(), Role::Agent),
        ] {
            gateway.serve(
                UnixListener::bind(path)?,
                role,
                Arc::clone(live),
                stop.clone(),
            );
        }
        Ok(())
    }

    /// Runs the three sandboxes one after the other. Cancelling `kill` ends whichever is there at once.
    pub(super) fn start(
        self,
        gateway: Gateway,
        live: Arc<Live>,
        kill: CancellationToken,
    ) -> watch::Receiver<Stage> {
        let (stage, receiver) = watch::channel(Stage::Provisioning);
        let tracker = gateway.tracker.clone();
        tracker.spawn(async move {
            let over = self.run(&gateway, &live, &kill, &stage).await.err();
            // Whatever gave up because the record did not take its report has that for its cause.
            let over =
                over.map(|failure| live.watch().borrow().unrecorded.clone().unwrap_or(failure));
            stage.send_replace(Stage::Over(over));
        });
        receiver
    }

    async fn run(
        &self,
        gateway: &Gateway,
        live: &Live,
        kill: &CancellationToken,
        stage: &watch::Sender<Stage>,
    ) -> Result<(), Failure> {
        let seen = live.watch();
        let said = self.ours(Inside::Provision, "provision", kill).await?;
        match seen.borrow().provision.clone() {
            Some(ProvisionReport::Done { .. }) if said.success => {}
            Some(ProvisionReport::Failed { failure }) => return Err(failure),
            Some(ProvisionReport::Done { .. }) | None => {
                let words = match said.words.as_str() {
                    "" => "it said nothing",
                    words => words,
                };
                let message = format!("provision ended without a report: {words}");
                return Err(Failure::new(Reason::ProvisionKilled, message));
            }
        }
        stage.send_replace(Stage::Agent);
        self.agent(live, kill).await?;
        let seen = seen.borrow().clone();
        let Some(granted_at) = seen.granted_at else {
            return Err(Failure::new(
                Reason::GrantLost,
                "the agent's sandbox ended before the agent was started",
            ));
        };
        if seen.exit.is_none() {
            let millis = u64::try_from(granted_at.elapsed().as_millis()).unwrap_or(u64::MAX);
            let lost = Event::AgentEnded {
                attempt: live.attempt(),
                exit: None,
                millis,
            };
            if let Err(error) = gateway.record.append(live.key(), lost).await {
                tracing::error!(%error, "the end of the agent could not be recorded");
            }
        }
        if kill.is_cancelled() {
            return Err(Failure::new(
                Reason::CollectFailed,
                "everything was ended at once",
            ));
        }
        stage.send_replace(Stage::Collecting);
        let collected =
            tokio::time::timeout(COLLECT, self.ours(Inside::Collect, "collect", kill)).await;
        match collected {
            Ok(Ok(said)) if said.success => Ok(()),
            Ok(Ok(said)) => Err(Failure::new(Reason::CollectFailed, said.words)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::new(
                Reason::CollectFailed,
                "what the agent left could not be read in time",
            )),
        }
    }

    /// The agent's sandbox, from its start to its end: proof, grant and command are its own business.
    async fn agent(&self, live: &Live, kill: &CancellationToken) -> Result<(), Failure> {
        let (spec, inputs) = (live.spec(), live.inputs());
        let read_only: Vec<PathBuf> = inputs
            .iter()
            .filter(|input| input.read_only)
            .map(|input| PathBuf::from(&input.path))
            .collect();
        let mut args: Vec<String> = vec!["agent".into(), "--gateway".into(), gateway_argument()];
        args.extend(["--relay-port".into(), layout::RELAY_PORT.to_string()]);
        args.extend([
            "--workdir".into(),
            spec.agent.working_dir.clone(),
            "--".into(),
        ]);
        args.extend(spec.agent.command.iter().cloned());
        let inside = Inside::Agent {
            spec,
            read_only: &read_only,
            ro_binds: &self.ro_binds,
        };
        let child = sandbox::start(
            inside,
            &self.dirs,
            &self.programs,
            &agent_environment(spec, inputs),
            &args,
        );
        let mut child = child.map_err(|error| error.failure(None))?;
        let followed = self.follow(&mut child, kill).await;
        followed.map_err(|error| {
            Failure::new(
                Reason::GatewayLost,
                format!("the agent's sandbox was lost: {error}"),
            )
        })
    }

    /// Shows the agent's output and keeps the first part of it, until the sandbox is gone.
    async fn follow(&self, child: &mut Child, kill: &CancellationToken) -> std::io::Result<()> {
        let log = Mutex::new(Log {
            file: File::create(self.dirs.agent_log())?,
            left: LOG_BYTES,
        });
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let shown = async {
            tokio::join!(
                show(stdout, &self.screen, &log),
                show(stderr, &self.screen, &log)
            );
        };
        let ended = async {
            if kill.run_until_cancelled(child.wait()).await.is_none() {
                sandbox::kill(child).await?;
            }
            Ok(())
        };
        tokio::join!(shown, ended).1
    }

    /// Runs provision or collect to its end.
    async fn ours(
        &self,
        inside: Inside<'_>,
        subcommand: &str,
        kill: &CancellationToken,
    ) -> Result<Said, Failure> {
        let args = [
            subcommand.to_owned(),
            "--gateway".into(),
            gateway_argument(),
        ];
        let child = sandbox::start(
            inside,
            &self.dirs,
            &self.programs,
            &base_environment(),
            &args,
        );
        let mut child = child.map_err(|error| error.failure(None))?;
        drop(child.stdout.take());
        let stderr = child.stderr.take();
        let lost = |error: std::io::Error| {
            Failure::new(Reason::SandboxUnavailable, format!("{subcommand}: {error}"))
        };
        let ended = async { tokio::join!(words(stderr), child.wait()) };
        let Some((words, status)) = kill.run_until_cancelled(ended).await else {
            sandbox::kill(&mut child).await.map_err(lost)?;
            return Ok(Said {
                success: false,
                words: "it was killed".to_owned(),
            });
        };
        Ok(Said {
            success: status.map_err(lost)?.success(),
            words,
        })
    }
}

/// How provision or collect ended.
#[derive(Debug)]
struct Said {
    success: bool,
    /// The first of what it wrote to stderr, in one line.
    words: String,
}

/// The first of what a program says, in one line; the rest is read and dropped.
async fn words(stderr: Option<ChildStderr>) -> String {
    let Some(mut stderr) = stderr else {
        return String::new();
    };
    let mut words = Vec::new();
    let read = (&mut stderr).take(SAID_BYTES).read_to_end(&mut words).await;
    let rest = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
    if let Some(error) = read.err().or_else(|| rest.err()) {
        tracing::debug!(%error, "a program's words could not be read");
    }
    crate::api::safe_text(words.trim_ascii())
}

fn gateway_argument() -> String {
    format!("unix:{}", layout::SOCKET)
}

fn base_environment() -> Vec<(String, String)> {
    [
        ("PATH", PATH),
        ("HOME", layout::HOME),
        ("LANG", "C.UTF-8"),
        ("USER", "agent"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The agent's whole environment: ours, then what leads to the relay, then the run's own.
fn agent_environment(spec: &RunSpec, inputs: &[ResolvedInput]) -> Vec<(String, String)> {
    let fetchable: Vec<FetchableInput<'_>> = inputs
        .iter()
        .filter(|input| input.fetch)
        .map(|input| FetchableInput {
            name: &input.name,
            origin: input.repository.as_str(),
        })
        .collect();
    let own = spec
        .agent
        .env
        .iter()
        .map(|EnvVar { name, value }| (name.clone(), value.clone()));
    base_environment()
        .into_iter()
        .chain(relay_environment(&fetchable))
        .chain(own)
        .collect()
}

struct Log {
    file: File,
    left: u64,
}

/// Lines of at most [`LINE_BYTES`], to the screen and to the log, until the other end is closed.
async fn show(from: Option<impl AsyncRead + Unpin>, screen: &Screen, log: &Mutex<Log>) {
    let Some(from) = from else { return };
    let mut from = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        let read = (&mut from)
            .take(LINE_BYTES as u64)
            .read_until(b'\n', &mut line)
            .await;
        if !matches!(read, Ok(1..)) {
            return;
        }
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .keep(&line);
        screen.agent(line.trim_ascii_end());
    }
}

impl Log {
    fn keep(&mut self, line: &[u8]) {
        let room = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(line.len());
        let kept = line.get(..room).unwrap_or_default();
        self.left -= kept.len() as u64;
        if let Err(error) = self.file.write_all(kept) {
            tracing::debug!(%error, "the agent's log could not be written");
        }
    }
}
