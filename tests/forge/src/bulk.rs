//! Large repositories, made in seconds and always the same: for benches and for limits.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use crate::error::doing;
use crate::repo::{blob, data, line};
use crate::{ForgeError, Repo};

/// Bytes that are the same every time and do not compress.
#[must_use]
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut words = Words(1);
    let mut out: Vec<u8> = (0..bytes.div_ceil(8))
        .flat_map(|_| words.next().to_le_bytes())
        .collect();
    out.truncate(bytes);
    out
}

impl Repo {
    /// Adds refs `PREFIX000000`, `PREFIX000001`, ... that all point at `id`, by writing `packed-refs` itself:
    /// 100,000 take less than a second. The prefix is a full name (`refs/heads/bulk/`).
    ///
    /// # Errors
    /// When git or the file system fails.
    pub fn packed_refs(&self, prefix: &str, count: usize, id: &str) -> Result<(), ForgeError> {
        self.git(&["check-ref-format", &format!("{prefix}000000")])?;
        self.git(&["pack-refs", "--all"])?;
        let file = self.git_dir().join("packed-refs");
        let packed = fs::read_to_string(&file).unwrap_or_default();
        // A ref's lines are its own and, for an annotated tag, that of the commit behind it.
        let mut refs = BTreeMap::new();
        let mut name = String::new();
        for text in packed.lines().filter(|text| !text.starts_with('#')) {
            if let Some((_, own)) = text.split_once(' ') {
                own.clone_into(&mut name);
            }
            let lines: &mut String = refs.entry(name.clone()).or_default();
            _ = writeln!(lines, "{text}");
        }
        for number in 0..count {
            let name = format!("{prefix}{number:06}");
            let text = format!("{id} {name}\n");
            refs.insert(name, text);
        }
        let header = "# pack-refs with: peeled sorted \n".to_owned();
        let all: String = std::iter::once(header).chain(refs.into_values()).collect();
        fs::write(&file, all).map_err(doing(format!("writing {}", file.display())))
    }

    /// Commits `files` files of about `bytes` bytes in all, a hundred to a directory, as one commit on
    /// `branch`, and returns its id. The text in them compresses like source code.
    ///
    /// # Errors
    /// When git fails.
    pub fn many_files(&self, branch: &str, files: usize, bytes: u64) -> Result<String, ForgeError> {
        let each = usize::try_from(bytes).unwrap_or(usize::MAX) / files.max(1);
        let mut stream = Vec::with_capacity(each.saturating_add(64).saturating_mul(files));
        let name = format!("refs/heads/{branch}");
        line(&mut stream, &format!("commit {name}"));
        let when = self.tick();
        line(
            &mut stream,
            &format!("committer Demo Forge <forge@example.com> {when} +0000"),
        );
        data(&mut stream, format!("{files} files\n").as_bytes());
        let mut words = Words(files as u64);
        for number in 0..files {
            let path = format!("src/d{:04}/file{:02}.txt", number / 100, number % 100);
            blob(
                &mut stream,
                "100644",
                &path,
                words.text(number, each).as_bytes(),
            );
        }
        self.import(&stream)?;
        self.git(&["rev-parse", "--verify", &name])
    }
}

/// A small random generator (xorshift) that is the same everywhere.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// About `bytes` bytes of made-up lines; the number makes each file another.
    fn text(&mut self, number: usize, bytes: usize) -> String {
        const COMMON: [&str; 8] = [
            "let", "fn", "return", "if", "else", "value", "index", "state",
        ];
        let mut out = format!("{number}\n");
        while out.len() < bytes {
            let random = self.next();
            let word = COMMON
                .get((random % 8) as usize)
                .copied()
                .unwrap_or_default();
            _ = writeln!(
                out,
                "    {word} item_{:x} = {:x};",
                (random >> 8) & 0xfff,
                random >> 40
            );
        }
        out
    }
}
