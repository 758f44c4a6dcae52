//! The supervisor: starts the command once, watches it, stops it where it must, and leaves no process behind.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::Supervision;
use super::output::{self, Watch};
use super::processes::{NoChildren, Processes};
use crate::api::wire::{AgentExit, GrantLine};
use crate::api::{Fault as _, Reason, safe_text};
use crate::pod::grant::{Grant, GrantError};

/// Why the supervisor cannot work.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The process could not be made ready.
    #[error("cannot prepare to supervise")]
    Prepare(#[source] io::Error),
}

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How long the last output may take to be passed on once all processes are gone.
const LAST_OUTPUT: Duration = Duration::from_secs(10);
/// How long processes may take to vanish after SIGKILL (a write to a slow disk).
const LAST_PROCESS: Duration = Duration::from_secs(10);

/// Runs the command to its end. Returns how it ended and the status to exit with.
pub(super) async fn run(
    options: &Supervision,
    processes: Processes,
    grant: Grant,
) -> (AgentExit, u8) {
    // Before the start, so that no signal is missed.
    let children = signal(SignalKind::child());
    let terminate = signal(SignalKind::terminate());
    let (children, terminate) = match (children, terminate) {
        (Ok(children), Ok(terminate)) => (children, terminate),
        (Err(error), _) | (_, Err(error)) => return not_started(&error),
    };
    let watch = Watch::new();
    let started = match start(options, &watch, grant.stall.is_some()) {
        Ok(started) => started,
        Err(error) => return not_started(&error),
    };
    let now = Instant::now();
    let mut supervisor = Supervisor {
        options,
        processes,
        main: started.pid,
        status: None,
        deadline: now.checked_add(grant.timeout).unwrap_or_else(|| far(now)),
        stall: grant.stall,
        watch,
        stopped: None,
        kill_at: None,
    };
    supervisor.watch(grant, children, terminate).await;
    supervisor.leave_nothing().await;
    for ended in started.copiers {
        let _too_slow = timeout(LAST_OUTPUT, ended).await;
    }
    supervisor.end()
}

/// As good as never: a timeout too large to add.
fn far(now: Instant) -> Instant {
    now + Duration::from_hours(30 * 365 * 24)
}

fn not_started(error: &io::Error) -> (AgentExit, u8) {
    let exit = AgentExit::NotStarted {
        message: safe_text(error.to_string().as_bytes()),
    };
    (exit, 127)
}

struct Started {
    pid: Pid,
    copiers: Vec<oneshot::Receiver<()>>,
}

/// Starts the command as the leader of a process group of its own, with nothing on its standard input.
fn start(options: &Supervision, watch: &Arc<Watch>, piped: bool) -> io::Result<Started> {
    let (program, arguments) = options
        .command
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0);
    if let Some(directory) = &options.workdir {
        command.current_dir(directory);
    }
    // Without a stall limit nobody needs to see the output, and the agent gets ours as it is.
    if piped {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let mut child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let mut copiers = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        copiers.push(output::copy(stdout, io::stdout(), 0, Arc::clone(watch)));
    }
    if let Some(stderr) = child.stderr.take() {
        copiers.push(output::copy(stderr, io::stderr(), 1, Arc::clone(watch)));
    }
    // Dropping `child` does not wait for it: whoever ends is reaped in one place.
    pid.map(|pid| Started { pid, copiers })
        .ok_or_else(|| io::Error::other("no process id"))
}

struct Supervisor<'o> {
    options: &'o Supervision,
    processes: Processes,
    main: Pid,
    status: Option<WaitStatus>,
    deadline: Instant,
    stall: Option<Duration>,
    watch: Arc<Watch>,
    stopped: Option<Reason>,
    kill_at: Option<Instant>,
}

