//! Partition of launches that do not all run as one kernel: groups of launches, each of which does.
//!
//! The search starts with a group for each launch. It merges the two groups that share memory and whose merging
//! saves most by the [cost model](super::cost), as long as one kernel [can do](Launches::fuse) the work of both
//! and the launches stay in an order that gives the same results. At last, each group tries to run
//! [again](Group::repeated) what launches of other groups did, instead of reading their results from memory.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use super::cost::Cost;
use super::effects::{self, SlotEffects};
use super::plan::{Argument, Memory, Place, Plan, Region};
use super::{Fused, FusionForm, Outcome, Trust, Width, forms, fuse};
use crate::compiler::signature::Access;
use crate::compiler::spirv::Module;
use crate::error::{Error, Result};

/// Launches that may run in groups, and the properties that decide about the groups.
pub(crate) struct Launches<'a> {
    pub(crate) plan: &'a Plan,
    /// Modules of the plan. Launches of a module that is not available run alone.
    pub(crate) modules: Vec<Option<&'a Module>>,
    /// Number of the set of build options of each module. Launches with different options run apart.
    pub(crate) options: Vec<usize>,
    pub(crate) trust: Trust,
    pub(crate) width: Width,
    pub(crate) is_gpu: bool,
    /// Form that all kernels get; if `None`, all forms are tried.
    pub(crate) forced_form: Option<FusionForm>,
    /// Returns the limit of the device that a kernel exceeds, in words.
    pub(crate) exceeded_limit: &'a dyn Fn(&Fused) -> Option<String>,
    /// Effects of the launches, in order, once they are needed.
    pub(crate) effects: OnceCell<Vec<SlotEffects>>,
}

/// Launches that may run as one kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Group {
    /// Positions of the launches in the plan, in order.
    pub(crate) slots: Vec<usize>,
    /// Positions of earlier launches of other groups that the kernel runs again, in order. Their results are
    /// in memory as well, but the kernel does not read them from there.
    pub(crate) repeated: Vec<usize>,
}

/// Kernel that does the work of a group.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) group: Group,
    pub(crate) form: FusionForm,
    /// Outcome for the [group's plan](Launches::plan_of), which has a fused kernel.
    pub(crate) outcome: Outcome,
}

/// Launches that run together, and the kernels that can do their work, the best by the cost model first. A
/// launch that runs alone has none.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) slots: Vec<usize>,
    pub(crate) candidates: Vec<Candidate>,
}

/// Maximum number of kernels that a search compiles for each launch. Beyond it, groups are merged no further.
const MAX_ATTEMPTS: usize = 8;

impl Group {
    pub(crate) fn of(slots: impl IntoIterator<Item = usize>) -> Self {
        Self { slots: slots.into_iter().collect(), repeated: Vec::new() }
    }

    /// Returns the positions of all launches that the kernel runs, in order.
    pub(crate) fn members(&self) -> Vec<usize> {
        let mut members: Vec<_> = self.slots.iter().chain(&self.repeated).copied().collect();
        members.sort_unstable();
        members
    }
}

impl<'a> Launches<'a> {
    /// Returns the group of all launches.
    pub(crate) fn whole(&self) -> Group {
        Group::of(0..self.plan.slots.len())
    }

    /// Returns the forms to try for a group, in order.
    pub(crate) fn forms(&self, group: &Group) -> Vec<FusionForm> {
        match self.forced_form {
            Some(form) => vec![form],
            None => forms(&self.plan_of(group).0, self.is_gpu),
        }
    }

