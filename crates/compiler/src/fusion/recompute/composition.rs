//! Stages that are put together: what their functions write to arrays and read from them, and the kernel that
//! results.

use std::collections::{BTreeMap, BTreeSet};

use kiln_spirv::Result;
use kiln_spirv::edit::Definitions;
use rspirv::spirv::StorageClass;

use super::StageKernel;
use super::arrays::{Array, Blocks, Reach};
use super::bind::{self, Signature, Target};
use super::elements::{Reader, Written};
use super::entry::{self, Entry, Layout};
use super::redirect::{Accesses, Elements, Producer, Redirected, redirect};
use super::stages::Stages;
use super::unroll::unroll;
use super::vectors;
use crate::analysis::access::{self, Access, Kind, Layouts, Values};
use crate::analysis::declaration::Declaration;
use crate::analysis::operations::Operations;
use crate::analysis::pointer_uses;
use crate::fusion::attempt::{self, ONCE, Obstacle};
use crate::fusion::contraction;
use crate::fusion::examined::{self, Examined};
use crate::fusion::form::FusionForm;
use crate::fusion::outcome::{Fused, Outcome, Trust};
use crate::plan::{Memory, Plan, Region, Slot};
use crate::transform::inlining::inline_helpers;
use crate::transform::lower_version;
use crate::transform::merge::{Part, Whole};
use crate::transform::modes::Modes;
use crate::transform::remap;

/// Maximum number of bytes of the private arrays of a work-item.
const MAX_PRIVATE_BYTES: i128 = 1 << 13;

/// Stages of a fused kernel, with what their functions access.
pub(super) struct Composition<'a> {
    plan: &'a Plan,
    stages: &'a [StageKernel],
    /// Arrays of memories to which nothing else is written.
    sole: &'a BTreeSet<Memory>,
    examined: Vec<Examined>,
    operations: Vec<Operations>,
    /// Division of the work; `None` if each element is produced where it is read.
    blocks: Option<Blocks>,
    /// Arrays by the memories that they are in the plans of stages.
    arrays: BTreeMap<Memory, Array>,
    /// Parameters of each stage's function that are arrays.
    redirected: Vec<Vec<Redirected>>,
}

/// Reads of an array through a parameter of a stage's function.
struct Reads {
    stage: usize,
    parameter: usize,
    memory: Memory,
    uses: pointer_uses::Uses,
    elements: Elements,
}

