//! Unused device memory that is kept for new buffers, and the views of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use opencl3::memory::{
    CL_BUFFER_CREATE_TYPE_REGION, cl_buffer_region, cl_mem_flags, create_sub_buffer,
};

use super::codes::error;
use super::handle::OwnedMemory;
use crate::error::Result;
use crate::sync::lock;

/// Maximum number of kept pieces that are released along with other memory while the device is idle.
const RELEASED_AT_ONCE: usize = 4;

/// Flags of a view that kernels may access like the memory that it is a part of.
const AS_THE_WHOLE: cl_mem_flags = 0;

/// Unused memory, kept for new buffers of the same size.
///
/// NVIDIA's driver releases memory that a command has used only once the device is idle. Until then it blocks
/// the thread that releases the memory, and every other thread that calls the driver. Therefore memory is not
/// released while there are commands, unless there is too much of it.
pub(super) struct SpareMemory {
    /// Number of commands whose ends are not known.
    commands: AtomicUsize,
    /// Maximum number of bytes that are kept.
    max_kept: usize,
    /// Maximum number of bytes that are kept or used.
    max_total: usize,
    pieces: Mutex<Pieces>,
}

#[derive(Default)]
struct Pieces {
    /// Number of bytes that buffers use.
    used: usize,
    /// Number of bytes that are kept.
    kept: usize,
    by_size: HashMap<usize, Vec<Piece>>,
}

impl SpareMemory {
    /// Creates the spare memory of a device that has `global_memory` bytes.
    pub(super) fn new(global_memory: u64) -> Self {
        let part = usize::try_from(global_memory / 8).unwrap_or(usize::MAX / 8);
        Self {
            commands: AtomicUsize::new(0),
            max_kept: part,
            max_total: 7 * part,
            pieces: Mutex::default(),
        }
    }

    /// Counts a command that was submitted.
    pub(super) fn begin_command(&self) {
        self.commands.fetch_add(1, SeqCst);
    }

    /// Uncounts commands whose ends are known.
    pub(super) fn end_commands(&self, count: usize) {
        self.commands.fetch_sub(count, SeqCst);
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        lock(&self.pieces)
    }

    /// Returns the number of bytes that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.pieces().kept
    }

    fn is_idle(&self) -> bool {
        self.commands.load(SeqCst) == 0
    }

    /// Takes a kept piece of this size. If there is none, makes room for a new one. Counts the bytes as used in
    /// both cases.
    pub(super) fn take(&self, bytes: usize) -> Option<Piece> {
        let mut pieces = self.pieces();
        let piece = pieces.by_size.get_mut(&bytes).and_then(Vec::pop);
        pieces.used += bytes;
        if piece.is_some() {
            pieces.kept -= bytes;
            return piece;
        }
        let released = if pieces.used.saturating_add(pieces.kept) > self.max_total {
            pieces.release(usize::MAX)
        } else if self.is_idle() {
            pieces.release(RELEASED_AT_ONCE)
        } else {
            Vec::new()
        };
        drop(pieces);
        drop(released);
        None
    }

    /// Uncounts the bytes of a buffer that could not be allocated.
    pub(super) fn cancel(&self, bytes: usize) {
        self.pieces().used -= bytes;
    }

    /// Releases all kept memory, and returns whether there was any. Blocks until the device is idle.
    pub(super) fn release(&self) -> bool {
        let released = self.pieces().release(usize::MAX);
        !released.is_empty()
    }

    /// Takes back a piece of this size that no buffer uses. Keeps it, or releases it.
    pub(super) fn give(&self, piece: Piece, bytes: usize) {
        let mut pieces = self.pieces();
        pieces.used -= bytes;
        let released = if self.is_idle() {
            pieces.release(RELEASED_AT_ONCE)
        } else if pieces.kept + bytes <= self.max_kept {
            pieces.kept += bytes;
            return pieces.by_size.entry(bytes).or_default().push(piece);
        } else {
            Vec::new()
        };
        drop(pieces);
        drop((piece, released));
    }
}

impl Pieces {
    /// Removes up to `limit` pieces, for the caller to drop without the lock.
    fn release(&mut self, limit: usize) -> Vec<Piece> {
        let mut released = Vec::new();
        while released.len() < limit
            && let Some((&bytes, pieces)) = self.by_size.iter_mut().next()
        {
            match pieces.pop() {
                Some(piece) => {
                    self.kept -= bytes;
                    released.push(piece);
                }
                None => drop(self.by_size.remove(&bytes)),
            }
        }
        released
    }
}

/// Memory object, and the views of it that are kept.
pub(super) struct Piece {
    /// Views that are kept until the memory is released, on devices with [spare memory](SpareMemory). They are
    /// then released from the last to the first: NVIDIA's driver crashes if two views overlap, kernels were
    /// given both, and the older one is released first.
    kept: Mutex<Vec<KeptView>>,
    pub(super) memory: OwnedMemory,
}

struct KeptView {
    start: usize,
    bytes: usize,
    view: Arc<OwnedMemory>,
}

impl Piece {
    pub(super) fn new(memory: OwnedMemory) -> Self {
        Self { kept: Mutex::default(), memory }
    }

    /// Adds a view that other code created. It is released after all others, because it is the oldest.
    pub(super) fn keep_first(&self, view: &Arc<OwnedMemory>, start: usize, bytes: usize) {
        self.kept().insert(0, KeptView { start, bytes, view: Arc::clone(view) });
    }

    /// Creates a view, which is not kept.
    pub(super) fn create_view(&self, start: usize, bytes: usize) -> Result<Arc<OwnedMemory>> {
        let region = cl_buffer_region { origin: start, size: bytes };
        // SAFETY: the buffer is alive and not a view itself; the region has the type that the call names.
        let created = unsafe {
            create_sub_buffer(
                self.memory.raw(),
                AS_THE_WHOLE,
                CL_BUFFER_CREATE_TYPE_REGION,
                (&raw const region).cast(),
            )
        };
        let raw = created.map_err(|code| {
            error(
                code,
                format!("the driver refused a view of {bytes} bytes at {start} of a buffer"),
            )
        })?;
        // SAFETY: just created, and referenced here alone.
        Ok(Arc::new(unsafe { OwnedMemory::new(raw) }))
    }

    /// Returns a view that is kept, for a device with spare memory. Creates it unless there is one already.
    pub(super) fn kept_view(
        &self,
        spare: &SpareMemory,
        start: usize,
        bytes: usize,
    ) -> Result<Arc<OwnedMemory>> {
        let mut kept = self.kept();
        let same = kept.iter().find(|view| (view.start, view.bytes) == (start, bytes));
        if let Some(same) = same {
            return Ok(Arc::clone(&same.view));
        }
        // Release the latest views while they are unused.
        while spare.is_idle() && kept.last().is_some_and(|last| Arc::strong_count(&last.view) == 1)
        {
            kept.pop();
        }
        let view = self.create_view(start, bytes)?;
        kept.push(KeptView { start, bytes, view: Arc::clone(&view) });
        Ok(view)
    }

    /// Returns the number of views that are kept.
    #[cfg(test)]
    pub(super) fn kept_views(&self) -> usize {
        self.kept().len()
    }

    fn kept(&self) -> MutexGuard<'_, Vec<KeptView>> {
        lock(&self.kept)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut kept = self.kept();
        while let Some(view) = kept.pop() {
            drop(view);
        }
    }
}
