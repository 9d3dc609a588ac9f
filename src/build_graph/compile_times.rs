//! Durations of recent compiles: those of this process, and those that the entries state which it loaded.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;

/// Number of durations that are kept.
const KEPT: usize = 32;

/// Durations of the latest compiles.
#[derive(Default)]
pub(super) struct CompileTimes(Mutex<VecDeque<Duration>>);

impl CompileTimes {
    pub(super) fn record(&self, took: Duration) {
        let mut known = lock(&self.0);
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back(took);
    }

    /// Returns the median, if there is one.
    pub(super) fn typical(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = lock(&self.0).iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_latest_durations_is_typical() {
        let times = CompileTimes::default();
        assert_eq!(times.typical(), None);
        for seconds in [1, 1000, 2] {
            times.record(Duration::from_secs(seconds));
        }
        assert_eq!(times.typical(), Some(Duration::from_secs(2)));
        for _ in 0..KEPT {
            times.record(Duration::from_secs(5));
        }
        assert_eq!(times.typical(), Some(Duration::from_secs(5)));
    }
}