impl Supervisor<'_> {
    /// Until the main command ended, by itself or because it was stopped.
    async fn watch(
        &mut self,
        grant: Grant,
        mut children: tokio::signal::unix::Signal,
        mut terminate: tokio::signal::unix::Signal,
    ) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.stop_line(grant);
        tokio::pin!(stop);
        let mut listening = true;
        loop {
            self.reap();
            if self.status.is_some() {
                return;
            }
            tokio::select! {
                _ = children.recv() => {}
                // Who sent it knows why. Whatever the command makes of it, it did not end by itself.
                _ = terminate.recv() => self.stop(Reason::SandboxEnding),
                reason = &mut stop, if listening => {
                    listening = false;
                    self.stop(reason);
                }
                _ = tick.tick() => self.look_at_the_clock(),
            }
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if self.kill_at.is_some_and(|at| now >= at) {
            self.processes.kill();
        } else if self.kill_at.is_none() {
            if now >= self.deadline {
                self.stop(Reason::TimeoutReached);
            } else if self
                .stall
                .is_some_and(|limit| self.watch.silent_for() >= limit)
            {
                self.stop(Reason::NoOutput);
            }
        }
    }

    fn stop(&mut self, reason: Reason) {
        self.stopped.get_or_insert(reason);
        self.terminate();
    }

    /// SIGTERM to every process, and SIGKILL after the grace.
    fn terminate(&mut self) {
        if self.kill_at.is_none() {
            self.processes.signal(Signal::TERM);
            // A stopped process hears nothing.
            self.processes.signal(Signal::CONT);
            self.kill_at = Some(Instant::now() + self.options.grace);
        }
    }

    fn reap(&mut self) {
        while let Ok(Some(reaped)) = self.processes.reap() {
            if reaped.pid == self.main {
                self.status = Some(reaped.status);
            }
        }
    }

    /// Kills what the command left behind, until nothing is left.
    async fn leave_nothing(&mut self) {
        let deadline = Instant::now() + LAST_PROCESS;
        loop {
            self.processes.kill();
            loop {
                match self.processes.reap() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(NoChildren) => return,
                }
            }
            if Instant::now() >= deadline {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for a reason to stop: the gateway says so, or it is lost.
    fn stop_line(&self, mut grant: Grant) -> impl Future<Output = Reason> + use<> {
        let gateway = self.options.gateway.clone();
        let limit = self.options.gateway_limit;
        async move {
            let mut heard = Instant::now();
            loop {
                // Half the time to hear a line, the other half to get through again on a new connection.
                match timeout(limit / 2, grant.next()).await {
                    Ok(Ok(GrantLine::Stop { reason })) => return reason,
                    Ok(Ok(GrantLine::Alive | GrantLine::Granted { .. })) => {
                        heard = Instant::now();
                        continue;
                    }
                    Ok(Err(_)) | Err(_) => {}
                }
                // The connection is lost or silent: the same yes, again, while there is time.
                loop {
                    if heard.elapsed() >= limit {
                        return Reason::GatewayLost;
                    }
                    let left = limit.saturating_sub(heard.elapsed());
                    match timeout(left, grant.renew(&gateway)).await {
                        Ok(Ok(())) => {
                            heard = Instant::now();
                            break;
                        }
                        Ok(Err(GrantError::NotGranted(error)))
                            if error.is_passing() || error.is_unknown_identity() =>
                        {
                            sleep(Duration::from_millis(200)).await;
                        }
                        // A clear no: this attempt is no more.
                        Ok(Err(error)) => return error.reason(),
                        Err(_) => return Reason::GatewayLost,
                    }
                }
            }
        }
    }

    fn end(&self) -> (AgentExit, u8) {
        let status = self.status;
        let code = status.and_then(WaitStatus::exit_status);
        let signal = status.and_then(WaitStatus::terminating_signal);
        let own = match (code, signal) {
            (Some(code), _) => AgentExit::Exited { code },
            (None, Some(signal)) => AgentExit::Signalled { signal },
            (None, None) => AgentExit::Signalled {
                signal: Signal::KILL.as_raw(),
            },
        };
        let exit_status = own
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(u8::MAX);
        let exit = self
            .stopped
            .map_or(own, |reason| AgentExit::Stopped { reason });
        (exit, exit_status)
    }
}
