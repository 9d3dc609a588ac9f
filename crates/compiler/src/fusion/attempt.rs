//! Steps of fusing a plan: prepare the kernels, prove that they may be fused, transform each, and assemble one
//! kernel.

use std::collections::BTreeSet;
use std::sync::Arc;

use kiln_spirv::edit::{Definitions, Section};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::StorageClass;

use super::arrangement::Arrangement;
use super::contraction;
use super::coordinates;
use super::dependence::Use;
use super::entry;
use super::examination::Examinations;
use super::examined::Examined;
use super::image_legality;
use super::internalize::{self, internalized};
use super::judge::judge;
use super::legality::{self, FusionVerdict, Judgement};
use super::local_memory::{self, Shared};
use super::outcome::{Fused, Outcome, SlotFindings, Trust};
use super::private_legality;
use super::promote::{self, Private};
use crate::analysis::access;
use crate::analysis::operations::Operations;
use crate::plan::{Argument, Memory, Place, Plan};
use crate::ranges::{self, Ranges, Shape};
use crate::transform::coarsen::{Widening, Width};
use crate::transform::extract::{self, Kernel};
use crate::transform::lower_version;
use crate::transform::merge::Part;
use crate::transform::modes::Modes;
use crate::transform::remap;

/// Number of runs of a slot for 100 of its work-items where each runs it once.
pub(super) const ONCE: u64 = 100;

/// Reason why a step does not succeed.
pub(super) enum Obstacle {
    /// The launches cannot be fused, for this reason.
    Refusal(String),
    Error(Error),
}

impl From<Error> for Obstacle {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Fuses the launches of an arrangement, whose kernels were extracted, and notes in `outcome` what was found
/// on the way.
pub(super) fn attempt(
    arrangement: &Arrangement,
    kernels: &[Arc<Kernel>],
    examinations: &Examinations<'_>,
    trust: Trust,
    width: Width,
    outcome: &mut Outcome,
) -> Result<Fused, Obstacle> {
    let definitions: Vec<_> = kernels.iter().map(|kernel| kernel.module.definitions()).collect();
    let mut launches = Launches::prepare(arrangement, kernels, &definitions, trust)?;
    let slots = launches.examine(examinations, outcome)?;
    let proof = launches.prove(slots, outcome)?;
    let parts = launches.parts(&proof)?;
    let modes = launches.modes(&proof)?;
    let widened = launches.widen(parts, &proof, width)?;
    launches.assemble(widened, &modes, proof, outcome)
}

/// Launches of a plan, with their kernels and their joined ranges.
struct Launches<'a> {
    arrangement: &'a Arrangement,
    plan: &'a Plan,
    kernels: &'a [Arc<Kernel>],
    definitions: &'a [Definitions<'a>],
    operations: Vec<Operations>,
    ranges: Ranges,
    trust: Trust,
}

/// Facts about launches that may be fused.
struct Proof {
    slots: Vec<Examined>,
    /// Contents that each slot keeps in variables.
    privates: Vec<Vec<Private>>,
    /// Contents that each slot keeps in local memory.
    shared: Vec<Vec<Shared>>,
    /// Memories that the fused kernel does not use.
    internalized: Vec<Memory>,
    /// Slots before which the work-items of a work-group wait for each other.
    barriers: BTreeSet<usize>,
}

/// Parts of a fused kernel, in order.
struct Widened {
    parts: Vec<Part>,
    /// Set if each work-item does the work of several.
    widening: Option<Widening>,
}

