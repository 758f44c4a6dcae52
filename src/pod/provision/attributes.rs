//! What the pinned `.gitattributes` files say about how a file is written to disk.
//!
//! Only the attributes that change bytes are kept: `text`, `crlf`, `eol`, `ident`, `working-tree-encoding`. Filters are
//! programs (LFS among them) and never run. Attributes come from the pinned commit alone, as git reads them at a checkout;
//! nothing of this machine's configuration counts.

use std::collections::HashMap;
use std::sync::Arc;

use super::wildmatch;

/// The state of one attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Set,
    Unset,
    /// `!name`: as if nothing had been said.
    Unspecified,
    Value(Arc<[u8]>),
}

/// The attributes that matter, in the order in which [`Found`] keeps them.
const KEPT: [&[u8]; 5] = [b"text", b"crlf", b"eol", b"ident", b"working-tree-encoding"];

#[derive(Debug, Clone)]
struct Rule {
    pattern: Vec<u8>,
    /// The pattern holds a `/`: it is matched with the path below its file's directory, else with the name.
    by_path: bool,
    /// In the order in which they stand.
    states: Vec<(usize, State)>,
}

/// The rules that hold in a directory: its own file, and those above it.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    parent: Option<Arc<Attributes>>,
    /// Length of the directory's path with its `/`.
    prefix: usize,
    rules: Vec<Rule>,
    macros: Arc<Macros>,
    /// Whether any rule here or above can change bytes on this platform.
    can_change: bool,
}

/// git does not look at longer lines.
const MAX_LINE: usize = 2048;
/// git does not look at larger files.
const MAX_FILE: usize = 100 << 20;

impl Attributes {
    /// The rules of a directory with the content of its own `.gitattributes`.
    #[must_use]
    pub(crate) fn read(parent: Option<Arc<Self>>, directory: &[u8], content: &[u8]) -> Self {
        let prefix = if directory.is_empty() {
            0
        } else {
            directory.len() + 1
        };
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
        let content = if content.len() <= MAX_FILE {
            content
        } else {
            b""
        };
        let lines = || {
            content
                .split(|b| *b == b'\n')
                .map(trim_start)
                .filter(|line| {
                    !line.is_empty() && !line.starts_with(b"#") && line.len() <= MAX_LINE
                })
                .filter_map(first_word)
        };
        // Macros are made by the root's file alone, wherever in it; `binary` is always there.
        let macros = match &parent {
            Some(parent) => Arc::clone(&parent.macros),
            None => Arc::new(read_macros(lines())),
        };
        let rules = lines()
            .filter_map(|(pattern, words)| rule(&pattern, words, &macros))
            .collect();
        let mut own = Self {
            prefix,
            rules,
            macros,
            ..Self::default()
        };
        own.can_change = parent.as_ref().is_some_and(|p| p.can_change)
            || own
                .rules
                .iter()
                .flat_map(|r| &r.states)
                .any(|(kept, state)| changes(*kept, state));
        own.parent = parent;
        own
    }

    /// How the file at `path` is written.
    #[must_use]
    pub(crate) fn conversion(&self, path: &[u8]) -> Conversion {
        if !self.can_change {
            return Conversion::default();
        }
        let mut found: [Option<State>; KEPT.len()] = Default::default();
        let mut level = Some(self);
        while let Some(attributes) = level {
            attributes.fill(path, &mut found);
            level = attributes.parent.as_deref();
        }
        Conversion::of(&found)
    }

    /// The last rule that names an attribute counts, and of a rule the last word; deeper files count more.
    fn fill(&self, path: &[u8], found: &mut [Option<State>; KEPT.len()]) {
        let below = path.get(self.prefix..).unwrap_or_default();
        let name = below.rsplit(|b| *b == b'/').next().unwrap_or(below);
        for rule in self.rules.iter().rev() {
            if rule
                .states
                .iter()
                .all(|(kept, _)| found.get(*kept).is_some_and(Option::is_some))
            {
                continue;
            }
            let hit = if rule.by_path {
                wildmatch::matches(&rule.pattern, below, true)
            } else {
                wildmatch::matches(&rule.pattern, name, false)
            };
            if hit {
                for (kept, state) in rule.states.iter().rev() {
                    if let Some(slot) = found.get_mut(*kept) {
                        slot.get_or_insert_with(|| state.clone());
                    }
                }
            }
        }
    }
}

/// What a macro stands for, as it is written.
type Macros = HashMap<Vec<u8>, Vec<u8>>;

/// Macros that name macros are followed this deep.
const MAX_MACROS: usize = 8;

