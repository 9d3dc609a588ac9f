//! Record of the latest claims of compiles, from which follows how long a build waits for the answer to its own.
//!
//! The wait saves a compile if another machine has claimed it, and otherwise only delays it. So a machine that is alone
//! waits only for a service that answers in a small part of the compile's time.

use std::collections::VecDeque;
use std::time::Duration;

use super::latency::MIN_COMPILE;

/// Number of latest claims that are kept.
const MAX_CLAIMS: usize = 8;

/// Number of claims after which it is known whether other machines compile the same programs at present.
const FIRST_CLAIMS: usize = 4;

/// Divisors of the time of a compile: the part that may be lost by waiting for the answer to a claim, if other machines
/// have claimed compiles lately, and if not.
const SHARED_DIVISOR: u32 = 4;
const ALONE_DIVISOR: u32 = 20;

/// Divisor of the budget of builds: the wait for an answer if the time of the compile is not known.
const UNKNOWN_DIVISOR: u32 = 40;

/// Number of claims that are awaited although the lookup of their program has not been answered in time.
const FIRST_LATE_CLAIMS: u32 = 2;

/// The latest claims.
#[derive(Debug, Default)]
pub(super) struct ClaimRecord {
    answered: VecDeque<ClaimSample>,
    /// Number of claims whose lookup had not been answered.
    late: u32,
}

/// Time that the answer to a claim took, and whether another machine had claimed the compile.
#[derive(Clone, Copy, Debug)]
struct ClaimSample {
    took: Duration,
    is_elsewhere: bool,
}

impl ClaimRecord {
    pub(super) fn record(&mut self, took: Duration, is_elsewhere: bool) {
        if self.answered.len() == MAX_CLAIMS {
            self.answered.pop_front();
        }
        self.answered.push_back(ClaimSample { took, is_elsewhere });
    }

    /// Like [`patience`](Self::patience), for a claim whose lookup has not been answered in time. Only the first ones of
    /// a process are awaited: many machines may have started at the same time.
    pub(super) fn late_patience(
        &mut self,
        compile: Option<Duration>,
        budget: Duration,
    ) -> Duration {
        self.late = self.late.saturating_add(1);
        if self.late > FIRST_LATE_CLAIMS {
            return Duration::ZERO;
        }
        self.patience(compile, budget).min(budget / UNKNOWN_DIVISOR)
    }

    /// Returns how long a build waits for the answer to its claim. `compile` is the expected time of its compile, if it
    /// is known, and `budget` the longest time that builds wait for the remote cache.
    pub(super) fn patience(&self, compile: Option<Duration>, budget: Duration) -> Duration {
        let Some(compile) = compile else { return budget / UNKNOWN_DIVISOR };
        let compile = compile.max(MIN_COMPILE);
        let is_shared = self.answered.len() < FIRST_CLAIMS
            || self.answered.iter().any(|sample| sample.is_elsewhere);
        let part = compile / if is_shared { SHARED_DIVISOR } else { ALONE_DIVISOR };
        // A busy machine gets some of its answers late.
        match self.answered.iter().map(|sample| sample.took).min() {
            Some(quickest) if quickest > part => Duration::ZERO,
            _ => (compile / SHARED_DIVISOR).min(budget),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(2);
    const MS: Duration = Duration::from_millis(1);

    fn after(claims: &[(u32, bool)]) -> ClaimRecord {
        let mut record = ClaimRecord::default();
        for (milliseconds, is_elsewhere) in claims {
            record.record(MS * *milliseconds, *is_elsewhere);
        }
        record
    }

    #[test]
    fn the_first_claims_are_awaited_for_a_part_of_the_compile() {
        let compile = Some(MS * 400);
        assert_eq!(after(&[]).patience(None, BUDGET), MS * 50);
        assert_eq!(after(&[]).patience(compile, BUDGET), MS * 100);
        assert_eq!(after(&[(90, false); 3]).patience(compile, BUDGET), MS * 100);
        assert_eq!(after(&[(300, false); 3]).patience(compile, BUDGET), Duration::ZERO);
        assert_eq!(after(&[]).patience(compile, MS), MS, "the budget is the limit");
    }

    #[test]
    fn a_machine_that_is_alone_waits_for_quick_answers_only() {
        let compile = Some(MS * 400);
        assert_eq!(after(&[(90, false); 4]).patience(compile, BUDGET), Duration::ZERO);
        assert_eq!(after(&[(10, false); 4]).patience(compile, BUDGET), MS * 100);
        let late = [(300, false), (10, false), (300, false), (300, false)];
        assert_eq!(after(&late).patience(compile, BUDGET), MS * 100, "only some answers are late");
    }

    #[test]
    fn machines_that_share_compiles_wait_for_slower_answers() {
        let mut claims = vec![(90, true)];
        claims.extend([(90, false); MAX_CLAIMS - 1]);
        assert_eq!(after(&claims).patience(Some(MS * 400), BUDGET), MS * 100);
        claims.push((90, false));
        assert_eq!(after(&claims).patience(Some(MS * 400), BUDGET), Duration::ZERO);
    }

    #[test]
    fn late_services_are_awaited_at_the_start_only() {
        let mut record = ClaimRecord::default();
        let mut patience = || record.late_patience(Some(MS * 400), BUDGET);
        assert_eq!(
            [(); 4].map(|()| patience()),
            [MS * 50, MS * 50, Duration::ZERO, Duration::ZERO]
        );
    }
}
