//! Durations of recent compiles: those of this process, and those that the entries state which it loaded.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;

/// Number of compiles that are kept.
const KEPT: usize = 32;

/// Number of compiles whose median is expected for a program: those of the programs nearest in size.
const NEIGHBOURS: usize = 7;

/// Sizes of the code and durations of the latest compiles.
#[derive(Default)]
pub(super) struct CompileTimes(Mutex<VecDeque<(usize, Duration)>>);

impl CompileTimes {
    /// Records that the compile of code with `bytes` bytes took this time.
    pub(super) fn record(&self, bytes: usize, took: Duration) {
        let mut known = lock(&self.0);
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back((bytes, took));
    }

    /// Returns the time that the compile of code with `bytes` bytes is expected to take: the median of the compiles of
    /// similar sizes. `None` if no compile is known.
    pub(super) fn expected(&self, bytes: usize) -> Option<Duration> {
        let mut nearest: Vec<_> = lock(&self.0).iter().copied().collect();
        nearest.sort_by(|(one, _), (other, _)| ratio(*one, bytes).total_cmp(&ratio(*other, bytes)));
        nearest.truncate(NEIGHBOURS);
        let mut sorted: Vec<_> = nearest.iter().map(|(_, took)| *took).collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// Returns how many times as large as the smaller size the larger one is.
fn ratio(one: usize, other: usize) -> f64 {
    let (one, other) = (one.max(1) as f64, other.max(1) as f64);
    (one / other).max(other / one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_latest_durations_is_expected() {
        let times = CompileTimes::default();
        assert_eq!(times.expected(1), None);
        for seconds in [1, 1000, 2] {
            times.record(100, Duration::from_secs(seconds));
        }
        assert_eq!(times.expected(100), Some(Duration::from_secs(2)));
        for _ in 0..KEPT {
            times.record(100, Duration::from_secs(5));
        }
        assert_eq!(times.expected(1), Some(Duration::from_secs(5)));
    }

    #[test]
    fn compiles_of_similar_sizes_are_compared() {
        let times = CompileTimes::default();
        for _ in 0..NEIGHBOURS {
            times.record(100, Duration::from_millis(10));
            times.record(10_000, Duration::from_secs(1));
        }
        for (bytes, milliseconds) in
            [(0, 10), (90, 10), (500, 10), (5_000, 1_000), (1 << 30, 1_000)]
        {
            assert_eq!(times.expected(bytes), Some(Duration::from_millis(milliseconds)), "{bytes}");
        }
    }
}
