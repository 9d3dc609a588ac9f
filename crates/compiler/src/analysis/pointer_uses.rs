//! Uses of the addresses of buffers, and of images, in a function: loads and stores, the calculation of other
//! addresses, and all others, which cannot be rewritten.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Definitions, Instruction, Interner, Row, View, located, operand_ids};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

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
        let pointee = definitions.type_of(operands.pointer)?.pointee()?;
        let is_dense = |layout: &Layout| layout.size > 0 && layout.is_dense;
        let is_whole = layouts.get(pointee).is_some_and(is_dense)
            && operands.vector.is_none_or(|vector| vector.span.is_some_and(|span| span.is_dense));
        let alignment = operands.alignment;
        let is_possible = alignment.is_power_of_two() && alignment <= MAX_ALIGN;
        (is_whole && is_possible).then_some((location.offset, alignment))
    })
    .collect()
}

/// Operands of a load or a store.
pub(crate) struct AccessOperands {
    /// Id of the pointer. In the functions of OpenCL, an offset precedes it.
    pub(crate) pointer: u32,
    /// Id of the value that is stored; `None` for a load.
    pub(crate) stored: Option<u32>,
    /// Set for a load or store by a function.
    pub(crate) vector: Option<VectorAccess>,
    /// Declared alignment, or 1.
    alignment: u32,
}

impl AccessOperands {
    pub(crate) fn of(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Self> {
        let (pointer, stored, access) = match i.view() {
            View::Load { pointer, access } => (pointer, None, access),
            View::Store { pointer, value, access } => (pointer, Some(value), access),
            _ => {
                let vector = VectorAccess::of(definitions, i)?;
                let (pointer, stored) = (vector.pointer, vector.stored);
                return Some(Self { pointer, stored, vector: Some(vector), alignment: 1 });
            }
        };
        let alignment = access.alignment().unwrap_or(1);
        (!access.is_volatile()).then_some(Self { pointer, stored, vector: None, alignment })
    }

    /// Returns the index of the pointer among the words of the instruction.
    fn pointer_at(&self) -> usize {
        match (&self.vector, self.stored) {
            (Some(vector), _) => vector.offset_at() + 1,
            (None, Some(_)) => 0,
            (None, None) => 2,
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
        words[self.pointer_at()] = address;
        if let Some(vector) = &self.vector {
            let ty = definitions.get(vector.offset).and_then(|i| i.result_type());
            let ty = ty.ok_or_else(|| Error::unsupported("an offset has no type"))?;
            words[vector.offset_at()] = interner.constant_id(module, Op::ConstantNull, ty, &[])?;
        }
        Ok(words)
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
    operand_ids(i, definitions, |id| {
        pointer.extend(Some(id).filter(|id| pointers.contains(id)));
        variable.extend(Some(id).filter(|id| variables.contains(id)));
    })
    .map_err(|error| error.to_string())?;
    Ok(Some(match (pointer.as_slice(), variable.as_slice(), i.view()) {
        ([], [], _) => return Ok(None),
        (&[address], [], _) => used(definitions, i, address),
        ([], [_], View::Load { .. }) => Used::Address,
        ([], [_], View::Lifetime { .. }) => Used::Nothing,
        ([], [_], View::Unary { .. }) if i.op() == Some(Op::Bitcast) => Used::Mark,
        (&[address], &[own], View::Store { pointer, value, .. })
            if (address, own) == (value, pointer) =>
        {
            Used::Nothing
        }
        _ => Used::Otherwise,
    }))
}

/// Whether an operation calculates an address from another one, its first operand, or converts an address.
pub(crate) fn is_address(op: Op) -> bool {
    Row::of(op).is_some_and(|row| row.address.is_derived())
}

/// Returns how an instruction uses an address that is one of its operands.
fn used(definitions: &Definitions<'_>, i: &Instruction<'_>, address: u32) -> Used {
    match i.view() {
        _ if i.op().is_some_and(is_address) && i.derived_from() == Some(address) => Used::Address,
        View::Load { .. } => Used::Access,
        View::Store { pointer, .. } if pointer == address => Used::Access,
        View::Store { pointer, .. } => {
            let variable = definitions.get(pointer).map(|variable| variable.view());
            match variable {
                Some(View::Variable { initial: None, .. }) => Used::Spill(pointer),
                _ => Used::Otherwise,
            }
        }
        View::SampledImage { image, .. } if image == address => Used::Address,
        View::ImageRead { image, .. }
        | View::ImageSample { image, .. }
        | View::ImageWrite { image, .. }
            if image == address =>
        {
            Used::Access
        }
        View::ImageQuery { .. } | View::ImageQueryLod { .. } if is_first_level(definitions, i) => {
            Used::Size
        }
        View::ExtInst { .. } => match VectorAccess::of(definitions, i) {
            Some(access) if access.pointer == address => Used::Access,
            None if extended(definitions, i) == Some(Extended::prefetch) => Used::Nothing,
            _ => Used::Otherwise,
        },
        _ => Used::Otherwise,
    }
}
