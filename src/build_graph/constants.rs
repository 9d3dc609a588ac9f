//! Assigns the specialization constants of a request to the modules of its program.

use super::input::{BuildInput, describe_constants};
use super::link::describe;
use super::specialization::GivenConstant;
use crate::error::{Error, Result};
use crate::source::module::Module;

/// Assigns constants to the inputs whose modules declare them. The first input is the requested module.
pub(super) fn set_constants(
    inputs: &mut [BuildInput],
    library_constants: Vec<(Module, u32, GivenConstant)>,
) -> Result<()> {
    let constants = std::mem::take(&mut inputs[0].constants);
    let types = std::mem::take(&mut inputs[0].constant_types);
    for ((id, bytes), type_name) in constants.into_iter().zip(types) {
        let owner = owner(inputs, id)?;
        inputs[owner].set_constant(id, GivenConstant { bytes, type_name });
    }
    for (module, id, value) in library_constants {
        match inputs.iter_mut().find(|input| input.module.digest() == module.digest()) {
            Some(input) => input.set_constant(id, value),
            None => {
                let linked: Vec<_> = inputs.iter().map(|input| describe(&input.module)).collect();
                return Err(Error::invalid(format!(
                    "specialization constant {id} is set in {}, which is not part of the program; \
                     its modules are: {}",
                    describe(&module),
                    linked.join("; ")
                )));
            }
        }
    }
    Ok(())
}

/// Returns the index of the input whose module declares a constant. The first input is the requested module,
/// which takes precedence.
fn owner(inputs: &[BuildInput], id: u32) -> Result<usize> {
    let has = |at: &usize| inputs[*at].constant(id).is_some();
    // If the only module does not have the constant either, its validation reports that.
    if inputs.len() == 1 || has(&0) {
        return Ok(0);
    }
    let owners: Vec<_> = (1..inputs.len()).filter(has).collect();
    let describe_all = |inputs: &mut dyn Iterator<Item = &BuildInput>| {
        let constants = |input: &BuildInput| {
            let constants = describe_constants(input.module.specialization_constants());
            format!("{} has {constants}", describe(&input.module))
        };
        inputs.map(constants).collect::<Vec<_>>().join("; ")
    };
    match owners[..] {
        [owner] => Ok(owner),
        [] => Err(Error::invalid(format!(
            "none of the linked modules has a specialization constant with id {id}; {}",
            describe_all(&mut inputs.iter())
        ))),
        _ => Err(Error::invalid(format!(
            "several of the linked modules have a specialization constant with id {id}; set it with \
             `specialize_in`, which names the module: {}",
            describe_all(&mut owners.iter().map(|at| &inputs[*at]))
        ))),
    }
}
