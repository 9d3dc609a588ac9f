//! Large transfers and fills, performed in pieces by threads that may block.
//!
//! A driver accepts a transfer without blocking only while it has memory of its own to put the bytes in.
//! NVIDIA's OpenCL driver has some 50 MiB. Beyond that, it blocks the caller until the device reaches the
//! transfer, and with the caller all threads that need the scheduler's lock. On Level Zero, Kiln itself
//! copies the bytes. Therefore a transfer that is large, or that exceeds the limit on enqueued bytes, is not
//! enqueued behind its dependencies. Once these have ended, a thread hands the transfer over piece by piece,
//! on a native queue that nothing else uses. A large fill is handed over in the same way, because some
//! drivers execute large fills incorrectly.
//!
//! On a CPU, neither is divided into pieces: the bytes that its driver moves stay in the host's memory.
//!
//! [Native commands](crate::queue::native_command), whose closures may block, run in the same way, on threads of
//! their own.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Ending, Scheduler, State};
use crate::backend::{
    Device, DeviceSlot, Memory, NativeEvent, NativeQueue, Operation, Profile, Progress,
};
use crate::error::{Result, catch_panic};
use crate::executor::Pool;
use crate::process::threads::no_thread_error;
use crate::queue::host_future::{HostFuture, Polling};
use crate::queue::native_command::NativeWork;
use crate::queue::native_queue::Place;
use crate::queue::node::NodeId;
use crate::queue::operations::MAX_FILL_PIECE;
use crate::queue::work::Work;
use crate::sync::lock;

/// Number of bytes above which a transfer is moved in pieces.
const LARGE: usize = 4 << 20;

/// Maximum number of bytes of transfers that are enqueued at the same time. A transfer that would exceed
/// it is moved in pieces, too.
const MAX_ENQUEUED: usize = 32 << 20;

/// Maximum number of bytes in one piece of a transfer.
const MAX_TRANSFER_PIECE: usize = 8 << 20;

/// Number of pieces of a transfer in flight at the same time: the device moves one while the host copies
/// the other.
const PIECES_IN_FLIGHT: usize = 2;

/// Number of transfers of a device at the same time: the device can perform one in each direction.
const CONCURRENT_TRANSFERS: usize = 2;

/// Number of native commands of a device at the same time.
const CONCURRENT_NATIVE_COMMANDS: usize = 4;

/// Interval at which the driver is queried for the end of a piece whose callback does not come.
const TICK: Duration = Duration::from_millis(2);

/// Transfer workers, which perform the large transfers and fills of a device.
pub(super) struct TransferWorkers {
    threads: Pool,
    /// Threads of native commands.
    native_threads: Pool,
    /// Native queues that no transfer is using.
    native_queues: Mutex<Vec<Box<dyn NativeQueue>>>,
    /// Memory of the driver, for copies between devices, that no copy is using.
    copy_memory: Mutex<Vec<Arc<dyn Memory>>>,
}

/// Command whose work a transfer worker performs. The command ends when this is dropped.
pub(super) struct Transfer {
    scheduler: Arc<Scheduler>,
    id: NodeId,
    /// Work of the command, unless it is leaked because the device may still use it.
    work: Option<Work>,
    /// Waits of the closure of a native command.
    closure: Option<Arc<HostFuture>>,
    outcome: Result<Option<Profile>>,
}

impl TransferWorkers {
    /// Creates the workers without starting a thread yet.
    pub(super) fn new() -> Self {
        Self {
            threads: Pool::new("kiln-transfer", CONCURRENT_TRANSFERS),
            native_threads: Pool::new("kiln-native", CONCURRENT_NATIVE_COMMANDS),
            native_queues: Mutex::default(),
            copy_memory: Mutex::default(),
        }
    }

    pub(super) fn start(&self, transfer: Transfer) {
        match transfer.work {
            Some(Work::Native(_)) => self.native_threads.submit(move || transfer.run()),
            _ => self.run(move || transfer.run()),
        }
    }

    /// Runs a job on one of the threads.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.threads.submit(job);
    }

    pub(super) fn take_queue(
        &self,
        slot: &DeviceSlot,
        profiling: bool,
    ) -> Result<Box<dyn NativeQueue>> {
        let idle = lock(&self.native_queues).pop();
        idle.map_or_else(|| slot.open()?.create_native_queue(profiling), Ok)
    }

    pub(super) fn return_queue(&self, native_queue: Box<dyn NativeQueue>) {
        lock(&self.native_queues).push(native_queue);
    }

    /// Returns memory that an earlier copy between devices returned.
    pub(super) fn take_copy_memory(&self) -> Option<Arc<dyn Memory>> {
        lock(&self.copy_memory).pop()
    }

    pub(super) fn return_copy_memory(&self, memory: Arc<dyn Memory>) {
        lock(&self.copy_memory).push(memory);
    }
}

