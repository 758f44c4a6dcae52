//! Whole runs on this machine, as a user starts them: the built programs, a real forge, real sandboxes, a real record.
//!
//! Started as root (as CI is), the program becomes an unprivileged user by itself: that is the case that must be right.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

mod support;

mod bad_input;
mod calls;
mod drift;
mod endings;
mod fail_closed;
mod faults;
mod git;
mod once;
mod pinned;
mod reach;
mod record;
mod secrets;
mod ways;
