//! Buffers, and the views of them that are passed to kernels.

use std::any::Any;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard};

use opencl3::memory::{
    CL_BUFFER_CREATE_TYPE_REGION, CL_MEM_READ_WRITE, cl_buffer_region, cl_mem, create_buffer,
    create_sub_buffer,
};

use super::codes::{allocation_kind, error, error_of};
use super::context::Context;
use super::handle::OwnedMemory;
use crate::backend::{Memory, check_view, shutdown};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Whole buffer, or a view of one. Offsets of commands on a view count from its start.
pub(super) struct ClMemory {
    id: u64,
    /// View, unless this is the whole buffer. Declared before the whole, so released before it.
    view: Option<Arc<OwnedMemory>>,
    /// Offset of the view in the whole.
    start: usize,
    bytes: usize,
    whole: Arc<Whole>,
}

/// Memory that was allocated at once.
struct Whole {
    /// Moved out when the whole is dropped.
    piece: ManuallyDrop<Piece>,
    bytes: usize,
    context: Arc<Context>,
}

/// Memory object, and the views of it that are kept.
struct Piece {
    /// Views that are kept until the memory is released, on devices with [spare memory](SpareMemory). They are
    /// then released from the last to the first: NVIDIA's driver crashes if two views overlap, kernels were
    /// given both, and the older one is released first.
    kept: Mutex<Vec<KeptView>>,
    memory: OwnedMemory,
}

struct KeptView {
    start: usize,
    bytes: usize,
    view: Arc<OwnedMemory>,
}

