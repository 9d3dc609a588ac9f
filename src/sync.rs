//! Locks that stay usable after a panic.
//!
//! The standard library poisons a lock when a thread panics while it holds it. Critical sections in Kiln
//! leave their data consistent at every step, so the next holder continues with it.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex, poisoned or not.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    ignore_poison(mutex.lock())
}

/// Unwraps the result of locking or of waiting on a condition variable, poisoned or not.
pub(crate) fn ignore_poison<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
