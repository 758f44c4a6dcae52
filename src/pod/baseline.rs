//! The baseline: what provision put on disk, kept where the agent cannot see it.
//!
//! One file an input, and [`MANIFEST`], which is written last and so says that all of them are whole. The format is ours
//! alone: entries sorted by directory and then by name, and a SHA-256 of everything at the end.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

use crate::api::{CommitId, InputName, RefName};

/// The file that lists the inputs.
pub(super) const MANIFEST: &str = "inputs.json";

/// What the baseline covers: enough to collect without asking anybody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    /// The inputs, in the plan's order.
    pub inputs: Vec<BaselineInput>,
}

/// An input as it was provisioned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BaselineInput {
    /// Its name.
    pub name: InputName,
    /// Where it lies, relative to the workspace.
    pub path: String,
    /// The pinned commit.
    pub commit: CommitId,
    /// The branch that HEAD names; absent: HEAD is detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<RefName>,
}

/// Why a baseline cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// Not there, or not readable or writable.
    #[error("the baseline `{file}` is not usable")]
    Io {
        /// The file's name.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not what was written.
    #[error("the baseline `{file}` is damaged")]
    Damaged {
        /// The file's name.
        file: String,
    },
}

/// What kind of thing an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A regular file.
    File,
    /// A regular file with the owner's exec bit.
    Executable,
    /// A symlink; size and hash are those of its target's text.
    Symlink,
    /// A directory that holds entries.
    Directory,
    /// The directory of a submodule, left empty.
    Submodule,
}

impl EntryKind {
    const ALL: [Self; 5] = [
        Self::File,
        Self::Executable,
        Self::Symlink,
        Self::Directory,
        Self::Submodule,
    ];
}

/// One entry, as it is handed to [`write`].
#[derive(Debug, Clone)]
pub(super) struct NewEntry<'a> {
    /// The whole path, relative to the input.
    pub path: &'a [u8],
    /// What it is.
    pub kind: EntryKind,
    /// Bytes on disk.
    pub size: u64,
    /// SHA-256 of them.
    pub sha256: [u8; 32],
}

const MAGIC: &[u8] = b"sandboxrun baseline 1\n";

/// Writes the baseline of one input; the file is whole or not there.
///
/// # Errors
/// When the directory does not take it.
pub(super) fn write(
    directory: &Path,
    input: &InputName,
    mut entries: Vec<NewEntry<'_>>,
) -> Result<(), BaselineError> {
    entries.sort_unstable_by(|a, b| split(a.path).cmp(&split(b.path)));
    let mut out = Vec::with_capacity(entries.len() * 96 + 64);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&(entries.len() as u64).to_be_bytes());
    for entry in &entries {
        out.push(entry.kind as u8);
        out.extend_from_slice(&entry.size.to_be_bytes());
        out.extend_from_slice(&entry.sha256);
        out.extend_from_slice(
            &u16::try_from(entry.path.len())
                .unwrap_or(u16::MAX)
                .to_be_bytes(),
        );
        out.extend_from_slice(entry.path);
    }
    let sum = digest::digest(&digest::SHA256, &out);
    out.extend_from_slice(sum.as_ref());
    replace(directory, &file_name(input), &out)
}

/// Writes the list of inputs. From then on the baseline is whole.
///
/// # Errors
/// When the directory does not take it.
pub(super) fn write_manifest(directory: &Path, manifest: &Manifest) -> Result<(), BaselineError> {
    let text =
        serde_json::to_vec_pretty(manifest).map_err(|e| io_error(MANIFEST)(io::Error::other(e)))?;
    replace(directory, MANIFEST, &text)
}

/// The file with the git index of an input as it was provisioned: what a repository is made from that must not hold
/// anything of the agent's.
pub(super) fn index_name(input: &InputName) -> String {
    format!("{input}.index")
}

