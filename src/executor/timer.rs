//! Timers, on a thread of Kiln's own.
//!
//! The thread starts with the first pause and ends when there has been none for a while. It needs no file descriptor. If
//! the system cannot start it, the pause fails, and the next one tries again.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::future::{Either, select};

use super::Start;
use crate::error::{Error, ErrorKind, Result, catch_and_log};
use crate::process::{self, threads};
use crate::sync::{ignore_poison, lock};

/// Time without pauses after which the thread ends.
const IDLE: Duration = Duration::from_secs(10);

/// Pauses of all tasks of the process.
static TIMERS: Timers = Timers::new(threads::start_small);

struct Timers {
    state: Mutex<State>,
    /// Wakes the thread if a pause ends before all others.
    changed: Condvar,
    start: Start,
}

struct State {
    /// Wakers of the tasks by the times at which they are woken, and by the numbers of their pauses.
    wakers: BTreeMap<(Instant, u64), Waker>,
    /// Number of the next pause.
    next: u64,
    has_thread: bool,
}

impl State {
    /// Removes the wakers whose time has come.
    fn take_due(&mut self, now: Instant) -> BTreeMap<(Instant, u64), Waker> {
        let later = self.wakers.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.wakers, later)
    }
}

/// Returns a future that completes after `time`. Its timer starts now.
///
/// # Errors
///
/// [`OutOfResources`](ErrorKind::OutOfResources) if the system cannot start the thread for timers.
pub(crate) fn pause(time: Duration) -> Pause {
    TIMERS.pause(time)
}

/// Future of [`pause`].
#[must_use = "futures do nothing unless they are polled"]
pub(crate) struct Pause {
    /// End of the pause; `None` for one that is too long for the clock.
    until: Option<Instant>,
    /// Number by which the waker is known.
    number: Option<u64>,
    timers: &'static Timers,
}

impl Future for Pause {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(until) = self.until else { return Poll::Pending };
        if Instant::now() >= until {
            self.forget();
            return Poll::Ready(Ok(()));
        }
        let timers = self.timers;
        let mut state = timers.lock();
        let number = *self.number.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        // A waker may be code of the application: it is dropped without the lock.
        let replaced = state.wakers.insert((until, number), context.waker().clone());
        let started = timers.ensure_thread(&mut state);
        let is_first = state.wakers.first_key_value().is_some_and(|(key, _)| key.1 == number);
        drop(state);
        drop(replaced);
        if is_first {
            timers.changed.notify_one();
        }
        match started {
            Ok(()) => Poll::Pending,
            Err(error) => {
                self.forget();
                let message = "the system could not start a thread for timers; try again later";
                Poll::Ready(Err(Error::new(ErrorKind::OutOfResources, message).with_source(error)))
            }
        }
    }
}

impl Pause {
    /// Removes the waker.
    fn forget(&mut self) {
        if let (Some(until), Some(number)) = (self.until, self.number.take()) {
            let removed = self.timers.lock().wakers.remove(&(until, number));
            drop(removed);
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        // In a forked child, a thread that exists only in the parent may hold the lock.
        if !process::is_forked() {
            self.forget();
        }
    }
}

impl Timers {
    const fn new(start: Start) -> Self {
        let state = State { wakers: BTreeMap::new(), next: 0, has_thread: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), start }
    }

