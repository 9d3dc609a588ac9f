//! Finish worker: a thread that waits in the driver, for a driver that relies on waiting threads to do work.
//!
//! Intel's runtime for CPUs (2026.22) has one thread less than the CPU has units: a thread that waits in
//! `clFinish` or `clWaitForEvents` does work meanwhile. A thread that awaits a command waits in neither, so
//! only the runtime's other threads would do the work: on two units in 106 ms instead of 53 ms. Therefore the
//! finish worker waits in the driver while a command that takes long is awaited. The ends of commands are
//! reported as without it.
//!
//! Both calls return only once the queue is empty, however long other threads enqueue more. An event would keep
//! everything that its command used alive until then, so the worker keeps none.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use super::handle::OwnedQueue;
use crate::backend::{Notify, shutdown};
use crate::process;
use crate::process::threads;
use crate::sync::{ignore_poison, lock};

/// Pause between two passes. A command takes long if it is awaited in one pass and still in the next. For
/// shorter commands, waking up would cost more than it gains.
const PAUSE: Duration = Duration::from_micros(500);

/// Maximum number of tracked commands. If more are awaited, work on the tracked commands is work that the
/// others wait for.
const MAX_TRACKED: usize = 16;

/// Number of passes without a newly awaited command after which the thread sleeps until there is one.
const IDLE_PASSES: u32 = 20;

/// Handle of the thread, which is started when there is something to wait for. The thread ends once the handle
/// is dropped and no long command runs.
pub(super) struct FinishWorker {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Commands that became awaited since the last pass.
    awaited: Vec<Awaited>,
    started: bool,
    asleep: bool,
    closed: bool,
}

/// Awaited command.
struct Awaited {
    queue: Weak<OwnedQueue>,
    /// Alive until the driver's callback at the command's end, which owns it.
    pending: Weak<()>,
}

impl Awaited {
    fn is_pending(&self) -> bool {
        self.pending.strong_count() > 0
    }
}

impl FinishWorker {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Registers an awaited command of the queue. Returns the callback that the driver is to call at the
    /// command's end, in place of `notify`.
    pub(super) fn track(&self, queue: &Arc<OwnedQueue>, notify: Notify) -> Notify {
        let mut state = self.shared.lock();
        if state.awaited.len() == MAX_TRACKED {
            return notify;
        }
        let pending = Arc::new(());
        let queue = Arc::downgrade(queue);
        state.awaited.push(Awaited { queue, pending: Arc::downgrade(&pending) });
        if !state.started {
            let shared = Arc::clone(&self.shared);
            match threads::start("kiln-helper", move || shared.run()) {
                Ok(()) => state.started = true,
                Err(error) => {
                    state.awaited.clear();
                    tracing::debug!(
                        %error,
                        "the finish worker could not be started; commands take longer without it"
                    );
                }
            }
        }
        let asleep = state.asleep;
        drop(state);
        if asleep {
            self.shared.wake.notify_one();
        }
        Box::new(move || {
            drop(pending);
            notify();
        })
    }
}

impl Drop for FinishWorker {
    fn drop(&mut self) {
        // A forked child does not have the thread, which may have held the lock.
        if process::is_forked() {
            return;
        }
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// Locks the state. No code here leaves it half-changed when it panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn run(&self) {
        let mut tracked: Vec<Awaited> = Vec::new();
        let mut idle_passes = 0;
        while !self.sleep(idle_passes >= IDLE_PASSES) {
            let awaited = mem::take(&mut self.lock().awaited);
            idle_passes = if awaited.is_empty() { idle_passes + 1 } else { 0 };
            tracked.retain(Awaited::is_pending);
            if let Some(queue) = tracked.pop().and_then(|long| long.queue.upgrade()) {
                idle_passes = 0;
                let Ok(_call) = shutdown::enter() else { return };
                queue.finish();
            }
            tracked.extend(awaited);
            tracked.retain(Awaited::is_pending);
            tracked.truncate(MAX_TRACKED);
        }
    }

    /// Sleeps until the next pass is due. If `until_awaited`, first sleeps until a command is awaited again.
    /// Returns whether the handle was dropped.
    fn sleep(&self, until_awaited: bool) -> bool {
        if until_awaited {
            let mut state = self.lock();
            state.asleep = true;
            let is_idle = |state: &mut State| state.awaited.is_empty() && !state.closed;
            state = ignore_poison(self.wake.wait_while(state, is_idle));
            state.asleep = false;
        }
        thread::sleep(PAUSE);
        self.lock().closed
    }
}
