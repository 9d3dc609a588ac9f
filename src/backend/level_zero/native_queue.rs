//! In-order immediate command lists, and the commands in flight on each. With drivers that are older than such
//! lists, each command waits for the one before it.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use smallvec::SmallVec;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event::{Destination, Due, LzEvent, RawEvent};
use super::handle::OwnedList;
use super::kernel::LzKernel;
use super::memory::{LzMemory, Staging};
use crate::backend::poller::{Found, Watched};
use crate::backend::{NativeEvent, NativeQueue, Operation, shutdown};
use crate::error::{Error, Result};
use crate::sync::lock;

/// Maximum size of a read, in bytes, that any thread copies to its destination. The watcher copies larger
/// reads, so that no other thread waits for the copy.
const READ_BY_ANYBODY: usize = 64 << 10;

pub(super) struct LzNativeQueue {
    /// Command list; taken on drop.
    list: Option<OwnedList>,
    state: Arc<QueueState>,
    enqueued: u64,
    profiling: bool,
}

/// State that outlives the native queue, until its last command has ended.
pub(super) struct QueueState {
    pub(super) context: Arc<Context>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Commands in flight, oldest first.
    in_flight: VecDeque<Arc<LzEvent>>,
    /// Positions of the commands in flight that have waiters, oldest first.
    watched: VecDeque<u64>,
    /// Number of commands in flight that are reads the watcher has to finish.
    large_reads: usize,
    /// Whether this native queue is registered with the watcher.
    has_watcher: bool,
    /// Command list of a native queue that was dropped before its commands had ended.
    retired: Option<OwnedList>,
}

impl QueueState {
    /// Makes the watcher detect the end of the command at `position`. Without this, only threads that look at
    /// the command detect its end.
    pub(super) fn watch(self: &Arc<Self>, position: u64) {
        let mut queue = lock(&self.queue);
        if queue.in_flight.front().is_none_or(|oldest| oldest.position > position) {
            // Another thread has just detected the end, and performs the actions that are due.
            return;
        }
        let at = queue.watched.partition_point(|watched| *watched < position);
        if queue.watched.get(at) != Some(&position) {
            queue.watched.insert(at, position);
        }
        let is_new = !std::mem::replace(&mut queue.has_watcher, true);
        drop(queue);
        if is_new {
            self.context.watcher.add(self.clone());
        } else {
            self.context.watcher.nudge();
        }
    }

    /// Checks whether `event`, a command of this native queue, has ended. If so, performs the actions that are
    /// due.
    pub(super) fn look_at(&self, event: &LzEvent) {
        if let Some(lost) = self.context.loss() {
            return self.fail(lost);
        }
        let _call = match shutdown::enter() {
            Ok(call) => call,
            Err(error) => return self.fail(&error),
        };
        match event.is_signalled() {
            Ok(false) => {}
            Ok(true) if lock(&self.queue).large_reads > 0 && self.context.watcher.nudge() => {}
            Ok(true) => self.settle(event.position),
            Err(code) => self.fail(&self.unknown_end(code)),
        }
    }

    /// Finishes the command at `position`, which has ended, and all commands before it, which have ended too
    /// because the list is in order.
    fn settle(&self, position: u64) {
        for event in self.take_through(position) {
            event.finish(Ok(()));
        }
    }

    fn fail(&self, error: &Error) {
        for event in self.take_through(u64::MAX) {
            event.finish(Err(error.clone()));
        }
    }

    fn take_through(&self, position: u64) -> SmallVec<[Arc<LzEvent>; 8]> {
        let mut queue = lock(&self.queue);
        let mut taken = SmallVec::<[Arc<LzEvent>; 8]>::new();
        while queue.in_flight.front().is_some_and(|event| event.position <= position)
            && let Some(event) = queue.in_flight.pop_front()
        {
            queue.large_reads -= usize::from(event.is_large_read);
            taken.push(event);
        }
        self.context.in_flight.fetch_sub(taken.len(), SeqCst);
        while queue.watched.front().is_some_and(|watched| *watched <= position) {
            queue.watched.pop_front();
        }
        let retired = if queue.in_flight.is_empty() { queue.retired.take() } else { None };
        drop(queue);
        if self.context.loss().is_some() {
            // Destroying the list would wait for commands that never end.
            std::mem::forget(retired);
        }
        taken
    }

    /// Marks the device as lost: a driver that cannot report the state of one event will not report any other.
    fn unknown_end(&self, code: Code) -> Error {
        self.context.lose(code)
    }
}