impl Piece {
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

impl Whole {
    fn create_view(&self, start: usize, bytes: usize) -> Result<Arc<OwnedMemory>> {
        let region = cl_buffer_region { origin: start, size: bytes };
        // SAFETY: the buffer is alive and not a view itself; the region has the type that the call names.
        let created = unsafe {
            create_sub_buffer(
                self.piece.memory.raw(),
                CL_MEM_READ_WRITE,
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
}

impl Drop for Whole {
    fn drop(&mut self) {
        // Memory that can no longer be released is not kept for other buffers either.
        let Ok(_call) = shutdown::enter() else { return };
        // SAFETY: taken once, here, and not used again.
        let piece = unsafe { ManuallyDrop::take(&mut self.piece) };
        match &self.context.spare {
            Some(spare) => spare.give(piece, self.bytes),
            None => drop(piece),
        }
    }
}

/// Unused memory, kept for new buffers of the same size.
///
/// NVIDIA's driver releases memory that a command has used only once the device is idle. Until then it blocks
/// the thread that releases the memory, and every other thread that calls the driver. Therefore memory is not
/// released while there are commands, unless there is too much of it.
pub(super) struct SpareMemory {
    /// Number of events of commands that exist.
    commands: AtomicUsize,
    /// Maximum number of bytes that are kept, and maximum number that are kept and used together.
    most: [usize; 2],
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

/// Maximum number of kept pieces that are released along with other memory while the device is idle.
const RELEASED_AT_ONCE: usize = 4;

impl SpareMemory {
    /// Creates the spare memory of a device that has `all` bytes.
    pub(super) fn new(all: u64) -> Self {
        let part = usize::try_from(all / 8).unwrap_or(usize::MAX / 8);
        Self { commands: AtomicUsize::new(0), most: [part, 7 * part], pieces: Mutex::default() }
    }

    /// Counts a command that was submitted.
    pub(super) fn begin(&self) {
        self.commands.fetch_add(1, SeqCst);
    }

    /// Uncounts a command whose end is known.
    pub(super) fn end(&self) {
        self.commands.fetch_sub(1, SeqCst);
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
    fn take(&self, bytes: usize) -> Option<Piece> {
        let mut pieces = self.pieces();
        let piece = pieces.by_size.get_mut(&bytes).and_then(Vec::pop);
        pieces.used += bytes;
        if piece.is_some() {
            pieces.kept -= bytes;
            return piece;
        }
        let released = if pieces.used.saturating_add(pieces.kept) > self.most[1] {
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
    fn fail(&self, bytes: usize) {
        self.pieces().used -= bytes;
    }

    /// Releases all kept memory, and returns whether there was any. Blocks until the device is idle.
    pub(super) fn release(&self) -> bool {
        let released = self.pieces().release(usize::MAX);
        !released.is_empty()
    }

    fn give(&self, piece: Piece, bytes: usize) {
        let mut pieces = self.pieces();
        pieces.used -= bytes;
        let released = if self.is_idle() {
            pieces.release(RELEASED_AT_ONCE)
        } else if pieces.kept + bytes <= self.most[0] {
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
    /// Removes up to `most` pieces, for the caller to drop without the lock.
    fn release(&mut self, most: usize) -> Vec<Piece> {
        let mut released = Vec::new();
        while released.len() < most
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

impl ClMemory {
    pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let _call = shutdown::begin()?;
        let info = &context.info;
        // NVIDIA's driver accepts any size and fails at the first use.
        let most = info.limits.global_memory;
        if most > 0 && u64::try_from(bytes).is_ok_and(|bytes| bytes > most) {
            let message = format!(
                "{bytes} bytes are more than the global memory of `{}`, {most} bytes",
                info.name
            );
            return Err(Error::new(ErrorKind::OutOfResources, message));
        }
        let kept = context.spare.as_ref().and_then(|spare| spare.take(bytes));
        let piece = kept.map_or_else(|| Self::create(context, bytes), Ok);
        let piece = piece.inspect_err(|_| {
            if let Some(spare) = &context.spare {
                spare.fail(bytes);
            }
        })?;
        let context = Arc::clone(context);
        let whole = Arc::new(Whole { piece: ManuallyDrop::new(piece), bytes, context });
        Ok(Self { id: next_id(), view: None, start: 0, bytes, whole })
    }

    fn create(context: &Context, bytes: usize) -> Result<Piece> {
        // SAFETY: the context is alive, and these flags take no host memory.
        let created =
            unsafe { create_buffer(context.raw(), CL_MEM_READ_WRITE, bytes, ptr::null_mut()) };
        let raw = created.map_err(|code| {
            let kind = allocation_kind(code);
            let name = &context.info.name;
            error_of(kind, code, format!("{bytes} bytes cannot be allocated on `{name}`"))
        })?;
        // SAFETY: just created, and referenced here alone.
        Ok(Piece { kept: Mutex::default(), memory: unsafe { OwnedMemory::new(raw) } })
    }

    /// Returns this backend's memory behind the trait object. Fails if it belongs to another backend.
    pub(super) fn of(memory: &dyn Memory) -> Result<&Self> {
        (memory as &dyn Any)
            .downcast_ref()
            .ok_or_else(|| Error::invalid("the buffer belongs to a device of another backend"))
    }

    /// Returns an id that no other memory object has, not even a released one. Pointers are reused.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the number of views of the whole that are kept.
    #[cfg(test)]
    pub(super) fn kept_views(&self) -> usize {
        self.whole.piece.kept().len()
    }

    pub(super) fn raw(&self) -> cl_mem {
        self.view.as_deref().unwrap_or(&self.whole.piece.memory).raw()
    }

    /// Returns the view that a fill has to use, and the fill's offset in that view, if the fill reaches too far
    /// into the memory for a driver that counts patterns in signed 32 bits. NVIDIA's driver (580.159.04) would
    /// fill other memory, or the host's. `None` if the fill can use the memory itself.
    pub(super) fn window(
        &self,
        offset: usize,
        bytes: usize,
        pattern: usize,
    ) -> Result<Option<(Self, usize)>> {
        /// Alignment of the start of a window. Large, so that there are few windows, because views may be kept.
        const STRIDE: usize = 256 << 20;
        if (offset + bytes) / pattern <= i32::MAX as usize {
            return Ok(None);
        }
        let start = offset / STRIDE * STRIDE;
        let end = (start + 2 * STRIDE).min(self.bytes).max(offset + bytes);
        Ok(Some((self.part(start, end - start)?, offset - start)))
    }

    /// Returns a view of `bytes` at `offset`, a multiple of the alignment that the device requires.
    fn part(&self, offset: usize, bytes: usize) -> Result<Self> {
        // OpenCL does not support views of views, so each is a view of the whole.
        let start = self.start + offset;
        let view = if let Some(spare) = &self.whole.context.spare {
            let mut kept = self.whole.piece.kept();
            let same = kept.iter().find(|view| (view.start, view.bytes) == (start, bytes));
            if let Some(same) = same {
                Arc::clone(&same.view)
            } else {
                // Release the latest views while they are unused.
                while spare.is_idle()
                    && kept.last().is_some_and(|last| Arc::strong_count(&last.view) == 1)
                {
                    kept.pop();
                }
                let view = self.whole.create_view(start, bytes)?;
                kept.push(KeptView { start, bytes, view: Arc::clone(&view) });
                view
            }
        } else {
            self.whole.create_view(start, bytes)?
        };
        let whole = Arc::clone(&self.whole);
        Ok(Self { id: next_id(), view: Some(view), start, bytes, whole })
    }
}

impl Memory for ClMemory {
    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>> {
        check_view(&self.whole.context.info, self.bytes, offset, bytes)?;
        let _call = shutdown::begin()?;
        Ok(Arc::new(self.part(offset, bytes)?))
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}
