//! Nd-range of the fused kernel, and the mapping of the slots' nd-ranges to it.
//!
//! The rules are those of SYCL's extension for kernel fusion (`sycl_ext_codeplay_kernel_fusion`, heterogeneous
//! nd-ranges):
//!
//! * The fused nd-range is the one with the most work-items.
//! * Each work-item does the work of the work-item with the same linear id in each launch.
//! * No two launches request different work-group sizes.
//! * All offsets are equal.
//!
//! Launches that leave their work-group size to the driver get the size of the others.
//!
//! An [arrangement](crate::fusion::arrangement) may give the work-items of a launch to those of the fused kernel in
//! other ways, by an [`Assignment`].

use kiln_spirv::{Error, Result};

use super::plan::Slot;
use crate::{NdRange, NdSize};

/// Nd-range of the fused kernel, and the mapping of each slot's nd-range to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges {
    pub(crate) whole: NdRange,
    pub(crate) slots: Vec<Mapping>,
}

/// Position of a slot's work-items among those of the fused kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Nd-range of the slot, with the work-groups that it has in the fused kernel if these are known.
    pub(crate) range: NdRange,
    pub(crate) shape: Shape,
    /// Number of the fused kernel's work-items that run the slot, the first by their linear ids; `None` if all
    /// do.
    pub(crate) guard: Option<u64>,
    /// Whether the slot's work-groups are work-groups of the fused kernel, with the same ids.
    pub(crate) keeps_groups: bool,
    pub(crate) assignment: Assignment,
}

/// Rule by which the fused kernel's work-items run a slot's work-items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// Each work-item runs the one with the same linear id.
    Single,
    /// The work-item with the linear id `n` runs the one with the linear id `stride * n + index`.
    Strided { stride: u64, index: u64 },
    /// The work-item with the linear id `n` runs `count` work-items, one after the other: those with the linear
    /// ids `lead * n`, `lead * n + step`, `lead * n + 2 * step` and so on.
    Run { count: u64, lead: u64, step: u64 },
    /// The work-group with the linear id `n` runs the `count` work-items from the linear id `count * n` on. Its
    /// work-items take turns.
    Portion { count: u64 },
}

impl Assignment {
    /// Returns the number of work-items of the fused kernel that run some of `count` work-items.
    fn runners(self, count: u64) -> u64 {
        match self {
            Self::Strided { stride, index } => count.saturating_sub(index).div_ceil(stride.max(1)),
            Self::Run { count: each, .. } => count.div_ceil(each.max(1)),
            Self::Single | Self::Portion { .. } => count,
        }
    }

    /// Returns whether work-items run several work-items of the slot, one after the other.
    pub(crate) fn repeats(self) -> bool {
        matches!(self, Self::Run { .. } | Self::Portion { .. })
    }
}

/// Relation of a work-item's ids in a slot to its ids in the fused kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Equal size: the ids are the same.
    Same,
    /// Smaller size, but the same ids: the linear order counts them in the same way.
    Corner,
    /// Ids calculated from the linear id.
    Remapped,
}

/// Size or offset in three dimensions.
pub(crate) type Sizes = [usize; 3];

pub(crate) fn padded(sizes: &[usize], rest: usize) -> Sizes {
    std::array::from_fn(|d| sizes.get(d).copied().unwrap_or(rest))
}

/// Finds the nd-range of the fused kernel, and maps the slots' nd-ranges to it. `required` holds the work-group
/// sizes that the kernels' own code requires. Slots that are not assigned one by one adapt to the others.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), naming the launches, if no nd-range suits all of them.
pub(crate) fn join(
    slots: &[Slot],
    required: &[Option<Sizes>],
    assignments: &[Assignment],
) -> Result<Ranges> {
    let singles = slots.iter().zip(required).zip(assignments);
    let singles = singles.filter(|(_, assignment)| **assignment == Assignment::Single);
    let (singles, required): (Vec<_>, Vec<_>) = singles.map(|(single, _)| single).unzip();
    let local = local_size(&singles, &required)?;
    let first = &slots[0];
    let offset = |slot: &Slot| padded(slot.range.offset(), 0);
    if let Some(slot) = slots.iter().find(|&slot| offset(slot) != offset(first)) {
        return Err(Error::unsupported(format!(
            "the offset of `{}` is {:?}, but that of `{}` is {:?}; only launches with the same \
             offset are fused",
            first.kernel,
            first.range.offset(),
            slot.kernel,
            slot.range.offset()
        )));
    }
    let whole = whole(&singles, local)?;
    let mapped = slots.iter().zip(assignments);
    let mapped = mapped.map(|(slot, &assignment)| mapping(slot, assignment, whole, local));
    let mapped = mapped.collect::<Result<_>>()?;
    let mut joined = whole.range;
    if let Some(local) = local {
        joined.set_local(NdSize::of(&local[..joined.dimensions()]))?;
    }
    Ok(Ranges { whole: joined, slots: mapped })
}