impl Watched for QueueState {
    fn look(&self) -> Found {
        let oldest = {
            let mut queue = lock(&self.queue);
            let Some(&position) = queue.watched.front() else {
                queue.has_watcher = false;
                return Found::Nothing;
            };
            let first = queue.in_flight.front().map_or(position, |event| event.position);
            queue.in_flight.get((position - first) as usize).cloned()
        };
        if let Some(lost) = self.context.loss() {
            self.fail(lost);
            return Found::Ended;
        }
        // A watched command is in flight: both records are removed under the same lock.
        let Some(oldest) = oldest else { return Found::Ended };
        let _call = match shutdown::enter() {
            Ok(call) => call,
            Err(error) => {
                self.fail(&error);
                return Found::Ended;
            }
        };
        match oldest.is_signalled() {
            Ok(false) => return Found::Pending,
            Ok(true) => self.settle(oldest.position),
            Err(code) => self.fail(&self.unknown_end(code)),
        }
        Found::Ended
    }

    fn suspect(&self) {
        self.context.check();
    }
}

impl LzNativeQueue {
    pub(super) fn create(context: &Arc<Context>, profiling: bool) -> Result<Self> {
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let description = ze_command_queue_desc_t {
            stype: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
            pNext: ptr::null(),
            ordinal: context.ordinal,
            index: 0,
            flags: ZE_COMMAND_QUEUE_FLAG_IN_ORDER,
            mode: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS,
            priority: ZE_COMMAND_QUEUE_PRIORITY_NORMAL,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (context.api.zeCommandListCreateImmediate)(
                context.raw(),
                context.device.0,
                &raw const description,
                &raw mut raw,
            )
        };
        check(created).map_err(|code| {
            context.error(code, format!("no queue can be created on `{}`", context.info.name))
        })?;
        // SAFETY: just created, and owned only here.
        let list = unsafe { OwnedList::new(context.api, raw) };
        let state = QueueState { context: Arc::clone(context), queue: Mutex::default() };
        Ok(Self { list: Some(list), state: Arc::new(state), enqueued: 0, profiling })
    }

