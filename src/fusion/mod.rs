//! Several launches made one kernel, where that is proven to change nothing.
//!
//! A pure compiler: a [`Plan`] and the modules of its kernels go in, SPIR-V comes out. It knows no
//! driver and no queue.
//!
//! Each kernel is [analysed](access) for the bytes that its work-items touch, each memory that slots
//! share is [judged](legality), and if all is well the modules are [merged](merge), with a new
//! [entry] that calls the kernels in order. Memories that nobody reads afterwards become
//! [variables](promote) of the work-items where that is proven right, too.

mod access;
mod entry;
mod form;
pub mod internals;
mod legality;
mod merge;
mod plan;
mod promote;
mod ranges;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rspirv::spirv::{Op, StorageClass};

use crate::error::Result;
use crate::nd_range::NdRange;
use crate::spirv::Module;
use crate::spirv::edit::Section;
use access::Value;
use form::Space;
use legality::Examined;
use merge::{Modes, Part};
use promote::Private;

pub use legality::Verdict;
pub(crate) use legality::{Judgement, Promotion};
pub use report::{BufferReport, FusionReport};
pub(crate) use plan::{Argument, Memory, Place, Plan, Region, Slot};

/// What came of a plan.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// On every memory, in order. Empty if the kernels could not be examined.
    pub(crate) judgements: Vec<Judgement>,
    /// The scalars whose values were used: the outcome is that of all plans with the same
    /// [`without_values`](Plan::without_values) of these.
    pub(crate) constants: BTreeSet<Place>,
    /// The kernel, or why there is none.
    pub(crate) fused: Result<Fused, String>,
}

/// A kernel that does what several do.
#[derive(Debug)]
pub(crate) struct Fused {
    pub(crate) module: Module,
    pub(crate) kernel: String,
    pub(crate) range: NdRange,
    /// For each parameter, the arguments that it stands for, which are all the same.
    pub(crate) parameters: Vec<Vec<Place>>,
    /// For each slot, the ids of its specialization constants and those that they became.
    pub(crate) spec_ids: Vec<Vec<(u32, u32)>>,
    /// The memories that are no longer used.
    pub(crate) internalized: Vec<Memory>,
}

/// Whether what is not proven may be done all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trust {
    ProofOnly,
    /// The caller vouches that no work-item needs what another one wrote in an earlier launch.
    Caller,
}

/// Makes one kernel of a plan's launches.
///
/// # Errors
///
/// Those of plans and modules that are not sound: an unknown kernel, a wrong number of arguments, a
/// damaged module. That launches cannot be fused is an [`Outcome`].
pub(crate) fn fuse(plan: &Plan, modules: &[&Module], trust: Trust) -> Result<Outcome> {
    plan.check(modules.len())?;
    let mut outcome = Outcome {
        judgements: Vec::new(),
        constants: plan.constants.clone(),
        fused: Err(String::new()),
    };
    outcome.fused = match attempt(plan, modules, trust, &mut outcome) {
        Err(error) if error.kind() == crate::ErrorKind::Unsupported => Err(error.to_string()),
        Err(error) if error.kind() == crate::ErrorKind::BuildFailed => Err(error.to_string()),
        Err(error) => return Err(error),
        Ok(fused) => fused,
    };
    Ok(outcome)
}

fn attempt(
    plan: &Plan,
    modules: &[&Module],
    trust: Trust,
    outcome: &mut Outcome,
) -> Result<Result<Fused, String>> {
    let range = ranges::join(&plan.slots)?;
    let space = Space::new(&range);
    let mut slots = Vec::new();
    for (at, slot) in plan.slots.iter().enumerate() {
        let examined = examine(slot, modules[slot.module], &space)
            .map_err(|error| error.within(format!("launch {at} of `{}`", slot.kernel)))?;
        let relied = examined.accesses.constants.iter();
        outcome.constants.extend(relied.map(|&argument| Place { slot: at, argument }));
        slots.push(examined);
    }
    outcome.judgements = legality::judge(plan, &slots, &space);
    for Judgement { verdict, .. } in &outcome.judgements {
        match verdict {
            Verdict::Proven => {}
            Verdict::NeedsTrust(_) if trust == Trust::Caller => {}
            Verdict::NeedsTrust(why) | Verdict::Refuted(why) => return Ok(Err(why.clone())),
        }
    }
    let promotions = promotable(plan, modules, &slots, &mut outcome.judgements)?;
    let mut parts = Vec::new();
    for (at, slot) in plan.slots.iter().enumerate() {
        let privates = privates(slot, &slots[at], &promotions);
        parts.push(Part::new(modules[slot.module], &slot.kernel, at, |module, function| {
            promote::promote(module, function, &privates)
        })?);
    }
    let kernels = plan.slots.iter().map(|slot| slot.kernel.as_str());
    let modes = Modes::join(kernels.zip(parts.iter().map(|part| &part.modes)))?;
    ranges::check_local_size(&range, modes.local_size())?;
    let mut whole = Part::merge(&parts)?;
    let decisions = entry::Decisions {
        plan,
        constants: &outcome.constants,
        promotions: &promotions,
        modes: &modes,
    };
    let entry = entry::add(&mut whole, &decisions)?;
    Ok(Ok(Fused {
        module: whole.module,
        kernel: entry.name,
        range,
        parameters: entry.parameters,
        spec_ids: whole.spec_ids,
        internalized: promotions.into_keys().collect(),
    }))
}

