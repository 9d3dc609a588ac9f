//! Internalization of memories that are not read afterwards: finds those that become variables of work-items
//! and those that become local memory, and records why the others stay.

use kiln_spirv::edit::Definitions;

use super::examined::Examined;
use super::legality::Judgement;
use super::local_legality::Locality;
use super::local_memory::{self, Shared};
use super::promote::{self, Private};
use crate::analysis::access::Access;
use crate::plan::{Argument, Memory, Place, Plan};
use crate::ranges::Ranges;

/// Returns, for each slot, the parameters some of whose accesses go to variables. A memory keeps its buffer
/// if a kernel uses the address in ways that are not followed. The reason is then recorded in the memory's
/// judgement.
pub(super) fn privates(
    plan: &Plan,
    definitions: &[Definitions<'_>],
    slots: &[Examined],
    judgements: &mut [Judgement],
) -> Vec<Vec<Private>> {
    let mut all = Vec::new();
    for (at, (slot, examined)) in plan.slots.iter().zip(slots).enumerate() {
        let mut privates = Vec::new();
        for (argument, value) in slot.arguments.iter().enumerate() {
            let Some(memory) = value.memory() else { continue };
            let image = match value {
                Argument::Image(image) => Some(image.shape),
                _ => None,
            };
            let judgement = judgements.iter_mut().find(|judgement| judgement.memory == memory);
            let Some(Ok(promotion)) = judgement.map(|judgement| &mut judgement.promotion) else {
                continue;
            };
            let places = promotion.accesses.get(&Place { slot: at, argument });
            let mut private = Private {
                parameter: argument,
                memory,
                size: promotion.size,
                accesses: places.cloned().unwrap_or_default(),
                replaced: None,
                image,
            };
            let own = examined.accesses.all.iter().filter(|access| access.parameter == argument);
            let is_private = |access: &Access| {
                let place = access.location.and_then(|at| private.accesses.get(&at.offset));
                place.is_some_and(|place| !place.in_memory)
            };
            if own.clone().all(is_private) {
                match promote::own_uses(&definitions[at], examined.function, &private) {
                    Ok(uses) => private.replaced = Some(uses),
                    Err(why) => {
                        let name = examined.parameters[argument].name.as_deref();
                        let name = name.unwrap_or("a buffer");
                        let why = format!("for `{name}`, `{}` {why}", slot.kernel);
                        match image {
                            // For an image, this may be why the launches are not fused.
                            Some(_) => promotion.remains = Some(why),
                            None => _ = promotion.remains.get_or_insert(why),
                        }
                    }
                }
            }
            if private.replaced.is_some() || !private.accesses.is_empty() {
                privates.push(private);
            }
        }
        all.push(privates);
    }
    all
}

/// Returns, for each slot, the parameters that become local memory, of memories that are not entirely
/// private. If a memory cannot become local memory, the reason is recorded in its judgement.
pub(super) fn shared(
    plan: &Plan,
    definitions: &[Definitions<'_>],
    slots: &[Examined],
    ranges: &Ranges,
    judgements: &mut [Judgement],
) -> Vec<Vec<Shared>> {
    let arguments = plan.places().map(|(_, argument)| argument);
    let arguments = arguments.filter_map(|argument| match argument {
        Argument::Local(bytes) => Some(*bytes),
        _ => None,
    });
    let own = slots.iter().map(|slot| slot.groups.local_bytes).chain(arguments);
    let reserved = own.fold(0, usize::saturating_add);
    let mut available = plan.target.local_memory.saturating_sub(reserved);
    let mut all = vec![Vec::new(); plan.slots.len()];
    for judgement in judgements {
        let Ok(locality) = &mut judgement.locality else { continue };
        if judgement.promotion.as_ref().is_ok_and(|promotion| promotion.remains.is_none()) {
            judgement.locality = Err("its work-items keep it in private memory".into());
            continue;
        }
        let (size, align) = (locality.size as usize, locality.align as usize);
        let size = size.next_multiple_of(align.max(16));
        let found = match size > available {
            true => Err(format!(
                "a work-group would need {size} bytes of local memory for it, but has only \
                 {available} bytes left"
            )),
            false => places(plan, definitions, slots, ranges, judgement.memory, locality),
        };
        let unit = locality.unit;
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                judgement.locality = Err(why);
                continue;
            }
        };
        available -= size;
        judgement.promotion = Err("its work-groups keep it in local memory".into());
        for (Place { slot, argument: parameter }, first) in found {
            all[slot].push(Shared { parameter, memory: judgement.memory, unit, first });
        }
    }
    all
}

/// Returns the arguments that become local memory in place of a memory, each with the first byte of its region
/// in the local memory. Reduces the unit of `locality` to that of all accesses.
///
/// # Errors
///
/// Fails with the reason if the memory cannot become local memory.
fn places(
    plan: &Plan,
    definitions: &[Definitions<'_>],
    slots: &[Examined],
    ranges: &Ranges,
    memory: Memory,
    locality: &mut Locality,
) -> Result<Vec<(Place, i128)>, String> {
    let mut found = Vec::new();
    for (place, region) in plan.regions(memory) {
        let (slot, examined) = (&plan.slots[place.slot], &slots[place.slot]);
        if !ranges.slots[place.slot].keeps_groups {
            return Err(format!("`{}` has different work-groups", slot.kernel));
        }
        let first = region.offset as i128 - locality.first;
        let unit = local_memory::check(&definitions[place.slot], examined, place.argument, first)
            .map_err(|text| {
            let name = examined.parameters[place.argument].name.as_deref();
            let name = name.unwrap_or("a buffer");
            format!("for `{name}`, `{}` {text}", slot.kernel)
        })?;
        locality.unit = locality.unit.min(unit);
        found.push((place, first));
    }
    Ok(found)
}

/// Returns the memories that are no longer used.
pub(super) fn internalized(judgements: &[Judgement]) -> Vec<Memory> {
    let unused = judgements.iter().filter(|judgement| {
        let is_private =
            judgement.promotion.as_ref().is_ok_and(|promotion| promotion.remains.is_none());
        is_private || judgement.locality.is_ok()
    });
    unused.map(|judgement| judgement.memory).collect()
}
