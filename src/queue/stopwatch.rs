//! Timing of several commands together, by the device's own clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::backend::Profile;
use crate::sync::lock;

/// Callback that receives the device time of the timed commands; `None` if it is unknown.
pub(crate) type Report = Box<dyn Fn(Option<Duration>) + Send + Sync>;

/// Stopwatch for several commands as a whole. Reports once, at the end of the last command. The time is unknown if
/// one of the commands failed, was not run or has no times.
pub(crate) struct Stopwatch {
    measurement: Mutex<Measurement>,
    report: Report,
}

/// Times of the commands that have ended.
struct Measurement {
    /// Number of commands that have not ended.
    remaining: usize,
    /// Starts and ends in nanoseconds; `None` once the time of a command is missing.
    spans: Option<Spans>,
    is_reported: bool,
}

type Spans = SmallVec<[(u64, u64); 8]>;

/// Longest gap between two commands, in nanoseconds, that counts as the cost of starting another
/// command. Time beyond it was spent waiting for other commands, which would have been necessary in any
/// case.
const MAX_GAP: u64 = 20_000;

impl Stopwatch {
    /// Creates a stopwatch for this number of commands.
    pub(crate) fn new(commands: usize, report: Report) -> Self {
        let spans = Some(Spans::new());
        let measurement = Measurement { remaining: commands, spans, is_reported: false };
        Self { measurement: Mutex::new(measurement), report }
    }

    /// Records the end of one of the commands.
    pub(crate) fn ended(&self, profile: Option<Profile>) {
        let mut measurement = lock(&self.measurement);
        measurement.remaining = measurement.remaining.saturating_sub(1);
        match (&mut measurement.spans, profile) {
            (Some(spans), Some(profile)) => spans.push((profile.started, profile.ended)),
            (spans, _) => *spans = None,
        }
        if measurement.remaining > 0 || std::mem::replace(&mut measurement.is_reported, true) {
            return;
        }
        let spans = measurement.spans.take();
        drop(measurement);
        (self.report)(spans.map(|spans| Duration::from_nanos(elapsed_nanos(spans))));
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        let measurement = self.measurement.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !measurement.is_reported {
            (self.report)(None);
        }
    }
}

/// Returns the time in nanoseconds in which a command ran, including gaps of up to [`MAX_GAP`].
fn elapsed_nanos(mut spans: Spans) -> u64 {
    spans.sort_unstable();
    let mut latest = spans.first().map_or(0, |&(start, _)| start);
    let mut elapsed = 0_u64;
    for (start, end) in spans {
        let gap = start.saturating_sub(latest).min(MAX_GAP);
        elapsed = elapsed.saturating_add(gap).saturating_add(end.saturating_sub(start.max(latest)));
        latest = latest.max(end);
    }
    elapsed
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn profile(started: u64, ended: u64) -> Option<Profile> {
        Some(Profile { queued: 0, submitted: 0, started, ended })
    }

    fn measured(profiles: [Option<Profile>; 2]) -> Vec<Option<Duration>> {
        let measured = Arc::new(Mutex::new(Vec::new()));
        let times = measured.clone();
        let watch = Stopwatch::new(2, Box::new(move |time| times.lock().unwrap().push(time)));
        profiles.into_iter().for_each(|profile| watch.ended(profile));
        let times = measured.lock().unwrap();
        times.clone()
    }

    #[test]
    fn commands_are_timed_from_the_first_start_to_the_last_end() {
        let expected = [Some(Duration::from_nanos(50))];
        assert_eq!(measured([profile(10, 20), profile(30, 60)]), expected);
        assert_eq!(measured([profile(30, 60), profile(10, 20)]), expected);
        assert_eq!(measured([profile(10, 50), profile(30, 60)]), expected);
    }

    #[test]
    fn time_of_other_commands_in_between_is_not_counted() {
        let between = MAX_GAP * 1000;
        let expected = [Some(Duration::from_nanos(10 + MAX_GAP + 30))];
        assert_eq!(measured([profile(10, 20), profile(20 + between, 50 + between)]), expected);
    }

    #[test]
    fn the_time_is_unknown_if_a_command_has_none() {
        assert_eq!(measured([profile(10, 20), None]), [None]);
        assert_eq!(measured([None, profile(10, 20)]), [None]);
    }

    #[test]
    fn the_time_is_unknown_if_a_command_does_not_run() {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let times = reports.clone();
        let watch = Stopwatch::new(2, Box::new(move |time| times.lock().unwrap().push(time)));
        watch.ended(profile(10, 20));
        drop(watch);
        assert_eq!(*reports.lock().unwrap(), [None]);
    }
}
