//! Fusion of several launches into one kernel, where the results are proven to stay the same.
//!
//! This compiler is pure: a [`Plan`] and the modules of its kernels go in, SPIR-V comes out. It does not use
//! drivers or queues.
//!
//! 1. Each slot's kernel is [extracted](extract) into a module of its own. Its specialization constants are
//!    fixed at their values, and helpers that are passed shared buffers are [inlined](inlining). The
//!    launches' [nd-ranges](ranges) are joined into one.
//! 2. Each kernel is [analysed](access) for the bytes that its work-items touch, as [affine forms](affine) of
//!    their ids. These are converted to [common coordinates](coordinates).
//! 3. Each memory gets a [verdict](legality): whether the launches that share it may be fused.
//! 4. Contents that a work-item wrote or read before are [kept](private_legality) in a [variable](promote).
//!    Contents that a work-group wrote before may be [kept](local_legality) in [local memory](local_memory).
//!    Where that replaces a memory that is not read afterwards, the memory is [internalized](internalize):
//!    its buffer is no longer used.
//! 5. Kernels whose range differs from the common one get [other ids](remap). Fusion fails here if a driver
//!    might [contract](contraction) operations of different launches. A work-item may do the work of
//!    [several](coarsen).
//! 6. The modules are [merged](merge), and a new [entry point](entry) calls the kernels in order. Barriers
//!    separate launches where the work-items of a work-group pass values on. The result is lowered to the
//!    device's [version](lower_version) of SPIR-V.

mod access;
mod affine;
mod coarsen;
mod contraction;
mod coordinates;
mod declaration;
mod dependence;
mod entry;
mod extract;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod inlining;
mod internalize;
mod legality;
mod local_legality;
mod local_memory;
mod lower_version;
mod merge;
mod modes;
mod plan;
mod private_legality;
mod promote;
mod ranges;
mod remap;
mod report;
mod specialize;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use rspirv::spirv::{Op, StorageClass};

use crate::compiler::nd_range::NdRange;
use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Definitions, Section};
use crate::error::{Error, ErrorKind, Result};
use access::Value;
use affine::Space;
use coarsen::Widening;
use dependence::{Examined, Parameter, Use};
use internalize::internalized;
use merge::Part;
use modes::Modes;
use ranges::Shape;

pub(crate) use coarsen::Width;
pub(crate) use legality::Judgement;
pub use legality::Verdict;
pub use plan::Internalization;
pub(crate) use plan::{Argument, Memory, Place, Plan, Region, Slot, Target};
pub use report::{BufferReport, FusionReport, LaunchReport, PairReport};

/// Result of fusing a plan.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Findings on each slot, in order. Empty if the kernels could not be examined.
    pub(crate) slots: Vec<SlotFindings>,
    /// Judgement on each memory, in order. Empty if the kernels could not be examined.
    pub(crate) judgements: Vec<Judgement>,
    /// Scalars whose values were used. The outcome holds for all plans that have the same
    /// [`without_values`](Plan::without_values) of these and of [`equal`](Self::equal).
    pub(crate) constants: BTreeSet<Place>,
    /// Subset of [`constants`](Self::constants) that are constants in the kernel: those that the plan asks
    /// for, and those from which addresses or loop bounds are calculated. The others are only compared and
    /// remain arguments, so that other values may give the same kernel.
    pub(crate) injected: BTreeSet<Place>,
    /// Sets of scalars, not fixed, that must have the same value. Each set is one argument of the kernel.
    pub(crate) equal: BTreeSet<BTreeSet<Place>>,
    /// Pairs of scalars with different values. In a plan where they are equal, more may be kept in variables.
    pub(crate) unequal: BTreeSet<[Place; 2]>,
    /// Fused kernel, or the reason why the launches were not fused.
    pub(crate) fused: Result<Fused, String>,
}

/// Findings on one slot.
#[derive(Debug)]
pub(crate) struct SlotFindings {
    /// Names of the kernel's parameters, in order.
    pub(crate) parameters: Vec<Option<String>>,
    /// Whether the ids of its work-items are calculated from linear ones.
    pub(crate) is_remapped: bool,
    /// Number of work-items that run the slot; `None` if all do.
    pub(crate) guard: Option<u64>,
}

