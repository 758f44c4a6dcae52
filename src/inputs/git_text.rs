//! What `git` and `ssh` say when they fail, as one table.
//!
//! They end with 128 (or 255) for nearly everything, so their words are all there is, and only the second source: what
//! our own HTTP client saw comes first. The table is kept under test against the versions that Debian ships.

use super::Credential;
use crate::api::{Reason, safe_text};

/// What a failed call said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// What happened, as the registry names it.
    Reason(Reason),
    /// The server does not have the object, or does not give out ids that no ref points to.
    NotAdvertised,
    /// The server has no such ref.
    NoSuchRef,
    /// The mirror on disk is damaged.
    Damaged,
    /// None of the words that we know.
    Unknown,
}

/// Any of these words, in whatever case, and what they mean. The first row that fits counts, so causes stand before their consequences.
const TABLE: &[(&str, Said)] = &[
    (
        "No space left on device",
        Said::Reason(Reason::HostDiskFull),
    ),
    ("Disk quota exceeded", Said::Reason(Reason::HostDiskFull)),
    ("Out of memory", Said::Reason(Reason::InputTooLarge)),
    (
        "Cannot allocate memory",
        Said::Reason(Reason::InputTooLarge),
    ),
    ("died of signal 9", Said::Reason(Reason::InputTooLarge)),
    // ssh
    (
        "IDENTIFICATION HAS CHANGED",
        Said::Reason(Reason::HostKeyMismatch),
    ),
    (
        "host key is known for",
        Said::Reason(Reason::HostKeyUnknown),
    ),
    (
        "Host key verification failed",
        Said::Reason(Reason::HostKeyUnknown),
    ),
    (
        "no matching host key type",
        Said::Reason(Reason::HostKeyMismatch),
    ),
    ("error in libcrypto", Said::Reason(Reason::KeyUnusable)),
    ("\": invalid format", Said::Reason(Reason::KeyUnusable)),
    (
        "Permission denied (",
        Said::Reason(Reason::AuthenticationFailed),
    ),
    (
        "Too many authentication failures",
        Said::Reason(Reason::AuthenticationFailed),
    ),
    (
        "Could not resolve hostname",
        Said::Reason(Reason::HostUnreachable),
    ),
    (
        "ssh: connect to host",
        Said::Reason(Reason::HostUnreachable),
    ),
    (
        "kex_exchange_identification",
        Said::Reason(Reason::HostUnreachable),
    ),
    ("not responding", Said::Reason(Reason::TransferStalled)),
    (
        "does not appear to be a git repository",
        Said::Reason(Reason::RepositoryNotFoundOrNoAccess),
    ),
    (
        "Repository not found",
        Said::Reason(Reason::RepositoryNotFoundOrNoAccess),
    ),
    (
        "could not be found or you don't",
        Said::Reason(Reason::RepositoryNotFoundOrNoAccess),
    ),
    // https
    (
        "could not read Username",
        Said::Reason(Reason::AuthenticationRequired),
    ),
    (
        "could not read Password",
        Said::Reason(Reason::AuthenticationRequired),
    ),
    (
        "Authentication failed for",
        Said::Reason(Reason::AuthenticationFailed),
    ),
    (
        "Could not resolve host",
        Said::Reason(Reason::HostUnreachable),
    ),
    (
        "Failed to connect to",
        Said::Reason(Reason::HostUnreachable),
    ),
    (
        "Couldn't connect to server",
        Said::Reason(Reason::HostUnreachable),
    ),
    (
        "Connection timed out",
        Said::Reason(Reason::HostUnreachable),
    ),
    ("Operation too slow", Said::Reason(Reason::TransferStalled)),
    (
        "SSL certificate problem",
        Said::Reason(Reason::TLSVerificationFailed),
    ),
    (
        "server certificate verification failed",
        Said::Reason(Reason::TLSVerificationFailed),
    ),
    (
        "SSL: no alternative certificate",
        Said::Reason(Reason::TLSVerificationFailed),
    ),
    (
        "SSL: certificate subject name",
        Said::Reason(Reason::TLSVerificationFailed),
    ),
    (
        "not valid: is this a git repository?",
        Said::Reason(Reason::NotAGitServer),
    ),
    // Both
    (
        "mismatched algorithms",
        Said::Reason(Reason::UnsupportedObjectFormat),
    ),
    ("not our ref", Said::NotAdvertised),
    (
        "Server does not allow request for unadvertised object",
        Said::NotAdvertised,
    ),
    ("couldn't find remote ref", Said::NoSuchRef),
    // Findings of fsck: the first are tricks with paths, what is left is damage or nonsense.
    (": hasDot", Said::Reason(Reason::UnsafePath)),
    (": fullPathname", Said::Reason(Reason::UnsafePath)),
    (": gitmodules", Said::Reason(Reason::UnsafePath)),
    (": symlink", Said::Reason(Reason::UnsafePath)),
    (
        "fsck error in packed object",
        Said::Reason(Reason::CheckoutFailed),
    ),
    // What broke off on the way.
    ("early EOF", Said::Reason(Reason::FetchFailed)),
    ("unexpected disconnect", Said::Reason(Reason::FetchFailed)),
    ("hung up unexpectedly", Said::Reason(Reason::FetchFailed)),
    ("RPC failed", Said::Reason(Reason::FetchFailed)),
    ("bad pack header", Said::Reason(Reason::FetchFailed)),
    ("pack is corrupted", Said::Reason(Reason::FetchFailed)),
    ("inflate returned", Said::Reason(Reason::FetchFailed)),
    (
        "aborting due to possible repository corruption on the remote",
        Said::Reason(Reason::ServerError),
    ),
    // Our own mirror.
    (".lock': File exists", Said::Damaged),
    ("not a git repository", Said::Damaged),
    ("did not send all necessary objects", Said::Damaged),
    ("bad object", Said::Damaged),
    ("bad config", Said::Damaged),
    ("is corrupt", Said::Damaged),
    ("is empty", Said::Damaged),
    ("unable to read", Said::Damaged),
    ("unable to get", Said::Damaged),
    ("unresolved delta", Said::Damaged),
    ("missing blob", Said::Damaged),
    ("missing tree", Said::Damaged),
    ("cannot be accessed", Said::Damaged),
];

