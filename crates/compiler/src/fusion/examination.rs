//! Examinations of kernels, each done once: a search over groups of launches and over forms examines the same
//! kernels again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use kiln_spirv::edit::Definitions;
use kiln_spirv::{Module, Result};

use super::examined::{self, Examined, examine};
use crate::analysis::access::Value;
use crate::analysis::affine::Space;
use crate::plan::{Memory, Region, Slot};

/// Modules of a plan, and the examinations of their kernels so far.
#[derive(Debug, Clone, Copy)]
pub struct Programs<'a> {
    /// Modules of the plan, in its order.
    pub modules: &'a [&'a Module],
    /// Examinations so far.
    pub examinations: &'a Examinations,
}

/// Examinations of kernels.
#[derive(Default)]
pub struct Examinations(RefCell<Vec<Examination>>);

impl fmt::Debug for Examinations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Examinations").finish_non_exhaustive()
    }
}

/// Examination of a kernel's function, for certain arguments.
struct Examination {
    kernel: String,
    function: u32,
    module: Module,
    values: Vec<Value>,
    space: Space,
    examined: Examined,
}

impl Examinations {
    /// Examines a slot's kernel, or returns what was found before.
    ///
    /// # Errors
    ///
    /// Fails like [`examine`].
    pub(super) fn of(
        &self,
        slot: &Slot,
        definitions: &Definitions<'_>,
        function: u32,
        space: &Space,
    ) -> Result<Examined> {
        let values = numbered(slot.arguments.iter().map(examined::value));
        let module = definitions.module();
        let is_known = |known: &&Examination| {
            (&known.kernel, known.function, known.space) == (&slot.kernel, function, *space)
                && known.values == values
                && known.module == *module
        };
        if let Some(known) = self.0.borrow().iter().find(is_known) {
            return Ok(known.examined.clone());
        }
        let examined = examine(slot, definitions, function, space)?;
        self.0.borrow_mut().push(Examination {
            kernel: slot.kernel.clone(),
            function,
            module: module.clone(),
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
