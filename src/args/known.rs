//! Memory that other code knows by the driver's object: memory that was given to Kiln, and memory whose object Kiln
//! gave away.
//!
//! Commands are ordered by the allocation and the bytes that they use. Two allocations of the same bytes would not be
//! ordered, so memory that is given a second time becomes a part of the allocation that has it already.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};

use super::region::{Allocation, Contents, Freed, Region, Storage};
use crate::backend::{DeviceSlot, GivenMemory, Place};
use crate::error::{Error, Result};
use crate::sync::lock;

/// Allocations that other code knows. There are few: most memory is never given to other code.
static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// Allocation that other code knows.
struct Known {
    place: Place,
    allocation: Weak<Allocation>,
    /// Token of the regions of the allocation that users hold.
    holders: Weak<()>,
}

impl Place {
    fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (&self.bytes, &other.bytes);
        self.object == other.object && one.start < two.end && two.start < one.end
    }

    fn contains(&self, other: &Self) -> bool {
        let (one, two) = (&self.bytes, &other.bytes);
        self.object == other.object && one.start <= two.start && two.end <= one.end
    }
}

impl Region {
    /// Returns memory of other code as a region of the whole of it. If Kiln has the memory already, the region is a
    /// part of the allocation that has it, so that commands on both are ordered.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if another allocation has only some of the bytes, has
    /// them in another form, or belongs to another device or runtime, whose commands are not ordered with those of
    /// this one.
    pub(super) fn given(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        given: GivenMemory,
        storage: Storage,
    ) -> Result<Self> {
        let GivenMemory { memory, bytes, start: _ } = given;
        let place = memory.place(bytes)?;
        let mut known = lock(&KNOWN);
        known.retain(|known| known.allocation.strong_count() > 0);
        for known in known.iter_mut().filter(|known| known.place.overlaps(&place)) {
            let Some(allocation) = known.allocation.upgrade() else { continue };
            if !known.place.contains(&place)
                || !Arc::ptr_eq(&allocation.slot, slot)
                || allocation.storage.image() != storage.image()
            {
                return Err(shared_error(&known.place, &place));
            }
            let holders = known.holders.upgrade().unwrap_or_default();
            known.holders = Arc::downgrade(&holders);
            let whole = Self::held(allocation, holders);
            if storage.image().is_some() {
                return Ok(whole);
            }
            let start = place.bytes.start - known.place.bytes.start;
            return Ok(whole.slice(start..start + bytes));
        }
        let region = Self::of(slot, freed, memory, (bytes, storage), Contents::Unspecified);
        region.allocation.is_known.store(true, Relaxed);
        known.push(Known::of(&region, place));
        Ok(region)
    }

    /// Notes that other code knows the allocation from now on.
    ///
    /// # Errors
    ///
    /// The driver's error.
    pub(super) fn note_known(&self) -> Result<()> {
        if self.allocation.is_known.load(Relaxed) {
            return Ok(());
        }
        let place = self.memory().place(self.allocation.bytes)?;
        let mut known = lock(&KNOWN);
        known.retain(|known| known.allocation.strong_count() > 0);
        if !self.allocation.is_known.swap(true, Relaxed) {
            known.push(Known::of(self, place));
        }
        Ok(())
    }
}

impl Known {
    fn of(region: &Region, place: Place) -> Self {
        let holders = Arc::downgrade(&region.holders);
        Self { place, allocation: region.downgrade(), holders }
    }
}

/// Returns the error for memory of which Kiln has some bytes already, in a way that cannot be shared.
fn shared_error(known: &Place, given: &Place) -> Error {
    Error::invalid(format!(
        "the given memory shares bytes with memory that Kiln has already: bytes {:#x?} of the object {:#x} and {:#x?}, \
         in another form, for another device or runtime, or only in part; give the whole memory first and use slices \
         of that buffer, or drop the other buffer",
        known.bytes, known.object, given.bytes
    ))
}
