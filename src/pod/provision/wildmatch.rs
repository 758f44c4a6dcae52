//! git's file name patterns, as `.gitattributes` uses them.

/// Whether `text` matches `pattern`. With `by_path`, `*`, `?` and brackets do not match a `/`, and `**` matches
/// any number of directories. Matching costs at most [`MAX_STEPS`]; a pattern that needs more matches nothing.
#[must_use]
pub(crate) fn matches(pattern: &[u8], text: &[u8], by_path: bool) -> bool {
    let mut matcher = Matcher { steps: 0, by_path };
    matcher.run(pattern, text, true) == Outcome::Yes
}

/// A hostile pattern (`*a*a*a*...`) takes time that grows with the power of its stars.
const MAX_STEPS: u32 = 100_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Yes,
    No,
    /// No, and more of the text cannot help.
    Never,
}

struct Matcher {
    steps: u32,
    by_path: bool,
}

impl Matcher {
    /// `at_start`: the pattern's rest follows a `/` or nothing.
    fn run(&mut self, mut pattern: &[u8], mut text: &[u8], mut at_start: bool) -> Outcome {
        loop {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Outcome::Never;
            }
            let Some((p, rest)) = pattern.split_first() else {
                return if text.is_empty() {
                    Outcome::Yes
                } else {
                    Outcome::No
                };
            };
            if *p == b'*' {
                return self.star(pattern, text, at_start);
            }
            let Some((t, text_rest)) = text.split_first() else {
                return Outcome::Never;
            };
            at_start = *p == b'/';
            match *p {
                b'?' => {
                    if self.by_path && *t == b'/' {
                        return Outcome::No;
                    }
                    pattern = rest;
                }
                b'[' => {
                    let Some((hit, after)) = class(rest, *t) else {
                        return Outcome::Never;
                    };
                    if !hit || (self.by_path && *t == b'/') {
                        return Outcome::No;
                    }
                    pattern = after;
                }
                b'\\' => {
                    let Some((p, after)) = rest.split_first() else {
                        return Outcome::Never;
                    };
                    if p != t {
                        return Outcome::No;
                    }
                    pattern = after;
                }
                plain => {
                    if plain != *t {
                        return Outcome::No;
                    }
                    pattern = rest;
                }
            }
            text = text_rest;
        }
    }

    fn star(&mut self, pattern: &[u8], mut text: &[u8], at_start: bool) -> Outcome {
        let stars = pattern.iter().take_while(|b| **b == b'*').count();
        let rest = pattern.get(stars..).unwrap_or_default();
        let mut crosses = !self.by_path;
        if self.by_path && stars >= 2 {
            // `**` is special only as a whole part of a path; elsewhere it is a `*`.
            let is_part = at_start && matches!(rest.first(), None | Some(b'/'));
            if is_part {
                crosses = true;
                if let Some(after) = rest.strip_prefix(b"/")
                    && self.run(after, text, true) == Outcome::Yes
                {
                    return Outcome::Yes;
                }
            }
        }
        if rest.is_empty() {
            let fits = crosses || !text.contains(&b'/');
            return if fits { Outcome::Yes } else { Outcome::Never };
        }
        loop {
            match self.run(rest, text, false) {
                Outcome::No => {}
                found @ (Outcome::Yes | Outcome::Never) => return found,
            }
            match text.split_first() {
                Some((b'/', _)) if !crosses => return Outcome::No,
                Some((_, after)) => text = after,
                None => return Outcome::Never,
            }
        }
    }
}

/// Whether a byte is in the class that `pattern` begins with (after its `[`), and what follows the class.
fn class(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern.split_first()? {
        (b'!' | b'^', rest) => (true, rest),
        _ => (false, pattern),
    };
    let mut hit = false;
    let mut previous: Option<u8> = None;
    let mut first = true;
    loop {
        let (p, after) = rest.split_first()?;
        rest = after;
        match *p {
            b']' if !first => return Some((hit != negated, rest)),
            b'-' if previous.is_some() && rest.first().is_some_and(|b| *b != b']') => {
                let (mut high, mut after) = rest.split_first()?;
                if *high == b'\\' {
                    (high, after) = after.split_first()?;
                }
                rest = after;
                hit |= previous.is_some_and(|low| (low..=*high).contains(&byte));
                previous = None;
            }
            b'[' if rest.first() == Some(&b':') => {
                let name = rest.get(1..)?;
                if let Some(end) = name.windows(2).position(|w| w == b":]")
                    && name
                        .get(..end)
                        .is_some_and(|n| n.iter().all(u8::is_ascii_lowercase))
                {
                    hit |= named_class(name.get(..end)?, byte)?;
                    rest = name.get(end + 2..)?;
                    previous = None;
                } else {
                    hit |= byte == b'[';
                    previous = Some(b'[');
                }
            }
            b'\\' => {
                let (literal, after) = rest.split_first()?;
                rest = after;
                hit |= *literal == byte;
                previous = Some(*literal);
            }
            plain => {
                hit |= plain == byte;
                previous = Some(plain);
            }
        }
        first = false;
    }
}

fn named_class(name: &[u8], byte: u8) -> Option<bool> {
    Some(match name {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("foo", "foo", true)]
    #[case::other("foo", "bar", false)]
    #[case::question("f?o", "foo", true)]
    #[case::question_slash("a?b", "a/b", false)]
    #[case::star("*.c", "a.c", true)]
    #[case::star_slash("*.c", "a/b.c", false)]
    #[case::star_inside("a*c/d", "abbc/d", true)]
    #[case::double_first("**/foo", "foo", true)]
    #[case::double_first_deep("**/foo", "a/b/foo", true)]
    #[case::double_last("foo/**", "foo/a/b", true)]
    #[case::double_last_bare("foo/**", "foo", false)]
    #[case::double_middle("a/**/b", "a/b", true)]
    #[case::double_middle_deep("a/**/b", "a/x/y/b", true)]
    #[case::double_no_part("a**b", "a/b", false)]
    #[case::double_no_part_star("a**b", "axxb", true)]
    #[case::class("[a-c]x", "bx", true)]
    #[case::class_negated("[!a-c]x", "bx", false)]
    #[case::class_bracket("[]-]", "]", true)]
    #[case::class_named("[[:digit:]]", "7", true)]
    #[case::class_open("[a", "a", false)]
    #[case::escaped("\\*", "*", true)]
    #[case::escaped_not("\\*", "a", false)]
    #[case::ends_in_backslash("a\\", "a", false)]
    fn patterns_match_as_in_git(#[case] pattern: &str, #[case] text: &str, #[case] want: bool) {
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), true), want);
    }

    #[test]
    fn a_hostile_pattern_ends() {
        let pattern = "*a".repeat(30) + "b";
        let text = "a".repeat(4000);
        assert!(!matches(pattern.as_bytes(), text.as_bytes(), true));
    }
}
