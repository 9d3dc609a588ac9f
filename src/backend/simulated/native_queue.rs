//! In-order queues: with a thread each, or run by whoever enqueues.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use super::command::{Command, admit, perform};
use super::event::Event;
use super::shared::{Shared, code, count};
use crate::backend::{Lane, NativeEvent, Operation};
use crate::error::{Error, ErrorKind, Result};
use crate::process::threads;
use crate::sync::lock;

/// So many commands start without a flush.
const BATCH: usize = 64;

/// A lane whose commands run on a thread of its own.
///
/// Commands start when they are flushed, or [`BATCH`] of them are queued: a caller that forgets to
/// flush sees what it would see on a real device, commands that never end.
pub(super) struct ThreadedLane {
    shared: Arc<Shared>,
    profiling: bool,
    queued: Vec<Command>,
    to_thread: Sender<Command>,
}

impl ThreadedLane {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool) -> Result<Self> {
        let (to_thread, commands) = channel();
        let thread_shared = shared.clone();
        // The thread is detached: it ends by itself once the lane is dropped and the queue empty.
        let run = move || run_commands(&commands, &thread_shared);
        threads::start("kiln-simulated", run).map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "cannot start a thread for a lane")
                .with_code(code(-6, "CL_OUT_OF_HOST_MEMORY"))
                .with_source(error)
        })?;
        Ok(Self { shared: shared.clone(), profiling, queued: Vec::new(), to_thread })
    }

    fn submit(&mut self) {
        for command in self.queued.drain(..) {
            command.event.submitted();
            // The thread lives as long as this sender.
            let _ = self.to_thread.send(command);
        }
    }
}

fn run_commands(commands: &Receiver<Command>, shared: &Shared) {
    for command in commands {
        command.wait();
        shared.commands.pass();
        command.run(shared);
    }
}

impl Lane for ThreadedLane {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        // SAFETY: The caller's promise; the command runs before its event ends.
        let action = unsafe { admit(&self.shared, operation, wait) }?;
        let event = Event::new(&self.shared, self.profiling);
        let command = Command::new(&self.shared, action, wait, event.clone())?;
        let has_room = command.has_room;
        self.queued.push(command);
        if !has_room {
            self.submit();
            event.wait();
        } else if self.queued.len() >= BATCH {
            self.submit();
        }
        Ok(event)
    }

    fn flush(&mut self) -> Result<()> {
        count(&self.shared.counters.flushes);
        self.submit();
        Ok(())
    }
}

impl Drop for ThreadedLane {
    fn drop(&mut self) {
        self.submit();
    }
}

/// A lane whose commands run inside `enqueue`.
pub(super) struct ImmediateLane {
    shared: Arc<Shared>,
    profiling: bool,
}

impl ImmediateLane {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool) -> Self {
        Self { shared: shared.clone(), profiling }
    }
}

impl Lane for ImmediateLane {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let shared = &self.shared;
        // SAFETY: The caller's promise; the command runs before its event ends.
        let action = unsafe { admit(shared, operation, wait) }?;
        let event = Event::new(shared, self.profiling);
        event.submitted();
        if shared.commands.is_closed() || shared.backlog.is_busy() {
            shared.backlog.push(Command::new(shared, action, wait, event.clone())?);
            shared.backlog.run(shared);
        } else {
            // Nothing is held back, so all that this waits for has ended.
            let blocked =
                wait.iter().any(|event| Event::of(event, shared).is_ok_and(Event::failed));
            let outcome = perform(shared, action, &event, blocked);
            event.settle(outcome);
        }
        Ok(event)
    }

    fn flush(&mut self) -> Result<()> {
        count(&self.shared.counters.flushes);
        Ok(())
    }
}

/// The commands of an immediate device that were held back, of all lanes in the order in which they
/// were enqueued: each finds that those it waits for have run.
#[derive(Default)]
pub(super) struct Backlog {
    /// Whether any are held back or still run, so that later ones must queue behind them.
    busy: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// Somebody runs them.
    running: bool,
}

impl Backlog {
    fn is_busy(&self) -> bool {
        self.busy.load(SeqCst)
    }

    fn push(&self, command: Command) {
        let mut queue = lock(&self.queue);
        self.busy.store(true, SeqCst);
        queue.commands.push_back(command);
    }

    /// Runs what is held back, as far as the device is not paused and nobody else does.
    ///
    /// Whoever pushes calls this afterwards, and whoever resumes the device too; the later of the
    /// two sees what the other did.
    pub(super) fn run(&self, shared: &Shared) {
        let mut queue = lock(&self.queue);
        if mem::replace(&mut queue.running, true) {
            return;
        }
        while !shared.commands.is_closed() {
            let Some(command) = queue.commands.pop_front() else {
                break;
            };
            drop(queue);
            command.run(shared);
            queue = lock(&self.queue);
        }
        queue.running = false;
        self.busy.store(!queue.commands.is_empty(), SeqCst);
    }
}
