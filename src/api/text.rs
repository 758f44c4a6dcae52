//! Text that every store and terminal takes.

use std::fmt::Write as _;

/// Turns bytes of unknown origin into one line of text: valid UTF-8 stays, and every control character,
/// NUL, backslash and invalid byte becomes a backslash escape (`\n`, `\\`, `\x00`). Nothing is lost.
#[must_use]
pub fn safe_text(bytes: &[u8]) -> String {
    let mut safe = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => safe.push_str("\\\\"),
                '\n' => safe.push_str("\\n"),
                '\t' => safe.push_str("\\t"),
                '\r' => safe.push_str("\\r"),
                c if c.is_control() => {
                    let _ = write!(safe, "\\x{:02x}", u32::from(c));
                }
                c => safe.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l03_nul_and_broken_utf8_become_escapes() {
        assert_eq!(
            safe_text(b"a\0b\xffc\\\n\x1b[2J"),
            r"a\x00b\xffc\\\n\x1b[2J"
        );
        assert_eq!(safe_text("grün".as_bytes()), "grün");
    }
}
