//! What only a real cluster shows: API server, kubelet, container runtime, network policy, chart, kubectl.
//!
//! `make e2e` starts all that and runs these tests; without a cluster they are ignored. A test has a namespace of its own
//! and runs beside the others; those in `alone` do things to the operator itself and run one at a time afterwards; those in
//! a module `full` are long, and for `make e2e-full`.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
// `cfg(test)` is always so here; it tells clippy that helpers of tests may unwrap, too.
#![cfg(test)]

mod alone;
mod chart;
mod gitops;
mod lifecycle;
mod main_job;
mod manifests;
mod sandbox;
mod support;
mod verbs;
