//! Writes git's index (`.git/index`, version 2), so that `git status` is clean and fast from the first call.

use aws_lc_rs::digest;
use rustix::fs::Stat;

use crate::api::ObjectFormat;
use crate::pod::objects::{ObjectId, algorithm};

/// What the index holds of one path.
#[derive(Debug, Clone)]
pub(super) struct IndexEntry<'a> {
    /// Relative to the work tree.
    pub path: &'a [u8],
    /// The mode in the tree: `0o100644`, `0o100755`, `0o120000` or `0o160000`.
    pub mode: u32,
    /// The object.
    pub id: ObjectId,
    /// What `lstat` says of the file; zeros for a submodule.
    pub stat: IndexStat,
}

/// The part of `lstat` that git compares, cut to 32 bits as git cuts it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IndexStat {
    words: [u32; 8],
    size: u32,
}

impl IndexStat {
    /// Takes what git compares.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::unnecessary_cast,
        reason = "the index keeps the low 32 bits; the fields' types differ by architecture"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            words: [
                stat.st_ctime as u32,
                stat.st_ctime_nsec as u32,
                stat.st_mtime as u32,
                stat.st_mtime_nsec as u32,
                stat.st_dev as u32,
                stat.st_ino as u32,
                stat.st_uid as u32,
                stat.st_gid as u32,
            ],
            size: stat.st_size as u32,
        }
    }
}

/// A directory of the commit, for the index's cache of trees: with it `git status` compares one id for each
/// directory, and not one for each file.
#[derive(Debug, Clone)]
pub(super) struct TreeRecord {
    /// Relative to the work tree; empty for the root.
    pub path: Vec<u8>,
    /// The tree's id.
    pub id: ObjectId,
}

/// The whole index file. `entries` must be sorted by path.
#[must_use]
pub(super) fn write(
    format: ObjectFormat,
    entries: &[IndexEntry<'_>],
    trees: &mut [TreeRecord],
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(entries.len() * 112 + 64);
    out.extend_from_slice(b"DIRC\0\0\0\x02");
    out.extend_from_slice(&u32::try_from(entries.len()).ok()?.to_be_bytes());
    for entry in entries {
        let start = out.len();
        let [ctime, ctime_nsec, mtime, mtime_nsec, dev, ino, uid, gid] = entry.stat.words;
        for word in [
            ctime,
            ctime_nsec,
            mtime,
            mtime_nsec,
            dev,
            ino,
            entry.mode,
            uid,
            gid,
            entry.stat.size,
        ] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(entry.id.raw());
        let name_len = u16::try_from(entry.path.len())
            .unwrap_or(u16::MAX)
            .min(0x0fff);
        out.extend_from_slice(&name_len.to_be_bytes());
        out.extend_from_slice(entry.path);
        // At least one NUL, up to a multiple of 8.
        let padding = 8 - (out.len() - start) % 8;
        out.resize(out.len() + padding, 0);
    }
    let cache = tree_cache(entries, trees);
    out.extend_from_slice(b"TREE");
    out.extend_from_slice(&u32::try_from(cache.len()).ok()?.to_be_bytes());
    out.extend_from_slice(&cache);
    let checksum = digest::digest(algorithm(format), &out);
    out.extend_from_slice(checksum.as_ref());
    Some(out)
}

/// The `TREE` extension: directories in pre-order, each with the number of entries and of directories below it.
fn tree_cache(entries: &[IndexEntry<'_>], trees: &mut [TreeRecord]) -> Vec<u8> {
    // `a/b` must follow `a` at once, before `a-b`: compare by components.
    trees.sort_unstable_by(|a, b| {
        a.path
            .split(|c| *c == b'/')
            .cmp(b.path.split(|c| *c == b'/'))
    });
    let mut children = std::collections::HashMap::<&[u8], u32>::new();
    for tree in trees.iter().filter(|tree| !tree.path.is_empty()) {
        *children.entry(parent(&tree.path)).or_default() += 1;
    }
    let mut out = Vec::with_capacity(trees.len() * 48);
    for tree in trees.iter() {
        let count = if tree.path.is_empty() {
            entries.len()
        } else {
            below(entries, &tree.path)
        };
        let subtrees = children.get(tree.path.as_slice()).copied().unwrap_or(0);
        out.extend_from_slice(file_name(&tree.path));
        out.extend_from_slice(format!("\0{count} {subtrees}\n").as_bytes());
        out.extend_from_slice(tree.id.raw());
    }
    out
}

/// How many entries lie below a directory. They are neighbours, since entries are sorted.
fn below(entries: &[IndexEntry<'_>], dir: &[u8]) -> usize {
    let rank = |entry: &IndexEntry<'_>| -> std::cmp::Ordering {
        let head = entry.path.get(..dir.len()).unwrap_or(entry.path);
        head.cmp(dir)
            .then_with(|| entry.path.get(dir.len()).cmp(&Some(&b'/')))
    };
    let start = entries.partition_point(|e| rank(e).is_lt());
    let end = entries.partition_point(|e| rank(e).is_le());
    end - start
}

/// The directory that a path lies in; empty for the root.
#[must_use]
pub(super) fn parent(path: &[u8]) -> &[u8] {
    path.iter()
        .rposition(|b| *b == b'/')
        .and_then(|at| path.get(..at))
        .unwrap_or_default()
}

/// The last part of a path.
#[must_use]
pub(super) fn file_name(path: &[u8]) -> &[u8] {
    path.iter()
        .rposition(|b| *b == b'/')
        .and_then(|at| path.get(at + 1..))
        .unwrap_or(path)
}
