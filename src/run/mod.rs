//! The life of one run, as pure functions: [`plan`] says what to do next, [`conclude`] how it ended, [`status`] what
//! users see. No I/O, no clock, no randomness: the shells (`local/`, `controller/`) observe and act.
//!
//! A shell loops: observe ([`Observed`]), `plan`, carry out the [`Action`]s, again. Each action is safe to repeat and
//! safe to be late: whatever must happen once goes through the record's compare and set, which refuses the second.

mod conclude;
mod plan;
mod seen;
mod status;
#[cfg(test)]
mod tests;

pub use conclude::{Ending, conclude};
pub use plan::{Action, Limits, plan, start_deadline};
pub use seen::{
    AttemptFacts, AttemptState, EndFacts, InputFacts, Observed, OutcomeFacts, OutputFacts, Pod,
    PodTrouble, Policy, RecordFacts, Resolution, ResolvedInput, SpecFacts, Wish,
};
pub use status::{
    outlived_its_record, outlived_status, recorded_status, status, undecodable_status,
    unrecorded_status, write_due,
};
