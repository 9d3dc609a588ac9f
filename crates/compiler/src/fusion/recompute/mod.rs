//! Forms in which producers run again: fusion of launches that read what neighbouring work-items wrote.
//!
//! A blur, an edge filter or any other stencil reads elements that other work-items of an earlier launch
//! wrote. In one kernel, a work-item cannot wait for other work-items. It can calculate the elements itself,
//! by running the earlier launch's kernel for their ids. That changes no result if
//!
//! * each work-item of the earlier launch writes exactly its own [element](elements), or nothing,
//! * the earlier launch has no other effects, and reads nothing that the fused kernel writes ([`stages`]), and
//! * every element that a later launch reads is proven to be in the range of the earlier launch.
//!
//! A work-item that writes nothing, for example on the border, leaves its element as it was. If no other launch
//! writes to the buffer, the element does not change, and it is read from the buffer.
//!
//! Borders stay exact, since the earlier launch, the producer, only runs for ids of its range: a later launch
//! that clamps or tests its coordinates does so before it reads.
//!
//! 1. The launches are divided into [stages]. Each becomes one kernel, as in the form `Direct`.
//! 2. In the function of each stage, accesses to what earlier stages produce are [redirected](redirect) to
//!    [arrays], or run the producing stage. Functions that run again take their id as a parameter.
//! 3. The stages are merged into one module, and a new [entry point](entry) runs them: producers first, for the
//!    elements that a tile, a strip or the next row needs, then the last stage.

mod arrays;
mod bind;
mod code;
mod composition;
mod elements;
mod entry;
mod redirect;
mod stages;
mod unroll;
mod vectors;

use std::collections::BTreeSet;
use std::sync::Arc;

use kiln_spirv::Result;

use super::arrangement::Arrangement;
use super::attempt::{self, Obstacle};
use super::examination::{Examinations, Programs};
use super::form::FusionForm;
use super::legality::Judgement;
use super::outcome::{Fused, Outcome, SlotFindings, Trust};
use crate::NdRange;
use crate::analysis::affine::Space;
use crate::plan::{Argument, Memory, Place, Plan, Region, Slot};
use crate::transform::coarsen::Width;
use crate::transform::extract::{self, Kernel};
use composition::Composition;
use stages::{Stage, Stages};

/// Fuses the launches of a plan in a form other than `Direct`, and notes in `outcome` what was found on the
/// way.
pub(super) fn attempt(
    plan: &Plan,
    programs: Programs<'_, '_>,
    trust: Trust,
    form: FusionForm,
    outcome: &mut Outcome,
) -> Result<Fused, Obstacle> {
    let extracted = programs.kernels(plan)?;
    let stages = divide(plan, &extracted, programs.examinations, outcome)?;
    let (mut kernels, mut judged) = (Vec::new(), Vec::new());
    for stage in &stages.all {
        let mut own = Outcome::of(&stage.plan);
        let plain = Arrangement::plain(&stage.plan);
        let own_kernels: Vec<_> =
            stage.launches.iter().map(|&launch| Arc::clone(&extracted[launch])).collect();
        let examinations = programs.examinations;
        let fused =
            attempt::attempt(&plain, &own_kernels, examinations, trust, Width::ONE, &mut own);
        add_findings(outcome, stage, &own);
        judged.push(own.judgements);
        kernels.push(StageKernel::of(plan, stage, &stages, fused?)?);
    }
    outcome.judgements = judgements(plan, &stages, &judged, &BTreeSet::new());
    let definitions: Vec<_> =
        kernels.iter().map(|stage| stage.kernel.module.definitions()).collect();
    let composition =
        Composition::examine(plan, &kernels, &stages.sole, &definitions, form, outcome)?;
    let read_before = composition.read_before(&stages);
    outcome.judgements = judgements(plan, &stages, &judged, &read_before);
    let modes = composition.modes(trust)?;
    composition.assemble(&stages, &modes)
}

/// Examines each launch by itself, and divides the launches into stages.
fn divide(
    plan: &Plan,
    kernels: &[Arc<Kernel>],
    examinations: &Examinations<'_>,
    outcome: &mut Outcome,
) -> Result<Stages, Obstacle> {
    if let Some(kernel) = kernels.iter().find(|kernel| kernel.prints()) {
        return Err(Obstacle::Refusal(format!(
            "`{}` prints, so it cannot run again for other work-items",
            kernel.name
        )));
    }
    let mut slots = Vec::new();
    for (at, (slot, kernel)) in plan.slots.iter().zip(kernels).enumerate() {
        let definitions = kernel.module.definitions();
        let space = Space::new(&slot.range);
        let examined = examinations
            .of(slot, kernel, &definitions, &space)
            .map_err(|error| extract::in_launch(at, slot, error))?;
        let place = |&argument: &usize| Place { slot: at, argument };
        outcome.constants.extend(examined.accesses.constants.iter().map(place));
        let names = examined.parameters.iter().map(|parameter| parameter.name.clone());
        outcome.slots.push(SlotFindings {
            parameters: names.collect(),
            is_remapped: false,
            guard: None,
        });
        slots.push(examined);
    }
    Stages::of(plan, &slots).map_err(Obstacle::Refusal)
}

