//! Host memory that commands read and write.

use std::mem::MaybeUninit;

use bytemuck::Pod;

use super::event::ReadSlot;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Memory from here on is large. Allocators map it anew each time, glibc's as well, and give it back to
/// the system when it is freed.
const LARGE: usize = 32 << 20;

/// Host memory that the device reads.
pub(crate) trait HostSource: Send {
    fn bytes(&self) -> &[u8];
}

impl<T: Pod + Send> HostSource for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// Host memory that the device writes.
pub(crate) trait HostTarget: Send {
    /// Where it writes, which need not hold anything before.
    fn start(&mut self) -> *mut u8;
    /// The device has written all of it.
    ///
    /// # Safety
    ///
    /// That is so.
    unsafe fn deliver(&mut self);
}

/// The elements of a read, and the slot where its future looks for them.
pub(crate) struct Landing<T> {
    /// None, until the device has written them into the vector's spare capacity: to clear it before
    /// would cost as much as the read of a device whose memory is the host's.
    elements: Vec<T>,
    len: usize,
    slot: ReadSlot<T>,
}

impl<T: Pod> Landing<T> {
    /// For so many elements.
    pub(crate) fn new(len: usize, slot: ReadSlot<T>) -> Result<Self> {
        Ok(Self { elements: room_for(len, "a read")?, len, slot })
    }
}

impl<T: Pod + Send> HostTarget for Landing<T> {
    fn start(&mut self) -> *mut u8 {
        self.elements.as_mut_ptr().cast()
    }

    unsafe fn deliver(&mut self) {
        let mut elements = std::mem::take(&mut self.elements);
        // SAFETY: the caller vouches that there are so many, for which there was room; and whatever
        // bytes they are made of, they are elements.
        unsafe { elements.set_len(self.len) };
        *lock(&self.slot) = Some(elements);
    }
}

/// An empty vector with room for so many elements.
///
/// # Errors
///
/// [`OutOfResources`](ErrorKind::OutOfResources) if the host has no memory for them.
pub(super) fn room_for<T>(len: usize, what: &str) -> Result<Vec<T>> {
    let mut elements = Vec::new();
    elements.try_reserve_exact(len).map_err(|error| {
        let bytes = len.saturating_mul(size_of::<T>());
        let message = format!("there is no memory on the host for {bytes} bytes of {what}");
        Error::new(ErrorKind::OutOfResources, message).with_source(error)
    })?;
    if size_of::<T>() * len >= LARGE {
        take_huge_pages(elements.spare_capacity_mut());
    }
    Ok(elements)
}

/// Has the system back memory by large pages as it is first written: page by page, 256 MiB take four
/// times as long as the copy, and a tenth of that again when they are freed.
fn take_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        // The pages that lie in it whole.
        let page = rustix::param::page_size();
        let start = memory.as_mut_ptr().cast::<u8>();
        let before = start.align_offset(page);
        let Some(inside) = size_of_val(memory).checked_sub(before) else { return };
        let pages = start.wrapping_add(before).cast();
        // SAFETY: the pages are the memory's own, and what they hold stays as it is.
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
    fn more_than_the_host_has_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize / 16] {
            let error = room_for::<[f32; 3]>(len, "a fill").expect_err("nobody has that much");
            assert_eq!(error.kind(), ErrorKind::OutOfResources);
            assert!(error.to_string().contains("bytes of a fill"), "{error}");
        }
    }

    #[test]
    fn there_is_room_for_what_was_asked_for() {
        for len in [0, 1, LARGE / 3, LARGE + 5, 3 * LARGE + 1] {
            let mut room = room_for::<u8>(len, "a read").expect("there is");
            assert!(room.is_empty() && room.capacity() >= len);
            room.resize(len, 7);
            assert!(room.iter().all(|byte| *byte == 7));
        }
    }
}
