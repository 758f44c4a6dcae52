//! The operator against a real API server. Kubelets are played by the tests, so that every order of things can be had.
//!
//! `make e2e` runs these; by hand: `cargo test --test operator -- --ignored`, once `e2e/cluster/build` has made etcd and
//! kube-apiserver.
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at clocks and start programs as they need"
)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic"
)]
#![cfg(test)]

mod cluster;
mod life;
mod load;
mod objects;
mod operator;
mod pod;
mod pods;
mod policy;
mod restart;
