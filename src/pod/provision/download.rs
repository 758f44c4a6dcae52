//! Downloads packs: streamed to disk, hashed on the way, resumed where a connection broke.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::digest;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_RANGE, HeaderValue, RANGE};
use hyper::{Method, StatusCode};

use crate::api::wire::Blob;
use crate::api::{Fault, Reason};
use crate::pod::client::{self, CallError, Gateway};
use crate::pod::objects::hex;

/// Why a file did not arrive.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The gateway did not give it, after all tries.
    #[error("cannot download the {what}")]
    Call {
        /// Pack or index.
        what: &'static str,
        /// The last try.
        #[source]
        source: CallError,
    },
    /// The transfer broke off too often.
    #[error("the {what} broke off {tries} times, at {got} of {want} bytes")]
    BrokeOff {
        /// Pack or index.
        what: &'static str,
        /// How often.
        tries: u32,
        /// Bytes that came.
        got: u64,
        /// Bytes that should come.
        want: u64,
    },
    /// More bytes than announced.
    #[error("the {what} is longer than the {want} bytes that were announced")]
    TooLong {
        /// Pack or index.
        what: &'static str,
        /// Bytes that should come.
        want: u64,
    },
    /// Other bytes than announced.
    #[error("the {what} has SHA-256 {got}, not {want}")]
    WrongHash {
        /// Pack or index.
        what: &'static str,
        /// What came.
        got: String,
        /// What should come.
        want: String,
    },
    /// The disk did not take it.
    #[error("cannot write the {what}")]
    Write {
        /// Pack or index.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Fault for DownloadError {
    fn reason(&self) -> Reason {
        match self {
            Self::Call { source, .. } => source.reason(),
            Self::BrokeOff { .. } | Self::TooLong { .. } | Self::WrongHash { .. } => {
                Reason::PackInvalid
            }
            Self::Write { source, .. } if super::is_no_space(source) => Reason::NoSpaceForInputs,
            Self::Write { .. } => Reason::CheckoutFailed,
        }
    }
}

/// Tries at all: a connection that breaks every few bytes must end, too.
const ALL_TRIES: u32 = 128;
/// A connection that is silent for this long is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// Downloads `path` of the gateway into `file`, whole and with the announced hash.
///
/// # Errors
/// When it does not come whole within the bounded tries, is another file, or cannot be written.
pub(super) async fn download(
    gateway: &Gateway,
    path: &str,
    what: &'static str,
    blob: &Blob,
    file: &Path,
) -> Result<(), DownloadError> {
    let write_failed = |source| DownloadError::Write { what, source };
    let mut target = Target {
        file: File::create(file).map_err(write_failed)?,
        hash: digest::Context::new(&digest::SHA256),
        got: 0,
        want: blob.bytes,
        what,
    };
    let (mut tries, mut patience) = (0, gateway.patience());
    loop {
        let before = target.got;
        let result = target.attempt(gateway, path).await;
        if target.got == target.want && result.is_ok() {
            break;
        }
        tries += 1;
        let progress = target.got > before;
        if progress {
            patience.renew();
        }
        // An answer that ends early is a connection that broke.
        let broke_off = || CallError::Connect(io::ErrorKind::UnexpectedEof.into());
        let (source, said) = match result {
            Ok(()) => (broke_off(), false),
            Err(DownloadError::Call { source, .. }) => (source, true),
            Err(error) => return Err(error),
        };
        let passes = source.is_passing() || source.is_unknown_identity();
        if tries < ALL_TRIES && passes && (progress || patience.outlasts(&source).await) {
            continue;
        }
        if said && (!passes || target.got == before) {
            return Err(DownloadError::Call { what, source });
        }
        let (got, want) = (target.got, target.want);
        return Err(DownloadError::BrokeOff {
            what,
            tries,
            got,
            want,
        });
    }
    let got = hex(target.hash.finish().as_ref());
    if got == blob.sha256 {
        Ok(())
    } else {
        Err(DownloadError::WrongHash {
            what,
            got,
            want: blob.sha256.clone(),
        })
    }
}

struct Target {
    file: File,
    hash: digest::Context,
    got: u64,
    want: u64,
    what: &'static str,
}

impl Target {
    /// One connection: takes what comes after the bytes that are there.
    async fn attempt(&mut self, gateway: &Gateway, path: &str) -> Result<(), DownloadError> {
        let what = self.what;
        let failed = |source| DownloadError::Call { what, source };
        let mut request = client::request(Method::GET, path, Bytes::new()).map_err(failed)?;
        if self.got > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={}-", self.got))
        {
            request.headers_mut().insert(RANGE, range);
        }
        let response = gateway.send(request, SILENCE).await.map_err(failed)?;
        if self.got > 0 && !resumes_at(&response, self.got) {
            self.restart()?;
        }
        let mut body = response.into_body();
        loop {
            let frame = tokio::time::timeout(SILENCE, body.frame())
                .await
                .map_err(|_| failed(CallError::TimedOut { limit: SILENCE }))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|source| failed(CallError::Broken(source)))?;
            if let Ok(bytes) = frame.into_data() {
                self.take(&bytes)?;
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), DownloadError> {
        let what = self.what;
        let got = self.got.saturating_add(bytes.len() as u64);
        if got > self.want {
            return Err(DownloadError::TooLong {
                what,
                want: self.want,
            });
        }
        self.file
            .write_all(bytes)
            .map_err(|source| DownloadError::Write { what, source })?;
        self.hash.update(bytes);
        self.got = got;
        Ok(())
    }

    /// The gateway began anew: so do we.
    fn restart(&mut self) -> Result<(), DownloadError> {
        let what = self.what;
        self.file
            .set_len(0)
            .and_then(|()| io::Seek::rewind(&mut self.file))
            .map_err(|source| DownloadError::Write { what, source })?;
        self.hash = digest::Context::new(&digest::SHA256);
        self.got = 0;
        Ok(())
    }
}

fn resumes_at<B>(response: &hyper::Response<B>, at: u64) -> bool {
    response.status() == StatusCode::PARTIAL_CONTENT
        && response
            .headers()
            .get(CONTENT_RANGE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.starts_with(&format!("bytes {at}-")))
}
