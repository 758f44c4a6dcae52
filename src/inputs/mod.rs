//! The host side of inputs: which commit a run starts from, with which credential, and its packs.
//!
//! [`Inputs`] is the face of the room. It resolves the refs of a run, all or nothing, and hands out checked
//! credentials and HTTP clients that reach their own origin and nothing else. It holds no run and writes no record.

mod address;
mod client;
mod closed;
mod credential;
pub mod credential_helper;
mod face;
mod fetch;
mod fetch_error;
mod flight;
mod git;
mod git_side;
mod git_text;
mod holds;
mod http;
mod lease;
mod list_error;
mod listing;
mod mirror;
mod objects;
mod packs;
mod pin;
pub mod pkt;
mod process;
pub mod protocol;
mod resolve;
mod retry;
mod session;
mod settings;
mod sources;
mod ssh;
mod ssh_key;
mod ssh_relay;
mod ssh_side;
mod store;
mod trace;
mod way;

pub use address::{
    AddressError, AddressException, AddressExceptionError, AddressGuard, Names, SystemNames,
};
pub use client::{Endpoint, OriginClient};
pub use closed::Closed;
pub use credential::{Credential, CredentialKey, ORIGIN_ANNOTATION, Shown};
pub use face::{CredentialProof, Inputs, Progress, ResolvedInput};
pub use git::{Git, GitError};
pub use git_side::{GitSide, ObjectSeen, Remote, Wanted};
pub use list_error::ListError;
pub use listing::{Head, Listed, Listing, Wants};
pub use mirror::Mirror;
pub use packs::PackLease;
pub use settings::{FetchSettings, Limits, Settings, Times};
pub use sources::{SecretBytes, SecretObject, SourceError, Sources};
pub use ssh_relay::UploadPack;
