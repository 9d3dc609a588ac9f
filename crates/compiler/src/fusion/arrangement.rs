//! Arrangements: ways to give the items of launches, which are the work-items that they were launched with,
//! to the work-items of a fused kernel.
//!
//! By default, a work-item runs the item with the same linear id of each launch. Launches that cannot be
//! fused like this may be fused in another arrangement:
//!
//! * Trimmed ranges: items that do nothing are left out. Kernels that do not use their work-groups run in
//!   groups of any size.
//! * Strides: where one launch has an item for each vector and another one for each element, a work-item runs
//!   the several items of one vector. Each of them is a slot of its own.
//! * Runs: where a work-item processes a row or a column, it also runs the items of its elements.
//! * Portions: where a work-group processes a row, it also runs the row's items of launches that have an item
//!   for each element. The order of items within a launch is not defined, so the results stay the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kiln_spirv::Result;
use kiln_spirv::edit::{Definitions, Section, View, operand_ids};
use rspirv::spirv::{BuiltIn, StorageClass};

use super::examination::{Examinations, Programs};
use super::form::FusionForm;
use super::legality::{FusionVerdict, Judgement};
use super::outcome::{Outcome, SlotFindings};
use crate::analysis::access::{self, Accesses};
use crate::analysis::affine::Space;
use crate::plan::{Argument, Place, Plan, Slot};
use crate::ranges::{Assignment, Sizes, count, padded};
use crate::transform::extract::Kernel;
use crate::transform::trim::trimmed;
use crate::{NdRange, NdSize};

/// Maximum number of items of a launch that a work-item runs, each as a slot of its own.
const MAX_STRIDE: u64 = 16;

/// Minimum number of work-items that are left where each runs an unlimited number of items.
const MIN_ITEMS: u64 = 64;

/// Maximum number of slots of an arrangement.
const MAX_SLOTS: usize = 32;

/// Maximum number of arrangements that are tried.
const MAX_TRIED: usize = 5;

/// Plan in which the work-items of slots are assigned to those of the fused kernel.
pub(super) struct Arrangement {
    pub(super) plan: Plan,
    pub(super) assignments: Vec<Assignment>,
    /// Slot of the original plan that each slot is a part of.
    origins: Vec<usize>,
    /// Scalars on whose values the arrangement relies, by their places in the original plan.
    relied: BTreeSet<Place>,
    /// Whether each slot runs as it was launched: its work-items one by one, in the same nd-range.
    pub(super) as_launched: Vec<bool>,
    /// Sizes below which the ids of all work-items of the slots lie that do something; `None` if all may do
    /// something, or if the sizes of the slots differ.
    active: Option<Sizes>,
}

/// Use of work-groups by a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grouping {
    /// The kernel only uses global ids and sizes.
    None,
    /// The kernel uses ids and sizes of its work-group, but its work-items are independent.
    Ids,
    /// Work-items pass values to each other, or share local memory.
    Bound,
}

/// Facts about a slot that arrangements depend on.
struct Facts {
    grouping: Grouping,
    /// Range in which the slot may run in other arrangements.
    range: NdRange,
    /// Sizes below which the ids of the items lie that do something. If `range` is trimmed, these are its sizes.
    active: Sizes,
    /// Whether the slot must run in the nd-range that it was launched with.
    keeps_range: bool,
    /// Number of items of `range`.
    count: u64,
    /// Scalars on whose values `active` depends.
    scalars: BTreeSet<usize>,
    /// Sizes of the memories that the slot writes, in elements of its work-items: the number of elements of a
    /// row, and so on. These are 1 where they are not known or exceed the launched sizes.
    written: Sizes,
}

impl Arrangement {
    /// Returns the arrangement in which each slot runs as it was launched.
    pub(super) fn plain(plan: &Plan) -> Self {
        Self {
            assignments: vec![Assignment::Single; plan.slots.len()],
            origins: (0..plan.slots.len()).collect(),
            relied: BTreeSet::new(),
            as_launched: vec![true; plan.slots.len()],
            active: None,
            plan: plan.clone(),
        }
    }

