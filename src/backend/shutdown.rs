//! The end of the process while other threads call a driver.
//!
//! When a process ends, its drivers free what their calls rely on, whatever other threads do: a thread
//! that then calls a driver, or is still inside one, crashes the process. Therefore each call of a
//! driver is made inside a [`Call`], and the end of the process comes in three phases:
//!
//! 1. Drivers take no new work. Work that is being handed over, and commands in flight, may end.
//! 2. Drivers take no calls at all. Calls that were begun may end.
//! 3. The drivers' own handlers run.
//!
//! A process whose commands or calls have not ended after [`GRACE`](linux::GRACE) ends without phase 3:
//! the system takes the device's memory back. So does, at once, a process that compiles, because parts
//! of a compiler may be gone before phase 1, and one that ends from within a driver's callback.
//!
//! Only the threads of a process whose C library is glibc are held off like this.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};

use crate::error::{Error, ErrorKind, Result};
use crate::process;

/// The calls that drivers take at present.
static PHASE: AtomicU8 = AtomicU8::new(OPEN);

const OPEN: u8 = 0;
/// No new work.
const DRAINING: u8 = 1;
/// No calls.
const CLOSED: u8 = 2;

/// Whether this process or one that it was forked from has called a driver.
static HAS_CALLED: AtomicBool = AtomicBool::new(false);

/// Number of threads that are handing work to a driver.
static WORK: Count = Count::new();

/// Number of threads in any other call of a driver.
static CALLS: Count = Count::new();

/// Number of threads in a driver's compiler. The process does not wait for them.
static COMPILES: Count = Count::new();

/// A number that many threads change at the same time, each in one of several places, so that they
/// rarely share a cache line.
struct Count([Part; Self::PARTS]);

#[repr(align(128))]
struct Part(AtomicUsize);

impl Count {
    const PARTS: usize = 16;

    const fn new() -> Self {
        Self([const { Part(AtomicUsize::new(0)) }; Self::PARTS])
    }

    /// The calling thread's part.
    fn part(&'static self) -> &'static AtomicUsize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static INDEX: usize = NEXT.fetch_add(1, Relaxed) % Count::PARTS);
        &self.0[INDEX.try_with(|index| *index).unwrap_or_default()].0
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn is_zero(&self) -> bool {
        self.0.iter().all(|part| part.0.load(SeqCst) == 0)
    }
}

thread_local! {
    /// Number of calls that this thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Whether the calling thread may call a driver.
pub(super) fn is_inside() -> bool {
    DEPTH.try_with(Cell::get).unwrap_or(1) > 0
}

/// Permission to call a driver, for as long as it is kept. Belongs to its thread.
pub(super) struct Call {
    part: &'static AtomicUsize,
    of_this_thread: PhantomData<*const ()>,
}

impl Call {
    /// A call that is made whatever the phase.
    fn new(count: &'static Count) -> Self {
        let part = count.part();
        part.fetch_add(1, SeqCst);
        // A thread that ends has nothing of its own left to end the process from.
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self { part, of_this_thread: PhantomData }
    }

    /// A call that is made only before `phase`. It is counted before the phase is read, and the phase
    /// is set before the count is read: one of the two threads sees the other.
    fn before(phase: u8, count: &'static Count) -> Result<Self> {
        process::check()?;
        if !HAS_CALLED.load(Relaxed) {
            HAS_CALLED.store(true, Relaxed);
        }
        let call = Self::new(count);
        if PHASE.load(SeqCst) < phase { Ok(call) } else { Err(ending()) }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.part.fetch_sub(1, SeqCst);
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}

fn ending() -> Error {
    Error::new(
        ErrorKind::ProcessEnding,
        "the process is ending, and its drivers take no more calls",
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

/// Enters a driver, to create something or to hand over work. Fails earlier than [`enter`].
pub(super) fn begin() -> Result<Call> {
    Call::before(DRAINING, &WORK)
}

/// Enters on behalf of a driver that calls back.
#[cfg(feature = "opencl")]
pub(super) fn called_back() -> Call {
    Call::new(&CALLS)
}

/// Enters a driver's compiler. Fails like [`begin`].
pub(super) fn compile() -> Result<Call> {
    Call::before(DRAINING, &COMPILES)
}

/// What commands run on.
pub(super) trait Commands: Send + Sync {
    /// Whether the end of one is not known.
    #[cfg_attr(
        not(all(target_os = "linux", target_env = "gnu")),
        expect(dead_code, reason = "the end of the process is not arranged there")
    )]
    fn are_in_flight(&self) -> bool;
}

/// Arranges for the phases. To be called again after a driver has registered handlers for the exit:
/// the last registered handler runs first, and Kiln's has to run before the driver's.
pub(super) fn prepare() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::prepare();
}

/// Prepares once more when the calling thread ends, or ends the process. A compiler makes some
/// arrangements as late as its first compile, and PoCL compiles at a kernel's first launch, on a
/// thread of its own.
pub(super) fn prepare_when_thread_ends() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::prepare_when_thread_ends();
}

