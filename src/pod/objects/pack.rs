//! A pack file, read object by object.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::{
    DeltaError, IndexError, InflateError, Inflater, Kind, ObjectHash, ObjectId, PackIndex, delta,
};
use crate::api::ObjectFormat;

/// Why an object could not be read from a pack.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The index is not usable.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The pack does not begin as a pack, or an entry is damaged.
    #[error("the pack is damaged at byte {offset}")]
    Damaged {
        /// Where.
        offset: u64,
    },
    /// An object's compressed bytes are damaged.
    #[error("the pack is damaged at byte {offset}")]
    Inflate {
        /// Where.
        offset: u64,
        /// What is wrong.
        #[source]
        source: InflateError,
    },
    /// A delta does not fit.
    #[error("the pack is damaged at byte {offset}")]
    Delta {
        /// Where.
        offset: u64,
        /// What is wrong.
        #[source]
        source: DeltaError,
    },
    /// An object is named but not in the pack.
    #[error("object {id} is missing from the pack")]
    Missing {
        /// Its id.
        id: ObjectId,
    },
    /// An object is of another kind than it is used as, or its bytes do not have its id.
    #[error("object {id} is not the {kind} that it is named as", kind = kind.as_str())]
    Mismatch {
        /// Its id.
        id: ObjectId,
        /// The kind it should have.
        kind: Kind,
    },
    /// An object is larger than the bound.
    #[error("object at byte {offset} is larger than {limit} bytes")]
    TooLarge {
        /// Where.
        offset: u64,
        /// The bound.
        limit: usize,
    },
    /// Reading the file failed.
    #[error("cannot read the pack")]
    Read(#[source] io::Error),
}

/// How much memory one reader may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The largest object that is held in memory, in bytes. Larger ones can be streamed if they are no delta.
    pub object: usize,
    /// Bytes of delta bases that are kept for the next object.
    pub cache: usize,
}

impl Default for Limits {
    /// Room for what git itself holds: it makes no delta of files above 512 MiB.
    fn default() -> Self {
        Self {
            object: 1 << 30,
            cache: 32 << 20,
        }
    }
}

/// git makes chains of at most 4095 deltas.
const MAX_CHAIN: usize = 4096;
/// Compressed entries up to this size are read at once.
const WHOLE_READ: usize = 16 << 20;
/// The head of an entry takes at most 10 bytes for the size, and 10 or 32 for the base.
const HEAD_MAX: usize = 64;

/// A pack and its index. Shared by any number of [`PackReader`]s.
pub(crate) struct Pack {
    file: File,
    index: PackIndex,
    offsets: Vec<u64>,
    end: u64,
    format: ObjectFormat,
}

impl Pack {
    /// Opens a pack with its index.
    ///
    /// # Errors
    /// When the index does not belong to a pack of this length, or the pack has no header.
    pub(crate) fn open(
        file: File,
        index: PackIndex,
        format: ObjectFormat,
    ) -> Result<Self, PackError> {
        let length = file.metadata().map_err(PackError::Read)?.len();
        let id_len = super::raw_len(format) as u64;
        let end = length
            .checked_sub(id_len)
            .ok_or(PackError::Damaged { offset: 0 })?;
        let mut header = [0; 12];
        file.read_exact_at(&mut header, 0)
            .map_err(|_| PackError::Damaged { offset: 0 })?;
        let known = matches!(header, [b'P', b'A', b'C', b'K', 0, 0, 0, 2 | 3, ..]);
        let count = header
            .last_chunk::<4>()
            .map_or(0, |c| u32::from_be_bytes(*c));
        if !known || usize::try_from(count) != Ok(index.count()) {
            return Err(PackError::Damaged { offset: 0 });
        }
        let mut trailer = vec![0; super::raw_len(format)];
        file.read_exact_at(&mut trailer, end)
            .map_err(PackError::Read)?;
        if index.pack_checksum() != Some(trailer.as_slice()) {
            return Err(PackError::Damaged { offset: end });
        }
        let offsets = index.offsets()?;
        if offsets.first().is_some_and(|first| *first < 12)
            || offsets.last().is_some_and(|last| *last >= end)
        {
            return Err(IndexError::Damaged.into());
        }
        Ok(Self {
            file,
            index,
            offsets,
            end,
            format,
        })
    }

    /// The hash that its objects are named by.
    #[must_use]
    pub(crate) fn format(&self) -> ObjectFormat {
        self.format
    }

    /// A reader with its own buffers, for one thread.
    #[must_use]
    pub(crate) fn reader(&self, limits: Limits) -> PackReader<'_> {
        PackReader {
            pack: self,
            limits,
            inflater: Inflater::default(),
            raw: Vec::new(),
            cache: BaseCache::default(),
        }
    }
}

/// Reads objects of a [`Pack`].
pub(crate) struct PackReader<'p> {
    pack: &'p Pack,
    limits: Limits,
    inflater: Inflater,
    raw: Vec<u8>,
    cache: BaseCache,
}