fn examine(slot: &Slot, module: &Module, space: &Space) -> Result<Examined> {
    let (_, function) = access::function_of(module, &slot.kernel)?;
    let values: Vec<_> = slot
        .arguments
        .iter()
        .map(|argument| match argument {
            Argument::Buffer(_) => Value::Buffer,
            Argument::Scalar(bytes) => Value::Scalar(bytes.clone()),
            Argument::Local(_) => Value::Other,
        })
        .collect();
    let accesses = access::analyse(module, function, &values, space)?;
    let definitions = module.definitions();
    let body = module.functions.iter().find(|known| known.id == function);
    let body = body.into_iter().flat_map(|function| function.body.iter());
    let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter));
    let names: HashMap<_, _> = module
        .section(Section::Names)
        .iter()
        .filter(|i| i.op() == Some(Op::Name))
        .filter_map(|i| Some((i.word(0)?, i.string(1)?.to_owned())))
        .collect();
    let parameters = parameters.map(|parameter| legality::Parameter {
        name: parameter.result().and_then(|id| names.get(&id).cloned()),
        is_constant: parameter.word(0).and_then(|ty| definitions.get(ty)?.word(1))
            == Some(StorageClass::UniformConstant as u32),
    });
    Ok(Examined { kernel: slot.kernel.clone(), accesses, parameters: parameters.collect() })
}

/// The memories that become private, of those for which that was judged right. Those whose kernels do
/// more with their address than is followed do not, and are told why.
fn promotable(
    plan: &Plan,
    modules: &[&Module],
    slots: &[Examined],
    judgements: &mut [Judgement],
) -> Result<BTreeMap<Memory, Promotion>> {
    let mut promotions = BTreeMap::new();
    for judgement in judgements {
        let Ok(promotion) = &judgement.promotion else { continue };
        let one = BTreeMap::from([(judgement.memory, promotion.clone())]);
        let mut refused = None;
        for (slot, examined) in plan.slots.iter().zip(slots) {
            let module = modules[slot.module];
            let (_, function) = access::function_of(module, &slot.kernel)?;
            for private in privates(slot, examined, &one) {
                if let Err(why) = promote::check(module, function, &private) {
                    let name = examined.parameters[private.parameter].name.as_deref();
                    let name = name.unwrap_or("a buffer");
                    refused = Some(format!("of `{name}`, `{}` {why}", slot.kernel));
                }
            }
        }
        match refused {
            None => promotions.extend(one),
            Some(why) => judgement.promotion = Err(why),
        }
    }
    Ok(promotions)
}

/// The parameters of a slot that become private.
fn privates(
    slot: &Slot,
    examined: &Examined,
    promotions: &BTreeMap<Memory, Promotion>,
) -> Vec<Private> {
    let arguments = slot.arguments.iter().enumerate();
    let buffers = arguments.filter_map(|(at, argument)| match argument {
        Argument::Buffer(region) => Some((at, promotions.get(&region.memory)?)),
        _ => None,
    });
    buffers
        .map(|(parameter, promotion)| {
            let own = examined.accesses.all.iter().filter(|a| a.parameter == parameter);
            let places = own.filter_map(|access| {
                Some((access.location?.offset, access.bytes?.start.low - promotion.base.low))
            });
            Private { parameter, places: places.collect() }
        })
        .collect()
}
