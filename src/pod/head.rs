//! Reads where HEAD is, as text: no git, no configuration, no link followed.
//!
//! The `.git` may be the agent's. Every file is opened relative to a directory that was opened without following
//! links, must be a regular file, and is read up to a bound.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::api::CommitId;
use crate::api::wire::GitDir;

/// What `.git` and its HEAD are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whether `.git` is a git directory.
    pub git_dir: GitDir,
    /// The commit that HEAD leads to, if it does.
    pub commit: Option<CommitId>,
    /// The ref that HEAD names, if it is not detached.
    pub branch: Option<String>,
    /// Whether HEAD is a file with an id or the name of a ref in it.
    pub readable: bool,
}

/// A ref or HEAD: an id, or `ref: ` and a name of at most 4096 bytes.
const MAX_REF_FILE: u64 = 5000;
/// More packed refs than this are not searched: 800,000 refs take about 80 MB.
const MAX_PACKED_REFS: u64 = 256 << 20;
/// HEAD, and refs that name others, as git follows them.
const MAX_HOPS: usize = 5;

/// Opens the git directory of a work tree; `Err` says what is there instead.
///
/// # Errors
/// Missing or replaced.
pub(super) fn open_git_dir(root: impl AsFd) -> Result<OwnedFd, GitDir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || fs::openat(&root, ".git", flags, Mode::empty());
    let opened = match open() {
        Err(Errno::ACCESS) => {
            super::access::let_us_read(&root, b".git", true);
            open()
        }
        other => other,
    };
    let git = opened.map_err(|errno| match errno {
        Errno::NOENT => GitDir::Missing,
        _ => GitDir::Replaced,
    })?;
    let is = |name: &str, kind: FileType| {
        fs::statat(&git, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
    };
    if is("HEAD", FileType::RegularFile) && is("objects", FileType::Directory) {
        Ok(git)
    } else {
        Err(GitDir::Replaced)
    }
}

/// Reads HEAD of the work tree that `root` is.
#[must_use]
pub(super) fn read(root: impl AsFd) -> Seen {
    match open_git_dir(root) {
        Ok(git) => read_head(&git),
        Err(git_dir) => Seen {
            git_dir,
            commit: None,
            branch: None,
            readable: false,
        },
    }
}

fn read_head(git: &OwnedFd) -> Seen {
    let mut seen = Seen {
        git_dir: GitDir::Intact,
        commit: None,
        branch: None,
        readable: false,
    };
    let Some(mut text) = small_file(git, "HEAD") else {
        return seen;
    };
    for hop in 0..MAX_HOPS {
        let Some(name) = text.strip_prefix("ref:").map(|name| name.trim().to_owned()) else {
            seen.commit = text.trim().parse().ok();
            seen.readable |= seen.commit.is_some();
            return seen;
        };
        if hop == 0 {
            seen.branch = Some(name.clone());
            seen.readable = true;
        }
        if !name.starts_with("refs/") {
            return seen;
        }
        let Some(next) = small_file(git, &name) else {
            seen.commit = packed_ref(git, &name);
            return seen;
        };
        text = next;
    }
    seen
}

/// Opens a regular file below a directory, no part of the path being a link.
pub(crate) fn open_below(git: &OwnedFd, path: &str) -> Option<File> {
    let (directory, name) = match path.rsplit_once('/') {
        Some((directory, name)) => (Some(open_directory_below(git, directory)?), name),
        None => (None, path),
    };
    let at = directory.as_ref().unwrap_or(git);
    if !is_name(name) {
        return None;
    }
    let stat = fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::openat(at, name, flags, Mode::empty())
        .ok()
        .map(File::from)
}

/// Opens a directory below another, no part of the path being a link.
pub(crate) fn open_directory_below(git: &OwnedFd, path: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory: Option<OwnedFd> = None;
    for part in path.split('/') {
        if !is_name(part) {
            return None;
        }
        let at = directory.as_ref().unwrap_or(git);
        directory = Some(fs::openat(at, part, flags, Mode::empty()).ok()?);
    }
    directory
}

fn is_name(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains('\0')
}

fn small_file(git: &OwnedFd, path: &str) -> Option<String> {
    let mut text = String::new();
    let file = open_below(git, path)?;
    file.take(MAX_REF_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

fn packed_ref(git: &OwnedFd, name: &str) -> Option<CommitId> {
    let mut lines = BufReader::new(open_below(git, "packed-refs")?.take(MAX_PACKED_REFS));
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut lines)
            .take(MAX_REF_FILE)
            .read_until(b'\n', &mut line)
            .ok()?
            == 0
        {
            return None;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let mut words = text.splitn(2, |b| *b == b' ');
        if let (Some(id), Some(found)) = (words.next(), words.next())
            && found == name.as_bytes()
        {
            return std::str::from_utf8(id).ok()?.parse().ok();
        }
    }
}