    /// Returns other arrangements of a plan for a form, the most promising first. For forms other than
    /// `Direct`, the only other arrangement is that with trimmed ranges.
    ///
    /// # Errors
    ///
    /// Fails if a module or kernel cannot be analysed.
    pub(super) fn others(
        plan: &Plan,
        programs: Programs<'_, '_>,
        form: FusionForm,
    ) -> Result<Vec<Self>> {
        let kernels = programs.kernels(plan)?;
        let slots = plan.slots.iter().zip(&kernels);
        let facts =
            slots.map(|(slot, kernel)| Facts::of(slot, kernel, plan, programs.examinations));
        let mut facts = facts.collect::<Result<Vec<_>>>()?;
        agree_on_sizes(plan, &mut facts, |own| padded(own.range.global(), 1))?;
        let mut all = Vec::new();
        if plan.slots.iter().any(|slot| padded(slot.range.offset(), 0) != [0; 3]) {
            return Ok(all);
        }
        let is_flat = facts.iter().all(|own| own.grouping == Grouping::None);
        let trimmed = Self::made(plan, &facts, |_| Some((1, Assignment::Single)));
        all.extend(trimmed.filter(|trimmed| trimmed.plan.slots != plan.slots));
        if form != FusionForm::Direct {
            // Launches that write all but the border of a memory get a work-item for each of its elements.
            agree_on_sizes(plan, &mut facts, |own| own.written)?;
            let whole = Self::made(plan, &facts, |_| Some((1, Assignment::Single)));
            let is_new =
                |whole: &Self| all.iter().all(|known| known.plan.slots != whole.plan.slots);
            let whole = whole.filter(|whole| whole.plan.slots != plan.slots && is_new(whole));
            all.extend(whole);
            return Ok(all);
        }
        if is_flat {
            all.extend(Self::strided(plan, &facts));
        } else {
            all.extend(Self::portioned(plan, &facts));
        }
        all.truncate(MAX_TRIED);
        Ok(all)
    }

    /// Returns arrangements in which work-items run several items of the longer launches.
    fn strided(plan: &Plan, facts: &[Facts]) -> Vec<Self> {
        let counts: BTreeSet<_> = facts.iter().map(|own| own.count).collect();
        let shorter = counts.iter().rev().skip(1);
        let arrangements = shorter.flat_map(|&items| {
            let with = |assign: &dyn Fn(u64) -> Option<Assignment>| {
                Self::made(plan, facts, |at| match facts[at].count.div_ceil(items) {
                    1 => Some((1, Assignment::Single)),
                    each => Some(match assign(each)? {
                        strided @ Assignment::Strided { .. } => (each as usize, strided),
                        other if items >= MIN_ITEMS && facts[at].count == each * items => {
                            (1, other)
                        }
                        _ => return None,
                    }),
                })
            };
            let strided = with(&|each| {
                (each <= MAX_STRIDE).then_some(Assignment::Strided { stride: each, index: 0 })
            });
            let rows = with(&|each| Some(Assignment::Run { count: each, lead: each, step: 1 }));
            let columns = with(&|each| Some(Assignment::Run { count: each, lead: 1, step: items }));
            [strided, rows, columns].into_iter().flatten()
        });
        arrangements.collect()
    }

    /// Returns arrangements in which the work-groups of one launch run portions of others.
    fn portioned(plan: &Plan, facts: &[Facts]) -> Vec<Self> {
        let with = |grouping: Grouping| {
            let all = plan.slots.iter().zip(facts);
            all.filter(move |(_, own)| own.grouping == grouping).map(|(slot, _)| slot)
        };
        let mut hosts = Vec::<&Slot>::new();
        let others =
            with(Grouping::Ids).take(if with(Grouping::Bound).next().is_some() { 0 } else { 8 });
        for slot in with(Grouping::Bound).take(1).chain(others) {
            if slot.range.local().is_some() && hosts.iter().all(|host| host.range != slot.range) {
                hosts.push(slot);
            }
        }
        let arrangements = hosts.into_iter().filter_map(|host| {
            let local = padded(host.range.local()?, 1);
            let global = padded(host.range.global(), 1);
            if (0..3).any(|d| local[d] == 0 || !global[d].is_multiple_of(local[d])) {
                return None;
            }
            let groups = (0..3).map(|d| (global[d] / local[d]) as u64).product::<u64>();
            Self::made(plan, facts, |at| {
                let (slot, own) = (&plan.slots[at], &facts[at]);
                let is_alike = padded(own.range.global(), 1) == global
                    && own.range.local().is_none_or(|own| padded(own, 1) == local);
                let can_be_split = match own.grouping {
                    Grouping::None => true,
                    Grouping::Ids => is_row(slot),
                    Grouping::Bound => false,
                };
                if is_alike {
                    Some((1, Assignment::Single))
                } else if can_be_split && own.count.is_multiple_of(groups) {
                    Some((1, Assignment::Portion { count: own.count / groups }))
                } else {
                    None
                }
            })
        });
        arrangements.collect()
    }

