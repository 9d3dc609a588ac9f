//! Form in which equal launches that do not depend on each other run as one kernel, each in work-groups of its
//! own.
//!
//! The fused kernel has the work-groups of all launches, its members, one member after another along one
//! dimension. That is a further dimension if the launches have fewer than three, so that the ids in their own
//! dimensions stay the same; else it is the third. Each work-group
//!
//! 1. calculates the number of its member from its id,
//! 2. selects the [arguments](entry) of the member,
//! 3. and calls the kernel, which [reads](remap::take_portion) the ids and sizes of its own launch.
//!
//! All work-items of a work-group run the same member, so that barriers and local memory keep their meaning. The
//! members run in any order, so they have to be [independent].

mod entry;
mod independence;
mod range;

use std::collections::BTreeSet;

use kiln_spirv::{Error, Result};

use super::attempt::{self, ONCE, Obstacle};
use super::contraction;
use super::examination::Programs;
use super::legality::Judgement;
use super::outcome::{Fused, Outcome, SlotFindings, Trust};
use crate::analysis::access::Accesses;
use crate::analysis::declaration::Parameter;
use crate::plan::Plan;
use crate::transform::extract::Kernel;
use crate::transform::lower_version;
use crate::transform::merge::Part;
use crate::transform::modes::Modes;
use crate::transform::remap;
use range::Batch;

/// Maximum number of launches that run as one kernel.
pub(super) const MAX_MEMBERS: usize = 64;

/// Fuses the launches of a plan in the form `Batched`, and notes in `outcome` what was found on the way.
pub(super) fn attempt(
    plan: &Plan,
    programs: Programs<'_, '_>,
    trust: Trust,
    outcome: &mut Outcome,
) -> Result<Fused, Obstacle> {
    // Only scalars that are compared matter: none is compiled into the kernel.
    outcome.injected.clear();
    check_alike(plan)?;
    let [first, ..] = &*plan.slots else {
        return Err(Error::invalid("there are no launches to fuse").into());
    };
    let alone = Plan { slots: vec![first.clone()], ..plan.clone() };
    let kernels = programs.kernels(&alone)?;
    let [kernel] = &*kernels else { return Err(Error::invalid("a launch has no kernel").into()) };
    if kernel.prints() {
        return Err(Obstacle::Refusal(format!(
            "`{}` prints, and the output of launches that run side by side would be interleaved",
            kernel.name
        )));
    }
    let definitions = kernel.module.definitions();
    let parameters = Parameter::all(&definitions, kernel.function);
    outcome.slots = plan.slots.iter().map(|_| findings(&parameters)).collect();
    let batch = Batch::of(first, kernel, plan.slots.len())?;
    let accesses = independence::prove(plan, kernel, &parameters, outcome)?;
    check_separate_function(plan, kernel, &accesses, trust)?;
    let why = || Some("each launch uses it in work-groups of its own".to_owned());
    let memories = plan.memories().into_iter();
    outcome.judgements = memories.map(|memory| Judgement::proven(plan, memory, why())).collect();
    assemble(plan, kernel, &batch, outcome)
}

/// Checks that the launches are equal up to the values of their arguments.
fn check_alike(plan: &Plan) -> Result<(), Obstacle> {
    let refuse = |why: String| Err(Obstacle::Refusal(why));
    let [first, others @ ..] = &*plan.slots else { return Ok(()) };
    let name = &first.kernel;
    if others.is_empty() || others.len() >= MAX_MEMBERS {
        let count = plan.slots.len();
        return refuse(format!("2 to {MAX_MEMBERS} launches are batched, not {count}"));
    }
    if first.takes_objects() {
        return refuse(format!("`{name}` takes an image or a sampler"));
    }
    if first.range.offset().iter().any(|&offset| offset != 0) {
        let offset = first.range.offset();
        return refuse(format!("only launches without an offset are batched, not {offset:?}"));
    }
    let Some(other) = others.iter().find(|other| !other.is_like(first)) else { return Ok(()) };
    let is_same_code = (&other.kernel, other.module, &other.constants)
        == (&first.kernel, first.module, &first.constants);
    if !is_same_code {
        return refuse(format!(
            "only launches of the same kernel are batched, not `{name}` and `{}`",
            other.kernel
        ));
    }
    refuse(match other.range == first.range {
        false => {
            format!("only launches over the same nd-range are batched, unlike two of `{name}`")
        }
        true => format!("two launches of `{name}` have arguments of different sizes or kinds"),
    })
}

/// Fails where a compiler of [`Target::separate_functions`](crate::plan::Target::separate_functions) may calculate
/// something else in another nd-range.
fn check_separate_function(
    plan: &Plan,
    kernel: &Kernel,
    accesses: &Accesses,
    trust: Trust,
) -> Result<(), Obstacle> {
    let mut operations = kernel.operations(&kernel.module.definitions());
    operations.long_sums = accesses.has_long_sums;
    let is_exact = !operations.depend_on_range() || trust == Trust::Caller;
    if !plan.target.separate_functions || is_exact {
        return Ok(());
    }
    Err(Obstacle::Refusal(format!(
        "`{}` calculates estimates, sums in a loop or lengths in double precision, which the device's \
         compiler computes differently in another nd-range",
        kernel.name
    )))
}

fn findings(parameters: &[Parameter]) -> SlotFindings {
    let names = parameters.iter().map(|parameter| parameter.name.clone());
    SlotFindings { parameters: names.collect(), is_remapped: false, guard: None }
}

/// Adapts the kernel to the nd-range of the batch, and adds the entry point that calls it.
fn assemble(
    plan: &Plan,
    kernel: &Kernel,
    batch: &Batch,
    outcome: &Outcome,
) -> Result<Fused, Obstacle> {
    let mut part = Part::new(kernel, 0, |_, _| Ok(()))?;
    remap::take_portion(&mut part.module, &kernel.name, &batch.own, batch.dimension)?;
    let mut whole = Part::merge(&[part])?;
    let operations = kernel.operations(&kernel.module.definitions());
    let needs_separation =
        || whole.has_barriers() || contraction::depends_on_separation(&[operations]);
    if plan.target.separate_functions && needs_separation() {
        whole.keep_apart();
    }
    lower_version::lower(&mut whole.module, plan.target.version)?;
    let modes = Modes::join([(kernel.name.as_str(), &kernel.modes)].into_iter())?;
    let entry = entry::add(&mut whole, plan, batch, &outcome.constants, &modes)?;
    let (local_bytes, parameter_bytes) = attempt::sizes(plan, &whole.module, &entry.parameters);
    Ok(Fused {
        module: whole.module,
        kernel: entry.name,
        range: batch.whole,
        parameters: entry.parameters,
        local_bytes,
        private_bytes: 0,
        runs: vec![ONCE; plan.slots.len()],
        parameter_bytes,
        internalized: Vec::new(),
        local: BTreeSet::new(),
        barriers: BTreeSet::new(),
    })
}
