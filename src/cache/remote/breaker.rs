//! Circuit breaker: after several failures in a row, no requests are made for a while. Then one probe at a time
//! shows whether the service is back.
//!
//! The breaker reads no clock: callers pass the time in.

use std::time::{Duration, Instant};

/// Number of failures in a row that opens the breaker.
const FAILURES: u32 = 3;

/// Shortest and longest pause before a probe. Each pause is twice the one before.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Decides whether requests to a service are made.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Requests are made. The latest `failures` of them have failed.
    Closed { failures: u32 },
    /// No requests are made before `until`.
    Open { until: Instant, pause: Duration },
    /// A probe is in flight, and its outcome decides the next state.
    Probing { pause: Duration },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Kind of an allowed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Try {
    Ordinary,
    /// Request to a service that was unavailable at its last request.
    Probe,
}

/// State change at the end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Opened,
    Closed,
}

impl Breaker {
    /// Returns the kind of request to make now, or `None` if none is allowed. Each allowed request must be
    /// followed by one call of `succeeded` or `failed`.
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

    /// Records that the service did what was requested, or answered that it cannot be done.
    pub(crate) fn succeeded(&mut self) -> Change {
        // A late success of an earlier request shows as much as a probe.
        let change = match self.state {
            State::Closed { .. } => Change::None,
            State::Open { .. } | State::Probing { .. } => Change::Closed,
        };
        self.state = State::default();
        change
    }

    /// Records that a request failed. One failure that retries cannot fix (`is_permanent`) opens the breaker by
    /// itself.
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
            // The request was begun before the breaker opened.
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
    fn only_consecutive_failures_open_the_breaker() {
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
    fn a_permanent_failure_opens_the_breaker_at_once() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        assert_eq!(breaker.failed(now, Try::Ordinary, true), Change::Opened);
        assert_eq!(breaker.allow(now), None);
    }

    #[test]
    fn probes_are_allowed_one_at_a_time_after_growing_pauses() {
        let mut now = Instant::now();
        let mut breaker = opened(now);
        let mut pause = SECOND;
        for _ in 0..10 {
            assert_eq!(breaker.allow(now + pause / 2), None);
            now += pause;
            assert_eq!(breaker.allow(now), Some(Try::Probe));
            assert_eq!(breaker.allow(now), None, "the probe is under way");
            assert_eq!(breaker.failed(now, Try::Probe, false), Change::None, "it is reported once");
            pause = (pause * 2).min(PAUSES[1]);
        }
        assert_eq!(pause, PAUSES[1]);
    }

    #[test]
    fn a_success_closes_the_breaker_and_resets_the_pauses() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.allow(now + SECOND), Some(Try::Probe));
        assert_eq!(breaker.failed(now + SECOND, Try::Probe, false), Change::None);
        assert_eq!(breaker.allow(now + SECOND * 3), Some(Try::Probe));
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert_eq!(breaker.succeeded(), Change::None, "it is reported once");
        assert_eq!(breaker.allow(now), Some(Try::Ordinary));
        for _ in 0..FAILURES {
            breaker.failed(now, Try::Ordinary, false);
        }
        assert_eq!(breaker.allow(now + SECOND), Some(Try::Probe));
    }

    #[test]
    fn failures_of_earlier_requests_do_not_change_an_open_breaker() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.failed(now, Try::Ordinary, true), Change::None);
        assert_eq!(breaker.allow(now + SECOND), Some(Try::Probe));
        assert_eq!(breaker.failed(now + SECOND, Try::Ordinary, false), Change::None);
        assert_eq!(breaker.allow(now + SECOND * 2), None, "the probe is still under way");
    }
}
