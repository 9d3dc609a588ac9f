//! Offsets that a kernel adds to the addresses in its parameters.
//!
//! A driver takes a part of a buffer as an argument only if the part begins at a multiple of the device's
//! alignment. For another part, the kernel is given the memory from the multiple before it on, and the number of
//! bytes from there to the part as a parameter of its own.

use kiln_spirv::edit::{Class, Instruction, Interner, Section, Stream};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Capability, Op};

use super::super::kernel::{Kernel, ParameterMemory};
use crate::analysis::access::Layouts;
use crate::analysis::declaration::Declaration;
use crate::transform::merge::require;

/// Adds 64-bit parameters to the kernel's function, after all others: the numbers of bytes that it adds to the
/// addresses in the parameters at `positions`.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if a parameter is no buffer.
pub(super) fn add_offsets(module: &mut Module, kernel: &Kernel, positions: &[usize]) -> Result<()> {
    if positions.is_empty() {
        return Ok(());
    }
    require(module, Capability::Int64);
    require(module, Capability::Int8);
    let mut interner = Interner::of(module);
    let long = interner.type_id(module, Op::TypeInt, &[64, 0])?;
    let byte = interner.type_id(module, Op::TypeInt, &[8, 0])?;
    let at = module.functions.iter().position(|function| function.id == kernel.function);
    let Some(at) = at else { return Err(missing_slice_error(kernel)) };
    let body = std::mem::take(&mut module.functions[at].body);
    let mut declaration = Declaration::of(&body);
    let mut moves = Stream::default();
    for &position in positions {
        let is_buffer = kernel.parameters.get(position).map(|known| known.memory)
            == Some(ParameterMemory::Buffer);
        let parameter = declaration.parameters.get_mut(position).filter(|_| is_buffer);
        let Some(parameter) = parameter else { return Err(missing_slice_error(kernel)) };
        let (own, ty) = *parameter;
        let class = module.definitions().get(ty).and_then(|ty| ty.storage_class());
        let Some(class) = class else { return Err(missing_slice_error(kernel)) };
        let bytes = interner.type_id(module, Op::TypePointer, &[class, byte])?;
        let (given, offset) = (module.fresh_id()?, module.fresh_id()?);
        *parameter = (given, ty);
        declaration.parameters.push((offset, long));
        move_pointer(module, &mut moves, (ty, bytes), (given, own), offset)?;
        rename(module, own, given);
    }
    let mut new = Stream::default();
    let mut is_moved = false;
    for i in body.iter() {
        if !i.class().is_some_and(Class::precedes_code) && !std::mem::replace(&mut is_moved, true) {
            new.append(&moves);
        }
        if !declaration.rewrite(&i, module, &mut interner, &mut new)? {
            new.push_instruction(&i);
        }
    }
    module.functions[at].body = new;
    Ok(())
}

/// Returns the number of bytes of which an address in the parameter at `position` has to be a multiple, by the type
/// that it points to.
pub(super) fn alignment(kernel: &Kernel, position: usize) -> usize {
    let definitions = kernel.module.definitions();
    let function = kernel.module.functions.iter().find(|known| known.id == kernel.function);
    let parameters = function.map(|function| Declaration::of(&function.body).parameters);
    let ty = parameters.as_ref().and_then(|all| Some(all.get(position)?.1));
    let pointee = ty.and_then(|ty| definitions.get(ty)?.pointee());
    let layout = pointee.and_then(|pointee| {
        Layouts::of(&kernel.module, &definitions).get(pointee).map(|layout| layout.align)
    });
    let natural = layout.unwrap_or(1);
    let declared = kernel.parameters.get(position).map_or(1, |known| known.alignment);
    usize::try_from(natural.max(declared)).unwrap_or(1)
}

/// Lets `own` be the address `given`, moved by `offset` bytes.
fn move_pointer(
    module: &mut Module,
    new: &mut Stream,
    (ty, bytes): (u32, u32),
    (given, own): (u32, u32),
    offset: u32,
) -> Result<()> {
    if ty == bytes {
        new.push(Op::InBoundsPtrAccessChain, [ty, own, given, offset]);
        return Ok(());
    }
    let (start, moved) = (module.fresh_id()?, module.fresh_id()?);
    new.push(Op::Bitcast, [bytes, start, given]);
    new.push(Op::InBoundsPtrAccessChain, [bytes, moved, start, offset]);
    new.push(Op::Bitcast, [ty, own, moved]);
    Ok(())
}

/// Gives the names and decorations of one id to another one.
fn rename(module: &mut Module, from: u32, to: u32) {
    for section in [Section::Names, Section::Annotations] {
        let mut new = Stream::default();
        for i in module.section(section).iter() {
            let is_own = i.target() == Some(from) && names_its_target(&i);
            match i.op().filter(|_| is_own) {
                Some(op) => new.push(op, [to].into_iter().chain(i.words_from(1))),
                None => new.push_instruction(&i),
            }
        }
        *module.section_mut(section) = new;
    }
}

/// Returns whether the first operand of an annotation is the id that it is about.
fn names_its_target(i: &Instruction<'_>) -> bool {
    i.op() == Some(Op::Name) || i.class() == Some(Class::Decoration)
}

fn missing_slice_error(kernel: &Kernel) -> Error {
    Error::unsupported(format!(
        "`{}`: an argument that is a slice of a buffer is no buffer in the kernel's code",
        kernel.name
    ))
}