    /// Fuses a group's launches in the given form.
    ///
    /// # Errors
    ///
    /// As for [`fuse`]; [`Unsupported`](crate::ErrorKind::Unsupported) if a module is not available or the build
    /// options differ.
    pub(crate) fn fuse(&self, group: &Group, form: FusionForm) -> Result<Outcome> {
        let (plan, numbers) = self.plan_of(group);
        let modules: Option<Vec<_>> = numbers.iter().map(|&module| self.modules[module]).collect();
        let mut options = numbers.iter().map(|&module| self.options[module]);
        let first = options.next();
        let Some(modules) = modules.filter(|_| options.all(|other| Some(other) == first)) else {
            return Err(Error::unsupported("the programs cannot be compiled together"));
        };
        let mut outcome = fuse(&plan, &modules, self.trust, self.width, form)?;
        let exceeded = outcome.fused.as_ref().ok().and_then(|fused| (self.exceeded_limit)(fused));
        if let Some(why) = exceeded {
            outcome.fused = Err(why);
        }
        Ok(outcome)
    }

    /// Returns the kernel of a group in a form, if there is one.
    pub(crate) fn candidate(&self, group: &Group, form: FusionForm) -> Option<Candidate> {
        if !group.repeated.iter().all(|&slot| self.can_repeat(slot, &group.slots)) {
            return None;
        }
        let outcome = self.fuse(group, form).ok()?;
        let fused = outcome.fused.as_ref().ok()?;
        let mut repeated = group.repeated.iter().flat_map(|&slot| self.written(slot));
        let does_without = repeated.all(|memory| fused.internalized.contains(&memory));
        does_without.then(|| Candidate { group: group.clone(), form, outcome })
    }

    /// Returns the kernel of a group in the first form in which there is one.
    fn first_candidate(&self, group: &Group) -> Option<Candidate> {
        self.forms(group).into_iter().find_map(|form| self.candidate(group, form))
    }

    /// Returns the plan of a group's kernel, and for each of its modules the number of the module in the whole
    /// plan.
    ///
    /// Memories that are dead after all launches are dead after the group's if no later launch outside the
    /// group accesses them. The results of repeated launches are dead.
    pub(crate) fn plan_of(&self, group: &Group) -> (Plan, Vec<usize>) {
        let whole = self.plan;
        let members = group.members();
        let mut numbers: Vec<usize> = Vec::new();
        let mut slots = Vec::new();
        for &member in &members {
            let mut slot = whole.slots[member].clone();
            let known = numbers.iter().position(|&number| number == slot.module);
            let number = known.unwrap_or_else(|| {
                numbers.push(slot.module);
                numbers.len() - 1
            });
            slot.module = number;
            slots.push(slot);
        }
        let place = |place: &Place| {
            let slot = members.binary_search(&place.slot).ok()?;
            Some(Place { slot, ..*place })
        };
        let is_dead = |memory: &Memory| {
            let mut users = self.users(*memory);
            let first = users.clone().find(|user| group.slots.contains(user));
            first
                .is_some_and(|first| users.all(|user| user <= first || group.slots.contains(&user)))
        };
        let mut dead: BTreeSet<_> = whole.dead.iter().copied().filter(is_dead).collect();
        let mut forms = whole.forms.clone();
        forms.retain(|memory, _| dead.contains(memory));
        dead.extend(group.repeated.iter().flat_map(|&slot| self.written(slot)));
        let modules = numbers.iter().filter_map(|&number| whole.modules.get(number).copied());
        let plan = Plan {
            modules: modules.collect(),
            slots,
            constants: whole.constants.iter().filter_map(place).collect(),
            dead,
            forms,
            target: whole.target,
        };
        (plan, numbers)
    }

    /// Returns the launches that are passed a memory, in order.
    fn users(&self, memory: Memory) -> impl Iterator<Item = usize> + Clone {
        let is_passed = move |argument: &Argument| matches!(argument, Argument::Buffer(region) if region.memory == memory);
        let slots = self.plan.slots.iter().enumerate();
        slots.filter(move |(_, slot)| slot.arguments.iter().any(is_passed)).map(|(slot, _)| slot)
    }

    pub(super) fn effects(&self) -> &[SlotEffects] {
        self.effects.get_or_init(|| effects::effects(self.plan, &self.modules))
    }

