//! Memory of launches that have ended, which each thread keeps for its next launches.
//!
//! Most launches are released by the thread that submits further ones. An allocation is a large part of the cost of
//! such a launch.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ptr;

use super::launch_work::LaunchWork;

/// Memory for one launch.
type Memory = Box<MaybeUninit<LaunchWork>>;

/// Maximum number of launches whose memory a thread keeps.
const MAX_KEPT: usize = 64;

thread_local! {
    static KEPT: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// Returns a launch in a box: in the memory of an earlier one, if there is any.
#[inline]
pub(super) fn boxed(work: LaunchWork) -> Box<LaunchWork> {
    // A thread that is exiting keeps nothing.
    let kept = KEPT.try_with(|kept| kept.borrow_mut().pop());
    Box::write(kept.ok().flatten().unwrap_or_else(Box::new_uninit), work)
}

/// Drops a launch, and keeps its memory for another one.
pub(super) fn recycle(work: Box<LaunchWork>) {
    let work = Box::into_raw(work);
    // Nothing is borrowed here: dropping a launch may run the code of drivers.
    // SAFETY: the pointer is that of a box, and the launch is not used again.
    unsafe { ptr::drop_in_place(work) };
    // SAFETY: the pointer is that of a box, and memory without a value has the layout of the launch.
    let memory: Memory = unsafe { Box::from_raw(work.cast()) };
    let _ = KEPT.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.len() < MAX_KEPT {
            kept.push(memory);
        }
    });
}
