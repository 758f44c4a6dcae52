//! The record as a file: one line of canonical JSON for each entry, and the check of such a file.
//!
//! A line's hash is SHA-256 over the line without its member `hash`, as canonical JSON. So an export can be checked
//! without this program, and on another machine.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read as _, Write};

use serde::Deserialize;
use serde_json::Value;

use super::chain::Checker;
use super::{Entry, Finding, Head, Record, RecordError, RunKey, Verdict};
use crate::api::{RunUid, canonical_json};

/// The longest line that is read: an output of 1 MiB, each byte escaped, with room for the rest.
const LINE_MAX_BYTES: u64 = 8 * 1024 * 1024;

/// An export cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The file cannot be read or written.
    #[error("the export cannot be read or written")]
    Io(#[source] io::Error),
    /// A line is no entry, or not as it was written.
    #[error("line {line} of the export {problem}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at: String,
    event: Value,
    hash: String,
    installation: String,
    #[serde(flatten)]
    run: RunKeyLine,
    previous: String,
    sequence: u64,
}

#[derive(Deserialize)]
struct RunKeyLine {
    name: crate::api::RunName,
    namespace: crate::api::Namespace,
    uid: RunUid,
}

impl Record {
    /// Writes the entries of one run, or of all, as JSON lines. How many were written.
    ///
    /// # Errors
    /// When the record cannot be read or the export cannot be written.
    pub async fn export(
        &self,
        uid: Option<&RunUid>,
        out: &mut (impl Write + Send),
    ) -> Result<usize, ExportError> {
        let uids = match uid {
            Some(uid) => vec![uid.clone()],
            None => self.keys().await?.into_iter().map(|key| key.uid).collect(),
        };
        let mut written = 0;
        for uid in uids {
            for entry in self.entries(&uid).await? {
                writeln!(out, "{}", entry.line()).map_err(ExportError::Io)?;
                written += 1;
            }
        }
        out.flush().map_err(ExportError::Io)?;
        Ok(written)
    }
}

/// Checks an export: every line's bytes and every chain; with a head that was kept, that the run with this head is
/// there up to it.
///
/// # Errors
/// When it cannot be read, or a line is no entry. A chain that does not hold is a finding.
pub fn verify_export(
    mut export: impl BufRead,
    kept: Option<&Head>,
) -> Result<Vec<Verdict>, ExportError> {
    let mut chains: BTreeMap<(String, RunUid), (RunKey, Vec<Entry>)> = BTreeMap::new();
    let mut number = 0;
    loop {
        number += 1;
        let mut line = String::new();
        let read = export.by_ref().take(LINE_MAX_BYTES).read_line(&mut line);
        if read.map_err(ExportError::Io)? == 0 {
            break;
        }
        let problem = |problem: String| ExportError::Line {
            line: number,
            problem,
        };
        let entry = read_line(line.trim_end_matches('\n')).map_err(problem)?;
        let key = (entry.installation.clone(), entry.run.uid.clone());
        chains
            .entry(key)
            .or_insert_with(|| (entry.run.clone(), Vec::new()))
            .1
            .push(entry);
    }
    Ok(chains
        .into_iter()
        .map(|((installation, _), (run, entries))| {
            let mut checker = Checker::new(&installation, &run, kept);
            let fault = entries.iter().find_map(|entry| checker.take(entry).err());
            let events = entries.len() as u64;
            let finding = Finding::of(fault.map_or_else(|| checker.finish(), Err), kept);
            Verdict {
                run,
                events,
                finding,
            }
        })
        .collect())
}

fn read_line(line: &str) -> Result<Entry, String> {
    let read: Line = serde_json::from_str(line).map_err(|error| format!("is no entry: {error}"))?;
    let entry = Entry {
        installation: read.installation,
        run: RunKey {
            namespace: read.run.namespace,
            name: read.run.name,
            uid: read.run.uid,
        },
        sequence: read.sequence,
        at: read.at,
        body: canonical_json(&read.event),
        previous: read.previous,
        hash: read.hash,
    };
    if entry.line() == line {
        Ok(entry)
    } else {
        Err("is not canonical JSON: it was changed after it was written".to_owned())
    }
}
