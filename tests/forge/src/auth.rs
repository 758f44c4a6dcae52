//! Who is asking: the `Authorization` header, and what its token may do.

use axum::http::{HeaderMap, header};

use crate::log::Credential;
use crate::options::{Scope, Token, Visibility};

/// What the forge decides before git is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on; the name is that of the token that was used.
    Allowed(Option<String>),
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404.
    NotFound,
}

/// Reads the credential of a request.
pub(crate) fn credential(headers: &HeaderMap) -> Credential {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Credential::None;
    };
    let raw = value.as_bytes();
    if let Some(rest) = after_scheme(raw, b"Bearer ") {
        return Credential::Bearer(rest.to_vec());
    }
    if let Some(pair) = after_scheme(raw, b"Basic ").and_then(base64)
        && let Some(colon) = pair.iter().position(|byte| *byte == b':')
    {
        let (user, rest) = pair.split_at(colon);
        let password = rest.get(1..).unwrap_or_default();
        return Credential::Basic {
            user: user.to_vec(),
            password: password.to_vec(),
        };
    }
    Credential::Other(raw.to_vec())
}

/// Decides about one repository. `visibility` is `None` when there is no such repository.
pub(crate) fn decide(
    credential: &Credential,
    tokens: &[Token],
    user_name: Option<&str>,
    hide_missing: bool,
    repo: &str,
    visibility: Option<Visibility>,
    wanted: Scope,
) -> Verdict {
    let token = match credential {
        Credential::None => {
            return match (visibility, wanted) {
                (Some(Visibility::Public), Scope::Read) => Verdict::Allowed(None),
                (None, _) if !hide_missing => Verdict::NotFound,
                (Some(_) | None, _) => Verdict::Unauthorized,
            };
        }
        Credential::Basic { user, password } => tokens
            .iter()
            .find(|t| t.value == *password)
            .filter(|_| user_name.is_none_or(|name| name.as_bytes() == user.as_slice())),
        Credential::Bearer(value) => tokens.iter().find(|t| t.value == *value),
        Credential::Other(_) => None,
    };
    let Some(token) = token else {
        return Verdict::Unauthorized;
    };
    match visibility {
        None => Verdict::NotFound,
        Some(Visibility::Private) if !token.reaches(repo) => Verdict::NotFound,
        Some(Visibility::Public) if wanted == Scope::Read => {
            Verdict::Allowed(Some(token.name.clone()))
        }
        Some(_) if token.scope >= wanted && token.reaches(repo) => {
            Verdict::Allowed(Some(token.name.clone()))
        }
        Some(_) => Verdict::Forbidden,
    }
}

fn after_scheme<'a>(raw: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = raw.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Decodes base64 of the standard alphabet with its padding; anything else is refused, so that a client
/// which sends the URL alphabet is found out.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = text.get(..text.len().checked_sub(padding)?)?;
    if padding > 2 {
        return None;
    }
    let (mut out, mut bits, mut held) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0_u32);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6) | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push(u8::try_from((held >> bits) & 0xff).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_takes_the_standard_alphabet_only() {
        assert_eq!(base64(b"eDp5").as_deref(), Some(b"x:y".as_slice()));
        assert_eq!(base64(b"eDo=").as_deref(), Some(b"x:".as_slice()));
        assert_eq!(
            base64(b"+/+/").as_deref(),
            Some([0xfb, 0xff, 0xbf].as_slice())
        );
        assert_eq!(base64(b"-_-_"), None);
        assert_eq!(base64(b"eDo"), None);
    }

    #[test]
    fn a_token_sees_what_it_reaches_and_no_more() {
        let tokens = [
            Token::read("reader", "r"),
            Token::write("writer", "w"),
            Token::read("narrow", "n").only(["acme/app"]),
        ];
        let ask = |value: &str, repo: &str, seen, wanted| {
            let credential = match value {
                "" => Credential::None,
                _ => Credential::Basic {
                    user: b"u".to_vec(),
                    password: value.into(),
                },
            };
            decide(&credential, &tokens, None, false, repo, seen, wanted)
        };
        let (public, private) = (Some(Visibility::Public), Some(Visibility::Private));
        assert_eq!(
            ask("", "acme/app", public, Scope::Read),
            Verdict::Allowed(None)
        );
        assert_eq!(
            ask("", "acme/app", public, Scope::Write),
            Verdict::Unauthorized
        );
        assert_eq!(
            ask("", "acme/app", private, Scope::Read),
            Verdict::Unauthorized
        );
        assert_eq!(ask("", "acme/none", None, Scope::Read), Verdict::NotFound);
        assert_eq!(
            ask("x", "acme/app", public, Scope::Read),
            Verdict::Unauthorized
        );
        assert_eq!(
            ask("r", "acme/app", private, Scope::Write),
            Verdict::Forbidden
        );
        assert_eq!(
            ask("w", "acme/app", private, Scope::Write),
            Verdict::Allowed(Some("writer".to_owned()))
        );
        assert_eq!(
            ask("n", "acme/other", private, Scope::Read),
            Verdict::NotFound
        );
        assert!(matches!(
            ask("n", "acme/app", private, Scope::Read),
            Verdict::Allowed(_)
        ));
    }
}
