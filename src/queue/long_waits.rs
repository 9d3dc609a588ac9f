//! Calls that wait for commands, to be reported if they wait for long.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slab::Slab;

use super::record::Record;
use crate::sync::lock;

/// Duration after which a wait is logged.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(5);

/// Waits of a runtime that are logged if they last long.
#[derive(Default)]
pub(crate) struct Waits(Mutex<Slab<LongWait>>);

struct LongWait {
    /// Name of the waiting call, for messages.
    what: &'static str,
    record: Arc<Record>,
    since: Instant,
    is_logged: bool,
}

/// Registration of one wait, until it is dropped.
pub(crate) struct WaitRegistration {
    waits: Arc<Waits>,
    key: usize,
}

impl Drop for WaitRegistration {
    fn drop(&mut self) {
        let wait = lock(&self.waits.0).try_remove(self.key);
        drop(wait);
    }
}

impl Waits {
    /// Registers that `what` waits for the command.
    pub(crate) fn register(
        self: &Arc<Self>,
        what: &'static str,
        record: &Arc<Record>,
    ) -> WaitRegistration {
        let (record, since) = (record.clone(), Instant::now());
        let key = lock(&self.0).insert(LongWait { what, record, since, is_logged: false });
        WaitRegistration { waits: self.clone(), key }
    }

    /// Returns the waits that have lasted long and were not returned before: the name of each call, and the command that
    /// it waits for.
    pub(super) fn take_long(&self, now: Instant) -> Vec<(&'static str, Arc<Record>)> {
        let mut long = Vec::new();
        for (_, wait) in &mut *lock(&self.0) {
            if !wait.is_logged && now.saturating_duration_since(wait.since) >= LONG_WAIT {
                wait.is_logged = true;
                long.push((wait.what, wait.record.clone()));
            }
        }
        long
    }
}