/// Kernel that does the work of several launches.
#[derive(Debug)]
pub(crate) struct Fused {
    pub(crate) module: Module,
    pub(crate) kernel: String,
    pub(crate) range: NdRange,
    /// Arguments that each parameter stands for. All arguments of one parameter are the same.
    pub(crate) parameters: Vec<Vec<Place>>,
    /// Number of bytes of local memory that a work-group uses, including local arguments.
    pub(crate) local_bytes: usize,
    /// Number of bytes of all parameters together.
    pub(crate) parameter_bytes: usize,
    /// Memories that are no longer used.
    pub(crate) internalized: Vec<Memory>,
    /// Subset of `internalized` that became local memory of work-groups.
    pub(crate) local: BTreeSet<Memory>,
    /// Slots before which the work-items of a work-group wait for each other.
    pub(crate) barriers: BTreeSet<usize>,
}

impl Fused {
    /// Returns the form that replaces a memory, or `None` if the memory is still used.
    pub(crate) fn form(&self, memory: Memory) -> Option<Internalization> {
        let is_internalized = self.internalized.contains(&memory);
        let is_local = self.local.contains(&memory);
        is_internalized.then_some(if is_local {
            Internalization::Local
        } else {
            Internalization::Private
        })
    }
}

/// Whether launches may be fused where that is not proven safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trust {
    ProofOnly,
    /// The caller vouches that no work-item needs what another one wrote in an earlier launch.
    Caller,
}

/// Fuses a plan's launches into one kernel. Each of its work-items may do the work of several, within
/// `width`.
///
/// # Errors
///
/// Fails if the plan or a module is not valid: an unknown kernel, a wrong number of arguments, a damaged
/// module. If the launches cannot be fused, the function returns an [`Outcome`] with the reason.
pub(crate) fn fuse(
    plan: &Plan,
    modules: &[&Module],
    trust: Trust,
    width: Width,
) -> Result<Outcome> {
    plan.check(modules.len())?;
    let mut outcome = Outcome {
        slots: Vec::new(),
        judgements: Vec::new(),
        constants: plan.constants.clone(),
        injected: plan.constants.clone(),
        equal: BTreeSet::new(),
        unequal: BTreeSet::new(),
        fused: Err(String::new()),
    };
    outcome.fused = match attempt(plan, modules, trust, width, &mut outcome) {
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(error.to_string()),
        Err(error) if error.kind() == ErrorKind::BuildFailed => Err(error.to_string()),
        Err(error) => return Err(error),
        Ok(fused) => fused,
    };
    Ok(outcome)
}

