//! Warnings that users must see: through [`tracing`], and on standard error if the application has no
//! subscriber.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;

/// Name of the environment variable that, set to `off`, keeps warnings from standard error.
pub(crate) const VARIABLE: &str = "KILN_WARNINGS";

/// Maximum number of different warnings that a process writes.
const MAX_WARNINGS: usize = 32;

/// Reports a warning, once per process.
pub(crate) fn warn(message: &str) {
    if is_new(message) {
        tracing::warn!("{message}");
        write(message);
    }
}

/// Writes a warning that `tracing` has already received to standard error. Nothing is written if the same
/// warning was reported before, the environment forbids it, or the application has set a subscriber, which
/// shows or hides warnings itself.
pub(crate) fn show(message: &str) {
    if is_new(message) {
        write(message);
    }
}

/// Writes a report to standard error like [`show`], even if the same was reported before. The caller limits how
/// often that happens.
pub(crate) fn show_again(message: &str) {
    write(message);
}

/// Writes to standard error, like [`show_again`], that the cause of a warning is gone.
pub(crate) fn show_end(message: &str) {
    write_line(&format!("kiln: {message}\n"));
}

/// Warnings that one cause may give many times: the first one is due at once, and the next a minute later.
#[derive(Debug)]
pub(crate) struct RepeatedWarning(Mutex<Repetitions>);

#[derive(Debug)]
struct Repetitions {
    last: Option<Instant>,
    /// Number of occurrences since the last warning.
    held_back: u64,
}

/// Time between two warnings of one cause.
const REPEAT_AFTER: Duration = Duration::from_secs(60);

impl RepeatedWarning {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Repetitions { last: None, held_back: 0 }))
    }

    /// Counts an occurrence. Returns the number of occurrences since the last warning if a warning is due.
    pub(crate) fn due(&self) -> Option<u64> {
        self.due_at(Instant::now())
    }

    fn due_at(&self, now: Instant) -> Option<u64> {
        let mut repetitions = lock(&self.0);
        repetitions.held_back += 1;
        let last = repetitions.last;
        if last.is_some_and(|last| now.saturating_duration_since(last) < REPEAT_AFTER) {
            return None;
        }
        repetitions.last = Some(now);
        Some(std::mem::take(&mut repetitions.held_back))
    }
}

fn write(message: &str) {
    write_line(&format!("kiln: warning: {message}\n"));
}

fn write_line(line: &str) {
    let is_off = std::env::var_os(VARIABLE).is_some_and(|value| value == "off");
    if !is_off && !tracing::dispatcher::has_been_set() {
        // If standard error has no reader, there is no other place to report to.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

fn is_new(message: &str) -> bool {
    static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut seen = lock(&SEEN);
    let seen = seen.get_or_insert_default();
    seen.len() < MAX_WARNINGS && seen.insert(message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_warnings_are_due_once_a_minute_with_their_number() {
        let (warning, start) = (RepeatedWarning::new(), Instant::now());
        let due = |seconds| warning.due_at(start + Duration::from_secs(seconds));
        let expected =
            [(0, Some(1)), (1, None), (59, None), (60, Some(3)), (61, None), (500, Some(2))];
        for (seconds, expected) in expected {
            assert_eq!(due(seconds), expected, "after {seconds} s");
        }
    }
}
