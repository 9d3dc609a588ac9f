//! Fills, with the strategy that is best for each driver (`cargo bench --bench transfer`).

use opencl3::command_queue::*;
use smallvec::SmallVec;

use super::codes::refused_error;
use super::event::{SubmittedEvents, WaitList};
use super::handle::OwnedEvent;
use super::memory::ClMemory;
use super::queue::Queue;
use crate::device::FillStrategy;
use crate::error::Result;

/// Number of bytes that are filled before copies repeat them, if copies are used. A multiple of every pattern's
/// length.
const BEGINNING: usize = 32 << 10;

/// Size in bytes from which a fill is worth several commands.
const WORTH_COPIES: usize = 256 << 10;

/// Maximum size of a copy in bytes, so that its source is read from a cache.
const MAX_COPY: usize = 4 << 20;

impl FillStrategy {
    /// Returns a pattern with the same effect on the range. Its length divides `offset` and `bytes` if the
    /// length of the given pattern does.
    fn pattern(self, given: &[u8], offset: usize, bytes: usize) -> SmallVec<[u8; 128]> {
        if self.narrows && given.iter().all(|byte| *byte == given[0]) {
            return SmallVec::from_slice(&given[..1]);
        }
        let mut length = given.len();
        while 2 * length <= self.widest && (offset | bytes).is_multiple_of(2 * length) {
            length *= 2;
        }
        given.iter().copied().cycle().take(length).collect()
    }

    /// Enqueues a fill.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue): the range is inside the memory,
    /// and the pattern meets the conditions of [`Operation::Fill`](crate::backend::Operation::Fill).
    pub(super) unsafe fn enqueue(
        self,
        queue: &Queue,
        memory: &ClMemory,
        (offset, bytes): (usize, usize),
        pattern: &[u8],
        wait: &WaitList,
    ) -> Result<SubmittedEvents> {
        let pattern = self.pattern(pattern, offset, bytes);
        let window = memory.window(offset, bytes, pattern.len())?;
        let (memory, start) =
            window.as_ref().map_or((memory, offset), |(view, start)| (view, *start));
        let beginning = if self.copies && bytes >= WORTH_COPIES { BEGINNING } else { bytes };
        // SAFETY: the queue, the memory and the events are alive, the range is inside the memory, and the
        // driver copies the pattern before it returns. The driver keeps a view alive while a command uses it.
        let filled = unsafe {
            enqueue_fill_buffer(
                queue.raw(),
                memory.raw(),
                pattern.as_ptr().cast(),
                pattern.len(),
                start,
                beginning,
                wait.len(),
                wait.as_ptr(),
            )
        };
        let filled = filled.map_err(|code| refused_error(code, "a fill", bytes, offset))?;
        // SAFETY: the driver made the event for this call, with one reference.
        let mut submitted = SubmittedEvents::one(unsafe { OwnedEvent::new(filled) });
        let mut done = beginning;
        while done < bytes {
            let piece = done.min(bytes - done).min(MAX_COPY);
            // SAFETY: as above. The queue is in order, so the earlier commands have filled the source, and the
            // source ends before the destination begins.
            let copied = unsafe {
                enqueue_copy_buffer(
                    queue.raw(),
                    memory.raw(),
                    memory.raw(),
                    start,
                    start + done,
                    piece,
                    0,
                    std::ptr::null(),
                )
            };
            let copied = copied.map_err(|code| {
                // A failed operation must have nothing left to run, so the earlier commands finish first.
                queue.handle().finish();
                refused_error(code, "a fill", bytes, offset)
            })?;
            // SAFETY: as above.
            submitted.then(unsafe { OwnedEvent::new(copied) });
            done += piece;
        }
        Ok(submitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POCL: FillStrategy = FillStrategy { widest: 128, narrows: true, copies: false };
    const NVIDIA: FillStrategy = FillStrategy { widest: 16, narrows: false, copies: false };
    const PLAIN: FillStrategy = FillStrategy { widest: 1, narrows: false, copies: false };

    #[test]
    fn patterns_are_repeated_as_far_as_the_range_allows() {
        let length = |strategy: FillStrategy, given: &[u8], offset, bytes| {
            let pattern = strategy.pattern(given, offset, bytes);
            assert!(pattern.chunks(given.len()).all(|chunk| chunk == given));
            pattern.len()
        };
        assert_eq!(length(NVIDIA, &[0], 0, 64), 16);
        assert_eq!(length(NVIDIA, &[1, 2], 8, 64), 8);
        assert_eq!(length(NVIDIA, &[1, 2], 0, 62), 2);
        assert_eq!(length(NVIDIA, &[1; 128], 0, 256), 128);
        assert_eq!(length(POCL, &[1, 2, 3, 4], 0, 1 << 20), 128);
        assert_eq!(length(POCL, &[1, 2, 3, 4], 12, 1 << 20), 4);
        assert_eq!(length(PLAIN, &[1, 2, 3, 4], 0, 1 << 20), 4);
    }

    #[test]
    fn patterns_of_equal_bytes_become_one_byte_for_pocl() {
        assert_eq!(POCL.pattern(&[7; 16], 16, 64)[..], [7]);
        assert_eq!(PLAIN.pattern(&[7; 16], 16, 64)[..], [7; 16]);
    }
}
