//! Commands in quick succession, on drivers that wake a thread for each.
//!
//! PoCL's workers sleep whenever they have nothing to do, and to wake one takes longer than all else
//! that submitting a command takes. Where small commands come more slowly than they run, each pays
//! for that. So the first of several in quick succession is made to wait for an event of Kiln's own,
//! and the order of the queue has the others wait for it: one wake-up does for all. They start once
//! they are a few, before one that comes after a pause, or with the next flush, which comes before
//! anybody sleeps until they have ended.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use opencl3::event::{CL_COMPLETE, create_user_event, set_user_event_status};

use super::codes::driver_code;
use super::context::Context;
use super::handle::OwnedEvent;
use crate::backend::shutdown;
use crate::sync::lock;

/// No more time is between commands in quick succession. Some 10 us lie between small fused chains.
const QUICK: Duration = Duration::from_micros(30);

/// So many start without a flush.
const MANY: u32 = 8;

/// The latest commands of an in-order queue, as far as they wait to be started.
#[derive(Default)]
pub(super) struct Burst(Mutex<State>);

#[derive(Default)]
struct State {
    /// When the latest command came.
    latest: Option<Instant>,
    /// What the first of those waits for that are to start together.
    start: Option<OwnedEvent>,
    /// How many they are.
    commands: u32,
}

impl Burst {
    /// A command comes now that waits for nothing but its turn. Gives what it is to wait for besides,
    /// if it is the first of several.
    pub(super) fn join(&self, context: &Context, now: Instant) -> Option<OwnedEvent> {
        let mut state = self.state();
        let before = state.latest.replace(now);
        state.commands += 1;
        let is_quick = before.is_some_and(|before| now - before < QUICK);
        if !is_quick {
            state.begin();
        }
        if !is_quick || state.start.is_some() {
            return None;
        }
        let start = create_user_event(context.raw()).and_then(|raw| {
            // SAFETY: just created, and referenced here alone.
            let start = unsafe { OwnedEvent::new(raw) };
            state.start = Some(start.again()?);
            Ok(start)
        });
        state.commands = 1;
        match start {
            Ok(start) => Some(start),
            Err(code) => {
                let code = driver_code(code);
                tracing::debug!(%code, "commands start one by one");
                None
            }
        }
    }

    /// The command has been enqueued, or has not.
    pub(super) fn joined(&self) {
        let mut state = self.state();
        if state.commands >= MANY {
            state.begin();
        }
    }

    /// Has all start that wait for it.
    pub(super) fn begin(&self) {
        self.state().begin();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn begin(&mut self) {
        let Some(start) = self.start.take() else { return };
        if let Err(code) = set_user_event_status(start.raw(), CL_COMPLETE) {
            let code = driver_code(code);
            tracing::warn!(%code, "the driver does not start commands that it was given");
        }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        let Ok(_call) = shutdown::enter() else { return };
        self.begin();
    }
}
