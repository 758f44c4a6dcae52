//! What git's HTTP client heard: the last answer's status and headers, out of git's own trace.
//!
//! git tells a failed request by a few words and hides how long a server wants to be left alone. Its trace has the
//! headers. It goes through a pipe into memory, git blanks the credential in it, and nothing of it is ever shown: only
//! the status and the headers of answers are read, and the rest of the text is what git says without a trace.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// The variables that switch it on. Bodies are left out, and it goes to standard error.
pub(super) const VARIABLES: [(&str, &str); 3] = [
    ("GIT_TRACE_CURL", "2"),
    ("GIT_TRACE_CURL_NO_DATA", "1"),
    ("GIT_TRACE_REDACT", "1"),
];

/// The last answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heard {
    /// Its status.
    pub(super) status: StatusCode,
    /// Its headers.
    pub(super) headers: HeaderMap,
}

/// Splits standard error into what git says and the last answer that it heard.
pub(super) fn split(text: &str) -> (String, Option<Heard>) {
    let mut words = String::new();
    let mut heard: Option<Heard> = None;
    for line in text.lines() {
        let Some(event) = event(line) else {
            words.push_str(line);
            words.push('\n');
            continue;
        };
        let Some(header) = event.strip_prefix("<= Recv header: ") else {
            continue;
        };
        if let Some(status) = status(header) {
            heard = Some(Heard {
                status,
                headers: HeaderMap::new(),
            });
        } else if let (Some(heard), Some((name, value))) = (&mut heard, header.split_once(':'))
            && let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.trim().as_bytes()),
                HeaderValue::from_str(value.trim()),
            )
        {
            heard.headers.append(name, value);
        }
    }
    (words, heard)
}

/// The event of a line such as `20:07:53.282954 http.c:684              <= Recv header: Retry-After: 20`.
fn event(line: &str) -> Option<&str> {
    let (time, rest) = line.split_once(' ')?;
    let is_time = time.len() == 15
        && time
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'));
    let (place, event) = rest.split_once(' ')?;
    let is_place = place
        .split_once(".c:")
        .is_some_and(|(_, line)| line.parse::<u32>().is_ok());
    (is_time && is_place).then(|| event.trim_start())
}

/// The status of `HTTP/1.1 429 Too Many Requests`.
fn status(header: &str) -> Option<StatusCode> {
    let mut words = header.split_ascii_whitespace();
    words
        .next()
        .filter(|version| version.starts_with("HTTP/"))?;
    words
        .next()?
        .parse::<u16>()
        .ok()
        .and_then(|status| StatusCode::from_u16(status).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t02_the_last_answer_is_heard_and_the_trace_is_not_part_of_the_words() {
        let text = "\
20:07:53.281637 http.c:672              => Send header, 0000000227 bytes (0x000000e3)
20:07:53.281644 http.c:684              => Send header: GET /x/info/refs?service=git-upload-pack HTTP/1.1
20:07:53.281647 http.c:684              => Send header: Authorization: Basic <redacted>
20:07:53.282936 http.c:684              <= Recv header: HTTP/1.1 200 OK
20:07:53.282942 http.c:684              <= Recv header: Server: one
20:07:53.282936 http.c:684              <= Recv header: HTTP/1.1 429 Too Many Requests
20:07:53.282954 http.c:684              <= Recv header: Retry-After: 20
20:07:53.282959 http.c:684              <= Recv header:
20:07:53.282991 http.c:725              == Info: Connection timed out
error: RPC failed; HTTP 429
fatal: expected 'packfile'
";
        let (words, heard) = split(text);
        assert_eq!(
            words,
            "error: RPC failed; HTTP 429\nfatal: expected 'packfile'\n"
        );
        let heard = heard.unwrap();
        assert_eq!(heard.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(heard.headers.get("retry-after").unwrap(), "20");
        assert_eq!(heard.headers.len(), 1);
    }

    #[test]
    fn what_only_looks_like_a_trace_stays() {
        let text = "remote: 20:07:53 <= Recv header: HTTP/1.1 429 x\nfatal: http.c:1 y\n";
        assert_eq!(split(text), (text.to_owned(), None));
    }
}