    /// Makes an arrangement. `assign` returns the number of slots that a slot becomes and the assignment of the
    /// first of them, or `None` if there is no such arrangement.
    fn made(
        plan: &Plan,
        facts: &[Facts],
        assign: impl Fn(usize) -> Option<(usize, Assignment)>,
    ) -> Option<Self> {
        let mut made = Self {
            plan: Plan { slots: Vec::new(), constants: BTreeSet::new(), ..plan.clone() },
            assignments: Vec::new(),
            origins: Vec::new(),
            relied: BTreeSet::new(),
            as_launched: Vec::new(),
            active: None,
        };
        for (at, (slot, own)) in plan.slots.iter().zip(facts).enumerate() {
            let (parts, assignment) = assign(at)?;
            for part in 0..parts {
                made.plan.slots.push(Slot { range: own.range, ..slot.clone() });
                made.origins.push(at);
                made.as_launched.push(own.range == slot.range && assignment == Assignment::Single);
                made.assignments.push(match assignment {
                    Assignment::Strided { stride, .. } => {
                        Assignment::Strided { stride, index: part as u64 }
                    }
                    other => other,
                });
            }
            let place = |&argument: &usize| Place { slot: at, argument };
            made.relied.extend(own.scalars.iter().map(place));
        }
        let places = made.origins.iter().enumerate().flat_map(|(slot, &origin)| {
            let own = plan.constants.iter().filter(move |place| place.slot == origin);
            own.map(move |place| Place { slot, ..*place })
        });
        made.plan.constants = places.collect();
        made.active = made.active(facts);
        (made.plan.slots.len() <= MAX_SLOTS).then_some(made)
    }

    /// Returns the sizes below which the ids of all items lie that do something, if these and the nd-ranges are
    /// the same in all slots.
    fn active(&self, facts: &[Facts]) -> Option<Sizes> {
        let sizes = |own: &Facts| (own.active, padded(own.range.global(), 1));
        let (active, launched) = sizes(facts.first()?);
        let are_same = facts.iter().all(|own| sizes(own) == (active, launched))
            && self.assignments.iter().all(|own| *own == Assignment::Single);
        (are_same && active != launched && !active.contains(&0)).then_some(active)
    }

    /// Returns the items of a slot with this nd-range that do something. The ids of work-groups are not known if
    /// these are fewer than all.
    pub(super) fn space(&self, range: &NdRange) -> Space {
        let all = Space::new(range);
        match self.active {
            Some(active) => Space { global: active.map(|size| size as i128), local: None, ..all },
            None => all,
        }
    }

    /// Converts an outcome for the arrangement's plan to one for the plan that the arrangement was made from.
    pub(super) fn restored(&self, outcome: Outcome) -> Outcome {
        let place = |place: &Place| Place { slot: self.origins[place.slot], ..*place };
        let places = |all: &BTreeSet<Place>| all.iter().map(place).collect::<BTreeSet<_>>();
        let mut slots: Vec<SlotFindings> = Vec::new();
        for (at, findings) in outcome.slots.into_iter().enumerate() {
            let is_first = at == 0 || self.origins[at - 1] != self.origins[at];
            match slots.last_mut() {
                Some(last) if !is_first => last.guard = None,
                _ => slots.push(findings),
            }
        }
        let judgements = outcome.judgements.into_iter();
        let fused = outcome.fused.map(|mut fused| {
            for own in &mut fused.parameters {
                let mut places: Vec<_> = own.iter().map(place).collect();
                places.dedup();
                *own = places;
            }
            let barriers = fused.barriers.iter().map(|&slot| self.origins[slot]);
            fused.barriers = barriers.collect();
            fused
        });
        Outcome {
            slots,
            judgements: judgements.map(|judgement| self.judgement(judgement)).collect(),
            constants: &places(&outcome.constants) | &self.relied,
            injected: places(&outcome.injected),
            equal: outcome.equal.iter().map(places).filter(|equal| equal.len() > 1).collect(),
            unequal: BTreeSet::new(),
            fused,
        }
    }

