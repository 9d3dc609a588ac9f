//! The end of the process while other threads call a driver.
//!
//! When a process ends, its drivers free the data that their calls rely on, whatever other threads do: a thread
//! that then calls a driver, or is still inside one, crashes the process. Therefore each call of a driver is
//! made inside a [`Call`], and the end of the process comes in three phases:
//!
//! 1. New work is rejected. Submissions in progress and commands in flight may end.
//! 2. All driver calls are rejected. Calls that have begun may end.
//! 3. The drivers' own exit handlers run.
//!
//! A process whose commands or calls have not ended after [`GRACE`](linux::GRACE) ends without phase 3; the
//! system reclaims the device's memory. Phase 3 is also skipped, without a wait, if the process ends from within
//! a driver's callback, and if a thread is loading a driver, opening a device or compiling: such a call may have
//! registered handlers that run before phase 1, and parts of the driver are then gone.
//!
//! Only Linux with glibc has this protection.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};

use crate::error::{Error, ErrorKind, Result};
use crate::process;

/// Current phase, which determines the permitted driver calls.
static PHASE: AtomicU8 = AtomicU8::new(OPEN);

const OPEN: u8 = 0;
/// New work is rejected.
const DRAINING: u8 = 1;
/// All calls are rejected.
const CLOSED: u8 = 2;

/// Whether this process or one that it was forked from has called a driver.
static HAS_CALLED: AtomicBool = AtomicBool::new(false);

/// Number of threads that are submitting work to a driver.
static WORK: Count = Count::new();

/// Number of threads in any other call of a driver.
static CALLS: Count = Count::new();

/// Number of threads in calls during which a driver may register exit handlers. The process does not wait for
/// them.
static REGISTERING: Count = Count::new();

/// Counter that many threads change at the same time. It is sharded, so that threads rarely share a cache line.
struct Count([Shard; Self::SHARDS]);

#[repr(align(128))]
struct Shard(AtomicUsize);

impl Count {
    const SHARDS: usize = 16;

    const fn new() -> Self {
        Self([const { Shard(AtomicUsize::new(0)) }; Self::SHARDS])
    }

    /// Returns the calling thread's shard.
    fn shard(&'static self) -> &'static AtomicUsize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static INDEX: usize = NEXT.fetch_add(1, Relaxed) % Count::SHARDS);
        &self.0[INDEX.try_with(|index| *index).unwrap_or_default()].0
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn is_zero(&self) -> bool {
        self.0.iter().all(|shard| shard.0.load(SeqCst) == 0)
    }
}

thread_local! {
    /// Number of driver calls that this thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether the calling thread is inside a [`Call`], and so may call a driver.
pub(super) fn is_inside() -> bool {
    DEPTH.try_with(Cell::get).unwrap_or(1) > 0
}

/// Guard that permits driver calls while it is held. Bound to its thread.
pub(super) struct Call {
    shard: &'static AtomicUsize,
    not_send: PhantomData<*const ()>,
}

impl Call {
    /// Enters a driver call in any phase.
    fn new(count: &'static Count) -> Self {
        let shard = count.shard();
        shard.fetch_add(1, SeqCst);
        // `try_with` fails only on a thread that is ending. Such a thread has no code of its own left that
        // could end the process.
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self { shard, not_send: PhantomData }
    }

    /// Enters a driver call if `phase` has not begun. The call is counted before the phase is read, and the
    /// phase is set before the count is read, so at least one of the two threads sees the other.
    fn before(phase: u8, count: &'static Count) -> Result<Self> {
        process::check()?;
        if !HAS_CALLED.load(Relaxed) {
            HAS_CALLED.store(true, Relaxed);
        }
        let call = Self::new(count);
        if PHASE.load(SeqCst) < phase { Ok(call) } else { Err(ending_error()) }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.shard.fetch_sub(1, SeqCst);
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}

fn ending_error() -> Error {
    Error::new(
        ErrorKind::ProcessEnding,
        "the process is exiting, and its drivers no longer accept calls",
    )
}

/// Enters a driver, to query or to release something.
///
/// # Errors
///
/// [`ProcessEnding`](ErrorKind::ProcessEnding) or [`Forked`](ErrorKind::Forked).
pub(super) fn enter() -> Result<Call> {
    Call::before(CLOSED, &CALLS)
}

/// Enters a driver, to create something or to submit work. Fails in an earlier phase than [`enter`].
pub(super) fn begin() -> Result<Call> {
    Call::before(DRAINING, &WORK)
}

/// Enters a driver call from within a driver's callback.
#[cfg(feature = "opencl")]
pub(super) fn enter_from_callback() -> Call {
    Call::new(&CALLS)
}

/// Enters a driver call during which the driver may register exit handlers: one that loads it, opens a device
/// or compiles. Fails like [`begin`].
pub(super) fn begin_registering() -> Result<Call> {
    Call::before(DRAINING, &REGISTERING)
}

/// Queue of commands whose ends the process waits for.
pub(super) trait Commands: Send + Sync {
    /// Returns whether there is a command whose end is not known.
    #[cfg_attr(
        not(all(target_os = "linux", target_env = "gnu")),
        expect(dead_code, reason = "no exit handler is installed on these systems")
    )]
    fn are_in_flight(&self) -> bool;
}

