//! Values of constants.

use kiln_spirv::Module;
use kiln_spirv::edit::Definitions;
use rspirv::spirv::Op;

use super::access::Layouts;

/// Returns the value of a constant index, which is signed.
pub(crate) fn constant(definitions: &Definitions<'_>, id: u32) -> Option<i128> {
    let i = definitions.get(id)?;
    let ty = definitions.get(i.result_type()?).filter(|ty| ty.op() == Some(Op::TypeInt))?;
    match i.op()? {
        Op::ConstantNull => Some(0),
        Op::Constant => {
            let bits = i.literal()?.number()?;
            let unused = 64_u32.checked_sub(ty.width()?).filter(|&unused| unused < 64)?;
            Some(((bits << unused).cast_signed() >> unused).into())
        }
        _ => None,
    }
}

/// Returns the width of an address in bits.
pub(crate) fn address_width(module: &Module) -> u32 {
    Layouts::of(module, &module.definitions()).address as u32 * 8
}
