//! Times commands together, on the device's own clock.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::backend::Profile;

/// What is to be told: from the start of the first of some commands to the end of the last.
pub(crate) type Tell = Box<dyn Fn(Duration) + Send + Sync>;

/// Times commands as a whole. Tells nothing if one of them failed or its times are not known.
pub(crate) struct Stopwatch {
    span: Mutex<Span>,
    tell: Tell,
}

struct Span {
    left: usize,
    /// Start and end, in nanoseconds; `None` once it cannot be told.
    times: Option<(u64, u64)>,
}

impl Stopwatch {
    /// For so many commands.
    pub(crate) fn new(commands: usize, tell: Tell) -> Self {
        Self { span: Mutex::new(Span { left: commands, times: Some((u64::MAX, 0)) }), tell }
    }

    /// One of the commands has ended.
    pub(crate) fn ended(&self, profile: Option<Profile>) {
        let mut span = self.span.lock().unwrap_or_else(PoisonError::into_inner);
        span.left = span.left.saturating_sub(1);
        span.times = span
            .times
            .zip(profile)
            .map(|((start, end), profile)| (start.min(profile.started), end.max(profile.ended)));
        let told = span.times.filter(|_| span.left == 0);
        drop(span);
        if let Some((start, end)) = told {
            (self.tell)(Duration::from_nanos(end.saturating_sub(start)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn profile(started: u64, ended: u64) -> Option<Profile> {
        Some(Profile { queued: 0, submitted: 0, started, ended })
    }

    fn told(profiles: [Option<Profile>; 2]) -> Vec<Duration> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let times = told.clone();
        let watch = Stopwatch::new(2, Box::new(move |time| times.lock().unwrap().push(time)));
        profiles.into_iter().for_each(|profile| watch.ended(profile));
        let times = told.lock().unwrap();
        times.clone()
    }

    #[test]
    fn commands_are_timed_from_the_first_start_to_the_last_end() {
        let expected = [Duration::from_nanos(50)];
        assert_eq!(told([profile(10, 20), profile(30, 60)]), expected);
        assert_eq!(told([profile(30, 60), profile(10, 20)]), expected);
    }

    #[test]
    fn a_command_without_times_leaves_nothing_to_tell() {
        assert!(told([profile(10, 20), None]).is_empty());
        assert!(told([None, profile(10, 20)]).is_empty());
    }
}
