//! Analysis of one slot's kernel: its accesses, its parameters, and their origins.

use std::collections::HashMap;

use kiln_spirv::Result;
use kiln_spirv::edit::Definitions;

use crate::analysis::access::{self, Accesses, GroupUse, Value};
use crate::analysis::affine::Space;
use crate::analysis::declaration::Parameter;
use crate::analysis::explain::{self, Origin};
use crate::analysis::pointer_uses;
use crate::plan::{Argument, Slot};

/// Results of the analysis of a slot's kernel.
#[derive(Clone)]
pub(super) struct Examined {
    pub(super) kernel: String,
    pub(super) function: u32,
    pub(super) accesses: Accesses,
    pub(super) parameters: Vec<Parameter>,
    /// Declared alignment of each instruction whose bytes can be moved elsewhere, by the word of the
    /// function's body.
    pub(super) movable: HashMap<u32, u32>,
    pub(super) groups: GroupUse,
    /// Origins of the accesses, for messages, by the word of the function's body.
    pub(super) origins: HashMap<u32, Origin>,
}

/// Analyses a slot's kernel.
///
/// # Errors
///
/// Fails like [`access::analyse`].
pub(super) fn examine(
    slot: &Slot,
    definitions: &Definitions<'_>,
    function: u32,
    space: &Space,
) -> Result<Examined> {
    let accesses = accesses(slot, definitions, function, space)?;
    Ok(with_accesses(slot, definitions, function, accesses))
}

/// Returns what is known of a slot's kernel whose accesses are known.
pub(super) fn with_accesses(
    slot: &Slot,
    definitions: &Definitions<'_>,
    function: u32,
    accesses: Accesses,
) -> Examined {
    let parameters = Parameter::all(definitions, function);
    Examined {
        kernel: slot.kernel.clone(),
        function,
        origins: explain::origins(definitions, function, &accesses.all, &parameters),
        accesses,
        parameters,
        movable: pointer_uses::movable(definitions, function),
        groups: access::group_use(definitions, function),
    }
}

/// Analyses the accesses of a slot's kernel to its buffers.
pub(super) fn accesses(
    slot: &Slot,
    definitions: &Definitions<'_>,
    function: u32,
    space: &Space,
) -> Result<Accesses> {
    let values: Vec<_> = slot.arguments.iter().map(value).collect();
    access::analyse(definitions, function, &values, space)
}

/// Returns what the analysis of accesses knows of an argument.
pub(super) fn value(argument: &Argument) -> Value {
    match argument {
        Argument::Buffer(region) => Value::Buffer(*region),
        Argument::Scalar(bytes) => Value::Scalar(bytes.clone()),
        Argument::Image(image) => Value::Image(image.shape),
        Argument::Sampler(sampler) => Value::Sampler(*sampler),
        Argument::Local(_) => Value::Other,
    }
}
