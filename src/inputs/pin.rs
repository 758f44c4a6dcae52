//! Which commit a listing leads to. Pure: names are compared exactly and never made up.

use super::{Head, Listing, ObjectSeen};
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
    /// A plain id that is an annotated tag.
    #[error("{tag} is an annotated tag: write its commit, {commit}")]
    IdOfTag {
        /// The tag.
        tag: CommitId,
        /// What it leads to.
        commit: CommitId,
    },
    /// A name or an id that leads to something else.
    #[error("{what} leads to a {kind}, not to a commit")]
    NotACommit {
        /// The name, or the id where there is none.
        what: String,
        /// git's own word for what it leads to.
        kind: &'static str,
    },
}

impl Fault for PinError {
    fn reason(&self) -> Reason {
        match self {
            Self::NoSuchRef { .. } | Self::UnbornHead { .. } | Self::NoHead => Reason::RefNotFound,
            Self::Empty => Reason::EmptyRepository,
            Self::OtherFormat { .. } => Reason::UnsupportedObjectFormat,
            Self::IdOfTag { .. } | Self::NotACommit { .. } => Reason::NotACommit,
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

/// What is pinned, once it is seen what the id is.
pub(super) fn settle(pinned: Pinned, seen: ObjectSeen) -> Result<Pinned, PinError> {
    match (seen, &pinned.resolved_ref) {
        (ObjectSeen::Commit, _) => Ok(Pinned {
            certain: true,
            ..pinned
        }),
        // A server that does not peel, or not to the end.
        (ObjectSeen::TagOfCommit(commit), Some(_)) => Ok(Pinned {
            tag_object: Some(pinned.tag_object.unwrap_or(pinned.id)),
            id: commit,
            certain: true,
            resolved_ref: pinned.resolved_ref,
        }),
        (ObjectSeen::TagOfCommit(commit), None) => Err(PinError::IdOfTag {
            tag: pinned.id,
            commit,
        }),
        (ObjectSeen::NotACommit(kind), name) => {
            let what = name
                .as_ref()
                .map_or_else(|| pinned.id.to_string(), RefName::to_string);
            Err(PinError::NotACommit { what, kind })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ObjectFormat;
    use crate::inputs::Listed;
    use rstest::rstest;
    use std::collections::BTreeMap;

    fn id(digit: char) -> CommitId {
        digit.to_string().repeat(40).parse().unwrap()
    }

    fn name(text: &str) -> RefName {
        text.parse().unwrap()
    }

    fn listing(empty: bool, head: Head) -> Listing {
        let tag = Listed {
            id: id('2'),
            peeled: Some(id('1')),
        };
        let light = Listed {
            id: id('1'),
            peeled: None,
        };
        let refs = BTreeMap::from([
            (name("refs/heads/main"), light.clone()),
            (name("refs/tags/v1"), tag),
            (name("refs/tags/light"), light),
        ]);
        let refs = if empty { BTreeMap::new() } else { refs };
        Listing {
            format: ObjectFormat::Sha1,
            head,
            refs,
            empty,
        }
    }

    fn pinned(selector: &RefSelector) -> Pinned {
        pin(selector, &listing(false, Head::Absent)).unwrap()
    }

    #[test]
    fn only_branches_and_heads_lead_to_commits_for_certain() {
        let branch = RefSelector::Branch(name("refs/heads/main"));
        let cases = [
            (branch, true),
            (RefSelector::Name(name("refs/heads/main")), true),
            (RefSelector::Tag(name("refs/tags/light")), false),
            (RefSelector::Name(name("refs/tags/v1")), false),
            (RefSelector::Commit(id('9')), false),
        ];
        for (selector, certain) in cases {
            assert_eq!(pinned(&selector).certain, certain, "{selector}");
        }
    }

    #[rstest]
    #[case::unborn_and_empty(true, Head::Unborn { branch: name("refs/heads/main") }, Reason::EmptyRepository)]
    #[case::absent_and_empty(true, Head::Absent, Reason::EmptyRepository)]
    #[case::unborn(false, Head::Unborn { branch: name("refs/heads/x") }, Reason::RefNotFound)]
    #[case::absent(false, Head::Absent, Reason::RefNotFound)]
    fn r06_a_head_that_leads_nowhere_has_two_reasons(
        #[case] empty: bool,
        #[case] head: Head,
        #[case] reason: Reason,
    ) {
        let error = pin(&RefSelector::Head, &listing(empty, head)).unwrap_err();
        assert_eq!(error.reason(), reason);
    }

    #[test]
    fn r01_a_server_that_peels_only_half_way_is_helped() {
        let tag = pinned(&RefSelector::Tag(name("refs/tags/v1")));
        let settled = settle(tag, ObjectSeen::TagOfCommit(id('3'))).unwrap();
        assert_eq!((settled.id, settled.tag_object), (id('3'), Some(id('2'))));
        let light = pinned(&RefSelector::Tag(name("refs/tags/light")));
        let settled = settle(light, ObjectSeen::TagOfCommit(id('3'))).unwrap();
        assert_eq!((settled.id, settled.tag_object), (id('3'), Some(id('1'))));
    }

    #[test]
    fn r07_the_id_of_a_tag_says_which_commit_to_write() {
        let plain = pinned(&RefSelector::Commit(id('9')));
        let error = settle(plain.clone(), ObjectSeen::TagOfCommit(id('3'))).unwrap_err();
        assert_eq!(error.reason(), Reason::NotACommit);
        assert!(
            error
                .to_string()
                .contains(&format!("write its commit, {}", id('3')))
        );
        let error = settle(plain, ObjectSeen::NotACommit("tree")).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{} leads to a tree, not to a commit", id('9'))
        );
    }
}
