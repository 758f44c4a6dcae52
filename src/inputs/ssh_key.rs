//! A private key as `ssh` takes it: what copying into a Secret did to it is undone, what cannot be used is refused.

use crate::api::{Fault, Reason, Secret};

/// Why a private key cannot be used. Never holds any of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum KeyError {
    /// Not a private key at all.
    #[error("the private key is no key in OpenSSH or PEM format")]
    NotAKey,
    /// Encrypted.
    #[error("the private key has a passphrase, and nobody is there to type it")]
    Passphrase,
}

impl Fault for KeyError {
    fn reason(&self) -> Reason {
        Reason::KeyUnusable
    }
}

/// The key with plain line ends, nothing around it, and a last newline.
pub(super) fn clean(key: &Secret) -> Result<Secret, KeyError> {
    let lines: Vec<&str> = key.expose().lines().map(str::trim).collect();
    let start = lines.iter().position(|line| is_armor(line, "-----BEGIN "));
    let end = lines.iter().rposition(|line| is_armor(line, "-----END "));
    let (Some(start), Some(end)) = (start, end) else {
        return Err(KeyError::NotAKey);
    };
    let lines = lines.get(start..=end).ok_or(KeyError::NotAKey)?;
    let encrypted = lines.iter().any(|line| {
        line.contains("BEGIN ENCRYPTED")
            || (line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
    });
    let inner = lines
        .get(1..lines.len().saturating_sub(1))
        .unwrap_or_default();
    if encrypted || cipher(&inner.concat()).is_some_and(|cipher| cipher != b"none") {
        return Err(KeyError::Passphrase);
    }
    let text = secrecy::SecretString::from(lines.join("\n") + "\n");
    let text = secrecy::ExposeSecret::expose_secret(&text);
    Secret::from_block(text.as_bytes()).map_err(|_| KeyError::NotAKey)
}

fn is_armor(line: &str, start: &str) -> bool {
    line.starts_with(start) && line.ends_with("PRIVATE KEY-----")
}

/// The cipher's name in the body of an OpenSSH key; `None`: another format.
fn cipher(body: &str) -> Option<Vec<u8>> {
    const MAGIC: &[u8] = b"openssh-key-v1\0";
    let head = decoded(body.get(..64)?)?;
    let rest = head.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.get(..length).map(<[u8]>::to_vec)
}

/// Base64 in whole groups of four.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks_exact(4) {
        let mut bits = 0_u32;
        for letter in group {
            bits = (bits << 6) | u32::from(value(*letter)?);
        }
        let [_, first, second, third] = bits.to_be_bytes();
        bytes.extend([first, second, third]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::process::Command;

    fn keygen(kind: &str, passphrase: &str, format: Option<&str>) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let mut command = Command::new("ssh-keygen");
        command
            .args(["-q", "-t", kind, "-N", passphrase, "-f"])
            .arg(&file);
        if let Some(format) = format {
            command.args(["-m", format]);
        }
        assert!(command.status().unwrap().success());
        std::fs::read_to_string(file).unwrap()
    }

    fn cleaned(text: &str) -> Result<String, KeyError> {
        clean(&Secret::from_block(text.as_bytes()).unwrap()).map(|key| key.expose().to_owned())
    }

    #[rstest]
    #[case::openssh("ed25519", None)]
    #[case::pem("rsa", Some("PEM"))]
    #[case::pkcs8("rsa", Some("PKCS8"))]
    fn c06_a_key_that_was_bent_by_copying_is_straightened(
        #[case] kind: &str,
        #[case] format: Option<&str>,
    ) {
        let good = keygen(kind, "", format);
        assert_eq!(cleaned(&good).as_ref(), Ok(&good));
        assert_eq!(
            cleaned(&good.replace('\n', "\r\n")).as_ref(),
            Ok(&good),
            "CRLF"
        );
        assert_eq!(
            cleaned(good.trim_end()).as_ref(),
            Ok(&good),
            "no last newline"
        );
        assert_eq!(
            cleaned(&format!("\n  {good}\n\n")).as_ref(),
            Ok(&good),
            "space around"
        );
    }

    #[rstest]
    #[case::openssh("ed25519", None)]
    #[case::pem("rsa", Some("PEM"))]
    #[case::pkcs8("rsa", Some("PKCS8"))]
    fn c06_a_passphrase_is_seen_at_once(#[case] kind: &str, #[case] format: Option<&str>) {
        let key = keygen(kind, "correct horse", format);
        assert_eq!(cleaned(&key), Err(KeyError::Passphrase));
    }

    #[rstest]
    #[case::public_key("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA x@y")]
    #[case::certificate("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")]
    #[case::cut("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")]
    #[case::text("hello")]
    fn c06_what_is_no_private_key_is_refused(#[case] text: &str) {
        assert_eq!(cleaned(text), Err(KeyError::NotAKey));
    }
}
