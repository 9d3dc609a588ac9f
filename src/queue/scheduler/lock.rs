//! The lock of a scheduler's state, of which its thread knows that it holds it.
//!
//! Some drivers call back inside the very calls that ask how a command went, which are made under the
//! lock: whoever a callback would wake may want the lock itself.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::State;
use crate::error::{Error, outlast};

thread_local! {
    /// How many such locks the thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread holds such a lock.
pub(super) fn this_thread_holds_one() -> bool {
    // A thread that ends holds none.
    HELD.try_with(|held| held.get() > 0).unwrap_or(false)
}

pub(super) struct StateLock(Mutex<State>);

pub(super) struct Locked<'s> {
    state: MutexGuard<'s, State>,
    /// Dropped last, when the lock is free again.
    retired: Retired,
}

/// Errors of the application's, whose drops may panic.
struct Retired(Vec<Error>);

impl Drop for Retired {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        for error in std::mem::take(&mut self.0) {
            outlast("an error that was dropped", || drop(error));
        }
    }
}

impl StateLock {
    pub(super) fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    /// A panic while the lock was held leaves the state as it was between two steps.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked::new(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        match self.0.try_lock() {
            Ok(state) => Some(Locked::new(state)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Locked::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<'s> Locked<'s> {
    fn new(state: MutexGuard<'s, State>) -> Self {
        let _ = HELD.try_with(|held| held.set(held.get() + 1));
        Self { state, retired: Retired(Vec::new()) }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.state.dag.has_retired() {
            self.retired.0 = self.state.dag.take_retired();
        }
        let _ = HELD.try_with(|held| held.set(held.get() - 1));
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
