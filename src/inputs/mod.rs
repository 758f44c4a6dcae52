//! The host side of inputs: which commit a run starts from, with which credential, and its packs.
//!
//! [`Inputs`] is the face of the room. It resolves the refs of a run, all or nothing, and hands out checked
//! credentials and HTTP clients that reach their own origin and nothing else. It holds no run and writes no record.

mod address;
mod base64;
mod client;
mod closed;
mod credential;
mod face;
mod flight;
mod git_side;
mod holds;
mod http;
mod list_error;
mod listing;
mod pin;
pub mod pkt;
pub mod protocol;
mod resolve;
mod retry;
mod settings;
mod sources;

pub use address::{
    AddressError, AddressException, AddressExceptionError, AddressGuard, Names, SystemNames,
};
pub use client::{Endpoint, OriginClient};
pub use closed::Closed;
pub use credential::{Credential, CredentialKey, ORIGIN_ANNOTATION, Shown, basic};
pub use face::{CredentialProof, Inputs, Progress, ResolvedInput};
pub use git_side::{GitSide, ObjectSeen, Remote, Wanted};
pub use list_error::ListError;
pub use listing::{Head, Listed, Listing, Wants};
pub use settings::{Limits, Settings, Times};
pub use sources::{SecretBytes, SecretObject, SourceError, Sources};
