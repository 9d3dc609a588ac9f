//! Reports of the store's disk: outages, recoveries, and entries that cannot be used.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::digest::BuildKey;
use crate::process::warning::{self, RepeatedWarning};
use crate::sync::lock;

/// Number of outages that are reported at once. Later ones are reported at intervals: a disk that is almost full
/// may fail and recover with every program.
const PROMPT_REPORTS: u32 = 8;

/// Time between the reports of later outages.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Kind of access to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

impl Access {
    fn in_words(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "written",
        }
    }
}

/// State of a store's disk, as far as its failures show it.
#[derive(Debug)]
pub(super) struct Health {
    outages: Outages,
    damaged: RepeatedWarning,
    refused: RepeatedWarning,
}

/// Outages of the disk.
#[derive(Debug, Default)]
struct Outages {
    /// Whether an outage lasts.
    is_out: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The outage that lasts.
    current: Option<Outage>,
    /// Number of outages that were reported, and the time of the last report.
    reports: u32,
    reported: Option<Instant>,
}

#[derive(Debug)]
struct Outage {
    /// Kind of access that failed first. The outage ends when such an access succeeds.
    access: Access,
    since: Instant,
    failures: u64,
    is_reported: bool,
}

/// End of an outage that was reported.
#[derive(Debug, PartialEq, Eq)]
struct Recovery {
    lasted: Duration,
    failures: u64,
}

impl Outages {
    /// Notes a failure. If its outage is to be reported now, returns the number of reports with this one.
    fn failed(&self, access: Access, now: Instant) -> Option<u32> {
        let mut state = lock(&self.state);
        self.is_out.store(true, SeqCst);
        let State { current, reports, reported } = &mut *state;
        let outage =
            current.get_or_insert(Outage { access, since: now, failures: 0, is_reported: false });
        outage.failures += 1;
        let is_long_ago =
            |reported: Instant| now.saturating_duration_since(reported) >= REPORT_EVERY;
        if outage.is_reported || *reports >= PROMPT_REPORTS && !reported.is_none_or(is_long_ago) {
            return None;
        }
        outage.is_reported = true;
        *reports += 1;
        *reported = Some(now);
        Some(*reports)
    }

    /// Notes a success. Returns the outage that ends with it, if that was reported.
    fn succeeded(&self, access: Access, now: Instant) -> Option<Recovery> {
        // Every lookup and every put comes here.
        if !self.is_out.load(SeqCst) {
            return None;
        }
        let mut state = lock(&self.state);
        let outage = state.current.take_if(|outage| outage.access == access)?;
        self.is_out.store(false, SeqCst);
        let Outage { since, failures, is_reported, .. } = outage;
        let lasted = now.saturating_duration_since(since);
        is_reported.then_some(Recovery { lasted, failures })
    }
}

impl Health {
    pub(super) fn new() -> Self {
        Self {
            outages: Outages::default(),
            damaged: RepeatedWarning::new(),
            refused: RepeatedWarning::new(),
        }
    }

    /// Reports a failure, as a warning if an outage begins with it. Builds go on without the disk.
    pub(super) fn failed(&self, access: Access, root: &Path, error: &io::Error) {
        let (what, root) = (access.in_words(), root.display());
        let Some(reports) = self.outages.failed(access, Instant::now()) else {
            tracing::debug!(%error, %root, "the cache directory cannot be {what}");
            return;
        };
        tracing::warn!(
            %error,
            %root,
            "the cache directory cannot be {what}; programs are built without it"
        );
        let message = format!(
            "the cache directory `{root}` cannot be {what}: {error}; programs are built without it"
        );
        // Several runtimes of a process may have stores in one directory.
        if reports == 1 { warning::show(&message) } else { warning::show_again(&message) }
    }

    /// Reports the end of an outage, if a success ends one.
    pub(super) fn succeeded(&self, access: Access, root: &Path) {
        let Some(Recovery { lasted, failures }) = self.outages.succeeded(access, Instant::now())
        else {
            return;
        };
        let (what, root, seconds) = (access.in_words(), root.display(), lasted.as_secs());
        tracing::info!(%root, failures, seconds, "the cache directory can be {what} again");
        warning::show_end(&format!(
            "the cache directory `{root}` can be {what} again, after {seconds} s"
        ));
    }

    /// Reports an entry that is damaged or of another version, so that its program is built again.
    pub(super) fn found_damaged(&self, root: &Path, key: &BuildKey, reason: &str) {
        let root = root.display();
        match self.damaged.due() {
            Some(count) => tracing::warn!(
                %key, %reason, %root, count,
                "entries of the cache directory are not used, and their programs are built again"
            ),
            None => tracing::debug!(%key, %reason, %root, "a stored entry is not used"),
        }
    }

    /// Reports an entry that the driver does not load, so that its program is built again.
    pub(super) fn was_refused(&self, root: &Path, key: &BuildKey, reason: &str) {
        let root = root.display();
        match self.refused.due() {
            Some(count) => tracing::warn!(
                %key, %reason, %root, count,
                "the driver rejected stored programs, which are built again"
            ),
            None => tracing::debug!(%key, %reason, %root, "the driver rejected a stored program"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_and_its_end_are_reported_once_each() {
        let (outages, start) = (Outages::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outages.succeeded(Access::Write, after(0)), None);
        for outage in 0..3 {
            let begin = 100 * outage;
            assert_eq!(outages.failed(Access::Write, after(begin)), Some(outage as u32 + 1));
            assert_eq!(outages.failed(Access::Read, after(begin + 1)), None);
            // A full disk can be read.
            assert_eq!(outages.succeeded(Access::Read, after(begin + 2)), None);
            let recovery = Recovery { lasted: Duration::from_secs(7), failures: 2 };
            assert_eq!(outages.succeeded(Access::Write, after(begin + 7)), Some(recovery));
            assert_eq!(outages.succeeded(Access::Write, after(begin + 8)), None);
        }
    }

    #[test]
    fn a_disk_that_fails_and_recovers_all_the_time_is_reported_at_intervals() {
        let (outages, start) = (Outages::default(), Instant::now());
        let mut reported = [0, 0];
        for tenth in 0..6_000 {
            let now = start + Duration::from_millis(100 * tenth);
            reported[0] += u32::from(outages.failed(Access::Read, now).is_some());
            reported[1] += u32::from(outages.succeeded(Access::Read, now).is_some());
        }
        assert_eq!(reported, [PROMPT_REPORTS + 9; 2], "ten minutes");
    }
}
