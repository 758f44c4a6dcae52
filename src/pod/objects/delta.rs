//! Applies a git delta to its base.

/// A delta does not fit its base, or is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a delta does not fit its base")]
pub struct DeltaError;

/// Makes the object that `delta` describes. `limit` bounds its size.
///
/// # Errors
/// When the delta is damaged, made for another base, or its result is larger than `limit`.
pub(super) fn apply(base: &[u8], delta: &[u8], limit: usize) -> Result<Vec<u8>, DeltaError> {
    let mut rest = delta;
    let base_size = varint(&mut rest)?;
    let size = varint(&mut rest)?;
    if base_size != base.len() || size > limit {
        return Err(DeltaError);
    }
    // A copy of 16 MiB costs 8 bytes at most, so a short delta can claim much: take memory as it comes.
    let mut result =
        Vec::with_capacity(size.min(base.len().saturating_mul(2).saturating_add(delta.len())));
    while let Some((op, after)) = rest.split_first() {
        rest = after;
        if op & 0x80 != 0 {
            let mut number = |bits: std::ops::Range<u8>| -> Result<usize, DeltaError> {
                let mut value = 0;
                for (shift, bit) in bits.enumerate() {
                    if op & (1 << bit) != 0 {
                        let (byte, after) = rest.split_first().ok_or(DeltaError)?;
                        rest = after;
                        value |= usize::from(*byte) << (8 * shift);
                    }
                }
                Ok(value)
            };
            let offset = number(0..4)?;
            let length = match number(4..7)? {
                0 => 0x1_0000,
                length => length,
            };
            let end = offset.checked_add(length).ok_or(DeltaError)?;
            result.extend_from_slice(base.get(offset..end).ok_or(DeltaError)?);
        } else if *op != 0 {
            let (literal, after) = rest.split_at_checked(usize::from(*op)).ok_or(DeltaError)?;
            rest = after;
            result.extend_from_slice(literal);
        } else {
            return Err(DeltaError);
        }
        if result.len() > size {
            return Err(DeltaError);
        }
    }
    if result.len() == size {
        Ok(result)
    } else {
        Err(DeltaError)
    }
}

fn varint(rest: &mut &[u8]) -> Result<usize, DeltaError> {
    let mut value: usize = 0;
    for shift in (0..usize::BITS - 7).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(DeltaError)?;
        *rest = after;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DeltaError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_inserts() {
        // base 10, result 8: copy 5 from 2, insert "xyz"
        let delta = [10, 8, 0x80 | 0x01 | 0x10, 2, 5, 3, b'x', b'y', b'z'];
        assert_eq!(apply(b"0123456789", &delta, 100).unwrap(), b"23456xyz");
        assert!(apply(b"012345678", &delta, 100).is_err(), "another base");
        assert!(apply(b"0123456789", &delta, 7).is_err(), "over the limit");
        assert!(apply(b"0123456789", &delta[..8], 100).is_err(), "cut");
        assert!(apply(b"0123456789", &[10, 1, 0], 100).is_err(), "reserved");
        assert!(
            apply(b"0123456789", &[10, 5, 0x91, 8, 5], 100).is_err(),
            "past the end"
        );
    }
}
