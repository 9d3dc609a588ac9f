//! Tracks how quickly a remote cache has answered lately, and derives how long a build waits for it before its
//! compile starts.
//!
//! Waiting saves a compile if the remote has the program. If the remote does not have it, or does not answer,
//! waiting only delays the compile. Builds wait while that is cheap: for the first answers of a remote without
//! any record, for a remote that answers in a small part of the time of a compile, and for one that has most of
//! the requested programs. Otherwise the compile starts at once and races the answer.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of latest answers that are kept.
const MAX_ANSWERS: usize = 16;

/// Divisor of the budget: the wait for a quick remote.
const QUICK_DIVISOR: u32 = 10;

/// Divisor of the budget: the wait for a remote without any record. If the service is down, each start loses
/// this time once.
const UNKNOWN_DIVISOR: u32 = 40;

/// Divisor of the time of a compile: the part that may be lost by waiting for a remote that lacks most
/// programs.
const COMPILE_DIVISOR: u32 = 20;

/// Factor of the typical answer time: the wait for a remote that has most programs.
const LATENCY_FACTOR: u32 = 4;

/// Latency record of one remote cache.
#[derive(Debug)]
pub(crate) struct LatencyRecord {
    budget: Duration,
    answers: VecDeque<AnswerSample>,
    /// Whether the last answer that a build waited for did not come in time.
    is_late: bool,
    /// Recent average time of a compile.
    compile: Option<Duration>,
}

/// Time that an answer took, and whether the remote had the program.
#[derive(Clone, Copy, Debug)]
struct AnswerSample {
    took: Duration,
    found: bool,
}

impl LatencyRecord {
    /// Creates the record of a remote for which a build waits at most `budget`.
    pub(crate) fn new(budget: Duration) -> Self {
        Self {
            budget,
            answers: VecDeque::with_capacity(MAX_ANSWERS),
            is_late: false,
            compile: None,
        }
    }

    /// Records an answer: the time it took, and whether the remote had the program.
    pub(crate) fn record_answer(&mut self, took: Duration, found: bool) {
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(AnswerSample { took, found });
        self.is_late = took > self.max_patience();
    }

    /// Records that no answer came while a build waited.
    pub(crate) fn record_late(&mut self) {
        self.is_late = true;
    }

    /// Records the time of a compile.
    pub(crate) fn record_compile(&mut self, took: Duration) {
        // The latest time has a weight of one quarter.
        self.compile = Some(self.compile.map_or(took, |average| (average * 3 + took) / 4));
    }

    /// Returns how long the next build waits for the remote before its compile starts.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_late { Duration::ZERO } else { self.max_patience() }
    }

    /// Returns how long a build waits, provided that the last answer was in time.
    fn max_patience(&self) -> Duration {
        let quick = self.budget / QUICK_DIVISOR;
        let Some(typical) = self.typical_latency() else { return self.budget / UNKNOWN_DIVISOR };
        let found = self.answers.iter().filter(|answer| answer.found).count();
        if found * 2 >= self.answers.len() {
            return if typical > self.budget {
                Duration::ZERO
            } else {
                (typical * LATENCY_FACTOR).clamp(quick, self.budget)
            };
        }
        let is_cheap = self.compile.is_none_or(|compile| typical <= compile / COMPILE_DIVISOR);
        if typical <= quick && is_cheap { quick } else { Duration::ZERO }
    }

    /// Returns the 90th percentile of the kept answer times.
    fn typical_latency(&self) -> Option<Duration> {
        let mut took: Vec<_> = self.answers.iter().map(|answer| answer.took).collect();
        took.sort_unstable();
        took.get(took.len().checked_sub(1)? * 9 / 10).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(2);
    const MS: Duration = Duration::from_millis(1);

    fn after(answers: &[(Duration, bool)]) -> LatencyRecord {
        let mut record = LatencyRecord::new(BUDGET);
        for &(took, found) in answers {
            record.record_answer(took, found);
        }
        record
    }

    #[test]
    fn an_unknown_service_gets_a_small_part_of_the_budget() {
        assert_eq!(LatencyRecord::new(BUDGET).patience(), MS * 50);
        assert_eq!(LatencyRecord::new(Duration::ZERO).patience(), Duration::ZERO);
    }

    #[test]
    fn a_service_with_hits_gets_a_multiple_of_its_latency() {
        assert_eq!(after(&[(MS, true); 20]).patience(), MS * 200);
        assert_eq!(after(&[(MS * 100, true); 20]).patience(), MS * 400);
        assert_eq!(after(&[(MS * 1_500, true); 20]).patience(), BUDGET);
    }

    #[test]
    fn the_patience_never_exceeds_the_budget() {
        for took in [0, 1, 40, 199, 200, 500, 1_000, 1_999, 2_000, 2_001, 10_000] {
            for found in [true, false] {
                let patience = after(&[(MS * took, found)]).patience();
                assert!(patience <= BUDGET, "{took} ms: {patience:?}");
            }
        }
        assert_eq!(after(&[(BUDGET * 5, true); 3]).patience(), Duration::ZERO);
    }

    #[test]
    fn a_late_service_is_not_awaited_until_it_answers_in_time() {
        let mut record = after(&[(MS, true); 4]);
        record.record_late();
        assert_eq!(record.patience(), Duration::ZERO);
        record.record_answer(BUDGET * 2, true);
        assert_eq!(record.patience(), Duration::ZERO);
        record.record_answer(MS, true);
        assert_ne!(record.patience(), Duration::ZERO);
    }

    #[test]
    fn a_service_without_hits_is_awaited_only_if_that_is_cheap() {
        let mut record = after(&[(MS * 2, false); 4]);
        assert_eq!(record.patience(), MS * 200, "the duration of compiles is unknown");
        record.record_compile(MS * 100);
        assert_eq!(record.patience(), MS * 200, "2 ms are little compared with 100 ms");
        for _ in 0..20 {
            record.record_compile(MS * 20);
        }
        assert_eq!(record.patience(), Duration::ZERO, "2 ms are too much compared with 20 ms");
        assert_eq!(after(&[(MS * 500, false)]).patience(), Duration::ZERO, "it is slow");
    }

    #[test]
    fn old_answers_are_forgotten() {
        let mut record = after(&[(MS * 500, false); 100]);
        assert_eq!(record.patience(), Duration::ZERO);
        for _ in 0..MAX_ANSWERS {
            record.record_answer(MS, true);
        }
        assert_eq!(record.patience(), MS * 200);
    }
}
