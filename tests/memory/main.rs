//! Memory: how much is allocated and used. A process of its own, since the allocator counts for the whole process.

#[cfg(unix)]
mod foreign_bytes;
mod launches;
mod reads;
mod scopes;
mod spirv;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Use of memory, and its peak.
static MEMORY: PeakAlloc = PeakAlloc;

/// Minimum size in bytes of an allocation that [`LARGE`] counts.
const MIN_LARGE: usize = 128 << 10;

/// Number of large allocations of the process.
static LARGE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Number of allocations of a thread.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all calls are passed on to an allocator that passes them on to the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGE.fetch_add(usize::from(layout.size() >= MIN_LARGE), SeqCst);
        // A thread that is exiting counts nothing.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: guaranteed by the caller.
        unsafe { MEMORY.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { MEMORY.dealloc(memory, layout) }
    }
}

/// Waits until no other test runs, and keeps others waiting until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the peak of the memory that `work` uses in addition to the earlier use, including its result.
fn peak<T>(work: impl FnOnce() -> T) -> usize {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    drop(work());
    MEMORY.peak_usage().saturating_sub(before)
}
