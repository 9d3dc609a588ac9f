//! Numbers of checked launches.

use super::launch_work::LaunchWork;
use crate::counters::Counters;

/// Numbers of checked launches, by how they run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CheckCounts {
    proven: u64,
    guarded: u64,
}

impl CheckCounts {
    /// Counts launches of which it is decided how they run.
    pub(super) fn of<'a>(launches: impl IntoIterator<Item = &'a LaunchWork>) -> Self {
        let mut counts = Self::default();
        for launch in launches.into_iter().filter(|launch| launch.is_checked()) {
            match launch.is_guarded() {
                true => counts.guarded += 1,
                false => counts.proven += 1,
            }
        }
        counts
    }

    /// Adds the numbers to the statistics: once each time that the launches are submitted.
    pub(super) fn add_to(self, counters: &Counters) {
        counters.launches.proven.add(self.proven);
        counters.launches.guarded.add(self.guarded);
    }
}
