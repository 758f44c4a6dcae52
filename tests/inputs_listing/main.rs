//! Inputs are resolved against real git servers: refs, credentials, and every line of the table of what servers say.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

#[path = "../support/inputs.rs"]
mod support;

mod credentials;
mod refs;
mod table;
mod transfer;
