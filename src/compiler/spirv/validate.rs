//! Checks once, when a module is parsed, the properties that all reading and rewriting of modules relies on.
//!
//! The rules are those of the specification without which a walk over types or constants need not end.
//! All else is read with care where it is used, and left to drivers to judge.

use rspirv::spirv::Op;

use super::grammar::Shape;
use super::index::{IdMap, IdSet};
use super::module::{Module, Section};
use super::words::{Instruction, invalid};
use crate::error::{Error, Result};

/// Maximum depth of types within types: that of structs, which is a limit of SPIR-V itself (2.17).
const MAX_DEPTH: u32 = 255;

/// Checks that no type or constant rests on itself, nor a type on too many others. `defined` are all ids
/// of the module.
///
/// Types and constants stand behind those that they are made of (2.4), except that pointers may be
/// declared before what they point to, and used before they are declared. Linking may leave a constant
/// before a variable whose address it has.
///
/// # Errors
///
/// [`InvalidImage`](crate::ErrorKind::InvalidImage), by the id.
pub(super) fn check_globals(module: &Module, defined: &IdSet) -> Result<()> {
    let globals = module.section(Section::Globals);
    let (mut pointers, mut variables) = (IdSet::of(module), IdSet::of(module));
    for instruction in globals.iter() {
        let set = match instruction.op() {
            Some(Op::TypePointer) => &mut pointers,
            Some(Op::Variable | Op::UntypedVariableKHR) => &mut variables,
            _ => continue,
        };
        instruction.result().map(|id| set.insert(id));
    }
    let mut depths = IdMap::<u32>::of(module);
    for instruction in globals.iter() {
        let Some(id) = instruction.result() else { continue };
        let is_type = Shape::of(instruction.opcode()).is_type;
        let points_to = instruction.op() == Some(Op::TypePointer);
        let is_late = |used| used == id || !pointers.contains(used);
        let ty = instruction.result_type().filter(|_| !is_of_debugger(&instruction));
        if let Some(ty) = ty.filter(|&ty| depths.get(ty).is_none() && defined.contains(ty))
            && is_late(ty)
        {
            return Err(made_of(&instruction, id, ty));
        }
        let mut depth = 0;
        for used in parts(&instruction) {
            match depths.get(used) {
                Some(of) if is_type => depth = depth.max(of + 1),
                Some(_) => {}
                None if points_to || !defined.contains(used) => {}
                None if variables.contains(used) && !is_type => {}
                None if is_late(used) => return Err(made_of(&instruction, id, used)),
                None => {}
            }
        }
        if depth > MAX_DEPTH {
            return Err(invalid(format!(
                "{} of the SPIR-V module, id {id}, has more than {MAX_DEPTH} others within each other, \
                 which is the maximum",
                instruction.name()
            )));
        }
        depths.insert(id, depth);
    }
    Ok(())
}

fn made_of(instruction: &Instruction<'_>, id: u32, used: u32) -> Error {
    invalid(format!(
        "{} of the SPIR-V module, id {id}, is made of id {used}, which is defined by it or behind it; the \
         file is damaged: make it anew",
        instruction.name()
    ))
}

/// Debug information refers forwards as it likes.
fn is_of_debugger(instruction: &Instruction<'_>) -> bool {
    matches!(instruction.op(), Some(Op::ExtInst | Op::ExtInstWithForwardRefsKHR))
}

/// The ids of the types and constants that one is made of, as far as walks follow them.
fn parts(instruction: &Instruction<'_>) -> impl Iterator<Item = u32> {
    let all = usize::MAX;
    let (first, count) = match instruction.op() {
        Some(Op::TypeArray) => (1, 2),
        Some(Op::TypePointer) => (2, 1),
        Some(Op::TypeStruct | Op::TypeFunction) => (1, all),
        Some(_) if Shape::of(instruction.opcode()).is_type => {
            let is_made_of_one = matches!(
                instruction.op(),
                Some(
                    Op::TypeVector
                        | Op::TypeMatrix
                        | Op::TypeRuntimeArray
                        | Op::TypeImage
                        | Op::TypeSampledImage
                )
            );
            (1, usize::from(is_made_of_one))
        }
        Some(Op::ConstantComposite | Op::SpecConstantComposite) => (2, all),
        // Behind the operation. Of some, literals follow.
        Some(Op::SpecConstantOp) => match instruction.word(2).and_then(Op::from_u32) {
            Some(Op::CompositeExtract) => (3, 1),
            Some(Op::CompositeInsert | Op::VectorShuffle) => (3, 2),
            _ => (3, all),
        },
        _ => (0, 0),
    };
    instruction.words_from(first).take(count)
}
