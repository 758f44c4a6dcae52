//! The sandbox: what bubblewrap is told. Pure but for the probe.
//!
//! Three programs run in sandboxes of their own, with other mounts: provision and collect see the baseline and the pod's
//! socket, the agent sees neither. Each has namespaces of its own, the network included: the only way out is the socket.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::privileges::Programs;
use super::state::RunPaths;
use crate::api::{Fault, Reason, RunSpec, layout};

/// Of this machine, besides `/usr`: what dynamic programs, TLS and names need. Read-only, left out where missing.
const FROM_ETC: [&str; 9] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/pki/tls/certs",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
/// On merged systems these are links into `/usr`; elsewhere directories. Both work.
const ROOT_DIRS: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Files of `/etc` that the sandbox has of its own: no name of this machine's users or network is in them.
const OWN_ETC: [(&str, &str); 5] = [
    (
        "passwd",
        "agent:x:1000:1000:agent:/home/agent:/bin/sh\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
    ),
    ("group", "agent:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("resolv.conf", "nameserver 127.0.0.1\n"),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nhosts: files dns\n",
    ),
];
/// Scratch on tmpfs is memory of this machine: bounded.
const SCRATCH_BYTES: u64 = 2 << 30;

/// Which of the three programs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Inside<'a> {
    /// Downloads and checks out.
    Provision,
    /// Relay, exec and the agent's own command.
    Agent {
        /// What the run asks for.
        spec: &'a RunSpec,
        /// Paths below the workspace that are read-only.
        read_only: &'a [PathBuf],
        /// More of this machine, read-only.
        ro_binds: &'a [PathBuf],
    },
    /// Compares.
    Collect,
}

/// Why no sandbox can be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum SandboxError {
    /// No bubblewrap.
    #[error(
        "bubblewrap is not installed: `apt-get install bubblewrap` (or your system's package of that name)"
    )]
    NotInstalled,
    /// Bubblewrap cannot make the namespaces.
    #[error(
        "bubblewrap cannot make a sealed sandbox here ({0}): allow unprivileged user namespaces (sysctl \
         user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), \
         and use bubblewrap 0.8 or newer"
    )]
    Refused(String),
    /// It could not be started.
    #[error("bubblewrap could not be started")]
    Start(#[source] std::io::Error),
}

impl Fault for SandboxError {
    fn reason(&self) -> Reason {
        Reason::SandboxUnavailable
    }
}

/// Makes an empty sandbox and throws it away: what cannot be had is said before anything is fetched.
pub(super) async fn probe() -> Result<(), SandboxError> {
    let mut command = bubblewrap();
    command
        .args(namespaces())
        .args(system())
        .args(["--", "/bin/true"]);
    let output = command
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(start_error)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(SandboxError::Refused(said.trim().to_owned()))
}

/// Writes the files of `/etc` that the sandbox has of its own.
pub(super) fn write_etc(dirs: &RunPaths) -> std::io::Result<()> {
    OWN_ETC
        .iter()
        .try_for_each(|(name, text)| std::fs::write(dirs.etc().join(name), text))
}

/// Starts one of the three programs. It dies with this process.
pub(super) fn start(
    inside: Inside<'_>,
    dirs: &RunPaths,
    programs: &Programs,
    environment: &[(String, String)],
    pod_args: &[String],
) -> Result<Child, SandboxError> {
    let mut command = bubblewrap();
    command.args(arguments(inside, dirs, programs));
    for (key, value) in environment {
        command.args(["--setenv", key, value]);
    }
    command.arg("--").arg(layout::POD_PROGRAM).args(pod_args);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Of its own: Ctrl-C on a terminal is for this program, which then ends the sandbox in order.
        .process_group(0)
        .kill_on_drop(true);
    command.spawn().map_err(start_error)
}

/// Ends a sandbox at once, and waits until it has. The whole group: bubblewrap's second process is not yet bound to the
/// first when that has only just been started, and would wait for it for ever.
pub(super) async fn kill(child: &mut Child) -> std::io::Result<()> {
    let group = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    if let Some(group) = group {
        match kill_process_group(group, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    child.wait().await.map(drop)
}

fn start_error(error: std::io::Error) -> SandboxError {
    if error.kind() == std::io::ErrorKind::NotFound {
        SandboxError::NotInstalled
    } else {
        SandboxError::Start(error)
    }
}

/// The one place that starts bubblewrap: with nothing of our environment but where programs are.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that starts bubblewrap"
)]
fn bubblewrap() -> Command {
    let mut command = Command::new("bwrap");
    command.env_clear().env(
        "PATH",
        std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
    );
    command
}

