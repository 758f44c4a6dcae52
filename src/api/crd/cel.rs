//! Expressions of CEL: what a text looks like, and when entries of a list are in each other's way.
//!
//! Each is the twin of a function in `super::super::parse`. Patterns are in the syntax that RE2 and Rust share.

/// Control characters, inside a class.
pub(super) const CONTROL: &str = r"\x00-\x1f\x7f-\x{9f}";
/// A DNS label.
const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// What may stand before the slash of a qualified name, such as of a label.
pub(super) const PREFIX: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
/// What may stand after it, and a label's value.
pub(super) const NAME: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";

/// A text as a literal.
pub(super) fn text(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

/// Texts as a list literal.
pub(super) fn texts(list: &[&str]) -> String {
    let list: Vec<String> = list.iter().map(|one| text(one)).collect();
    format!("[{}]", list.join(", "))
}

/// Whether `subject` matches a pattern.
pub(super) fn matches(subject: &str, pattern: &str) -> String {
    format!("{subject}.matches({})", text(pattern))
}

/// Whether `subject` does not match a pattern.
pub(super) fn is_free_of(subject: &str, pattern: &str) -> String {
    format!("!{}", matches(subject, pattern))
}

/// A DNS label of at most 40 characters.
pub(super) fn is_label(subject: &str) -> String {
    format!(
        "{subject}.size() <= 40 && {}",
        matches(subject, &format!("^{LABEL}$"))
    )
}

/// A DNS subdomain.
pub(super) fn is_subdomain(subject: &str) -> String {
    matches(subject, &format!(r"^{LABEL}(\.{LABEL})*$"))
}

/// A relative path of clean segments. `forbidden` is a further segment that may not be there, as a pattern.
pub(super) fn is_clean_path(subject: &str, forbidden: Option<&str>) -> String {
    let forbidden = forbidden
        .map(|segment| format!("|{segment}"))
        .unwrap_or_default();
    is_free_of(
        subject,
        &format!(r"[{CONTROL}]|(^|/)(\.{{0,2}}{forbidden})(/|$)"),
    )
}

/// An absolute path of clean segments, not `/` itself.
pub(super) fn is_absolute(subject: &str) -> String {
    format!(
        "{} && {}",
        matches(subject, &format!("^(/[^/{CONTROL}]+)+$")),
        is_free_of(subject, r"/\.{1,2}(/|$)")
    )
}

/// Whether every entry of the list `self` has a pattern's form. With `rooted`, each begins with `/`.
pub(super) fn are_patterns(rooted: bool) -> String {
    let segment = format!(r"([^/?#%\\*{CONTROL}]+|\*\*?)");
    let (form, root) = if rooted {
        (format!("^(/{segment})+$"), "p == '/' || ")
    } else {
        (format!("^{segment}(/{segment})*$"), "")
    };
    format!(
        "self.all(p, {root}({} && {}))",
        matches("p", &form),
        is_free_of("p", r"(^|/)\.{1,2}(/|$)")
    )
}

/// Whether every entry of the list `self` is an HTTP method.
pub(super) fn are_methods() -> String {
    format!(
        "self.all(m, {} && !(m in ['CONNECT', 'TRACE']))",
        matches("m", "^[A-Z]{1,32}$")
    )
}

/// Whether `subject` is a duration within bounds that are durations too.
pub(super) fn is_duration(subject: &str, least: &str, most: &str) -> String {
    let form = matches(subject, r"^([0-9]{1,5}(\.[0-9]{1,9})?(h|m|s|ms))+$");
    format!(
        "{form} && duration({subject}) >= duration('{least}') && duration({subject}) <= duration('{most}')"
    )
}

/// Whether `a` and `b`, each an expression of a path, are equal or one lies below the other.
pub(super) fn overlap(a: &str, b: &str) -> String {
    format!("{a} == {b} || {a}.startsWith({b} + '/') || {b}.startsWith({a} + '/')")
}

/// The rules of an address at `subject`: expression and sentence, in the order of `RepoUrl`'s own checks.
///
/// `when` is a condition under which it is an address at all. `scheme` is the expression and sentence of what it may
/// begin with. A connector's url (`origin`) has no user at all, and its path may be empty.
pub(super) fn url_rules(
    subject: &str,
    when: &str,
    scheme: (&str, &'static str),
    origin: bool,
) -> Vec<(String, &'static str)> {
    use crate::api::rules;

    // A host that is plain text: letters, digits, dots and dashes, or an IPv6 address in brackets.
    let plain = "[A-Za-z0-9_][A-Za-z0-9._-]*";
    let host =
        format!(r"(\[[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*\]|{plain})(:[0-9]{{0,5}})?(/|$)");
    let good_host =
        format!("^https://([^/]*@)?{host}|^ssh://({plain}(:[^/]*)?@)?{host}|^{plain}@{plain}:");
    let credential = if origin {
        "^[a-z]+://[^/]*@"
    } else {
        "^https://[^/]*@|^ssh://[^/@]*:[^/]*@"
    };
    // Where the path begins: after the authority, or after the `:` of `git@host:path`.
    let start = "(://[^/]*/|^[^@:/]+@[^:/]*:)";
    let ambiguous = format!(
        r"[{CONTROL}\\]|[:/](\.|%2[eE]){{1,2}}(/|$)|{start}.*[^/]//+[^/]|{start}/*-|{start}.*%2[fF]"
    );
    let unless = |rule: String| format!("!({when}) || {rule}");
    let mut found = vec![
        (unless(is_free_of(subject, &ambiguous)), rules::URL_UNSAFE),
        (unless(is_free_of(subject, "[?#]")), rules::URL_QUERY),
        (scheme.0.to_owned(), scheme.1),
        (
            unless(is_free_of(subject, credential)),
            rules::URL_CREDENTIAL,
        ),
        (
            unless(format!(
                "!({}) || {}",
                scheme.0,
                matches(subject, &good_host)
            )),
            rules::URL_HOST,
        ),
    ];
    if !origin {
        let no_path = "^[a-z]+://[^/]*/*$|^[^@:/]+@[^:/]*:/*$";
        found.push((unless(is_free_of(subject, no_path)), rules::URL_PATH));
    }
    found
}