/// Reads the standard error of a failed call.
pub(super) fn read(text: &str) -> Said {
    if let Some(status) = http_status(text) {
        return Said::Reason(match status {
            300..=399 => Reason::RedirectRefused,
            401 => Reason::AuthenticationFailed,
            403 => Reason::AccessDenied,
            404 => Reason::RepositoryNotFoundOrNoAccess,
            410 => Reason::RepositoryGone,
            429 => Reason::RateLimited,
            500..=599 => Reason::ServerError,
            _ => Reason::FetchFailed,
        });
    }
    // `repository 'URL' not found`: words around an address.
    if text.contains("fatal: repository '") && text.contains("' not found") {
        return Said::Reason(Reason::RepositoryNotFoundOrNoAccess);
    }
    // Servers do not agree on capitals.
    let text = text.to_ascii_lowercase();
    TABLE
        .iter()
        .find(|(words, _)| text.contains(&words.to_ascii_lowercase()))
        .map_or(Said::Unknown, |(_, said)| *said)
}

/// The words to show to a user: the lines that complain, without secrets, on one line, not long.
pub(super) fn words(text: &str, credential: &Credential) -> String {
    const MOST: usize = 300;
    let complains = |line: &&str| {
        [
            "fatal: ",
            "error: ",
            "ssh: ",
            "ERROR: ",
            "Load key",
            "Permission denied",
            "Host key",
        ]
        .iter()
        .any(|start| line.starts_with(start))
            || line.contains("host key")
    };
    let mut lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(complains)
        .take(3)
        .collect();
    if lines.is_empty() {
        lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .take(2)
            .collect();
    }
    let text = without_userinfo(&credential.scrub(&lines.join("; ")));
    let mut short: String = safe_text(text.as_bytes()).chars().take(MOST).collect();
    if short.is_empty() {
        "it gave no reason".clone_into(&mut short);
    }
    short
}

/// The status in `The requested URL returned error: 503`.
fn http_status(text: &str) -> Option<u16> {
    let (_, after) = text.split_once("The requested URL returned error: ")?;
    after.get(..3)?.parse().ok()
}

