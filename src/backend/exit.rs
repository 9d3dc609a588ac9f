//! The end of the process while commands run, or other threads call a driver.
//!
//! When a process ends, its drivers take themselves apart, whoever calls them meanwhile: a thread that
//! still compiles, or frees the last of a runtime that was dropped, then crashes the process. So
//! whoever compiles or frees, and on Level Zero whoever calls the driver at all, enters here first, and
//! nobody does any more once the process ends. Commands in flight come in the way, too: PoCL crashes
//! over them, and Intel's driver of Level Zero waits for all that it has given to the device, with a
//! device that hangs for ever. A process whose commands or calls have not ended a moment later ends
//! without the driver: the system takes the device's memory back. So does, at once, one that compiles.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::error::{Error, ErrorKind, Result};

/// How many threads are in a driver.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// How many are in a driver's compiler. The process does not wait for these: what a compiler has made
/// for itself meanwhile is gone by then.
static COMPILES: AtomicUsize = AtomicUsize::new(0);

/// Whether nobody may call a driver any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Leave to call a driver, for as long as it is kept.
pub(super) struct Call(&'static AtomicUsize);

impl Call {
    /// `None` if the process ends. Who enters counts itself and then looks; who closes does so and then
    /// looks at the count: so one of the two sees the other.
    fn among(calls: &'static AtomicUsize) -> Option<Self> {
        calls.fetch_add(1, SeqCst);
        let call = Self(calls);
        (!CLOSED.load(SeqCst)).then_some(call)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// `None` if the process ends.
pub(super) fn enter() -> Option<Call> {
    Call::among(&CALLS)
}

/// The same, with the error of what cannot be done.
#[cfg(feature = "level-zero")]
pub(super) fn enter_or_fail() -> Result<Call> {
    enter().ok_or_else(ends)
}

/// The same for whoever compiles.
pub(super) fn compile() -> Result<Call> {
    Call::among(&COMPILES).ok_or_else(ends)
}

fn ends() -> Error {
    Error::new(ErrorKind::Driver, "the process ends, and its drivers with it")
}

/// What commands run on.
pub(super) trait Commands: Send + Sync {
    /// Whether the end of one is not known.
    #[cfg_attr(
        not(all(target_os = "linux", target_env = "gnu")),
        expect(dead_code, reason = "elsewhere the end of the process is nobody's to arrange")
    )]
    fn are_in_flight(&self) -> bool;
}

/// Sees to it that the process ends well while other threads call a driver. To be called after the
/// driver has registered its own handlers for the exit: the last registered runs first, so that ours
/// runs before the driver's.
pub(super) fn prepare() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::prepare();
}

/// The same once more when the calling thread ends, if it ends the process or ends before that does.
/// A compiler makes some of its arrangements as late as its first compile, and PoCL compiles at a
/// kernel's first launch, on a thread of its own.
pub(super) fn prepare_when_thread_ends() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::prepare_when_thread_ends();
}

/// The same while commands run.
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
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::{Mutex, PoisonError, Weak};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{CALLS, CLOSED, COMPILES, Commands};

    /// How long commands and calls have to end once the process wants to.
    const GRACE: Duration = Duration::from_secs(1);

    const PAUSE: Duration = Duration::from_millis(1);

    static COMMANDS: Mutex<Vec<Weak<dyn Commands>>> = Mutex::new(Vec::new());

    /// What the arrangement is known by.
    static OWNER: u8 = 0;

    /// Held while it is taken back and made again.
    static MOVE: Mutex<()> = Mutex::new(());

    /// Whether it is called only because it is taken back.
    static TAKEN_BACK: AtomicBool = AtomicBool::new(false);

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

    /// Comes before all arrangements that have been made so far.
    pub(super) fn prepare() {
        let _move = MOVE.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = (&raw const OWNER).cast_mut().cast();
        TAKEN_BACK.store(true, SeqCst);
        // SAFETY: calls `first` if it is registered, and nothing else is by this owner.
        unsafe { __cxa_finalize(owner) };
        TAKEN_BACK.store(false, SeqCst);
        // SAFETY: the function is there as long as the process.
        let refused = unsafe { __cxa_atexit(first, ptr::null_mut(), owner) };
        if refused != 0 {
            tracing::debug!("the end of the process may come in a driver's way");
        }
    }

    pub(super) fn prepare_when_thread_ends() {
        struct AtEnd;

        impl Drop for AtEnd {
            fn drop(&mut self) {
                prepare();
            }
        }

        thread_local!(static AT_END: AtEnd = const { AtEnd });
        // A thread that already ends has made it.
        let _ = AT_END.try_with(|_| ());
    }

    /// A handler that is registered while handlers run is the next to run. Those of `on_exit` are told
    /// the exit status.
    unsafe extern "C" fn first(_: *mut c_void) {
        if !TAKEN_BACK.load(SeqCst) {
            // SAFETY: the function is there as long as the process.
            unsafe { on_exit(at_exit, ptr::null_mut()) };
        }
    }

    pub(super) fn look_after(commands: Weak<dyn Commands>) {
        let mut all = COMMANDS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|known| known.strong_count() > 0);
        all.push(commands);
    }

    unsafe extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        let start = Instant::now();
        let is_compiling = || COMPILES.load(SeqCst) > 0;
        let ends = |is_busy: fn() -> bool| {
            while is_busy() && !is_compiling() && start.elapsed() < GRACE {
                thread::sleep(PAUSE);
            }
            !is_busy() && !is_compiling()
        };
        let commands_ended = ends(has_commands);
        CLOSED.store(true, SeqCst);
        if !(commands_ended && ends(|| CALLS.load(SeqCst) > 0)) {
            // SAFETY: null stands for all streams.
            unsafe { fflush(ptr::null_mut()) };
            // SAFETY: ends the process.
            unsafe { _exit(status) };
        }
    }

    fn has_commands() -> bool {
        let all = COMMANDS.lock().unwrap_or_else(PoisonError::into_inner);
        let alive: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        alive.iter().any(|commands| commands.are_in_flight())
    }
}