    /// Returns the sets of scalars that are one argument of the original plan.
    pub(super) fn same_scalars(&self) -> impl Iterator<Item = BTreeSet<Place>> {
        let mut sets = BTreeMap::<_, BTreeSet<_>>::new();
        for (place, argument) in self.plan.places() {
            if matches!(argument, Argument::Scalar(_)) {
                let origin = (self.origins[place.slot], place.argument);
                sets.entry(origin).or_default().insert(place);
            }
        }
        sets.into_values().filter(|set| set.len() > 1)
    }

    /// Returns a judgement with pairs of the original slots.
    fn judgement(&self, mut judgement: Judgement) -> Judgement {
        let pair = |(first, last): (usize, usize)| (self.origins[first], self.origins[last]);
        let is_pair = |&(first, last): &(usize, usize)| first != last;
        let mut pairs = BTreeMap::<_, FusionVerdict>::new();
        for (slots, verdict) in std::mem::take(&mut judgement.pairs) {
            let slots = pair(slots);
            let is_worse = pairs.get(&slots).is_none_or(|known| known.rank() < verdict.rank());
            if is_pair(&slots) && is_worse {
                pairs.insert(slots, verdict);
            }
        }
        judgement.pairs = pairs;
        let barriers = judgement.barriers.into_iter().map(pair).filter(is_pair);
        judgement.barriers = barriers.collect();
        judgement
    }
}

impl Facts {
    fn of(
        slot: &Slot,
        kernel: &Arc<Kernel>,
        plan: &Plan,
        examinations: &Examinations<'_>,
    ) -> Result<Self> {
        let definitions = kernel.module.definitions();
        let mut own = Self {
            grouping: grouping(slot, kernel, &definitions),
            range: slot.range,
            active: padded(slot.range.global(), 1),
            keeps_range: true,
            count: count(slot)?,
            scalars: BTreeSet::new(),
            written: [1; 3],
        };
        if own.grouping != Grouping::None {
            return Ok(own);
        }
        let range = NdRange::from(NdSize::of(slot.range.global()));
        let space = Space::new(&range);
        let accesses = examinations.of(slot, kernel, &definitions, &space)?.accesses;
        own.keeps_range = plan.target.separate_functions && accesses.has_long_sums;
        let used = used_built_ins(kernel, &definitions);
        if used.is_some_and(|used| used.iter().all(|&id| id != Some(BuiltIn::GlobalSize))) {
            (own.active, own.scalars) = active_sizes(slot, &accesses);
            own.written = written_sizes(slot, &accesses);
        }
        if !own.keeps_range {
            own.set_global(own.active, slot)?;
        }
        Ok(own)
    }

    /// Gives the slot a range of these sizes, in work-groups of any size.
    fn set_global(&mut self, sizes: Sizes, slot: &Slot) -> Result<()> {
        self.range = NdRange::from(NdSize::of(&sizes[..slot.range.dimensions()]));
        self.count = count(&Slot { range: self.range, ..slot.clone() })?;
        Ok(())
    }
}

/// Gives trimmed launches the same sizes where that leaves out no work-item, and adds none: at least those
/// that `sizes` returns for the launches. A kernel that writes all but the border of a plane then has the
/// same range as one that writes all of it.
fn agree_on_sizes(plan: &Plan, facts: &mut [Facts], sizes: impl Fn(&Facts) -> Sizes) -> Result<()> {
    let flat = facts.iter().filter(|own| own.grouping == Grouping::None);
    let known: Vec<_> = flat.map(sizes).collect();
    for (slot, own) in plan.slots.iter().zip(facts) {
        let launched = padded(slot.range.global(), 1);
        let fitting = known.iter().filter(|size| (0..3).all(|d| size[d] <= launched[d]));
        let most = fitting.fold(padded(own.range.global(), 1), |most, size| {
            std::array::from_fn(|d| most[d].max(size[d]))
        });
        if !own.keeps_range && !own.scalars.is_empty() {
            own.set_global(most, slot)?;
        }
    }
    Ok(())
}