    /// Returns the regions that a launch accesses.
    pub(super) fn accesses(&self, slot: usize) -> impl Iterator<Item = (Region, Access)> + Clone {
        let arguments = self.plan.slots[slot].arguments.iter().zip(&self.effects()[slot].accesses);
        arguments.filter_map(|(argument, access)| match argument {
            Argument::Buffer(region) => Some((*region, (*access)?)),
            Argument::Scalar(_) | Argument::Local(_) => None,
        })
    }

    /// Returns the memories that a launch may write.
    pub(super) fn written(&self, slot: usize) -> impl Iterator<Item = Memory> {
        let written = self.accesses(slot).filter(|(_, access)| *access != Access::Read);
        written.map(|(region, _)| region.memory)
    }

    /// Returns the memories that some of the launches in `slots` may write.
    pub(crate) fn written_by(&self, slots: &[usize]) -> Vec<Memory> {
        slots.iter().flat_map(|&slot| self.written(slot)).collect()
    }

    /// Whether the launches must keep their order: one may write bytes that the other accesses.
    fn conflict(&self, first: usize, second: usize) -> bool {
        let others = self.accesses(second);
        self.accesses(first).any(|(region, access)| {
            others.clone().any(|(other, theirs)| {
                let writes = access != Access::Read || theirs != Access::Read;
                writes && region.overlaps(&other)
            })
        })
    }

    /// Whether a kernel with the launches in `slots` can run the launch `repeated` of another group once more,
    /// with the same results: nothing writes what it reads, nothing else writes what it writes, and the
    /// launches in `slots` come after it.
    pub(super) fn can_repeat(&self, repeated: usize, slots: &[usize]) -> bool {
        let comes_first = slots.iter().all(|&slot| slot > repeated);
        let others = (0..self.plan.slots.len()).filter(|&slot| slot != repeated);
        let is_kept = |(region, access): (Region, Access)| {
            let writers = |slot: usize| {
                self.accesses(slot)
                    .any(|(other, theirs)| theirs != Access::Read && other.overlaps(&region))
            };
            match access {
                Access::Read => !others.clone().any(|slot| slot > repeated && writers(slot)),
                Access::Write => !others.clone().any(writers),
                Access::ReadWrite => false,
            }
        };
        comes_first && self.accesses(repeated).all(is_kept) && {
            let reads = |memory| {
                self.accesses(repeated)
                    .any(|(region, access)| access == Access::Read && region.memory == memory)
            };
            !self.written(repeated).any(reads)
        }
    }

    /// Whether launches give the same results if the sets in `parts` run one after another, each set in the
    /// order of the plan.
    pub(crate) fn keeps_order(&self, parts: &[&[usize]]) -> bool {
        let earlier = |at: usize| parts[..at].iter().flat_map(|part| part.iter().copied());
        (0..parts.len()).all(|at| {
            let moved =
                |&slot: &usize| earlier(at).any(|other| other > slot && self.conflict(slot, other));
            !parts[at].iter().any(moved)
        })
    }

    /// Returns the best partition into groups, in the order in which they run.
    pub(crate) fn partition(&self) -> Vec<Part> {
        let mut search = Search::new(self);
        search.merge_all();
        search.repeat_producers();
        search.finish()
    }

    /// Returns the best way to run launches that are too slow as one kernel in two parts: two kernels, or a
    /// kernel and one launch alone. `None` if there is none.
    pub(crate) fn split(&self, slots: &[usize]) -> Option<[Part; 2]> {
        let part = |slots: Vec<usize>| {
            let group = Group::of(slots.iter().copied());
            let candidate = (slots.len() > 1).then(|| self.first_candidate(&group));
            let candidates = match candidate {
                None => Vec::new(),
                Some(candidate) => vec![candidate?],
            };
            Some(Part { slots, candidates })
        };
        let cuts = self.cuts(slots).into_iter();
        let splits = cuts.filter_map(|(first, second)| Some([part(first)?, part(second)?]));
        let is_fused = |parts: &[Part; 2]| parts.iter().any(|part| !part.candidates.is_empty());
        splits.filter(is_fused).min_by_key(|parts| {
            let costs = parts.iter().map(|part| part.cost(self).total());
            costs.fold(0, u64::saturating_add)
        })
    }

