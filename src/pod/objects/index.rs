//! The index of a pack (`.idx`, version 2).

use super::{ObjectId, raw_len};
use crate::api::ObjectFormat;

/// Why an index cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Another magic number or version.
    #[error("the index of the pack is not of version 2")]
    NotVersion2,
    /// A table is cut, not sorted, or points out of the pack.
    #[error("the index of the pack is damaged")]
    Damaged,
}

/// A pack's index, wholly in memory (about 30 bytes an object).
pub(crate) struct PackIndex {
    data: Vec<u8>,
    count: usize,
    id_len: usize,
}

const HEADER: usize = 8;
const FANOUT: usize = 256 * 4;

impl PackIndex {
    /// Takes over the bytes of an `.idx` file.
    ///
    /// # Errors
    /// When it is not version 2, or its tables do not fit its length.
    pub(crate) fn parse(data: Vec<u8>, format: ObjectFormat) -> Result<Self, IndexError> {
        if data.get(..HEADER) != Some(b"\xfftOc\0\0\0\x02") {
            return Err(IndexError::NotVersion2);
        }
        let id_len = raw_len(format);
        let mut index = Self {
            data,
            count: 0,
            id_len,
        };
        let mut before = 0;
        for first in 0..256 {
            let upto = index.word(HEADER + first * 4).ok_or(IndexError::Damaged)?;
            if upto < before {
                return Err(IndexError::Damaged);
            }
            before = upto;
        }
        index.count = usize::try_from(before).map_err(|_| IndexError::Damaged)?;
        let least = index
            .count
            .checked_mul(id_len + 8)
            .and_then(|tables| tables.checked_add(HEADER + FANOUT + 2 * id_len))
            .ok_or(IndexError::Damaged)?;
        if index.data.len() < least {
            return Err(IndexError::Damaged);
        }
        Ok(index)
    }

    /// How many objects it lists.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The checksum at the end of the pack that this index was made for.
    #[must_use]
    pub(crate) fn pack_checksum(&self) -> Option<&[u8]> {
        let end = self.data.len().checked_sub(self.id_len)?;
        self.data.get(end.checked_sub(self.id_len)?..end)
    }

    /// Where in the pack an object begins.
    #[must_use]
    pub(crate) fn find(&self, id: &ObjectId) -> Option<u64> {
        let raw = id.raw();
        if raw.len() != self.id_len {
            return None;
        }
        let first = usize::from(*raw.first()?);
        let fan = |n: usize| {
            self.word(HEADER + n * 4)
                .and_then(|v| usize::try_from(v).ok())
        };
        let mut low = if first == 0 { 0 } else { fan(first - 1)? };
        let mut high = fan(first)?;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.id_at(middle)?.cmp(raw) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.offset_at(middle),
            }
        }
        None
    }

    /// Where every object begins, sorted.
    ///
    /// # Errors
    /// When an offset is missing.
    pub(crate) fn offsets(&self) -> Result<Vec<u64>, IndexError> {
        let mut offsets = (0..self.count)
            .map(|n| self.offset_at(n).ok_or(IndexError::Damaged))
            .collect::<Result<Vec<_>, _>>()?;
        offsets.sort_unstable();
        Ok(offsets)
    }

    fn id_at(&self, n: usize) -> Option<&[u8]> {
        let start = HEADER + FANOUT + n * self.id_len;
        self.data.get(start..start + self.id_len)
    }

    fn offset_at(&self, n: usize) -> Option<u64> {
        let small = HEADER + FANOUT + self.count * (self.id_len + 4);
        let offset = self.word(small + n * 4)?;
        if offset & 0x8000_0000 == 0 {
            return Some(u64::from(offset));
        }
        let large = small + self.count * 4 + usize::try_from(offset & 0x7fff_ffff).ok()? * 8;
        Some(u64::from(self.word(large)?) << 32 | u64::from(self.word(large + 4)?))
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.data.get(at..at.checked_add(4)?)?;
        bytes.try_into().ok().map(u32::from_be_bytes)
    }
}
