//! Common coordinates for the accesses of launches that differ in shape.
//!
//! A work-item has the same linear id in every slot. If all accesses to a memory can be expressed by the
//! linear id, they are. So a row-major index of two dimensions is the same as an index of a single
//! dimension.
//!
//! Where the work-groups of the fused kernel run portions of a launch, accesses are expressed by the ids of
//! these work-groups.

use std::collections::BTreeMap;

use super::examined::Examined;
use crate::analysis::access::Bytes;
use crate::analysis::affine::{Form, Id, Space};
use crate::plan::{Argument, Memory, Plan};
use crate::ranges::{Assignment, Ranges, Shape};

/// Coordinates in which all accesses to a memory are expressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// All work-items that may access the memory, in coordinates common to the slots.
    pub(super) space: Space,
    /// Work-items of each slot in the same coordinates. By linear id, these are the first work-items of
    /// `space`.
    pub(super) slots: Vec<Space>,
    /// Work-groups of the fused kernel, each as one work-item; `None` if the driver chooses their size.
    pub(super) groups: Option<Space>,
    /// Whether work-groups run portions of launches, so that a work-item runs several ones.
    pub(super) has_portions: bool,
    /// Work-items of each slot in the coordinates of its own launch, and their assignment.
    own: Vec<(Space, Assignment)>,
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

/// Rewrites all accesses to each memory in common coordinates, and returns these coordinates. `spaces` are the
/// work-items of the slots.
pub(super) fn unify(
    plan: &Plan,
    ranges: &Ranges,
    spaces: Vec<Space>,
    slots: &mut [Examined],
) -> BTreeMap<Memory, View> {
    let assignments = ranges.slots.iter().map(|mapping| mapping.assignment);
    let own: Vec<_> = spaces.into_iter().zip(assignments).collect();
    let memories = plan.memories().into_iter();
    let views = memories.map(|memory| (memory, view(plan, ranges, &own, memory, slots)));
    views.collect()
}

