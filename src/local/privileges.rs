//! Never root: uid 0 under bubblewrap would be the host's uid 0.
//!
//! Called first thing in `main`, before any thread is there, since Linux changes the identity of one thread at a time.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::process::{Gid, Uid};

use crate::api::{Fault, Reason};

/// Where a run started by root keeps its state.
pub const ROOT_STATE: &str = "/var/lib/sandboxrun";
/// Who a run started by root becomes, if there is such a user: then nobody else's processes have its uid.
const OWN_USER: &str = "sandboxrun";
/// Who it becomes otherwise.
const ANY_USER: &str = "nobody";

/// The programs that a run starts, where an unprivileged user can reach them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// This program: answers git's questions for a credential.
    pub host: PathBuf,
    /// What runs inside sandboxes.
    pub pod: PathBuf,
}

/// What this process has become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Where it keeps its state.
    pub state_dir: PathBuf,
    /// What it starts.
    pub programs: Programs,
    /// The user it became, when root started it.
    pub became: Option<String>,
}

/// Why a local run cannot stand on this machine.
#[derive(Debug, thiserror::Error)]
pub enum StandingError {
    /// The kernel does not say where this program is.
    #[error("cannot tell where this program is")]
    OwnProgram(#[source] io::Error),
    /// There is no unprivileged user to become.
    #[error(
        "this was started as root and /etc/passwd has neither a user `{OWN_USER}` nor `{ANY_USER}`: add one of them"
    )]
    NoUser(#[source] io::Error),
    /// The change of identity failed.
    #[error("cannot become user `{user}`: start this as a normal user")]
    Become {
        /// Who.
        user: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The state directory cannot be used.
    #[error(
        "cannot use the state directory {path}: make it writable, or name another one with --state-dir"
    )]
    StateDir {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The state directory is out of the new user's reach.
    #[error(
        "user `{user}`, which this became, cannot reach {path}: let others pass the directories above it (chmod o+x), \
         or name another one with --state-dir"
    )]
    OutOfReach {
        /// Which.
        path: PathBuf,
        /// Who.
        user: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No home directory and no state directory.
    #[error("neither HOME nor XDG_STATE_HOME is set: name a state directory with --state-dir")]
    NoHome,
    /// The pod program is not there.
    #[error(
        "the program sandboxrun-pod is not beside this one ({path}): install both, or name it with --pod-program"
    )]
    NoPodProgram {
        /// Where it should be.
        path: PathBuf,
    },
}

impl Fault for StandingError {
    fn reason(&self) -> Reason {
        Reason::SandboxUnavailable
    }
}

/// Stands this process on an unprivileged user with a state directory and programs of its own.
///
/// # Errors
/// When there is no such user, directory or program. Nothing has been started then.
pub fn stand(
    state_dir: Option<PathBuf>,
    pod_program: Option<PathBuf>,
) -> Result<Standing, StandingError> {
    let host = std::env::current_exe().map_err(StandingError::OwnProgram)?;
    let pod = pod_program.unwrap_or_else(|| host.with_file_name("sandboxrun-pod"));
    if !pod.is_file() {
        return Err(StandingError::NoPodProgram { path: pod });
    }
    let mut programs = Programs { host, pod };
    let (state_dir, became) = stand_on(state_dir, |state_dir| {
        programs = within_reach(&programs, state_dir)?;
        Ok(())
    })?;
    Ok(Standing {
        state_dir,
        programs,
        became,
    })
}

/// The same, for commands that only read: the state directory.
///
/// # Errors
/// As [`stand`].
pub fn stand_to_read(state_dir: Option<PathBuf>) -> Result<PathBuf, StandingError> {
    stand_on(state_dir, |_| Ok(())).map(|(state_dir, _)| state_dir)
}

