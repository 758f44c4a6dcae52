//! The record: an append-only chain of events for each run, in SQL.
//!
//! What happened is written *before* the action that it announces, and after with its outcome. Each event carries the
//! hash of the one before, so a change shows. The start grant lives here too: it is an event that is written once.

pub mod chain;
mod error;
mod export;
mod read;
mod record;
pub mod rules;
mod story;
mod writer;

pub use crate::api::{Call, Decision, Event, QueryDigest, RunKey, Via};
pub use chain::{ChainFault, Entry, Head, HeadError};
pub use error::RecordError;
pub use export::{ExportError, verify_export};
pub use read::{Finding, RunEnd, RunFilter, RunSummary, Verdict};
pub use record::{Clock, Record};
pub use rules::{Abandon, Grant, Rejected, RunState};
pub use story::{sentence, story};
