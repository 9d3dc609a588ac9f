//! Several operations that are one command: replays of graphs.

use std::any::Any;
use std::sync::Arc;

use super::{NeverReported, TrackedQueue};
use crate::backend::{
    CommandList, NativeEvent, Notify, Operation, OperationSource, Profile, Progress,
};
use crate::error::{Error, Result};
use crate::queue::node::NodeId;

/// Event of several operations of one native queue, which run one after another.
struct SequenceEvent {
    /// Events of the operations before the last one, as far as the backend made any.
    parts: Vec<Arc<dyn NativeEvent>>,
    last: Arc<dyn NativeEvent>,
    /// Error of an operation that could not be enqueued. The operations behind it were not, either.
    failure: Option<Error>,
}

impl NativeEvent for SequenceEvent {
    fn progress(&self) -> Progress {
        let last = self.last.progress();
        if matches!(last, Progress::Pending) {
            return last;
        }
        let parts = self.parts.iter().map(|part| part.progress());
        if let Some(failed) = parts.into_iter().find(|part| !matches!(part, Progress::Complete)) {
            return failed;
        }
        match (&self.failure, last) {
            (Some(error), Progress::Complete) => Progress::Failed(error.clone()),
            (_, last) => last,
        }
    }

    fn poll_ended(&self) -> Option<bool> {
        self.last.poll_ended()
    }

    fn profile(&self) -> Option<Profile> {
        let last = self.last.profile()?;
        let first = self.parts.first().map_or(Some(last), |part| part.profile())?;
        Some(Profile { ended: last.ended, ..first })
    }

    fn notify(&self, notify: Notify) -> Result<()> {
        self.last.notify(notify)
    }
}

/// Returns the driver's event at the end of a sequence, and any other event as it is.
pub(super) fn last_of(event: Arc<dyn NativeEvent>) -> Arc<dyn NativeEvent> {
    match (&*event as &dyn Any).downcast_ref::<SequenceEvent>() {
        Some(sequence) => sequence.last.clone(),
        None => event,
    }
}

/// Events that are needed of an operation of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    /// Whether the caller needs an event of the operation.
    pub(crate) event: bool,
    /// Whether the operation is the last one, so that its event is that of the sequence.
    pub(crate) end: bool,
}

/// Enqueues an operation of a sequence, and returns its event if there is one.
type Enqueue<'a> = dyn FnMut(&Operation<'_>, Needs) -> Result<Option<Arc<dyn NativeEvent>>> + 'a;

impl TrackedQueue {
    /// Enqueues the operations of one command, and returns its position. `for_each` calls its argument with each
    /// operation in order, and the events that it needs.
    ///
    /// If an operation cannot be enqueued behind others, the command has a position all the same, and fails when
    /// these have ended.
    ///
    /// # Safety
    ///
    /// As for [`backend::NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue), for each operation.
    pub(crate) unsafe fn enqueue_all(
        &mut self,
        id: NodeId,
        wait: &[Arc<dyn NativeEvent>],
        for_each: impl FnOnce(&mut Enqueue<'_>) -> Result<()>,
    ) -> Result<u64> {
        if !wait.is_empty() {
            self.report_all()?;
        }
        let (mut parts, mut last, mut enqueued) = (Vec::new(), None, 0);
        let outcome = for_each(&mut |operation, needs| {
            // Only the first operation has to wait for others: the native queue is in order.
            let wait = if enqueued == 0 { wait } else { &[] };
            let event = if needs.end || needs.event || !wait.is_empty() {
                // SAFETY: the caller upholds the contract of the callee.
                Some(unsafe { self.native.enqueue(operation, wait)? })
            } else {
                // SAFETY: the caller upholds the contract of the callee.
                unsafe { self.native.enqueue_without_event(operation)? }
            };
            enqueued += 1;
            match needs.end {
                true => last.clone_from(&event),
                false => parts.extend(event.clone()),
            }
            Ok(event)
        });
        let failure = match outcome {
            Err(error) if enqueued == 0 => return Err(error),
            outcome => outcome.err(),
        };
        let last = last.unwrap_or_else(|| {
            // SAFETY: a marker accesses no memory.
            let marker = unsafe { self.native.enqueue(&Operation::Marker, &[]) };
            marker.unwrap_or_else(|error| Arc::new(NeverReported(error)))
        });
        let event = match (&failure, parts.is_empty()) {
            (None, true) => last,
            _ => Arc::new(SequenceEvent { parts, last, failure }),
        };
        self.push(id, Some(event), enqueued);
        Ok(self.end() - 1)
    }
}

impl TrackedQueue {
    /// Returns whether the native queue executes command lists.
    pub(crate) fn has_command_lists(&self) -> bool {
        self.native.has_command_lists()
    }

