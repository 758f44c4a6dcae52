//! The kept workspace must not attack its owner: after `collect`, each `.git` is one that we made, at the pinned commit.
//!
//! The agent's own is kept beside it as a tar, unread. No link is followed, and nothing of the agent's runs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::state::{RunPaths, remove_tree};
use crate::api::wire::Plan;
use crate::inputs::PackLease;

/// A larger git directory is removed and not kept: a sparse file of an agent must not fill this machine's disk.
const TAR_BYTES: u64 = 1 << 30;

/// Sets aside everything in the kept directories that git would take for a repository, then gives each input a `.git` of
/// our own. Says what was set aside.
///
/// # Errors
/// The first thing that fails; the workspace is then not to be kept.
pub(super) fn replace_git_dirs(
    dirs: &RunPaths,
    plan: &Plan,
    packs: &[PackLease],
) -> io::Result<Vec<PathBuf>> {
    let mut aside = Vec::new();
    for top in [dirs.workspace(), dirs.sandbox().join("output")] {
        for path in repositories_below(&top)? {
            let tar = dirs
                .root()
                .join("agent-git")
                .join(format!("{}.tar", aside.len()));
            set_aside(&top, &path, &tar)?;
            aside.push(path);
        }
    }
    for (input, pack) in plan.inputs.iter().zip(packs) {
        if is_real_dir(&dirs.workspace(), Path::new(&input.path)) {
            let tree = dirs.workspace().join(&input.path);
            crate::pod::provision::restore(&tree, input, &pack.pack, &pack.index, &dirs.baseline())
                .map_err(io::Error::other)?;
        }
    }
    Ok(aside)
}

/// Whether every part of the path is a directory and no link: an agent may have put a link in its place.
fn is_real_dir(base: &Path, path: &Path) -> bool {
    let mut at = base.to_owned();
    path.components().all(|part| {
        at.push(part);
        fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_dir())
    })
}

/// Moves `tree/path`, whatever it is, into a tar.
fn set_aside(tree: &Path, path: &Path, tar: &Path) -> io::Result<()> {
    let from = tree.join(path);
    let Ok(meta) = fs::symlink_metadata(&from) else {
        return Ok(());
    };
    let size = apparent_size(&from)?;
    if size <= TAR_BYTES {
        pack(&meta, &from, path, tar)?;
    } else {
        tracing::error!(
            size,
            "a git directory of the agent is too large to be kept, and is removed"
        );
    }
    if meta.is_dir() {
        remove_tree(&from).map_err(io::Error::other)
    } else {
        fs::remove_file(&from)
    }
}

fn pack(meta: &fs::Metadata, from: &Path, name: &Path, tar: &Path) -> io::Result<()> {
    if let Some(parent) = tar.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut archive = tar::Builder::new(File::create(tar)?);
    archive.follow_symlinks(false);
    let packed = if meta.is_dir() {
        archive.append_dir_all(name, from)
    } else {
        archive.append_path_with_name(from, name)
    };
    if let Err(error) = packed {
        // What cannot be read (a mode of 000, a socket) is not worth more than the rest.
        tracing::warn!(%error, "a part of the agent's git directory could not be kept");
    }
    archive.finish()
}

/// What git would take for a repository of its own: every `.git`, in any spelling, and every directory that looks like a
/// bare one. Relative to `top`.
fn repositories_below(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for entry in read_dir(&top.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            let is_dir = entry.file_type()?.is_dir();
            if entry.file_name().eq_ignore_ascii_case(".git")
                || (is_dir && looks_bare(&entry.path()))
            {
                found.push(path);
            } else if is_dir {
                todo.push(path);
            }
        }
    }
    Ok(found)
}

/// The entries of a directory that is ours, whatever mode an agent gave it. What cannot be looked into cannot be called
/// safe, so that is an error.
fn read_dir(dir: &Path) -> io::Result<fs::ReadDir> {
    fs::read_dir(dir).or_else(|error| {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        fs::read_dir(dir)
    })
}

/// The bytes of a file or tree as `ls` would add them up; no link is followed.
fn apparent_size(path: &Path) -> io::Result<u64> {
    let mut sum = 0_u64;
    let mut todo = vec![path.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            for entry in read_dir(&path)? {
                todo.push(entry?.path());
            }
        } else {
            sum = sum.saturating_add(meta.len());
        }
    }
    Ok(sum)
}

/// The three things that git looks for in a directory that is to be a repository.
fn looks_bare(dir: &Path) -> bool {
    ["HEAD", "objects", "refs"]
        .iter()
        .all(|name| fs::symlink_metadata(dir.join(name)).is_ok())
}