/// Returns the sizes without work-items that do nothing, and the scalars that these follow from.
fn active_sizes(slot: &Slot, accesses: &Accesses) -> (Sizes, BTreeSet<usize>) {
    let launched = padded(slot.range.global(), 1);
    match trimmed(slot, accesses) {
        Some(found) if found.sizes != launched => (found.sizes, found.scalars),
        _ => (launched, BTreeSet::new()),
    }
}

/// Returns the sizes of the memories that a launch writes, where its work-items write elements of rows: the
/// number of elements from a row to the next, or from the start of the last dimension to the end of the buffer.
fn written_sizes(slot: &Slot, accesses: &Accesses) -> Sizes {
    let launched = padded(slot.range.global(), 1);
    let counted: Vec<_> = (0..3).filter(|&d| launched[d] > 1).collect();
    let mut sizes = [1; 3];
    for access in accesses.all.iter().filter(|access| access.kind.writes()) {
        let bytes = access.bytes.filter(|bytes| bytes.start.is_exact());
        let (Some(bytes), Some(Argument::Buffer(region))) =
            (bytes, slot.arguments.get(access.parameter))
        else {
            continue;
        };
        let factors = bytes.start.coefficients();
        for (at, &d) in counted.iter().enumerate() {
            let all = counted.get(at + 1).map_or(region.length as i128, |&next| factors[next]);
            let size = if factors[d] > 0 { all / factors[d] } else { 0 };
            if let Some(size) = usize::try_from(size).ok().filter(|&size| size <= launched[d]) {
                sizes[d] = sizes[d].max(size);
            }
        }
    }
    sizes
}

/// Returns whether the items of each work-group of a launch have consecutive linear ids.
fn is_row(slot: &Slot) -> bool {
    let local = slot.range.local().map(|local| padded(local, 1));
    local.is_some_and(|[_, rest @ ..]: Sizes| rest == [1; 2])
}

/// Returns how a slot's kernel uses work-groups.
fn grouping(slot: &Slot, kernel: &Kernel, definitions: &Definitions<'_>) -> Grouping {
    let own = access::group_use(definitions, kernel.function);
    let has_local = slot.arguments.iter().any(|argument| matches!(argument, Argument::Local(_)));
    let is_bound = own.synchronizes
        || own.local_bytes > 0
        || has_local
        || kernel.prints()
        || kernel.modes.local_size().is_some();
    let used = used_built_ins(kernel, definitions).filter(|_| !is_bound);
    let Some(used) = used else { return Grouping::Bound };
    let mut grouping = Grouping::None;
    for built_in in used {
        match built_in {
            Some(BuiltIn::GlobalInvocationId | BuiltIn::GlobalSize | BuiltIn::WorkDim) => {}
            Some(
                BuiltIn::LocalInvocationId
                | BuiltIn::WorkgroupId
                | BuiltIn::NumWorkgroups
                | BuiltIn::WorkgroupSize
                | BuiltIn::EnqueuedWorkgroupSize,
            ) => grouping = Grouping::Ids,
            _ => return Grouping::Bound,
        }
    }
    grouping
}

/// Returns the built-in values that a kernel uses, each `None` if it is not known; `None` if an instruction is
/// not known.
fn used_built_ins(kernel: &Kernel, definitions: &Definitions<'_>) -> Option<Vec<Option<BuiltIn>>> {
    let known: BTreeMap<_, _> = kernel.module.built_ins().collect();
    let globals = kernel.module.section(Section::Globals).iter();
    let inputs = globals.filter(|i| match i.view() {
        View::Variable { class, .. } | View::UntypedVariable { class, .. } => {
            class == StorageClass::Input as u32
        }
        _ => false,
    });
    let inputs: BTreeSet<_> = inputs.filter_map(|i| i.result()).collect();
    let mut used = BTreeSet::new();
    let bodies = kernel.module.functions.iter().flat_map(|function| function.body.iter());
    for i in bodies {
        operand_ids(&i, definitions, |id| used.extend(Some(id).filter(|id| inputs.contains(id))))
            .ok()?;
    }
    let built_in = |id| BuiltIn::from_u32(*known.get(&id)?);
    Some(used.into_iter().map(built_in).collect())
}
