//! Tracks how quickly a remote cache has answered lately, and derives how long a build waits for it before its
//! compile starts.
//!
//! Waiting saves a compile if the remote has the program. If the remote does not have it, or does not answer,
//! waiting only delays the compile. Builds wait while that is cheap: for the first answers of a remote without
//! any record, for a remote that answers in a small part of the time of the compile, and for one that has most of
//! the requested programs and answers before the compile would end. Otherwise the compile starts at once and races
//! the answer. No build waits longer than its compile is expected to take.

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

/// Part of the time of a compile in which a remote that has most programs has to answer, as a fraction. The rest is for
/// slower answers, and for the driver to load the program.
const LOAD_PART: [u32; 2] = [2, 3];

/// Shortest time that a compile is expected to take. Drivers take longer, and a remote in the same network answers
/// sooner, however busy the machine is.
pub(super) const MIN_COMPILE: Duration = Duration::from_millis(20);

/// Factor of the typical answer time: the wait for a remote that has most programs.
const LATENCY_FACTOR: u32 = 4;

/// Latency record of one remote cache.
#[derive(Debug)]
pub(crate) struct LatencyRecord {
    budget: Duration,
    answers: VecDeque<AnswerSample>,
    /// Whether the last answer that a build waited for did not come in time.
    is_late: bool,
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
        Self { budget, answers: VecDeque::with_capacity(MAX_ANSWERS), is_late: false }
    }

    /// Records an answer: the time it took, and whether the remote had the program. `compile` is the expected time of
    /// the program's compile, if it is known.
    pub(crate) fn record_answer(&mut self, took: Duration, found: bool, compile: Option<Duration>) {
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(AnswerSample { took, found });
        self.is_late = took > self.max_patience(compile);
    }

    /// Records that no answer came while a build waited.
    pub(crate) fn record_late(&mut self) {
        self.is_late = true;
    }

    /// Returns how long the next build waits for the remote before its compile starts. `compile` is the expected time of
    /// that compile, if it is known.
    pub(crate) fn patience(&self, compile: Option<Duration>) -> Duration {
        if self.is_late { Duration::ZERO } else { self.max_patience(compile) }
    }

    /// Returns how long a build waits, provided that the last answer was in time.
    fn max_patience(&self, compile: Option<Duration>) -> Duration {
        let quick = self.budget / QUICK_DIVISOR;
        let compile = compile.map(|compile| compile.max(MIN_COMPILE));
        let longest = compile.unwrap_or(self.budget).min(self.budget);
        let Some(typical) = self.typical_latency() else {
            return (self.budget / UNKNOWN_DIVISOR).min(longest);
        };
        let found = self.answers.iter().filter(|answer| answer.found).count();
        let slowest = if found * 2 >= self.answers.len() {
            let [part, whole] = LOAD_PART;
            compile.map_or(self.budget, |compile| compile / whole * part)
        } else {
            compile.map_or(quick, |compile| quick.min(compile / COMPILE_DIVISOR))
        };
        if typical > slowest {
            Duration::ZERO
        } else if found * 2 >= self.answers.len() {
            (typical * LATENCY_FACTOR).clamp(quick, self.budget).min(longest)
        } else {
            quick.min(longest)
        }
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
            record.record_answer(took, found, None);
        }
        record
    }

    #[test]
    fn an_unknown_service_gets_a_small_part_of_the_budget() {
        assert_eq!(LatencyRecord::new(BUDGET).patience(None), MS * 50);
        assert_eq!(LatencyRecord::new(BUDGET).patience(Some(MS * 30)), MS * 30);
        assert_eq!(LatencyRecord::new(Duration::ZERO).patience(None), Duration::ZERO);
    }

    #[test]
    fn a_service_with_hits_gets_a_multiple_of_its_latency() {
        assert_eq!(after(&[(MS, true); 20]).patience(None), MS * 200);
        assert_eq!(after(&[(MS * 100, true); 20]).patience(None), MS * 400);
        assert_eq!(after(&[(MS * 1_500, true); 20]).patience(None), BUDGET);
    }

    #[test]
    fn a_service_with_hits_is_awaited_only_if_it_answers_before_the_compile_ends() {
        let quick = after(&[(MS * 2, true); 4]);
        assert_eq!(quick.patience(Some(MS * 5_000)), MS * 200);
        assert_eq!(quick.patience(Some(MS * 100)), MS * 100, "the compile would have ended");
        assert_eq!(quick.patience(Some(MS / 10)), MS * 20, "no driver compiles so quickly");
        let slow = after(&[(MS * 300, true); 4]);
        assert_eq!(slow.patience(Some(MS * 5_000)), MS * 1_200);
        assert_eq!(slow.patience(Some(MS * 700)), MS * 700);
        for compile in [0, 20, 100, 300, 449] {
            assert_eq!(slow.patience(Some(MS * compile)), Duration::ZERO, "{compile} ms");
        }
    }

    #[test]
    fn the_patience_never_exceeds_the_budget_or_the_compile() {
        for took in [0, 1, 40, 199, 200, 500, 1_000, 1_999, 2_000, 2_001, 10_000] {
            for found in [true, false] {
                let record = after(&[(MS * took, found)]);
                for compile in [None, Some(1), Some(20), Some(250), Some(3_000), Some(10_000)] {
                    let compile = compile.map(|compile| MS * compile);
                    let patience = record.patience(compile);
                    let most = compile.map_or(BUDGET, |compile| compile.max(MIN_COMPILE));
                    assert!(patience <= BUDGET.min(most), "{took} ms: {patience:?}");
                }
            }
        }
        assert_eq!(after(&[(BUDGET * 5, true); 3]).patience(None), Duration::ZERO);
    }

    #[test]
    fn a_late_service_is_not_awaited_until_it_answers_in_time() {
        let mut record = after(&[(MS, true); 4]);
        record.record_late();
        assert_eq!(record.patience(None), Duration::ZERO);
        record.record_answer(BUDGET * 2, true, None);
        assert_eq!(record.patience(None), Duration::ZERO);
        record.record_answer(MS * 50, true, Some(MS * 40));
        assert_eq!(record.patience(None), Duration::ZERO, "the compile would have been quicker");
        record.record_answer(MS, true, None);
        assert_ne!(record.patience(None), Duration::ZERO);
    }

    #[test]
    fn a_service_without_hits_is_awaited_only_if_that_is_cheap() {
        let record = after(&[(MS * 2, false); 4]);
        assert_eq!(record.patience(None), MS * 200, "the duration of compiles is unknown");
        let compile = Some(MS * 100);
        assert_eq!(record.patience(compile), MS * 100, "2 ms are little compared with 100 ms");
        let compile = Some(MS * 20);
        assert_eq!(record.patience(compile), Duration::ZERO, "2 ms are too much of 20 ms");
        assert_eq!(after(&[(MS * 500, false)]).patience(None), Duration::ZERO, "it is slow");
    }

    #[test]
    fn old_answers_are_forgotten() {
        let mut record = after(&[(MS * 500, false); 100]);
        assert_eq!(record.patience(None), Duration::ZERO);
        for _ in 0..MAX_ANSWERS {
            record.record_answer(MS, true, None);
        }
        assert_eq!(record.patience(None), MS * 200);
    }
}