impl<'a> Composition<'a> {
    /// Examines what the stages' functions access. Fails if they cannot be put together in the form.
    pub(super) fn examine(
        plan: &'a Plan,
        stages: &'a [StageKernel],
        sole: &'a BTreeSet<Memory>,
        definitions: &[Definitions<'_>],
        form: FusionForm,
        outcome: &mut Outcome,
    ) -> Result<Self, Obstacle> {
        let (mut all_values, mut all_examined) = (Vec::new(), Vec::new());
        let mut operations = Vec::new();
        for (stage, definitions) in stages.iter().zip(definitions) {
            let StageKernel { slot, kernel, space, .. } = stage;
            let arguments: Vec<_> = slot.arguments.iter().map(examined::value).collect();
            let values = access::analyse_values(definitions, kernel.function, &arguments, space)?;
            outcome.constants.extend(stage.origins(&values.accesses.constants));
            let accesses = values.accesses.clone();
            all_examined.push(examined::with_accesses(
                slot,
                definitions,
                kernel.function,
                accesses,
            ));
            let mut own = kernel.operations(definitions);
            own.long_sums = values.accesses.has_long_sums;
            operations.push(own);
            all_values.push(values);
        }
        let last = stages.last().ok_or_else(|| Obstacle::Refusal("there is no stage".into()))?;
        let mut composition = Self {
            plan,
            stages,
            sole,
            examined: all_examined,
            operations,
            blocks: Blocks::of(form, last.space.global),
            arrays: BTreeMap::new(),
            redirected: stages.iter().map(|_| Vec::new()).collect(),
        };
        let found = composition.check_ranges().and_then(|()| {
            composition.find_written(definitions)?;
            let reads = composition.find_reads(definitions, &all_values)?;
            composition.find_reach(&reads)?;
            composition.redirect(reads);
            composition.check_size()
        });
        found.map_err(Obstacle::Refusal)?;
        Ok(composition)
    }

    /// Checks that the stages have nd-ranges for which the form is possible.
    fn check_ranges(&self) -> Result<(), String> {
        let Some(last) = self.stages.last().filter(|_| self.blocks.is_some()) else {
            return Ok(());
        };
        for stage in self.stages {
            let kernel = &stage.slot.kernel;
            if (stage.space.global, stage.space.offset) != (last.space.global, [0; 3]) {
                return Err(format!(
                    "all launches must have the same global size and no offset, but the launch of `{kernel}` \
                     has {:?} from {:?}, and that of `{}` has {:?}",
                    stage.range.global(),
                    stage.range.offset(),
                    last.slot.kernel,
                    last.range.global()
                ));
            }
            if stage.kernel.modes.local_size().is_some() {
                return Err(format!(
                    "`{kernel}` requires work-groups of a certain size, which a kernel of this form does not have"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether work-items keep vectors in private arrays. Intel's compiler for CPUs then makes faster
    /// code if it does not vectorise over work-items. A hint that the work-items calculate with vectors has
    /// this effect.
    fn keeps_vectors(&self) -> bool {
        let is_private = self.blocks.is_some() && !self.is_tiled();
        is_private && self.arrays.values().any(|array| array.grid.size >= 16)
    }

    fn is_tiled(&self) -> bool {
        self.blocks.is_some_and(|blocks| blocks.class == StorageClass::Workgroup)
    }

    /// Finds the arrays that each stage but the last writes.
    fn find_written(&mut self, definitions: &[Definitions<'_>]) -> Result<(), String> {
        let last = self.stages.len() - 1;
        for (at, definitions) in definitions.iter().enumerate().take(last) {
            let (stage, examined) = (&self.stages[at], &self.examined[at]);
            for parameter in 0..stage.slot.arguments.len() {
                let Some(region) = stage.region(parameter) else { continue };
                let own = || examined.accesses.all.iter().filter(|own| own.parameter == parameter);
                let writes: Vec<_> = own().filter(|access| access.kind.writes()).collect();
                if writes.is_empty() {
                    continue;
                }
                let refuse = |why: &str| {
                    let (kernel, name) = (&stage.slot.kernel, name_of(examined, parameter));
                    format!("`{kernel}` cannot run again for other work-items: {name} {why}")
                };
                if own().count() > writes.len() {
                    return Err(refuse("is read by a launch that writes it"));
                }
                let written = Written::of(&writes, &examined.accesses.flow, &stage.space);
                let Written { grid, parts, is_certain } = written.map_err(refuse)?;
                // The buffer still holds the elements that are not written, if nothing else writes to it.
                let holds = |bytes| bytes <= region.length as i128;
                let is_held =
                    || self.sole.contains(&region.memory) && grid.bytes().is_some_and(holds);
                if !is_certain && !is_held() {
                    return Err(refuse("is not written by every work-item"));
                }
                let places = writes.iter().zip(parts);
                let places = places.map(|(write, part)| Some((movable(examined, write)?, part)));
                let places: BTreeMap<_, _> = places
                    .collect::<Option<_>>()
                    .ok_or_else(|| refuse("is written in a way that only a buffer supports"))?;
                let is_known = |offset| places.contains_key(&offset);
                let uses = self.uses(at, parameter, definitions, is_known)?;
                let accesses = match is_certain {
                    true => Accesses::Own(places),
                    false => Accesses::OwnOrBefore(places),
                };
                self.redirected[at].push(Redirected { parameter, uses, grid, accesses });
                let array = Array { grid, producer: at, parameter, reach: [(0, 0); 3] };
                self.arrays.insert(region.memory, array);
            }
        }
        Ok(())
    }

    /// Returns the uses of a parameter that becomes an array.
    fn uses(
        &self,
        at: usize,
        parameter: usize,
        definitions: &Definitions<'_>,
        is_known: impl Fn(u32) -> bool,
    ) -> Result<pointer_uses::Uses, String> {
        let stage = &self.stages[at];
        let uses = pointer_uses::uses(definitions, stage.kernel.function, parameter, is_known);
        uses.map_err(|why| {
            let name = name_of(&self.examined[at], parameter);
            format!("for {name}, `{}` {why}", stage.slot.kernel)
        })
    }

    /// Finds the elements of arrays that each stage reads.
    fn find_reads(
        &self,
        definitions: &[Definitions<'_>],
        values: &[Values<'_>],
    ) -> Result<Vec<Reads>, String> {
        let mut reads = Vec::new();
        for (at, stage) in self.stages.iter().enumerate() {
            self.check_aliases(at)?;
            let read = (0..stage.slot.arguments.len()).filter_map(|parameter| {
                let memory = stage.region(parameter)?.memory;
                let array = self.arrays.get(&memory).filter(|array| array.producer != at)?;
                Some((parameter, memory, array))
            });
            let read: Vec<_> = read.collect();
            if read.is_empty() {
                continue;
            }
            let (definitions, values) = (&definitions[at], &values[at]);
            for (parameter, memory, array) in read {
                let elements = self.elements(at, parameter, array, definitions, values)?;
                let is_known = |offset| elements.contains_key(&offset);
                let uses = self.uses(at, parameter, definitions, is_known)?;
                reads.push(Reads { stage: at, parameter, memory, uses, elements });
            }
        }
        Ok(reads)
    }

    /// Checks that a stage uses each array that it writes through one parameter only. What it reads through
    /// another one would be what the memory held before.
    fn check_aliases(&self, at: usize) -> Result<(), String> {
        let (stage, examined) = (&self.stages[at], &self.examined[at]);
        let memories = self.plan.memories();
        for access in &examined.accesses.all {
            let memory = stage.region(access.parameter).map(|region| region.memory);
            let Some(memory) = memory.filter(|memory| !memories.contains(memory)) else { continue };
            let array = self.arrays.get(&memory);
            let is_written = array.is_none_or(|array| array.producer == at);
            if is_written && array.is_none_or(|array| array.parameter != access.parameter) {
                return Err(format!(
                    "`{}` cannot run again for other work-items: {} is a buffer that it also writes \
                     through another argument",
                    stage.slot.kernel,
                    name_of(examined, access.parameter)
                ));
            }
        }
        Ok(())
    }

    /// Returns the elements of an array that a stage reads through a parameter, by the word offset of the
    /// access.
    fn elements<'m>(
        &self,
        at: usize,
        parameter: usize,
        array: &Array,
        definitions: &Definitions<'m>,
        values: &Values<'m>,
    ) -> Result<Elements, String> {
        let (stage, examined) = (&self.stages[at], &self.examined[at]);
        let refuse = |why: &str| {
            let (kernel, name) = (&stage.slot.kernel, name_of(examined, parameter));
            format!("in `{kernel}`, {name} {why}")
        };
        let start = |stage: &StageKernel, parameter| {
            stage.region(parameter).map_or(0, |region: Region| region.offset as i128)
        };
        let produced = start(&self.stages[array.producer], array.parameter);
        let first = start(stage, parameter) - produced;
        let module = definitions.module();
        let function = module.functions.iter().find(|known| known.id == stage.kernel.function);
        let function = function.ok_or_else(|| refuse("has no function"))?;
        let parameters = Declaration::of(&function.body).parameters;
        let (own, _) = *parameters.get(parameter).ok_or_else(|| refuse("is no parameter"))?;
        let layouts = Layouts::of(module, definitions);
        let mut elements = BTreeMap::new();
        for read in examined.accesses.all.iter().filter(|read| read.parameter == parameter) {
            if read.kind != Kind::Read {
                return Err(refuse("is used for more than reads"));
            }
            let place = movable(examined, read).zip(read.location);
            let (offset, location) =
                place.ok_or_else(|| refuse("is read in a way that only a buffer supports"))?;
            let load = location.instruction(module);
            let load = load.ok_or_else(|| refuse("is read at places that are not known"))?;
            let (layouts, space) = (&layouts, &stage.space);
            let reader = Reader { definitions, layouts, values, space, load, location };
            elements.insert(offset, reader.elements(own, &array.grid, first).map_err(refuse)?);
        }
        Ok(elements)
    }

    /// Finds the distances, from the elements of a block of work, of those that each array keeps.
    fn find_reach(&mut self, reads: &[Reads]) -> Result<(), String> {
        if self.blocks.is_none() {
            return Ok(());
        }
        let mut needed: Vec<Option<Reach>> = vec![None; self.stages.len()];
        needed[self.stages.len() - 1] = Some([(0, 0); 3]);
        for at in (0..self.stages.len()).rev() {
            let Some(own) = needed[at] else { continue };
            for read in reads.iter().filter(|read| read.stage == at) {
                let producer = self.arrays[&read.memory].producer;
                for element in read.elements.values().flatten() {
                    let distances = element.distances(&self.stages[at].space);
                    let distances = distances.ok_or_else(|| {
                        format!(
                            "`{}` reads {} at distances that change from work-item to work-item",
                            self.stages[at].slot.kernel,
                            name_of(&self.examined[at], read.parameter)
                        )
                    })?;
                    let mut reach = own;
                    for ((low, high), (first, last)) in reach.iter_mut().zip(distances) {
                        (*low, *high) = (*low + first, *high + last);
                    }
                    let known = needed[producer].get_or_insert(reach);
                    for ((low, high), (first, last)) in known.iter_mut().zip(reach) {
                        (*low, *high) = ((*low).min(first), (*high).max(last));
                    }
                }
            }
        }
        for array in self.arrays.values_mut() {
            array.reach = needed[array.producer].unwrap_or_default();
        }
        Ok(())
    }

    /// Decides where each read of an array goes.
    fn redirect(&mut self, reads: Vec<Reads>) {
        for Reads { stage, parameter, memory, uses, elements } in reads {
            let array = self.arrays[&memory];
            let accesses = match &self.blocks {
                Some(blocks) => Accesses::Kept(elements, blocks.class, blocks.axes(&array)),
                None => Accesses::Again(elements, self.producer(array)),
            };
            let redirected = Redirected { parameter, uses, grid: array.grid, accesses };
            self.redirected[stage].push(redirected);
        }
    }

    /// Returns the description of the stage that produces an array.
    fn producer(&self, array: Array) -> Producer {
        let written: Vec<_> = self.redirected[array.producer]
            .iter()
            .filter(|known| known.accesses.writes())
            .collect();
        let read = written.iter().position(|known| known.parameter == array.parameter);
        Producer {
            stage: array.producer,
            sizes: written.iter().map(|known| known.grid.size).collect(),
            read: read.unwrap_or_default(),
        }
    }

    /// Checks that the arrays fit into the memory of a work-item or of a work-group.
    fn check_size(&self) -> Result<(), String> {
        let Some(blocks) = &self.blocks else { return Ok(()) };
        let (bytes, what) = (blocks.bytes(&self.arrays), "arrays of the launches' results");
        let (limit, whose) = match blocks.class {
            StorageClass::Workgroup => (self.plan.target.local_memory as i128, "a work-group"),
            _ => (MAX_PRIVATE_BYTES, "a work-item"),
        };
        if bytes > limit {
            return Err(format!("the {what} would take {bytes} bytes, but {whose} has {limit}"));
        }
        Ok(())
    }

    /// Joins the execution modes of the stages. Fails if the driver might calculate something else where a
    /// launch runs again.
    pub(super) fn modes(&self, trust: Trust) -> Result<Modes, Obstacle> {
        let all = self.stages.iter().map(|stage| (stage.slot.kernel.as_str(), &stage.kernel.modes));
        let mut modes = Modes::join(all)?;
        if self.keeps_vectors() {
            modes.add_vector_hint();
        }
        let slots: Vec<Slot> = self.stages.iter().map(|stage| stage.slot.clone()).collect();
        let differs = self.operations.iter().position(|own| own.depend_on_range());
        if let Some(at) = differs
            && self.plan.target.separate_functions
            && trust == Trust::ProofOnly
        {
            return Err(Obstacle::Refusal(format!(
                "`{}` calculates estimates, lengths in double precision or sums in a loop, which the \
                 device's compiler computes differently where a launch runs again",
                slots[at].kernel
            )));
        }
        match contraction::requires_contraction_off(&slots, &self.examined, &self.operations) {
            Ok(true) => modes.add_contraction_off(),
            Err(why) if trust == Trust::ProofOnly => return Err(Obstacle::Refusal(why)),
            Ok(false) | Err(_) => {}
        }
        Ok(modes)
    }

    /// Merges the stages into one module.
    fn whole(&self) -> Result<Whole> {
        let mut parts = Vec::new();
        let last = self.stages.len() - 1;
        for (at, stage) in self.stages.iter().enumerate() {
            let mut part = Part::new(&stage.kernel, at, |module, function| {
                redirect(module, function, &self.redirected[at])
            })?;
            if at < last || self.blocks.is_some() {
                remap::check_groups(&stage.kernel.module, &stage.slot.kernel)?;
                let (kernel, range) = (&stage.kernel, &stage.range);
                remap::take_id(&mut part.module, &stage.slot.kernel, kernel.function, range)?;
            }
            parts.push(part);
        }
        Part::merge(&parts)
    }

    /// Merges the stages into one module, and adds the entry point that runs them.
    pub(super) fn assemble(self, stages: &Stages, modes: &Modes) -> Result<Fused, Obstacle> {
        let mut whole = self.whole()?;
        // Launches that would be calculated differently together stay functions of their own.
        let are_apart = self.plan.target.separate_functions
            && (self.is_tiled()
                || whole.has_barriers()
                || contraction::depends_on_separation(&self.operations));
        if are_apart {
            whole.keep_apart();
        }
        lower_version::lower(&mut whole.module, self.plan.target.version)?;
        let runs = self.runs(stages);
        let entry = self.entry(&mut whole, modes)?;
        if !are_apart {
            // Drivers do not inline large functions that are called in loops, so they are inlined here.
            let parameters = (0..entry.parameters.len()).collect();
            inline_helpers(&mut whole.module, entry.function, &parameters, |_, _| false)?;
        }
        unroll(&mut whole.module, entry.function)?;
        if self.keeps_vectors() {
            vectors::join(&mut whole.module, entry.function)?;
        }
        whole.module.prune()?;
        let (local_bytes, parameter_bytes) =
            attempt::sizes(self.plan, &whole.module, &entry.parameters);
        let arrays = self.blocks.map_or(0, |blocks| match blocks.class {
            StorageClass::Workgroup => 0,
            _ => blocks.bytes(&self.arrays) as usize,
        });
        // Launches that run again may read what a memory held before.
        let places: BTreeSet<_> = entry.parameters.iter().flatten().collect();
        let is_used = |memory| self.plan.regions(memory).any(|(at, _)| places.contains(&at));
        let memories = stages.arrays.values().copied();
        let dead = memories.filter(|&memory| self.plan.dead.contains(&memory) && !is_used(memory));
        let own = self.stages.iter().flat_map(|stage| &stage.internalized).copied();
        let own = own.filter(|memory| !stages.arrays.contains_key(memory));
        let internalized: BTreeSet<_> = dead.clone().chain(own).collect();
        let mut local: BTreeSet<_> =
            self.stages.iter().flat_map(|stage| &stage.local).copied().collect();
        if self.is_tiled() {
            local.extend(dead);
        }
        Ok(Fused {
            module: whole.module,
            kernel: entry.name,
            range: entry.range,
            parameters: entry.parameters,
            local_bytes,
            private_bytes: arrays,
            runs,
            parameter_bytes,
            internalized: internalized.into_iter().collect(),
            local,
            barriers: BTreeSet::new(),
        })
    }

    /// Returns the memories of which elements are read that no launch writes.
    pub(super) fn read_before(&self, stages: &Stages) -> BTreeSet<Memory> {
        let redirected = self.stages.iter().zip(&self.redirected);
        let kept = redirected.flat_map(|(stage, all)| {
            let kept =
                all.iter().filter(|known| matches!(known.accesses, Accesses::OwnOrBefore(_)));
            kept.filter_map(|known| stages.arrays.get(&stage.region(known.parameter)?.memory))
        });
        kept.copied().collect()
    }

    /// Returns the number of times that each launch runs for 100 of its work-items.
    fn runs(&self, stages: &Stages) -> Vec<u64> {
        let last = self.stages.len() - 1;
        let mut of_stages = vec![0; self.stages.len()];
        of_stages[last] = ONCE;
        for at in (0..self.stages.len()).rev() {
            for known in &self.redirected[at] {
                match &known.accesses {
                    Accesses::Own(_) | Accesses::OwnOrBefore(_) => {}
                    Accesses::Kept(..) => {
                        let array = self.stages[at]
                            .region(known.parameter)
                            .and_then(|region| self.arrays.get(&region.memory));
                        if let (Some(blocks), Some(array)) = (&self.blocks, array) {
                            of_stages[array.producer] = blocks.runs(array);
                        }
                    }
                    Accesses::Again(elements, producer) => {
                        let all = elements.values().flatten();
                        let reads = all.map(|element| element.count(&self.stages[at].space));
                        let reads = reads.fold(0, u64::saturating_add);
                        let more = of_stages[at].saturating_mul(reads);
                        let known = &mut of_stages[producer.stage];
                        *known = known.saturating_add(more);
                    }
                }
            }
        }
        let mut runs = vec![0_u64; self.plan.slots.len()];
        for (stage, times) in stages.all.iter().zip(of_stages) {
            for &launch in &stage.launches {
                runs[launch] = runs[launch].saturating_add(times);
            }
        }
        runs
    }

    /// Adds the entry point.
    fn entry(&self, whole: &mut Whole, modes: &Modes) -> Result<Entry> {
        let signatures: Vec<_> = (0..self.stages.len()).map(|at| self.signature(at)).collect();
        let contexts = bind::bind(whole, &signatures)?;
        let layout = Layout {
            plan: self.plan,
            stages: self.stages,
            redirected: &self.redirected,
            arrays: &self.arrays,
            blocks: self.blocks.as_ref(),
            signatures: &signatures,
            contexts: &contexts,
        };
        entry::add(whole, &layout, modes)
    }

    /// Returns the parameters of a stage's function after it is rewritten.
    fn signature(&self, at: usize) -> Signature {
        let (mut written, mut read, mut producers) =
            (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for known in &self.redirected[at] {
            match &known.accesses {
                Accesses::Own(_) => _ = written.insert(known.parameter, Target::Own),
                Accesses::OwnOrBefore(_) => _ = written.insert(known.parameter, Target::Added),
                Accesses::Kept(..) => {}
                Accesses::Again(_, producer) => {
                    read.insert(known.parameter);
                    producers.insert(producer.stage);
                }
            }
        }
        let all = 0..self.stages[at].slot.arguments.len();
        let passed = all.filter(|parameter| !read.contains(parameter)).collect();
        Signature { passed, written, producers }
    }
}

/// Returns the word offset of an access that can be moved to an array.
fn movable(examined: &Examined, access: &Access) -> Option<u32> {
    let location = access.location?;
    let here = examined.accesses.all.iter().filter(|other| other.location == Some(location));
    let is_movable = examined.movable.contains_key(&location.offset) && here.count() == 1;
    is_movable.then_some(location.offset)
}

/// Returns the name of a parameter in quotes.
fn name_of(examined: &Examined, parameter: usize) -> String {
    match examined.parameters.get(parameter).and_then(|known| known.name.as_deref()) {
        Some(name) => format!("`{name}`"),
        None => format!("the argument {parameter}"),
    }
}