/// Maps a slot's nd-range to that of `whole`, the slot with the nd-range of the fused kernel, in work-groups of
/// the size `local` if it is known.
fn mapping(
    slot: &Slot,
    assignment: Assignment,
    whole: &Slot,
    local: Option<Sizes>,
) -> Result<Mapping> {
    let own = padded(slot.range.global(), 1);
    let shape = match assignment {
        Assignment::Single => shape(own, padded(whole.range.global(), 1)),
        _ => Shape::Remapped,
    };
    if shape == Shape::Remapped && padded(slot.range.offset(), 0) != [0; 3] {
        return Err(Error::unsupported(format!(
            "the global size of `{}` is {:?}, but that of `{}` is {:?}; launches of different \
             shapes are fused only if their offset is 0, not {:?}",
            whole.kernel,
            whole.range.global(),
            slot.kernel,
            slot.range.global(),
            slot.range.offset()
        )));
    }
    let is_whole_groups = |local: Sizes| (0..3).all(|d| own[d].is_multiple_of(local[d]));
    let keeps_groups = match shape {
        Shape::Same => true,
        Shape::Corner => local.is_some_and(is_whole_groups),
        Shape::Remapped => false,
    };
    let mut range = slot.range;
    if let Some(local) = local.filter(|_| keeps_groups) {
        range.set_local(NdSize::of(&local[..range.dimensions()]))?;
    }
    let (items, all) = (assignment.runners(count(slot)?), count(whole)?);
    let is_portion = matches!(assignment, Assignment::Portion { .. });
    if items > all && !is_portion {
        return Err(Error::unsupported(format!(
            "`{}` needs {items} work-items, but the fused kernel has {all}",
            slot.kernel
        )));
    }
    let guard = (items < all && !is_portion).then_some(items);
    Ok(Mapping { range, shape, guard, keeps_groups, assignment })
}

/// Returns the work-group size that some launches request or their kernels require, if any.
fn local_size(slots: &[&Slot], required: &[&Option<Sizes>]) -> Result<Option<Sizes>> {
    let requested = slots.iter().filter_map(|&slot| Some((slot, slot.range.local()?)));
    let mut known: Option<(&Slot, &[usize])> = None;
    for (slot, local) in requested {
        match known {
            Some((other, requested)) if padded(requested, 1) != padded(local, 1) => {
                return Err(Error::unsupported(format!(
                    "the work-group size of `{}` is {requested:?}, but that of `{}` is {local:?}",
                    other.kernel, slot.kernel
                )));
            }
            _ => known = known.or(Some((slot, local))),
        }
    }
    let mut requirements =
        slots.iter().zip(required).filter_map(|(&slot, &&size)| Some((slot, size?)));
    let requirement = requirements.next();
    if let Some((slot, size)) = requirement {
        if let Some((other, different)) = requirements.find(|&(_, other)| other != size) {
            return Err(Error::unsupported(format!(
                "`{}` requires work-groups of {size:?}, but `{}` requires {different:?}",
                slot.kernel, other.kernel
            )));
        }
        if let Some((other, local)) = known
            && padded(local, 1) != size
        {
            return Err(Error::unsupported(format!(
                "the work-group size of `{}` is {local:?}, but `{}` requires {size:?}",
                other.kernel, slot.kernel
            )));
        }
    }
    let local = known.map(|(_, local)| padded(local, 1)).or(requirement.map(|(_, size)| size));
    if local.is_some_and(|local| local.contains(&0)) {
        return Err(Error::unsupported("a launch has a work-group size with no work-items"));
    }
    Ok(local)
}

/// Returns the launch with the most work-items. Among several, returns the one whose ids are the same in the
/// most launches. The work-group size must divide its global size.
fn whole<'a>(slots: &[&'a Slot], local: Option<Sizes>) -> Result<&'a Slot> {
    let counts = slots.iter().map(|slot| count(slot)).collect::<Result<Vec<_>>>()?;
    let most = counts.iter().max().copied().unwrap_or_default();
    let largest = || slots.iter().copied().zip(&counts).filter(|(_, count)| **count == most);
    let global = |slot: &Slot| padded(slot.range.global(), 1);
    let fits = |slot: &Slot| {
        let global = global(slot);
        local.is_none_or(|local| (0..3).all(|d| global[d].is_multiple_of(local[d])))
    };
    let same_ids = |slot: &Slot| {
        let others =
            slots.iter().filter(|&&other| shape(global(other), global(slot)) != Shape::Remapped);
        others.count()
    };
    let fitting = largest().map(|(slot, _)| slot).filter(|slot| fits(slot));
    // Ties go to the first launch.
    let best =
        fitting.reduce(|best, slot| if same_ids(slot) > same_ids(best) { slot } else { best });
    best.ok_or_else(|| {
        let Some((slot, _)) = largest().next() else {
            return Error::unsupported("no launch keeps its own work-items");
        };
        Error::unsupported(format!(
            "the work-group size {:?} of the launches does not divide the global size of `{}`, {:?}",
            local.unwrap_or_default(),
            slot.kernel,
            slot.range.global()
        ))
    })
}

/// Returns the number of work-items of a launch.
pub(crate) fn count(slot: &Slot) -> Result<u64> {
    let sizes = slot.range.global().iter();
    let count = sizes.map(|&size| size as u64).try_fold(1_u64, u64::checked_mul);
    count.filter(|&count| count > 0).ok_or_else(|| {
        Error::unsupported(format!(
            "the global size of `{}` is {:?}, which is zero or too many work-items",
            slot.kernel,
            slot.range.global()
        ))
    })
}

/// Returns the relation of a size to one with at least as many work-items.
fn shape(own: Sizes, whole: Sizes) -> Shape {
    if own == whole {
        return Shape::Same;
    }
    let last = own.iter().rposition(|&size| size > 1).unwrap_or(0);
    let is_corner = own[..last] == whole[..last] && own[last] <= whole[last];
    if is_corner { Shape::Corner } else { Shape::Remapped }
}
