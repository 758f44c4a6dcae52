//! What a text must look like: each function here has its twin in CEL, in `super::super::crd`.

/// A DNS subdomain of at most 253 characters.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.parse::<crate::api::ConnectorName>().is_ok()
}

/// A key of a Secret.
pub(super) fn is_secret_key(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && !matches!(text, "." | "..")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label's name or a taint's key: a name, or a domain and a name.
pub(super) fn is_label_name(text: &str) -> bool {
    text.len() <= crate::api::rules::MAX_LABEL_NAME
        && match text.split_once('/') {
            Some((domain, name)) => is_domain(domain) && is_name(name),
            None => is_name(text),
        }
}

/// A label's value.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

/// A resource of a container: one that every node has, or an extended one.
pub(super) fn is_resource_name(text: &str) -> bool {
    crate::api::rules::RESOURCES.contains(&text) || (text.contains('/') && is_label_name(text))
}

/// What stands before the slash of a qualified name.
fn is_domain(text: &str) -> bool {
    text.split('.').all(|label| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        label.bytes().all(inner) && !label.is_empty() && !edged(label, '-')
    })
}

/// What stands after it.
fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !edged(text, '-')
        && !edged(text, '_')
        && !edged(text, '.')
}

/// Whether the character stands first or last.
fn edged(text: &str, c: char) -> bool {
    text.starts_with(c) || text.ends_with(c)
}

/// Segments that all mean something: none empty, `.` or `..`, no control character.
pub(super) fn is_clean_path(text: &str) -> bool {
    text.chars().count() <= crate::api::rules::MAX_PATH
        && !text.chars().any(char::is_control)
        && text
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | ".."))
}

/// An absolute path of clean segments, not `/` itself.
pub(super) fn is_absolute(text: &str) -> bool {
    text.strip_prefix('/').is_some_and(is_clean_path)
}

/// Whether one of the paths is the other, or lies below it.
pub(super) fn overlap(one: &str, other: &str) -> bool {
    is_at_or_below(one, other) || is_at_or_below(other, one)
}

/// Whether `path` is `place`, or lies below it.
pub(super) fn is_at_or_below(path: &str, place: &str) -> bool {
    path.strip_prefix(place)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An HTTP method that a lookup can allow.
pub(super) fn is_method(text: &str) -> bool {
    (1..=crate::api::rules::MAX_METHOD).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_uppercase())
        && !matches!(text, "CONNECT" | "TRACE")
}

/// A pattern of segments, without the `/` before it. `*` and `**` stand alone in theirs.
pub(super) fn is_pattern(text: &str) -> bool {
    text.chars().count() <= crate::api::rules::MAX_PATTERN
        && !text
            .chars()
            .any(|c| c.is_control() || matches!(c, '?' | '#' | '%' | '\\'))
        && text.split('/').all(|segment| match segment {
            "" | "." | ".." => false,
            "*" | "**" => true,
            other => !other.contains('*'),
        })
}

/// A pattern that begins with `/`; `/` alone is the root.
pub(super) fn is_absolute_pattern(text: &str) -> bool {
    text == "/" || text.strip_prefix('/').is_some_and(is_pattern)
}

/// The entries that are there more than once, each as often as it is there.
pub(super) fn repeated<'a>(list: &[&'a str]) -> Vec<&'a str> {
    let times = |entry: &str| list.iter().filter(|other| **other == entry).count();
    list.iter()
        .copied()
        .filter(|entry| times(entry) > 1)
        .collect()
}
