//! `sandboxrun audit`: list, tell, verify and export the record. Opens it for reading: nothing here can change it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde_json::json;

use crate::api::{Fault, Namespace, Reason, RunName, RunUid};
use crate::audit::{
    Entry, ExportError, Finding, Head, Record, RecordError, RunFilter, RunSummary, Verdict, story,
    verify_export,
};

/// Read what was written down about runs, and check that nobody changed it.
#[derive(Debug, Args)]
#[command(after_help = "\
RUN is a uid (or its first four characters or more), a name, NAMESPACE/NAME, or nothing for the newest run.

Exit codes:
  0    done; for `verify`: every chain holds
  1    `verify` found a chain that does not hold, or there is no such run
  2    the command line is wrong
  244  the record cannot be read")]
pub struct AuditArgs {
    /// The record's file. Default: the one that `sandboxrun run` writes
    #[arg(long, global = true, env = "SANDBOXRUN_RECORD", value_name = "PATH")]
    pub record: Option<PathBuf>,
    /// Ask the operator of a cluster for its record; `kubectl sandboxrun audit` always does
    #[arg(long, global = true, conflicts_with = "record")]
    pub cluster: bool,
    /// The operator's namespace, with --cluster
    #[arg(
        long,
        global = true,
        value_name = "NAMESPACE",
        default_value = "sandboxrun-system"
    )]
    pub system_namespace: String,
    /// The kubeconfig's context, with --cluster
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// What to do with the record.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List runs, newest first
    List {
        /// Only of this namespace
        #[arg(short, long)]
        namespace: Option<Namespace>,
        /// Only of this name
        #[arg(long)]
        name: Option<RunName>,
        /// Only runs that have not ended
        #[arg(long)]
        open: bool,
        /// At most so many
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Tell the story of a run, a line an event
    #[command(after_help = "Example:\n  sandboxrun audit show fix-flaky-test")]
    Show {
        /// Which run
        run: Option<String>,
        /// How to print it; json: one entry a line, with hashes, as `export` writes it
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Check that nothing was changed, taken out, put in or moved
    #[command(after_help = "\
Without a head at hand, events cut off from the end of a chain cannot show: the answer is then `consistent, tail
not proven`. Keep the head that `sandboxrun run` prints (or status.record.head) somewhere else.

Examples:
  sandboxrun audit verify
  sandboxrun audit verify fix-flaky-test --head 23:9f86d0...
  sandboxrun audit verify --file export.jsonl")]
    Verify {
        /// Which run; absent: all of them (with --head: the newest)
        run: Option<String>,
        /// The head that was kept, as SEQUENCE:HASH
        #[arg(long, value_name = "SEQUENCE:HASH")]
        head: Option<Head>,
        /// Check an export instead of the record
        #[arg(long, value_name = "FILE", conflicts_with = "run")]
        file: Option<PathBuf>,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Write entries as JSON lines, to keep them elsewhere or check them with other tools
    #[command(after_help = "\
A line's hash is SHA-256 over the line without its member `hash`, as canonical JSON (RFC 8785).

Examples:
  sandboxrun audit export > record.jsonl
  sandboxrun audit export fix-flaky-test | head -1 | jq -cjS 'del(.hash)' | sha256sum")]
    Export {
        /// Which run; absent: all of them
        run: Option<String>,
    },
}

/// The command line of `audit` as the operator's pod gets it: without what says where the operator is.
pub(super) fn words_for_the_operator(
    command_line: impl IntoIterator<Item = OsString>,
) -> Vec<OsString> {
    let mut words = command_line
        .into_iter()
        .skip_while(|word| word != "audit")
        .skip(1);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let own = ["--system-namespace", "--context"];
        if own.contains(&text.as_ref()) {
            words.next();
        } else if text != "--cluster"
            && !own.iter().any(|name| text.starts_with(&format!("{name}=")))
        {
            kept.push(word);
        }
    }
    kept
}

/// How to print something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For machines
    Json,
}

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The record cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The export cannot be read or written.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Nothing of that name.
    #[error("{0}")]
    NoSuchRun(String),
    /// The output cannot be written.
    #[error("the output cannot be written")]
    Output(#[source] io::Error),
}

impl Fault for AuditError {
    fn reason(&self) -> Reason {
        match self {
            Self::Record(error) | Self::Export(ExportError::Record(error)) => error.reason(),
            Self::Export(ExportError::Line { .. } | ExportError::Io(_)) => Reason::RecordUnreadable,
            Self::NoSuchRun(_) => Reason::RuleBroken,
            Self::Output(_) => Reason::HostDiskFull,
        }
    }
}