/// How an entry of a pack is stored.
#[derive(Debug, Clone, Copy)]
enum Stored {
    Whole(Kind),
    Delta { base: u64 },
}

/// The head of an entry.
#[derive(Debug, Clone, Copy)]
struct Head {
    stored: Stored,
    /// Size of what the compressed bytes yield.
    size: u64,
    /// Length of the head itself.
    length: usize,
}

impl PackReader<'_> {
    /// Reads an object of the given kind and proves that it has this id.
    ///
    /// # Errors
    /// When it is missing, damaged, of another kind, or too large to be held.
    pub(crate) fn read(&mut self, id: &ObjectId, kind: Kind) -> Result<Arc<[u8]>, PackError> {
        let offset = self
            .pack
            .index
            .find(id)
            .ok_or(PackError::Missing { id: *id })?;
        let (found, content) = self.read_at(offset)?;
        if found == kind && ObjectId::of(self.pack.format, kind, &content) == *id {
            Ok(content)
        } else {
            Err(PackError::Mismatch { id: *id, kind })
        }
    }

    /// The size of a blob if it is stored whole and larger than `threshold`: then it can be streamed.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub(crate) fn streamable(
        &mut self,
        id: &ObjectId,
        threshold: u64,
    ) -> Result<Option<u64>, PackError> {
        let offset = self
            .pack
            .index
            .find(id)
            .ok_or(PackError::Missing { id: *id })?;
        // What is large inside is large outside, but for text that repeats itself: read the head only where it pays.
        if (self.pack.entry_end(offset) - offset).saturating_mul(1032) < threshold {
            return Ok(None);
        }
        let head = self.head_at(offset)?;
        match head.stored {
            Stored::Whole(Kind::Blob) if head.size > threshold => Ok(Some(head.size)),
            Stored::Whole(_) | Stored::Delta { .. } => Ok(None),
        }
    }

    /// Writes a blob that is stored whole to a sink, proves its id, and holds little of it in memory.
    ///
    /// # Errors
    /// When it is missing, damaged or a delta, or the sink fails ([`InflateError::Write`]).
    pub(crate) fn stream(&mut self, id: &ObjectId, to: &mut impl Write) -> Result<(), PackError> {
        let offset = self
            .pack
            .index
            .find(id)
            .ok_or(PackError::Missing { id: *id })?;
        let head = self.head_at(offset)?;
        let Stored::Whole(kind) = head.stored else {
            return Err(PackError::Mismatch {
                id: *id,
                kind: Kind::Blob,
            });
        };
        let start = offset + head.length as u64;
        let mut from = BufReader::with_capacity(
            256 * 1024,
            Section {
                file: &self.pack.file,
                at: start,
                end: self.pack.entry_end(offset),
            },
        );
        let hash = ObjectHash::new(self.pack.format, kind, head.size);
        let mut sink = HashingSink { hash, to };
        self.inflater
            .stream(&mut from, &mut sink, head.size)
            .map_err(|source| PackError::Inflate { offset, source })?;
        if kind == Kind::Blob && sink.hash.finish() == *id {
            Ok(())
        } else {
            Err(PackError::Mismatch {
                id: *id,
                kind: Kind::Blob,
            })
        }
    }

    fn read_at(&mut self, offset: u64) -> Result<(Kind, Arc<[u8]>), PackError> {
        let mut scripts = Vec::new();
        let mut at = offset;
        let (kind, mut content) = loop {
            if let Some(cached) = self.cache.get(at) {
                break cached;
            }
            let (stored, bytes) = self.entry(at)?;
            match stored {
                Stored::Whole(kind) => {
                    let content = bytes.into();
                    if !scripts.is_empty() {
                        self.cache.put(at, kind, &content, self.limits.cache);
                    }
                    break (kind, content);
                }
                Stored::Delta { base } => {
                    if scripts.len() >= MAX_CHAIN {
                        return Err(PackError::Damaged { offset });
                    }
                    scripts.push((at, bytes));
                    at = base;
                }
            }
        };
        while let Some((at, script)) = scripts.pop() {
            content = delta::apply(&content, &script, self.limits.object)
                .map_err(|source| PackError::Delta { offset: at, source })?
                .into();
            if !scripts.is_empty() {
                self.cache.put(at, kind, &content, self.limits.cache);
            }
        }
        Ok((kind, content))
    }

    /// What an entry stores, inflated: an object, or the script of a delta. One read where it is not large.
    fn entry(&mut self, offset: u64) -> Result<(Stored, Vec<u8>), PackError> {
        let end = self.pack.entry_end(offset);
        let damaged = |source| PackError::Inflate { offset, source };
        let whole = usize::try_from(end.saturating_sub(offset))
            .ok()
            .filter(|n| *n <= WHOLE_READ);
        self.raw.resize(whole.unwrap_or(HEAD_MAX), 0);
        self.pack
            .file
            .read_exact_at(&mut self.raw, offset)
            .map_err(PackError::Read)?;
        let head = self.pack.head(&self.raw, offset)?;
        let limit = self.limits.object;
        let size = usize::try_from(head.size)
            .ok()
            .filter(|size| *size <= limit)
            .ok_or(PackError::TooLarge { offset, limit })?;
        let bytes = if whole.is_some() {
            let packed = self.raw.get(head.length..).unwrap_or_default();
            self.inflater.inflate(packed, size).map_err(damaged)?
        } else {
            let at = offset + head.length as u64;
            let mut bytes = Vec::with_capacity(size);
            let mut from = Section {
                file: &self.pack.file,
                at,
                end,
            };
            self.inflater
                .stream(&mut from, &mut bytes, head.size)
                .map_err(damaged)?;
            bytes
        };
        Ok((head.stored, bytes))
    }

    fn head_at(&self, offset: u64) -> Result<Head, PackError> {
        let mut bytes = [0; HEAD_MAX];
        let room = self.pack.end.saturating_sub(offset).min(HEAD_MAX as u64);
        let window = usize::try_from(room)
            .ok()
            .and_then(|room| bytes.get_mut(..room))
            .ok_or(PackError::Damaged { offset })?;
        self.pack
            .file
            .read_exact_at(window, offset)
            .map_err(PackError::Read)?;
        self.pack.head(window, offset)
    }
}