impl State {
    /// Whether a transfer worker has to perform the command, because the driver may block or execute it
    /// incorrectly.
    pub(super) fn is_for_worker(&self, id: NodeId) -> bool {
        let Some(command) = self.dag.command(id) else { return false };
        let bytes = command.work.transfer_size();
        bytes > LARGE
            || bytes > 0 && self.transferring + bytes > MAX_ENQUEUED
            || command.work.fill_size() > MAX_FILL_PIECE
    }

    /// Returns whether all dependencies of a command that is ready for dispatch have ended. If not, their ends
    /// are watched, and the command becomes ready once more when they have ended.
    pub(super) fn have_dependencies_ended(&mut self, id: NodeId) -> bool {
        if self.dag.wait_for_completions(id) {
            return true;
        }
        // Perhaps nothing else waits for these dependencies, so their ends have to be watched. On each native
        // queue, the latest ends last.
        let before = self.dag.dependencies(id).map(|(.., command)| &command.record);
        let mut latest: SmallVec<[(Place, _); 4]> = SmallVec::new();
        for (place, record) in before.filter_map(|record| Some((record.place()?, record))) {
            match latest.iter_mut().find(|(known, _)| known.native_queue == place.native_queue) {
                Some(known) if known.0 < place => *known = (place, record.clone()),
                Some(_) => {}
                None => latest.push((place, record.clone())),
            }
        }
        self.actions.unwatched.extend(latest.into_iter().map(|(_, record)| record));
        false
    }
}

impl Scheduler {
    /// Offloads a command to a transfer worker if its dependencies have ended. Otherwise, this function has
    /// to be called again when they have ended.
    pub(super) fn offload(self: &Arc<Self>, state: &mut State, id: NodeId) {
        if !state.have_dependencies_ended(id) {
            return;
        }
        let Some(command) = state.dag.command_mut(id) else { return };
        let Some(work) = command.work.take_for_worker() else { return };
        command.record.set_on_no_queue();
        if let Some(span) = command.pending_span_mut() {
            span.set_enqueued();
        }
        let (scheduler, outcome) = (self.clone(), Err(no_thread_error()));
        let closure = command.extras().and_then(|extras| extras.closure.clone());
        let work = Some(work);
        state.actions.transfers.push(Transfer { scheduler, id, work, closure, outcome });
    }

    /// Handles the end of a transfer. `work` is the command's work, unless it was leaked.
    fn transfer_ended(
        self: &Arc<Self>,
        id: NodeId,
        work: Option<Work>,
        outcome: Result<Option<Profile>>,
    ) {
        self.change(|state| {
            if let (Some(command), Some(work)) = (state.dag.command_mut(id), work) {
                command.work = work;
            }
            let profile = outcome.as_ref().ok().copied().flatten();
            let ending = Ending { native: None, profile };
            self.finish(state, id, outcome.map(drop), ending);
        });
    }
}

impl Transfer {
    fn run(mut self) {
        let _polling = self.closure.take().map(Polling::begin);
        self.outcome = catch_panic(|| {
            let Scheduler { workers, slot, options, .. } = &*self.scheduler;
            let mut native_queue = workers.take_queue(slot, options.profiling)?;
            let Some(work) = self.work.take() else { return Ok(None) };
            // Leaked if the code below panics, or if the device may still use it.
            let mut work = ManuallyDrop::new(work);
            let mut may_run = false;
            let outcome = match &mut *work {
                Work::Native(native) => {
                    call_native(&**slot.open()?, &mut *native_queue, native, &mut may_run)
                }
                work => move_in_pieces(&mut *native_queue, work, &mut may_run),
            };
            if !may_run {
                self.work = Some(ManuallyDrop::into_inner(work));
            }
            if outcome.is_ok() {
                workers.return_queue(native_queue);
            }
            outcome
        });
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Ok(None));
        self.scheduler.transfer_ended(self.id, self.work.take(), outcome);
    }
}

