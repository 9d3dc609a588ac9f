//! The commands of a lane whose ends are asked for, since the driver would report them too late.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use super::handle::OwnedEvent;
use crate::backend::poller::{Found, Watched, Watcher};
use crate::backend::{Notify, shutdown, tell};
use crate::sync::lock;

pub(super) struct LaneWatch {
    awaited: Mutex<Awaited>,
    watcher: Arc<Watcher>,
}

#[derive(Default)]
struct Awaited {
    /// By their positions on the lane, oldest first.
    commands: VecDeque<Command>,
    /// Whether the watcher knows this lane.
    has_watcher: bool,
}

struct Command {
    position: u64,
    event: Arc<OwnedEvent>,
    notify: Notify,
}

impl LaneWatch {
    pub(super) fn new(watcher: &Arc<Watcher>) -> Arc<Self> {
        Arc::new(Self { awaited: Mutex::default(), watcher: Arc::clone(watcher) })
    }

    /// Has `notify` called when the command at `position` has ended.
    pub(super) fn watch(self: &Arc<Self>, position: u64, event: OwnedEvent, notify: Notify) {
        if !event.is_pending() {
            return tell(notify);
        }
        let mut awaited = self.lock();
        let at = awaited.commands.partition_point(|command| command.position <= position);
        awaited.commands.insert(at, Command { position, event: Arc::new(event), notify });
        let is_new = !std::mem::replace(&mut awaited.has_watcher, true);
        drop(awaited);
        // Without a thread, the scheduler asks, and this is told once there is one.
        if is_new {
            self.watcher.add(self.clone());
        } else {
            self.watcher.nudge();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Awaited> {
        lock(&self.awaited)
    }
}

impl Watched for LaneWatch {
    fn look(&self) -> Found {
        let Ok(_call) = shutdown::enter() else { return Found::Pending };
        let oldest = {
            let mut awaited = self.lock();
            let Some(oldest) = awaited.commands.front() else {
                awaited.has_watcher = false;
                return Found::Nothing;
            };
            Arc::clone(&oldest.event)
        };
        // Whether well or not is for whoever is told.
        if oldest.is_pending() {
            return Found::Pending;
        }
        let ended = {
            let mut awaited = self.lock();
            // Else an older one has come meanwhile, which is to be asked about first.
            let is_oldest = |first: &Command| Arc::ptr_eq(&first.event, &oldest);
            if awaited.commands.front().is_some_and(is_oldest) {
                awaited.commands.pop_front()
            } else {
                None
            }
        };
        if let Some(Command { notify, .. }) = ended {
            tell(notify);
        }
        Found::Ended
    }
}
