//! Log messages about the remote cache while a test runs.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::Level;

use support::log_recorder::LogRecorder;

/// Exclusive use of the log, from [`begin`](Self::begin) until dropped. All tests that may log hold it, so that none
/// finds the messages of another.
pub(crate) struct LogCapture {
    recorder: LogRecorder,
    _alone: MutexGuard<'static, ()>,
}

impl LogCapture {
    pub(crate) fn begin() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static RECORDER: OnceLock<LogRecorder> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let recorder = RECORDER.get_or_init(LogRecorder::install);
        recorder.clear();
        Self { recorder: recorder.clone(), _alone: alone }
    }

    /// Returns the messages about the remote cache at a level so far.
    pub(crate) fn messages(&self, level: Level) -> Vec<String> {
        let mut messages = self.recorder.at(level);
        messages.retain(|text| text.contains("remote"));
        messages
    }
}