    /// Records a command list.
    ///
    /// # Safety
    ///
    /// As for [`backend::NativeQueue::record`](crate::backend::NativeQueue::record).
    pub(crate) unsafe fn record(
        &mut self,
        operations: OperationSource<'_>,
    ) -> Result<Arc<dyn CommandList>> {
        // SAFETY: the caller upholds the contract of the callee.
        unsafe { self.native.record(operations) }
    }

    /// Executes a command list as one command. Returns the command's position and its event.
    ///
    /// # Safety
    ///
    /// As for [`backend::NativeQueue::execute`](crate::backend::NativeQueue::execute).
    pub(crate) unsafe fn execute(
        &mut self,
        id: NodeId,
        list: &Arc<dyn CommandList>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<(u64, Arc<dyn NativeEvent>)> {
        if !wait.is_empty() {
            self.report_all()?;
        }
        // SAFETY: the caller upholds the contract of the callee.
        let event = unsafe { self.native.execute(list, wait) }?;
        self.push(id, Some(event.clone()), 1);
        Ok((self.end() - 1, event))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::args::region::NoMemory;
    use crate::backend;
    use crate::error::ErrorKind;
    use crate::queue::dag::{Dag, NextList};
    use crate::queue::hazard::Uses;

    /// Operation whose progress is given.
    struct Given(fn() -> Progress);

    impl NativeEvent for Given {
        fn progress(&self) -> Progress {
            (self.0)()
        }

        fn profile(&self) -> Option<Profile> {
            None
        }

        fn notify(&self, _: Notify) -> Result<()> {
            Ok(())
        }
    }

    fn failed() -> Progress {
        Progress::Failed(Error::new(ErrorKind::Driver, "the second operation failed"))
    }

    /// Driver with an event for each operation, of which it rejects those from a number on.
    struct Driver {
        enqueued: Arc<AtomicUsize>,
        accepted: usize,
        progress: fn(usize) -> fn() -> Progress,
    }

    impl backend::NativeQueue for Driver {
        unsafe fn enqueue(
            &mut self,
            operation: &Operation<'_>,
            _: &[Arc<dyn NativeEvent>],
        ) -> Result<Arc<dyn NativeEvent>> {
            let at = self.enqueued.fetch_add(1, SeqCst);
            let is_marker = matches!(operation, Operation::Marker);
            match at < self.accepted || is_marker {
                true => Ok(Arc::new(Given((self.progress)(at)))),
                false => Err(Error::new(ErrorKind::OutOfResources, "no room for an operation")),
            }
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// Enqueues four operations as one command, and returns the result of the command if it has ended.
    fn outcome(accepted: usize, progress: fn(usize) -> fn() -> Progress) -> Option<Result<()>> {
        let driver = Driver { enqueued: Arc::default(), accepted, progress };
        let mut native_queue = TrackedQueue::new(Box::new(driver));
        let mut dag = Dag::new(|(): &()| Uses::new());
        let id = dag.add((), &[] as &[Uses], [], 0, None, &mut NextList::new());
        let fill = Operation::Fill { memory: &NoMemory, offset: 0, bytes: 0, pattern: &[0] };
        let for_each = |run: &mut Enqueue<'_>| {
            (0..4).try_for_each(|at| run(&fill, Needs { event: false, end: at == 3 }).map(drop))
        };
        // SAFETY: the operations access no memory.
        match unsafe { native_queue.enqueue_all(id, &[], for_each) } {
            Ok(_) => native_queue.pop_ended(|_| false).map(|departed| departed.result),
            Err(error) => Some(Err(error)),
        }
    }

    #[test]
    fn a_sequence_ends_with_its_last_operation() {
        let complete: fn(usize) -> fn() -> Progress = |_| || Progress::Complete;
        assert!(matches!(outcome(4, complete), Some(Ok(()))));
        let last_pending: fn(usize) -> fn() -> Progress =
            |at| if at == 3 { || Progress::Pending } else { || Progress::Complete };
        assert!(outcome(4, last_pending).is_none());
    }

    #[test]
    fn a_sequence_fails_with_any_of_its_operations() {
        let second_failed: fn(usize) -> fn() -> Progress =
            |at| if at == 1 { failed } else { || Progress::Complete };
        let error = outcome(4, second_failed).expect("it has ended").expect_err("one failed");
        assert!(error.to_string().contains("the second operation failed"), "{error}");
    }

    #[test]
    fn an_operation_that_is_rejected_fails_the_sequence_once_the_others_have_ended() {
        let complete: fn(usize) -> fn() -> Progress = |_| || Progress::Complete;
        for accepted in [0, 2] {
            let error = outcome(accepted, complete).expect("it has ended").expect_err("it fails");
            assert_eq!(error.kind(), ErrorKind::OutOfResources);
        }
        let marker_pending: fn(usize) -> fn() -> Progress =
            |at| if at == 3 { || Progress::Pending } else { || Progress::Complete };
        assert!(outcome(2, marker_pending).is_none(), "two operations may still run");
    }
}
