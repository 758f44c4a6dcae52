//! The host side of inputs: which commit a run starts from, with which credential, and its packs.
//!
//! [`Inputs`] is the face of the room. It resolves the refs of a run, all or nothing, and hands out checked
//! credentials and HTTP clients that reach their own origin and nothing else. It holds no run and writes no record.

mod address;
mod base64;
mod credential;
mod git_side;
mod listing;
mod resolve;
mod settings;
mod sources;

pub use address::{
    AddressError, AddressException, AddressExceptionError, AddressGuard, Closed, Names, SystemNames,
};
pub use credential::{Credential, CredentialKey, ORIGIN_ANNOTATION, Shown, basic};
pub use git_side::{GitSide, ObjectSeen, Remote, Wanted};
pub use listing::{Head, Listed, Listing, Wants};
pub use resolve::{CredentialProof, Inputs, Progress, ResolvedInput};
pub use settings::{Limits, Settings, Times};
pub use sources::{SecretBytes, SecretObject, SourceError, Sources};
