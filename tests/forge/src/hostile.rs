//! Repositories that want to do harm, and objects that git itself would not write.

use crate::{Change, ForgeError, ObjectFormat, Repo};

/// A tree that wants to leave its directory or to have something run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// A symlink `link` to a directory outside, and a directory `link` with a file in it.
    SymlinkAndFileBelow,
    /// A file `.git/config` and a hook in `.git/hooks`.
    DotGit,
    /// The same as `.GIT`, which is `.git` where case does not count.
    DotGitUpper,
    /// The same as `git~1`, the short name of `.git` on other systems.
    DotGitShort,
    /// The same as `.git` with a zero-width joiner in it, which HFS+ ignores.
    DotGitInvisible,
    /// A directory `..` with a file in it.
    Parent,
    /// A directory `.` with a file in it.
    Dot,
    /// A file whose name holds a slash: `../escaped`.
    SlashInName,
    /// A file whose name is an absolute path.
    AbsoluteName,
    /// A file whose name is empty.
    EmptyName,
    /// One name twice.
    Twice,
    /// A `.gitmodules` that is a symlink.
    SymlinkGitmodules,
    /// A submodule whose path and URL are options and commands.
    Submodule,
    /// Attributes that ask for filters, merge drivers and re-encoding of every file.
    Attributes,
}

impl Hostile {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::SymlinkAndFileBelow,
        Self::DotGit,
        Self::DotGitUpper,
        Self::DotGitShort,
        Self::DotGitInvisible,
        Self::Parent,
        Self::Dot,
        Self::SlashInName,
        Self::AbsoluteName,
        Self::EmptyName,
        Self::Twice,
        Self::SymlinkGitmodules,
        Self::Submodule,
        Self::Attributes,
    ];
}

/// One line of a tree object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    mode: &'static str,
    name: Vec<u8>,
    id: String,
}

impl TreeEntry {
    /// An entry with a mode as git writes it: `100644`, `100755`, `120000`, `160000`, `40000`.
    pub fn new(mode: &'static str, name: impl Into<Vec<u8>>, id: impl Into<String>) -> Self {
        Self {
            mode,
            name: name.into(),
            id: id.into(),
        }
    }
}

impl Repo {
    /// Writes an object of any type (`blob`, `tree`, `commit`, `tag`) with exactly these bytes, right or
    /// wrong, and returns its id.
    ///
    /// # Errors
    /// When git fails.
    pub fn object(&self, kind: &str, bytes: &[u8]) -> Result<String, ForgeError> {
        self.git_with(
            &["hash-object", "-t", kind, "-w", "--stdin", "--literally"],
            bytes,
        )
    }

    /// Writes a tree with exactly these entries in this order.
    ///
    /// # Errors
    /// When an id is not hexadecimal, or git fails.
    pub fn raw_tree(&self, entries: &[TreeEntry]) -> Result<String, ForgeError> {
        let mut bytes = Vec::new();
        for TreeEntry { mode, name, id } in entries {
            bytes.extend_from_slice(mode.as_bytes());
            bytes.push(b' ');
            bytes.extend_from_slice(name);
            bytes.push(0);
            bytes.extend(unhex(id).ok_or_else(|| ForgeError::Bad(format!("`{id}` is no id")))?);
        }
        self.object("tree", &bytes)
    }

    /// Commits a tree, points `branch` at the commit and returns its id.
    ///
    /// # Errors
    /// When git fails.
    pub fn commit_tree(&self, branch: &str, tree: &str) -> Result<String, ForgeError> {
        self.tick();
        let commit = self.git(&["commit-tree", "-m", "A tree as it is", tree])?;
        self.branch(branch, &commit)?;
        Ok(commit)
    }

