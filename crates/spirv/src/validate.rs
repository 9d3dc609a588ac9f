//! Checks once, when a module is parsed, the properties that all reading and rewriting of modules relies on.
//!
//! These are the rules of the specification without which a walk over types or constants might not end.
//! Code that uses modules does not rely on other rules; checking them is left to the drivers.

use rspirv::spirv::Op;

use super::grammar::Shape;
use super::ids::{IdMap, IdSet};
use super::module::{Module, Section};
use super::words::{Instruction, invalid};
use crate::error::{Error, Result};

/// Maximum nesting depth of types. SPIR-V itself has this limit for structs (2.17).
const MAX_DEPTH: u32 = 255;

/// Checks a module. `defined` holds all its ids.
///
/// # Errors
///
/// [`InvalidModule`](crate::ErrorKind::InvalidModule), with the id in the message.
pub(super) fn check(module: &Module, defined: &IdSet) -> Result<()> {
    let mut types = IdSet::of(module);
    for ty in module.section(Section::Globals).iter().filter(is_type) {
        ty.result().map(|id| types.insert(id));
    }
    check_globals(module, defined, &types)?;
    for i in module.functions.iter().flat_map(|function| function.body.iter()) {
        if let Some((ty, id)) = i.result_type().zip(i.result())
            && defined.contains(ty)
            && !types.contains(ty)
        {
            return Err(not_a_type_error(&i, id, ty));
        }
    }
    Ok(())
}

/// Checks that no type or constant is made of itself, and that types are nested at most [`MAX_DEPTH`] levels
/// deep.
///
/// Types and constants come after those that they are made of, and constants after their types (2.4). Exceptions
/// are pointers, which may be declared before their pointees, and be parts of other types before their
/// declaration. Linking may also leave a constant before a variable whose address it holds.
///
/// Types are made of types, except for the lengths of arrays. Otherwise a pointer to a variable could be the
/// type of that variable, and no order of the two would be right.
fn check_globals(module: &Module, defined: &IdSet, types: &IdSet) -> Result<()> {
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
        let is_type = is_type(&instruction);
        let points_to = instruction.op() == Some(Op::TypePointer);
        // A pointer may be used before its declaration, but not in it.
        let must_precede = |used| used == id || !pointers.contains(used);
        let result_type = instruction.result_type().filter(|_| !is_debug_info(&instruction));
        if let Some(ty) = result_type.filter(|&ty| defined.contains(ty)) {
            if !types.contains(ty) {
                return Err(not_a_type_error(&instruction, id, ty));
            }
            if depths.get(ty).is_none() {
                return Err(used_early_error(&instruction, id, ty));
            }
        }
        let mut depth = 0;
        for (at, used) in parts(&instruction).enumerate() {
            let is_length = at == 1 && instruction.op() == Some(Op::TypeArray);
            if is_type && !is_length && defined.contains(used) && !types.contains(used) {
                return Err(not_a_type_error(&instruction, id, used));
            }
            match depths.get(used) {
                Some(inner) if is_type => depth = depth.max(inner + 1),
                Some(_) => {}
                None if points_to || !defined.contains(used) => {}
                None if variables.contains(used) && !is_type => {}
                None if must_precede(used) => return Err(used_early_error(&instruction, id, used)),
                None => {}
            }
        }
        if depth > MAX_DEPTH {
            return Err(invalid(format!(
                "{} of the SPIR-V module, id {id}, is nested deeper than {MAX_DEPTH} levels, which \
                 is the maximum",
                instruction.name()
            )));
        }
        depths.insert(id, depth);
    }
    Ok(())
}

fn is_type(instruction: &Instruction<'_>) -> bool {
    Shape::of(instruction.opcode()).is_type
}

/// Returns the error for an id that is used as a type without being one.
fn not_a_type_error(instruction: &Instruction<'_>, id: u32, used: u32) -> Error {
    invalid(format!(
        "{} of the SPIR-V module, id {id}, uses id {used} as a type, which is not a type; the file is \
         damaged: rebuild it",
        instruction.name()
    ))
}

/// Returns the error for a type or constant that uses an id before its definition.
fn used_early_error(instruction: &Instruction<'_>, id: u32, used: u32) -> Error {
    invalid(format!(
        "{} of the SPIR-V module, id {id}, uses id {used}, which is not defined before it; the \
         file is damaged: rebuild it",
        instruction.name()
    ))
}

/// Returns whether an instruction may be debug information, whose references may point forwards.
fn is_debug_info(instruction: &Instruction<'_>) -> bool {
    matches!(instruction.op(), Some(Op::ExtInst | Op::ExtInstWithForwardRefsKHR))
}

/// Returns the ids of the types and constants that a type or constant is made of, as far as walks follow them.
fn parts(instruction: &Instruction<'_>) -> impl Iterator<Item = u32> {
    let all = usize::MAX;
    let (first, count) = match instruction.op() {
        Some(Op::TypeArray) => (1, 2),
        Some(Op::TypePointer) => (2, 1),
        Some(Op::TypeStruct | Op::TypeFunction) => (1, all),
        Some(_) if is_type(instruction) => {
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
        // Operands follow the operation. The literals that come after them in some operations are left out.
        Some(Op::SpecConstantOp) => match instruction.word(2).and_then(Op::from_u32) {
            Some(Op::CompositeExtract) => (3, 1),
            Some(Op::CompositeInsert | Op::VectorShuffle) => (3, 2),
            _ => (3, all),
        },
        _ => (0, 0),
    };
    instruction.words_from(first).take(count)
}
