//! Circuit breaker: after several failures in a row, no requests are made for a while. Then one probe at a time
//! shows whether the service is back.
//!
//! The breaker reads no clock: callers pass the time in.

use std::time::{Duration, Instant};

/// Number of failures in a row that opens the breaker.
const MAX_FAILURES: u32 = 3;

/// Shortest and longest pause before a probe. Each failed probe doubles the pause.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Decides whether requests to a service are made.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    state: BreakerState,
}

#[derive(Debug)]
enum BreakerState {
    /// Requests are made. The latest `failures` of them have failed.
    Closed { failures: u32 },
    /// No requests are made before `until`.
    Open { until: Instant, pause: Duration },
    /// A probe is in flight, and its outcome decides the next state.
    Probing { pause: Duration },
}

impl Default for BreakerState {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Kind of an allowed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
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
    pub(crate) fn allow(&mut self, now: Instant) -> Option<RequestKind> {
        match self.state {
            BreakerState::Closed { .. } => Some(RequestKind::Ordinary),
            BreakerState::Open { until, pause } if now >= until => {
                self.state = BreakerState::Probing { pause };
                Some(RequestKind::Probe)
            }
            BreakerState::Open { .. } | BreakerState::Probing { .. } => None,
        }
    }

    /// Whether the service is not known to be unavailable.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, BreakerState::Closed { .. })
    }

    /// Records that the service did what was requested, or answered that it cannot be done.
    pub(crate) fn succeeded(&mut self) -> Change {
        // A late success of an earlier request shows as much as a probe.
        let change = match self.state {
            BreakerState::Closed { .. } => Change::None,
            BreakerState::Open { .. } | BreakerState::Probing { .. } => Change::Closed,
        };
        self.state = BreakerState::default();
        change
    }

    /// Records that a request failed. One failure that retries cannot fix (`is_permanent`) opens the breaker by
    /// itself.
    pub(crate) fn failed(&mut self, now: Instant, kind: RequestKind, is_permanent: bool) -> Change {
        let [shortest, longest] = PAUSES;
        match (&mut self.state, kind) {
            (BreakerState::Closed { failures }, _) => {
                *failures += 1;
                if *failures < MAX_FAILURES && !is_permanent {
                    return Change::None;
                }
                self.state = BreakerState::Open { until: now + shortest, pause: shortest };
                Change::Opened
            }
            (BreakerState::Probing { pause }, RequestKind::Probe) => {
                let pause = (*pause * 2).min(longest);
                self.state = BreakerState::Open { until: now + pause, pause };
                Change::None
            }
            // The request was begun before the breaker opened.
            (BreakerState::Open { .. } | BreakerState::Probing { .. }, _) => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 1..MAX_FAILURES {
            assert_eq!(breaker.allow(now), Some(RequestKind::Ordinary));
            assert_eq!(breaker.failed(now, RequestKind::Ordinary, false), Change::None);
        }
        assert_eq!(breaker.failed(now, RequestKind::Ordinary, false), Change::Opened);
        breaker
    }

    #[test]
    fn only_consecutive_failures_open_the_breaker() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..10 {
            breaker.failed(now, RequestKind::Ordinary, false);
            breaker.failed(now, RequestKind::Ordinary, false);
            assert_eq!(breaker.succeeded(), Change::None);
            assert_eq!(breaker.allow(now), Some(RequestKind::Ordinary));
        }
        assert_eq!(opened(now).allow(now), None);
    }

    #[test]
    fn a_permanent_failure_opens_the_breaker_at_once() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        assert_eq!(breaker.failed(now, RequestKind::Ordinary, true), Change::Opened);
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
            assert_eq!(breaker.allow(now), Some(RequestKind::Probe));
            assert_eq!(breaker.allow(now), None, "the probe is under way");
            assert_eq!(
                breaker.failed(now, RequestKind::Probe, false),
                Change::None,
                "it is reported once"
            );
            pause = (pause * 2).min(PAUSES[1]);
        }
        assert_eq!(pause, PAUSES[1]);
    }

    #[test]
    fn a_success_closes_the_breaker_and_resets_the_pauses() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.allow(now + SECOND), Some(RequestKind::Probe));
        assert_eq!(breaker.failed(now + SECOND, RequestKind::Probe, false), Change::None);
        assert_eq!(breaker.allow(now + SECOND * 3), Some(RequestKind::Probe));
        assert_eq!(breaker.succeeded(), Change::Closed);
        assert_eq!(breaker.succeeded(), Change::None, "it is reported once");
        assert_eq!(breaker.allow(now), Some(RequestKind::Ordinary));
        for _ in 0..MAX_FAILURES {
            breaker.failed(now, RequestKind::Ordinary, false);
        }
        assert_eq!(breaker.allow(now + SECOND), Some(RequestKind::Probe));
    }

    #[test]
    fn failures_of_earlier_requests_do_not_change_an_open_breaker() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.failed(now, RequestKind::Ordinary, true), Change::None);
        assert_eq!(breaker.allow(now + SECOND), Some(RequestKind::Probe));
        assert_eq!(breaker.failed(now + SECOND, RequestKind::Ordinary, false), Change::None);
        assert_eq!(breaker.allow(now + SECOND * 2), None, "the probe is still under way");
    }
}
