//! What users write and read, and what pods and gateway say to each other. No I/O.
//!
//! Text from outside becomes a type here, once: after this edge a value is right because of its type.
//! The custom resources need kube and are built with feature `host` only; names, codes and wire types are not.

mod code;
mod digest;
mod environment;
pub mod layout;
mod names;
mod refs;
mod repo_url;
#[cfg_attr(
    not(feature = "host"),
    expect(dead_code, reason = "the pod program reads no manifest")
)]
mod rules;
mod secret;
mod text;
pub mod wire;

#[cfg(feature = "host")]
mod connector;
#[cfg(feature = "host")]
pub mod crd;
#[cfg(feature = "host")]
mod event;
#[cfg(feature = "host")]
pub mod manifest;
#[cfg(feature = "host")]
mod parse;
#[cfg(feature = "host")]
mod quantity;
#[cfg(feature = "host")]
mod sandboxrun;
#[cfg(feature = "host")]
mod spec;
#[cfg(feature = "host")]
mod spec_digest;
#[cfg(feature = "host")]
mod status;
#[cfg(feature = "host")]
mod units;

pub use code::{Code, Failure, Fault, Healing, Reason};
pub use digest::{canonical_json, digest, hex, sha256_hex};
pub use environment::{FetchableInput, relay_environment};
pub use names::{
    Attempt, CommitId, ConnectorName, InputName, LookupName, NameError, Namespace, ObjectFormat,
    RunName, RunUid,
};
pub use refs::{RefError, RefName, RefSelector};
pub use repo_url::{Origin, RepoUrl, RepoUrlError, Transport};
pub use secret::{Secret, SecretError};
pub use text::safe_text;

#[cfg(feature = "host")]
pub use connector::*;
#[cfg(feature = "host")]
pub use event::{Call, Decision, Event, QueryDigest, RunKey, Via};
#[cfg(feature = "host")]
pub use parse::SpecError;
#[cfg(feature = "host")]
pub use quantity::{Quantity, QuantityError};
#[cfg(feature = "host")]
pub use sandboxrun::*;
#[cfg(feature = "host")]
pub use spec::*;
#[cfg(feature = "host")]
pub use status::*;
#[cfg(feature = "host")]
pub use units::{duration_text, quantity_text};
