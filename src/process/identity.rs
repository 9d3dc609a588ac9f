//! Tracks the process in which Kiln has started, to detect forked children.
//!
//! A child made by `fork` has a copy of all memory, but only one thread. Kiln's own threads and those of the
//! drivers do not exist there, and a lock that one of them held stays locked forever. Public entry points
//! therefore compare the process first and touch nothing in a child.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use std::{process, ptr};

use crate::error::{Error, ErrorKind, Result};

/// Returns the identifier of this process. Makes no system call if the system can clear memory at a fork.
#[inline]
pub(crate) fn id() -> u32 {
    let Some(cached) = cached() else { return process::id() };
    match cached.load(Relaxed) {
        0 => {
            let id = process::id();
            cached.store(id, Relaxed);
            id
        }
        id => id,
    }
}

/// Returns the memory that caches the identifier, or `None` if there is no memory that a fork clears. A child
/// finds zero in it.
#[inline]
fn cached() -> Option<&'static AtomicU32> {
    static CACHED: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
    // Marks that the system has no such memory.
    static NONE: AtomicU32 = AtomicU32::new(0);
    #[cold]
    fn find() -> *mut AtomicU32 {
        // No lock: a fork could happen while another thread holds it.
        let new = map_page_cleared_at_fork().unwrap_or((&raw const NONE).cast_mut());
        match CACHED.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => new,
            // If two threads race to be first, the loser's page stays unused.
            Err(earlier) => earlier,
        }
    }
    let mut cached = CACHED.load(Acquire);
    if cached.is_null() {
        cached = find();
    }
    // SAFETY: it points to `NONE` or to a page that is never unmapped.
    let cached = unsafe { &*cached };
    (!ptr::eq(cached, &raw const NONE)).then_some(cached)
}

/// Maps a page that is zero, in this process and in each child until that child writes to it.
#[cfg(target_os = "linux")]
fn map_page_cleared_at_fork() -> Option<*mut AtomicU32> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let length = rustix::param::page_size();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the system chooses an unused address range.
    let page =
        unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was mapped above, and nothing refers to it yet.
    unsafe { madvise(page, length, Advice::LinuxWipeOnFork) }.ok()?;
    Some(page.cast())
}

#[cfg(not(target_os = "linux"))]
fn map_page_cleared_at_fork() -> Option<*mut AtomicU32> {
    None
}

/// Identifier of the process in which Kiln has started; zero before that.
static STARTER: AtomicU32 = AtomicU32::new(0);

/// Starts Kiln in this process, unless it has started. Must be called before threads are started or drivers are
/// called.
///
/// # Errors
///
/// As for [`check`].
pub(crate) fn start() -> Result<()> {
    match STARTER.compare_exchange(0, id(), Relaxed, Relaxed) {
        Ok(_) => Ok(()),
        Err(_) => check(),
    }
}

/// Returns whether this process is a child forked from a process in which Kiln had started.
#[inline]
pub(crate) fn is_forked() -> bool {
    let starter = STARTER.load(Relaxed);
    starter != 0 && starter != id()
}

/// Fails in a child forked from a process in which Kiln had started.
///
/// # Errors
///
/// [`Forked`](ErrorKind::Forked).
#[inline]
pub(crate) fn check() -> Result<()> {
    if is_forked() { Err(forked_error()) } else { Ok(()) }
}

#[cold]
fn forked_error() -> Error {
    let (child, parent) = (id(), STARTER.load(Relaxed));
    Error::new(
        ErrorKind::Forked,
        format!(
            "process {child} was forked from process {parent} after the parent had created a \
             runtime or opened a module, and neither Kiln's threads nor drivers exist in a forked \
             child; fork before that, or start another program in the child"
        ),
    )
}

/// The result of an operation that a forked child cannot complete.
pub(crate) trait ForkedOutput {
    fn from_error(error: Error) -> Self;
}

impl<T> ForkedOutput for Result<T> {
    fn from_error(error: Error) -> Self {
        Err(error)
    }
}

impl ForkedOutput for () {
    fn from_error(_: Error) {}
}
