//! Memory of a graph's temporary buffers. Temporaries that are not in use at the same time share bytes.

use std::cmp::Reverse;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::args::region::{Contents, Freed, Region, Storage};
use crate::backend::DeviceSlot;
use crate::error::Result;
use crate::sync::lock;

/// Maximum number of replays of a graph that have temporaries of their own. Further replays run after one of these.
const MAX_SETS: usize = 4;

/// Positions of temporaries in one allocation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Offset in bytes of each temporary.
    pub(super) offsets: Vec<usize>,
    /// Size of the allocation in bytes.
    pub(super) bytes: usize,
}

/// Size in bytes of a temporary, and the numbers of the first and the last command that uses it.
pub(super) type Lifetime = (usize, RangeInclusive<usize>);

impl Layout {
    /// Lays out temporaries at multiples of `alignment`, the largest first, each at the lowest offset where it has no
    /// byte in common with another one that is in use at the same time.
    pub(super) fn of(lifetimes: &[Lifetime], alignment: usize) -> Self {
        let mut by_size: Vec<usize> = (0..lifetimes.len()).collect();
        by_size.sort_by_key(|&at| (Reverse(lifetimes[at].0), *lifetimes[at].1.start()));
        let mut layout = Self { offsets: vec![0; lifetimes.len()], bytes: 0 };
        let mut placed: Vec<usize> = Vec::new();
        for at in by_size {
            let (bytes, lifetime) = &lifetimes[at];
            let mut taken: Vec<Range<usize>> = placed
                .iter()
                .filter(|&&other| meet(lifetime, &lifetimes[other].1))
                .map(|&other| layout.offsets[other]..layout.offsets[other] + lifetimes[other].0)
                .collect();
            taken.sort_by_key(|range| range.start);
            let mut offset = 0;
            for range in taken {
                if offset + bytes <= range.start {
                    break;
                }
                offset = offset.max(range.end.next_multiple_of(alignment));
            }
            layout.offsets[at] = offset;
            layout.bytes = layout.bytes.max(offset + bytes);
            placed.push(at);
        }
        layout
    }
}

/// Returns whether two temporaries are in use at the same time.
fn meet(one: &RangeInclusive<usize>, other: &RangeInclusive<usize>) -> bool {
    one.start() <= other.end() && other.start() <= one.end()
}

/// Temporaries of one replay at a time.
pub(super) struct TemporarySet {
    pub(super) memory: Arc<Region>,
    /// Parts of the memory that commands use.
    pub(super) parts: Box<[Arc<Region>]>,
}

impl TemporarySet {
    /// Releases the memory without calling the driver.
    pub(super) fn release(self) {
        self.memory.release();
        self.parts.into_iter().for_each(Region::release);
    }
}

/// Sets of temporaries of a graph, one for each replay in flight, up to a limit.
pub(super) struct TemporarySets {
    slot: Arc<DeviceSlot>,
    freed: Arc<Freed>,
    bytes: usize,
    /// Ranges of bytes of the parts that commands use.
    parts: Box<[Range<usize>]>,
    sets: Mutex<Vec<Arc<TemporarySet>>>,
    /// Number of replays that were given a set in use.
    reused: AtomicUsize,
}

impl TemporarySets {
    /// Creates the first set.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the device lacks the memory.
    pub(super) fn new(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        bytes: usize,
        parts: Box<[Range<usize>]>,
    ) -> Result<Self> {
        let sets = Self {
            slot: slot.clone(),
            freed: freed.clone(),
            bytes,
            parts,
            sets: Mutex::default(),
            reused: AtomicUsize::new(0),
        };
        let first = sets.allocate()?;
        lock(&sets.sets).push(Arc::new(first));
        Ok(sets)
    }

    /// Returns the size in bytes of a set.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a set that no unfinished replay uses. If all are in use and the limit is reached, or the device lacks
    /// the memory for another one, returns a set in use: the DAG then orders the replays.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if there are no sets any more, and the device lacks the
    /// memory for one.
    pub(super) fn take(&self) -> Result<Arc<TemporarySet>> {
        let mut sets = lock(&self.sets);
        if let Some(free) = sets.iter().find(|set| Arc::strong_count(set) == 1) {
            return Ok(free.clone());
        }
        if sets.len() < MAX_SETS {
            match self.allocate() {
                Ok(set) => {
                    sets.push(Arc::new(set));
                    return Ok(sets[sets.len() - 1].clone());
                }
                Err(error) if sets.is_empty() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(sets[self.reused.fetch_add(1, Relaxed) % sets.len()].clone())
    }

    /// Frees the sets that no unfinished replay uses.
    pub(super) fn release_idle(&self) {
        lock(&self.sets).retain(|set| Arc::strong_count(set) > 1);
    }

    fn allocate(&self) -> Result<TemporarySet> {
        let size = (self.bytes, Storage::Device);
        let description = || format!("{} bytes for the temporaries of a graph", self.bytes);
        let memory =
            Region::allocate(&self.slot, &self.freed, size, Contents::Unspecified, description)?;
        let parts = self.parts.iter().map(|part| {
            let part = memory.slice(part.clone());
            part.view()?;
            Ok(Arc::new(part))
        });
        let parts = parts.collect::<Result<_>>()?;
        Ok(TemporarySet { memory: Arc::new(memory), parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporaries_share_bytes_only_if_their_lifetimes_do_not_meet() {
        let layout = Layout::of(&[(100, 0..=1), (100, 1..=2), (100, 2..=3), (50, 3..=4)], 64);
        assert_eq!(layout.offsets, [0, 128, 0, 128]);
        assert_eq!(layout.bytes, 228);
    }

    #[test]
    fn gaps_are_filled() {
        // The second and third are in use together; the last fits below the third.
        let layout = Layout::of(&[(256, 0..=1), (200, 2..=5), (128, 2..=9), (64, 6..=9)], 64);
        assert_eq!(layout.offsets, [0, 0, 256, 0]);
        assert_eq!(layout.bytes, 384);
    }

    #[test]
    fn no_two_temporaries_in_use_at_the_same_time_overlap() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let lifetimes: Vec<Lifetime> = (0..rng.usize(1..20))
                .map(|_| {
                    let first = rng.usize(..30);
                    (rng.usize(1..1000), first..=first + rng.usize(..10))
                })
                .collect();
            let layout = Layout::of(&lifetimes, 128);
            for (at, (bytes, lifetime)) in lifetimes.iter().enumerate() {
                assert!(layout.offsets[at].is_multiple_of(128));
                assert!(layout.offsets[at] + bytes <= layout.bytes);
                for (other, (size, others)) in lifetimes.iter().enumerate().take(at) {
                    let apart = layout.offsets[at] + bytes <= layout.offsets[other]
                        || layout.offsets[other] + size <= layout.offsets[at];
                    assert!(apart || !meet(lifetime, others), "{lifetimes:?} {layout:?}");
                }
            }
        }
    }
}
