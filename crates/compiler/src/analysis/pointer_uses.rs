//! Uses of the addresses of buffers, and of images, in a function: loads and stores, the calculation of other
//! addresses, and all others, which cannot be rewritten.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Definitions, Instruction, Interner, Role, ids, located};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{MemoryAccess, Op, OpenclStd100Op as Extended};

use super::access::{Layout, Layouts, MAX_ALIGN};
use super::pixel_access::{PixelAccess, is_first_level};
use super::vector_access::{VectorAccess, extended};
use crate::plan::PIXEL_BYTES;

/// Returns the loads and stores of a function, and the accesses to pixels, that can go to a variable: their
/// word offsets in its body, each with its declared alignment, or 1. Each of them is assumed to read or write
/// all bytes of its type, so accesses that may skip some bytes are left out.
pub(crate) fn movable(definitions: &Definitions<'_>, function: u32) -> HashMap<u32, u32> {
    let module = definitions.module();
    let layouts = Layouts::of(module, definitions);
    let function = module.functions.iter().find(|known| known.id == function);
    let body = function.into_iter().flat_map(|function| located((0, &function.body)));
    body.filter_map(|(location, i)| {
        if PixelAccess::of(definitions, &i).is_some() {
            return Some((location.offset, PIXEL_BYTES as u32));
        }
        let operands = AccessOperands::of(definitions, &i)?;
        let pointer = definitions.type_of(i.word(operands.pointer)?)?;
        let is_typed = pointer.op() == Some(Op::TypePointer);
        let is_dense = |layout: &Layout| layout.size > 0 && layout.is_dense;
        let is_whole = layouts.get(pointer.word(2)?).is_some_and(is_dense)
            && operands.vector.is_none_or(|vector| vector.span.is_some_and(|span| span.is_dense));
        let alignment = operands.alignment(&i);
        let is_possible = alignment.is_power_of_two() && alignment <= MAX_ALIGN;
        (is_typed && is_whole && is_possible).then_some((location.offset, alignment))
    })
    .collect()
}

/// Operands of a load or a store.
pub(crate) struct AccessOperands {
    /// Index of the operand that is the pointer. In the functions of OpenCL, an offset precedes it.
    pub(crate) pointer: usize,
    /// Index of the operand that is stored; `None` for a load.
    pub(crate) stored: Option<usize>,
    /// Set for a load or store by a function.
    pub(crate) vector: Option<VectorAccess>,
}

