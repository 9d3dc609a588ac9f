//! Background work, and waiting for its end.

use std::sync::{Mutex, MutexGuard};

use async_channel::{Receiver, Sender};

use crate::sync::lock;

/// Tracker of background work, in batches. Waiting closes a batch, so that it never waits for work that is
/// begun later.
#[derive(Debug, Default)]
pub(crate) struct TaskTracker(Mutex<Batches>);

#[derive(Debug, Default)]
struct Batches {
    open: Option<(Sender<()>, Receiver<()>)>,
    /// Receivers of closed batches. Each fails to receive once all work of its batch has ended.
    closed: Vec<Receiver<()>>,
}

/// Work that is in progress until this value and its clones are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Pending(
    #[expect(dead_code, reason = "dropping it marks the end of the work")] Sender<()>,
);

impl TaskTracker {
    fn lock(&self) -> MutexGuard<'_, Batches> {
        lock(&self.0)
    }

    pub(crate) fn begin(&self) -> Pending {
        let mut batches = self.lock();
        let (sender, _) = batches.open.get_or_insert_with(|| async_channel::bounded(1));
        Pending(sender.clone())
    }

    /// Completes once all work that was begun before this call has ended.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut batches = self.lock();
        if let Some((_, ended)) = batches.open.take() {
            batches.closed.push(ended);
        }
        batches.closed.retain(|ended| !ended.is_closed());
        let waited_for = batches.closed.clone();
        drop(batches);
        async move {
            for ended in waited_for {
                // Nothing is ever sent: `recv` fails when the last sender is gone.
                let _ = ended.recv().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_tracker_without_tasks_is_settled() {
        assert!(TaskTracker::default().settled().now_or_never().is_some());
    }

    #[test]
    fn settled_waits_only_for_tasks_that_began_earlier() {
        let tracker = TaskTracker::default();
        let (first, second) = (tracker.begin(), tracker.begin());
        let mut one = Box::pin(tracker.settled());
        let later = tracker.begin();
        let mut two = Box::pin(tracker.settled());
        drop(first);
        assert!(one.as_mut().now_or_never().is_none());
        drop(second);
        assert!(one.as_mut().now_or_never().is_some());
        assert!(two.as_mut().now_or_never().is_none());
        drop(later);
        assert!(two.now_or_never().is_some());
        assert!(tracker.settled().now_or_never().is_some());
    }
}
