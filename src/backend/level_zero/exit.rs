//! The end of the process while commands run.
//!
//! When a process ends, Intel's driver waits for all that it has given to the device. With a device that
//! hangs that is for ever. So a process whose commands have not ended a moment after it asked to end
//! ends without the driver: the system then takes the device's memory back.

use std::sync::Weak;

use super::device::Context;

/// Sees to it that the process ends even if the context's commands do not. Called after the driver has
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
    use std::sync::{Mutex, Once, Weak};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::device::Context;
    use super::super::lock;

    /// How long commands have to end once the process wants to.
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
        while is_busy() {
            if start.elapsed() > GRACE {
                // SAFETY: null stands for all streams.
                unsafe { fflush(ptr::null_mut()) };
                // SAFETY: ends the process.
                unsafe { _exit(status) };
            }
            thread::sleep(PAUSE);
        }
    }

    fn is_busy() -> bool {
        // Whoever holds the lock opens a device, and has nothing in flight there.
        let Ok(contexts) = CONTEXTS.try_lock() else { return false };
        contexts.iter().filter_map(Weak::upgrade).any(|context| context.is_busy())
    }
}
