//! In-order native queues: with a thread each, or run by the thread that enqueues.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::codes::code;
use super::command::{Command, admit, perform};
use super::counters::count;
use super::event::Event;
use super::shared::Shared;
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
    omits_events: bool,
    queued: Vec<Command>,
    to_thread: Sender<Command>,
}

impl ThreadedQueue {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool, omits_events: bool) -> Result<Self> {
        let (to_thread, commands) = channel();
        let thread_shared = shared.clone();
        // The thread is detached. It ends once the native queue is dropped and no command is left.
        let run = move || run_commands(&commands, &thread_shared);
        threads::start("kiln-simulated", run).map_err(|error| {
            Error::new(ErrorKind::OutOfResources, "cannot start a thread for a native queue")
                .with_code(code(-6, "CL_OUT_OF_HOST_MEMORY"))
                .with_source(error)
        })?;
        Ok(Self { shared: shared.clone(), profiling, omits_events, queued: Vec::new(), to_thread })
    }

    /// Queues an operation behind the events in `wait`. Returns its event, for the caller unless `is_reported` is
    /// not set.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`].
    unsafe fn queue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
        is_reported: bool,
    ) -> Result<Arc<Event>> {
        // SAFETY: guaranteed by the caller; the command runs before its event ends.
        let action = unsafe { admit(&self.shared, operation, wait) }?;
        let event = Event::new(&self.shared, self.profiling);
        let command = Command::new(&self.shared, action, wait, event.clone(), is_reported)?;
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

    fn submit(&mut self) {
        for command in self.queued.drain(..) {
            command.event.submitted();
            // The thread lives as long as this sender.
            let _ = self.to_thread.send(command);
        }
    }
}

fn run_commands(commands: &Receiver<Command>, shared: &Shared) {
    let mut unreported = None;
    for command in commands {
        command.wait();
        shared.commands.pass();
        command.run(shared, &mut unreported);
    }
}

impl NativeQueue for ThreadedQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { self.queue(operation, wait, true) }?)
    }

    unsafe fn enqueue_without_event(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Option<Arc<dyn NativeEvent>>> {
        let is_reported = !self.omits_events || !matches!(operation, Operation::Launch { .. });
        // SAFETY: guaranteed by the caller.
        let event = unsafe { self.queue(operation, &[], is_reported) }?;
        Ok(if is_reported { Some(event) } else { None })
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
    omits_events: bool,
    /// Failure of a launch without an event, until the next event reports it.
    unreported: Option<Error>,
}

impl ImmediateQueue {
    pub(super) fn new(shared: &Arc<Shared>, profiling: bool, omits_events: bool) -> Self {
        Self { shared: shared.clone(), profiling, omits_events, unreported: None }
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
        let mut unreported = self.unreported.take();
        if shared.commands.is_closed() || shared.backlog.is_busy() {
            let command = Command::new(shared, action, wait, event.clone(), true)?;
            let run = move |shared: &Shared| command.run(shared, &mut unreported);
            shared.backlog.push(Box::new(run));
            shared.backlog.run(shared);
        } else {
            // Nothing is held back, so all events in `wait` have ended.
            let blocked =
                wait.iter().any(|event| Event::of(event, shared).is_ok_and(Event::failed));
            event.started();
            let outcome = perform(shared, action, blocked);
            event.set_outcome(unreported.map_or(outcome, Err));
        }
        Ok(event)
    }

    unsafe fn enqueue_without_event(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Option<Arc<dyn NativeEvent>>> {
        let shared = &self.shared;
        let is_launch = matches!(operation, Operation::Launch { .. });
        if !is_launch
            || !self.omits_events
            || shared.commands.is_closed()
            || shared.backlog.is_busy()
        {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.enqueue(operation, &[]) }.map(Some);
        }
        // SAFETY: guaranteed by the caller; the command runs at once.
        let action = unsafe { admit(shared, operation, &[]) }?;
        if let Err(error) = perform(shared, action, false) {
            self.unreported.get_or_insert(error);
        }
        Ok(None)
    }

    fn flush(&mut self) -> Result<()> {
        count(&self.shared.counters.flushes);
        Ok(())
    }
}
