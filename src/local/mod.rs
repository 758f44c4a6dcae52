//! One run on this machine: the same life as in a cluster, with processes under bubblewrap in place of a pod.
//!
//! `run` decides, this room observes and acts. Nothing here runs as root: see [`privileges`]. What a machine cannot honour
//! is refused; what has no meaning here is said.

mod abandoned;
mod begin;
mod keep;
mod pod;
pub mod privileges;
mod sandbox;
mod shell;
mod sources;
mod state;
mod terminal;
mod watch;

pub use begin::{Ended, LocalError, Options, run};
pub use sources::Manifests;
pub use state::{State, StateError};
pub use terminal::{Screen, terminal_text};
