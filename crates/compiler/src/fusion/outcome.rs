//! Results of fusing a plan.

use std::collections::BTreeSet;

use kiln_spirv::{Module, Result};

use super::legality::Judgement;
use crate::NdRange;
use crate::plan::{Internalization, Memory, Place, Plan};

/// Result of fusing a plan.
#[derive(Debug)]
pub struct Outcome {
    /// Findings on each slot, in order. Empty if the kernels could not be examined.
    pub slots: Vec<SlotFindings>,
    /// Judgement on each memory, in order. Empty if the kernels could not be examined.
    pub judgements: Vec<Judgement>,
    /// Scalars whose values were used. The outcome holds for all plans that have the same
    /// [`without_values`](Plan::without_values) of these and of [`equal`](Self::equal).
    pub constants: BTreeSet<Place>,
    /// Subset of [`constants`](Self::constants) that are constants in the kernel: those that the plan asks
    /// for, and those from which addresses or loop bounds are calculated. The others are only compared and
    /// remain arguments, so that other values may give the same kernel.
    pub injected: BTreeSet<Place>,
    /// Sets of scalars, not fixed, that must have the same value. Each set is one argument of the kernel.
    pub equal: BTreeSet<BTreeSet<Place>>,
    /// Pairs of scalars with different values. In a plan where they are equal, more may be kept in variables.
    pub unequal: BTreeSet<[Place; 2]>,
    /// Fused kernel, or the reason why the launches were not fused.
    pub fused: Result<Fused, String>,
}

impl Outcome {
    /// Returns what is known of a plan before it is examined.
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            slots: Vec::new(),
            judgements: Vec::new(),
            constants: plan.constants.clone(),
            injected: plan.constants.clone(),
            equal: BTreeSet::new(),
            unequal: BTreeSet::new(),
            fused: Err(String::new()),
        }
    }
}

/// Findings on one slot.
#[derive(Debug)]
pub struct SlotFindings {
    /// Names of the kernel's parameters, in order.
    pub parameters: Vec<Option<String>>,
    /// Whether the ids of its work-items are calculated from linear ones.
    pub is_remapped: bool,
    /// Number of work-items that run the slot; `None` if all do.
    pub guard: Option<u64>,
}

/// Kernel that does the work of several launches.
#[derive(Debug)]
pub struct Fused {
    /// Module with the kernel.
    pub module: Module,
    /// Name of the kernel.
    pub kernel: String,
    /// Range of its launch.
    pub range: NdRange,
    /// Arguments that each parameter stands for. All arguments of one parameter are the same.
    pub parameters: Vec<Vec<Place>>,
    /// Number of bytes of local memory that a work-group uses, including local arguments.
    pub local_bytes: usize,
    /// Number of bytes of private memory that the arrays of a work-item use.
    pub private_bytes: usize,
    /// Estimated number of times that each slot runs for 100 of its work-items, in order.
    pub runs: Vec<u64>,
    /// Number of bytes of all parameters together.
    pub parameter_bytes: usize,
    /// Memories that are no longer used.
    pub internalized: Vec<Memory>,
    /// Subset of `internalized` that became local memory of work-groups.
    pub local: BTreeSet<Memory>,
    /// Slots before which the work-items of a work-group wait for each other.
    pub barriers: BTreeSet<usize>,
}

impl Fused {
    /// Returns the form that replaces a memory, or `None` if the memory is still used.
    #[must_use]
    pub fn form(&self, memory: Memory) -> Option<Internalization> {
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
pub enum Trust {
    /// Only where it is proven.
    ProofOnly,
    /// The caller vouches that no work-item needs what another one wrote in an earlier launch.
    Caller,
}
