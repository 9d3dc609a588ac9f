//! Changes of a scheduler's state, under its lock.
//!
//! A change only notes the actions that are left to do once the lock is free, in the state's
//! [`DeferredActions`]: [`Transaction::unlock`] returns them.
//!
//! Lock order: this lock is taken first, then a fusion scope's settings, then its queue's recent scopes. The
//! locks of signals, of waiting producers, of the reactor's mailbox and of the timeline are innermost. Only the
//! submission of a copy between devices holds the locks of two schedulers at once. It takes them in the order
//! of their addresses.
//!
//! Some drivers call back inside the very calls that query a command's status, which are made under the
//! lock. A waiter that such a callback wakes may need the lock itself. Therefore
//! [`this_thread_holds_a_lock`] lets a callback check whether its thread holds such a lock.

use std::cell::Cell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::{DeferredActions, State};
use crate::error::{Error, catch_and_log};
use crate::sync::lock;

thread_local! {
    /// Number of scheduler locks that the thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread holds a scheduler lock.
pub(super) fn this_thread_holds_a_lock() -> bool {
    // A thread that is exiting holds none.
    HELD.try_with(|held| held.get() > 0).unwrap_or(false)
}

pub(super) struct StateLock(Mutex<State>);

/// A scheduler's state, locked for a change.
pub(super) struct Transaction<'s> {
    state: MutexGuard<'s, State>,
    /// Dropped last, when the lock is free again.
    retired: Retired,
}

/// Errors from the application, whose destructors may panic.
struct Retired(Vec<Error>);

impl Drop for Retired {
    fn drop(&mut self) {
        if self.0.is_empty() {
            return;
        }
        for error in mem::take(&mut self.0) {
            catch_and_log("an error that was dropped", || drop(error));
        }
    }
}

impl StateLock {
    pub(super) fn new(state: State) -> Self {
        Self(Mutex::new(state))
    }

    /// Locks the state. A panic under the lock leaves the state as it was between two steps.
    pub(super) fn lock(&self) -> Transaction<'_> {
        Transaction::new(lock(&self.0))
    }

    pub(super) fn try_lock(&self) -> Option<Transaction<'_>> {
        match self.0.try_lock() {
            Ok(state) => Some(Transaction::new(state)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Transaction::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<'s> Transaction<'s> {
    fn new(state: MutexGuard<'s, State>) -> Self {
        let _ = HELD.try_with(|held| held.set(held.get() + 1));
        Self { state, retired: Retired(Vec::new()) }
    }

    /// Ends the change by releasing the lock, and returns the actions that are left to do, if there are any.
    pub(super) fn unlock(mut self) -> Option<DeferredActions> {
        // Most submissions leave nothing to do, and the actions take long to move and to drop.
        (!self.state.actions.are_none()).then(|| mem::take(&mut self.state.actions))
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.state.dag.has_retired() {
            self.retired.0 = self.state.dag.take_retired();
        }
        let _ = HELD.try_with(|held| held.set(held.get() - 1));
    }
}

impl Deref for Transaction<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
