//! The shared outcome of an in-flight build, and the tasks that wait for it.

use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::error::catch_and_log;

/// The shared outcome of an in-flight build, or of a request that takes a while. It only distributes the
/// outcome: the build does not depend on being polled.
///
/// This is not a `futures::future::Shared`, which wakes tasks under the lock that its pollers take. A compile
/// worker that holds that lock is then often preempted by the very thread that it woke, and an executor blocks
/// until the worker gets its processor back. Here, no task is woken under the lock.
pub(crate) struct SharedOutcome<T> {
    shared: Arc<Shared<T>>,
    /// Waiter slot of this handle, once it has been polled: the key of its waker in `State::wakers`.
    slot: Option<u64>,
}

/// Obligation to complete a shared outcome.
pub(crate) struct Promise<T>(Arc<Shared<T>>);

type Shared<T> = Mutex<State<T>>;

struct State<T> {
    /// Number of handles. The last one that is dropped also drops the outcome, so that this state does not keep
    /// a program in use.
    handles: usize,
    outcome: Option<T>,
    next_slot: u64,
    wakers: HashMap<u64, Waker>,
}

/// Creates a shared outcome, and the obligation to complete it.
pub(crate) fn shared_outcome<T>() -> (SharedOutcome<T>, Promise<T>) {
    let state = State { handles: 1, outcome: None, next_slot: 0, wakers: HashMap::new() };
    let shared = Arc::new(Mutex::new(state));
    (SharedOutcome { shared: shared.clone(), slot: None }, Promise(shared))
}

/// Creates a shared outcome that is known already.
pub(crate) fn completed<T>(outcome: T) -> SharedOutcome<T> {
    let (shared, promise) = shared_outcome();
    promise.complete(outcome);
    shared
}

/// Locks the state. No code outside this file runs while the lock is held, so it is held for a few
/// instructions, and a panic leaves no partial change.
fn lock<T>(shared: &Shared<T>) -> MutexGuard<'_, State<T>> {
    crate::sync::lock(shared)
}

impl<T> Promise<T> {
    /// Whether there is a handle of the outcome.
    pub(super) fn has_handles(&self) -> bool {
        lock(&self.0).handles > 0
    }

    /// Stores the outcome and wakes all waiters.
    pub(crate) fn complete(self, outcome: T) {
        let mut state = lock(&self.0);
        let wakers = mem::take(&mut state.wakers);
        let unwanted =
            if state.handles > 0 { state.outcome.replace(outcome) } else { Some(outcome) };
        drop(state);
        drop(unwanted);
        for waker in wakers.into_values() {
            // A waker that panics must not keep the others from being woken.
            catch_and_log("a waker", || waker.wake());
        }
    }
}

impl<T: Clone> SharedOutcome<T> {
    /// Returns the outcome, if it is known.
    pub(crate) fn peek(&self) -> Option<T> {
        lock(&self.shared).outcome.clone()
    }
}

impl<T: Clone> Future for SharedOutcome<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Cloned before the lock is taken, because wakers run code from outside this crate.
        let waker = context.waker().clone();
        let Self { shared, slot } = &mut *self;
        let mut state = lock(shared);
        if let Some(outcome) = &state.outcome {
            return Poll::Ready(outcome.clone());
        }
        let slot = *slot.get_or_insert(state.next_slot);
        state.next_slot = state.next_slot.max(slot + 1);
        let replaced = state.wakers.insert(slot, waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

/// Creates another handle of the same outcome.
impl<T> Clone for SharedOutcome<T> {
    fn clone(&self) -> Self {
        lock(&self.shared).handles += 1;
        Self { shared: self.shared.clone(), slot: None }
    }
}

impl<T> Drop for SharedOutcome<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.handles -= 1;
        let waker = self.slot.and_then(|slot| state.wakers.remove(&slot));
        let outcome = if state.handles == 0 { state.outcome.take() } else { None };
        drop(state);
        // A panic here during another panic would abort the process.
        catch_and_log("a waker that was dropped", || drop(waker));
        drop(outcome);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    use futures::FutureExt;

    use super::*;
    use crate::build_graph::outcome::Outcome;
    use crate::error::{Error, ErrorKind};

    /// A waker that counts its wakes and polls the outcome each time, as an executor may do at once.
    struct Repoll(SharedOutcome<Outcome>, AtomicUsize);

    impl Wake for Repoll {
        fn wake(self: Arc<Self>) {
            assert!(self.0.clone().now_or_never().is_some());
            self.1.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_waker_may_poll_while_it_is_woken() {
        let (handle, promise) = shared_outcome();
        let waker = Arc::new(Repoll(handle.clone(), AtomicUsize::new(0)));
        let poll = |handle: &mut SharedOutcome<Outcome>| {
            handle.poll_unpin(&mut Context::from_waker(&waker.clone().into()))
        };
        let (mut waiting, mut dropped) = (handle.clone(), handle.clone());
        assert!(poll(&mut waiting).is_pending());
        assert!(poll(&mut waiting).is_pending());
        assert!(poll(&mut dropped).is_pending());
        drop(dropped);
        promise.complete(Err(Error::new(ErrorKind::DeviceLost, "it is gone")));
        assert_eq!(waker.1.load(SeqCst), 1);
        assert!(poll(&mut waiting).is_ready());
        assert!(poll(&mut waiting).is_ready());
    }

    #[test]
    fn panicking_wakers_do_not_affect_other_waiters() {
        struct Panics(AtomicUsize);

        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, SeqCst);
                panic!("a waker panics");
            }
        }

        let (handle, promise) = shared_outcome::<Outcome>();
        let wakers = [(); 3].map(|()| Arc::new(Panics(AtomicUsize::new(0))));
        let mut waiting = [(); 3].map(|()| handle.clone());
        for (handle, waker) in waiting.iter_mut().zip(&wakers) {
            let waker = waker.clone().into();
            assert!(handle.poll_unpin(&mut Context::from_waker(&waker)).is_pending());
        }
        promise.complete(Err(Error::new(ErrorKind::DeviceLost, "it is gone")));
        assert!(wakers.iter().all(|waker| waker.0.load(SeqCst) == 1));
    }

    #[test]
    fn the_outcome_is_dropped_with_the_last_handle() {
        let (handle, promise) = shared_outcome::<Outcome>();
        let other = handle.clone();
        let shared = promise.0.clone();
        drop(handle);
        promise.complete(Err(Error::new(ErrorKind::DeviceLost, "it is gone")));
        assert!(other.peek().is_some());
        drop(other);
        assert!(crate::sync::lock(&shared).outcome.is_none());
    }
}
