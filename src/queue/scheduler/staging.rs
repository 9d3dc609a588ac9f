//! Host memory through which the pieces of a copy between devices pass.
//!
//! The drivers of GPUs move bytes between a device and host memory that they allocated several times as fast as
//! between the device and other host memory. NVIDIA's driver does so for all of its devices, not only for the
//! one that allocated the memory. Such memory takes long to allocate, so each device keeps it for later copies.

use std::mem::{self, ManuallyDrop};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use super::Scheduler;
use super::transfer::{TransferWorkers, flush, wait};
use crate::backend::{DeviceSlot, HostAccess, Memory, NativeQueue, Operation};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::queue::host_memory::room_for;

/// Maximum number of bytes of a piece; a multiple of the sizes of all pixels.
pub(super) const PIECE: usize = 4 << 20;

/// Number of pieces in flight at the same time: with three, each device has the next piece when it has moved one.
pub(super) const PIECES: usize = 3;

/// Number of bytes of memory for that many pieces.
const ALL_PIECES: usize = PIECES * PIECE;

/// Device that takes part in a copy, and the native queue that it uses.
pub(super) struct Participant<'a> {
    slot: &'a DeviceSlot,
    workers: &'a TransferWorkers,
    queue: Box<dyn NativeQueue>,
}

/// Host memory for the pieces of a copy. It is leaked if it is dropped.
pub(super) struct Staging {
    owner: ManuallyDrop<Owner>,
    start: *mut u8,
}

/// Owner of host memory.
enum Owner {
    Host(Vec<u8>),
    /// Memory that the driver of a participant, whose number is `by`, has mapped.
    Driver {
        memory: Arc<dyn Memory>,
        by: usize,
    },
}

impl Staging {
    /// Returns memory for the pieces of a copy of `bytes` bytes. They begin at distances of
    /// [`PIECE`].
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if there is no memory for `subject`.
    pub(super) fn new(
        bytes: usize,
        participants: &mut [Participant<'_>; 2],
        subject: &str,
    ) -> Result<Self> {
        let is_one_piece = bytes <= PIECE;
        if !is_one_piece {
            for (by, participant) in participants.iter_mut().enumerate() {
                match participant.map_copy_memory() {
                    Ok(Some((memory, start))) => {
                        return Ok(Self::owned_by(Owner::Driver { memory, by }, start));
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a driver has no memory for a copy between devices");
                    }
                }
            }
        }
        let mut memory = room_for(if is_one_piece { bytes } else { ALL_PIECES }, subject)?;
        let start = memory.as_mut_ptr();
        Ok(Self::owned_by(Owner::Host(memory), start))
    }

    fn owned_by(owner: Owner, start: *mut u8) -> Self {
        Self { owner: ManuallyDrop::new(owner), start }
    }

    /// Returns the start of the memory, which may be uninitialized.
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Frees the memory, or keeps it for later copies. Neither device may use it any more.
    pub(super) fn end(self, participants: &mut [Participant<'_>; 2]) {
        let Self { owner, start } = self;
        match ManuallyDrop::into_inner(owner) {
            Owner::Driver { memory, by } => participants[by].unmap_copy_memory(memory, start),
            Owner::Host(memory) => drop(memory),
        }
    }
}

impl<'a> Participant<'a> {
    pub(super) fn new(scheduler: &'a Scheduler) -> Result<Self> {
        let Scheduler { workers, slot, options, .. } = scheduler;
        let queue = workers.take_queue(slot, options.profiling)?;
        Ok(Self { slot, workers, queue })
    }

    pub(super) fn queue(&mut self) -> &mut dyn NativeQueue {
        &mut *self.queue
    }

    /// Keeps the native queue for later transfers. Everything on it has ended.
    pub(super) fn end(self) {
        self.workers.return_queue(self.queue);
    }

    /// Returns memory that the driver of this device allocated, mapped for the host. Returns `None` for CPUs, whose
    /// drivers use any host memory alike.
    fn map_copy_memory(&mut self) -> Result<Option<(Arc<dyn Memory>, *mut u8)>> {
        if self.slot.handle().kind == DeviceKind::Cpu {
            return Ok(None);
        }
        let memory = match self.workers.take_copy_memory() {
            Some(memory) => memory,
            None => self.slot.open()?.allocate_on_host(ALL_PIECES)?,
        };
        let start = AtomicPtr::new(ptr::null_mut());
        let map = Operation::Map {
            memory: &*memory,
            offset: 0,
            bytes: ALL_PIECES,
            access: HostAccess::Overwrite,
            start: &start,
        };
        let mut may_run = false;
        let mapped = self.run(&map, &mut may_run);
        if may_run {
            mem::forget(memory);
            return mapped.map(|()| None);
        }
        mapped.map(|()| Some((memory, start.into_inner())))
    }

    /// Unmaps memory that [`map_copy_memory`](Self::map_copy_memory) returned, and keeps it for later copies.
    fn unmap_copy_memory(&mut self, memory: Arc<dyn Memory>, start: *mut u8) {
        let unmap = Operation::Unmap {
            memory: &*memory,
            offset: 0,
            bytes: ALL_PIECES,
            access: HostAccess::Overwrite,
            start,
        };
        let mut may_run = false;
        match self.run(&unmap, &mut may_run) {
            Ok(()) => self.workers.return_copy_memory(memory),
            Err(error) => {
                tracing::debug!(%error, "the memory of a copy between devices was not unmapped");
                // The driver may still use it.
                mem::forget(memory);
            }
        }
    }

    /// Blocks until the map or unmap has ended. Sets `may_run` if the driver does not report that.
    fn run(&mut self, operation: &Operation<'_>, may_run: &mut bool) -> Result<()> {
        // SAFETY: the caller keeps the memory until the operation has ended, and leaks it if that is unknown.
        let event = unsafe { self.queue.enqueue(operation, &[]) }?;
        flush(&mut *self.queue);
        wait(&mut *self.queue, &*event, may_run)
    }
}
