//! Calls that the disk has not answered in time. While there are any, callers wait less for further ones.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Time after which a caller no longer waits for the disk.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time after which a caller no longer waits for the disk, while it has not answered an earlier one.
const PATIENCE_WHILE_LATE: Duration = Duration::from_millis(100);

/// Number of calls that the disk has not answered in time, and that go on.
#[derive(Clone, Debug, Default)]
pub(super) struct LateCalls(Arc<AtomicUsize>);

/// A call that the disk has not answered in time, until this is dropped.
pub(super) struct Late(LateCalls);

impl LateCalls {
    pub(super) fn begin(&self) -> Late {
        self.0.fetch_add(1, SeqCst);
        Late(self.clone())
    }

    pub(super) fn any(&self) -> bool {
        self.0.load(SeqCst) > 0
    }

    pub(super) fn patience(&self) -> Duration {
        if self.any() { PATIENCE_WHILE_LATE } else { PATIENCE }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

/// Returns the error for calls that the disk did not answer within a time.
pub(super) fn did_not_answer(patience: Duration) -> io::Error {
    let message = format!("the disk did not answer within {patience:?}");
    io::Error::new(io::ErrorKind::TimedOut, message)
}
