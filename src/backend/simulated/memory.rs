//! Device memory: bytes behind a lock, the ranges of them that commands use, and images, whose rows follow each other
//! without padding.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use super::codes::{code, driver_error, foreign_error};
use super::counters::{Counters, count, uncount};
use crate::backend::{Memory, image_part_error};
use crate::device::ImageShape;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Alignment of the start of a view in bytes, as on many devices.
pub(super) const SLICE_ALIGNMENT: usize = 128;

/// Value of every byte of new memory. No useful value of any type looks like it.
pub(super) const FRESH: u8 = 0xa5;

struct Allocation {
    counters: Arc<Counters>,
    size: u64,
    bytes: Mutex<Vec<u8>>,
    /// Host memory of mappings, by its address.
    mappings: Mutex<HashMap<usize, Vec<u128>>>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let counters = &self.counters;
        uncount(&counters.live_allocations);
        counters.live_bytes.fetch_sub(self.size, Relaxed);
    }
}

/// Part of an allocation, or all of it. Keeps the allocation alive, also while a command uses it, as drivers
/// do.
#[derive(Clone)]
pub(super) struct Region {
    allocation: Arc<Allocation>,
    offset: usize,
    len: usize,
}

impl Region {
    /// Allocates `bytes`. Fails if more than `limit` bytes would then be allocated.
    pub(super) fn allocate(counters: &Arc<Counters>, bytes: usize, limit: u64) -> Result<Self> {
        let size = bytes as u64;
        let live_bytes = &counters.live_bytes;
        live_bytes
            .fetch_update(Relaxed, Relaxed, |live| {
                live.checked_add(size).filter(|&sum| sum <= limit)
            })
            .map_err(|live| {
                let left = limit.saturating_sub(live);
                exhausted_error(format!(
                    "cannot allocate {bytes} bytes: {left} of the device's {limit} bytes are left"
                ))
            })?;
        count(&counters.live_allocations);
        // From here on, dropping the allocation subtracts it from the counts.
        let allocation = Allocation {
            counters: counters.clone(),
            size,
            bytes: Mutex::default(),
            mappings: Mutex::default(),
        };
        let mut contents = Vec::new();
        contents.try_reserve_exact(bytes).map_err(|error| {
            exhausted_error(format!("the host cannot allocate {bytes} bytes for the device"))
                .with_source(error)
        })?;
        contents.resize(bytes, FRESH);
        *lock(&allocation.bytes) = contents;
        Ok(Self { allocation: Arc::new(allocation), offset: 0, len: bytes })
    }

    /// Returns the region behind `memory`. Fails if it belongs to another device, which has other counters.
    pub(super) fn of<'a>(memory: &'a dyn Memory, counters: &Arc<Counters>) -> Result<&'a Self> {
        (memory as &dyn Any)
            .downcast_ref::<Self>()
            .or_else(|| Image::region_of(memory))
            .filter(|region| Arc::ptr_eq(&region.allocation.counters, counters))
            .ok_or_else(|| foreign_error("memory"))
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the `bytes` from `offset` on, at any alignment. Fails if they are out of bounds.
    pub(super) fn part(&self, offset: usize, bytes: usize) -> Result<Self> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Err(driver_error(
                -30,
                "CL_INVALID_VALUE",
                format!(
                    "{bytes} bytes at offset {offset} are not within memory of {} bytes",
                    self.len
                ),
            ));
        }
        Ok(Self { allocation: self.allocation.clone(), offset: self.offset + offset, len: bytes })
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.allocation, &other.allocation)
            && self.range().start < other.range().end
            && other.range().start < self.range().end
    }

    /// Allocates host memory for a mapping of the region. It has the alignment of any element. Host memory is
    /// not the device's: as with many GPUs, a map copies the bytes to it, and an unmap copies them back.
    pub(super) fn begin_mapping(&self) -> *mut u8 {
        let mut words = vec![0u128; self.len.div_ceil(size_of::<u128>())];
        let start = words.as_mut_ptr();
        lock(&self.allocation.mappings).insert(start.addr(), words);
        start.cast()
    }

    /// Frees the host memory of a mapping.
    pub(super) fn end_mapping(&self, start: *mut u8) {
        lock(&self.allocation.mappings).remove(&start.addr());
    }

    fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Calls `f` with the bytes.
    pub(super) fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&lock(&self.allocation.bytes)[self.range()])
    }

    /// Calls `f` with the bytes, to change them.
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut lock(&self.allocation.bytes)[self.range()])
    }
}

impl Memory for Region {
    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>> {
        let view = self.part(offset, bytes)?;
        if bytes == 0 {
            return Err(driver_error(-61, "CL_INVALID_BUFFER_SIZE", "the view is empty"));
        }
        if !view.offset.is_multiple_of(SLICE_ALIGNMENT) {
            return Err(driver_error(
                -13,
                "CL_MISALIGNED_SUB_BUFFER_OFFSET",
                format!(
                    "a view must start at a multiple of {SLICE_ALIGNMENT} bytes, not at {offset}"
                ),
            ));
        }
        Ok(Arc::new(view))
    }

    fn image(&self, offset: usize, shape: &ImageShape) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(Image::new(self.part(offset, shape.bytes().unwrap_or(usize::MAX))?)))
    }
}

/// Image, or a buffer as an image.
pub(super) struct Image {
    region: Region,
}

impl Image {
    pub(super) fn new(region: Region) -> Self {
        Self { region }
    }

    /// Returns the bytes behind `memory`, if it is an image.
    pub(super) fn region_of(memory: &dyn Memory) -> Option<&Region> {
        (memory as &dyn Any).downcast_ref().map(|image: &Self| &image.region)
    }
}

impl Memory for Image {
    fn view(&self, _offset: usize, _bytes: usize) -> Result<Arc<dyn Memory>> {
        Err(image_part_error())
    }

    fn is_image(&self) -> bool {
        true
    }
}

fn exhausted_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::OutOfResources, message.into())
        .with_code(code(-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"))
}
