//! Nd-range of a batch: the work-groups of its launches, one launch after another.

use kiln_spirv::Result;

use super::super::attempt::Obstacle;
use crate::plan::Slot;
use crate::ranges::{Sizes, padded};
use crate::transform::extract::Kernel;
use crate::{NdRange, NdSize};

/// Largest size of work-groups that is chosen for launches without one, in work-items. All common devices have
/// work-groups of this size.
const MAX_GROUP: usize = 256;

/// Smallest size of several work-groups that is chosen for launches without one, in work-items.
const MIN_GROUP: usize = 16;

/// Nd-range of a batch.
pub(super) struct Batch {
    /// Nd-range of each launch, with the size of its work-groups.
    pub(super) own: NdRange,
    /// Nd-range of all launches together.
    pub(super) whole: NdRange,
    /// Dimension along which the launches follow each other.
    pub(super) dimension: usize,
    /// Number of work-groups of a launch along the dimension.
    pub(super) groups: usize,
}

impl Batch {
    /// Finds the nd-range of `members` launches like `slot`.
    pub(super) fn of(slot: &Slot, kernel: &Kernel, members: usize) -> Result<Self, Obstacle> {
        let name = &kernel.name;
        let sizes = padded(slot.range.global(), 1);
        let local = slot.range.local().map(|local| padded(local, 1));
        let local = match (local, kernel.modes.local_size()) {
            (Some(local), Some(required)) if local != required => {
                return Err(Obstacle::Refusal(format!(
                    "`{name}` requires work-groups of {required:?}, not {local:?}"
                )));
            }
            (known, required) => known.or(required).map_or_else(|| group_size(sizes), Some),
        };
        let fits = |local: &Sizes| {
            (0..3).all(|d| sizes[d] > 0 && local[d] > 0 && sizes[d].is_multiple_of(local[d]))
        };
        let Some(local) = local.filter(fits) else {
            return Err(Obstacle::Refusal(format!(
                "the global size of `{name}`, {:?}, is not a number of whole work-groups; set a \
                 work-group size that divides it",
                slot.range.global()
            )));
        };
        let dimensions = slot.range.dimensions();
        let dimension = dimensions.min(2);
        let mut own = slot.range;
        own.set_local(NdSize::of(&local[..dimensions]))?;
        let mut all = sizes;
        let total = sizes[dimension].checked_mul(members);
        all[dimension] = total.ok_or_else(|| {
            Obstacle::Refusal(format!("the launches of `{name}` have too many work-items"))
        })?;
        let mut whole = NdRange::from(NdSize::of(&all[..=dimension]));
        whole.set_local(NdSize::of(&local[..=dimension]))?;
        Ok(Self { own, whole, dimension, groups: sizes[dimension] / local[dimension] })
    }
}

/// Returns a size of work-groups that divides these sizes: the largest one, by dimension. `None` if that is too
/// small.
fn group_size(sizes: Sizes) -> Option<Sizes> {
    let mut local = [1; 3];
    let mut rest = MAX_GROUP;
    for (size, local) in sizes.iter().zip(&mut local) {
        *local = (1..=rest).rev().find(|&part| size.is_multiple_of(part)).unwrap_or(1);
        rest /= *local;
    }
    let is_large = local.iter().product::<usize>() >= MIN_GROUP;
    (is_large || local == sizes).then_some(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_sizes_divide_the_global_size() {
        assert_eq!(group_size([8192, 1, 1]), Some([256, 1, 1]));
        assert_eq!(group_size([96, 10, 1]), Some([96, 2, 1]));
        assert_eq!(group_size([13, 1, 1]), Some([13, 1, 1]), "one work-group");
        assert_eq!(group_size([16, 4, 9]), Some([16, 4, 3]));
        assert_eq!(group_size([8191, 1, 1]), None, "work-groups of one work-item");
    }
}
