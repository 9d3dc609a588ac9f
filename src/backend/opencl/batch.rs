//! Batches of commands in quick succession, for drivers that wake a thread for each command.
//!
//! PoCL's workers sleep whenever they have nothing to do, and waking one takes longer than the rest of a
//! command's submission. If small commands come more slowly than they run, each one pays for a wake-up.
//! Therefore the first of several commands in quick succession waits for an event of Kiln's own. The others
//! wait for the first one, because the queue is in order, so one wake-up serves all. A batch starts once it has
//! [`FULL_BATCH`] commands, before a command that comes after a pause, or with the next flush. A flush precedes
//! every sleep that waits for the commands' ends.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use opencl3::event::{CL_COMPLETE, create_user_event, set_user_event_status};

use super::codes::driver_code;
use super::context::Context;
use super::handle::OwnedEvent;
use crate::backend::shutdown;
use crate::sync::lock;

/// Maximum time between two commands in quick succession. Small fused chains are about 10 us apart.
const MAX_GAP: Duration = Duration::from_micros(30);

/// Number of commands at which a batch starts without a flush.
const FULL_BATCH: u32 = 8;

/// Latest commands of an in-order queue that wait to be started.
#[derive(Default)]
pub(super) struct Batch(Mutex<State>);

#[derive(Default)]
struct State {
    /// Time at which the latest command came.
    latest: Option<Instant>,
    /// Event that the first command of the batch waits for.
    start_event: Option<OwnedEvent>,
    /// Number of commands in the batch.
    commands: u32,
}

impl Batch {
    /// Adds a command that waits only for its turn. Returns the event that it must wait for as well, if it is
    /// the first command of a batch.
    pub(super) fn add(&self, context: &Context, now: Instant) -> Option<OwnedEvent> {
        let mut state = self.state();
        let previous = state.latest.replace(now);
        state.commands += 1;
        let is_quick = previous.is_some_and(|previous| now - previous < MAX_GAP);
        if !is_quick {
            state.start();
        }
        if !is_quick || state.start_event.is_some() {
            return None;
        }
        let start = create_user_event(context.raw()).and_then(|raw| {
            // SAFETY: just created, and referenced here alone.
            let start = unsafe { OwnedEvent::new(raw) };
            state.start_event = Some(start.retain()?);
            Ok(start)
        });
        state.commands = 1;
        match start {
            Ok(start) => Some(start),
            Err(code) => {
                let code = driver_code(code);
                tracing::debug!(%code, "commands cannot be batched and start one by one");
                None
            }
        }
    }

    /// Starts the batch if it is large enough. Called after the command has been enqueued, or has failed to be.
    pub(super) fn start_if_full(&self) {
        let mut state = self.state();
        if state.commands >= FULL_BATCH {
            state.start();
        }
    }

    /// Starts all commands of the batch.
    pub(super) fn start(&self) {
        self.state().start();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn start(&mut self) {
        let Some(start) = self.start_event.take() else { return };
        if let Err(code) = set_user_event_status(start.raw(), CL_COMPLETE) {
            let code = driver_code(code);
            tracing::warn!(%code, "the driver failed to start a batch of commands");
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let Ok(_call) = shutdown::enter() else { return };
        self.start();
    }
}
