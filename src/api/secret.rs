//! A credential's value, as a type that cannot be printed.

use secrecy::{ExposeSecret, SecretString};

/// A secret value: no `Display`, no `Serialize`, a redacted `Debug`, wiped when dropped.
#[derive(Clone)]
pub struct Secret(SecretString);

/// Why the bytes of a Secret's key cannot be used. Never holds the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Nothing is left after one trailing newline was cut.
    #[error("is empty")]
    Empty,
    /// A newline or another control character inside.
    #[error("has a control character inside: write the value alone, on one line")]
    ControlCharacter,
    /// Begins with U+FEFF.
    #[error("begins with a byte order mark: save it without one")]
    ByteOrderMark,
    /// Not UTF-8.
    #[error("is not UTF-8 text")]
    NotText,
}

impl Secret {
    /// Reads a one-line secret (token, password, header value). One trailing LF or CRLF is cut.
    ///
    /// # Errors
    /// When nothing is left, or a control character or byte order mark is inside.
    pub fn from_line(bytes: &[u8]) -> Result<Self, SecretError> {
        let text = Self::text(bytes)?;
        let text = text
            .strip_suffix('\n')
            .map_or(text, |t| t.strip_suffix('\r').unwrap_or(t));
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(SecretError::ControlCharacter);
        }
        Ok(Self(SecretString::from(text.to_owned())))
    }

    /// Reads a secret of several lines (a private key in PEM).
    ///
    /// # Errors
    /// When it is empty, or begins with a byte order mark.
    pub fn from_block(bytes: &[u8]) -> Result<Self, SecretError> {
        let text = Self::text(bytes)?;
        if text.trim().is_empty() {
            return Err(SecretError::Empty);
        }
        Ok(Self(SecretString::from(text.to_owned())))
    }

    /// The value, for the one place that hands it to a server. Never format it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    fn text(bytes: &[u8]) -> Result<&str, SecretError> {
        let text = std::str::from_utf8(bytes).map_err(|_| SecretError::NotText)?;
        if text.starts_with('\u{feff}') {
            Err(SecretError::ByteOrderMark)
        } else {
            Ok(text)
        }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain(b"tok", Ok("tok"))]
    #[case::newline(b"tok\n", Ok("tok"))]
    #[case::crlf(b"tok\r\n", Ok("tok"))]
    #[case::two_newlines(b"tok\n\n", Err(SecretError::ControlCharacter))]
    #[case::inner_newline(b"to\nk", Err(SecretError::ControlCharacter))]
    #[case::empty(b"\n", Err(SecretError::Empty))]
    #[case::mark("\u{feff}tok".as_bytes(), Err(SecretError::ByteOrderMark))]
    #[case::odd_characters(b"@:/%#\\,", Ok("@:/%#\\,"))]
    fn c04_one_trailing_newline_is_cut_and_nothing_else(
        #[case] bytes: &[u8],
        #[case] want: Result<&str, SecretError>,
    ) {
        let got = Secret::from_line(bytes);
        assert_eq!(got.as_ref().map(Secret::expose).map_err(|e| *e), want);
    }

    #[test]
    fn a_secret_is_never_printed() {
        assert_eq!(
            format!("{:?}", Secret::from_line(b"canary")),
            "Ok(Secret(***))"
        );
    }
}
