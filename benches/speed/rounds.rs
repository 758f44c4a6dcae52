//! Rounds in turns, and their medians.

use std::time::Duration;

/// The times of one contestant.
#[derive(Debug, Default, Clone)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    /// One more round.
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// The time that a share of the rounds kept, 0 to 100; the median is 50.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        sorted
            .get((last * percent).div_ceil(100))
            .copied()
            .unwrap_or_default()
    }

    /// The middle one.
    pub(crate) fn median(&self) -> Duration {
        self.percentile(50)
    }
}

impl Extend<Duration> for Times {
    fn extend<I: IntoIterator<Item = Duration>>(&mut self, times: I) {
        self.0.extend(times);
    }
}
