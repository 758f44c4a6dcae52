//! What a person sees: the life of the run as it happens, the agent's output, nothing that could move their cursor.

use std::io::{self, IsTerminal as _, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A longer line of an agent is broken: memory for one line is bounded.
pub(super) const LINE_BYTES: usize = 16 * 1024;

/// Text of an agent or a forge for a terminal: one line's worth of what can be seen. Of control sequences only colour
/// (SGR) stays, and that only if `colour`; tabs stay.
#[must_use]
pub fn terminal_text(bytes: &[u8], colour: bool) -> String {
    let mut visible = Visible {
        text: String::with_capacity(bytes.len()),
        colour,
        coloured: false,
    };
    let mut parser = vte::Parser::new();
    parser.advance(&mut visible, bytes);
    if visible.coloured {
        visible.text.push_str("\x1b[0m");
    }
    visible.text
}

/// Keeps what can be seen.
struct Visible {
    text: String,
    colour: bool,
    coloured: bool,
}

impl vte::Perform for Visible {
    fn print(&mut self, c: char) {
        // C1 controls come as characters in UTF-8; bidirectional overrides make text read as what it is not.
        let reorders = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if !c.is_control() && !reorders {
            self.text.push(c);
        }
    }

    fn execute(&mut self, byte: u8) {
        if byte == b'\t' {
            self.text.push('\t');
        }
    }

    fn csi_dispatch(
        &mut self,
        params: &vte::Params,
        intermediates: &[u8],
        ignore: bool,
        action: char,
    ) {
        if action != 'm' || !self.colour || ignore || !intermediates.is_empty() {
            return;
        }
        let groups: Vec<String> = params
            .iter()
            .map(|group| {
                group
                    .iter()
                    .map(u16::to_string)
                    .collect::<Vec<_>>()
                    .join(":")
            })
            .collect();
        self.text.push_str("\x1b[");
        self.text.push_str(&groups.join(";"));
        self.text.push('m');
        self.coloured = true;
    }
}

/// Where a run shows itself. Cheap to clone. Steps go to stderr; the agent's output goes to stdout, or to stderr when
/// stdout is for a machine.
#[derive(Clone)]
pub struct Screen(Arc<Inner>);

#[expect(
    clippy::struct_excessive_bools,
    reason = "four choices of the command line, each of its own"
)]
struct Inner {
    colour: bool,
    bars: bool,
    output_to_stderr: bool,
    quiet: bool,
    writing: Mutex<()>,
}

impl Screen {
    /// A screen on this process's stderr and stdout. Bars and colour on a terminal only; `NO_COLOR` is kept.
    #[must_use]
    pub fn new(machine_output: bool, quiet: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        Self(Arc::new(Inner {
            colour: terminal && !no_color,
            bars: terminal && !quiet,
            output_to_stderr: machine_output,
            quiet,
            writing: Mutex::new(()),
        }))
    }

    /// Whether colour is wanted.
    #[must_use]
    pub fn colour(&self) -> bool {
        self.0.colour
    }

    /// A step of the run's life: one line.
    pub fn step(&self, name: &str, text: &str) {
        if !self.0.quiet {
            self.line(&mut io::stderr(), name, text, "36");
        }
    }

    /// Something that a person should notice.
    pub fn warn(&self, name: &str, text: &str) {
        self.line(&mut io::stderr(), name, text, "33");
    }

    /// A line of the agent's output.
    pub fn agent(&self, line: &[u8]) {
        let text = terminal_text(line, self.0.colour);
        let (bar, off) = if self.0.colour {
            ("\x1b[2m", "\x1b[0m")
        } else {
            ("", "")
        };
        let whole = format!("{bar}agent |{off} {text}\n");
        let _guard = self
            .0
            .writing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A closed pipe is the reader's choice; the run goes on.
        let _closed = if self.0.output_to_stderr {
            io::stderr().write_all(whole.as_bytes())
        } else {
            io::stdout().write_all(whole.as_bytes())
        };
    }

    /// Something that takes a while: a spinner on a terminal, nothing elsewhere. Ends when it is dropped.
    #[must_use]
    pub fn busy(&self, text: &str) -> Busy {
        if !self.0.bars {
            return Busy(None);
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(terminal_text(text.as_bytes(), false));
        bar.enable_steady_tick(Duration::from_millis(120));
        Busy(Some(bar))
    }

    fn line(&self, to: &mut dyn Write, name: &str, text: &str, code: &str) {
        let text = terminal_text(text.as_bytes(), false);
        let (on, off) = if self.0.colour {
            (format!("\x1b[{code}m"), "\x1b[0m")
        } else {
            (String::new(), "")
        };
        let _guard = self
            .0
            .writing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // As above: nobody to tell.
        let _closed = writeln!(to, "{on}{name:>18}{off}  {text}");
    }
}

/// A spinner that is gone when this is dropped.
pub struct Busy(Option<ProgressBar>);

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::colour(b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m")]
    #[case::title(b"\x1b]0;owned\x07x", "x")]
    #[case::clear(b"a\x1b[2Jb", "ab")]
    #[case::cursor(b"a\x1b[10;10Hb", "ab")]
    #[case::typing_back(b"\x1b[6n\x1bP$q\"p\x1b\\x", "x")]
    #[case::carriage_return(b"good\rbad", "goodbad")]
    #[case::c1("a\u{9b}2Jb".as_bytes(), "a2Jb")]
    #[case::override_of_direction("a\u{202e}b".as_bytes(), "ab")]
    #[case::broken_utf8(b"a\xffb", "a\u{fffd}b")]
    fn v09_only_colour_passes(#[case] bytes: &[u8], #[case] want: &str) {
        assert_eq!(terminal_text(bytes, true), want);
    }

    #[test]
    fn v09_without_colour_nothing_passes() {
        assert_eq!(terminal_text(b"\x1b[31mred\x1b[0m", false), "red");
    }
}
