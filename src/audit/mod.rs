//! The record: an append-only chain of events for each run, in SQL.

mod event;

pub use event::{Call, Decision, Event, QueryDigest, RunKey, Via};
