//! Several launches made one kernel, where that is proven to change nothing.
//!
//! A pure compiler: a [`Plan`] and the modules of its kernels go in, SPIR-V comes out. It knows no
//! driver and no queue.
//!
//! 1. Each slot's kernel is [set apart](isolate) in a module of its own, its specialization constants at
//!    their values and helpers that get shared buffers [inlined](inlining), and the launches'
//!    [nd-ranges](ranges) become one.
//! 2. Each kernel is [analysed](access) for the bytes that its work-items touch, as [forms](form) of their
//!    ids, which are brought to [common coordinates](shapes).
//! 3. Each memory that slots share is [judged](legality).
//! 4. What a work-item wrote or read before it [keeps](privacy) in a [variable](promote), what a
//!    work-group did it may [keep](locality) in [local memory](share), and memories that nobody reads
//!    afterwards are [done without](internalize).
//! 5. Kernels whose range differs from the common one get other [ids](remap). Where drivers might
//!    [contract](contraction) operations of several launches, it ends here. Work-items may come to do the
//!    work of [several](wide).
//! 6. The modules are [merged](merge), with a new [entry] that calls the kernels in order, with barriers
//!    between them where work-groups pass values on, for the device's [version] of SPIR-V.

mod access;
mod affine;
mod coarsen;
mod contraction;
mod coordinates;
mod declaration;
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
use contraction::Operations;
use internalize::internalized;
use legality::Examined;
use merge::{Modes, Part};
use ranges::Shape;

pub(crate) use coarsen::Width;
pub(crate) use legality::Judgement;
pub use legality::Verdict;
pub use plan::Internalization;
pub(crate) use plan::{Argument, Memory, Place, Plan, Region, Slot, Target};
pub use report::{BufferReport, FusionReport, LaunchReport, PairReport};

/// What came of a plan.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What was found out of each slot, in order. Empty if the kernels could not be examined.
    pub(crate) slots: Vec<SlotFindings>,
    /// On every memory, in order. Empty if the kernels could not be examined.
    pub(crate) judgements: Vec<Judgement>,
    /// The scalars whose values were used: the outcome is that of all plans with the same
    /// [`without_values`](Plan::without_values) of these and of [`equal`](Self::equal).
    pub(crate) constants: BTreeSet<Place>,
    /// Those of them that the kernel has as constants: that its plan asked for, and that addresses or the
    /// bounds of loops are calculated from. The others are compared only, and are arguments still, so
    /// that other values may make the same kernel.
    pub(crate) injected: BTreeSet<Place>,
    /// The scalars, not fixed, that must have the same value: they are one argument of the kernel.
    pub(crate) equal: BTreeSet<BTreeSet<Place>>,
    /// Scalars that have different values: of plans where they do not, more may come.
    pub(crate) unequal: BTreeSet<[Place; 2]>,
    /// The kernel, or why there is none.
    pub(crate) fused: Result<Fused, String>,
}

/// What is told of a slot.
#[derive(Debug)]
pub(crate) struct SlotFindings {
    /// The names of its kernel's parameters.
    pub(crate) parameters: Vec<Option<String>>,
    /// Whether the ids of its work-items are calculated from linear ones.
    pub(crate) is_remapped: bool,
    /// If not all work-items do it, how many do.
    pub(crate) guard: Option<u64>,
}

/// A kernel that does what several do.
#[derive(Debug)]
pub(crate) struct Fused {
    pub(crate) module: Module,
    pub(crate) kernel: String,
    pub(crate) range: NdRange,
    /// For each parameter, the arguments that it stands for, which are all the same.
    pub(crate) parameters: Vec<Vec<Place>>,
    /// How many bytes of local memory a work-group takes, with those of arguments.
    pub(crate) local_bytes: usize,
    /// How many bytes the parameters take together.
    pub(crate) parameter_bytes: usize,
    /// The memories that are no longer used.
    pub(crate) internalized: Vec<Memory>,
    /// Those of them that are local memory of work-groups.
    pub(crate) local: BTreeSet<Memory>,
    /// The slots before which the work-items of a group wait for each other.
    pub(crate) barriers: BTreeSet<usize>,
}

impl Fused {
    /// What a memory became that is no longer used.
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

/// Whether what is not proven may be done all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Trust {
    ProofOnly,
    /// The caller vouches that no work-item needs what another one wrote in an earlier launch.
    Caller,
}

/// Makes one kernel of a plan's launches, whose work-items may do the work of several.
///
/// # Errors
///
/// Those of plans and modules that are not sound: an unknown kernel, a wrong number of arguments, a
/// damaged module. That launches cannot be fused is an [`Outcome`].
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
        return Ok(Err(format!("what `{}` and `{}` print would mix", first.name, second.name)));
    }
    let definitions: Vec<_> = kernels.iter().map(|kernel| kernel.module.definitions()).collect();
    let operations = kernels.iter().zip(&definitions);
    let operations: Vec<_> = operations.map(|(kernel, all)| Operations::of(kernel, all)).collect();
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
            // It would be compiled otherwise, with what is known beforehand.
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
    let goes_to_memory = |used: &legality::Use<'_>| {
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

/// Finds the scalars that have to stay equal for what is private to be right, and those that have to stay
/// unequal for no more to be private.
fn unite_scalars(outcome: &mut Outcome) {
    let promotions = outcome.judgements.iter().filter_map(|j| j.promotion.as_ref().ok());
    let equal = promotions.flat_map(|promotion| promotion.equal.iter().cloned());
    for equal in private_legality::united(equal.collect::<Vec<_>>()) {
        // One that is fixed fixes the others.
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
    let parameters = parameters.map(|parameter| legality::Parameter {
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

/// The bytes of local memory and of parameters.
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
