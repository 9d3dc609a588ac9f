//! Verdict on a run: what its records say about the service.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use super::faults::{Fault, Interval};
use super::records::{Outcome, Request, Sample, Source};

/// Time after a lack of descriptors in which requests may still fail.
const GRACE: Duration = Duration::from_secs(1);

/// Time after a fault in which requests count as those after it.
const AFTER: Duration = Duration::from_secs(2);

/// Records of a run.
pub(super) struct Run {
    /// Time beyond the faults after which a request counts as hanging.
    pub(super) patience: Duration,
    /// Time that a call takes with a slow disk.
    pub(super) slow: Duration,
    pub(super) faults: Vec<Interval>,
    pub(super) requests: Vec<Request>,
    pub(super) samples: Vec<Sample>,
    /// Time in which faults were caused.
    pub(super) span: Range<Duration>,
}

/// Memory of the service early and late in a run.
pub(super) struct Growth {
    pub(super) early: f64,
    pub(super) late: f64,
    /// Programs that were loaded between the middles of both times.
    pub(super) loads: f64,
}

impl Growth {
    /// Bytes by which the process grew. Negative if it shrank.
    pub(super) fn bytes(&self) -> f64 {
        self.late - self.early
    }
}

fn overlap(a: &Range<Duration>, b: &Range<Duration>) -> Duration {
    a.end.min(b.end).saturating_sub(a.start.max(b.start))
}

fn time(request: &Request) -> Range<Duration> {
    request.begin..request.end
}

impl Run {
    /// Returns how long a request took besides the faults in its time. A slow disk is a fault until its last call ends.
    fn beyond_faults(&self, request: &Request) -> Duration {
        let (mut since, mut beyond) = (request.begin, Duration::ZERO);
        for Interval { fault, time } in &self.faults {
            let last = if *fault == Fault::SlowDisk { self.slow } else { Duration::ZERO };
            let (start, end) = (time.start.min(request.end), (time.end + last).min(request.end));
            beyond += start.saturating_sub(since);
            since = since.max(end);
        }
        beyond + request.end.saturating_sub(since)
    }

    /// Returns what is wrong with the service.
    pub(super) fn findings(&self) -> Vec<String> {
        self.requests.iter().filter_map(|request| self.finding(request)).collect()
    }

    fn finding(&self, request: &Request) -> Option<String> {
        let beyond = self.beyond_faults(request);
        let finding = match &request.outcome {
            Outcome::Wrong(how) => format!("wrong results: {how}"),
            Outcome::Failed { message, is_plausible } => {
                let may_fail = *is_plausible && self.lacks_descriptors(request);
                if may_fail && beyond <= self.patience {
                    return None;
                }
                format!("failed: {message}")
            }
            Outcome::Right(_) if beyond > self.patience => "hung".to_owned(),
            Outcome::Right(_) => return None,
        };
        let mut text = format!(
            "program {}, from {:.2?} to {:.2?}, {beyond:.2?} beyond faults: {finding}; faults:",
            request.number,
            request.begin.saturating_sub(self.span.start),
            request.end.saturating_sub(self.span.start),
        );
        for Interval { fault, time } in &self.faults {
            let near = time.start.saturating_sub(self.patience)..time.end + self.patience;
            if !overlap(&near, &(request.begin..request.end)).is_zero() {
                let [start, end] =
                    [time.start, time.end].map(|t| t.saturating_sub(self.span.start));
                let _ = write!(text, " {fault:?} from {start:.2?} to {end:.2?}");
            }
        }
        Some(text)
    }

    fn lacks_descriptors(&self, request: &Request) -> bool {
        let faults = self.faults.iter().filter(|fault| fault.fault == Fault::Descriptors);
        faults.into_iter().any(|fault| {
            !overlap(&(fault.time.start..fault.time.end + GRACE), &time(request)).is_zero()
        })
    }

