//! Cuts a stream into its documents, so that a broken one does not hide those after it.

/// One document as it stands in its file.
pub(super) struct Chunk<'a> {
    /// Its number in the file, from 1. Empty documents are not counted.
    pub(super) number: usize,
    /// The line of the file that `text` begins with, from 1; `None` for one of several JSON values.
    pub(super) first_line: u64,
    pub(super) text: &'a str,
}

/// The documents that are not empty. In YAML a line that begins with `---` starts one, wherever it stands: neither a
/// quoted nor a block scalar can hold it.
pub(super) fn documents(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let (mut start, mut at, mut first_line, mut line) = (0, 0, 1, 1);
    let mut cut = |from: usize, to: usize, first_line: u64| {
        let text = text.get(from..to).unwrap_or_default();
        if !is_empty(text) {
            let number = chunks.len() + 1;
            chunks.push(Chunk {
                number,
                first_line,
                text,
            });
        }
    };
    for part in text.split_inclusive('\n') {
        if at > start && is_marker(part) {
            cut(start, at, first_line);
            (start, first_line) = (at, line);
        }
        at += part.len();
        line += 1;
    }
    cut(start, at, first_line);
    chunks
}

fn is_marker(line: &str) -> bool {
    let rest = line.strip_prefix("---");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

/// Nothing but markers, directives, comments and white space.
fn is_empty(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.strip_prefix("---").unwrap_or(line).trim();
        line.is_empty() || line.starts_with(['#', '%']) || line == "..."
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_counted_and_know_their_line() {
        let text = "# head\n---\na: 1\n---\n# nothing\n--- # b\nb: |\n  ---\n  x\n...\n---\n";
        let chunks: Vec<_> = documents(text)
            .into_iter()
            .map(|c| (c.number, c.first_line, c.text))
            .collect();
        assert_eq!(
            chunks,
            [
                (1, 2, "---\na: 1\n"),
                (2, 6, "--- # b\nb: |\n  ---\n  x\n...\n")
            ]
        );
    }
}