    /// Returns the ways to cut a list of launches in two that keep the order of those that depend on each
    /// other: after each launch, and around each launch that can move to the end or to the start.
    fn cuts(&self, slots: &[usize]) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut cuts: Vec<_> =
            (1..slots.len()).map(|at| (slots[..at].to_vec(), slots[at..].to_vec())).collect();
        for &alone in slots {
            let others: Vec<_> = slots.iter().copied().filter(|&slot| slot != alone).collect();
            for cut in [(vec![alone], others.clone()), (others, vec![alone])] {
                let is_new = !cut.0.is_empty() && !cut.1.is_empty() && !cuts.contains(&cut);
                if is_new && self.keeps_order(&[&cut.0, &cut.1]) {
                    cuts.push(cut);
                }
            }
        }
        cuts
    }
}

impl Part {
    fn cost(&self, launches: &Launches<'_>) -> Cost {
        let group = Group::of(self.slots.iter().copied());
        Cost::of(launches, &group, self.candidates.first())
    }
}

/// Search for the best partition.
struct Search<'a, 'b> {
    launches: &'a Launches<'b>,
    /// Groups so far, in no particular order, with their kernels.
    parts: Vec<Part>,
    attempts_left: usize,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(launches: &'a Launches<'b>) -> Self {
        let count = launches.plan.slots.len();
        let parts = (0..count).map(|slot| Part { slots: vec![slot], candidates: Vec::new() });
        Self { launches, parts: parts.collect(), attempts_left: count.saturating_mul(MAX_ATTEMPTS) }
    }

    /// Merges pairs of groups until that saves nothing more.
    fn merge_all(&mut self) {
        let mut refused = BTreeSet::new();
        while let Some((first, second)) = self.best_pair(&refused) {
            let slots = self.union(first, second);
            let apart = self.cost_of_both(first, second);
            let merged = self.attempt(&Group::of(slots.iter().copied()));
            let merged =
                merged.map(|candidate| Part { slots: slots.clone(), candidates: vec![candidate] });
            match merged.filter(|part| part.cost(self.launches).total() < apart) {
                Some(part) => {
                    self.parts[first] = part;
                    self.parts.swap_remove(second);
                }
                None => _ = refused.insert(slots),
            }
        }
    }

