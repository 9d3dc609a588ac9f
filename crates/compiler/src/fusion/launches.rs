//! Groups of a plan's launches: the plan of each, its kernels, and the orders of launches that give the same
//! results.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt;

use kiln_spirv::{Access, Error, Module, Result};

use super::budget::{Budget, refuse_kernel, refuse_launches};
use super::effects::{self, SlotEffects};
use super::examination::{Examinations, Programs};
use super::form::{FusionForm, forms};
use super::fuse::fuse;
use super::outcome::{Fused, Outcome, Trust};
use crate::plan::{Argument, Memory, Place, Plan, Region};
use crate::transform::coarsen::Width;

/// Launches that may run in groups, and the properties that decide about the groups.
pub struct Launches<'a> {
    /// All launches.
    pub plan: &'a Plan,
    /// Modules of the plan. Launches of a module that is not available run alone.
    pub modules: Vec<Option<&'a Module>>,
    /// Number of the set of build options of each module. Launches with different options run apart.
    pub options: Vec<usize>,
    /// Whether a proof is required.
    pub trust: Trust,
    /// Number of work-items whose work one may do.
    pub width: Width,
    /// Whether the device is a GPU.
    pub is_gpu: bool,
    /// Form that all kernels get; if `None`, all forms are tried.
    pub forced_form: Option<FusionForm>,
    /// Returns the limit of the device that a kernel exceeds, in words; `None` if it exceeds none.
    pub exceeded_limit: &'a dyn Fn(&Fused) -> Option<String>,
    /// Effects of the launches, in order. They are determined when they are first needed.
    pub effects: OnceCell<Vec<SlotEffects>>,
    /// Examinations of the kernels so far.
    pub examinations: Examinations<'a>,
    /// Sizes of the kernels, which limit what is fused.
    pub budget: Budget,
}

impl fmt::Debug for Launches<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launches").field("plan", self.plan).finish_non_exhaustive()
    }
}

/// Launches that may run as one kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// Positions of the launches in the plan, in order.
    pub slots: Vec<usize>,
    /// Positions of earlier launches of other groups that the kernel runs again, in order. Their results are
    /// in memory as well, but the kernel does not read them from there.
    pub repeated: Vec<usize>,
}

/// Kernel that does the work of a group.
#[derive(Debug)]
pub struct Candidate {
    /// Launches whose work the kernel does.
    pub group: Group,
    /// Form of the kernel.
    pub form: FusionForm,
    /// Outcome for the [group's plan](Launches::plan_of), which has a fused kernel.
    pub outcome: Outcome,
}

/// Launches that run together, and the kernels that can do their work, the best by the cost model first. A
/// launch that runs alone has none.
#[derive(Debug)]
pub struct Part {
    /// Positions of the launches in the plan, in order.
    pub slots: Vec<usize>,
    /// Kernels, the best first.
    pub candidates: Vec<Candidate>,
}

impl Candidate {
    /// Whether work-items pass values on to others, so that other forms may be legal. In the form `Direct`,
    /// they do so only behind barriers.
    #[must_use]
    pub fn passes_values_on(&self) -> bool {
        let has_barriers =
            || self.outcome.fused.as_ref().is_ok_and(|fused| !fused.barriers.is_empty());
        match self.form {
            FusionForm::Direct => has_barriers(),
            FusionForm::Batched => false,
            _ => true,
        }
    }
}

impl Group {
    /// Creates a group that runs no launch again.
    pub fn of(slots: impl IntoIterator<Item = usize>) -> Self {
        Self { slots: slots.into_iter().collect(), repeated: Vec::new() }
    }

    /// Returns the positions of all launches that the kernel runs, in order.
    #[must_use]
    pub fn members(&self) -> Vec<usize> {
        let mut members: Vec<_> = self.slots.iter().chain(&self.repeated).copied().collect();
        members.sort_unstable();
        members
    }
}