/// Everything before the program.
fn arguments(inside: Inside<'_>, dirs: &RunPaths, programs: &Programs) -> Vec<OsString> {
    let mut all = namespaces();
    all.extend(system());
    for (name, _) in OWN_ETC {
        all.extend(bind(
            "--ro-bind",
            &dirs.etc().join(name),
            &Path::new("/etc").join(name),
        ));
    }
    all.extend(scratch("/tmp"));
    all.extend(scratch(layout::HOME));
    all.extend(bind(
        "--ro-bind",
        &programs.pod,
        Path::new(layout::POD_PROGRAM),
    ));
    let socket = match inside {
        Inside::Provision | Inside::Collect => dirs.pod_socket(),
        Inside::Agent { .. } => dirs.agent_socket(),
    };
    all.extend(bind("--ro-bind", &socket, Path::new(layout::SOCKET)));
    all.extend(bind(
        "--bind",
        &dirs.workspace(),
        Path::new(layout::WORKSPACE),
    ));
    match inside {
        Inside::Provision => {
            all.extend(bind("--bind", &dirs.sandbox(), Path::new(layout::SANDBOX)));
            all.extend(bind(
                "--bind",
                &dirs.baseline(),
                Path::new(layout::BASELINE),
            ));
        }
        Inside::Collect => {
            all.extend(bind(
                "--ro-bind",
                &dirs.sandbox(),
                Path::new(layout::SANDBOX),
            ));
            all.extend(bind(
                "--ro-bind",
                &dirs.baseline(),
                Path::new(layout::BASELINE),
            ));
        }
        Inside::Agent {
            spec,
            read_only,
            ro_binds,
        } => {
            all.extend(bind(
                "--ro-bind",
                &dirs.sandbox(),
                Path::new(layout::SANDBOX),
            ));
            all.extend(bind(
                "--bind",
                &dirs.sandbox().join("output"),
                Path::new(layout::OUTPUT),
            ));
            for path in read_only {
                let to = Path::new(layout::WORKSPACE).join(path);
                all.extend(bind("--ro-bind", &dirs.workspace().join(path), &to));
            }
            for path in ro_binds {
                all.extend(bind("--ro-bind", path, path));
            }
            spec.agent
                .scratch
                .iter()
                .for_each(|path| all.extend(scratch(path)));
        }
    }
    // Last: what bubblewrap made itself, above all the root, is not to be written to.
    all.extend(["--remount-ro".into(), "/".into()]);
    all
}

fn namespaces() -> Vec<OsString> {
    [
        "--unshare-user",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
        "--clearenv",
    ]
    .into_iter()
    .chain([
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--hostname",
        "sandboxrun",
        "--chdir",
        "/",
    ])
    .map(OsString::from)
    .collect()
}

fn system() -> Vec<OsString> {
    let mut all = bind("--ro-bind", Path::new("/usr"), Path::new("/usr"));
    for dir in ROOT_DIRS.map(Path::new) {
        match std::fs::read_link(dir) {
            Ok(target) => all.extend(["--symlink".into(), target.into(), dir.into()]),
            Err(_) => all.extend(bind("--ro-bind-try", dir, dir)),
        }
    }
    for path in FROM_ETC.map(Path::new) {
        all.extend(bind("--ro-bind-try", path, path));
    }
    all.extend(["--proc", "/proc", "--dev", "/dev"].map(OsString::from));
    all
}

fn bind(how: &str, from: &Path, to: &Path) -> Vec<OsString> {
    vec![how.into(), from.into(), to.into()]
}

fn scratch(path: &str) -> Vec<OsString> {
    vec![
        "--perms".into(),
        "0700".into(),
        "--size".into(),
        SCRATCH_BYTES.to_string().into(),
        "--tmpfs".into(),
        path.into(),
    ]
}
