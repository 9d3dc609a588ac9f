//! Effects of launches on memory, each launch by itself.

use std::collections::BTreeSet;

use kiln_spirv::{Access, Module, Result};

use super::examination::{Examinations, Programs};
use crate::analysis::access::{self, Kind};
use crate::analysis::affine::Space;
use crate::plan::{Argument, Plan, Slot};

/// Effects of one launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotEffects {
    /// Access to each argument; `None` for an argument that is neither a buffer nor an image, or is not
    /// accessed.
    pub accesses: Vec<Option<Access>>,
    /// Positions of the scalars on whose values `accesses` depends.
    pub constants: BTreeSet<usize>,
    /// Whether the kernel may print.
    pub prints: bool,
    /// Estimated number of instructions that a work-item runs.
    pub instructions: u64,
}

impl SlotEffects {
    /// Returns the effects of a kernel that cannot be examined.
    fn unknown(slot: &Slot) -> Self {
        let worst = |argument: &Argument| argument.memory().map(|_| Access::ReadWrite);
        Self {
            accesses: slot.arguments.iter().map(worst).collect(),
            constants: BTreeSet::new(),
            prints: true,
            instructions: TYPICAL_INSTRUCTIONS,
        }
    }
}

/// Number of instructions that is assumed for a kernel that cannot be examined.
const TYPICAL_INSTRUCTIONS: u64 = 64;

/// Returns the effects of a plan's launches. A launch that cannot be examined may read and write all of its
/// buffers.
pub(super) fn effects<'m>(
    plan: &Plan,
    modules: &[Option<&'m Module>],
    examinations: &Examinations<'m>,
) -> Vec<SlotEffects> {
    let of_slot = |slot: &Slot| {
        let module = modules.get(slot.module).copied().flatten();
        let examined = module.and_then(|module| examined(plan, slot, module, examinations).ok());
        examined.unwrap_or_else(|| SlotEffects::unknown(slot))
    };
    plan.slots.iter().map(of_slot).collect()
}

/// Examines the kernel of one launch.
fn examined<'m>(
    plan: &Plan,
    slot: &Slot,
    module: &'m Module,
    examinations: &Examinations<'m>,
) -> Result<SlotEffects> {
    let alone = Plan {
        modules: plan.modules.get(slot.module).copied().into_iter().collect(),
        slots: vec![Slot { module: 0, ..slot.clone() }],
        ..plan.clone()
    };
    let kernels = Programs { modules: &[module], examinations }.kernels(&alone)?;
    let [kernel] = &*kernels else { return Ok(SlotEffects::unknown(slot)) };
    let definitions = kernel.module.definitions();
    let examined = examinations.of(slot, kernel, &definitions, &Space::new(&slot.range))?;
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
    let instructions = access::weight(&definitions);
    let constants = examined.accesses.constants;
    Ok(SlotEffects { accesses, constants, prints: kernel.prints(), instructions })
}
