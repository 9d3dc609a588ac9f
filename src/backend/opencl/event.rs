//! Events of commands: their progress, times and callbacks.

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use opencl3::event::*;
use smallvec::SmallVec;

use super::codes::error;
use super::handle::{OwnedEvent, status_error};
use super::queue::Queue;
use super::watch::QueueWatch;
use crate::backend::handler_guard::HandlerGuard;
use crate::backend::{NativeEvent, Notify, Profile, Progress, own_object, run_notify, shutdown};
use crate::error::Result;

/// Events of the commands that were enqueued for one operation. The commands run one after the other.
pub(super) struct SubmittedEvents {
    /// Event of the first command, if there are several.
    first: Option<OwnedEvent>,
    last: OwnedEvent,
}

impl SubmittedEvents {
    pub(super) fn one(event: OwnedEvent) -> Self {
        Self { first: None, last: event }
    }

    /// Adds the event of a further command.
    pub(super) fn then(&mut self, event: OwnedEvent) {
        let before = mem::replace(&mut self.last, event);
        self.first.get_or_insert(before);
    }
}

pub(super) struct ClEvent {
    /// Event of the first command, if there are several and their times are recorded.
    first: Option<OwnedEvent>,
    event: OwnedEvent,
    /// Number of commands whose ends the event reports.
    commands: usize,
    profiling: bool,
    /// Failure code that the driver passed to the callback, or zero.
    reported: OnceLock<Arc<AtomicI32>>,
    /// Watch that polls for the command's end, and the command's position on its native queue, if the driver
    /// reports the end too late.
    watch: Option<(Arc<QueueWatch>, u64)>,
    /// Guard for the first launch, if the driver compiles at it. Kept until the event is released, after its
    /// command's end.
    _handler_guard: Option<HandlerGuard>,
    queue: Arc<Queue>,
}

impl ClEvent {
    pub(super) fn new(
        SubmittedEvents { first, last }: SubmittedEvents,
        commands: usize,
        profiling: bool,
        watch: Option<(Arc<QueueWatch>, u64)>,
        handler_guard: Option<HandlerGuard>,
        queue: &Arc<Queue>,
    ) -> Self {
        if let Some(spare) = &queue.context.spare {
            spare.begin_command();
        }
        // The first event is used only for its times.
        let first = first.filter(|_| profiling);
        let (reported, queue) = (OnceLock::new(), Arc::clone(queue));
        Self {
            first,
            event: last,
            commands,
            profiling,
            reported,
            watch,
            _handler_guard: handler_guard,
            queue,
        }
    }
}

impl Drop for ClEvent {
    fn drop(&mut self) {
        if let Some(spare) = &self.queue.context.spare {
            spare.end_commands(self.commands);
        }
    }
}

impl NativeEvent for ClEvent {
    fn progress(&self) -> Progress {
        let _call = match shutdown::enter() {
            Ok(call) => call,
            Err(error) => return Progress::Unknown(error),
        };
        let reported = self.reported.get().map(|reported| reported.load(SeqCst));
        match (self.event.progress(), reported) {
            (Progress::Failed(error), _) => Progress::Failed(error),
            // The callback may report a failure that the event does not report, or not yet.
            (_, Some(code @ ..0)) => Progress::Failed(status_error(code)),
            (progress, _) => progress,
        }
    }

    fn poll_ended(&self) -> Option<bool> {
        self.watch.as_ref()?;
        let _call = shutdown::enter().ok()?;
        Some(!self.event.is_pending())
    }

    fn profile(&self) -> Option<Profile> {
        // Before the end, some drivers return zeros instead of an error.
        if !self.profiling || !matches!(self.progress(), Progress::Complete) {
            return None;
        }
        let _call = shutdown::enter().ok()?;
        let first = self.first.as_ref().unwrap_or(&self.event);
        Some(Profile {
            queued: time(first, CL_PROFILING_COMMAND_QUEUED)?,
            submitted: time(first, CL_PROFILING_COMMAND_SUBMIT)?,
            started: time(first, CL_PROFILING_COMMAND_START)?,
            ended: time(&self.event, CL_PROFILING_COMMAND_END)?,
        })
    }

    fn notify(&self, notify: Notify) -> Result<()> {
        let _call = shutdown::enter()?;
        if let Some((watch, position)) = &self.watch {
            let event = self.event.retain().map_err(|code| {
                error(code, "the driver failed to retain the event of an awaited command")
            })?;
            watch.watch(*position, event, notify);
            return Ok(());
        }
        let notify = match &self.queue.context.worker {
            Some(worker) => worker.track(self.queue.handle(), notify),
            None => notify,
        };
        let reported = Arc::clone(self.reported.get_or_init(Arc::default));
        let data = Box::into_raw(Box::new(Callback { notify, reported }));
        set_event_callback(self.event.raw(), CL_COMPLETE, ended, data.cast()).map_err(|code| {
            // SAFETY: the driver rejected the callback and will not call it, so this function still owns the
            // box.
            drop(unsafe { Box::from_raw(data) });
            error(code, "the driver rejected the completion callback of the command")
        })
    }
}

fn time(event: &OwnedEvent, timestamp: cl_profiling_info) -> Option<u64> {
    get_event_profiling_info(event.raw(), timestamp).ok().map(cl_ulong::from)
}

/// Data of a completion callback, passed to the driver as one thin pointer.
struct Callback {
    notify: Notify,
    reported: Arc<AtomicI32>,
}

/// Runs the [`Callback`] in `data`. Only a failure is taken from the status, because some drivers report
/// success for commands that failed.
extern "C" fn ended(_event: cl_event, status: cl_int, data: *mut c_void) {
    // SAFETY: `notify` leaked this box for this call, which the driver makes once.
    let Callback { notify, reported } = *unsafe { Box::from_raw(data.cast::<Callback>()) };
    reported.store(status.min(0), SeqCst);
    let _call = shutdown::enter_from_callback();
    run_notify(notify);
}

/// Events in the form that the driver takes.
#[derive(Default)]
pub(super) struct WaitList(SmallVec<[cl_event; 8]>);

impl WaitList {
    pub(super) fn new(events: &[Arc<dyn NativeEvent>]) -> Result<Self> {
        let raw = |event: &Arc<dyn NativeEvent>| {
            own_object(&**event, "the event").map(|event: &ClEvent| event.event.raw())
        };
        events.iter().map(raw).collect::<Result<_>>().map(Self)
    }

    /// Adds an event, which stays alive until the list has been used.
    pub(super) fn add(&mut self, event: Option<&OwnedEvent>) {
        self.0.extend(event.map(OwnedEvent::raw));
    }

    pub(super) fn len(&self) -> cl_uint {
        self.0.len() as cl_uint
    }

    /// Returns a pointer to the events. Null if there are none, as OpenCL requires.
    pub(super) fn as_ptr(&self) -> *const cl_event {
        if self.0.is_empty() { ptr::null() } else { self.0.as_ptr() }
    }
}