fn view(
    plan: &Plan,
    ranges: &Ranges,
    all: &[(Space, Assignment)],
    memory: Memory,
    slots: &mut [Examined],
) -> View {
    let mut users: Vec<_> = plan.regions(memory).map(|(place, _)| place.slot).collect();
    users.dedup();
    if users.iter().any(|&slot| matches!(all[slot].1, Assignment::Portion { .. })) {
        return portions(plan, ranges, all, memory, &users, slots);
    }
    let own: Vec<_> = all.iter().map(|(space, _)| *space).collect();
    let view = |space: Space, slots: Vec<Space>| View {
        space,
        slots,
        groups: space.work_groups(),
        has_portions: false,
        own: all.to_vec(),
    };
    let shape = |&slot: &usize| (own[slot].global, own[slot].offset);
    let first = users.first().copied().unwrap_or_default();
    let is_single = |slot: &usize| all[*slot].1 == Assignment::Single;
    if users.iter().all(|slot| is_single(slot) && shape(slot) == shape(&first)) {
        let mut spaces = own.clone();
        // If the size of work-groups is known in one slot, it is known in all.
        let local = users.iter().find_map(|&slot| own[slot].local);
        users.iter().for_each(|&slot| spaces[slot].local = local);
        forget_groups(plan, ranges, memory, slots);
        return view(spaces[first], spaces);
    }
    let linear = |slot: usize, bytes: &Bytes| {
        let start = linear(&bytes.start.without_local(&own[slot]), &own[slot])?;
        let start = assigned(start, &line(&all[slot]), all[slot].1)?;
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
        return view(Space::new(&ranges.whole), own);
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
    let lines: Vec<_> = all.iter().map(line).collect();
    let longest = users.iter().max_by_key(|&&slot| lines[slot].global[0]);
    view(lines[longest.copied().unwrap_or_default()], lines)
}

/// Expresses the accesses to a memory, portions of whose users run in the work-groups of the fused kernel, by
/// the ids of these work-groups.
fn portions(
    plan: &Plan,
    ranges: &Ranges,
    all: &[(Space, Assignment)],
    memory: Memory,
    users: &[usize],
    slots: &mut [Examined],
) -> View {
    let whole = Space::new(&ranges.whole);
    let groups = whole.work_groups();
    let first = users.first().copied().unwrap_or_default();
    let is_alike = |slot: &usize| {
        let ((space, assignment), (other, own)) = (all[*slot], all[first]);
        (space.global, assignment) == (other.global, own)
    };
    // Work-items of launches that are alike are run by the same work-item of the fused kernel.
    let are_alike = users.iter().all(is_alike);
    for &slot in users {
        let (space, assignment) = &all[slot];
        for access in &mut slots[slot].accesses.all {
            if is_memory(plan, slot, access.parameter, memory)
                && let Some(bytes) = &mut access.bytes
            {
                let group = match *assignment {
                    Assignment::Portion { count } => {
                        groups.and_then(|groups| by_portion(bytes, space, count, &groups))
                    }
                    _ => bytes.group.filter(|_| ranges.slots[slot].keeps_groups),
                };
                let start = bytes.start.without_local(space);
                let start = if are_alike { start } else { start.weakened(space) };
                *bytes = Bytes { start, group, inside: None, ..*bytes };
            }
        }
    }
    let spaces: Vec<_> = all.iter().map(|(space, _)| Space { local: None, ..*space }).collect();
    let space = if are_alike { spaces[first] } else { Space { local: None, ..whole } };
    View { space, slots: spaces, groups, has_portions: true, own: all.to_vec() }
}

/// Returns the start of an access as a form of the ids of work-groups, each of which runs a portion of `count`
/// work-items of `space`.
fn by_portion(bytes: &Bytes, space: &Space, count: u64, groups: &Space) -> Option<Form> {
    let count = i128::from(count);
    // Portions are work-groups of the launch, whose ids are those of the fused kernel's.
    if let (Some(local), Some(own)) = (space.local, space.work_groups())
        && local[1..] == [1; 2]
        && local[0] == count
        && own.global == groups.global
        && bytes.group.is_some()
    {
        return bytes.group;
    }
    let start = bytes.start.without_local(space);
    by_outer_ids(&start, space, count, groups)
        .or_else(|| by_linear_id(&start, space, count, groups))
}

/// Returns a form of the ids of work-groups, if the first dimensions of `space` make up a portion, and the
/// others are the dimensions of the work-groups.
fn by_outer_ids(start: &Form, space: &Space, count: i128, groups: &Space) -> Option<Form> {
    let sizes = space.global;
    let inner = (0..=3).find(|&d| sizes[..d].iter().product::<i128>() == count)?;
    let outer = || (inner..3).filter(|&d| sizes[d] > 1);
    let dimensions = || (0..3).filter(|&d| groups.global[d] > 1);
    let are_same = outer().map(|d| sizes[d]).eq(dimensions().map(|d| groups.global[d]));
    let mut form = Form::between(start.low, start.high);
    for (own, d) in outer().zip(dimensions()).filter(|_| are_same) {
        let id = Form::id(Id::Global, d, groups).times(start.coefficients()[own])?;
        form = form.plus(&id, groups)?;
    }
    for (factor, size) in start.coefficients().into_iter().zip(sizes).take(inner) {
        let span = factor.checked_mul(size - 1)?;
        form = form.plus(&Form::between(span.min(0), span.max(0)), groups)?;
    }
    are_same.then_some(form)
}

/// Returns a form of the ids of work-groups for an access that grows evenly with the linear id.
fn by_linear_id(start: &Form, space: &Space, count: i128, groups: &Space) -> Option<Form> {
    let start = linear(start, space)?;
    let step = start.coefficients()[0];
    let span = step.checked_mul(count - 1)?;
    let span = Form::between(span.min(0), span.max(0));
    let mut form = Form::between(start.low, start.high).plus(&span, groups)?;
    let mut factor = step.checked_mul(count)?;
    for d in 0..3 {
        form = form.plus(&Form::id(Id::Global, d, groups).times(factor)?, groups)?;
        factor = factor.checked_mul(groups.global[d])?;
    }
    Some(form)
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
    argument.and_then(Argument::memory) == Some(memory)
}

/// Returns the work-items of the fused kernel that run work-items of a slot, in one dimension, by their linear
/// ids.
fn line((space, assignment): &(Space, Assignment)) -> Space {
    let line = all_in_line(space);
    match *assignment {
        Assignment::Strided { stride, index } => {
            let (stride, index) = (i128::from(stride), i128::from(index));
            let count = (line.global[0] - index + stride - 1).div_euclid(stride);
            Space { global: [count.max(0), 1, 1], ..line }
        }
        Assignment::Run { count, .. } => {
            Space { global: [line.global[0] / i128::from(count).max(1), 1, 1], ..line }
        }
        Assignment::Single | Assignment::Portion { .. } => line,
    }
}

/// Returns the same work-items in one dimension, by their linear ids.
fn all_in_line(space: &Space) -> Space {
    let count = space.global.iter().product();
    let (global, offset) = ([count, 1, 1], [0; 3]);
    Space { global, offset, local: None, dimensions: 1, is_uniform: true }
}

/// Converts a form of a slot's linear ids to a form of those of the fused kernel's work-items in `line`.
fn assigned(form: Form, line: &Space, assignment: Assignment) -> Option<Form> {
    let (lead, index, span, step) = match assignment {
        Assignment::Strided { stride, index } => (stride, index, 0, 0),
        Assignment::Run { count, lead, step } => {
            (lead, 0, count.checked_sub(1)?.checked_mul(step)?, step)
        }
        Assignment::Single | Assignment::Portion { .. } => return Some(form),
    };
    let factor = form.coefficients()[0];
    let times = |number: u64| factor.checked_mul(number.into());
    let (span, step) = (times(span)?, times(step)?);
    let others = Form::steps(span.abs(), step.abs());
    let others = others.plus(&Form::constant(span.min(0)), line)?;
    let id = Form::id(Id::Global, 0, line).times(times(lead)?)?;
    if span == 0 {
        return form.along_ids(&id, times(index)?, line);
    }
    form.unclipped().along_ids(&id, times(index)?, line)?.plus(&others, line)
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
    let line = all_in_line(space);
    let id = Form::id(Id::Global, 0, &line).times(step.unwrap_or(0))?;
    form.along_ids(&id, constant, &line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{NdRange, NdSize};

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