    /// Commits a hostile tree to `branch` and returns the commit's id. `outside` is the directory that
    /// symlinks point to.
    ///
    /// # Errors
    /// When git fails.
    pub fn hostile(
        &self,
        branch: &str,
        kind: Hostile,
        outside: &str,
    ) -> Result<String, ForgeError> {
        let file = self.object("blob", b"written by a hostile tree\n")?;
        let script = self.object("blob", b"#!/bin/sh\ntouch ran-a-hook\n")?;
        let link = self.object("blob", outside.as_bytes())?;
        let below = self.raw_tree(&[TreeEntry::new("100644", "escaped", &file)])?;
        let entries = match kind {
            Hostile::SymlinkAndFileBelow => vec![
                TreeEntry::new("120000", "link", link),
                TreeEntry::new("40000", "link", below),
            ],
            Hostile::DotGit => self.git_like(".git", script)?,
            Hostile::DotGitUpper => self.git_like(".GIT", script)?,
            Hostile::DotGitShort => self.git_like("git~1", script)?,
            Hostile::DotGitInvisible => self.git_like(".g\u{200d}it", script)?,
            Hostile::Parent => vec![TreeEntry::new("40000", "..", below)],
            Hostile::Dot => vec![TreeEntry::new("40000", ".", below)],
            Hostile::SlashInName => vec![TreeEntry::new("100644", "../escaped", file)],
            Hostile::AbsoluteName => {
                vec![TreeEntry::new("100644", format!("{outside}/escaped"), file)]
            }
            Hostile::EmptyName => vec![TreeEntry::new("100644", "", file)],
            Hostile::Twice => vec![
                TreeEntry::new("100644", "name", file),
                TreeEntry::new("100755", "name", script),
            ],
            Hostile::SymlinkGitmodules => vec![TreeEntry::new("120000", ".gitmodules", link)],
            Hostile::Submodule => return self.hostile_submodule(branch),
            Hostile::Attributes => return self.hostile_attributes(branch),
        };
        let tree = self.raw_tree(&entries)?;
        self.commit_tree(branch, &tree)
    }

    /// A directory that would be a git directory, under this name.
    fn git_like(&self, name: &str, script: String) -> Result<Vec<TreeEntry>, ForgeError> {
        let config = self.object("blob", b"[core]\n\tfsmonitor = touch ran-fsmonitor\n")?;
        let hooks = self.raw_tree(&[TreeEntry::new("100755", "post-checkout", script)])?;
        let inner = self.raw_tree(&[
            TreeEntry::new("100644", "config", config),
            TreeEntry::new("40000", "hooks", hooks),
        ])?;
        Ok(vec![TreeEntry::new("40000", name, inner)])
    }

    fn hostile_submodule(&self, branch: &str) -> Result<String, ForgeError> {
        let modules = "[submodule \"../../outside\"]\n\tpath = -u./payload\n\
            \turl = ext::sh -c touch% ran-a-submodule\n\tupdate = !touch ran-an-update\n";
        let commit = match self.format()? {
            ObjectFormat::Sha1 => "1".repeat(40),
            ObjectFormat::Sha256 => "1".repeat(64),
        };
        self.commit_from(
            branch,
            None,
            &[
                Change::file(".gitmodules", modules),
                Change::gitlink("-u./payload", commit),
            ],
        )
    }

    fn hostile_attributes(&self, branch: &str) -> Result<String, ForgeError> {
        let attributes = "* filter=evil diff=evil merge=evil ident\n*.bin filter=lfs -text\n\
            *.txt working-tree-encoding=UTF-16 eol=crlf\n";
        self.commit_from(
            branch,
            None,
            &[
                Change::file(".gitattributes", attributes),
                Change::file("plain", "$Id$\n"),
                Change::file("text.txt", "one\ntwo\n"),
                Change::lfs_pointer("big.bin", 1 << 30),
            ],
        )
    }
}

fn unhex(id: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = id
        .chars()
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    Some(
        pairs
            .map(|pair| pair.iter().fold(0, |byte, digit| (byte << 4) | digit))
            .collect(),
    )
}