fn read_macros<'a>(lines: impl Iterator<Item = (Vec<u8>, &'a [u8])>) -> Macros {
    let mut macros = Macros::from([(b"binary".to_vec(), b"-diff -merge -text".to_vec())]);
    for (pattern, words) in lines {
        match pattern.strip_prefix(b"[attr]") {
            Some(b"") => {
                if let Some((name, words)) = first_word(trim_start(words)) {
                    macros.insert(name, words.to_vec());
                }
            }
            Some(name) => {
                macros.insert(name.to_vec(), words.to_vec());
            }
            None => {}
        }
    }
    macros
}

/// The rule of a line, if it can apply to a file and says something that matters.
fn rule(pattern: &[u8], words: &[u8], macros: &Macros) -> Option<Rule> {
    // A pattern for directories matches no file, a negative one is forbidden.
    if pattern.starts_with(b"[attr]") || pattern.starts_with(b"!") || pattern.ends_with(b"/") {
        return None;
    }
    let mut states = Vec::new();
    expand(words, macros, MAX_MACROS, &mut states);
    let by_path = pattern.contains(&b'/');
    let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern).to_vec();
    (!states.is_empty()).then_some(Rule {
        pattern,
        by_path,
        states,
    })
}

fn expand(words: &[u8], macros: &Macros, depth: usize, states: &mut Vec<(usize, State)>) {
    for word in words.split(is_blank).filter(|word| !word.is_empty()) {
        let (name, state) = match word.split_first() {
            Some((b'-', name)) => (name, State::Unset),
            Some((b'!', name)) => (name, State::Unspecified),
            _ => match word.iter().position(|b| *b == b'=') {
                Some(at) => (
                    word.get(..at).unwrap_or_default(),
                    State::Value(word.get(at + 1..).unwrap_or_default().into()),
                ),
                None => (word, State::Set),
            },
        };
        if let Some(kept) = KEPT.iter().position(|kept| *kept == name) {
            states.push((kept, state));
        } else if let (State::Set, Some(meant)) = (state, macros.get(name))
            && depth > 0
        {
            expand(meant, macros, depth - 1, states);
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the shape that `split` asks for"
)]
fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn trim_start(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|b| !is_blank(b)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// Whether an attribute can make bytes on disk differ from the blob's, where lines end in LF.
fn changes(kept: usize, state: &State) -> bool {
    match (KEPT.get(kept), state) {
        (Some(&b"eol"), State::Value(value)) => **value == *b"crlf",
        (Some(&b"ident"), State::Set) | (Some(&b"working-tree-encoding"), State::Value(_)) => true,
        _ => false,
    }
}

/// The pattern of a line, which may be quoted as C quotes, and what follows it.
fn first_word(line: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let plain = || {
        let end = line.iter().position(is_blank).unwrap_or(line.len());
        let (word, rest) = line.split_at_checked(end)?;
        Some((word.to_vec(), rest))
    };
    match line.strip_prefix(b"\"") {
        Some(quoted) => unquote(quoted).or_else(plain),
        None => plain(),
    }
}

fn unquote(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match *byte {
            b'"' => return Some((word, rest)),
            b'\\' => {
                let (escape, after) = rest.split_first()?;
                rest = after;
                word.push(match *escape {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    b'r' => b'\r',
                    b'"' | b'\\' => *escape,
                    b'0'..=b'3' => {
                        let (digits, after) = rest.split_first_chunk::<2>()?;
                        rest = after;
                        digits.iter().try_fold(*escape - b'0', |value, digit| {
                            matches!(digit, b'0'..=b'7').then(|| value << 3 | (digit - b'0'))
                        })?
                    }
                    _ => return None,
                });
            }
            plain => word.push(plain),
        }
    }
}

/// Whether LF becomes CRLF.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// Never.
    #[default]
    AsStored,
    /// Always.
    Crlf,
    /// If the content looks like text and has no CR yet.
    CrlfIfText,
}

/// How a blob becomes a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// `$Id$` is expanded.
    pub(crate) ident: bool,
    /// Line ends.
    pub(crate) line_ends: LineEnds,
    /// The encoding on disk, where it is not UTF-8.
    pub(crate) encoding: Option<Arc<[u8]>>,
}

