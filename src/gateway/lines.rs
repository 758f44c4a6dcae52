//! How many lines the calls of one run may write into the record: an agent that calls in a loop must not fill it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::api::Decision;

/// Refused calls that have a line each. Whoever needs more to be told is not listening.
pub(super) const REFUSED: u64 = 10_000;
/// Lines of all calls, two for one that is made: a day of more than one call a second.
pub(super) const ALL: u64 = 250_000;
/// Lines of one run that may wait for the disk at once: the writer is shared by all runs.
const AT_ONCE: usize = 16;

/// What one run has written.
#[derive(Debug)]
pub(super) struct Lines {
    refused: AtomicU64,
    all: AtomicU64,
    /// Turns at the writer.
    pub(super) turns: Semaphore,
}

/// Whether a line may still be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// It may.
    Left,
    /// It is the last one of its kind, and has to say so.
    Last,
    /// No more.
    Full,
}

impl Default for Lines {
    fn default() -> Self {
        Self {
            refused: AtomicU64::new(0),
            all: AtomicU64::new(0),
            turns: Semaphore::new(AT_ONCE),
        }
    }
}

impl Lines {
    /// Counts a refused call.
    pub(super) fn refused(&self) -> Room {
        room(&self.refused, REFUSED, 1)
    }

    /// Counts a call that is made: its two lines.
    pub(super) fn made(&self) -> Room {
        room(&self.all, ALL, 2)
    }

    /// Counts a line that the record has already.
    pub(super) fn recall(&self, decision: &Decision) {
        let counter = match decision {
            Decision::Refused { .. } => &self.refused,
            Decision::Begun | Decision::Allowed | Decision::Failed { .. } => &self.all,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

fn room(counter: &AtomicU64, limit: u64, lines: u64) -> Room {
    let before = counter.fetch_add(lines, Ordering::Relaxed);
    if before + lines < limit {
        Room::Left
    } else if before < limit {
        Room::Last
    } else {
        Room::Full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_each_kind_says_that_it_is_the_last() {
        let lines = Lines::default();
        let rooms: Vec<_> = (0..REFUSED + 5).map(|_| lines.refused()).collect();
        assert_eq!(rooms.iter().filter(|r| **r == Room::Last).count(), 1);
        assert_eq!(rooms.iter().filter(|r| **r == Room::Full).count(), 5);
        for _ in 0..ALL - 2 {
            lines.recall(&Decision::Allowed);
        }
        assert_eq!(
            [lines.made(), lines.made(), lines.made()],
            [Room::Last, Room::Full, Room::Full]
        );
    }
}
