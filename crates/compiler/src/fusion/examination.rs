//! Examinations of kernels, each done once: a search over groups of launches and over forms examines the same
//! kernels again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use kiln_spirv::edit::Definitions;
use kiln_spirv::{Module, Result};

use super::examined::{self, Examined, examine};
use crate::analysis::access::Value;
use crate::analysis::affine::Space;
use crate::plan::{Memory, Plan, Region, Slot};
use crate::transform::extract::{Extracts, Kernel};

/// Modules of a plan, and the examinations of their kernels so far.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'a, 'm> {
    /// Modules of the plan, in its order.
    pub modules: &'a [&'m Module],
    /// Examinations so far, of any plans with these modules.
    pub examinations: &'a Examinations<'m>,
}

/// Kernels of modules, and their examinations.
#[derive(Default)]
pub struct Examinations<'m> {
    extracts: RefCell<Extracts<'m>>,
    examined: RefCell<Vec<Examination>>,
}

impl fmt::Debug for Examinations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Examinations").finish_non_exhaustive()
    }
}

/// Examination of a kernel for certain arguments.
struct Examination {
    kernel: Arc<Kernel>,
    values: Vec<Value>,
    space: Space,
    examined: Examined,
}

impl Programs<'_, '_> {
    /// Returns the kernels of a plan's slots, in order.
    ///
    /// # Errors
    ///
    /// Fails like [`Extracts::kernels`].
    pub(super) fn kernels(&self, plan: &Plan) -> Result<Vec<Arc<Kernel>>> {
        self.examinations.extracts.borrow_mut().kernels(plan, self.modules)
    }
}

impl Examinations<'_> {
    /// Examines a slot's kernel, or returns what was found before.
    ///
    /// # Errors
    ///
    /// Fails like [`examine`].
    pub(super) fn of(
        &self,
        slot: &Slot,
        kernel: &Arc<Kernel>,
        definitions: &Definitions<'_>,
        space: &Space,
    ) -> Result<Examined> {
        let values = numbered(slot.arguments.iter().map(examined::value));
        let is_known = |known: &&Examination| {
            Arc::ptr_eq(&known.kernel, kernel) && known.space == *space && known.values == values
        };
        if let Some(known) = self.examined.borrow().iter().find(is_known) {
            return Ok(known.examined.clone());
        }
        let examined = examine(slot, definitions, kernel.function, space)?;
        self.examined.borrow_mut().push(Examination {
            kernel: Arc::clone(kernel),
            values,
            space: *space,
            examined: examined.clone(),
        });
        Ok(examined)
    }
}

/// Numbers the memories of the buffers in the order of the arguments. What is found about a kernel does not
/// depend on the numbers of its memories, only on which of them are the same.
fn numbered(values: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut numbers = HashMap::new();
    let numbered = values.map(|value| match value {
        Value::Buffer(region) => {
            let next = Memory(numbers.len() as u32);
            let memory = *numbers.entry(region.memory).or_insert(next);
            Value::Buffer(Region { memory, ..region })
        }
        other => other,
    });
    numbered.collect()
}