impl Conversion {
    /// Whether the file is the blob, byte for byte.
    #[must_use]
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn of([text, crlf, eol, ident, encoding]: &[Option<State>; KEPT.len()]) -> Self {
        let value = |state: &Option<State>, want: &[u8]| matches!(state, Some(State::Value(value)) if **value == *want);
        // `crlf` is the old name of `text`, and counts where `text` says nothing.
        let says = |state: &Option<State>| match state {
            Some(State::Set) => Some(Text::Yes),
            Some(State::Unset) => Some(Text::No),
            Some(State::Value(v)) if **v == *b"auto" => Some(Text::Auto),
            // git knows this old value, and it means LF on disk.
            Some(State::Value(v)) if **v == *b"input" => Some(Text::Lf),
            Some(State::Value(_) | State::Unspecified) | None => None,
        };
        let line_ends = match says(text).or_else(|| says(crlf)) {
            Some(Text::No) => LineEnds::AsStored,
            Some(Text::Auto) if value(eol, b"crlf") => LineEnds::CrlfIfText,
            _ if value(eol, b"crlf") => LineEnds::Crlf,
            Some(Text::Yes | Text::Lf | Text::Auto) | None => LineEnds::AsStored,
        };
        let encoding = match encoding {
            Some(State::Value(name)) if !is_utf8(name) => Some(Arc::clone(name)),
            Some(_) | None => None,
        };
        Self {
            ident: *ident == Some(State::Set),
            line_ends,
            encoding,
        }
    }
}

enum Text {
    Yes,
    No,
    Auto,
    Lf,
}

fn is_utf8(name: &[u8]) -> bool {
    name.is_empty() || name.eq_ignore_ascii_case(b"utf-8") || name.eq_ignore_ascii_case(b"utf8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn conversion(files: &[(&str, &str)], path: &str) -> Conversion {
        let mut level = None;
        for (directory, content) in files {
            let read = Attributes::read(level, directory.as_bytes(), content.as_bytes());
            level = Some(Arc::new(read));
        }
        level.unwrap().conversion(path.as_bytes())
    }

    #[rstest]
    #[case::nothing("", LineEnds::AsStored)]
    #[case::native("* text=auto", LineEnds::AsStored)]
    #[case::crlf("*.txt eol=crlf", LineEnds::Crlf)]
    #[case::auto_crlf("* text=auto eol=crlf", LineEnds::CrlfIfText)]
    #[case::binary("* text=auto eol=crlf\n*.txt binary", LineEnds::AsStored)]
    #[case::unset("* eol=crlf\n*.txt -text", LineEnds::AsStored)]
    #[case::last_wins("*.txt eol=crlf\n*.txt eol=lf", LineEnds::AsStored)]
    #[case::old_name("*.txt -crlf eol=crlf", LineEnds::AsStored)]
    #[case::anchored("/a.txt eol=crlf", LineEnds::AsStored)]
    #[case::anchored_path("/d/a.txt eol=crlf", LineEnds::Crlf)]
    #[case::anywhere("d/**/*.txt eol=crlf", LineEnds::Crlf)]
    #[case::macro_of_a_macro("*.txt b\n[attr]b a\n[attr]a text eol=crlf", LineEnds::Crlf)]
    #[case::endless_macro("[attr]a a eol=crlf\n*.txt a", LineEnds::Crlf)]
    #[case::byte_order_mark("\u{feff}*.txt eol=crlf", LineEnds::Crlf)]
    #[case::own_macro("[attr]dos text eol=crlf\n*.txt dos", LineEnds::Crlf)]
    #[case::quoted("\"*.\\164xt\" eol=crlf", LineEnds::Crlf)]
    #[case::negative("!*.txt eol=crlf", LineEnds::AsStored)]
    #[case::directory("d/ eol=crlf", LineEnds::AsStored)]
    #[case::windows_file("*.txt eol=crlf\r", LineEnds::Crlf)]
    #[case::unspecified("* eol=crlf\n*.txt !eol", LineEnds::AsStored)]
    fn rules_are_read_as_git_reads_them(#[case] content: &str, #[case] want: LineEnds) {
        assert_eq!(conversion(&[("", content)], "d/a.txt").line_ends, want);
    }

    #[test]
    fn a_deeper_file_counts_more_and_sees_paths_from_where_it_lies() {
        let files = [
            ("", "* eol=crlf"),
            ("d", "/a.txt eol=lf\n[attr]x ident\n*.txt x"),
        ];
        assert_eq!(conversion(&files, "d/a.txt"), Conversion::default());
        assert_eq!(conversion(&files, "d/e/a.txt").line_ends, LineEnds::Crlf);
    }

    #[test]
    fn ident_and_encoding() {
        let found = conversion(&[("", "* ident working-tree-encoding=UTF-16LE")], "a");
        assert!(found.ident);
        assert_eq!(found.encoding.as_deref(), Some(b"UTF-16LE".as_slice()));
        assert!(conversion(&[("", "* working-tree-encoding=utf8")], "a").is_none());
    }
}