impl<'a> Launches<'a> {
    /// Returns the launches of a plan, for a CPU without limits: all modules are available and have the same options, and
    /// a proof is required.
    pub fn of(plan: &'a Plan, modules: &[&'a Module]) -> Self {
        Self {
            plan,
            modules: modules.iter().copied().map(Some).collect(),
            options: vec![0; modules.len()],
            trust: Trust::ProofOnly,
            width: Width::ONE,
            is_gpu: false,
            forced_form: None,
            exceeded_limit: &|_| None,
            effects: OnceCell::new(),
            examinations: Examinations::default(),
            budget: Budget::default(),
        }
    }

    /// Returns the group of all launches.
    pub fn whole(&self) -> Group {
        Group::of(0..self.plan.slots.len())
    }

    /// Returns the forms to try for a group, in order.
    pub fn forms(&self, group: &Group) -> Vec<FusionForm> {
        match self.forced_form {
            Some(form) => vec![form],
            None => forms(&self.plan_of(group).0, self.is_gpu),
        }
    }

    /// Fuses a group's launches in the given form.
    ///
    /// # Errors
    ///
    /// As for [`fuse`]; [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if a module is not available, the
    /// build options differ, or the kernels together are far too large.
    pub fn fuse(&self, group: &Group, form: FusionForm) -> Result<Outcome> {
        let (plan, numbers) = self.plan_of(group);
        let modules: Option<Vec<_>> = numbers.iter().map(|&module| self.modules[module]).collect();
        let mut options = numbers.iter().map(|&module| self.options[module]);
        let first = options.next();
        let Some(modules) = modules.filter(|_| options.all(|other| Some(other) == first)) else {
            return Err(Error::unsupported("the programs cannot be compiled together"));
        };
        let sum = self.budget.sum(self.plan, &self.modules, group.members());
        if let Some(why) = refuse_launches(form, sum) {
            return Err(Error::unsupported(why));
        }
        let programs = Programs { modules: &modules, examinations: &self.examinations };
        let mut outcome = fuse(&plan, programs, self.trust, self.width, form)?;
        let fused = outcome.fused.as_ref().ok();
        let exceeded = fused
            .and_then(|fused| (self.exceeded_limit)(fused).or_else(|| refuse_kernel(fused, sum)));
        if let Some(why) = exceeded {
            outcome.fused = Err(why);
        }
        Ok(outcome)
    }

    /// Returns the kernel of a group in a form, if there is one.
    pub fn candidate(&self, group: &Group, form: FusionForm) -> Option<Candidate> {
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
    pub(super) fn first_candidate(&self, group: &Group) -> Option<Candidate> {
        self.forms(group).into_iter().find_map(|form| self.candidate(group, form))
    }

    /// Returns the plan of a group's kernel, and for each of its modules the number of the module in the whole
    /// plan.
    ///
    /// A memory that is dead after all launches is dead after the group's, too, if no launch outside the
    /// group is passed it after the first launch of the group that is. The results of repeated launches are
    /// dead.
    pub fn plan_of(&self, group: &Group) -> (Plan, Vec<usize>) {
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
        let is_passed = move |argument: &Argument| argument.memory() == Some(memory);
        let slots = self.plan.slots.iter().enumerate();
        slots.filter(move |(_, slot)| slot.arguments.iter().any(is_passed)).map(|(slot, _)| slot)
    }

    pub(super) fn effects(&self) -> &[SlotEffects] {
        self.effects.get_or_init(|| effects::effects(self.plan, &self.modules, &self.examinations))
    }

    /// Returns the regions that a launch accesses.
    pub(super) fn accesses(&self, slot: usize) -> impl Iterator<Item = (Region, Access)> + Clone {
        let arguments = self.plan.slots[slot].arguments.iter().zip(&self.effects()[slot].accesses);
        arguments.filter_map(|(argument, access)| argument.region().zip(*access))
    }

    /// Returns the memories that a launch may write.
    pub(super) fn written(&self, slot: usize) -> impl Iterator<Item = Memory> {
        let written = self.accesses(slot).filter(|(_, access)| *access != Access::Read);
        written.map(|(region, _)| region.memory)
    }

    /// Returns the memories that some of the launches in `slots` may write.
    pub fn written_by(&self, slots: &[usize]) -> Vec<Memory> {
        slots.iter().flat_map(|&slot| self.written(slot)).collect()
    }

    /// Returns the scalars on whose values the effects of the launches depend. The orders in which the
    /// launches can run follow from the effects.
    pub fn effect_constants(&self) -> BTreeSet<Place> {
        let effects = self.effects().iter().enumerate();
        let places = effects.flat_map(|(slot, effects)| {
            effects.constants.iter().map(move |&argument| Place { slot, argument })
        });
        places.collect()
    }

    /// Whether the launches must keep their order: one may write bytes that the other accesses, or both may
    /// print.
    pub(super) fn conflict(&self, first: usize, second: usize) -> bool {
        let effects = self.effects();
        if effects[first].prints && effects[second].prints {
            return true;
        }
        let others = self.accesses(second);
        self.accesses(first).any(|(region, access)| {
            others.clone().any(|(other, theirs)| {
                let writes = access != Access::Read || theirs != Access::Read;
                writes && region.overlaps(&other)
            })
        })
    }

    /// Whether a kernel with the launches in `slots` can run the launch `repeated` of another group once
    /// more, with the same results: no later launch writes what it reads, no other launch writes what it
    /// writes, and the launches in `slots` come after it.
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
        let prints = self.effects()[repeated].prints;
        comes_first && !prints && self.accesses(repeated).all(is_kept) && {
            let reads = |memory| {
                self.accesses(repeated)
                    .any(|(region, access)| access == Access::Read && region.memory == memory)
            };
            !self.written(repeated).any(reads)
        }
    }

    /// Whether the launches give the same results if the lists in `parts` run one after another, each list in
    /// the order of the plan.
    pub fn keeps_order(&self, parts: &[&[usize]]) -> bool {
        let earlier = |at: usize| parts[..at].iter().flat_map(|part| part.iter().copied());
        (0..parts.len()).all(|at| {
            let moved =
                |&slot: &usize| earlier(at).any(|other| other > slot && self.conflict(slot, other));
            !parts[at].iter().any(moved)
        })
    }
}
