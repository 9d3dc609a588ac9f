//! A circuit breaker: after some failures in a row nothing is tried for a while, then one try at a
//! time shows whether the service is back.
//!
//! It reads no clock: the time is passed in.

use std::time::{Duration, Instant};

/// So many failures in a row open it.
const FAILURES: u32 = 3;

/// The first and the longest pause before it is tried again; each is twice the one before.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Whether a service is worth a try.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Tries are made, so many of the latest have failed.
    Closed { failures: u32 },
    /// None are made before then.
    Open { until: Instant, pause: Duration },
    /// One is under way that tells.
    Probing { pause: Duration },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// What kind of a try is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Try {
    Ordinary,
    /// Of a service that was sick when it was last tried.
    Probe,
}

/// What the end of a try changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Opened,
    Closed,
}

impl Breaker {
    /// Whether to try now. Each try that is allowed ends with one of the calls
    /// below.
    pub(crate) fn allow(&mut self, now: Instant) -> Option<Try> {
        match self.state {
            State::Closed { .. } => Some(Try::Ordinary),
            State::Open { until, pause } if now >= until => {
                self.state = State::Probing { pause };
                Some(Try::Probe)
            }
            State::Open { .. } | State::Probing { .. } => None,
        }
    }

    /// The service did what it was asked, or said that it cannot be done.
    pub(crate) fn succeeded(&mut self) -> Change {
        // One that ends late tells as much as a probe.
        let change = match self.state {
            State::Closed { .. } => Change::None,
            State::Open { .. } | State::Probing { .. } => Change::Closed,
        };
        self.state = State::default();
        change
    }

    /// It did not. A failure that no repetition mends opens the breaker by itself.
    pub(crate) fn failed(&mut self, now: Instant, tried: Try, is_permanent: bool) -> Change {
        let [shortest, longest] = PAUSES;
        match (&mut self.state, tried) {
            (State::Closed { failures }, _) => {
                *failures += 1;
                if *failures < FAILURES && !is_permanent {
                    return Change::None;
                }
                self.state = State::Open { until: now + shortest, pause: shortest };
                Change::Opened
            }
            (State::Probing { pause }, Try::Probe) => {
                let pause = (*pause * 2).min(longest);
                self.state = State::Open { until: now + pause, pause };
                Change::None
            }
            // It was begun before the breaker opened.
            (State::Open { .. } | State::Probing { .. }, _) => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 1..FAILURES {
            assert_eq!(breaker.allow(now), Some(Try::Ordinary));
            assert_eq!(breaker.failed(now, Try::Ordinary, false), Change::None);
        }
        assert_eq!(breaker.failed(now, Try::Ordinary, false), Change::Opened);
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_others_do_not() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(now, Try::Ordinary, false);
            breaker.failed(now, Try::Ordinary, false);
            assert_eq!(breaker.succeeded(), Change::None);
            assert_eq!(breaker.allow(now), Some(Try::Ordinary));
        }
        assert_eq!(opened(now).allow(now), None);
    }

    #[test]
    fn a_failure_that_nothing_mends_opens_it_at_once() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        assert_eq!(breaker.failed(now, Try::Ordinary, true), Change::Opened);
        assert_eq!(breaker.allow(now), None);
    }

    #[test]
    fn one_try_at_a_time_is_made_after_a_pause_that_grows() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        let mut pause = SECOND;
        for _ in 0..10 {
            assert_eq!(breaker.allow(now + pause / 2), None);
            now += pause;
            assert_eq!(breaker.allow(now), Some(Try::Probe));
            assert_eq!(breaker.allow(now), None, "the probe is under way");
            assert_eq!(breaker.failed(now, Try::Probe, false), Change::None, "it is told once");
            pause = (pause * 2).min(PAUSES[1]);
        }
        assert_eq!(pause, PAUSES[1]);
    }

    #[test]
    fn a_success_closes_it_and_the_pauses_begin_anew() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.allow(now + SECOND), Some(Try::Probe));
        assert_eq!(breaker.failed(now + SECOND, Try::Probe, false), Change::None);
        assert_eq!(breaker.allow(now + SECOND * 3), Some(Try::Probe));
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert_eq!(breaker.succeeded(), Change::None, "it is told once");
        assert_eq!(breaker.allow(now), Some(Try::Ordinary));
        for _ in 0..FAILURES {
            breaker.failed(now, Try::Ordinary, false);
        }
        assert_eq!(breaker.allow(now + SECOND), Some(Try::Probe));
    }

    #[test]
    fn what_was_begun_before_it_opened_changes_nothing_by_failing() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.failed(now, Try::Ordinary, true), Change::None);
        assert_eq!(breaker.allow(now + SECOND), Some(Try::Probe));
        assert_eq!(breaker.failed(now + SECOND, Try::Ordinary, false), Change::None);
        assert_eq!(breaker.allow(now + SECOND * 2), None, "the probe is still under way");
    }
}
