//! Manifests as people write them: YAML or JSON, any number of documents, `SandboxRun`, `Connector` and `Secret`.
//!
//! Reading is pure: bytes in, documents or errors out. An error names file, line, document and field, and says what to
//! write instead; it never holds a value, since any value may be a secret that stands in the wrong place. A document
//! that comes out keeps every rule of its kind.

mod across;
mod decode;
mod split;
#[cfg(test)]
mod tests;
mod tree;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use secrecy::{ExposeSecret, SecretSlice};

pub use across::{Findings, Placed, across};

use super::{Connector, Fault, Reason, SandboxRun};

/// The largest manifest, 4 MiB: three times what an API server takes as one object.
pub const MAX_BYTES: usize = 4 * 1024 * 1024;

/// One document of a manifest, which keeps every rule of its kind.
#[derive(Debug, Clone)]
pub enum Document {
    /// `sandboxrun.dev/v1alpha1` `SandboxRun`. [`super::RunSpec::parse`] succeeds.
    Run(Box<SandboxRun>),
    /// `sandboxrun.dev/v1alpha1` `Connector`. [`super::ParsedConnector::parse`] succeeds.
    Connector(Box<Connector>),
    /// `v1` `Secret`.
    Secret(SecretManifest),
}

impl Document {
    /// `SandboxRun`, `Connector` or `Secret`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Run(_) => "SandboxRun",
            Self::Connector(_) => "Connector",
            Self::Secret(_) => "Secret",
        }
    }

    /// `metadata.name`; empty for a run with `generateName` alone.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Run(run) => run.metadata.name.as_deref().unwrap_or_default(),
            Self::Connector(connector) => connector.metadata.name.as_deref().unwrap_or_default(),
            Self::Secret(secret) => &secret.name,
        }
    }

    /// `metadata.namespace`.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        match self {
            Self::Run(run) => run.metadata.namespace.as_deref(),
            Self::Connector(connector) => connector.metadata.namespace.as_deref(),
            Self::Secret(secret) => secret.namespace.as_deref(),
        }
    }
}

/// A `v1` `Secret` of a manifest.
#[derive(Debug, Clone)]
pub struct SecretManifest {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: Option<String>,
    /// `metadata.annotations`; `sandboxrun.dev/origin` says where the Secret may go.
    pub annotations: BTreeMap<String, String>,
    /// The values of `data`, decoded, and `stringData`, which wins, by key.
    pub values: BTreeMap<String, SecretBytes>,
}

/// The bytes of one key of a Secret: no `Display`, no `Serialize`, a redacted `Debug`, wiped when dropped.
#[derive(Clone)]
pub struct SecretBytes(SecretSlice<u8>);

impl SecretBytes {
    /// Takes the bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(SecretSlice::from(bytes))
    }

    /// The bytes, for [`super::Secret::from_line`] and [`super::Secret::from_block`]. Never format them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(***)")
    }
}

/// What is wrong with a document, where, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestError {
    /// The file as it was named; `-` for standard input.
    pub file: String,
    /// From 1, where it is known.
    pub line: Option<u64>,
    /// The number of the document in its file, from 1; `None` if the whole file is refused.
    pub document: Option<usize>,
    /// What the document says it is, such as `SandboxRun fix-123`; empty if that is not known.
    pub object: String,
    /// Where in the document, such as `spec.inputs[0].ref`; empty for the document itself.
    pub field: String,
    /// What to write instead.
    pub message: Cow<'static, str>,
    /// Whether it could not be read, or breaks a rule.
    pub reason: Reason,
}

impl std::error::Error for ManifestError {}

impl Fault for ManifestError {
    fn reason(&self) -> Reason {
        self.reason
    }
}

impl fmt::Display for ManifestError {
    /// `run.yaml:12: document 1 (SandboxRun fix-123): spec.inputs[0].ref: set exactly one of ...`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if let Some(document) = self.document {
            write!(f, "document {document}")?;
            if !self.object.is_empty() {
                write!(f, " ({})", self.object)?;
            }
            f.write_str(": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Reads every document of a manifest: the good ones, and each error of the others, in the order of the file. Empty
/// documents are passed over.
///
/// `file` is for the errors only: nothing is opened.
#[must_use]
#[expect(
    clippy::result_large_err,
    reason = "an error is as rare as it is large, and goes to a person"
)]
pub fn read(file: &str, bytes: &[u8]) -> Vec<Result<Document, ManifestError>> {
    read_numbered(file, bytes)
        .into_iter()
        .map(|(_, read)| read)
        .collect()
}

/// As [`read`], and the number of each document in its file, from 1; 0 if the whole file is refused.
#[must_use]
pub fn read_numbered(file: &str, bytes: &[u8]) -> Vec<(usize, Result<Document, ManifestError>)> {
    let refuse = |message: Cow<'static, str>| {
        let file = file.to_owned();
        let (object, field) = (String::new(), String::new());
        let reason = Reason::NotDecodable;
        let error = ManifestError {
            file,
            line: None,
            document: None,
            object,
            field,
            message,
            reason,
        };
        vec![(0, Err(error))]
    };
    if bytes.len() > MAX_BYTES {
        let message = format!(
            "has more than {MAX_BYTES} bytes (4 MiB), the most that a manifest can have: put what is large into an input"
        );
        return refuse(message.into());
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return refuse("is not UTF-8 text: save it as UTF-8".into());
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.contains('\0') {
        return refuse("holds a NUL character: save it as plain UTF-8 text".into());
    }
    let mut found = Vec::new();
    for chunk in split::documents(text) {
        decode::document(file, &chunk, &mut found);
    }
    if found.is_empty() {
        return refuse("holds no document: write a SandboxRun, Connector or Secret".into());
    }
    found
}

/// A key in an error text: it may be anything.
fn shown(key: &str) -> String {
    let mut safe = super::safe_text(key.as_bytes());
    if safe.len() > 64 {
        safe = safe.chars().take(60).chain("...".chars()).collect();
    }
    safe
}