/// Finds or makes the state directory, does what only root can do, and gives up root. `as_root` is not called otherwise.
fn stand_on(
    state_dir: Option<PathBuf>,
    as_root: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(PathBuf, Option<String>), StandingError> {
    if !rustix::process::geteuid().is_root() {
        let state_dir = state_dir.map_or_else(default_state, Ok)?;
        make_dir(&state_dir, None)?;
        return Ok((state_dir, None));
    }
    let state_dir = state_dir.unwrap_or_else(|| PathBuf::from(ROOT_STATE));
    let user = unprivileged_user().map_err(StandingError::NoUser)?;
    make_dir(&state_dir, Some(&user))?;
    as_root(&state_dir).map_err(|source| StandingError::StateDir {
        path: state_dir.clone(),
        source,
    })?;
    user.become_this().map_err(|source| StandingError::Become {
        user: user.name.clone(),
        source,
    })?;
    // It may lie below a directory that only root may pass.
    fs::read_dir(&state_dir).map_err(|source| StandingError::OutOfReach {
        path: state_dir.clone(),
        user: user.name.clone(),
        source,
    })?;
    Ok((state_dir, Some(user.name)))
}

/// A user of `/etc/passwd` that is not root.
struct User {
    name: String,
    uid: u32,
    gid: u32,
}

impl User {
    /// Gives up root for good: groups, then gid, then uid.
    fn become_this(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

fn unprivileged_user() -> io::Result<User> {
    let passwd = fs::read_to_string("/etc/passwd")?;
    let find = |name| passwd.lines().find_map(|line| parse_user(line, name));
    find(OWN_USER)
        .or_else(|| find(ANY_USER))
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn parse_user(line: &str, name: &str) -> Option<User> {
    let mut fields = line.split(':');
    let user = User {
        name: fields.next()?.to_owned(),
        uid: fields.nth(1)?.parse().ok()?,
        gid: fields.next()?.parse().ok()?,
    };
    (user.name == name && user.uid != 0 && user.gid != 0).then_some(user)
}

fn default_state() -> Result<PathBuf, StandingError> {
    let absolute = |key: &str| {
        std::env::var_os(key)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("sandboxrun"))
        .ok_or(StandingError::NoHome)
}

/// A directory that only its owner can look into.
fn make_dir(path: &Path, owner: Option<&User>) -> Result<(), StandingError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| match owner {
            Some(user) => chown(path, Some(user.uid), Some(user.gid)),
            None => Ok(()),
        });
    made.map_err(|source| StandingError::StateDir {
        path: path.to_owned(),
        source,
    })
}

/// Copies of the programs that stay root's and that everybody may run: they may lie in root's home directory now.
fn within_reach(programs: &Programs, state_dir: &Path) -> io::Result<Programs> {
    let bin = state_dir.join("bin");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&bin)?;
    fs::set_permissions(&bin, fs::Permissions::from_mode(0o755))?;
    Ok(Programs {
        host: copy(&programs.host, &bin)?,
        pod: copy(&programs.pod, &bin)?,
    })
}

/// Copies by rename, so that a program that is running now is not changed. Skipped where the same file is there.
fn copy(program: &Path, bin: &Path) -> io::Result<PathBuf> {
    let from = fs::metadata(program)?;
    let stamp = from
        .modified()?
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let to = bin.join(format!("{name}-{}-{stamp}", from.len()));
    if !to.exists() {
        let half = bin.join(format!(".{name}.{}", std::process::id()));
        fs::copy(program, &half)?;
        fs::set_permissions(&half, fs::Permissions::from_mode(0o755))?;
        fs::rename(&half, &to)?;
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::right("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin", true)]
    #[case::other("daemon:x:1:1::/:/bin/sh", false)]
    #[case::root_by_another_name("nobody:x:0:0::/:/bin/sh", false)]
    #[case::broken("nobody", false)]
    fn v08_only_an_unprivileged_user_is_taken(#[case] line: &str, #[case] taken: bool) {
        assert_eq!(parse_user(line, "nobody").is_some(), taken);
    }
}