fn attempt(
    plan: &Plan,
    modules: &[&Module],
    trust: Trust,
    width: Width,
    outcome: &mut Outcome,
) -> Result<Result<Fused, String>> {
    let kernels = extract::kernels(plan, modules)?;
    let demanded: Vec<_> = kernels.iter().map(|kernel| kernel.modes.local_size()).collect();
    let ranges = ranges::join(&plan.slots, &demanded)?;
    let mut printing = kernels.iter().filter(|kernel| kernel.prints());
    if let (Some(first), Some(second)) = (printing.next(), printing.next())
        && trust == Trust::ProofOnly
    {
        return Ok(Err(format!(
            "the printed output of `{}` and `{}` would be interleaved",
            first.name, second.name
        )));
    }
    let definitions: Vec<_> = kernels.iter().map(|kernel| kernel.module.definitions()).collect();
    let operations = kernels.iter().zip(&definitions);
    let operations: Vec<_> = operations.map(|(kernel, all)| kernel.operations(all)).collect();
    let mut slots = Vec::new();
    for (at, (slot, kernel)) in plan.slots.iter().zip(&kernels).enumerate() {
        let space = Space::new(&ranges.slots[at].range);
        let examined = examine(slot, &definitions[at], kernel.function, &space);
        let examined = examined.map_err(|error| extract::within(at, slot, error))?;
        let relied = &examined.accesses.constants;
        let injected = relied & &access::feeding(&definitions[at], kernel.function);
        let place = |&argument: &usize| Place { slot: at, argument };
        outcome.constants.extend(relied.iter().map(place));
        if plan.target.separate_functions && operations[at].estimates {
            // With values known in advance, the driver would compile the function differently.
            outcome.injected.retain(|injected| injected.slot != at);
        } else {
            outcome.injected.extend(injected.iter().map(place));
        }
        slots.push(examined);
    }
    outcome.slots.extend(slots.iter().zip(&ranges.slots).map(|(examined, mapping)| {
        let names = examined.parameters.iter().map(|parameter| parameter.name.clone());
        SlotFindings {
            parameters: names.collect(),
            is_remapped: mapping.shape == Shape::Remapped,
            guard: mapping.guard,
        }
    }));
    let views = coordinates::unify(plan, &ranges, &mut slots);
    outcome.judgements = legality::judge(plan, &slots, &views);
    for Judgement { verdict, .. } in &outcome.judgements {
        match verdict {
            Verdict::Proven => {}
            Verdict::NeedsTrust(_) if trust == Trust::Caller => {}
            Verdict::NeedsTrust(why) | Verdict::Refuted(why) => return Ok(Err(why.clone())),
        }
    }
    let mut privates = internalize::privates(plan, &definitions, &slots, &mut outcome.judgements);
    let shared = internalize::shared(plan, &definitions, &slots, &ranges, &mut outcome.judgements);
    for (privates, shared) in privates.iter_mut().zip(&shared) {
        privates.retain(|private| shared.iter().all(|shared| shared.memory != private.memory));
    }
    let gone = internalized(&outcome.judgements);
    let goes_to_memory = |used: &Use<'_>| {
        let access = used.access;
        let private = privates[used.slot].iter().find(|of| of.parameter == access.parameter);
        let kept = private.zip(access.location).and_then(|(of, at)| of.accesses.get(&at.offset));
        !gone.contains(&used.memory()) && kept.is_none_or(|kept| kept.in_memory)
    };
    let unordered = match plan.target.order_own_accesses {
        true => legality::unordered(plan, &slots, &ranges, goes_to_memory),
        false => Vec::new(),
    };
    let barriers = legality::barriers(&outcome.judgements, unordered);
    unite_scalars(outcome);
    let part = |at: usize, number: usize| {
        let mut part = Part::new(&kernels[at], number, |module, function| {
            promote::promote(module, function, &privates[at])?;
            local_memory::share(module, function, &shared[at])
        })?;
        remap::remap(&mut part.module, &kernels[at].name, &ranges.slots[at], &ranges)?;
        Ok::<_, Error>(part)
    };
    let parts = (0..plan.slots.len()).map(|at| part(at, at));
    let mut parts = parts.collect::<Result<Vec<_>>>()?;
    let mut modes =
        Modes::join(kernels.iter().map(|kernel| (kernel.name.as_str(), &kernel.modes)))?;
    if plan.target.separate_functions
        && trust == Trust::ProofOnly
        && let Some(why) = contraction::alone(&plan.slots, &ranges, &operations)
    {
        return Ok(Err(why));
    }
    match contraction::forbids(&plan.slots, &slots, &operations) {
        Ok(forbids) if forbids => modes.add_contraction_off(),
        Err(why) if trust == Trust::ProofOnly => return Ok(Err(why)),
        Ok(_) | Err(_) => {}
    }
    let is_apart = barriers.is_empty() && shared.iter().all(Vec::is_empty);
    let width = if is_apart { width } else { Width::ONE };
    let widening = Widening::find(width, &ranges, &parts)?;
    let items = widening.map_or(1, |widening| widening.items);
    if let Some(widening) = widening {
        parts.clear();
        for (at, item) in (0..plan.slots.len()).flat_map(|at| (0..items).map(move |i| (at, i))) {
            let mut part = part(at, parts.len())?;
            widening.shift(&mut part.module, item)?;
            parts.push(part);
        }
    }
    let mut whole = Part::merge(&parts)?;
    let may_meet =
        || !barriers.is_empty() || whole.has_barriers() || contraction::may_meet(&operations);
    if plan.target.separate_functions && may_meet() {
        whole.keep_apart();
    }
    lower_version::lower(&mut whole.module, plan.target.version)?;
    let decisions = entry::Decisions {
        plan,
        ranges: &ranges,
        constants: &outcome.injected,
        equal: &outcome.equal,
        judgements: &outcome.judgements,
        privates: &privates,
        shared: &shared,
        barriers: &barriers,
        modes: &modes,
        items,
    };
    let entry = entry::add(&mut whole, &decisions)?;
    let (local_bytes, parameter_bytes) = sizes(plan, &whole.module, &entry.parameters);
    Ok(Ok(Fused {
        module: whole.module,
        kernel: entry.name,
        range: widening.map_or(ranges.whole, |widening| widening.range),
        parameters: entry.parameters,
        local_bytes,
        parameter_bytes,
        internalized: gone,
        local: shared.iter().flatten().map(|shared| shared.memory).collect(),
        barriers,
    }))
}

