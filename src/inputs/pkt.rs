//! The pkt-line framing of git's protocols: reads from any stream, holds one packet at a time.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest packet that git sends, with its four digits of length.
const LONGEST: usize = 65520;

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A payload.
    Data(&'a [u8]),
    /// `0000`: the end of a message.
    Flush,
    /// `0001`: the end of a section.
    Delimiter,
    /// `0002`: the end of an answer.
    ResponseEnd,
}

/// Why the next packet cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PktError {
    /// Four bytes that are no length.
    #[error("bytes that are no pkt-line")]
    Malformed,
    /// The stream ended inside a packet.
    #[error("the answer ends in the middle")]
    Truncated,
    /// More bytes than the reader may take.
    #[error("the answer is longer than {limit} bytes")]
    TooLong {
        /// How many were allowed.
        limit: u64,
    },
    /// The stream failed.
    #[error("reading failed")]
    Io(#[source] io::Error),
}

/// Reads packets from a stream, up to a number of bytes.
#[derive(Debug)]
pub struct PktReader<R> {
    stream: R,
    buffer: Vec<u8>,
    limit: u64,
    taken: u64,
}

impl<R: AsyncRead + Unpin> PktReader<R> {
    /// A reader that takes at most `limit` bytes from `stream`. Its own memory stays below 64 KiB.
    pub fn new(stream: R, limit: u64) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            limit,
            taken: 0,
        }
    }

    /// The next packet; `None` where the stream ends between two.
    ///
    /// # Errors
    /// When the bytes are no packet, are too many, or do not come.
    pub async fn next(&mut self) -> Result<Option<Packet<'_>>, PktError> {
        let mut head = [0_u8; 4];
        let first = self.stream.read(&mut head).await.map_err(PktError::Io)?;
        if first == 0 {
            return Ok(None);
        }
        self.fill_rest(&mut head, first).await?;
        let length = length(head).ok_or(PktError::Malformed)?;
        self.taken = self.taken.saturating_add(length.max(4) as u64);
        if self.taken > self.limit {
            return Err(PktError::TooLong { limit: self.limit });
        }
        match length {
            0 => Ok(Some(Packet::Flush)),
            1 => Ok(Some(Packet::Delimiter)),
            2 => Ok(Some(Packet::ResponseEnd)),
            3 => Err(PktError::Malformed),
            _ => {
                self.buffer.resize(length - 4, 0);
                self.stream
                    .read_exact(&mut self.buffer)
                    .await
                    .map_err(ended)?;
                Ok(Some(Packet::Data(&self.buffer)))
            }
        }
    }

    async fn fill_rest(&mut self, head: &mut [u8; 4], from: usize) -> Result<(), PktError> {
        let rest = head.get_mut(from..).unwrap_or_default();
        self.stream.read_exact(rest).await.map(drop).map_err(ended)
    }
}

/// Appends one payload as a packet; what is longer than a packet is refused by not writing it.
pub fn write(to: &mut Vec<u8>, payload: &[u8]) {
    let length = payload.len() + 4;
    if length <= LONGEST {
        to.extend_from_slice(format!("{length:04x}").as_bytes());
        to.extend_from_slice(payload);
    }
}

fn length(head: [u8; 4]) -> Option<usize> {
    if !head.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let text = std::str::from_utf8(&head).ok()?;
    usize::from_str_radix(text, 16)
        .ok()
        .filter(|length| *length <= LONGEST)
}

fn ended(error: io::Error) -> PktError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        PktError::Truncated
    } else {
        PktError::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// All packets as text, and how the reading ended.
    async fn all(bytes: &[u8], limit: u64) -> (Vec<String>, String) {
        let mut reader = PktReader::new(bytes, limit);
        let mut seen = Vec::new();
        loop {
            match reader.next().await {
                Ok(Some(packet)) => seen.push(match packet {
                    Packet::Data(data) => String::from_utf8_lossy(data).into_owned(),
                    marker @ (Packet::Flush | Packet::Delimiter | Packet::ResponseEnd) => {
                        format!("{marker:?}")
                    }
                }),
                Ok(None) => return (seen, "end".to_owned()),
                Err(error) => return (seen, error.to_string()),
            }
        }
    }

    #[rstest]
    #[case::nothing(b"", &[], "end")]
    #[case::markers(b"000000010002", &["Flush", "Delimiter", "ResponseEnd"], "end")]
    #[case::empty_payload(b"0004", &[""], "end")]
    #[case::data(b"0006a\n0000", &["a\n", "Flush"], "end")]
    #[case::upper_case(b"000Babcdefg", &["abcdefg"], "end")]
    #[case::length_three(b"0003", &[], "bytes that are no pkt-line")]
    #[case::a_page(b"<!DOCTYPE html>", &[], "bytes that are no pkt-line")]
    #[case::a_sign(b"+004", &[], "bytes that are no pkt-line")]
    #[case::longer_than_git(b"fff1", &[], "bytes that are no pkt-line")]
    #[case::cut_in_length(b"00", &[], "the answer ends in the middle")]
    #[case::cut_in_data(b"0008ab", &[], "the answer ends in the middle")]
    #[case::over_the_limit(b"0006a\n0040", &["a\n"], "the answer is longer than 20 bytes")]
    #[tokio::test]
    async fn packets_are_read_as_git_writes_them(
        #[case] bytes: &[u8],
        #[case] packets: &[&str],
        #[case] end: &str,
    ) {
        let (seen, how) = all(bytes, 20).await;
        assert_eq!(
            (
                seen.iter().map(String::as_str).collect::<Vec<_>>(),
                how.as_str()
            ),
            (packets.to_vec(), end)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic_and_within_one_packet_of_memory(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut reader = PktReader::new(&bytes[..], 1000);
                while let Ok(Some(_)) = reader.next().await {
                    prop_assert!(reader.buffer.capacity() <= 2 * LONGEST);
                    prop_assert!(reader.taken <= 1000);
                }
                Ok(())
            })?;
        }

        #[test]
        fn what_is_written_is_read(payloads in proptest::collection::vec(".{0,80}", 0..20)) {
            let mut bytes = Vec::new();
            for payload in &payloads {
                write(&mut bytes, payload.as_bytes());
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (seen, end) = runtime.block_on(all(&bytes, u64::MAX));
            prop_assert_eq!((seen, end), (payloads, "end".to_owned()));
        }
    }
}
