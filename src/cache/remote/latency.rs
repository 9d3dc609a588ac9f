//! How quickly a remote cache has answered lately, and how long a build therefore waits for it
//! before its compile starts.
//!
//! Waiting is a bet. Where the remote has the program, it saves a compile; where it has not, or
//! does not answer, it only delays one. The bet is taken while it is cheap: the first answers of a
//! remote that nobody knows yet, one that answers in a small part of the time of a compile, and one
//! that mostly has what it is asked for. Else the compile starts at once, and races the answer.

use std::collections::VecDeque;
use std::time::Duration;

/// So many of the latest answers count.
const KEPT: usize = 16;

/// What is waited for a remote that is quick, as a part of the budget.
const QUICK: u32 = 10;

/// The same for one of which nothing is known. If the service is down, each start loses so much, once.
const UNKNOWN: u32 = 40;

/// How much of the time of a compile may be lost by asking a remote that mostly has nothing.
const PART_OF_COMPILE: u32 = 20;

/// A remote that mostly has what it is asked for gets so many times as long as its answers take.
const TIMES: u32 = 4;

/// The record of one remote.
#[derive(Debug)]
pub(crate) struct Record {
    budget: Duration,
    answers: VecDeque<Answered>,
    /// The last that was waited for did not come in time.
    is_late: bool,
    /// What a compile took lately, on average.
    compile: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    took: Duration,
    found: bool,
}

impl Record {
    /// Of a remote for which a build waits so long at most.
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget, answers: VecDeque::with_capacity(KEPT), is_late: false, compile: None }
    }

    /// It answered, after so long, and had what it was asked for or not.
    pub(crate) fn answered(&mut self, took: Duration, found: bool) {
        if self.answers.len() == KEPT {
            self.answers.pop_front();
        }
        self.answers.push_back(Answered { took, found });
        self.is_late = took > self.most();
    }

    /// It did not answer while a build waited.
    pub(crate) fn is_late(&mut self) {
        self.is_late = true;
    }

    /// A compile took so long.
    pub(crate) fn compiled(&mut self, took: Duration) {
        // The latest counts as much as the three before it.
        self.compile = Some(self.compile.map_or(took, |average| (average * 3 + took) / 4));
    }

    /// How long the next build waits for its answer before its compile starts.
    pub(crate) fn patience(&self) -> Duration {
        if self.is_late { Duration::ZERO } else { self.most() }
    }

    /// The same for a remote that was in time with its last answer.
    fn most(&self) -> Duration {
        let quick = self.budget / QUICK;
        let Some(typical) = self.typical() else { return self.budget / UNKNOWN };
        let found = self.answers.iter().filter(|answer| answer.found).count();
        if found * 2 >= self.answers.len() {
            return if typical > self.budget {
                Duration::ZERO
            } else {
                (typical * TIMES).clamp(quick, self.budget)
            };
        }
        let is_cheap = self.compile.is_none_or(|compile| typical <= compile / PART_OF_COMPILE);
        if typical <= quick && is_cheap { quick } else { Duration::ZERO }
    }

    /// What most of the answers took no longer than.
    fn typical(&self) -> Option<Duration> {
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

    fn after(answers: &[(Duration, bool)]) -> Record {
        let mut record = Record::new(BUDGET);
        for &(took, found) in answers {
            record.answered(took, found);
        }
        record
    }

    #[test]
    fn one_that_nobody_knows_gets_a_small_part_of_the_budget() {
        assert_eq!(Record::new(BUDGET).patience(), MS * 50);
        assert_eq!(Record::new(Duration::ZERO).patience(), Duration::ZERO);
    }

    #[test]
    fn one_that_has_everything_gets_a_multiple_of_what_it_takes() {
        assert_eq!(after(&[(MS, true); 20]).patience(), MS * 200);
        assert_eq!(after(&[(MS * 100, true); 20]).patience(), MS * 400);
        assert_eq!(after(&[(MS * 1_500, true); 20]).patience(), BUDGET);
    }

    #[test]
    fn no_patience_exceeds_the_budget() {
        for took in [0, 1, 40, 199, 200, 500, 1_000, 1_999, 2_000, 2_001, 10_000] {
            for found in [true, false] {
                let patience = after(&[(MS * took, found)]).patience();
                assert!(patience <= BUDGET, "{took} ms: {patience:?}");
            }
        }
        assert_eq!(after(&[(BUDGET * 5, true); 3]).patience(), Duration::ZERO);
    }

    #[test]
    fn one_that_did_not_answer_in_time_is_raced_until_it_does() {
        let mut record = after(&[(MS, true); 4]);
        record.is_late();
        assert_eq!(record.patience(), Duration::ZERO);
        record.answered(BUDGET * 2, true);
        assert_eq!(record.patience(), Duration::ZERO);
        record.answered(MS, true);
        assert_ne!(record.patience(), Duration::ZERO);
    }

    #[test]
    fn one_that_has_nothing_is_waited_for_only_if_that_is_cheap() {
        let mut record = after(&[(MS * 2, false); 4]);
        assert_eq!(record.patience(), MS * 200, "nothing is known of compiles");
        record.compiled(MS * 100);
        assert_eq!(record.patience(), MS * 200, "2 ms are cheap beside 100");
        for _ in 0..20 {
            record.compiled(MS * 20);
        }
        assert_eq!(record.patience(), Duration::ZERO, "they are not beside 20");
        assert_eq!(after(&[(MS * 500, false)]).patience(), Duration::ZERO, "it is slow");
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut record = after(&[(MS * 500, false); 100]);
        assert_eq!(record.patience(), Duration::ZERO);
        for _ in 0..KEPT {
            record.answered(MS, true);
        }
        assert_eq!(record.patience(), MS * 200);
    }
}