/// Registers the exit handler that runs the phases. Must be called again after a driver has registered exit
/// handlers: the last registered handler runs first, and Kiln's must run before the driver's.
pub(super) fn prepare() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::prepare();
}

/// Calls [`prepare`] once more when the calling thread ends, or ends the process. A compiler registers some
/// handlers as late as its first compile, and PoCL compiles at a kernel's first launch, on a thread of its own.
pub(super) fn prepare_when_thread_ends() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::prepare_when_thread_ends();
}

/// Makes the end of the process wait for commands.
pub(super) fn wait_at_end(commands: Weak<dyn Commands>) {
    prepare();
    prepare_when_thread_ends();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::wait_at_end(commands);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    drop(commands);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::ffi::{c_int, c_void};
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
    use std::sync::{Mutex, Weak};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{
        CALLS, CLOSED, Commands, DRAINING, HAS_CALLED, PHASE, REGISTERING, WORK, is_inside,
    };
    use crate::process;

    /// Time limit for commands and calls to end once the process ends.
    pub(super) const GRACE: Duration = Duration::from_secs(1);

    /// Pause between two checks of whether commands and calls have ended.
    const PAUSE: Duration = Duration::from_millis(1);

    /// Queues of commands whose ends the process waits for.
    static COMMANDS: Mutex<Vec<Weak<dyn Commands>>> = Mutex::new(Vec::new());

    /// Whether each of the two handlers is being removed, which calls it too. A handler's entry is also its
    /// argument, and its address is the owner that the handler is removed by.
    static ARE_REMOVED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

    /// Index of the handler that was registered last. Changed during a [`Turn`].
    static LAST: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" {
        fn __cxa_atexit(
            function: unsafe extern "C" fn(*mut c_void),
            argument: *mut c_void,
            owner: *mut c_void,
        ) -> c_int;
        fn __cxa_finalize(owner: *mut c_void);
        fn on_exit(
            function: unsafe extern "C" fn(c_int, *mut c_void),
            argument: *mut c_void,
        ) -> c_int;
        fn fflush(stream: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    /// Guard that is held while the handler is removed and registered again.
    struct Turn;

    /// Whether a [`Turn`] is held.
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);

    impl Turn {
        fn take() -> Self {
            while IS_TAKEN.swap(true, Acquire) {
                thread::yield_now();
            }
            Self
        }
    }

    impl Drop for Turn {
        fn drop(&mut self) {
            IS_TAKEN.store(false, Release);
        }
    }

    /// Prevents forks during a [`Turn`]. Otherwise glibc's lock on the list of handlers would stay locked in
    /// the child, which could then not exit.
    fn take_turns_with_forks() {
        unsafe extern "C" fn before() {
            std::mem::forget(Turn::take());
        }
        unsafe extern "C" fn after() {
            drop(Turn);
        }
        static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
        if !IS_INSTALLED.swap(true, Relaxed) {
            // SAFETY: the handlers only use an atomic and the scheduler of the system.
            let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
            if refused != 0 {
                tracing::debug!(
                    "the fork handlers could not be installed; a forked child may hang at its exit"
                );
            }
        }
    }

    /// Whether the handler has been registered at least once.
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);

    /// Function that runs on the main thread before `main`, and gives it the thread-local value that calls
    /// [`prepare`] when it is dropped. When a thread ends the process, its thread-local values are dropped
    /// before any handler runs. If the main thread has never used Kiln, only this drop comes before handlers
    /// that a driver registers while the process ends.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static AT_START: extern "C" fn() = {
        extern "C" fn at_start() {
            prepare_when_thread_ends();
        }
        at_start
    };

    /// Registers a handler, so that it runs before all handlers registered so far, and then removes the previous
    /// one: there is one at any time.
    pub(super) fn prepare() {
        IS_PREPARED.store(true, SeqCst);
        take_turns_with_forks();
        let _turn = Turn::take();
        let last = LAST.load(SeqCst);
        let [new, old] = [last ^ 1, last].map(|index| &ARE_REMOVED[index]);
        let owner = |handler: &'static AtomicBool| ptr::from_ref(handler).cast_mut().cast();
        new.store(false, SeqCst);
        // SAFETY: the function stays, since its library is never unloaded, and so does its argument.
        let refused = unsafe { __cxa_atexit(register_at_exit, owner(new), owner(new)) };
        if refused != 0 {
            tracing::debug!(
                "the exit handler could not be installed; drivers may be in use while the process \
                 exits"
            );
            return;
        }
        LAST.store(last ^ 1, SeqCst);
        old.store(true, SeqCst);
        // SAFETY: calls `register_at_exit` if it is registered; nothing else is registered with this owner.
        unsafe { __cxa_finalize(owner(old)) };
    }

    pub(super) fn prepare_when_thread_ends() {
        struct AtEnd;

        impl Drop for AtEnd {
            fn drop(&mut self) {
                if IS_PREPARED.load(SeqCst) {
                    prepare();
                }
            }
        }

        thread_local!(static AT_END: AtEnd = const { AtEnd });
        // On a thread that is already ending, `prepare` has been called.
        let _ = AT_END.try_with(|_| ());
    }

    /// Registers [`at_exit`], unless this handler is only being removed. A handler that is registered while
    /// handlers run is the next to run. `on_exit` is used because its handlers receive the exit status.
    unsafe extern "C" fn register_at_exit(is_removed: *mut c_void) {
        // SAFETY: the argument is an element of `ARE_REMOVED`.
        let is_removed = unsafe { &*is_removed.cast::<AtomicBool>() };
        if !is_removed.load(SeqCst) {
            // SAFETY: the function stays, since its library is never unloaded.
            unsafe { on_exit(at_exit, ptr::null_mut()) };
        }
    }

    /// Adds a queue of commands to wait for.
    pub(super) fn wait_at_end(commands: Weak<dyn Commands>) {
        let mut all = crate::sync::lock(&COMMANDS);
        all.retain(|known| known.strong_count() > 0);
        all.push(commands);
    }

    /// Runs the phases, then returns, so that the drivers' handlers run, or ends the process without them.
    unsafe extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        // A driver's handlers would wait for threads that a forked child does not have, or for the callback
        // that ends the process.
        if (HAS_CALLED.load(SeqCst) && process::is_forked()) || is_inside() {
            leave(status);
        }
        let start = Instant::now();
        let ends = |is_busy: fn() -> bool| {
            while is_busy() && REGISTERING.is_zero() && start.elapsed() < GRACE {
                thread::sleep(PAUSE);
            }
            !is_busy() && REGISTERING.is_zero()
        };
        PHASE.store(DRAINING, SeqCst);
        // If a submission does not return, the driver is not queried for commands.
        let work_ended = ends(|| !WORK.is_zero()) && ends(has_commands);
        PHASE.store(CLOSED, SeqCst);
        if !(work_ended && ends(|| !CALLS.is_zero())) {
            leave(status);
        }
    }

    /// Ends the process without running any further handler.
    fn leave(status: c_int) -> ! {
        // SAFETY: null stands for all streams.
        unsafe { fflush(ptr::null_mut()) };
        // SAFETY: ends the process.
        unsafe { _exit(status) };
    }

    fn has_commands() -> bool {
        let all = crate::sync::lock(&COMMANDS);
        let alive: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        alive.iter().any(|commands| commands.are_in_flight())
    }
}
