//! Writes UTF-8 text in another encoding (`working-tree-encoding`).

use super::convert::ConvertError;
use crate::api::safe_text;

/// Encodes UTF-8 text. `Ok(None)`: it is no UTF-8, or has a character that the encoding lacks; git then writes the blob
/// as it is, and so do we.
///
/// # Errors
/// When the encoding is not one of those known here.
pub(super) fn encode(name: &[u8], content: &[u8]) -> Result<Option<Vec<u8>>, ConvertError> {
    let encoding =
        Encoding::named(name).ok_or_else(|| ConvertError::UnknownEncoding(safe_text(name)))?;
    let Ok(text) = std::str::from_utf8(content) else {
        return Ok(None);
    };
    Ok(encoding.write(text))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Utf16 {
        big: bool,
        mark: bool,
    },
    Utf32 {
        big: bool,
        mark: bool,
    },
    /// The first so many code points, one byte each.
    Prefix(u32),
    Windows1252,
}

impl Encoding {
    /// The names that git documents, and what glibc's iconv makes of them on a little-endian machine.
    fn named(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_uppercase();
        let name = name
            .strip_prefix("UTF-")
            .map_or_else(|| name.clone(), |rest| format!("UTF{rest}"));
        Some(match name.as_str() {
            // git itself writes the mark here, in the machine's order (iconv does it for UTF-16 and UTF-32).
            "UTF16" | "UTF16LE-BOM" => Self::Utf16 {
                big: false,
                mark: true,
            },
            "UTF16BE-BOM" => Self::Utf16 {
                big: true,
                mark: true,
            },
            "UTF16LE" => Self::Utf16 {
                big: false,
                mark: false,
            },
            "UTF16BE" => Self::Utf16 {
                big: true,
                mark: false,
            },
            "UTF32" => Self::Utf32 {
                big: false,
                mark: true,
            },
            "UTF32LE" => Self::Utf32 {
                big: false,
                mark: false,
            },
            "UTF32BE" => Self::Utf32 {
                big: true,
                mark: false,
            },
            "ASCII" | "US-ASCII" => Self::Prefix(0x80),
            "ISO-8859-1" | "ISO8859-1" | "LATIN1" | "LATIN-1" => Self::Prefix(0x100),
            "WINDOWS-1252" | "CP1252" => Self::Windows1252,
            _ => return None,
        })
    }

    fn write(self, text: &str) -> Option<Vec<u8>> {
        const MARK: char = '\u{feff}';
        match self {
            Self::Utf16 { big, mark } => {
                let marked = mark.then_some(MARK).into_iter().chain(text.chars());
                let mut units = [0; 2];
                Some(
                    marked
                        .flat_map(|c| c.encode_utf16(&mut units).to_vec())
                        .flat_map(|unit| {
                            if big {
                                unit.to_be_bytes()
                            } else {
                                unit.to_le_bytes()
                            }
                        })
                        .collect(),
                )
            }
            Self::Utf32 { big, mark } => {
                let marked = mark
                    .then_some(MARK)
                    .into_iter()
                    .chain(text.chars())
                    .map(u32::from);
                Some(
                    marked
                        .flat_map(|c| {
                            if big {
                                c.to_be_bytes()
                            } else {
                                c.to_le_bytes()
                            }
                        })
                        .collect(),
                )
            }
            Self::Prefix(end) => {
                let byte = |c: char| Some(u32::from(c)).filter(|c| *c < end);
                text.chars()
                    .map(|c| byte(c).and_then(|c| u8::try_from(c).ok()))
                    .collect()
            }
            Self::Windows1252 => text.chars().map(windows_1252).collect(),
        }
    }
}

/// What Windows-1252 has in the place of the control characters 0x80 to 0x9f; NUL: nothing.
const HIGH: &str = "€\0‚ƒ„…†‡ˆ‰Š‹Œ\0Ž\0\0‘’“”•–—˜™š›œ\0žŸ";

fn windows_1252(c: char) -> Option<u8> {
    match u32::from(c) {
        plain @ (0..=0x7f | 0xa0..=0xff) => u8::try_from(plain).ok(),
        _ => HIGH
            .chars()
            .position(|high| high == c)
            .and_then(|at| u8::try_from(0x80 + at).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::utf16le("UTF-16LE", "a€", Some(b"a\0\xac\x20".as_slice()))]
    #[case::utf16be_mark("utf-16be-bom", "a", Some(&b"\xfe\xff\0a"[..]))]
    #[case::utf16("UTF-16", "a", Some(&b"\xff\xfea\0"[..]))]
    #[case::surrogates("UTF-16BE", "\u{1f600}", Some(&b"\xd8\x3d\xde\x00"[..]))]
    #[case::utf32("UTF-32BE", "a", Some(&b"\0\0\0a"[..]))]
    #[case::latin1("ISO-8859-1", "é", Some(&b"\xe9"[..]))]
    #[case::not_in_latin1("ISO-8859-1", "€", None)]
    #[case::windows("windows-1252", "€é", Some(&b"\x80\xe9"[..]))]
    fn text_is_encoded(#[case] name: &str, #[case] text: &str, #[case] want: Option<&[u8]>) {
        assert_eq!(
            encode(name.as_bytes(), text.as_bytes()).unwrap().as_deref(),
            want
        );
    }

    #[test]
    fn an_unknown_encoding_is_an_error_that_names_it() {
        assert!(encode(b"EBCDIC-INT", b"a").is_err());
        assert_eq!(
            encode(b"UTF-16", b"\xff").unwrap(),
            None,
            "not UTF-8: as it is"
        );
    }
}
