//! What a server says about its refs: as much of it as was wanted.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{CommitId, ObjectFormat, RefName};

/// What to ask a server for, beside its `HEAD`: full names, each compared exactly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Wants(pub BTreeSet<RefName>);

/// What a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// How the repository names its objects.
    pub format: ObjectFormat,
    /// Where the remote's HEAD points.
    pub head: Head,
    /// Those of the wanted names that are there.
    pub refs: BTreeMap<RefName, Listed>,
    /// The repository has no ref at all.
    pub empty: bool,
}

/// A ref as a server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// What it points to: for an annotated tag, the tag.
    pub id: CommitId,
    /// For a tag, what it leads to in the end; of unknown type.
    pub peeled: Option<CommitId>,
}

/// Where the remote's HEAD points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// To a commit.
    At {
        /// The commit.
        id: CommitId,
        /// The branch, if HEAD names one and the server says which.
        branch: Option<RefName>,
    },
    /// To a branch that does not exist.
    Unborn {
        /// The branch.
        branch: RefName,
    },
    /// The server said nothing about it.
    Absent,
}