/// Collects the scalars that must stay equal for the private contents to be correct, and the pairs of scalars
/// that must stay unequal because more could be private if they were equal.
fn unite_scalars(outcome: &mut Outcome) {
    let promotions = outcome.judgements.iter().filter_map(|j| j.promotion.as_ref().ok());
    let equal = promotions.flat_map(|promotion| promotion.equal.iter().cloned());
    for equal in private_legality::united(equal.collect::<Vec<_>>()) {
        // A fixed scalar fixes all others of its set.
        if equal.is_disjoint(&outcome.constants) {
            outcome.equal.insert(equal);
        } else {
            outcome.constants.extend(equal);
        }
    }
    let unequal = outcome.judgements.iter().flat_map(|judgement| &judgement.unequal);
    outcome.unequal = unequal.copied().collect();
}

fn examine(
    slot: &Slot,
    definitions: &Definitions<'_>,
    function: u32,
    space: &Space,
) -> Result<Examined> {
    let module = definitions.module();
    let values: Vec<_> = slot
        .arguments
        .iter()
        .map(|argument| match argument {
            Argument::Buffer(_) => Value::Buffer,
            Argument::Scalar(bytes) => Value::Scalar(bytes.clone()),
            Argument::Local(_) => Value::Other,
        })
        .collect();
    let accesses = access::analyse(definitions, function, &values, space)?;
    let body = module.functions.iter().find(|known| known.id == function);
    let body = body.into_iter().flat_map(|function| function.body.iter());
    let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter));
    let names: HashMap<_, _> = module
        .section(Section::Names)
        .iter()
        .filter(|i| i.op() == Some(Op::Name))
        .filter_map(|i| Some((i.word(0)?, i.string(1)?.to_owned())))
        .collect();
    let parameters = parameters.map(|parameter| Parameter {
        name: parameter.result().and_then(|id| names.get(&id).cloned()),
        is_constant: parameter.word(0).and_then(|ty| definitions.get(ty)?.word(1))
            == Some(StorageClass::UniformConstant as u32),
    });
    Ok(Examined {
        kernel: slot.kernel.clone(),
        function,
        accesses,
        parameters: parameters.collect(),
        movable: promote::movable(definitions, function),
        groups: access::of_groups(definitions, function),
    })
}

/// Returns the number of bytes of local memory and of parameters.
fn sizes(plan: &Plan, module: &Module, parameters: &[Vec<Place>]) -> (usize, usize) {
    let definitions = module.definitions();
    let layouts = access::Layouts::of(module, &definitions);
    let variables = module.section(Section::Globals).iter();
    let variables = variables.filter(|i| {
        i.op() == Some(Op::Variable) && i.word(2) == Some(StorageClass::Workgroup as u32)
    });
    let sizes = variables.filter_map(|i| {
        let pointee = definitions.get(i.result_type()?)?.word(2)?;
        usize::try_from(layouts.size(pointee)?).ok()
    });
    let (mut local, mut passed) = (sizes.fold(0, usize::saturating_add), 0_usize);
    let pointer = layouts.address as usize;
    for place in parameters.iter().filter_map(|places| places.first()) {
        let argument = &plan.slots[place.slot].arguments[place.argument];
        passed = passed.saturating_add(match argument {
            Argument::Scalar(bytes) => bytes.len(),
            Argument::Buffer(_) | Argument::Local(_) => pointer,
        });
        if let Argument::Local(bytes) = argument {
            local = local.saturating_add(*bytes);
        }
    }
    (local, passed)
}
