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
//!
//! Launches that need what other work-items of earlier launches wrote are fused in other [forms](form): the
//! kernel [runs the earlier launches again](recompute). Launches that cannot all be one kernel are
//! [divided](partition) into groups that can, by an estimate of their [cost].

mod access;
mod affine;
mod arrangement;
mod attempt;
mod coarsen;
mod contraction;
mod coordinates;
mod cost;
mod declaration;
mod dependence;
mod effects;
mod entry;
mod equation;
mod explain;
mod extract;
mod form;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod inlining;
mod internalize;
mod launches;
mod legality;
mod local_legality;
mod local_memory;
mod lower_version;
mod merge;
mod modes;
mod part_report;
mod partition;
mod plan;
mod private_legality;
mod promote;
mod ranges;
mod recompute;
mod remap;
mod repetition;
mod report;
mod specialize;
#[cfg(test)]
mod tests;
mod trim;
mod vector_access;

use std::collections::BTreeSet;

use crate::compiler::nd_range::NdRange;
use crate::compiler::spirv::Module;
use crate::error::{ErrorKind, Result};
use arrangement::Arrangement;
use attempt::Obstacle;

pub(crate) use coarsen::Width;
pub use form::FusionForm;
pub(crate) use form::forms;
pub(crate) use launches::{Candidate, Group, Launches, Part};
pub(crate) use legality::Judgement;
pub use legality::Verdict;
pub(crate) use part_report::short_name;
pub use part_report::{PartReport, StepReport, WayReport};
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

impl Outcome {
    /// Returns what is known of a plan before it is examined.
    fn of(plan: &Plan) -> Self {
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
    /// Number of bytes of private memory that the arrays of a work-item use.
    pub(crate) private_bytes: usize,
    /// Estimated number of times that each slot runs for 100 of its work-items, in order.
    pub(crate) runs: Vec<u64>,
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

/// Fuses a plan's launches into one kernel of the given form. Each of its work-items may do the work of
/// several, within `width`.
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
    form: FusionForm,
) -> Result<Outcome> {
    plan.check(modules.len())?;
    let mut outcome = Outcome::of(plan);
    let plain = Arrangement::plain(plan);
    outcome.fused = or_reason(in_form(&plain, modules, trust, width, form, &mut outcome))?;
    if outcome.fused.is_ok() || plan.slots.len() < 2 {
        return Ok(outcome);
    }
    for arrangement in Arrangement::others(plan, modules, form).unwrap_or_default() {
        let mut other = Outcome::of(&arrangement.plan);
        let fused = in_form(&arrangement, modules, Trust::ProofOnly, width, form, &mut other);
        other.fused = or_reason(fused)?;
        let other = arrangement.restored(other);
        if other.fused.is_ok() {
            return Ok(other);
        }
        // Other values might be arranged differently.
        outcome.constants.extend(other.constants);
    }
    Ok(outcome)
}

/// Fuses the launches of an arrangement in a form.
fn in_form(
    arrangement: &Arrangement,
    modules: &[&Module],
    trust: Trust,
    width: Width,
    form: FusionForm,
    outcome: &mut Outcome,
) -> Result<Fused, Obstacle> {
    match form {
        FusionForm::Direct => attempt::attempt(arrangement, modules, trust, width, outcome),
        _ => recompute::attempt(&arrangement.plan, modules, trust, form, outcome),
    }
}

/// Returns the reason for an obstacle that is no fault of the plan or the modules.
fn or_reason(fused: Result<Fused, Obstacle>) -> Result<Result<Fused, String>> {
    match fused {
        Ok(fused) => Ok(Ok(fused)),
        Err(Obstacle::Refusal(why)) => Ok(Err(why)),
        Err(Obstacle::Error(error)) => match error.kind() {
            ErrorKind::Unsupported | ErrorKind::BuildFailed => Ok(Err(error.to_string())),
            _ => Err(error),
        },
    }
}