impl AccessOperands {
    pub(crate) fn of(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Self> {
        let is_volatile = |word: usize| {
            i.word(word).is_some_and(|mask| mask & MemoryAccess::VOLATILE.bits() != 0)
        };
        match i.op()? {
            Op::Load if !is_volatile(3) => Some(Self { pointer: 2, stored: None, vector: None }),
            Op::Store if !is_volatile(2) => {
                Some(Self { pointer: 0, stored: Some(1), vector: None })
            }
            _ => {
                let vector = VectorAccess::of(definitions, i)?;
                let (pointer, stored) = (vector.pointer(), vector.stored);
                Some(Self { pointer, stored, vector: Some(vector) })
            }
        }
    }

    /// Returns the operands of the access `i` for another address, from which no offset is counted.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
    pub(crate) fn readdressed(
        &self,
        definitions: &Definitions<'_>,
        i: &Instruction<'_>,
        address: u32,
        module: &mut Module,
        interner: &mut Interner,
    ) -> Result<Vec<u32>> {
        let mut words: Vec<_> = i.words_from(0).collect();
        words[self.pointer] = address;
        if i.op() == Some(Op::ExtInst) {
            // The offset precedes the pointer.
            let offset = &mut words[self.pointer - 1];
            let ty = definitions.get(*offset).and_then(|i| i.result_type());
            let ty = ty.ok_or_else(|| Error::unsupported("an offset has no type"))?;
            *offset = interner.constant_id(module, Op::ConstantNull, ty, &[])?;
        }
        Ok(words)
    }

    /// Returns the declared alignment, or 1.
    fn alignment(&self, i: &Instruction<'_>) -> u32 {
        let mask = match i.op() {
            Some(Op::Load) => 3,
            Some(Op::Store) => 2,
            _ => return 1,
        };
        let is_declared = i.word(mask).is_some_and(|word| word & MemoryAccess::ALIGNED.bits() != 0);
        i.word(mask + 1).filter(|_| is_declared).unwrap_or(1)
    }
}

/// Uses of a parameter in a function. Instructions are identified by their word offset in its body.
#[derive(Clone, Debug)]
pub(crate) struct Uses {
    /// Instructions to drop, such as the calculation of addresses.
    pub(crate) dropped: HashSet<u32>,
    /// Ids of the addresses.
    pub(crate) pointers: HashSet<u32>,
    /// Ids of the variables that addresses are spilled to, and of casts of these variables.
    pub(crate) variables: HashSet<u32>,
    /// Instructions that ask for the size of an image.
    pub(crate) sizes: HashSet<u32>,
}

/// Returns the uses of a parameter all accesses through which are known. `is_known` takes the word offset of an
/// access in the function's body.
///
/// # Errors
///
/// Fails with the reason if something else uses it, worded to follow the kernel's name.
pub(crate) fn uses(
    definitions: &Definitions<'_>,
    function: u32,
    parameter: usize,
    is_known: impl Fn(u32) -> bool,
) -> Result<Uses, String> {
    let function = definitions.module().functions.iter().find(|known| known.id == function);
    let body = function.map(|function| &function.body).ok_or("has no function")?;
    let parameters = body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
    let parameter = parameters.filter_map(|i| i.result()).nth(parameter);
    let parameter = parameter.ok_or("has no such parameter")?;
    let ty = definitions.type_of(parameter).and_then(|ty| ty.op());
    let is_image = ty == Some(Op::TypeImage);
    let mut pointers = HashSet::from([parameter]);
    let mut dropped = HashSet::new();
    // Variables that such pointers are spilled to, and casts of these variables that mark their lifetimes.
    let (mut variables, mut sizes) = (HashSet::new(), HashSet::new());
    loop {
        let before = (pointers.len(), variables.len());
        for (location, i) in located((0, body)) {
            let used = use_in(definitions, &i, &pointers, &variables)?;
            if i.op() == Some(Op::Variable) && i.result().is_some_and(|id| variables.contains(&id))
            {
                dropped.insert(location.offset);
            }
            match used {
                None => {}
                Some(Used::Address) => {
                    pointers.extend(i.result());
                    dropped.insert(location.offset);
                }
                Some(Used::Spill(variable)) => {
                    variables.insert(variable);
                    dropped.insert(location.offset);
                }
                Some(Used::Mark) => {
                    variables.extend(i.result());
                    dropped.insert(location.offset);
                }
                Some(Used::Nothing) => _ = dropped.insert(location.offset),
                Some(Used::Access) if is_known(location.offset) => {}
                Some(Used::Access) => return Err("has accesses that may never run".into()),
                Some(Used::Size) => _ = sizes.insert(location.offset),
                Some(Used::Otherwise) => {
                    let what = if is_image { "the image" } else { "its address" };
                    return Err(format!("uses {what} in {}", i.name()));
                }
            }
        }
        if before == (pointers.len(), variables.len()) {
            return Ok(Uses { dropped, pointers, variables, sizes });
        }
    }
}

/// Use of an address, or of a variable that addresses are stored to.
enum Used {
    /// Operand of an instruction that calculates another address from it.
    Address,
    /// Pointer of a load or a store.
    Access,
    /// Value stored to a variable, given by its id.
    Spill(u32),
    /// Operand of a cast of such a variable, for the instructions that mark its lifetime.
    Mark,
    /// Operand of an instruction that is dropped, such as a lifetime marker.
    Nothing,
    /// Question for the size of an image.
    Size,
    /// Any other use, which cannot be rewritten.
    Otherwise,
}

/// Returns how an instruction uses the known addresses, or the variables that they are stored to; `None` if it
/// uses none of them.
fn use_in(
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    pointers: &HashSet<u32>,
    variables: &HashSet<u32>,
) -> Result<Option<Used>, String> {
    let (mut pointer, mut variable) = (Vec::new(), Vec::new());
    ids(i, definitions, |word, role| {
        let id = i.word(word).unwrap_or_default();
        if role == Role::Operand && pointers.contains(&id) {
            pointer.push(word);
        }
        if role == Role::Operand && variables.contains(&id) {
            variable.push(word);
        }
    })
    .map_err(|error| error.to_string())?;
    Ok(Some(match (pointer.as_slice(), variable.as_slice()) {
        ([], []) => return Ok(None),
        (&[word], []) => used(definitions, i, word),
        ([], &[word]) => match i.op() {
            Some(Op::Load) => Used::Address,
            Some(Op::LifetimeStart | Op::LifetimeStop) => Used::Nothing,
            Some(Op::Bitcast) if word == 2 => Used::Mark,
            _ => Used::Otherwise,
        },
        (&[1], &[0]) if i.op() == Some(Op::Store) => Used::Nothing,
        _ => Used::Otherwise,
    }))
}

/// Whether an operation calculates an address from another one, its first operand, or converts an address.
pub(crate) fn is_address(op: Op) -> bool {
    matches!(
        op,
        Op::AccessChain
            | Op::InBoundsAccessChain
            | Op::PtrAccessChain
            | Op::InBoundsPtrAccessChain
            | Op::PtrCastToGeneric
            | Op::GenericCastToPtr
            | Op::CopyObject
            | Op::Bitcast
    )
}

/// Returns how an instruction uses the address that is its operand `word`.
fn used(definitions: &Definitions<'_>, i: &Instruction<'_>, word: usize) -> Used {
    match i.op() {
        Some(op) if word == 2 && is_address(op) => Used::Address,
        Some(Op::Load) if word == 2 => Used::Access,
        Some(Op::Store) if word == 0 => Used::Access,
        Some(Op::Store) if word == 1 => {
            let variable = i.word(0).and_then(|id| definitions.get(id));
            match variable.filter(|variable| variable.op() == Some(Op::Variable)) {
                Some(variable) if variable.word(3).is_none() => {
                    variable.result().map_or(Used::Otherwise, Used::Spill)
                }
                _ => Used::Otherwise,
            }
        }
        Some(Op::SampledImage) if word == 2 => Used::Address,
        Some(Op::ImageRead | Op::ImageSampleExplicitLod) if word == 2 => Used::Access,
        Some(Op::ImageWrite) if word == 0 => Used::Access,
        Some(Op::ImageQuerySize | Op::ImageQuerySizeLod) if is_first_level(definitions, i) => {
            Used::Size
        }
        Some(Op::ExtInst) => match VectorAccess::of(definitions, i) {
            Some(access) if word == access.pointer() => Used::Access,
            None if extended(definitions, i) == Some(Extended::prefetch) => Used::Nothing,
            _ => Used::Otherwise,
        },
        _ => Used::Otherwise,
    }
}
