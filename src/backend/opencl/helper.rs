//! The thread that works for a driver that counts on those who wait.
//!
//! Intel's runtime for CPUs (2026.22) has one thread less than the CPU has units: whoever waits in
//! `clFinish` or `clWaitForEvents` works along meanwhile. Who awaits a command waits in neither, and
//! would get it done by the others alone: on two units in 106 ms instead of 53. So this thread waits
//! there for commands that somebody awaits and that take long. Their ends are told as without it.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use opencl3::event::wait_for_events;

use super::handle::OwnedEvent;
use crate::backend::exit;

/// A command takes long if it is awaited in one look and still in the next, so long after. With each
/// shorter one, waking up would cost more than is won.
const PAUSE: Duration = Duration::from_micros(500);

/// It has so many in view, and keeps what they use until the next look. Where more are awaited,
/// working on these is working on what the others wait for.
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
    awaited: Vec<OwnedEvent>,
    started: bool,
    asleep: bool,
    closed: bool,
}

impl Helper {
    pub(super) fn new() -> Self {
        Self { shared: Arc::default() }
    }

    /// Somebody awaits a command that was handed to the device.
    pub(super) fn awaited(&self, event: OwnedEvent) {
        let mut state = self.shared.lock();
        if state.awaited.len() == MOST {
            return;
        }
        state.awaited.push(event);
        if !state.started {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("kiln-helper".to_owned());
            match thread.spawn(move || shared.run()) {
                Ok(_) => state.started = true,
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
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_one();
    }
}

impl Shared {
    /// Nothing here leaves the state half-changed when it panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut seen: Vec<OwnedEvent> = Vec::new();
        let mut looks = 0;
        while !self.sleep(looks >= LOOKS) {
            let awaited = mem::take(&mut self.lock().awaited);
            looks = if awaited.is_empty() { looks + 1 } else { 0 };
            seen.retain(OwnedEvent::is_pending);
            if let Some(long) = seen.pop() {
                looks = 0;
                let Some(_call) = exit::enter() else { return };
                // How it ended is for those who await it.
                let _ = wait_for_events(&[long.raw()]);
            }
            seen.extend(awaited);
            seen.retain(OwnedEvent::is_pending);
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
            state = self.wake.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
            state.asleep = false;
        }
        thread::sleep(PAUSE);
        self.lock().closed
    }
}