    /// Appends an operation that signals `signal`.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`], until `signal` is signalled.
    unsafe fn append(
        &self,
        operation: &Operation<'_>,
        signal: ze_event_handle_t,
        wait: &WaitList,
        due: &mut Due,
    ) -> Result<()> {
        let context = &self.state.context;
        let list = self.list.as_ref().map_or(ptr::null_mut(), OwnedList::raw);
        let refused = |code: Code, what: &str, bytes: usize, offset: usize| {
            context.error(code, format!("the driver refused {what} of {bytes} bytes at {offset}"))
        };
        match *operation {
            Operation::Launch { kernel, arguments, range } => {
                let kernel = LzKernel::of(kernel)?;
                // SAFETY: the list is alive; the caller guarantees the rest.
                unsafe { kernel.append(list, arguments, range, signal, wait) }
            }
            Operation::Write { bytes: 0, .. }
            | Operation::Read { bytes: 0, .. }
            | Operation::Fill { bytes: 0, .. }
            | Operation::Copy { bytes: 0, .. }
            | Operation::Marker => {
                // SAFETY: the list and the events are alive.
                let appended = unsafe {
                    (context.api.zeCommandListAppendBarrier)(
                        list,
                        signal,
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                check(appended).map_err(|code| context.error(code, "the driver refused a marker"))
            }
            Operation::Write { to, offset, from, bytes } => {
                let staging = Staging::take(context, bytes)?;
                // SAFETY: the caller provides `bytes` bytes, and the staging memory has room for them.
                unsafe { ptr::copy_nonoverlapping(from, staging.start(), bytes) };
                let (to, from) = (LzMemory::of(to)?.at(offset), staging.start());
                due.staging = Some(staging);
                // SAFETY: the range is inside the memory, and the staging memory is kept.
                unsafe { self.append_copy(list, to, from.cast(), bytes, signal, wait) }
                    .map_err(|code| refused(code, "a write", bytes, offset))
            }
            Operation::Read { from, offset, to, bytes } => {
                let staging = Staging::take(context, bytes)?;
                let (from, through) = (LzMemory::of(from)?.at(offset), staging.start());
                due.staging = Some(staging);
                due.read = Some(Destination { to, bytes });
                // SAFETY: the range is inside the memory, and the staging memory is kept.
                unsafe { self.append_copy(list, through.cast(), from, bytes, signal, wait) }
                    .map_err(|code| refused(code, "a read", bytes, offset))
            }
            Operation::Fill { memory, offset, bytes, pattern } => {
                let memory = LzMemory::of(memory)?.at(offset);
                // SAFETY: the list and the events are alive, the range is inside the memory, and the
                // driver copies the pattern before it returns.
                let appended = unsafe {
                    (context.api.zeCommandListAppendMemoryFill)(
                        list,
                        memory,
                        pattern.as_ptr().cast(),
                        pattern.len(),
                        bytes,
                        signal,
                        wait.len(),
                        wait.as_ptr(),
                    )
                };
                check(appended).map_err(|code| refused(code, "a fill", bytes, offset))
            }
            Operation::Copy { from, from_offset, to, to_offset, bytes } => {
                let from = LzMemory::of(from)?.at(from_offset);
                let to = LzMemory::of(to)?.at(to_offset);
                // SAFETY: both ranges are inside their memory.
                unsafe { self.append_copy(list, to, from, bytes, signal, wait) }
                    .map_err(|code| refused(code, "a copy", bytes, to_offset))
            }
        }
    }

    /// # Safety
    ///
    /// `to` and `from` are memory of the device or staging memory, and have `bytes` bytes until `signal` is
    /// signalled.
    unsafe fn append_copy(
        &self,
        list: ze_command_list_handle_t,
        to: *mut std::ffi::c_void,
        from: *const std::ffi::c_void,
        bytes: usize,
        signal: ze_event_handle_t,
        wait: &WaitList,
    ) -> Result<(), Code> {
        let api = self.state.context.api;
        // SAFETY: the list and the events are alive; the caller guarantees the memory.
        check(unsafe {
            (api.zeCommandListAppendMemoryCopy)(
                list,
                to,
                from,
                bytes,
                signal,
                wait.len(),
                wait.as_ptr(),
            )
        })
    }
}

impl NativeQueue for LzNativeQueue {
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let context = &self.state.context;
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let mut wait = WaitList::new(wait)?;
        if !context.has_ordered_lists {
            // A command that is no longer in flight has ended.
            let latest = lock(&self.state.queue).in_flight.back().cloned();
            latest.into_iter().for_each(|event| wait.push(event));
        }
        let pool = &context.events[usize::from(self.profiling)];
        let signal = pool.take(context)?;
        let queued = self.profiling.then(Instant::now);
        let mut due = Due::default();
        // SAFETY: guaranteed by the caller. The event, and the events that are waited for, are kept.
        let appended = unsafe { self.append(operation, signal.raw(), &wait, &mut due) };
        if let Err(error) = appended {
            give_back(context, signal, self.profiling);
            return Err(error);
        }
        due.waits_for = wait.events;
        let is_large_read = due.read.as_ref().is_some_and(|read| read.bytes > READ_BY_ANYBODY);
        let position = self.enqueued;
        self.enqueued += 1;
        let event = LzEvent::new(&self.state, signal, position, queued, is_large_read, due);
        let event = Arc::new(event);
        {
            let mut queue = lock(&self.state.queue);
            context.in_flight.fetch_add(1, SeqCst);
            queue.large_reads += usize::from(is_large_read);
            queue.in_flight.push_back(Arc::clone(&event));
        }
        if is_large_read {
            self.state.watch(position);
        }
        Ok(event)
    }

    fn flush(&mut self) -> Result<()> {
        // An immediate list submits each command as it is appended.
        Ok(())
    }
}

/// Returns an event to its pool after a failed enqueue: no command signals it. If the device was lost
/// meanwhile, the event is leaked, because the device may still signal it.
fn give_back(context: &Context, event: RawEvent, profiling: bool) {
    if context.loss().is_some() {
        std::mem::forget(event);
    } else {
        context.events[usize::from(profiling)].give(event);
    }
}

impl Drop for LzNativeQueue {
    fn drop(&mut self) {
        let list = self.list.take();
        let mut queue = lock(&self.state.queue);
        let Some(latest) = queue.in_flight.back().map(|event| event.position) else {
            drop(queue);
            drop(list);
            return;
        };
        queue.retired = list;
        drop(queue);
        self.state.watch(latest);
    }
}

/// Events in the form that the driver takes. They are kept until the command that waits for them has ended.
#[derive(Default)]
pub(super) struct WaitList {
    events: SmallVec<[Arc<LzEvent>; 2]>,
    raw: SmallVec<[ze_event_handle_t; 2]>,
}

impl WaitList {
    /// Creates a list of the events that have not ended yet.
    fn new(events: &[Arc<dyn NativeEvent>]) -> Result<Self> {
        let mut list = Self::default();
        for event in events {
            let event = LzEvent::of(event)?;
            if event.is_pending() {
                list.push(event);
            }
        }
        Ok(list)
    }

    fn push(&mut self, event: Arc<LzEvent>) {
        self.raw.push(event.raw());
        self.events.push(event);
    }

    pub(super) fn len(&self) -> u32 {
        self.raw.len() as u32
    }

    /// Returns a pointer to the handles, or null if there are none. The driver does not write to it.
    pub(super) fn as_ptr(&self) -> *mut ze_event_handle_t {
        if self.raw.is_empty() { ptr::null_mut() } else { self.raw.as_ptr().cast_mut() }
    }
}
