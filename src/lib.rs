//! `sandboxrun` runs coding agents on pinned inputs, without credentials, and writes down what happened.
//!
//! Rooms, from the bottom up: [`api`] is what users write and what pods and gateway say to each other;
//! `run` decides the life of a run; `manifest` makes pods and policies; `inputs`, `audit` and `gateway` are the host side; [`pod`] is everything
//! inside a pod; `local` and `cli` are what people start.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests look at clocks and start programs as they need"
    )
)]

pub mod api;
pub mod pod;

#[cfg(feature = "host")]
pub mod audit;
#[cfg(feature = "host")]
pub mod cli;
#[cfg(feature = "host")]
#[allow(
    clippy::disallowed_methods,
    reason = "its clock and tasks are still to be gathered"
)]
pub mod controller;
#[cfg(feature = "host")]
pub mod gateway;
#[cfg(feature = "host")]
pub mod inputs;
#[cfg(feature = "host")]
pub mod local;
#[cfg(feature = "host")]
pub mod manifest;
#[cfg(feature = "host")]
pub mod run;
