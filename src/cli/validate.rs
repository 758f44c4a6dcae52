//! `sandboxrun validate`: manifests are checked offline, by the rules that the cluster and a run keep.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::files::read_manifest;
use crate::api::manifest::{self, Findings, ManifestError, Placed, across};
use crate::api::{Code, Fault as _};
use crate::local::terminal_text;

/// Check manifests offline: any number of SandboxRuns, Connectors and Secrets, in any number of files.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sandboxrun validate -f run.yaml
  sandboxrun validate -f run.yaml -f connectors.yaml -o json
  kustomize build . | sandboxrun validate -f -

The exit code is 0 if all is well, 240 if a manifest is not, 2 if a file cannot be read.")]
pub(super) struct ValidateArgs {
    /// A manifest in YAML or JSON; `-` is stdin. May be repeated.
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    /// What to print.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line for each thing that is wrong.
    Text,
    /// One object: valid, documents, errors, notes.
    Json,
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {file}: {}", why(.source))]
pub(super) struct Unreadable {
    file: String,
    source: io::Error,
}

fn why(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::IsADirectory {
        "it is a directory: name the files in it".to_owned()
    } else {
        error.to_string()
    }
}

/// What validation came to.
pub(super) enum Verdict {
    /// Every document keeps every rule.
    Valid,
    /// Some do not.
    Invalid,
    /// Nothing was checked.
    Unreadable(Unreadable),
}

impl Verdict {
    /// 0, 240, or 2.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Valid => 0,
            Self::Invalid => Code::SpecInvalid.exit_code().unwrap_or(240),
            Self::Unreadable(_) => 2,
        }
    }
}

/// Reads all files, then checks and prints.
pub(super) fn run(args: &ValidateArgs, out: &mut dyn Write) -> io::Result<Verdict> {
    let mut files = Vec::new();
    for path in &args.files {
        let file = path.display().to_string();
        match read_manifest(path) {
            Ok(bytes) => files.push((file, bytes)),
            Err(source) => return Ok(Verdict::Unreadable(Unreadable { file, source })),
        }
    }
    let checked = check(&files);
    let mut shown = Vec::new();
    match args.output {
        Output::Text => checked.text(&mut shown)?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut shown, &checked.json())?;
            shown.push(b'\n');
        }
    }
    match out.write_all(&shown) {
        // A reader that saw enough changes no verdict.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(if checked.findings.errors.is_empty() {
        Verdict::Valid
    } else {
        Verdict::Invalid
    })
}

struct Checked {
    documents: Vec<Placed>,
    findings: Findings,
}

/// Errors of single documents first, then what they say about each other.
fn check(files: &[(String, Vec<u8>)]) -> Checked {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for (file, bytes) in files {
        for (number, read) in manifest::read_numbered(file, bytes) {
            match read {
                Ok(document) => documents.push(Placed {
                    file: file.clone(),
                    number,
                    document,
                }),
                Err(error) => errors.push(error),
            }
        }
    }
    let together = across(&documents);
    errors.extend(together.errors);
    Checked {
        documents,
        findings: Findings {
            errors,
            notes: together.notes,
        },
    }
}

impl Checked {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let shown = |error: &ManifestError| terminal_text(error.to_string().as_bytes(), false);
        for note in &self.findings.notes {
            writeln!(out, "note: {}", shown(note))?;
        }
        for error in &self.findings.errors {
            writeln!(out, "error: {}", shown(error))?;
        }
        match self.findings.errors.len() {
            0 => {
                let names = self
                    .documents
                    .iter()
                    .map(|placed| format!("{} {}", placed.document.kind(), placed.document.name()));
                let names = names.collect::<Vec<_>>().join(", ");
                writeln!(out, "valid: {names}")
            }
            1 => writeln!(out, "invalid: 1 error"),
            count => writeln!(out, "invalid: {count} errors"),
        }
    }

    fn json(&self) -> Value {
        let documents = self.documents.iter().map(|placed| {
            json!({
                "file": placed.file,
                "document": placed.number,
                "kind": placed.document.kind(),
                "namespace": placed.document.namespace(),
                "name": placed.document.name(),
            })
        });
        json!({
            "valid": self.findings.errors.is_empty(),
            "documents": documents.collect::<Vec<_>>(),
            "errors": self.findings.errors.iter().map(finding).collect::<Vec<_>>(),
            "notes": self.findings.notes.iter().map(finding).collect::<Vec<_>>(),
        })
    }
}

fn finding(error: &ManifestError) -> Value {
    json!({
        "file": error.file,
        "line": error.line,
        "document": error.document,
        "object": error.object,
        "field": error.field,
        "message": error.message,
        "code": error.code().as_str(),
        "reason": error.reason.as_str(),
    })
}