/// A text without what stands between `://` and `@`. No address of ours has anything there but an ssh user.
fn without_userinfo(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        clean.push_str(before);
        clean.push_str("://");
        let authority = after
            .split(['/', ' ', '\'', '"'])
            .next()
            .unwrap_or_default();
        rest = match authority.rsplit_once('@') {
            Some((user, _)) => after.get(user.len() + 1..).unwrap_or_default(),
            None => after,
        };
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The words of git 2.39.5 and OpenSSH 9.2, as Debian 12 ships them. `tests/inputs_mirror.rs` sees that they
    /// still say so.
    #[rstest]
    #[case::no_credential(
        "fatal: could not read Username for 'https://h': terminal prompts disabled",
        Said::Reason(Reason::AuthenticationRequired)
    )]
    #[case::wrong_credential(
        "fatal: Authentication failed for 'https://h/a.git/'",
        Said::Reason(Reason::AuthenticationFailed)
    )]
    #[case::forbidden(
        "fatal: unable to access 'https://h/a/': The requested URL returned error: 403",
        Said::Reason(Reason::AccessDenied)
    )]
    #[case::redirect(
        "fatal: unable to access 'https://h/a/': The requested URL returned error: 301",
        Said::Reason(Reason::RedirectRefused)
    )]
    #[case::gone(
        "fatal: unable to access 'https://h/a/': The requested URL returned error: 410",
        Said::Reason(Reason::RepositoryGone)
    )]
    #[case::not_found(
        "remote: x\nfatal: repository 'https://h/a.git/' not found",
        Said::Reason(Reason::RepositoryNotFoundOrNoAccess)
    )]
    #[case::limited_on_post(
        "error: RPC failed; HTTP 429 curl 22 The requested URL returned error: 429\nfatal: expected 'packfile'",
        Said::Reason(Reason::RateLimited)
    )]
    #[case::fault_on_post(
        "error: RPC failed; HTTP 503 curl 22 The requested URL returned error: 503\nfatal: expected flush after ref listing",
        Said::Reason(Reason::ServerError)
    )]
    #[case::refused(
        "fatal: unable to access 'https://127.0.0.1:1/x.git/': Failed to connect to 127.0.0.1 port 1 after 0 ms: Couldn't connect to server",
        Said::Reason(Reason::HostUnreachable)
    )]
    #[case::silent(
        "error: RPC failed; curl 28 Operation too slow. Less than 1 bytes/sec transferred the last 30 seconds\nfatal: early EOF",
        Said::Reason(Reason::TransferStalled)
    )]
    #[case::certificate(
        "fatal: unable to access 'https://h/': server certificate verification failed. CAfile: none CRLfile: none",
        Said::Reason(Reason::TLSVerificationFailed)
    )]
    #[case::v0_by_id(
        "error: Server does not allow request for unadvertised object 9051e674f289f38bb73b6e5bc41a5def77297052",
        Said::NotAdvertised
    )]
    #[case::v2_by_id(
        "fatal: remote error: upload-pack: not our ref 1234567890123456789012345678901234567890",
        Said::NotAdvertised
    )]
    #[case::no_ref("fatal: couldn't find remote ref refs/heads/none", Said::NoSuchRef)]
    #[case::other_format(
        "fatal: mismatched algorithms: client sha256; server sha1",
        Said::Reason(Reason::UnsupportedObjectFormat)
    )]
    #[case::stale_lock(
        "fatal: Unable to create '/m/shallow.lock': File exists.",
        Said::Damaged
    )]
    #[case::full(
        "fatal: write error: No space left on device\nfatal: index-pack failed",
        Said::Reason(Reason::HostDiskFull)
    )]
    #[case::killed(
        "error: index-pack died of signal 9\nfatal: index-pack failed",
        Said::Reason(Reason::InputTooLarge)
    )]
    #[case::path_trick(
        "error: object b029c74687eae65c9a7e506c263bb1224758ec32: hasDotgit: contains '.git'\nfatal: fsck error in packed object",
        Said::Reason(Reason::UnsafePath)
    )]
    #[case::bad_object(
        "error: object 22c7: missingCommitter: invalid format - expected 'committer' line\nfatal: fsck error in packed object",
        Said::Reason(Reason::CheckoutFailed)
    )]
    #[case::key_that_is_none(
        "Load key \"/k\": invalid format\ngit@h: Permission denied (publickey).",
        Said::Reason(Reason::KeyUnusable)
    )]
    #[case::unknown_host_key(
        "No ED25519 host key is known for [127.0.0.1]:2 and you have requested strict checking.\r\nHost key verification failed.",
        Said::Reason(Reason::HostKeyUnknown)
    )]
    #[case::other_host_key(
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.",
        Said::Reason(Reason::HostKeyMismatch)
    )]
    #[case::ssh_refused(
        "ssh: connect to host 127.0.0.1 port 1: Connection refused\nfatal: Could not read from remote repository.",
        Said::Reason(Reason::HostUnreachable)
    )]
    #[case::ssh_key_refused(
        "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
        Said::Reason(Reason::AuthenticationFailed)
    )]
    #[case::anything_else("fatal: the moon is full", Said::Unknown)]
    fn a_failed_call_is_read_by_its_words(#[case] text: &str, #[case] want: Said) {
        assert_eq!(read(text), want);
    }

    #[rstest]
    #[case::password("at 'https://u:p@h/a' x", "at 'https://h/a' x")]
    #[case::at_in_path("https://h/a@b", "https://h/a@b")]
    #[case::none("nothing", "nothing")]
    #[case::two("ssh://git@h/a https://t@g", "ssh://h/a https://g")]
    fn c05_what_stands_before_an_at_is_not_shown(#[case] text: &str, #[case] want: &str) {
        assert_eq!(without_userinfo(text), want);
    }
}
