//! Waits for commands. A host task whose wait could never end gets an error. Long waits are logged with
//! the commands that hold them up.
//!
//! A command depends on earlier commands, which are in the DAG, and on its host futures, which may
//! await any other command. A host future that awaits a command which depends on its own command could
//! never complete. The wait of another host future counts only if nothing else can wake that future:
//! its thread blocks in [`Event::wait`](crate::Event::wait), or all clones of its waker are accounted
//! for.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

use super::event::Record;
use super::host_task::Precondition;
use super::scheduler::{CommandSummary, Scheduler};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

thread_local! {
    /// Host future that this thread is polling.
    static POLLED: RefCell<Option<Arc<HostFuture>>> = const { RefCell::new(None) };
}

/// Returns the host future that this thread is polling, if any.
fn polled() -> Option<Arc<HostFuture>> {
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
    record: OnceLock<Arc<Record>>,
    waits: Mutex<Vec<Wait>>,
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
struct Wait {
    record: Arc<Record>,
    kind: WaitKind,
}

#[derive(Clone, Copy, PartialEq)]
enum WaitKind {
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
    fn kind_of_wait(&self, waker: &Waker) -> WaitKind {
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

/// Registration of a host future's wait for a command; dropping it ends the wait.
pub(crate) struct Waiting {
    future: Arc<HostFuture>,
    record: Arc<Record>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waits = lock(&self.future.waits);
        let at = waits.iter().position(|wait| Arc::ptr_eq(&wait.record, &self.record));
        let wait = at.map(|at| waits.swap_remove(at));
        // The lock is released first: dropping a record may call a driver.
        drop(waits);
        drop(wait);
    }
}

/// Registers that a handle of the command is pending, if this thread polls a host future. The
/// registration is stored in `waiting`.
///
/// # Errors
///
/// [`Deadlock`](ErrorKind::Deadlock) if the command waits for the future's own command.
pub(crate) fn register(
    waiting: &mut Option<Box<Waiting>>,
    record: &Arc<Record>,
    waker: &Waker,
) -> Result<()> {
    if !is_polling_host_future() || !record.may_wait_for_host() {
        return Ok(());
    }
    let Some(future) = polled() else { return Ok(()) };
    // Each wait is checked once. If a later wait closes a circle, the future with that wait gets the
    // error.
    if waiting.as_ref().is_none_or(|waiting| !Arc::ptr_eq(&waiting.future, &future)) {
        check_deadlock(&future, record)?;
        let kind = future.kind_of_wait(waker);
        lock(&future.waits).push(Wait { record: record.clone(), kind });
        *waiting = Some(Box::new(Waiting { future, record: record.clone() }));
    }
    Ok(())
}

/// Registers that the thread blocks until the command has completed, if it polls a host future.
///
/// # Errors
///
/// [`Deadlock`](ErrorKind::Deadlock) if the command waits for the future's own command.
pub(crate) fn register_blocking(record: &Arc<Record>) -> Result<Option<Waiting>> {
    let Some(future) = polled() else { return Ok(None) };
    check_deadlock(&future, record)?;
    lock(&future.waits).push(Wait { record: record.clone(), kind: WaitKind::Blocking });
    Ok(Some(Waiting { future, record: record.clone() }))
}

/// Fails if the command waits for the future's own command.
fn check_deadlock(future: &HostFuture, record: &Arc<Record>) -> Result<()> {
    let Some(own) = future.record.get() else { return Ok(()) };
    match Scheduler::waits_for(record, own) {
        Some(command) => Err(Error::new(
            ErrorKind::Deadlock,
            format!(
                "a host future awaits {command}, which waits for that host future: the await would \
                 never complete; await it outside of the future"
            ),
        )),
        None => Ok(()),
    }
}

/// Fails the command whose host future this thread polls, so that the commands that wait for it
/// proceed.
pub(crate) fn fail_polled(error: &Error) {
    let record = polled().and_then(|future| future.record.get().cloned());
    if let Some(record) = record
        && let Some(scheduler) = record.scheduler()
    {
        scheduler.fail_host(&record, error);
    }
}

/// Duration after which a wait is logged.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Interval at which waits are checked.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);

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

    /// Logs the waits that have lasted long, each of them once. Of many waits, logs the first ones and the
    /// number of the others: the search for what holds up a wait visits all commands before it.
    pub(crate) fn log_long_waits(&self, now: Instant) {
        let (mut long, mut others) = (Vec::new(), 0);
        for (_, wait) in &mut *lock(&self.0) {
            if wait.is_logged || now.saturating_duration_since(wait.since) < LONG_WAIT {
                continue;
            }
            wait.is_logged = true;
            if long.len() < MAX_NAMED {
                long.push((wait.what, wait.record.clone()));
            } else {
                others += 1;
            }
        }
        let seconds = LONG_WAIT.as_secs();
        for (what, record) in long {
            let held_up_by = in_words(&Scheduler::first_unfinished(&record));
            tracing::warn!(held_up_by, "{what} has been waiting for more than {seconds} s");
        }
        if others > 0 {
            tracing::warn!(others, "other calls have been waiting for more than {seconds} s");
        }
    }
}

/// Maximum number of waits that are described in one check, and of commands that a message names.
const MAX_NAMED: usize = 4;

/// Returns a list of commands that have not completed, as text for a message.
pub(crate) fn in_words(commands: &[CommandSummary]) -> String {
    let mut text = String::new();
    for (at, CommandSummary { description, queue, state }) in
        commands.iter().take(MAX_NAMED).enumerate()
    {
        let separator = if at == 0 { "" } else { "; " };
        let _ = write!(text, "{separator}{description} of queue {queue}, {state}");
    }
    match commands.len().saturating_sub(MAX_NAMED) {
        _ if commands.is_empty() => text.push_str("no command"),
        0 => {}
        more => _ = write!(text, "; and {more} more"),
    }
    text
}
