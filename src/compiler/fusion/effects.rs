//! Effects of launches on memory, each launch by itself.

use super::access::Kind;
use super::affine::Space;
use super::attempt::examine;
use super::extract;
use super::plan::{Argument, Plan, Slot};
use crate::compiler::signature::Access;
use crate::compiler::spirv::Module;
use crate::error::Result;

/// Effects of one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotEffects {
    /// Access to each argument; `None` for an argument that is not a buffer, or is not accessed.
    pub(crate) accesses: Vec<Option<Access>>,
    /// Number of instructions of the kernel and of the functions that it calls.
    pub(crate) instructions: u64,
}

/// Number of instructions that a kernel counts which cannot be examined.
const TYPICAL_INSTRUCTIONS: u64 = 64;

/// Returns the effects of a plan's launches. A launch that cannot be examined may read and write all of its
/// buffers.
pub(crate) fn effects(plan: &Plan, modules: &[Option<&Module>]) -> Vec<SlotEffects> {
    let of_slot = |slot: &Slot| {
        let module = modules.get(slot.module).copied().flatten();
        module.and_then(|module| examined(plan, slot, module).ok()).unwrap_or_else(|| SlotEffects {
            accesses: slot.arguments.iter().map(worst_access).collect(),
            instructions: TYPICAL_INSTRUCTIONS,
        })
    };
    plan.slots.iter().map(of_slot).collect()
}

/// Returns the access to an argument of an unknown kernel.
fn worst_access(argument: &Argument) -> Option<Access> {
    matches!(argument, Argument::Buffer(_)).then_some(Access::ReadWrite)
}

/// Examines the kernel of one launch.
fn examined(plan: &Plan, slot: &Slot, module: &Module) -> Result<SlotEffects> {
    let alone = Plan {
        modules: plan.modules.get(slot.module).copied().into_iter().collect(),
        slots: vec![Slot { module: 0, ..slot.clone() }],
        ..plan.clone()
    };
    let kernels = extract::kernels(&alone, &[module])?;
    let [kernel] = &*kernels else {
        return Ok(SlotEffects { accesses: Vec::new(), instructions: 0 });
    };
    let definitions = kernel.module.definitions();
    let examined = examine(slot, &definitions, kernel.function, &Space::new(&slot.range))?;
    let mut accesses = vec![None; slot.arguments.len()];
    for access in &examined.accesses.all {
        let Some(known) = accesses.get_mut(access.parameter) else { continue };
        let access = match access.kind {
            Kind::Read => Access::Read,
            Kind::Write => Access::Write,
            Kind::Atomic | Kind::Escape => Access::ReadWrite,
        };
        *known = match *known {
            Some(known) if known != access => Some(Access::ReadWrite),
            _ => Some(access),
        };
    }
    let functions = kernel.module.functions.iter();
    let instructions = functions.map(|function| function.body.iter().count() as u64).sum();
    Ok(SlotEffects { accesses, instructions })
}