    /// Returns the pair of groups whose merging promises to save most, if there is one. The first of the pair
    /// has the lower index.
    fn best_pair(&self, refused: &BTreeSet<Vec<usize>>) -> Option<(usize, usize)> {
        let count = self.parts.len();
        let pairs =
            (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
        let gains = pairs.filter_map(|(first, second)| {
            let slots = self.union(first, second);
            if refused.contains(&slots)
                || !self.share_memory(first, second)
                || self.is_cyclic(first, second)
            {
                return None;
            }
            let together = Cost::estimate(self.launches, &Group::of(slots.iter().copied())).total();
            let gain = self.cost_of_both(first, second).checked_sub(together)?;
            // Of equal gains, that of the earliest launches comes first.
            (gain > 0).then_some((gain, std::cmp::Reverse(slots), (first, second)))
        });
        gains.max().map(|(_, _, pair)| pair)
    }

    /// Returns the launches of two groups, in order.
    fn union(&self, first: usize, second: usize) -> Vec<usize> {
        let mut slots = [&self.parts[first].slots[..], &self.parts[second].slots[..]].concat();
        slots.sort_unstable();
        slots
    }

    fn cost_of_both(&self, first: usize, second: usize) -> u64 {
        let [first, second] =
            [first, second].map(|part| self.parts[part].cost(self.launches).total());
        first.saturating_add(second)
    }

    fn share_memory(&self, first: usize, second: usize) -> bool {
        let launches = self.launches;
        let regions = |part: usize| {
            let slots = self.parts[part].slots.iter();
            slots.flat_map(|&slot| launches.accesses(slot)).map(|(region, _)| region)
        };
        regions(first).any(|region| regions(second).any(|other| region.overlaps(&other)))
    }

    /// Whether a launch of `part` must come before one of `other`.
    fn is_before(&self, part: usize, other: usize) -> bool {
        let later = &self.parts[other].slots;
        let mut slots = self.parts[part].slots.iter();
        slots.any(|&slot| {
            later.iter().any(|&other| slot < other && self.launches.conflict(slot, other))
        })
    }

    /// Whether other groups would have to run between the launches of two groups, if these were merged.
    fn is_cyclic(&self, first: usize, second: usize) -> bool {
        let reaches = |from: usize, to: usize| {
            let mut seen = vec![false; self.parts.len()];
            (seen[from], seen[to]) = (true, true);
            let mut stack = vec![from];
            while let Some(at) = stack.pop() {
                if at != from && self.is_before(at, to) {
                    return true;
                }
                for next in 0..self.parts.len() {
                    if !seen[next] && self.is_before(at, next) {
                        seen[next] = true;
                        stack.push(next);
                    }
                }
            }
            false
        };
        reaches(first, second) || reaches(second, first)
    }

    /// Returns the kernel of a group, if there is one and the number of attempts is not used up.
    fn attempt(&mut self, group: &Group) -> Option<Candidate> {
        self.attempts_left = self.attempts_left.checked_sub(1)?;
        self.launches.first_candidate(group)
    }

    /// Finds, for each group, launches of other groups that its kernel had better run again than read their
    /// results.
    fn repeat_producers(&mut self) {
        for part in 0..self.parts.len() {
            let mut group = Group::of(self.parts[part].slots.iter().copied());
            while let Some(candidate) = self.best_repetition(part, &group) {
                group = candidate.group.clone();
                self.parts[part].candidates.insert(0, candidate);
            }
        }
    }

    /// Returns the best kernel that repeats one more launch than `group`, if it costs less than the part does
    /// so far.
    fn best_repetition(&mut self, part: usize, group: &Group) -> Option<Candidate> {
        let launches = self.launches;
        let mut least = self.parts[part].cost(launches).total();
        let members = group.members();
        let read: BTreeSet<_> = (members.iter())
            .flat_map(|&slot| launches.accesses(slot))
            .filter(|(_, access)| *access != Access::Write)
            .map(|(region, _)| region.memory)
            .collect();
        let mut best = None;
        for producer in (0..launches.plan.slots.len()).filter(|slot| !members.contains(slot)) {
            let is_read = launches.written(producer).any(|memory| read.contains(&memory));
            if !is_read || !launches.can_repeat(producer, &group.slots) {
                continue;
            }
            let mut larger = group.clone();
            larger.repeated.push(producer);
            larger.repeated.sort_unstable();
            if Cost::estimate(launches, &larger).total() >= least {
                continue;
            }
            let Some(candidate) = self.attempt(&larger) else { continue };
            let cost = Cost::of(launches, &larger, Some(&candidate)).total();
            if cost < least {
                (least, best) = (cost, Some(candidate));
            }
        }
        best
    }

    /// Returns the groups in an order that keeps the results, the one with the earliest launch first where
    /// there is a choice.
    fn finish(mut self) -> Vec<Part> {
        self.parts.sort_by(|a, b| a.slots.cmp(&b.slots));
        let mut order = Vec::new();
        while order.len() < self.parts.len() {
            let waits = |part: usize| {
                let mut others = (0..self.parts.len()).filter(|other| !order.contains(other));
                others.any(|other| other != part && self.is_before(other, part))
            };
            let next = (0..self.parts.len()).find(|part| !order.contains(part) && !waits(*part));
            // Merging makes no cycles, so there always is one.
            let Some(next) = next else { return Search::new(self.launches).parts };
            order.push(next);
        }
        let mut parts: Vec<_> = self.parts.into_iter().map(Some).collect();
        order.into_iter().filter_map(|part| parts[part].take()).collect()
    }
}
