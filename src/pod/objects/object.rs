//! What commits and trees say.

use super::ObjectId;
use crate::api::ObjectFormat;

/// The four kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A commit.
    Commit,
    /// A directory.
    Tree,
    /// A file's content or a symlink's target.
    Blob,
    /// An annotated tag.
    Tag,
}

impl Kind {
    /// git's own word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }
}

/// An object's content is not what its kind asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// No `tree` line, or a broken one.
    #[error("a commit without a tree")]
    BadCommit,
    /// An entry that is cut or has no mode, name or id.
    #[error("a tree with a broken entry")]
    BadTree,
}

/// The part of a commit that matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Its tree.
    pub tree: ObjectId,
    /// Its parents.
    pub parents: Vec<ObjectId>,
}

impl Commit {
    /// Reads the header of a commit.
    ///
    /// # Errors
    /// When the first line is not a tree's id.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, ObjectError> {
        let mut lines = content.split(|b| *b == b'\n');
        let tree = lines
            .next()
            .and_then(|line| line.strip_prefix(b"tree "))
            .and_then(ObjectId::from_hex)
            .ok_or(ObjectError::BadCommit)?;
        let parents = lines
            .map_while(|line| line.strip_prefix(b"parent "))
            .map(|hex| ObjectId::from_hex(hex).ok_or(ObjectError::BadCommit))
            .collect::<Result<_, _>>()?;
        Ok(Self { tree, parents })
    }
}

/// One line of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TreeEntry<'a> {
    /// The mode as a number, such as `0o100_644`.
    pub mode: u32,
    /// The name's bytes, as they are.
    pub name: &'a [u8],
    /// The object.
    pub id: ObjectId,
}

/// The entries of a tree, in its own order.
pub(crate) struct TreeEntries<'a> {
    rest: &'a [u8],
    id_len: usize,
}

impl<'a> TreeEntries<'a> {
    /// Reads a tree's content.
    #[must_use]
    pub(crate) fn new(content: &'a [u8], format: ObjectFormat) -> Self {
        Self {
            rest: content,
            id_len: super::raw_len(format),
        }
    }

    fn parse_next(&mut self) -> Option<TreeEntry<'a>> {
        let space = self.rest.iter().take(8).position(|b| *b == b' ')?;
        let (mode, rest) = self.rest.split_at_checked(space)?;
        let mode = u32::from_str_radix(std::str::from_utf8(mode).ok()?, 8).ok()?;
        let rest = rest.get(1..)?;
        let nul = rest.iter().position(|b| *b == 0)?;
        let (name, rest) = rest.split_at_checked(nul)?;
        let (id, rest) = rest.get(1..)?.split_at_checked(self.id_len)?;
        self.rest = rest;
        Some(TreeEntry {
            mode,
            name,
            id: ObjectId::from_raw(id)?,
        })
    }
}

impl<'a> Iterator for TreeEntries<'a> {
    type Item = Result<TreeEntry<'a>, ObjectError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        Some(self.parse_next().ok_or_else(|| {
            self.rest = &[];
            ObjectError::BadTree
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_tree_is_an_error_and_then_the_end() {
        let mut tree = b"100644 a\0".to_vec();
        tree.extend([7; 20]);
        tree.extend(b"40000 b\0short");
        let mut entries = TreeEntries::new(&tree, ObjectFormat::Sha1);
        assert_eq!(entries.next().unwrap().unwrap().name, b"a");
        assert_eq!(entries.next(), Some(Err(ObjectError::BadTree)));
        assert_eq!(entries.next(), None);
    }

    #[test]
    fn a_commit_has_a_tree_and_parents() {
        let a = "a".repeat(40);
        let b = "b".repeat(40);
        let text = format!("tree {a}\nparent {b}\nparent {a}\nauthor x\n\nparent {a}\n");
        let commit = Commit::parse(text.as_bytes()).unwrap();
        assert_eq!(commit.tree.to_string(), a);
        assert_eq!(commit.parents.len(), 2);
        assert!(Commit::parse(b"parent x").is_err());
    }
}
