//! What the comparison found, in bounded memory.

use std::collections::BTreeMap;

use crate::api::safe_text;
use crate::api::wire::{Change, ChangedPath, DriftFacts};

/// Counts, and the first paths.
#[derive(Debug, Default)]
pub(super) struct Findings {
    modified: u64,
    deleted: u64,
    added: u64,
    type_changed: u64,
    mode_changed: u64,
    first: BTreeMap<Vec<u8>, Change>,
    truncated: bool,
    /// A path that could not be read.
    pub(super) unreadable: Option<String>,
    /// The time was over.
    pub(super) out_of_time: bool,
    /// Something that changed was not counted to its end.
    pub(super) uncounted: bool,
}

/// Paths that are named. A person reads them; the counts are the fact.
const PATHS: usize = 20;
/// A longer path is cut.
const PATH_BYTES: usize = 512;

impl Findings {
    /// Counts a change of the entry `name` in `directory`.
    pub(super) fn change(&mut self, directory: &[u8], name: &[u8], change: Change) {
        let count = match change {
            Change::Modified => &mut self.modified,
            Change::Deleted => &mut self.deleted,
            Change::Added => &mut self.added,
            Change::TypeChanged => &mut self.type_changed,
            Change::ModeChanged => &mut self.mode_changed,
        };
        *count = count.saturating_add(1);
        if self.first.len() >= PATHS {
            self.truncated = true;
            if self
                .first
                .last_key_value()
                .is_some_and(|(last, _)| is_after(directory, name, last))
            {
                return;
            }
        }
        self.first.insert(join(directory, name), change);
        while self.first.len() > PATHS {
            self.first.pop_last();
        }
    }

    /// Notes a path that could not be read.
    pub(super) fn unreadable(&mut self, directory: &[u8], name: &[u8]) {
        self.unreadable
            .get_or_insert_with(|| printable(&join(directory, name)));
    }

    /// Adds what another thread found.
    pub(super) fn absorb(&mut self, other: Self) {
        self.modified += other.modified;
        self.deleted += other.deleted;
        self.added += other.added;
        self.type_changed += other.type_changed;
        self.mode_changed += other.mode_changed;
        self.first.extend(other.first);
        self.truncated |= other.truncated || self.first.len() > PATHS;
        while self.first.len() > PATHS {
            self.first.pop_last();
        }
        if self.unreadable.is_none() {
            self.unreadable = other.unreadable;
        }
        self.out_of_time |= other.out_of_time;
        self.uncounted |= other.uncounted;
    }

    /// The facts, without HEAD and `.git`.
    pub(super) fn into_facts(self) -> DriftFacts {
        let incomplete = self.unreadable.is_some() || self.out_of_time || self.uncounted;
        let paths = self
            .first
            .into_iter()
            .map(|(path, change)| ChangedPath {
                path: printable(&path),
                change,
            })
            .collect();
        DriftFacts {
            modified: self.modified,
            deleted: self.deleted,
            added: self.added,
            type_changed: self.type_changed,
            mode_changed: self.mode_changed,
            paths,
            truncated: self.truncated,
            incomplete,
            ..DriftFacts::default()
        }
    }
}

/// Whether `directory/name` sorts after `last`, without putting it together.
fn is_after(directory: &[u8], name: &[u8], last: &[u8]) -> bool {
    let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    directory.iter().chain(slash).chain(name).gt(last.iter())
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn printable(path: &[u8]) -> String {
    match path.get(..PATH_BYTES) {
        Some(head) => safe_text(head) + "...",
        None => safe_text(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_paths_are_kept_whatever_the_order() {
        let mut a = Findings::default();
        let mut b = Findings::default();
        for n in (0..100).rev() {
            let to = if n % 2 == 0 { &mut a } else { &mut b };
            to.change(b"d", format!("{n:03}").as_bytes(), Change::Added);
        }
        a.absorb(b);
        let facts = a.into_facts();
        assert_eq!(
            (facts.added, facts.truncated, facts.paths.len()),
            (100, true, PATHS)
        );
        assert_eq!(facts.paths[0].path, "d/000");
        assert_eq!(facts.paths[19].path, "d/019");
    }

    #[test]
    fn l03_a_path_is_made_safe_and_cut() {
        let mut found = Findings::default();
        found.change(b"", b"a\n\xff", Change::Modified);
        found.change(&[b'x'; 4000], b"y", Change::Added);
        let paths = found.into_facts().paths;
        assert_eq!(paths[0].path, r"a\n\xff");
        assert!(paths[1].path.len() < 520 && paths[1].path.ends_with("..."));
    }
}
