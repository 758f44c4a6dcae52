//! From a blob to the bytes on disk, as git converts at a checkout.

use std::borrow::Cow;

use super::attributes::{Conversion, LineEnds};
use super::encoding;
use crate::pod::objects::ObjectId;

/// A file cannot be written in the encoding that its attributes ask for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// An encoding that is not known here.
    #[error("its working-tree-encoding `{0}` is not supported")]
    UnknownEncoding(String),
}

/// Converts the content of blob `id`.
///
/// # Errors
/// When the encoding is not known.
pub(crate) fn to_disk<'c>(
    conversion: &Conversion,
    content: &'c [u8],
    id: &ObjectId,
) -> Result<Cow<'c, [u8]>, ConvertError> {
    let mut bytes = Cow::Borrowed(content);
    if conversion.ident
        && let Some(expanded) = expand_ident(&bytes, id)
    {
        bytes = Cow::Owned(expanded);
    }
    if let Some(converted) = with_crlf(conversion.line_ends, &bytes) {
        bytes = Cow::Owned(converted);
    }
    if let Some(name) = &conversion.encoding
        && let Some(encoded) = encoding::encode(name, &bytes)?
    {
        bytes = Cow::Owned(encoded);
    }
    Ok(bytes)
}

/// `$Id$` and `$Id: ...$` become `$Id: <id of the blob> $`. What another system wrote there is kept.
fn expand_ident(content: &[u8], id: &ObjectId) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = content;
    let mut found = false;
    while let Some(dollar) = rest.iter().position(|b| *b == b'$') {
        let (before, after) = rest.split_at_checked(dollar + 1)?;
        out.extend_from_slice(before);
        rest = after;
        let Some(tail) = rest.strip_prefix(b"Id") else {
            continue;
        };
        let keyword_end = match tail.split_first() {
            Some((b'$', after)) => Some(after),
            Some((b':', text)) => text
                .iter()
                .position(|b| matches!(b, b'$' | b'\n'))
                .filter(|end| text.get(*end) == Some(&b'$'))
                .filter(|end| !is_foreign(text.get(..*end).unwrap_or_default()))
                .and_then(|end| text.get(end + 1..)),
            Some(_) | None => None,
        };
        if let Some(after) = keyword_end {
            out.extend_from_slice(format!("Id: {id} $").as_bytes());
            rest = after;
            found = true;
        }
    }
    out.extend_from_slice(rest);
    found.then_some(out)
}

/// An id of some other system has a space between two words.
fn is_foreign(text: &[u8]) -> bool {
    let text = text.get(1..).unwrap_or_default();
    text.iter()
        .position(|b| *b == b' ')
        .is_some_and(|space| space + 1 < text.len())
}

fn with_crlf(line_ends: LineEnds, content: &[u8]) -> Option<Vec<u8>> {
    let stats = match line_ends {
        LineEnds::AsStored => return None,
        LineEnds::Crlf | LineEnds::CrlfIfText => Stats::of(content),
    };
    let refused = line_ends == LineEnds::CrlfIfText
        && (stats.lone_cr > 0 || stats.crlf > 0 || stats.is_binary());
    if stats.lone_lf == 0 || refused {
        return None;
    }
    let mut out = Vec::with_capacity(content.len() + stats.lone_lf);
    let mut previous = 0;
    for byte in content {
        if *byte == b'\n' && previous != b'\r' {
            out.push(b'\r');
        }
        out.push(*byte);
        previous = *byte;
    }
    Some(out)
}

/// What git counts to tell text from other content.
#[derive(Default)]
struct Stats {
    nul: bool,
    lone_cr: usize,
    lone_lf: usize,
    crlf: usize,
    printable: usize,
    other: usize,
}

impl Stats {
    fn of(content: &[u8]) -> Self {
        let mut stats = Self::default();
        let mut bytes = content.iter().peekable();
        while let Some(byte) = bytes.next() {
            match byte {
                b'\r' if bytes.peek() == Some(&&b'\n') => {
                    bytes.next();
                    stats.crlf += 1;
                }
                b'\r' => stats.lone_cr += 1,
                b'\n' => stats.lone_lf += 1,
                0 => {
                    stats.nul = true;
                    stats.other += 1;
                }
                0x08 | b'\t' | 0x0c | 0x1b => stats.printable += 1,
                0x01..=0x1f | 0x7f => stats.other += 1,
                _ => stats.printable += 1,
            }
        }
        // An end-of-file mark of old systems is no sign of binary content.
        if content.last() == Some(&0x1a) {
            stats.other -= 1;
        }
        stats
    }

    fn is_binary(&self) -> bool {
        self.lone_cr > 0 || self.nul || (self.printable >> 7) < self.other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ObjectFormat;
    use crate::pod::objects::Kind;
    use rstest::rstest;

    #[rstest]
    #[case::plain("a $Id$ b", "a $Id: ID $ b")]
    #[case::again("$Id: 123 $", "$Id: ID $")]
    #[case::foreign("$Id: a b $", "$Id: a b $")]
    #[case::open("$Id: x\n$", "$Id: x\n$")]
    #[case::other_word("$Ident$ $Id$", "$Ident$ $Id: ID $")]
    #[case::not_closed("$Id", "$Id")]
    fn ident_is_expanded_as_in_git(#[case] content: &str, #[case] want: &str) {
        let id = ObjectId::of(ObjectFormat::Sha1, Kind::Blob, content.as_bytes());
        let conversion = Conversion {
            ident: true,
            ..Conversion::default()
        };
        let bytes = to_disk(&conversion, content.as_bytes(), &id).unwrap();
        let want = want.replace(": ID ", &format!(": {id} "));
        assert_eq!(String::from_utf8_lossy(&bytes), want);
    }

    #[rstest]
    #[case::text(b"a\nb\n", LineEnds::Crlf, b"a\r\nb\r\n")]
    #[case::mixed(b"a\r\nb\n", LineEnds::Crlf, b"a\r\nb\r\n")]
    #[case::mixed_auto(b"a\r\nb\n", LineEnds::CrlfIfText, b"a\r\nb\n")]
    #[case::auto(b"a\nb\n", LineEnds::CrlfIfText, b"a\r\nb\r\n")]
    #[case::binary_auto(b"a\0\n", LineEnds::CrlfIfText, b"a\0\n")]
    #[case::lone_cr_auto(b"a\rb\n", LineEnds::CrlfIfText, b"a\rb\n")]
    #[case::none(b"ab", LineEnds::Crlf, b"ab")]
    fn line_ends_are_converted_as_in_git(
        #[case] content: &[u8],
        #[case] line_ends: LineEnds,
        #[case] want: &[u8],
    ) {
        assert_eq!(
            with_crlf(line_ends, content).as_deref().unwrap_or(content),
            want
        );
    }
}