/// Blocks until all pieces of the work have ended, or one has failed. Sets `may_run` if the driver does not
/// report whether a piece has ended.
fn move_in_pieces(
    native_queue: &mut dyn NativeQueue,
    work: &mut Work,
    may_run: &mut bool,
) -> Result<Option<Profile>> {
    work.with_operation(|whole| {
        let mut pieces = pieces(whole);
        let mut in_flight = VecDeque::with_capacity(PIECES_IN_FLIGHT);
        let mut outcome: Result<Option<Profile>> = Ok(None);
        loop {
            let has_room = in_flight.len() < PIECES_IN_FLIGHT && outcome.is_ok();
            if let Some(piece) = has_room.then(|| pieces.next()).flatten() {
                // SAFETY: the piece lies inside the operation. The work owns everything that the
                // operation names; nothing else has the work, and it is kept until the ends of all pieces
                // are known.
                match unsafe { native_queue.enqueue(&piece, &[]) } {
                    Ok(event) => in_flight.push_back(event),
                    Err(error) => outcome = Err(error),
                }
                flush(native_queue);
            } else if let Some(oldest) = in_flight.pop_front() {
                let ended = wait(native_queue, &*oldest, may_run);
                outcome = outcome
                    .and_then(|first| ended.map(|()| total_profile(first, oldest.profile())));
            } else {
                return outcome;
            }
        }
    })
}

/// Calls the closure of a native command, and blocks until everything that it enqueued has ended. Sets `may_run`
/// like [`move_in_pieces`].
fn call_native(
    device: &dyn Device,
    native_queue: &mut dyn NativeQueue,
    native: &NativeWork,
    may_run: &mut bool,
) -> Result<Option<Profile>> {
    let called = native.call(device.handles()?, native_queue);
    // A closure that failed may have enqueued something before.
    // SAFETY: a marker accesses no memory.
    let marker = unsafe { native_queue.enqueue(&Operation::Marker, &[]) };
    let marker = marker.inspect_err(|_| *may_run = true)?;
    flush(native_queue);
    let ended = wait(native_queue, &*marker, may_run);
    called.and(ended).map(|()| None)
}

/// Returns the pieces of a transfer or of a fill. Any other operation is one piece.
fn pieces<'a>(whole: &Operation<'a>) -> impl Iterator<Item = Operation<'a>> {
    let (max_piece, total) = match *whole {
        Operation::Write { bytes, .. } | Operation::Read { bytes, .. } => {
            (MAX_TRANSFER_PIECE, bytes)
        }
        Operation::Fill { bytes, .. } => (MAX_FILL_PIECE, bytes),
        Operation::Launch { .. }
        | Operation::Copy { .. }
        | Operation::Image(_)
        | Operation::Rows(_)
        | Operation::Map { .. }
        | Operation::Unmap { .. }
        | Operation::Marker => (1, 1),
    };
    (0..total).step_by(max_piece).map(move |start| part(whole, start, max_piece.min(total - start)))
}

/// Returns the part of a transfer or of a fill that has `bytes` bytes from `start`.
fn part<'a>(whole: &Operation<'a>, start: usize, bytes: usize) -> Operation<'a> {
    match *whole {
        Operation::Write { to, offset, from, .. } => {
            let (offset, from) = (offset + start, from.wrapping_add(start));
            Operation::Write { to, offset, from, bytes }
        }
        Operation::Read { from, offset, to, .. } => {
            let (offset, to) = (offset + start, to.wrapping_add(start));
            Operation::Read { from, offset, to, bytes }
        }
        Operation::Fill { memory, offset, pattern, .. } => {
            Operation::Fill { memory, offset: offset + start, bytes, pattern }
        }
        whole => whole,
    }
}

/// Returns the times of the pieces as a whole: from the start of the first to the end of the latest.
pub(super) fn total_profile(first: Option<Profile>, latest: Option<Profile>) -> Option<Profile> {
    let latest = latest?;
    Some(first.map_or(latest, |first| Profile { ended: latest.ended, ..first }))
}

pub(super) fn flush(native_queue: &mut dyn NativeQueue) {
    if let Err(error) = native_queue.flush() {
        // The thread that waits tries again.
        tracing::debug!(%error, "a native queue could not be flushed");
    }
}

/// Blocks until the piece with this event has ended. Sets `may_run` like [`move_in_pieces`].
pub(super) fn wait(
    native_queue: &mut dyn NativeQueue,
    event: &dyn NativeEvent,
    may_run: &mut bool,
) -> Result<()> {
    let has_called_back = Arc::new(AtomicBool::new(false));
    let (called_back, waiting) = (has_called_back.clone(), thread::current());
    let notify = Box::new(move || {
        called_back.store(true, SeqCst);
        waiting.unpark();
    });
    if let Err(error) = event.notify(notify) {
        tracing::debug!(
            %error,
            "the driver rejected a completion callback; the command is polled instead"
        );
    }
    loop {
        // A callback counts as the end, even if the event does not report it yet.
        let has_ended = has_called_back.load(SeqCst);
        match event.progress() {
            Progress::Failed(error) => return Err(error),
            Progress::Unknown(error) => {
                *may_run = true;
                return Err(error);
            }
            Progress::Pending if !has_ended => {
                thread::park_timeout(TICK);
                flush(native_queue);
            }
            Progress::Pending | Progress::Complete => return Ok(()),
        }
    }
}