impl Pack {
    fn entry_end(&self, offset: u64) -> u64 {
        let next = self.offsets.partition_point(|o| *o <= offset);
        self.offsets.get(next).copied().unwrap_or(self.end)
    }

    /// Takes apart the head of an entry: kind and size, and where its base is.
    fn head(&self, bytes: &[u8], offset: u64) -> Result<Head, PackError> {
        let damaged = || PackError::Damaged { offset };
        let mut rest = bytes;
        let total = rest.len();
        let mut next = || -> Result<u8, PackError> {
            let (byte, after) = rest.split_first().ok_or(PackError::Damaged { offset })?;
            rest = after;
            Ok(*byte)
        };
        let first = next()?;
        let mut size = u64::from(first & 0x0f);
        let mut shift = 4;
        let mut byte = first;
        while byte & 0x80 != 0 {
            byte = next()?;
            if shift > 57 {
                return Err(damaged());
            }
            size |= u64::from(byte & 0x7f) << shift;
            shift += 7;
        }
        let stored = match (first >> 4) & 7 {
            1 => Stored::Whole(Kind::Commit),
            2 => Stored::Whole(Kind::Tree),
            3 => Stored::Whole(Kind::Blob),
            4 => Stored::Whole(Kind::Tag),
            6 => {
                let mut byte = next()?;
                let mut distance = u64::from(byte & 0x7f);
                while byte & 0x80 != 0 {
                    byte = next()?;
                    distance = distance
                        .checked_add(1)
                        .and_then(|d| d.checked_mul(128))
                        .map(|d| d | u64::from(byte & 0x7f))
                        .ok_or_else(damaged)?;
                }
                let base = offset
                    .checked_sub(distance)
                    .filter(|b| distance > 0 && *b >= 12);
                Stored::Delta {
                    base: base.ok_or_else(damaged)?,
                }
            }
            7 => {
                let (raw, after) = rest
                    .split_at_checked(super::raw_len(self.format))
                    .ok_or_else(damaged)?;
                rest = after;
                let id = ObjectId::from_raw(raw).ok_or_else(damaged)?;
                Stored::Delta {
                    base: self.index.find(&id).ok_or(PackError::Missing { id })?,
                }
            }
            _ => return Err(damaged()),
        };
        Ok(Head {
            stored,
            size,
            length: total - rest.len(),
        })
    }
}

/// Delta bases that may be needed again; the oldest goes first.
#[derive(Default)]
struct BaseCache {
    by_offset: HashMap<u64, (Kind, Arc<[u8]>)>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl BaseCache {
    fn get(&self, offset: u64) -> Option<(Kind, Arc<[u8]>)> {
        self.by_offset
            .get(&offset)
            .map(|(kind, content)| (*kind, Arc::clone(content)))
    }

    fn put(&mut self, offset: u64, kind: Kind, content: &Arc<[u8]>, limit: usize) {
        if content.len() > limit / 4 || self.by_offset.contains_key(&offset) {
            return;
        }
        while self.bytes.saturating_add(content.len()) > limit {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            if let Some((_, gone)) = self.by_offset.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(gone.len());
            }
        }
        self.bytes += content.len();
        self.order.push_back(offset);
        self.by_offset.insert(offset, (kind, Arc::clone(content)));
    }
}

/// A part of a file as a reader.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let length = buffer.len().min(room);
        let read = self
            .file
            .read_at(buffer.get_mut(..length).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

struct HashingSink<'a, W> {
    hash: ObjectHash,
    to: &'a mut W,
}

impl<W: Write> Write for HashingSink<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
