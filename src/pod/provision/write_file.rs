//! Writes one blob as one file or link.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use aws_lc_rs::digest;
use rustix::fs::{self, AtFlags, Mode, OFlags, Timestamps};

use super::attributes::Conversion;
use super::checkout::CheckoutError;
use super::convert::{self, ConvertError};
use super::index_file::IndexStat;
use crate::api::safe_text;
use crate::pod::objects::{InflateError, Kind, ObjectId, PackError, PackReader};

/// Why a file was not written.
#[derive(Debug)]
pub(super) enum FileError {
    /// Its blob is not to be had.
    Pack(PackError),
    /// It cannot be written as its attributes ask for.
    Convert(ConvertError),
    /// The disk did not take it.
    Write(io::Error),
}

impl FileError {
    /// Names the file.
    pub(super) fn at(self, path: &[u8]) -> CheckoutError {
        match self {
            Self::Pack(error) => CheckoutError::Pack(error),
            Self::Convert(source) => CheckoutError::Convert {
                path: safe_text(path),
                source,
            },
            Self::Write(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                CheckoutError::Twice {
                    path: safe_text(path),
                }
            }
            Self::Write(source) => CheckoutError::Write {
                path: safe_text(path),
                source,
            },
        }
    }
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct WrittenFile {
    pub(super) stat: IndexStat,
    pub(super) size: u64,
    pub(super) sha256: [u8; 32],
    pub(super) lfs_pointer: bool,
}

/// Blobs above this size go to disk without being held in memory, if the pack stores them whole.
const STREAM_ABOVE: u64 = 16 << 20;

/// How a regular file is written.
pub(super) struct How<'t> {
    pub(super) executable: bool,
    pub(super) conversion: Conversion,
    pub(super) times: &'t Timestamps,
}

/// Writes a regular file.
pub(super) fn regular(
    reader: &mut PackReader<'_>,
    directory: &OwnedFd,
    name: &[u8],
    id: &ObjectId,
    how: &How<'_>,
) -> Result<WrittenFile, FileError> {
    let mode = Mode::from_raw_mode(if how.executable { 0o777 } else { 0o666 });
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let create = || fs::openat(directory, name, flags, mode).map_err(write_failed);
    let large = if how.conversion.is_none() {
        reader
            .streamable(id, STREAM_ABOVE)
            .map_err(FileError::Pack)?
    } else {
        None
    };
    let (file, size, sha256, lfs_pointer) = if let Some(size) = large {
        let mut sink = Sink {
            file: create()?.into(),
            hash: digest::Context::new(&digest::SHA256),
        };
        reader.stream(id, &mut sink).map_err(stream_failed)?;
        (
            OwnedFd::from(sink.file),
            size,
            array(sink.hash.finish().as_ref()),
            false,
        )
    } else {
        let content = reader.read(id, Kind::Blob).map_err(FileError::Pack)?;
        let bytes = convert::to_disk(&how.conversion, &content, id).map_err(FileError::Convert)?;
        let mut file = std::fs::File::from(create()?);
        file.write_all(&bytes).map_err(FileError::Write)?;
        let sha256 = array(digest::digest(&digest::SHA256, &bytes).as_ref());
        (
            OwnedFd::from(file),
            bytes.len() as u64,
            sha256,
            is_lfs_pointer(&content),
        )
    };
    fs::futimens(&file, how.times).map_err(write_failed)?;
    let stat = fs::fstat(&file).map_err(write_failed)?;
    Ok(WrittenFile {
        stat: IndexStat::of(&stat),
        size,
        sha256,
        lfs_pointer,
    })
}

/// Writes a link. Where it leads is the agent's business; nothing of ours follows it.
pub(super) fn symlink(
    reader: &mut PackReader<'_>,
    directory: &OwnedFd,
    name: &[u8],
    id: &ObjectId,
) -> Result<WrittenFile, FileError> {
    let target = reader.read(id, Kind::Blob).map_err(FileError::Pack)?;
    fs::symlinkat(&*target, directory, name).map_err(write_failed)?;
    let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(write_failed)?;
    Ok(WrittenFile {
        stat: IndexStat::of(&stat),
        size: target.len() as u64,
        sha256: array(digest::digest(&digest::SHA256, &target).as_ref()),
        lfs_pointer: false,
    })
}

/// An LFS pointer is a short text with this first line.
fn is_lfs_pointer(content: &[u8]) -> bool {
    content.len() < 1024 && content.starts_with(b"version https://git-lfs.github.com/spec/v1\n")
}

fn write_failed(errno: rustix::io::Errno) -> FileError {
    FileError::Write(errno.into())
}

fn stream_failed(error: PackError) -> FileError {
    if let PackError::Inflate {
        source: InflateError::Write(error),
        ..
    } = error
    {
        FileError::Write(error)
    } else {
        FileError::Pack(error)
    }
}

fn array(bytes: &[u8]) -> [u8; 32] {
    bytes.try_into().unwrap_or_default()
}

struct Sink {
    file: std::fs::File,
    hash: digest::Context,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
