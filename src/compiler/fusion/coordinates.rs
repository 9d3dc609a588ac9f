//! Common coordinates for the accesses of launches that differ in shape.
//!
//! A work-item has the same linear id in every slot. If all accesses to a memory can be expressed by the
//! linear id, they are. So a row-major index of two dimensions is the same as an index of a single
//! dimension.

use std::collections::BTreeMap;

use super::access::Bytes;
use super::affine::{Form, Id, Space};
use super::dependence::Examined;
use super::plan::{Argument, Memory, Plan};
use super::ranges::{Ranges, Shape};

/// Coordinates in which all accesses to a memory are expressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// All work-items that may access the memory, in coordinates common to the slots.
    pub(super) space: Space,
    /// Work-items of each slot in the same coordinates. By linear id, these are the first work-items of
    /// `space`.
    pub(super) slots: Vec<Space>,
    /// Work-items of each slot in the coordinates of its own launch.
    own: Vec<Space>,
}

impl View {
    /// Returns whether each work-item that runs `other` also runs `slot`.
    pub(super) fn covers(&self, slot: usize, other: usize) -> bool {
        let count = |slot: usize| self.slots[slot].global.iter().product::<i128>();
        count(slot) >= count(other)
    }

    /// Returns whether the ids and sizes of work-items are the same in two slots.
    pub(super) fn is_alike(&self, slot: usize, other: usize) -> bool {
        self.own[slot] == self.own[other]
    }
}

/// Rewrites all accesses to each memory in common coordinates, and returns these coordinates.
pub(super) fn unify(
    plan: &Plan,
    ranges: &Ranges,
    slots: &mut [Examined],
) -> BTreeMap<Memory, View> {
    let own: Vec<_> = ranges.slots.iter().map(|mapping| Space::new(&mapping.range)).collect();
    let memories = plan.memories().into_iter();
    let views = memories.map(|memory| (memory, view(plan, ranges, &own, memory, slots)));
    views.collect()
}

fn view(
    plan: &Plan,
    ranges: &Ranges,
    own: &[Space],
    memory: Memory,
    slots: &mut [Examined],
) -> View {
    let mut users: Vec<_> = plan.regions(memory).map(|(place, _)| place.slot).collect();
    users.dedup();
    let shape = |&slot: &usize| (own[slot].global, own[slot].offset);
    let first = users.first().copied().unwrap_or_default();
    if users.iter().all(|slot| shape(slot) == shape(&first)) {
        let mut spaces = own.to_vec();
        // If the size of work-groups is known in one slot, it is known in all.
        let local = users.iter().find_map(|&slot| own[slot].local);
        users.iter().for_each(|&slot| spaces[slot].local = local);
        forget_groups(plan, ranges, memory, slots);
        return View { space: spaces[first], slots: spaces, own: own.to_vec() };
    }
    let linear = |slot: usize, bytes: &Bytes| {
        let start = linear(&bytes.start.without_local(&own[slot]), &own[slot])?;
        Some(Bytes { start, group: None, ..*bytes })
    };
    let is_linear = users.iter().all(|&slot| {
        let mut accesses = slots[slot]
            .accesses
            .all
            .iter()
            .filter(|access| is_memory(plan, slot, access.parameter, memory));
        accesses.all(|access| access.bytes.is_none_or(|bytes| linear(slot, &bytes).is_some()))
    });
    if !is_linear && users.iter().all(|&slot| ranges.slots[slot].shape != Shape::Remapped) {
        forget_groups(plan, ranges, memory, slots);
        return View { space: Space::new(&ranges.whole), slots: own.to_vec(), own: own.to_vec() };
    }
    for &slot in &users {
        for access in &mut slots[slot].accesses.all {
            if is_memory(plan, slot, access.parameter, memory)
                && let Some(bytes) = &mut access.bytes
            {
                let start = bytes.start.weakened(&own[slot]);
                let weakened = Bytes { start, group: None, ..*bytes };
                *bytes = linear(slot, bytes).unwrap_or(weakened);
            }
        }
    }
    let lines: Vec<_> = own.iter().map(line).collect();
    let longest = users.iter().max_by_key(|&&slot| lines[slot].global[0]);
    let space = lines[longest.copied().unwrap_or_default()];
    View { space, slots: lines, own: own.to_vec() }
}

/// Removes the [starts by work-group](Bytes::group) of accesses in slots whose work-groups are not those
/// of the fused kernel.
fn forget_groups(plan: &Plan, ranges: &Ranges, memory: Memory, slots: &mut [Examined]) {
    for (slot, examined) in slots.iter_mut().enumerate() {
        for access in &mut examined.accesses.all {
            if !ranges.slots[slot].keeps_groups
                && is_memory(plan, slot, access.parameter, memory)
                && let Some(bytes) = &mut access.bytes
            {
                bytes.group = None;
            }
        }
    }
}

fn is_memory(plan: &Plan, slot: usize, parameter: usize, memory: Memory) -> bool {
    let argument = plan.slots[slot].arguments.get(parameter);
    matches!(argument, Some(Argument::Buffer(region)) if region.memory == memory)
}

/// Returns the same work-items in one dimension, by their linear ids.
fn line(space: &Space) -> Space {
    let count = space.global.iter().product();
    Space { global: [count, 1, 1], offset: [0; 3], local: None, dimensions: 1 }
}

/// Returns a form of global ids as a form of the linear id, if it grows evenly with the linear id.
fn linear(form: &Form, space: &Space) -> Option<Form> {
    let (mut step, mut items, mut constant) = (None, 1, 0);
    for (d, factor) in form.coefficients().into_iter().enumerate() {
        constant += factor.checked_mul(space.offset[d])?;
        if space.global[d] > 1 {
            let step = *step.get_or_insert(factor);
            if factor != step.checked_mul(items)? {
                return None;
            }
            items = items.checked_mul(space.global[d])?;
        } else if factor != 0 {
            return None;
        }
    }
    let line = line(space);
    let id = Form::id(Id::Global, 0, &line).times(step.unwrap_or(0))?;
    form.along_ids(&id, constant, &line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::compiler::nd_range::{NdRange, NdSize};

    #[test]
    fn row_major_accesses_are_linear() {
        let mut range = NdRange::from(NdSize::from([8, 4]));
        let space = Space::new(&range);
        let [x, y] = [0, 1].map(|d| Form::id(Id::Global, d, &space));
        let row_major = |space: &Space, width, step| {
            let sum = y.times(width).unwrap().plus(&x, space).unwrap().times(step);
            linear(&sum.unwrap(), space)
        };
        let found = row_major(&space, 8, 4).unwrap();
        assert_eq!((found.coefficients(), found.low, found.high), ([4, 0, 0], 0, 0));
        assert_eq!(row_major(&space, 16, 4), None);
        assert_eq!(linear(&x, &space), None);
        assert_eq!(linear(&Form::between(3, 5), &space), Some(Form::between(3, 5)));
        // The first work-item has the linear id 0, wherever global ids begin.
        range.set_offset([2, 3].into()).unwrap();
        let moved = Space::new(&range);
        assert_eq!(row_major(&moved, 8, 1).unwrap().low, 26);
    }

    #[test]
    fn dimensions_of_size_one_are_ignored() {
        let space = Space::new(&NdRange::from(NdSize::from([1, 6, 5])));
        let [y, z] = [1, 2].map(|d| Form::id(Id::Global, d, &space));
        let sum = z.times(6).unwrap().plus(&y, &space).unwrap();
        assert_eq!(linear(&sum, &space).unwrap().coefficients(), [1, 0, 0]);
    }
}