/// Adds what was found for a stage to what is known of the whole plan.
fn add_findings(outcome: &mut Outcome, stage: &Stage, own: &Outcome) {
    let origin = |&place: &Place| stage.origin(place);
    outcome.constants.extend(own.constants.iter().map(origin));
    outcome.injected.extend(own.injected.iter().map(origin));
    outcome.equal.extend(own.equal.iter().map(|equal| equal.iter().map(origin).collect()));
    outcome.unequal.extend(own.unequal.iter().map(|pair| pair.map(|place| stage.origin(place))));
}

/// Returns the judgement on each memory of a plan that is fused: all pairs of launches are proven. `judged`
/// holds the judgements of each stage. Elements of the memories in `read_before` are read that no launch
/// writes.
fn judgements(
    plan: &Plan,
    stages: &Stages,
    judged: &[Vec<Judgement>],
    read_before: &BTreeSet<Memory>,
) -> Vec<Judgement> {
    let why_in_memory = |memory: Memory| {
        if read_before.contains(&memory) {
            return Some("launches read elements of it that none of them writes".into());
        }
        let is_array = stages.arrays.values().any(|&known| known == memory);
        // A launch may read what the memory held before, or write it once more.
        let is_used = stages.all.iter().any(|stage| stage.plan.regions(memory).next().is_some());
        if is_array && plan.dead.contains(&memory) && !is_used {
            return None;
        }
        let last = judged.iter().rev().flatten().find(|judgement| judgement.memory == memory);
        last.and_then(Judgement::why_in_memory)
    };
    let memories = plan.memories().into_iter();
    memories.map(|memory| Judgement::proven(plan, memory, why_in_memory(memory))).collect()
}

/// Kernel that does the work of a stage.
struct StageKernel {
    kernel: Kernel,
    /// Launch of the kernel, as if it were a launch of a plan.
    slot: Slot,
    /// Arguments of the whole plan that each parameter stands for.
    places: Vec<Vec<Place>>,
    range: NdRange,
    space: Space,
    /// Memories that the kernel does without.
    internalized: Vec<Memory>,
    /// Subset of `internalized` that became local memory of work-groups.
    local: BTreeSet<Memory>,
}

impl StageKernel {
    fn of(plan: &Plan, stage: &Stage, stages: &Stages, fused: Fused) -> Result<Self> {
        let first = |places: &Vec<Place>| places.first().copied();
        let own: Vec<_> = fused.parameters.iter().filter_map(first).collect();
        let arguments: Vec<_> = own
            .iter()
            .map(|place| stage.plan.slots[place.slot].arguments[place.argument].clone())
            .collect();
        let is_array = |argument: &Argument| {
            matches!(argument, Argument::Buffer(Region { memory, .. })
                if stages.arrays.contains_key(memory))
        };
        let arrays = arguments.iter().enumerate().filter(|(_, argument)| is_array(argument));
        let arrays: BTreeSet<_> = arrays.map(|(at, _)| at).collect();
        let separate = plan.target.separate_functions;
        let kernel = extract::kernel(&fused.module, &fused.kernel, &arrays, separate)?;
        let places = fused.parameters.iter();
        let places = places.map(|all| all.iter().map(|&place| stage.origin(place)).collect());
        Ok(Self {
            slot: Slot {
                module: 0,
                kernel: names(stage),
                range: fused.range,
                arguments,
                constants: Vec::new(),
            },
            places: places.collect(),
            range: fused.range,
            space: Space::new(&fused.range),
            internalized: fused.internalized,
            local: fused.local,
            kernel,
        })
    }

    /// Returns the arguments of the whole plan for some parameters.
    fn origins<'a>(&'a self, parameters: &'a BTreeSet<usize>) -> impl Iterator<Item = Place> + 'a {
        parameters.iter().flat_map(|&parameter| self.places[parameter].iter().copied())
    }

    /// Returns the region of the memory that is passed for a parameter.
    fn region(&self, parameter: usize) -> Option<Region> {
        match self.slot.arguments.get(parameter)? {
            Argument::Buffer(region) => Some(*region),
            Argument::Scalar(_)
            | Argument::Local(_)
            | Argument::Image(_)
            | Argument::Sampler(_) => None,
        }
    }
}

/// Returns the names of a stage's kernels, for a message that puts them between a pair of backticks.
fn names(stage: &Stage) -> String {
    let names = stage.plan.slots.iter().map(|slot| slot.kernel.as_str());
    names.collect::<Vec<_>>().join("` and `")
}
