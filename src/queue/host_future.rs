//! Host futures of commands. Each knows the commands that it waits for.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use super::host_task::Precondition;
use super::record::Record;
use crate::error::Result;
use crate::sync::lock;

thread_local! {
    /// Host future that this thread is polling.
    static POLLED: RefCell<Option<Arc<HostFuture>>> = const { RefCell::new(None) };
}

/// Returns the host future that this thread is polling, if any.
pub(super) fn polled() -> Option<Arc<HostFuture>> {
    POLLED.try_with(|polled| polled.borrow().clone()).ok().flatten()
}

/// Returns whether this thread is polling a host future.
pub(crate) fn is_polling_host_future() -> bool {
    POLLED.try_with(|polled| polled.borrow().is_some()).unwrap_or(false)
}

/// Host future of a command, with the commands that it waits for.
#[derive(Default)]
pub(crate) struct HostFuture {
    /// Record of its command, once that is added.
    pub(super) record: OnceLock<Arc<Record>>,
    pub(super) waits: Mutex<Vec<Wait>>,
    /// Waker with which the future is polled.
    waker: Mutex<Option<Arc<CountedWaker>>>,
    /// One of the constants below.
    stage: AtomicU8,
}

/// Stage of a host future that was not polled yet.
const WAITING: u8 = 0;

/// Stage of a host future that was polled.
const STARTED: u8 = 1;

/// Stage of a host future that is dropped instead of being polled.
const CANCELED: u8 = 2;

/// Command that a future waits for, and the way in which it waits.
pub(super) struct Wait {
    pub(super) record: Arc<Record>,
    pub(super) kind: WaitKind,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum WaitKind {
    /// The future's own waker is registered.
    Direct,
    /// A waker that wraps the future's own is registered, such as that of `join` or `select`.
    Indirect,
    /// The future's thread blocks.
    Blocking,
}

/// Waker whose clones are counted.
struct CountedWaker(Waker);

impl Wake for CountedWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake_by_ref();
    }
}

impl HostFuture {
    /// Sets the record of the future's command.
    pub(crate) fn set_record(&self, record: &Arc<Record>) {
        // Setting cannot fail: a future has one command.
        let _ = self.record.set(record.clone());
    }

    /// Marks the future as started. Returns `false` if it was canceled.
    fn start(&self) -> bool {
        match self.stage.compare_exchange(WAITING, STARTED, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(stage) => stage != CANCELED,
        }
    }

    fn is_canceled(&self) -> bool {
        self.stage.load(SeqCst) == CANCELED
    }

    /// Cancels the future unless it has started. Returns whether it is canceled.
    pub(crate) fn cancel_unstarted(&self) -> bool {
        match self.stage.compare_exchange(WAITING, CANCELED, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(stage) => stage == CANCELED,
        }
    }

    /// Cancels the future, which is dropped instead of being polled again. Called without a lock, because it
    /// may wake a task.
    pub(crate) fn cancel(&self) {
        self.stage.store(CANCELED, SeqCst);
        // A future without a waker was not polled yet, or finds out when its poll ends.
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker.0.wake_by_ref();
        }
    }

    /// Returns the only command that can wake the future, if there is exactly one.
    pub(crate) fn certain_wait(&self) -> Option<Arc<Record>> {
        let waits = lock(&self.waits);
        if let Some(wait) = waits.iter().find(|wait| wait.kind == WaitKind::Blocking) {
            return Some(wait.record.clone());
        }
        let [wait] = &**waits else { return None };
        // The three known clones: the one stored here, the waker that the future is polled with, and the
        // one registered with the command.
        let are_known = |waker: &Arc<CountedWaker>| Arc::strong_count(waker) == 3;
        let is_certain =
            wait.kind == WaitKind::Direct && lock(&self.waker).as_ref().is_some_and(are_known);
        is_certain.then(|| wait.record.clone())
    }

    /// Returns how the future waits if it registers `waker`.
    pub(super) fn kind_of_wait(&self, waker: &Waker) -> WaitKind {
        let own = lock(&self.waker);
        match own.as_ref().is_some_and(|own| Arc::as_ptr(own).cast() == waker.data()) {
            true => WaitKind::Direct,
            false => WaitKind::Indirect,
        }
    }
}

/// Host future, wrapped so that code that it polls can find out which one it is part of. If it is canceled, it
/// completes without being polled.
pub(crate) struct Tracked {
    future: Precondition,
    shared: Arc<HostFuture>,
    waker: Option<Waker>,
}

impl Tracked {
    pub(crate) fn new(future: Precondition, shared: Arc<HostFuture>) -> Self {
        Self { future, shared, waker: None }
    }

    /// Returns a counted waker that wakes `given`: the previous one if it does so already.
    fn waker(&mut self, given: &Waker) -> &Waker {
        let mut counted = lock(&self.shared.waker);
        let known = self.waker.take();
        let known =
            known.filter(|_| counted.as_ref().is_some_and(|counted| counted.0.will_wake(given)));
        self.waker.insert(known.unwrap_or_else(|| {
            let fresh = Arc::new(CountedWaker(given.clone()));
            *counted = Some(fresh.clone());
            fresh.into()
        }))
    }
}

/// Guard that restores the thread's previous host future after a poll, also on a panic.
pub(super) struct Polling(Option<Arc<HostFuture>>);

impl Polling {
    /// Sets the host future that this thread polls.
    pub(super) fn begin(future: Arc<HostFuture>) -> Self {
        Self(POLLED.try_with(|polled| polled.replace(Some(future))).ok().flatten())
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ = POLLED.try_with(|polled| polled.replace(before));
    }
}

impl Future for Tracked {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let shared = self.shared.clone();
        if !shared.start() {
            return Poll::Ready(Ok(()));
        }
        let _polling = Polling::begin(shared);
        let waker = self.waker(context.waker()).clone();
        let polled = self.future.as_mut().poll(&mut Context::from_waker(&waker));
        drop(waker);
        // The future may have been canceled before it had a waker.
        if polled.is_pending() && self.shared.is_canceled() { Poll::Ready(Ok(())) } else { polled }
    }
}
