//! Log messages about the remote cache while a test runs.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::Level;

use super::told::Told;

/// Exclusive use of the log, from [`begin`](Self::begin) until dropped.
pub struct Listening {
    told: Told,
    _alone: MutexGuard<'static, ()>,
}

impl Listening {
    pub fn begin() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static TOLD: OnceLock<Told> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let told = TOLD.get_or_init(Told::listen);
        told.clear();
        Self { told: told.clone(), _alone: alone }
    }

    /// Returns the messages about the remote cache at a level so far.
    pub fn told(&self, level: Level) -> Vec<String> {
        let mut told = self.told.at(level);
        told.retain(|text| text.contains("remote"));
        told
    }
}
