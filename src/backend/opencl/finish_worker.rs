//! The thread that works for a driver that counts on those who wait.
//!
//! Intel's runtime for CPUs (2026.22) has one thread less than the CPU has units: whoever waits in
//! `clFinish` or `clWaitForEvents` works along meanwhile. Who awaits a command waits in neither, and
//! would get it done by the others alone: on two units in 106 ms instead of 53. So this thread waits
//! there for commands that somebody awaits and that take long. Their ends are told as without it.
//!
//! Both calls come back only once nothing is left to do on the queue, however long others enqueue
//! more. An event would keep what its command used until then, so none is kept here.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use super::queue::Queue;
use crate::backend::{Notify, shutdown};
use crate::process;
use crate::process::threads;
use crate::sync::{ignore_poison, lock};

/// A command takes long if it is awaited in one look and still in the next, so long after. With each
/// shorter one, waking up would cost more than is won.
const PAUSE: Duration = Duration::from_micros(500);

/// It has so many in view. Where more are awaited, working on these is working on what the others
/// wait for.
const MOST: usize = 16;

/// After so many looks at which nothing was awaited it sleeps until something is.
const LOOKS: u32 = 20;

/// The handle of the thread, which is started when there is something to wait for, and ends once this
/// is dropped and no long command runs.
pub(super) struct Helper {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// What somebody began to await since the last look.
    awaited: Vec<Awaited>,
    started: bool,
    asleep: bool,
    closed: bool,
}

/// A command that somebody awaits.
struct Awaited {
    queue: Weak<Queue>,
    /// Kept by what the driver calls at its end.
    pending: Weak<()>,
}

impl Awaited {
    fn is_pending(&self) -> bool {
        self.pending.strong_count() > 0
    }
}

impl Helper {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Somebody awaits a command of the queue. Gives back what the driver is to call at its end.
    pub(super) fn awaited(&self, queue: &Arc<Queue>, notify: Notify) -> Notify {
        let mut state = self.shared.lock();
        if state.awaited.len() == MOST {
            return notify;
        }
        let pending = Arc::new(());
        let (queue, until) = (Arc::downgrade(queue), Arc::downgrade(&pending));
        state.awaited.push(Awaited { queue, pending: until });
        if !state.started {
            let shared = Arc::clone(&self.shared);
            match threads::start("kiln-helper", move || shared.run()) {
                Ok(()) => state.started = true,
                Err(error) => {
                    state.awaited.clear();
                    tracing::debug!(%error, "commands take longer without a helper");
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

impl Drop for Helper {
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
    /// Nothing here leaves the state half-changed when it panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn run(&self) {
        let mut seen: Vec<Awaited> = Vec::new();
        let mut looks = 0;
        while !self.sleep(looks >= LOOKS) {
            let awaited = mem::take(&mut self.lock().awaited);
            looks = if awaited.is_empty() { looks + 1 } else { 0 };
            seen.retain(Awaited::is_pending);
            if let Some(queue) = seen.pop().and_then(|long| long.queue.upgrade()) {
                looks = 0;
                let Ok(_call) = shutdown::enter() else { return };
                queue.finish();
            }
            seen.extend(awaited);
            seen.retain(Awaited::is_pending);
            seen.truncate(MOST);
        }
    }

    /// Until the next look is due, if need be when something is awaited again. Tells whether the
    /// handle is gone.
    fn sleep(&self, soundly: bool) -> bool {
        if soundly {
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
