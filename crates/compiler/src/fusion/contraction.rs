//! Decides whether drivers may contract operations of several launches, or calculate other values for
//! them.
//!
//! If an entry point lacks the execution mode `ContractionOff`, a product that is added to something may
//! be rounded once, together with the sum, instead of twice. If launches run one by one, no operation of
//! one launch is contracted with one of another launch: the values between them are rounded when they are
//! stored to memory. In a fused kernel, a driver may optimize through the memory or the variable that
//! passes a value on, and produce other bytes. SPIR-V cannot forbid contraction between two operations of
//! a kernel and allow it between others: the mode applies to the whole entry point. (Volatile accesses
//! and opaque bit operations would hide the values from the driver. They would cancel the gain of fusion,
//! or rely on a trick that the next driver may optimize away.)
//!
//! So the fused kernel gets the mode only if that changes nothing in the launches: each launch has the
//! mode already, or has nothing that could be contracted. This holds for the usual translators, which set
//! the mode on all kernels that both add and multiply. A launch that relies on the absence of the mode
//! must not be fused with a launch that has it, and must not pass products on to a launch that adds.
//!
//! A compiler of [`Target::separate_functions`](crate::plan::Target::separate_functions), Intel's for CPUs (2026.22),
//! also calculates other values if it has more information:
//!
//! - The sine and the cosine of the same value are computed together, and their last bits differ from
//!   those of either alone.
//! - A value that all work-items share is calculated once, by other instructions than those for vectors
//!   of work-items. Estimates like `native_recip` then have another precision.
//! - A loop adds up several parts of a sum of floating-point numbers, if it has eight iterations or more
//!   and the work-items of a work-group do not fill the compiler's vectors. The order depends on the number
//!   of iterations, as far as the compiler knows it.
//!
//! Launches with such operations stay separate functions, which are compiled as they are without fusion.
//! Launches of three kinds are fused only if the caller vouches for them (`Trust::Caller`):
//!
//! - Launches with estimates and an nd-range of their own. Their function is not the same in a fused
//!   kernel.
//! - Launches with sums in loops, if the nd-range or the work-groups are not those of the launch.
//! - Launches with `dot`, `length` or a function made of these, in double precision. They are calculated
//!   differently even in a separate function.
//!
//! That compiler rounds `mad` once, twice, or not at all (`mad(x, c, x)` becomes `(c + 1) * x`), in any
//! kernel. The function is for code in which speed matters more than exact bytes (OpenCL C 1.2, 6.12.2).

use std::collections::HashMap;

use super::examined::Examined;
use crate::analysis::operations::Operations;
use crate::plan::{Memory, Slot};
use crate::ranges::{Ranges, Shape};

/// Returns the reason why such a compiler may calculate other values for a launch even if the launch is a separate
/// function; `None` if there is none. `as_launched` says which slots run as they were launched.
pub(super) fn separate_function_refusal(
    slots: &[Slot],
    ranges: &Ranges,
    operations: &[Operations],
    as_launched: &[bool],
) -> Option<String> {
    let why = |at: usize, own: &Operations| {
        let mapping = &ranges.slots[at];
        let has_own_range = mapping.shape != Shape::Same || mapping.guard.is_some();
        let is_as_launched = as_launched[at] && slots[at].range == ranges.whole;
        if own.adds_vectors {
            Some(
                "`dot` or a length in double precision, which the device's compiler computes differently \
                 in a fused kernel",
            )
        } else if own.estimates && has_own_range {
            Some("estimates, which the device's compiler computes differently in another nd-range")
        } else if own.long_sums && !is_as_launched {
            Some(
                "sums in a loop, which the device's compiler adds up in another order in another \
                 nd-range or other work-groups",
            )
        } else {
            None
        }
    };
    let mut all = operations.iter().enumerate();
    let (at, why) = all.find_map(|(at, own)| Some((at, why(at, own)?)))?;
    (slots.len() > 1).then(|| format!("`{}` calculates {why}", slots[at].kernel))
}

/// Returns whether such a compiler may calculate other values for the launches if it optimizes across their calls.
pub(super) fn depends_on_separation(operations: &[Operations]) -> bool {
    shares_angles(operations) || operations.iter().any(|own| own.estimates || own.long_sums)
}

/// Returns whether one launch calculates a sine, and another one a cosine.
fn shares_angles(operations: &[Operations]) -> bool {
    let cosines = || operations.iter().enumerate().filter(|(_, slot)| slot.cosines);
    let is_paired = |at: usize| cosines().any(|(other, _)| other != at);
    operations.iter().enumerate().any(|(at, slot)| slot.sines && is_paired(at))
}

/// Returns whether the fused kernel must have the execution mode `ContractionOff`.
///
/// # Errors
///
/// The reason why bytes may differ both with and without the mode.
pub(super) fn requires_contraction_off(
    slots: &[Slot],
    examined: &[Examined],
    operations: &[Operations],
) -> Result<bool, String> {
    let passed_on = || passed_on(slots, examined, operations);
    let name = |at: usize| &slots[at].kernel;
    let contracted = operations.iter().position(|slot| slot.is_contracted());
    let forbidding = operations.iter().position(|slot| slot.forbids);
    match (contracted, forbidding) {
        (None, forbidding) => Ok(forbidding.is_some() || passed_on().is_some()),
        (Some(contracted), Some(forbidding)) => Err(format!(
            "`{}` allows drivers to contract products and sums (fused multiply-add), but `{}` \
             forbids it",
            name(contracted),
            name(forbidding)
        )),
        (Some(_), None) => match passed_on() {
            None => Ok(false),
            Some((from, to)) => Err(format!(
                "the driver may contract products of `{}` and sums of `{}` (fused multiply-add), \
                 because their modules allow it",
                name(from),
                name(to)
            )),
        },
    }
}

/// Returns a slot that calculates products, and a later slot that may add to them. Slots between the two
/// may pass the products on as they are, or with their signs changed.
fn passed_on(
    slots: &[Slot],
    examined: &[Examined],
    operations: &[Operations],
) -> Option<(usize, usize)> {
    let memory =
        |slot: &Slot, argument: usize| -> Option<Memory> { slot.arguments.get(argument)?.memory() };
    // Memories that may hold products, and the slot that calculates these.
    let mut products = HashMap::new();
    for (at, (slot, own)) in slots.iter().zip(operations).enumerate() {
        let mut memories = (0..slot.arguments.len()).filter_map(|argument| memory(slot, argument));
        let from = memories.find_map(|memory| products.get(&memory).copied());
        if let Some(from) = from
            && (own.adds || own.fuses)
        {
            return Some((from, at));
        }
        let own = (own.multiplies || own.fuses).then_some(at);
        if let Some(origin) = own.or(from) {
            let written = examined[at].accesses.all.iter().filter(|access| access.kind.writes());
            let written = written.filter_map(|access| memory(slot, access.parameter));
            products.extend(written.map(|memory| (memory, origin)));
        }
    }
    None
}
