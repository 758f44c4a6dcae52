//! `git http-backend`, run as the CGI program that it is, with bodies streamed both ways.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio_util::io::ReaderStream;

use crate::git;
use crate::process::{Processes, Running};

/// One call of the backend.
pub(crate) struct Call {
    /// The repository's directory and what follows it in the URL: `.../app.git/info/refs`.
    pub(crate) translated: PathBuf,
    pub(crate) method: String,
    pub(crate) query: String,
    pub(crate) content_type: Option<String>,
    pub(crate) content_length: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) git_protocol: Option<String>,
    pub(crate) config: Vec<(String, String)>,
}

/// Runs the backend. The answer's body is the program's output as it comes; if it is dropped, the program
/// and its children are killed.
pub(crate) async fn run(
    processes: &Processes,
    call: Call,
    body: impl Stream<Item = Result<Bytes, axum::Error>> + Send + 'static,
) -> io::Result<Response<Body>> {
    let mut running = processes.spawn(&mut command(call))?;
    let stdin = running
        .child
        .stdin
        .take()
        .ok_or_else(|| io::Error::other("no stdin"))?;
    let stdout = running
        .child
        .stdout
        .take()
        .ok_or_else(|| io::Error::other("no stdout"))?;
    let pump = Pump(tokio::spawn(feed(stdin, body)));
    let mut stdout = BufReader::new(stdout);
    let mut response = Response::new(Body::empty());
    let mut seen_header = false;
    loop {
        let mut line = String::new();
        if stdout.read_line(&mut line).await? == 0 {
            break;
        }
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        seen_header = true;
        set_header(&mut response, name, value.trim());
    }
    if !seen_header {
        return Err(io::Error::other("git http-backend answered nothing"));
    }
    *response.body_mut() = Body::from_stream(output(stdout, running, pump));
    Ok(response)
}

fn command(call: Call) -> Command {
    let mut config = call.config;
    // The backend serves receive-pack to a signed-in user only; the forge has decided already.
    config.push(("http.receivepack".to_owned(), "true".to_owned()));
    let mut command = Command::new("git");
    git::hermetic(command.as_std_mut(), &config);
    command
        .arg("http-backend")
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GATEWAY_INTERFACE", "CGI/1.1")
        .env("SERVER_PROTOCOL", "HTTP/1.1")
        .env("REMOTE_ADDR", "127.0.0.1")
        .env("REMOTE_USER", "forge")
        .env("REQUEST_METHOD", call.method)
        .env("PATH_TRANSLATED", call.translated)
        .env("QUERY_STRING", call.query)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let optional = [
        ("CONTENT_TYPE", call.content_type),
        ("CONTENT_LENGTH", call.content_length),
        ("HTTP_CONTENT_ENCODING", call.content_encoding),
        ("GIT_PROTOCOL", call.git_protocol),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

async fn feed(mut stdin: ChildStdin, body: impl Stream<Item = Result<Bytes, axum::Error>>) {
    let mut body = std::pin::pin!(body);
    while let Some(Ok(chunk)) = body.next().await {
        if stdin.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

fn set_header(response: &mut Response<Body>, name: &str, value: &str) {
    if name.eq_ignore_ascii_case("status") {
        let code = value
            .split(' ')
            .next()
            .and_then(|code| code.parse::<u16>().ok());
        *response.status_mut() = code
            .and_then(|c| StatusCode::from_u16(c).ok())
            .unwrap_or(StatusCode::BAD_GATEWAY);
    } else if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
    {
        response.headers_mut().append(name, value);
    }
}

/// The task that feeds the program; it ends with the answer.
struct Pump(JoinHandle<()>);

impl Drop for Pump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn output(
    stdout: BufReader<ChildStdout>,
    running: Running,
    pump: Pump,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    const CHUNK: usize = 64 * 1024;
    let reader: ReaderStream<Box<dyn AsyncRead + Send + Unpin>> =
        ReaderStream::with_capacity(Box::new(stdout), CHUNK);
    // A backend that fails in the middle just ends its output, and servers pass that on as a clean end: so do
    // we. Clients must find out by what is missing.
    stream::unfold(
        (reader, running, pump),
        |(mut reader, mut running, pump)| async move {
            let Some(chunk) = reader.next().await else {
                drop(running.child.wait().await);
                return None;
            };
            Some((chunk, (reader, running, pump)))
        },
    )
}
