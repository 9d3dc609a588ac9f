//! Keeps the library that contains this code loaded once it has started threads.
//!
//! `dlclose` may unload a plug-in that uses Kiln. Kiln's threads, its handlers for the end of the process, and
//! the callbacks that it passed to drivers would then run in memory that is no longer mapped.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Keeps the library loaded until the process ends. Does nothing if this code is linked into the program
/// itself.
pub(crate) fn pin_library() {
    static IS_PINNED: AtomicBool = AtomicBool::new(false);
    if !IS_PINNED.swap(true, Relaxed) {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        linux::pin();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod linux {
    use std::mem::MaybeUninit;

    pub(super) fn pin() {
        let mut found = MaybeUninit::<libc::Dl_info>::uninit();
        let here = pin as *const () as *const libc::c_void;
        // SAFETY: `found` has room for the result.
        if unsafe { libc::dladdr(here, found.as_mut_ptr()) } == 0 {
            return;
        }
        // SAFETY: the call succeeded, so it has written the result.
        let name = unsafe { found.assume_init() }.dli_fname;
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // If this code is part of the program itself, nothing is found under the program's name, and nothing
        // has to be: a program cannot be unloaded.
        // SAFETY: the name is the loader's own; nothing is loaded, so no initializer runs.
        unsafe { libc::dlopen(name, flags) };
    }
}