/// Removes what an earlier start wrote, the list of inputs first.
///
/// # Errors
/// When a file cannot be removed.
pub(super) fn clear(directory: &Path, inputs: &[InputName]) -> Result<(), BaselineError> {
    let names = std::iter::once(MANIFEST.to_owned())
        .chain(inputs.iter().map(file_name))
        .chain(inputs.iter().map(index_name));
    for name in names {
        match fs::remove_file(directory.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(io_error(&name)(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Reads the list of inputs.
///
/// # Errors
/// When it is not there or damaged.
pub(super) fn read_manifest(directory: &Path) -> Result<Manifest, BaselineError> {
    let bytes = fs::read(directory.join(MANIFEST)).map_err(io_error(MANIFEST))?;
    serde_json::from_slice(&bytes).map_err(|_| BaselineError::Damaged {
        file: MANIFEST.to_owned(),
    })
}

/// Reads the bytes of an input's baseline and proves that they are whole.
///
/// # Errors
/// When they are not there or damaged.
pub(super) fn read(directory: &Path, input: &InputName) -> Result<Vec<u8>, BaselineError> {
    let name = file_name(input);
    let mut bytes = Vec::new();
    File::open(directory.join(&name))
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(io_error(&name))?;
    let damaged = || BaselineError::Damaged { file: name.clone() };
    let body = bytes.len().checked_sub(32).ok_or_else(damaged)?;
    let (content, sum) = bytes.split_at_checked(body).ok_or_else(damaged)?;
    if digest::digest(&digest::SHA256, content).as_ref() != sum {
        return Err(damaged());
    }
    bytes.truncate(body);
    Ok(bytes)
}

/// An entry of a baseline that was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'b> {
    /// Its name in its directory.
    pub name: &'b [u8],
    /// What it is.
    pub kind: EntryKind,
    /// Bytes on disk.
    pub size: u64,
    /// SHA-256 of them.
    pub sha256: &'b [u8],
}

/// A baseline, directory by directory.
pub(super) struct Baseline<'b> {
    directories: HashMap<&'b [u8], Vec<Entry<'b>>>,
}

impl<'b> Baseline<'b> {
    /// Takes apart what [`read`] returned. `None`: it is damaged.
    #[must_use]
    pub(super) fn parse(bytes: &'b [u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let count = u64::from_be_bytes(*take::<8>(&mut rest)?);
        let mut directories = HashMap::<&[u8], Vec<Entry<'_>>>::new();
        // An input without a file still has its root.
        let mut current: (&[u8], Vec<Entry<'_>>) = (b"", Vec::new());
        for _ in 0..count {
            let kind = *EntryKind::ALL.get(usize::from(*take::<1>(&mut rest)?.first()?))?;
            let size = u64::from_be_bytes(*take::<8>(&mut rest)?);
            let sha256 = take::<32>(&mut rest)?.as_slice();
            let length = usize::from(u16::from_be_bytes(*take::<2>(&mut rest)?));
            let (path, after) = rest.split_at_checked(length)?;
            rest = after;
            let (directory, name) = split(path);
            if directory != current.0 {
                directories.insert(current.0, std::mem::take(&mut current.1));
                current.0 = directory;
            }
            current.1.push(Entry {
                name,
                kind,
                size,
                sha256,
            });
        }
        directories.insert(current.0, current.1);
        directories.entry(b"").or_default();
        rest.is_empty().then_some(Self { directories })
    }

    /// The entries of a directory, sorted by name; `None`: the baseline has no such directory.
    #[must_use]
    pub(super) fn directory(&self, path: &[u8]) -> Option<&[Entry<'b>]> {
        self.directories.get(path).map(Vec::as_slice)
    }
}

fn take<'b, const N: usize>(rest: &mut &'b [u8]) -> Option<&'b [u8; N]> {
    let (head, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(head)
}

/// A path's directory (empty for the root) and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (
            path.get(..at).unwrap_or_default(),
            path.get(at + 1..).unwrap_or_default(),
        ),
        None => (b"", path),
    }
}

fn file_name(input: &InputName) -> String {
    format!("{input}.baseline")
}

fn replace(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), BaselineError> {
    let part = directory.join(format!("{name}.part"));
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(bytes)?;
        drop(file);
        fs::rename(&part, directory.join(name))
    };
    write().map_err(io_error(name))
}

fn io_error(file: &str) -> impl FnOnce(io::Error) -> BaselineError {
    let file = file.to_owned();
    move |source| BaselineError::Io { file, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &[u8], kind: EntryKind) -> NewEntry<'_> {
        NewEntry {
            path,
            kind,
            size: 7,
            sha256: [9; 32],
        }
    }

    #[test]
    fn what_was_written_is_read_and_a_changed_byte_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let input: InputName = "app".parse().unwrap();
        let entries = vec![
            entry(b"b", EntryKind::Executable),
            entry(b"a/x\n\xff", EntryKind::Symlink),
            entry(b"a", EntryKind::Directory),
            entry(b"a-b", EntryKind::File),
        ];
        write(dir.path(), &input, entries).unwrap();
        let bytes = read(dir.path(), &input).unwrap();
        let baseline = Baseline::parse(&bytes).unwrap();
        let names: Vec<_> = baseline
            .directory(b"")
            .unwrap()
            .iter()
            .map(|e| e.name)
            .collect();
        assert_eq!(names, [b"a".as_slice(), b"a-b", b"b"]);
        assert_eq!(
            baseline.directory(b"a").unwrap()[0].kind,
            EntryKind::Symlink
        );
        assert!(baseline.directory(b"b").is_none());

        let file = dir.path().join("app.baseline");
        let mut changed = fs::read(&file).unwrap();
        changed[40] ^= 1;
        fs::write(&file, changed).unwrap();
        assert!(matches!(
            read(dir.path(), &input),
            Err(BaselineError::Damaged { .. })
        ));
        fs::remove_file(&file).unwrap();
        assert!(matches!(
            read(dir.path(), &input),
            Err(BaselineError::Io { .. })
        ));
    }

    #[test]
    fn an_input_without_files_has_a_root() {
        let dir = tempfile::tempdir().unwrap();
        let input: InputName = "app".parse().unwrap();
        write(dir.path(), &input, Vec::new()).unwrap();
        let bytes = read(dir.path(), &input).unwrap();
        assert_eq!(
            Baseline::parse(&bytes)
                .unwrap()
                .directory(b"")
                .unwrap()
                .len(),
            0
        );
    }
}