impl<'a> Launches<'a> {
    fn prepare(
        arrangement: &'a Arrangement,
        kernels: &'a [Arc<Kernel>],
        definitions: &'a [Definitions<'a>],
        trust: Trust,
    ) -> Result<Self, Obstacle> {
        let required_sizes: Vec<_> =
            kernels.iter().map(|kernel| kernel.modes.local_size()).collect();
        let plan = &arrangement.plan;
        let ranges = ranges::join(&plan.slots, &required_sizes, &arrangement.assignments)?;
        let mut printing = kernels.iter().filter(|kernel| kernel.prints());
        if let (Some(first), Some(second)) = (printing.next(), printing.next())
            && trust == Trust::ProofOnly
        {
            return Err(Obstacle::Refusal(format!(
                "the printed output of `{}` and `{}` would be interleaved",
                first.name, second.name
            )));
        }
        let operations = kernels.iter().zip(definitions);
        let operations = operations.map(|(kernel, all)| kernel.operations(all)).collect();
        Ok(Self { arrangement, plan, kernels, definitions, operations, ranges, trust })
    }

    /// Analyses the accesses of each slot.
    fn examine(
        &mut self,
        examinations: &Examinations<'_>,
        outcome: &mut Outcome,
    ) -> Result<Vec<Examined>> {
        let mut slots = Vec::new();
        for (at, (slot, kernel)) in self.plan.slots.iter().zip(self.kernels).enumerate() {
            let space = self.arrangement.space(&self.ranges.slots[at].range);
            let definitions = &self.definitions[at];
            let examined = examinations
                .of(slot, kernel, definitions, &space)
                .map_err(|error| extract::in_launch(at, slot, error))?;
            let scalars = &examined.accesses.constants;
            let injected = scalars & &access::controlling_parameters(definitions, kernel.function);
            let place = |&argument: &usize| Place { slot: at, argument };
            outcome.constants.extend(scalars.iter().map(place));
            self.operations[at].long_sums = examined.accesses.has_long_sums;
            let Operations { estimates, long_sums, .. } = self.operations[at];
            if self.plan.target.separate_functions && (estimates || long_sums) {
                // With values known in advance, the driver would compile the function differently.
                outcome.injected.retain(|injected| injected.slot != at);
            } else {
                outcome.injected.extend(injected.iter().map(place));
            }
            slots.push(examined);
        }
        outcome.slots.extend(slots.iter().zip(&self.ranges.slots).map(|(examined, mapping)| {
            let names = examined.parameters.iter().map(|parameter| parameter.name.clone());
            SlotFindings {
                parameters: names.collect(),
                is_remapped: mapping.shape == Shape::Remapped,
                guard: mapping.guard,
            }
        }));
        Ok(slots)
    }

    /// Proves that the launches may be fused, and finds the contents that need not go through memory.
    fn prove(&self, mut slots: Vec<Examined>, outcome: &mut Outcome) -> Result<Proof, Obstacle> {
        let Self { plan, definitions, ranges, trust, .. } = self;
        let spaces = ranges.slots.iter().map(|slot| self.arrangement.space(&slot.range)).collect();
        let views = coordinates::unify(plan, ranges, spaces, &mut slots);
        outcome.judgements = judge(plan, &slots, &views);
        for Judgement { verdict, .. } in &outcome.judgements {
            match verdict {
                FusionVerdict::Proven => {}
                FusionVerdict::NeedsTrust(_) if *trust == Trust::Caller => {}
                FusionVerdict::NeedsTrust(why) | FusionVerdict::Refuted(why) => {
                    return Err(Obstacle::Refusal(why.clone()));
                }
            }
        }
        let judgements = &mut outcome.judgements;
        let mut privates = internalize::privates(plan, definitions, &slots, judgements);
        if let Some(why) = image_legality::refusal(plan, &slots, &privates, judgements) {
            return Err(Obstacle::Refusal(why));
        }
        let shared = internalize::shared(plan, definitions, &slots, ranges, judgements);
        for (privates, shared) in privates.iter_mut().zip(&shared) {
            privates.retain(|private| shared.iter().all(|shared| shared.memory != private.memory));
        }
        let internalized = internalized(judgements);
        let goes_to_memory = |used: &Use<'_>| {
            let access = used.access;
            let private =
                privates[used.slot].iter().find(|private| private.parameter == access.parameter);
            let place = private
                .zip(access.location)
                .and_then(|(private, location)| private.accesses.get(&location.offset));
            !internalized.contains(&used.memory()) && place.is_none_or(|place| place.in_memory)
        };
        let unordered = match plan.target.order_own_accesses {
            true => legality::unordered(plan, &slots, ranges, goes_to_memory),
            false => Vec::new(),
        };
        let barriers = legality::barriers(&outcome.judgements, unordered);
        unite_scalars(outcome, self.arrangement.same_scalars());
        Ok(Proof { slots, privates, shared, internalized, barriers })
    }

    /// Transforms the kernel of each slot.
    fn parts(&self, proof: &Proof) -> Result<Vec<Part>> {
        (0..self.plan.slots.len()).map(|at| self.part(at, at, proof)).collect()
    }

    /// Transforms the kernel of the slot at `at`, as the part with this number.
    fn part(&self, at: usize, number: usize, proof: &Proof) -> Result<Part> {
        let (kernel, ranges) = (&self.kernels[at], &self.ranges);
        let mut part = Part::new(kernel, number, |module, function| {
            promote::promote(module, function, &proof.privates[at])?;
            local_memory::share(module, function, &proof.shared[at])
        })?;
        remap::remap(&mut part.module, &kernel.name, &ranges.slots[at], ranges)?;
        Ok(part)
    }

    /// Joins the execution modes of the kernels. Fails if the driver might calculate something else in a
    /// fused kernel.
    fn modes(&self, proof: &Proof) -> Result<Modes, Obstacle> {
        let Self { plan, kernels, operations, ranges, trust, .. } = self;
        let mut modes =
            Modes::join(kernels.iter().map(|kernel| (kernel.name.as_str(), &kernel.modes)))?;
        if plan.target.separate_functions
            && *trust == Trust::ProofOnly
            && let Some(why) = contraction::separate_function_refusal(
                &plan.slots,
                ranges,
                operations,
                &self.arrangement.as_launched,
            )
        {
            return Err(Obstacle::Refusal(why));
        }
        match contraction::requires_contraction_off(&plan.slots, &proof.slots, operations) {
            Ok(true) => modes.add_contraction_off(),
            Err(why) if *trust == Trust::ProofOnly => return Err(Obstacle::Refusal(why)),
            Ok(false) | Err(_) => {}
        }
        Ok(modes)
    }

    /// Gives each work-item the work of several, if that is possible within `width`.
    fn widen(&self, mut parts: Vec<Part>, proof: &Proof, width: Width) -> Result<Widened> {
        let is_independent = proof.barriers.is_empty() && proof.shared.iter().all(Vec::is_empty);
        let width = if is_independent { width } else { Width::ONE };
        let widening = Widening::find(width, &self.ranges, &parts)?;
        if let Some(widening) = &widening {
            parts.clear();
            let slots = 0..self.plan.slots.len();
            for (at, item) in slots.flat_map(|at| (0..widening.items).map(move |i| (at, i))) {
                let mut part = self.part(at, parts.len(), proof)?;
                widening.shift(&mut part.module, item)?;
                parts.push(part);
            }
        }
        Ok(Widened { parts, widening })
    }

    /// Merges the parts, and adds the entry point that calls them.
    fn assemble(
        self,
        Widened { parts, widening }: Widened,
        modes: &Modes,
        proof: Proof,
        outcome: &Outcome,
    ) -> Result<Fused, Obstacle> {
        let Self { plan, operations, ranges, .. } = self;
        let Proof { privates, shared, internalized, barriers, .. } = proof;
        let mut whole = Part::merge(&parts)?;
        let needs_separation = || {
            !barriers.is_empty()
                || whole.has_barriers()
                || contraction::depends_on_separation(&operations)
        };
        if plan.target.separate_functions && needs_separation() {
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
            modes,
            items: widening.as_ref().map_or(1, |widening| widening.items),
        };
        let entry = entry::add(&mut whole, &decisions)?;
        let (local_bytes, parameter_bytes) = sizes(plan, &whole.module, &entry.parameters);
        Ok(Fused {
            module: whole.module,
            kernel: entry.name,
            range: widening.map_or(ranges.whole, |widening| widening.range),
            parameters: entry.parameters,
            local_bytes,
            private_bytes: 0,
            runs: vec![ONCE; plan.slots.len()],
            parameter_bytes,
            internalized,
            local: shared.iter().flatten().map(|shared| shared.memory).collect(),
            barriers,
        })
    }
}

