//! The end of the process while commands run, or other threads call the driver.
//!
//! When a process ends, Intel's driver waits for all that it has given to the device: with a device that
//! hangs that is for ever. And it takes itself apart, whoever calls it meanwhile: a thread that still
//! compiles, or frees the last of a runtime that was dropped, then crashes the process. So whoever calls
//! the driver enters here first, and nobody does any more once the process ends. One whose commands or
//! calls have not ended a moment later ends without the driver: the system takes the device's memory back.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use super::device::Context;
use crate::error::{Error, ErrorKind, Result};

/// How many threads are in the driver.
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Whether nobody may call the driver any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Leave to call the driver, for as long as it is kept.
pub(super) struct Call(());

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, SeqCst);
    }
}

/// `None` if the process ends. Who enters counts itself and then looks; who closes does so and then looks
/// at the count: so one of the two sees the other.
pub(super) fn enter() -> Option<Call> {
    CALLS.fetch_add(1, SeqCst);
    let call = Call(());
    (!CLOSED.load(SeqCst)).then_some(call)
}

/// The same, with the error of what cannot be done.
pub(super) fn enter_or_fail() -> Result<Call> {
    let ends = || Error::new(ErrorKind::Driver, "the process ends, and its drivers with it");
    enter().ok_or_else(ends)
}

/// Sees to it that the process ends well while the context's commands run. Called after the driver has
/// made its own arrangements for the end, so that this comes before them.
pub(super) fn look_after(context: Weak<Context>) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    linux::look_after(context);
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    drop(context);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::ffi::{c_int, c_void};
    use std::ptr;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::{Mutex, Once, Weak};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::device::Context;
    use super::super::lock;
    use super::{CALLS, CLOSED};

    /// How long commands and calls have to end once the process wants to.
    const GRACE: Duration = Duration::from_secs(1);

    const PAUSE: Duration = Duration::from_millis(1);

    static CONTEXTS: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

    unsafe extern "C" {
        fn on_exit(
            function: unsafe extern "C" fn(c_int, *mut c_void),
            argument: *mut c_void,
        ) -> c_int;
        fn fflush(stream: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    pub(super) fn look_after(context: Weak<Context>) {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the function is there as long as the process.
            let refused = unsafe { on_exit(at_exit, ptr::null_mut()) };
            if refused != 0 {
                tracing::debug!("the end of the process may wait for commands that never end");
            }
        });
        let mut contexts = lock(&CONTEXTS);
        contexts.retain(|known| known.strong_count() > 0);
        contexts.push(context);
    }

    unsafe extern "C" fn at_exit(status: c_int, _: *mut c_void) {
        let start = Instant::now();
        let ends = |is_busy: fn() -> bool| {
            while is_busy() && start.elapsed() < GRACE {
                thread::sleep(PAUSE);
            }
            !is_busy()
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
        // Whoever holds the lock opens a device, and has nothing in flight there.
        let Ok(contexts) = CONTEXTS.try_lock() else { return false };
        let alive: Vec<_> = contexts.iter().filter_map(Weak::upgrade).collect();
        drop(contexts);
        alive.iter().any(|context| context.in_flight.load(SeqCst) > 0)
    }
}