impl AuditError {
    /// The exit code of the command.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoSuchRun(_) | Self::Output(_) | Self::Export(ExportError::Line { .. }) => 1,
            Self::Record(_) | Self::Export(ExportError::Record(_) | ExportError::Io(_)) => {
                self.code().exit_code().unwrap_or(1)
            }
        }
    }
}

/// Carries the command out and returns the exit code. `default_record` counts where no `--record` is given.
///
/// # Errors
/// When the record cannot be read, the run is not there, or the output cannot be written.
pub async fn run(
    args: AuditArgs,
    default_record: &Path,
    out: &mut (impl Write + Send),
) -> Result<u8, AuditError> {
    let path = args.record.as_deref().unwrap_or(default_record);
    if let AuditCommand::Verify {
        file: Some(file),
        head,
        output,
        ..
    } = &args.command
    {
        return verify_file(file, head.as_ref(), *output, out);
    }
    let record = Record::open_read(path).await?;
    match args.command {
        AuditCommand::List {
            namespace,
            name,
            open,
            limit,
            output,
        } => {
            let filter = RunFilter {
                namespace,
                name,
                open: open.then_some(true),
                limit: Some(limit),
            };
            list(&record.runs(&filter).await?, output, out)
        }
        AuditCommand::Show { run, output } => {
            let uid = find(&record, run.as_deref()).await?;
            show(&record.entries(&uid).await?, output, out)
        }
        AuditCommand::Verify {
            run, head, output, ..
        } => {
            let verdicts = if run.is_none() && head.is_none() {
                record.verify_all().await?
            } else {
                let uid = find(&record, run.as_deref()).await?;
                record
                    .verify(&uid, head.as_ref())
                    .await?
                    .into_iter()
                    .collect()
            };
            tell(&verdicts, output, out)
        }
        AuditCommand::Export { run } => {
            let uid = match &run {
                Some(_) => Some(find(&record, run.as_deref()).await?),
                None => None,
            };
            match record.export(uid.as_ref(), out).await {
                Err(ExportError::Io(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                    Err(AuditError::Output(error))
                }
                Err(error @ (ExportError::Record(_) | ExportError::Line { .. })) => {
                    Err(error.into())
                }
                Ok(_) | Err(ExportError::Io(_)) => Ok(0),
            }
        }
    }
}

/// The run that the user means.
async fn find(record: &Record, wanted: Option<&str>) -> Result<RunUid, AuditError> {
    if let Some(text) = wanted
        && let Ok(uid) = text.parse::<RunUid>()
        && record.run(&uid).await?.is_some()
    {
        return Ok(uid);
    }
    let filter = RunFilter {
        limit: Some(u32::MAX),
        ..RunFilter::default()
    };
    let runs = record.runs(&filter).await?; // newest first
    let Some(text) = wanted else {
        let newest = runs.into_iter().next();
        return newest
            .map(|summary| summary.run.uid)
            .ok_or_else(|| AuditError::NoSuchRun("the record has no runs yet".to_owned()));
    };
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let named = runs.iter().find(|summary| {
        summary.run.name.as_str() == name
            && namespace.is_none_or(|wanted| summary.run.namespace.as_str() == wanted)
    });
    if let Some(summary) = named {
        return Ok(summary.run.uid.clone());
    }
    let begins =
        |summary: &&RunSummary| text.len() >= 4 && summary.run.uid.as_str().starts_with(text);
    let mut matching = runs.iter().filter(begins);
    match (matching.next(), matching.next()) {
        (Some(summary), None) => Ok(summary.run.uid.clone()),
        (Some(_), Some(_)) => Err(AuditError::NoSuchRun(format!(
            "several runs have a uid that begins with `{text}`: write more of it"
        ))),
        (None, _) => Err(AuditError::NoSuchRun(format!(
            "the record {} has no run `{text}`: `sandboxrun audit list` shows what there is",
            record.path().display()
        ))),
    }
}

fn list(runs: &[RunSummary], format: Format, out: &mut impl Write) -> Result<u8, AuditError> {
    if format == Format::Json {
        return print_json(out, &json!(runs));
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["RUN", "UID", "CREATED", "ENDED AS", "EXIT", "EVENTS"]);
    for summary in runs {
        let (result, exit) = match &summary.ended {
            None => ("open".to_owned(), String::new()),
            Some(end) => (
                end.failure
                    .as_ref()
                    .map_or("Succeeded", |f| f.reason.as_str())
                    .to_owned(),
                end.exit_code.map_or(String::new(), |code| code.to_string()),
            ),
        };
        table.add_row([
            format!("{}/{}", summary.run.namespace, summary.run.name),
            summary.run.uid.to_string(),
            whole_seconds(&summary.created_at),
            result,
            exit,
            summary.head.sequence.to_string(),
        ]);
    }
    print(out, &table.trim_fmt())
}

fn show(entries: &[Entry], format: Format, out: &mut impl Write) -> Result<u8, AuditError> {
    if format == Format::Json {
        for entry in entries {
            print(out, &entry.line())?;
        }
        return Ok(0);
    }
    let Some(last) = entries.last() else {
        return Ok(0);
    };
    print(
        out,
        &format!(
            "Run {}/{} ({})",
            last.run.namespace, last.run.name, last.run.uid
        ),
    )?;
    let mut unknown = Vec::new();
    let mut events = Vec::new();
    for entry in entries {
        match entry.event() {
            Some(event) => events.push((entry.at.as_str(), event)),
            None => unknown.push(entry.sequence.to_string()),
        }
    }
    for line in story(events.iter().map(|(at, event)| (*at, event))) {
        print(out, &line)?;
    }
    if !unknown.is_empty() {
        print(out, &format!("Not readable: event {}", unknown.join(", ")))?;
    }
    print(out, &format!("Head {}", last.head()))
}

fn verify_file(
    file: &Path,
    head: Option<&Head>,
    format: Format,
    out: &mut impl Write,
) -> Result<u8, AuditError> {
    let open = File::open(file).map_err(ExportError::Io)?;
    match verify_export(BufReader::new(open), head) {
        Ok(verdicts) => tell(&verdicts, format, out),
        Err(error @ ExportError::Line { .. }) => {
            print(out, &format!("BROKEN: {error}"))?;
            Ok(1)
        }
        Err(error) => Err(error.into()),
    }
}

fn tell(verdicts: &[Verdict], format: Format, out: &mut impl Write) -> Result<u8, AuditError> {
    let broken = verdicts
        .iter()
        .filter(|verdict| !verdict.finding.holds())
        .count();
    if format == Format::Json {
        print_json(out, &json!(verdicts))?;
    } else {
        for verdict in verdicts {
            print(out, &sentence(verdict))?;
        }
        print(
            out,
            &format!(
                "{} checked, {broken} broken",
                match verdicts.len() {
                    1 => "1 chain".to_owned(),
                    n => format!("{n} chains"),
                }
            ),
        )?;
    }
    Ok(u8::from(broken > 0))
}

fn sentence(verdict: &Verdict) -> String {
    let run = format!(
        "{}/{} ({})",
        verdict.run.namespace, verdict.run.name, verdict.run.uid
    );
    let events = verdict.events;
    match &verdict.finding {
        Finding::Complete { head } => {
            format!("{run}: {events} events, complete up to the head that was kept; newest {head}")
        }
        Finding::TailNotProven { head } => {
            format!("{run}: {events} events, consistent, tail not proven; newest {head}")
        }
        Finding::Pruned { head } => {
            format!("{run}: shortened by retention, the rest is consistent; newest {head}")
        }
        Finding::Broken { fault } => format!("{run}: BROKEN: {fault}"),
    }
}

fn whole_seconds(at: &str) -> String {
    at.parse::<Timestamp>().map_or_else(
        |_| at.to_owned(),
        |at| at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
    )
}

fn print(out: &mut impl Write, line: &str) -> Result<u8, AuditError> {
    match writeln!(out, "{line}") {
        // Whoever reads has seen enough: `| head` is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(AuditError::Output(error)),
        Ok(()) => Ok(0),
    }
}

fn print_json(out: &mut impl Write, value: &serde_json::Value) -> Result<u8, AuditError> {
    print(out, &format!("{value:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_gets_the_command_without_the_way_to_it() {
        let line = "kubectl-sandboxrun --x audit --system-namespace s verify --context=c --cluster run-1 --head 3:ab";
        let words = words_for_the_operator(line.split(' ').map(OsString::from));
        assert_eq!(words, ["verify", "run-1", "--head", "3:ab"]);
    }
}
