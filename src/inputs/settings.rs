//! What the administrator sets for inputs: where state lies, which closed addresses are open after all, and every
//! waiting time and bound.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::AddressException;

/// What the administrator sets for inputs. [`Settings::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The directory of mirrors and packs. On a volume of its own in a cluster.
    pub state_dir: PathBuf,
    /// `false`: a run that has inputs ends with `sandbox.workspace_inputs_disabled` before anything happens.
    pub enabled: bool,
    /// Closed addresses that may be reached, each by host, range and port together.
    pub address_exceptions: Vec<AddressException>,
    /// Addresses that no exception opens: those of the API server.
    pub always_refused: Vec<IpAddr>,
    /// Waiting times.
    pub times: Times,
    /// Bounds.
    pub limits: Limits,
    /// The programs that fetch, and what they may use up.
    pub fetch: FetchSettings,
}

impl Settings {
    /// The defaults, with this state directory.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            enabled: true,
            address_exceptions: Vec::new(),
            always_refused: Vec::new(),
            times: Times::default(),
            limits: Limits::default(),
            fetch: FetchSettings::default(),
        }
    }
}

/// Waiting times of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// A name is resolved and a connection stands within this, or the attempt ends.
    pub connect: Duration,
    /// So long without a byte ends an attempt.
    pub stall: Duration,
    /// One listing takes no longer, however steadily a server drips.
    pub attempt: Duration,
    /// The longest first wait between two attempts; it doubles with each.
    pub backoff_first: Duration,
    /// The longest wait between two attempts.
    pub backoff_max: Duration,
    /// What is transient is tried again for so long.
    pub give_up: Duration,
    /// Refused credentials, and repositories and refs that are not found, are tried again for so long: a forge may
    /// be a moment behind.
    pub brief: Duration,
    /// A Connector or Secret that is not there yet is waited for so long.
    pub missing: Duration,
    /// How often it is looked for.
    pub missing_every: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            attempt: Duration::from_mins(5),
            backoff_first: Duration::from_secs(1),
            backoff_max: Duration::from_mins(1),
            give_up: Duration::from_mins(5),
            brief: Duration::from_secs(10),
            missing: Duration::from_mins(5),
            missing_every: Duration::from_secs(2),
        }
    }
}

/// Bounds of inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest listing that is read, in bytes. 800,000 refs of a server that cannot narrow are about 64 MiB.
    pub listing_bytes: u64,
    /// Questions to servers that are under way at once, in each namespace.
    pub listings_at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            listing_bytes: 256 << 20,
            listings_at_once: 32,
        }
    }
}

/// The programs that fetch, and what they may use up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchSettings {
    /// `git`: a name, looked for in [`Self::path`], or a whole path.
    pub git: OsString,
    /// `ssh`, likewise.
    pub ssh: OsString,
    /// Our own program, which git asks for credentials: it must know the command `credential-helper`.
    pub helper_program: PathBuf,
    /// The `PATH` that programs get, and in which they are looked for.
    pub path: OsString,
    /// The longest fetch. Two gigabytes over 10 Mbit/s take half an hour.
    pub deadline: Duration,
    /// Fetches that are under way at once. Each may take the memory below.
    pub at_once: usize,
    /// Address space of each process of git, in bytes. Indexing ten million objects takes about 2 GiB.
    pub memory_bytes: u64,
    /// The most that one mirror may take on disk, in bytes.
    pub mirror_bytes: u64,
    /// The most that all mirrors and packs take on disk, in bytes. The least recently used go first; those in use stay.
    pub cache_bytes: u64,
    /// What must stay free on the volume of the state directory, in bytes.
    pub keep_free_bytes: u64,
}

impl Default for FetchSettings {
    fn default() -> Self {
        let found = std::env::var_os("PATH").filter(|path| !path.is_empty());
        Self {
            git: "git".into(),
            ssh: "ssh".into(),
            helper_program: std::env::current_exe().unwrap_or_else(|_| "sandboxrun".into()),
            path: found.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            deadline: Duration::from_mins(30),
            at_once: 8,
            memory_bytes: 4 << 30,
            mirror_bytes: 32 << 30,
            cache_bytes: 64 << 30,
            keep_free_bytes: 512 << 20,
        }
    }
}
