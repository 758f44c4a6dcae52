//! Inputs are fetched from real git servers into packs: by id and by every fallback, with credentials that nobody sees,
//! over https and ssh, within bounds.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

#[allow(
    dead_code,
    reason = "shared with the tests of listings, which use other parts"
)]
#[path = "../support/inputs.rs"]
mod support;

mod bounds;
mod ids;
mod packs;
mod secrets;
mod sharing;
mod ssh;
mod texts;
mod world;
