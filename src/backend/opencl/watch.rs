//! Polling of a native queue's commands, for a driver that would report their ends too late.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use super::handle::OwnedEvent;
use crate::backend::poller::{PollOutcome, PolledQueue, Poller};
use crate::backend::{Notify, run_notify, shutdown};
use crate::sync::lock;

pub(super) struct QueueWatch {
    awaited: Mutex<Awaited>,
    poller: Arc<Poller>,
}

#[derive(Default)]
struct Awaited {
    /// Awaited commands by their positions on the native queue, oldest first.
    commands: VecDeque<Command>,
    /// Whether the poller thread has this native queue.
    has_poller: bool,
}

struct Command {
    position: u64,
    event: Arc<OwnedEvent>,
    notify: Notify,
}

impl QueueWatch {
    pub(super) fn new(poller: &Arc<Poller>) -> Arc<Self> {
        Arc::new(Self { awaited: Mutex::default(), poller: Arc::clone(poller) })
    }

    /// Registers `notify` to be called when the command at `position` has ended.
    pub(super) fn watch(self: &Arc<Self>, position: u64, event: OwnedEvent, notify: Notify) {
        if !event.is_pending() {
            return run_notify(notify);
        }
        let mut awaited = self.lock();
        let at = awaited.commands.partition_point(|command| command.position <= position);
        awaited.commands.insert(at, Command { position, event: Arc::new(event), notify });
        let is_new = !std::mem::replace(&mut awaited.has_poller, true);
        drop(awaited);
        // Without a poller thread, the scheduler polls, and `notify` is called once there is a thread.
        if is_new {
            self.poller.add(self.clone());
        } else {
            self.poller.nudge();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Awaited> {
        lock(&self.awaited)
    }
}

impl PolledQueue for QueueWatch {
    fn poll_oldest(&self) -> PollOutcome {
        let Ok(_call) = shutdown::enter() else { return PollOutcome::Pending };
        let oldest = {
            let mut awaited = self.lock();
            let Some(oldest) = awaited.commands.front() else {
                awaited.has_poller = false;
                return PollOutcome::Idle;
            };
            Arc::clone(&oldest.event)
        };
        // Success or failure is left to the notified code.
        if oldest.is_pending() {
            return PollOutcome::Pending;
        }
        let ended = {
            let mut awaited = self.lock();
            // Otherwise an older command was added meanwhile, which must be polled first.
            let is_oldest = |first: &Command| Arc::ptr_eq(&first.event, &oldest);
            if awaited.commands.front().is_some_and(is_oldest) {
                awaited.commands.pop_front()
            } else {
                None
            }
        };
        if let Some(Command { notify, .. }) = ended {
            run_notify(notify);
        }
        PollOutcome::Ended
    }
}
