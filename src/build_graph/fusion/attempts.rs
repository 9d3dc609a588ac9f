//! Attempts to fuse launches that have not ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use slab::Slab;

use super::query::Key;
use crate::sync::lock;

/// Name of the fused kernel that an attempt is building, or is going to build.
pub(super) type KernelInBuild = Arc<Mutex<String>>;

/// Attempts that have not ended.
#[derive(Default)]
pub(super) struct Attempts(Mutex<Slab<Attempt>>);

struct Attempt {
    /// The device's position in the graph.
    device: usize,
    /// Key of the launches.
    launches: Key,
    kernel: KernelInBuild,
    /// Longest time after which a scope has stopped waiting for it, if one has.
    overdue_after: Option<Duration>,
}

/// Attempt that takes longer than scopes wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overdue {
    /// Name of the fused kernel that is being built.
    pub(crate) kernel: String,
    /// Time that the caller has waited at most.
    pub(crate) limit: Duration,
    /// Whether the caller has waited for it.
    pub(crate) has_waited: bool,
}

impl Attempts {
    pub(super) fn begin(&self, device: usize, launches: Key, kernel: KernelInBuild) -> usize {
        lock(&self.0).insert(Attempt { device, launches, kernel, overdue_after: None })
    }

    /// Whether scopes have stopped waiting for an attempt on a device.
    pub(super) fn has_overdue(&self, device: usize) -> bool {
        let attempts = lock(&self.0);
        let mut own = attempts.iter().filter(|(_, attempt)| attempt.device == device);
        own.any(|(_, attempt)| attempt.overdue_after.is_some())
    }

    pub(super) fn end(&self, index: usize) {
        let attempt = lock(&self.0).try_remove(index);
        drop(attempt);
    }

    /// Records that a scope stops waiting for the attempt after `limit`. Returns `None` if the attempt has ended.
    pub(super) fn set_overdue(&self, index: usize, limit: Duration) -> Option<Overdue> {
        let mut attempts = lock(&self.0);
        let attempt = attempts.get_mut(index)?;
        attempt.overdue_after = attempt.overdue_after.max(Some(limit));
        Some(attempt.overdue(limit, true))
    }

    /// Returns an attempt to fuse these launches for which a scope has stopped waiting after `limit` or longer.
    pub(super) fn find_overdue(&self, launches: &Key, limit: Duration) -> Option<Overdue> {
        let attempts = lock(&self.0);
        let mut overdue = attempts
            .iter()
            .filter(|(_, attempt)| attempt.overdue_after.is_some_and(|waited| waited >= limit));
        let found = overdue.find(|(_, attempt)| attempt.launches == *launches);
        found.map(|(_, attempt)| attempt.overdue(limit, false))
    }
}

impl Attempt {
    fn overdue(&self, limit: Duration, has_waited: bool) -> Overdue {
        Overdue { kernel: lock(&self.kernel).clone(), limit, has_waited }
    }
}

#[cfg(test)]
mod tests {
    use super::super::query::Query;
    use super::*;
    use kiln_compiler::fusion::Trust;

    fn launches(device: usize) -> Key {
        Query::new(device, Trust::ProofOnly, false, 0).key
    }

    /// Limits of scopes.
    const SHORT: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(120);

    #[test]
    fn only_attempts_that_a_scope_stopped_waiting_for_are_overdue() {
        let (attempts, kernel) = (Attempts::default(), KernelInBuild::default());
        let index = attempts.begin(0, launches(0), kernel.clone());
        assert_eq!(attempts.find_overdue(&launches(0), SHORT), None);
        "fused_scale_offset".clone_into(&mut lock(&kernel));
        let (kernel, limit) = ("fused_scale_offset".to_owned(), SHORT);
        let overdue = Overdue { kernel, limit, has_waited: true };
        assert!(!attempts.has_overdue(0));
        assert_eq!(attempts.set_overdue(index, SHORT), Some(overdue.clone()));
        assert_eq!([0, 1].map(|device| attempts.has_overdue(device)), [true, false]);
        let found = Overdue { has_waited: false, ..overdue };
        assert_eq!(attempts.find_overdue(&launches(0), SHORT), Some(found.clone()));
        assert_eq!(attempts.find_overdue(&launches(1), SHORT), None, "other launches");
        assert_eq!(attempts.find_overdue(&launches(0), LONG), None, "a scope that waits longer");
        assert!(attempts.set_overdue(index, LONG).is_some());
        assert_eq!(
            attempts.find_overdue(&launches(0), LONG),
            Some(Overdue { limit: LONG, ..found })
        );
    }

    #[test]
    fn an_attempt_that_has_ended_is_not_overdue() {
        let attempts = Attempts::default();
        let [first, second] =
            [(); 2].map(|()| attempts.begin(0, launches(0), KernelInBuild::default()));
        assert!(attempts.set_overdue(second, SHORT).is_some());
        attempts.end(second);
        assert_eq!(attempts.find_overdue(&launches(0), SHORT), None, "the other one is in time");
        assert_eq!(attempts.set_overdue(second, SHORT), None);
        attempts.end(first);
        assert_eq!(attempts.set_overdue(first, SHORT), None);
    }
}
