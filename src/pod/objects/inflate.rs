//! zlib streams, with the size known beforehand.

use std::io::{Read, Write};

use flate2::{Decompress, FlushDecompress, Status};

/// Why a zlib stream could not be read.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// The stream is damaged, or shorter or longer than it must be.
    #[error("a compressed stream is damaged")]
    Damaged,
    /// The compressed bytes could not be read.
    #[error("cannot read compressed bytes")]
    Read(#[source] std::io::Error),
    /// The sink did not take the bytes.
    #[error("cannot write")]
    Write(#[source] std::io::Error),
}

/// A zlib decompressor that is used again and again.
pub(crate) struct Inflater {
    state: Decompress,
}

impl Default for Inflater {
    fn default() -> Self {
        Self {
            state: Decompress::new(true),
        }
    }
}

/// A zlib stream cannot grow by more than this factor: 258 bytes from 2 bits, rounded up.
const MAX_RATIO: u64 = 1032;

impl Inflater {
    /// Inflates exactly `size` bytes. `input` may be longer than the stream.
    ///
    /// # Errors
    /// When the stream is damaged or has another size. No memory is taken for a size that the input cannot yield.
    pub(crate) fn inflate(&mut self, input: &[u8], size: usize) -> Result<Vec<u8>, InflateError> {
        if size as u64 > (input.len() as u64).saturating_mul(MAX_RATIO) {
            return Err(InflateError::Damaged);
        }
        // One byte more than needed, so that a stream that is too long shows.
        let mut output = Vec::with_capacity(size.saturating_add(1));
        self.state.reset(true);
        let status = self
            .state
            .decompress_vec(input, &mut output, FlushDecompress::Finish)
            .map_err(|_| InflateError::Damaged)?;
        if status == Status::StreamEnd && output.len() == size {
            Ok(output)
        } else {
            Err(InflateError::Damaged)
        }
    }

    /// Inflates at most `limit` bytes of a stream whose size is not known yet; more is [`InflateError::Damaged`].
    ///
    /// # Errors
    /// When the stream is damaged or longer than `limit`.
    pub(crate) fn inflate_up_to(
        &mut self,
        input: &[u8],
        limit: usize,
    ) -> Result<Vec<u8>, InflateError> {
        let bound =
            usize::try_from((input.len() as u64).saturating_mul(MAX_RATIO)).unwrap_or(limit);
        let mut output = Vec::with_capacity(bound.min(limit).saturating_add(1));
        self.state.reset(true);
        let status = self
            .state
            .decompress_vec(input, &mut output, FlushDecompress::Finish)
            .map_err(|_| InflateError::Damaged)?;
        if status == Status::StreamEnd && output.len() <= limit {
            Ok(output)
        } else {
            Err(InflateError::Damaged)
        }
    }

    /// Inflates exactly `size` bytes from a reader into a sink, holding little of either.
    ///
    /// # Errors
    /// When the stream is damaged or has another size, or reading or writing fails.
    pub(crate) fn stream(
        &mut self,
        from: &mut impl Read,
        to: &mut impl Write,
        size: u64,
    ) -> Result<(), InflateError> {
        let mut input = vec![0; 64 * 1024];
        let mut output = vec![0; 128 * 1024];
        let (mut start, mut end) = (0, 0);
        let mut done: u64 = 0;
        self.state.reset(true);
        loop {
            if start == end {
                start = 0;
                end = from.read(&mut input).map_err(InflateError::Read)?;
            }
            let (before_in, before_out) = (self.state.total_in(), self.state.total_out());
            let status = self
                .state
                .decompress(
                    input.get(start..end).unwrap_or_default(),
                    &mut output,
                    FlushDecompress::None,
                )
                .map_err(|_| InflateError::Damaged)?;
            let took = usize::try_from(self.state.total_in() - before_in).unwrap_or(usize::MAX);
            let made = usize::try_from(self.state.total_out() - before_out).unwrap_or(usize::MAX);
            start = start.saturating_add(took);
            done = done.saturating_add(made as u64);
            if done > size || (took == 0 && made == 0 && status != Status::StreamEnd) {
                return Err(InflateError::Damaged);
            }
            to.write_all(output.get(..made).unwrap_or_default())
                .map_err(InflateError::Write)?;
            if status == Status::StreamEnd {
                return if done == size {
                    Ok(())
                } else {
                    Err(InflateError::Damaged)
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deflate(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_stream_has_its_size_or_is_damaged() {
        let text = b"some text ".repeat(10_000);
        let packed = deflate(&text);
        let mut inflater = Inflater::default();
        assert_eq!(inflater.inflate(&packed, text.len()).unwrap(), text);
        assert!(inflater.inflate(&packed, text.len() - 1).is_err());
        assert!(inflater.inflate(&packed, text.len() + 1).is_err());
        assert!(
            inflater
                .inflate(&packed[..packed.len() - 9], text.len())
                .is_err()
        );
        assert!(
            inflater.inflate(&packed, usize::MAX / 2).is_err(),
            "no memory for a lie"
        );

        let mut streamed = Vec::new();
        inflater
            .stream(&mut packed.as_slice(), &mut streamed, text.len() as u64)
            .unwrap();
        assert_eq!(streamed, text);
        for size in [text.len() - 1, text.len() + 1] {
            let result = inflater.stream(&mut packed.as_slice(), &mut Vec::new(), size as u64);
            assert!(result.is_err());
        }
        let cut = &packed[..packed.len() / 2];
        assert!(
            inflater
                .stream(&mut &*cut, &mut Vec::new(), text.len() as u64)
                .is_err()
        );
    }
}