/// Collects the scalars that must stay equal for the private contents to be correct, and the pairs of scalars
/// that must stay unequal because more could be private if they were equal.
fn unite_scalars(outcome: &mut Outcome, same: impl Iterator<Item = BTreeSet<Place>>) {
    let promotions = outcome.judgements.iter().filter_map(|j| j.promotion.as_ref().ok());
    let equal = promotions.flat_map(|promotion| promotion.equal.iter().cloned()).chain(same);
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

/// Returns the number of bytes of local memory and of parameters.
pub(super) fn sizes(plan: &Plan, module: &Module, parameters: &[Vec<Place>]) -> (usize, usize) {
    let definitions = module.definitions();
    let layouts = access::Layouts::of(module, &definitions);
    let variables = module.section(Section::Globals).iter();
    let variables = variables
        .filter(|i| i.variable().is_some_and(|(class, _)| class == StorageClass::Workgroup as u32));
    let sizes = variables.filter_map(|i| {
        let pointee = definitions.get(i.result_type()?)?.pointee()?;
        usize::try_from(layouts.size(pointee)?).ok()
    });
    let (mut local, mut parameter_bytes) = (sizes.fold(0, usize::saturating_add), 0_usize);
    let pointer = layouts.address as usize;
    for place in parameters.iter().filter_map(|places| places.first()) {
        let argument = &plan.slots[place.slot].arguments[place.argument];
        parameter_bytes = parameter_bytes.saturating_add(match argument {
            Argument::Scalar(bytes) => bytes.len(),
            Argument::Buffer(_)
            | Argument::Local(_)
            | Argument::Image(_)
            | Argument::Sampler(_) => pointer,
        });
        if let Argument::Local(bytes) = argument {
            local = local.saturating_add(*bytes);
        }
    }
    (local, parameter_bytes)
}
