//! Host memory that commands read and write.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;

use crate::error::{Error, ErrorKind, Result, catch_and_log};
use crate::sync::lock;

/// Slot in which a read leaves its elements for its future.
pub(crate) type ReadSlot<T> = Arc<Mutex<Option<Vec<T>>>>;

/// Size in bytes from which memory counts as large. Allocators, including glibc's, map such memory anew
/// each time and return it to the system when it is freed.
const LARGE: usize = 32 << 20;

/// Host memory that the device reads.
pub(crate) trait HostSource: Send {
    /// Returns the start of the memory and its number of bytes.
    fn bytes(&self) -> (*const u8, usize);
}

/// Elements that an owner keeps in memory, such as a vector or an `Arc<[T]>`, for the device to read.
///
/// The owner's own code runs on the thread of the application, before the elements are submitted, and never under
/// a lock. It runs again when the owner is dropped, where its panics are caught.
pub(crate) struct OwnedElements<O> {
    /// Moved out when the elements are dropped.
    owner: ManuallyDrop<Box<O>>,
    start: *const u8,
    bytes: usize,
    len: usize,
}

impl<O> OwnedElements<O> {
    pub(crate) fn new<T: Pod>(owner: O) -> Self
    where
        O: AsRef<[T]>,
    {
        // The owner may hold the elements within itself, as an array does, so it is not moved from here on.
        let owner = ManuallyDrop::new(Box::new(owner));
        let elements: &[T] = (**owner).as_ref();
        let (start, bytes, len) = (elements.as_ptr().cast(), size_of_val(elements), elements.len());
        Self { owner, start, bytes, len }
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: the pointer leads to elements that the owner keeps, which are plain data, and which are only read.
unsafe impl<O: Send> Send for OwnedElements<O> {}

impl<O: Send> HostSource for OwnedElements<O> {
    fn bytes(&self) -> (*const u8, usize) {
        (self.start, self.bytes)
    }
}

impl<O> Drop for OwnedElements<O> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used again.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        catch_and_log("the owner of elements that were uploaded", || drop(owner));
    }
}

/// Host memory that the device writes.
pub(crate) trait HostTarget: Send {
    /// Returns the start of the memory, which may be uninitialized.
    fn start(&mut self) -> *mut u8;
    /// Passes the memory on, after the device has written it.
    ///
    /// # Safety
    ///
    /// The device has written all of it.
    unsafe fn deliver(&mut self);
}

/// Destination of a read: the elements, and the slot where its future looks for them.
pub(crate) struct ReadDestination<T> {
    /// Empty until the device has written the elements into the vector's spare capacity. If the device
    /// shares the host's memory, clearing it first would cost as much as the read itself.
    elements: Vec<T>,
    len: usize,
    slot: ReadSlot<T>,
}

impl<T: Pod> ReadDestination<T> {
    /// Reserves memory for `len` elements in a vector, whose elements are dropped.
    pub(crate) fn new(mut elements: Vec<T>, len: usize, slot: ReadSlot<T>) -> Result<Self> {
        elements.clear();
        if elements.capacity() < len {
            elements = room_for(len, "a read")?;
        }
        Ok(Self { elements, len, slot })
    }
}

impl<T: Pod + Send> HostTarget for ReadDestination<T> {
    fn start(&mut self) -> *mut u8 {
        self.elements.as_mut_ptr().cast()
    }

    unsafe fn deliver(&mut self) {
        let mut elements = std::mem::take(&mut self.elements);
        // SAFETY: the caller guarantees that all `len` elements are written. The capacity suffices, and
        // any bytes are valid elements, as `T` is `Pod`.
        unsafe { elements.set_len(self.len) };
        *lock(&self.slot) = Some(elements);
    }
}

/// Returns an empty vector with room for `len` elements.
///
/// # Errors
///
/// [`OutOfResources`](ErrorKind::OutOfResources) if the host has no memory for them.
pub(super) fn room_for<T>(len: usize, what: &str) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|error| {
        let bytes = len.saturating_mul(size_of::<T>());
        let message = format!("the host cannot allocate {bytes} bytes for {what}");
        Error::new(ErrorKind::OutOfResources, message).with_source(error)
    })?;
    if size_of::<T>() * len >= LARGE {
        take_huge_pages(elements.spare_capacity_mut());
    }
    Ok(elements)
}

/// Asks the system to back memory with large pages when it is first written. With normal pages,
/// faulting in 256 MiB takes four times as long as the copy, and freeing them takes a tenth of that
/// again.
fn take_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        // The advice covers only pages that lie entirely within the memory.
        let page = rustix::param::page_size();
        let start = memory.as_mut_ptr().cast::<u8>();
        let before = start.align_offset(page);
        let Some(inside) = size_of_val(memory).checked_sub(before) else { return };
        let pages = start.wrapping_add(before).cast();
        // SAFETY: the pages lie within the memory, and their contents do not change.
        let advised = unsafe { madvise(pages, inside / page * page, Advice::LinuxHugepage) };
        if let Err(error) = advised {
            tracing::debug!(%error, "no large pages");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocating_more_than_the_host_has_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize / 16] {
            let error = room_for::<[f32; 3]>(len, "a fill").expect_err("the host has less memory");
            assert_eq!(error.kind(), ErrorKind::OutOfResources);
            assert!(error.to_string().contains("bytes for a fill"), "{error}");
        }
    }

    #[test]
    fn allocations_have_the_requested_capacity() {
        for len in [0, 1, LARGE / 3, LARGE + 5, 3 * LARGE + 1] {
            let mut room = room_for::<u8>(len, "a read").expect("the host has the memory");
            assert!(room.is_empty() && room.capacity() >= len);
            room.resize(len, 7);
            assert!(room.iter().all(|byte| *byte == 7));
        }
    }
}
