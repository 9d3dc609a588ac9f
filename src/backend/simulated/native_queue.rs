//! In-order native queues: with a thread each, or run by the thread that enqueues.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::command::{Command, admit, perform};
use super::event::Event;
use super::shared::{Shared, code, count};
use crate::backend::{NativeEvent, NativeQueue, Operation};
use crate::error::{Error, ErrorKind, Result};
use crate::process::threads;

/// Number of queued commands that start without a flush.
const BATCH: usize = 64;

/// Native queue whose commands run on a thread of its own.
///
/// Commands start when they are flushed, or when [`BATCH`] of them are queued. A caller that does not flush
/// sees commands that never end, as on a real device.
pub(super) struct ThreadedQueue {
    shared: Arc<Shared>,
    profiling: bool,
    queued: Vec<Command>,
    to_thread: Sender<Command>,
}

impl ThreadedQueue {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool) -> Result<Self> {
        let (to_thread, commands) = channel();
        let thread_shared = shared.clone();
        // The thread is detached. It ends once the native queue is dropped and no command is left.
        let run = move || run_commands(&commands, &thread_shared);
        threads::start("kiln-simulated", run).map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "cannot start a thread for a native queue")
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

impl NativeQueue for ThreadedQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        // SAFETY: guaranteed by the caller; the command runs before its event ends.
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

impl Drop for ThreadedQueue {
    fn drop(&mut self) {
        self.submit();
    }
}

/// Native queue whose commands run inside `enqueue`.
pub(super) struct ImmediateQueue {
    shared: Arc<Shared>,
    profiling: bool,
}

impl ImmediateQueue {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool) -> Self {
        Self { shared: shared.clone(), profiling }
    }
}

impl NativeQueue for ImmediateQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let shared = &self.shared;
        // SAFETY: guaranteed by the caller; the command runs before its event ends.
        let action = unsafe { admit(shared, operation, wait) }?;
        let event = Event::new(shared, self.profiling);
        event.submitted();
        if shared.commands.is_closed() || shared.backlog.is_busy() {
            let command = Command::new(shared, action, wait, event.clone())?;
            shared.backlog.push(Box::new(move |shared: &Shared| command.run(shared)));
            shared.backlog.run(shared);
        } else {
            // Nothing is held back, so all events in `wait` have ended.
            let blocked =
                wait.iter().any(|event| Event::of(event, shared).is_ok_and(Event::failed));
            let outcome = perform(shared, action, &event, blocked);
            event.set_outcome(outcome);
        }
        Ok(event)
    }

    fn flush(&mut self) -> Result<()> {
        count(&self.shared.counters.flushes);
        Ok(())
    }
}
