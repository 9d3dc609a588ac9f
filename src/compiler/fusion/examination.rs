//! Examinations of kernels, each done once: a search over groups of launches and over forms examines the same kernels
//! again and again.

use std::cell::RefCell;
use std::collections::HashMap;

use rspirv::spirv::{Op, StorageClass};

use super::access::{self, Accesses, Value};
use super::affine::Space;
use super::dependence::{Examined, Parameter};
use super::explain;
use super::plan::{Memory, Region, Slot};
use super::{extract, promote};
use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Definitions, Section};
use crate::error::Result;

/// Modules of a plan, and the examinations of their kernels so far.
#[derive(Clone, Copy)]
pub(crate) struct Programs<'a> {
    pub(crate) modules: &'a [&'a Module],
    pub(crate) examinations: &'a Examinations,
}

/// Examinations of kernels.
#[derive(Default)]
pub(crate) struct Examinations(RefCell<Vec<Examination>>);

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
        let values = numbered(slot.arguments.iter().map(extract::value));
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

/// Numbers the memories of the buffers in the order of the arguments. What is found about a kernel does not depend
/// on the numbers of its memories, only on which of them are the same.
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

/// Examines a slot's kernel.
///
/// # Errors
///
/// Fails like [`access::analyse`].
fn examine(
    slot: &Slot,
    definitions: &Definitions<'_>,
    function: u32,
    space: &Space,
) -> Result<Examined> {
    let accesses = extract::accesses(slot, definitions, function, space)?;
    Ok(examined(slot, definitions, function, accesses))
}

/// Returns what is known of a slot's kernel, with its accesses.
pub(super) fn examined(
    slot: &Slot,
    definitions: &Definitions<'_>,
    function: u32,
    accesses: Accesses,
) -> Examined {
    let module = definitions.module();
    let body = module.functions.iter().find(|known| known.id == function);
    let body = body.into_iter().flat_map(|function| function.body.iter());
    let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter));
    let names: HashMap<_, _> = module
        .section(Section::Names)
        .iter()
        .filter(|i| i.op() == Some(Op::Name))
        .filter_map(|i| Some((i.word(0)?, i.string(1)?.to_owned())))
        .collect();
    let parameters = parameters.map(|parameter| Parameter {
        name: parameter.result().and_then(|id| names.get(&id).cloned()),
        is_constant: parameter.word(0).and_then(|ty| definitions.get(ty)?.word(1))
            == Some(StorageClass::UniformConstant as u32),
    });
    let parameters: Vec<_> = parameters.collect();
    Examined {
        kernel: slot.kernel.clone(),
        function,
        origins: explain::origins(definitions, function, &accesses.all, &parameters),
        accesses,
        parameters,
        movable: promote::movable(definitions, function),
        groups: access::group_use(definitions, function),
    }
}