    /// Returns the number of requests whose program came from each source.
    pub(super) fn sources(&self) -> BTreeMap<Source, usize> {
        let mut sources: BTreeMap<_, _> = Source::ALL.map(|source| (source, 0)).into();
        for request in &self.requests {
            if let Outcome::Right(source) = request.outcome {
                *sources.entry(source).or_default() += 1;
            }
        }
        sources
    }

    /// Returns the errors of failed requests, with their numbers.
    pub(super) fn errors(&self) -> BTreeMap<&str, usize> {
        let mut errors = BTreeMap::new();
        for request in &self.requests {
            if let Outcome::Failed { message, .. } = &request.outcome {
                *errors.entry(message.as_str()).or_default() += 1;
            }
        }
        errors
    }

    /// Returns the faults with their times in seconds since the beginning.
    pub(super) fn describe_faults(&self) -> String {
        let describe = |Interval { fault, time }: &Interval| {
            let [start, end] = [time.start, time.end]
                .map(|time| time.saturating_sub(self.span.start).as_secs_f64());
            format!("{fault:?} {start:.1} to {end:.1}")
        };
        self.faults.iter().map(describe).collect::<Vec<_>>().join(", ")
    }

    /// Returns the numbers of requests around the faults of a kind.
    pub(super) fn around(&self, fault: Fault) -> Around {
        let mut around = Around::default();
        for interval in self.faults.iter().filter(|interval| interval.fault == fault) {
            around.faults += 1;
            around.time += interval.time.end - interval.time.start;
            let after = interval.time.end..interval.time.end + AFTER;
            for request in &self.requests {
                let is_right = matches!(request.outcome, Outcome::Right(_));
                if overlap(&interval.time, &time(request)).is_zero() {
                    around.right_after += usize::from(after.contains(&request.begin) && is_right);
                    continue;
                }
                around.right_during +=
                    usize::from(interval.time.contains(&request.begin) && is_right);
                around.failed += usize::from(!is_right);
                around.slowest = around.slowest.max(request.end - request.begin);
                around.beyond = around.beyond.max(self.beyond_faults(request));
            }
        }
        around
    }

    /// Returns the longest time of a request that no fault was in.
    pub(super) fn slowest_without_fault(&self) -> Duration {
        let undisturbed = |request: &&Request| {
            self.faults.iter().all(|fault| overlap(&fault.time, &time(request)).is_zero())
        };
        let requests = self.requests.iter().filter(undisturbed);
        requests.map(|request| request.end - request.begin).max().unwrap_or_default()
    }

    /// Compares the memory in the second fifth of the time with that in the last fifth. `None` without samples.
    pub(super) fn growth(&self) -> Option<Growth> {
        let fifth = (self.span.end - self.span.start) / 5;
        let mean = |from: Duration, read: fn(&Sample) -> u64| {
            let within =
                self.samples.iter().filter(|sample| (from..from + fifth).contains(&sample.at));
            let values: Vec<_> = within.map(read).collect();
            let sum = values.iter().sum::<u64>() as f64;
            (!values.is_empty()).then(|| sum / values.len() as f64)
        };
        let (early, late) = (self.span.start + fifth, self.span.end - fifth);
        let [resident, loads] = [|sample: &Sample| sample.resident, |sample: &Sample| sample.loads];
        Some(Growth {
            early: mean(early, resident)?,
            late: mean(late, resident)?,
            loads: mean(late, loads)? - mean(early, loads)?,
        })
    }
}

/// Requests around the faults of a kind.
#[derive(Debug, Default)]
pub(super) struct Around {
    pub(super) faults: usize,
    /// Time of all faults.
    pub(super) time: Duration,
    /// Requests that began in a fault and had the right results.
    pub(super) right_during: usize,
    /// Requests with the right results that began soon after a fault.
    pub(super) right_after: usize,
    pub(super) failed: usize,
    /// Longest time of a request that a fault was in, and without the time of the faults.
    pub(super) slowest: Duration,
    pub(super) beyond: Duration,
}
