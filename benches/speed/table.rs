//! The table: what, ours, rival, ratio, target, met.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use comfy_table::presets::ASCII_MARKDOWN;

use crate::world::Done;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    what: String,
    ours: String,
    rival: String,
    ratio: String,
    target: String,
    met: Met,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Yes,
    No,
    /// There is no target: shown to be known.
    NoTarget,
}

impl Met {
    fn of(met: bool) -> Self {
        if met { Self::Yes } else { Self::No }
    }
}

impl Row {
    /// Two times. `at_least` is how many times faster we must be; `None`: only shown.
    pub(crate) fn times(
        what: impl Into<String>,
        ours: Duration,
        rival: Duration,
        at_least: Option<f64>,
    ) -> Self {
        let faster = rival.as_secs_f64() / ours.as_secs_f64();
        let target = match at_least {
            None => "-".to_owned(),
            Some(least) if least <= 1.0 => "never slower".to_owned(),
            Some(least) => format!("at least {least}x faster"),
        };
        Self {
            what: what.into(),
            ours: time(ours),
            rival: time(rival),
            ratio: format!("{faster:.2}x"),
            target,
            met: at_least.map_or(Met::NoTarget, |least| Met::of(faster >= least)),
        }
    }

    /// Two times, of which ours may be larger by `at_most`.
    pub(crate) fn added(
        what: impl Into<String>,
        ours: Duration,
        rival: Duration,
        at_most: Duration,
    ) -> Self {
        let added = ours.saturating_sub(rival);
        Self {
            what: what.into(),
            ours: time(ours),
            rival: time(rival),
            ratio: format!("+{}", time(added)),
            target: format!("at most +{}", time(at_most)),
            met: Met::of(added <= at_most),
        }
    }

    /// Two numbers of a unit, of which ours may be at most `at_most`.
    pub(crate) fn counts(
        what: impl Into<String>,
        unit: &str,
        ours: u64,
        rival: u64,
        at_most: u64,
    ) -> Self {
        let of = |count: u64| format!("{} {unit}", grouped(count));
        #[expect(
            clippy::cast_precision_loss,
            reason = "a ratio that is shown with two digits"
        )]
        let ratio = rival as f64 / ours.max(1) as f64;
        Self {
            what: what.into(),
            ours: of(ours),
            rival: of(rival),
            ratio: format!("{ratio:.0}x less"),
            target: format!("at most {}", of(at_most)),
            met: Met::of(ours <= at_most),
        }
    }

    /// The pod program's size on disk.
    pub(crate) fn size(pod: &Path) -> Done<Self> {
        const TARGET: u64 = 8 << 20;
        let bytes = std::fs::metadata(pod)?.len();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a size that is shown with two digits"
        )]
        let mib = bytes as f64 / f64::from(1 << 20);
        Ok(Self {
            what: "size: sandboxrun-pod".to_owned(),
            ours: format!("{mib:.2} MiB"),
            rival: "-".to_owned(),
            ratio: "-".to_owned(),
            target: "under 8 MiB".to_owned(),
            met: Met::of(bytes < TARGET),
        })
    }
}

/// All lines, and what could not be measured.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    errors: Vec<String>,
}

impl Table {
    /// Takes the rows of a group. One that cannot be measured does not end the others.
    pub(crate) fn take(&mut self, group: &str, rows: Done<Vec<Row>>) {
        match rows {
            Ok(rows) => self.rows.extend(rows),
            Err(error) => self.errors.push(format!("{group}: {error}")),
        }
    }

    /// Whether every group was measured.
    pub(crate) fn is_whole(&self) -> bool {
        self.errors.is_empty()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table
            .load_style(ASCII_MARKDOWN)
            .set_header(["what", "ours", "rival", "ratio", "target", "met"]);
        for row in &self.rows {
            let met = match row.met {
                Met::Yes => "yes",
                Met::No => "MISSED",
                Met::NoTarget => "-",
            };
            table.add_row([
                &row.what,
                &row.ours,
                &row.rival,
                &row.ratio,
                &row.target,
                met,
            ]);
        }
        write!(f, "{table}")?;
        for error in &self.errors {
            write!(f, "\nnot measured: {error}")?;
        }
        Ok(())
    }
}

/// A time with three digits.
fn time(time: Duration) -> String {
    let secs = time.as_secs_f64();
    if secs >= 10.0 {
        format!("{secs:.1} s")
    } else if secs >= 1.0 {
        format!("{secs:.2} s")
    } else if secs >= 0.1 {
        format!("{:.0} ms", secs * 1e3)
    } else {
        format!("{:.2} ms", secs * 1e3)
    }
}

/// `1234567` as `1,234,567`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