    fn pause(&'static self, time: Duration) -> Pause {
        Pause { until: Instant::now().checked_add(time), number: None, timers: self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Starts the thread, unless it runs.
    fn ensure_thread(&'static self, state: &mut State) -> io::Result<()> {
        if !state.has_thread {
            (self.start)("kiln-timer", Box::new(|| self.run()))?;
            state.has_thread = true;
        }
        Ok(())
    }

    /// Wakes tasks until there have been none for a while.
    fn run(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let due = state.take_due(now);
            if !due.is_empty() {
                drop(state);
                for waker in due.into_values() {
                    catch_and_log("a waker", || waker.wake());
                }
                state = self.lock();
                continue;
            }
            let first = state.wakers.first_key_value().map(|((until, _), _)| *until);
            let wait = first.map_or(IDLE, |until| until.saturating_duration_since(now));
            let (woken, timeout) = ignore_poison(self.changed.wait_timeout(state, wait));
            state = woken;
            if first.is_none() && timeout.timed_out() && state.wakers.is_empty() {
                state.has_thread = false;
                return;
            }
        }
    }
}

/// Waits for a future, but not longer than `limit`: returns the future if it takes longer. Without a thread for timers,
/// there is no limit.
pub(crate) async fn wait_up_to<F: Future + Unpin>(
    limit: Duration,
    future: F,
) -> std::result::Result<F::Output, F> {
    match select(future, pause(limit)).await {
        Either::Left((output, _)) => Ok(output),
        Either::Right((Err(_), future)) => Ok(future.await),
        Either::Right((Ok(()), future)) => Err(future),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;

    use futures::executor::block_on;
    use futures::future::join_all;

    use super::*;

    /// Waker that counts, and panics.
    #[derive(Default)]
    struct Panicking(AtomicUsize);

    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
            panic!("a waker of the application");
        }
    }

    #[test]
    fn pauses_end_in_the_order_of_their_lengths() {
        let ended = Mutex::new(Vec::new());
        // They are polled in this order, so that those that are due when a late task runs end in it, too.
        let pauses = [0, 10, 20, 30].map(|milliseconds| {
            let ended = &ended;
            async move {
                pause(Duration::from_millis(milliseconds)).await.expect("there is a thread");
                lock(ended).push(milliseconds);
            }
        });
        let start = Instant::now();
        block_on(join_all(pauses));
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(*lock(&ended), [0, 10, 20, 30]);
    }

    static HAS_THREADS: AtomicBool = AtomicBool::new(false);

    fn start_sometimes(name: &'static str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        match HAS_THREADS.load(SeqCst) {
            true => threads::start_small(name, run),
            false => Err(io::Error::other("there is no thread")),
        }
    }

    #[test]
    fn a_pause_without_a_thread_fails_and_the_next_one_tries_again() {
        static TIMERS: Timers = Timers::new(start_sometimes);
        let time = Duration::from_millis(5);
        let error = block_on(TIMERS.pause(time)).expect_err("there is no thread");
        assert_eq!(error.kind(), ErrorKind::OutOfResources);
        assert!(TIMERS.lock().wakers.is_empty());
        HAS_THREADS.store(true, SeqCst);
        block_on(TIMERS.pause(time)).expect("there is a thread");
        HAS_THREADS.store(false, SeqCst);
        block_on(TIMERS.pause(time)).expect("the thread waits for further pauses");
    }

    #[test]
    fn a_waker_that_panics_stops_no_other_pause() {
        let panicking = Arc::new(Panicking::default());
        let waker = Waker::from(panicking.clone());
        let mut first = pin!(pause(Duration::from_millis(1)));
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        block_on(pause(Duration::from_millis(20))).expect("there is a thread");
        assert_eq!(panicking.0.load(SeqCst), 1);
        block_on(pause(Duration::from_millis(1))).expect("there is a thread");
    }

    #[test]
    fn pauses_that_are_dropped_leave_nothing() {
        let waker = Waker::noop();
        static TIMERS: Timers = Timers::new(threads::start_small);
        let mut long = TIMERS.pause(Duration::from_secs(3600));
        assert!(Pin::new(&mut long).poll(&mut Context::from_waker(waker)).is_pending());
        assert_eq!(TIMERS.lock().wakers.len(), 1);
        drop(long);
        assert!(TIMERS.lock().wakers.is_empty());
    }

    #[test]
    fn a_pause_without_end_is_pending() {
        let mut endless = pause(Duration::MAX);
        let waker = Waker::noop();
        assert!(Pin::new(&mut endless).poll(&mut Context::from_waker(waker)).is_pending());
    }
}
