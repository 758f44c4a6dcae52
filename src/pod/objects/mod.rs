//! Reads git objects from files, in safe Rust and with bounds.
//!
//! Why not a git library: `provision` needs many blobs at once on several threads, and `collect` reads object stores that
//! an agent could write to. Here nothing is configured, nothing is followed (alternates, replace refs, links), nothing is
//! written, and every length that a file claims is checked before memory is taken for it.

mod delta;
mod index;
mod inflate;
mod object;
mod pack;

pub(super) use delta::DeltaError;
pub(super) use index::{IndexError, PackIndex};
pub(super) use inflate::{InflateError, Inflater};
pub(super) use object::{Commit, Kind, ObjectError, TreeEntries};
pub(super) use pack::{Limits, Pack, PackError, PackReader};

use aws_lc_rs::digest;

use crate::api::ObjectFormat;

/// The id of an object: 20 or 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    bytes: [u8; 32],
    format: ObjectFormatTag,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ObjectFormatTag {
    Sha1,
    Sha256,
}

impl ObjectId {
    /// An id from its raw bytes; `None` if the length fits no format.
    #[must_use]
    pub fn from_raw(raw: &[u8]) -> Option<Self> {
        let format = match raw.len() {
            20 => ObjectFormatTag::Sha1,
            32 => ObjectFormatTag::Sha256,
            _ => return None,
        };
        let mut bytes = [0; 32];
        bytes.get_mut(..raw.len())?.copy_from_slice(raw);
        Some(Self { bytes, format })
    }

    /// An id from 40 or 64 hex digits.
    #[must_use]
    pub fn from_hex(hex: &[u8]) -> Option<Self> {
        if !matches!(hex.len(), 40 | 64) {
            return None;
        }
        let mut raw = [0_u8; 32];
        for (byte, pair) in raw.iter_mut().zip(hex.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            let digit = |d: u8| {
                char::from(d)
                    .to_digit(16)
                    .and_then(|d| u8::try_from(d).ok())
            };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Self::from_raw(raw.get(..hex.len() / 2)?)
    }

    /// The id that the object of this kind and content has.
    #[must_use]
    pub fn of(format: ObjectFormat, kind: Kind, content: &[u8]) -> Self {
        let mut hash = ObjectHash::new(format, kind, content.len() as u64);
        hash.update(content);
        hash.finish()
    }

    /// The raw bytes.
    #[must_use]
    pub fn raw(&self) -> &[u8] {
        let length = match self.format {
            ObjectFormatTag::Sha1 => 20,
            ObjectFormatTag::Sha256 => 32,
        };
        self.bytes.get(..length).unwrap_or(&self.bytes)
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(f, self.raw())
    }
}

impl std::fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(f, self.raw())
    }
}

/// Computes the id of an object that is too large to be held in memory.
pub(super) struct ObjectHash(digest::Context);

impl ObjectHash {
    /// Begins with the object's header.
    #[must_use]
    pub(super) fn new(format: ObjectFormat, kind: Kind, bytes: u64) -> Self {
        let mut context = digest::Context::new(algorithm(format));
        context.update(kind.as_str().as_bytes());
        context.update(format!(" {bytes}\0").as_bytes());
        Self(context)
    }

    /// Adds the next bytes of the content.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The id.
    #[must_use]
    pub(super) fn finish(self) -> ObjectId {
        let digest = self.0.finish();
        let raw = digest.as_ref();
        let format = if raw.len() == 20 {
            ObjectFormatTag::Sha1
        } else {
            ObjectFormatTag::Sha256
        };
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(raw) {
            *to = *from;
        }
        ObjectId { bytes, format }
    }
}

/// The digest that an object format uses.
#[must_use]
pub(super) fn algorithm(format: ObjectFormat) -> &'static digest::Algorithm {
    match format {
        ObjectFormat::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        ObjectFormat::Sha256 => &digest::SHA256,
    }
}

/// Length of a raw id in bytes.
#[must_use]
pub(super) fn raw_len(format: ObjectFormat) -> usize {
    format.hex_len() / 2
}

/// Lower-case hex of some bytes.
#[must_use]
pub(super) fn hex(bytes: &[u8]) -> String {
    struct Hex<'a>(&'a [u8]);
    impl std::fmt::Display for Hex<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write_hex(f, self.0)
        }
    }
    Hex(bytes).to_string()
}

fn write_hex(f: &mut std::fmt::Formatter<'_>, bytes: &[u8]) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_what_git_says() {
        // `printf hello | git hash-object --stdin`
        let id = ObjectId::of(ObjectFormat::Sha1, Kind::Blob, b"hello");
        assert_eq!(id.to_string(), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
        assert_eq!(ObjectId::from_hex(id.to_string().as_bytes()), Some(id));
        assert_eq!(ObjectId::from_hex(b"zz"), None);
    }
}
