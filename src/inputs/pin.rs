//! Which commit a listing leads to. Pure: names are compared exactly and never made up.

use super::{Head, Listing};
use crate::api::{CommitId, Fault, Reason, RefName, RefSelector};

/// What an input is pinned to, as far as a listing tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pinned {
    /// A commit, if [`Pinned::certain`]; else what the fetch will say.
    pub(super) id: CommitId,
    /// The annotated tag that led there.
    pub(super) tag_object: Option<CommitId>,
    /// The full name that led there.
    pub(super) resolved_ref: Option<RefName>,
    /// Branches and HEAD lead to commits. A tag may lead to anything, an id may be anything, or not be there.
    pub(super) certain: bool,
}

/// Why a listing leads to no commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PinError {
    /// No such name.
    #[error("there is no {name} in it")]
    NoSuchRef {
        /// The name, in full.
        name: RefName,
    },
    /// HEAD names a branch that is not there.
    #[error("its HEAD names {branch}, which does not exist: write the ref")]
    UnbornHead {
        /// The branch.
        branch: RefName,
    },
    /// The server does not say where HEAD is.
    #[error("it does not say where its HEAD is: write the ref")]
    NoHead,
    /// No ref at all.
    #[error("it has no commit yet")]
    Empty,
    /// An id of another object format.
    #[error("its objects are named by {theirs}, and commit {id} is {ours}")]
    OtherFormat {
        /// What the run asks for.
        id: CommitId,
        /// The format of that.
        ours: &'static str,
        /// The repository's.
        theirs: &'static str,
    },
}

impl Fault for PinError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoSuchRef { .. } | Self::UnbornHead { .. } | Self::NoHead => Reason::RefNotFound,
            Self::Empty => Reason::EmptyRepository,
            Self::OtherFormat { .. } => Reason::UnsupportedObjectFormat,
        }
    }
}

/// What a selector leads to.
pub(super) fn pin(selector: &RefSelector, listing: &Listing) -> Result<Pinned, PinError> {
    match selector {
        RefSelector::Head => head(listing),
        RefSelector::Branch(name) => named(name, listing, true),
        RefSelector::Tag(name) => named(name, listing, false),
        RefSelector::Name(name) => named(name, listing, name.as_str().starts_with("refs/heads/")),
        RefSelector::Commit(id) if id.format() != listing.format => Err(PinError::OtherFormat {
            id: id.clone(),
            ours: id.format().as_str(),
            theirs: listing.format.as_str(),
        }),
        RefSelector::Commit(_) if listing.empty => Err(PinError::Empty),
        RefSelector::Commit(id) => Ok(Pinned {
            id: id.clone(),
            tag_object: None,
            resolved_ref: None,
            certain: false,
        }),
    }
}

fn head(listing: &Listing) -> Result<Pinned, PinError> {
    match &listing.head {
        Head::At { id, branch } => Ok(Pinned {
            id: id.clone(),
            tag_object: None,
            resolved_ref: branch.clone(),
            certain: true,
        }),
        Head::Unborn { .. } | Head::Absent if listing.empty => Err(PinError::Empty),
        Head::Unborn { branch } => Err(PinError::UnbornHead {
            branch: branch.clone(),
        }),
        Head::Absent => Err(PinError::NoHead),
    }
}

fn named(name: &RefName, listing: &Listing, certain: bool) -> Result<Pinned, PinError> {
    let Some(listed) = listing.refs.get(name) else {
        return Err(if listing.empty {
            PinError::Empty
        } else {
            PinError::NoSuchRef { name: name.clone() }
        });
    };
    let tag_object = listed.peeled.as_ref().map(|_| listed.id.clone());
    Ok(Pinned {
        id: listed.peeled.clone().unwrap_or_else(|| listed.id.clone()),
        certain: certain && tag_object.is_none(),
        tag_object,
        resolved_ref: Some(name.clone()),
    })
}