/// Makes the end of the process wait for commands.
pub(super) fn look_after(commands: Weak<dyn Commands>) {
    prepare();
    prepare_when_thread_ends();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::look_after(commands);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    drop(commands);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::ffi::{c_int, c_void};
    use std::ptr;
    use std::sync::atomic::{AtomicBool, Ordering::*};
    use std::sync::{Mutex, Weak};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{CALLS, CLOSED, COMPILES, Commands, DRAINING, HAS_CALLED, PHASE, WORK, is_inside};
    use crate::process;

    /// How long commands and calls may take to end once the process ends.
    pub(super) const GRACE: Duration = Duration::from_secs(1);

    const PAUSE: Duration = Duration::from_millis(1);

    static COMMANDS: Mutex<Vec<Weak<dyn Commands>>> = Mutex::new(Vec::new());

    /// Identifies Kiln's handler.
    static OWNER: u8 = 0;

    /// Whether the handler is called only because it is removed.
    static IS_REMOVED: AtomicBool = AtomicBool::new(false);

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

    /// Held while the handler is removed and registered again.
    struct Turn;

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

    /// Keeps a fork from happening during a turn: glibc's lock of the list of handlers would stay locked
    /// in the child, which could not end.
    fn take_turns_with_forks() {
        unsafe extern "C" fn before() {
            std::mem::forget(Turn::take());
        }
        unsafe extern "C" fn after() {
            drop(Turn);
        }
        static HAS_ASKED: AtomicBool = AtomicBool::new(false);
        if !HAS_ASKED.swap(true, Relaxed) {
            // SAFETY: the handlers only use an atomic and the scheduler of the system.
            let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
            if refused != 0 {
                tracing::debug!("a forked child may not be able to end");
            }
        }
    }

    /// Whether the handler has been registered at least once.
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);

    /// Runs on the main thread before `main`. When a thread ends the process, its thread-local values
    /// are dropped before any handler runs: only this comes before handlers that a driver registers
    /// while the process ends, where the main thread has never used Kiln.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static AT_START: extern "C" fn() = {
        extern "C" fn at_start() {
            prepare_when_thread_ends();
        }
        at_start
    };

    /// Registers the handler anew, so that it runs before all that were registered so far.
    pub(super) fn prepare() {
        IS_PREPARED.store(true, SeqCst);
        take_turns_with_forks();
        let _turn = Turn::take();
        let owner = (&raw const OWNER).cast_mut().cast();
        IS_REMOVED.store(true, SeqCst);
        // SAFETY: calls `first` if it is registered, and nothing else is by this owner.
        unsafe { __cxa_finalize(owner) };
        IS_REMOVED.store(false, SeqCst);
        // SAFETY: the function stays, since its library is never unloaded.
        let refused = unsafe { __cxa_atexit(first, ptr::null_mut(), owner) };
        if refused != 0 {
            tracing::debug!("the drivers are not protected from the end of the process");
        }
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
        // A thread that already ends has prepared.
        let _ = AT_END.try_with(|_| ());
    }

    /// A handler that is registered while handlers run is the next to run. Those of `on_exit` get the
    /// exit status.
    unsafe extern "C" fn first(_: *mut c_void) {
        if !IS_REMOVED.load(SeqCst) {
            // SAFETY: the function stays, since its library is never unloaded.
            unsafe { on_exit(at_exit, ptr::null_mut()) };
        }
    }

    pub(super) fn look_after(commands: Weak<dyn Commands>) {
        let mut all = crate::sync::lock(&COMMANDS);
        all.retain(|known| known.strong_count() > 0);
        all.push(commands);
    }

    unsafe extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        // A driver's handlers would wait for threads that a forked child does not have, and for a
        // callback that ends the process.
        if (HAS_CALLED.load(SeqCst) && process::is_forked()) || is_inside() {
            leave(status);
        }
        let start = Instant::now();
        let ends = |is_busy: fn() -> bool| {
            while is_busy() && COMPILES.is_zero() && start.elapsed() < GRACE {
                thread::sleep(PAUSE);
            }
            !is_busy() && COMPILES.is_zero()
        };
        PHASE.store(DRAINING, SeqCst);
        // A driver that does not come back is asked nothing more.
        let work_ended = ends(|| !WORK.is_zero()) && ends(has_commands);
        PHASE.store(CLOSED, SeqCst);
        if !(work_ended && ends(|| !CALLS.is_zero())) {
            leave(status);
        }
    }

    /// Ends the process without any further handler.
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
