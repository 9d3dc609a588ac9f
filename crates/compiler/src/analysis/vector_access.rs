//! Loads and stores by functions of OpenCL: `vloadn` and `vstoren`, and those that convert from and to `half`.
//!
//! They take an offset in vectors and a pointer to elements. A vector of three elements takes the memory of
//! three (OpenCL C, "Vector Data Load and Store Functions"), except for `vloada_half3` and `vstorea_half3`,
//! which take the memory of four.

use kiln_spirv::edit::{Definitions, Instruction, View};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

/// Load or store by a function of OpenCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorAccess {
    /// Id of the offset in vectors.
    pub(crate) offset: u32,
    /// Id of the pointer.
    pub(crate) pointer: u32,
    /// Id of the stored value; `None` for a load.
    pub(crate) stored: Option<u32>,
    /// Bytes in memory; `None` if the types do not fit the function, as in a damaged module.
    pub(crate) span: Option<Span>,
    /// Whether the elements in memory are of type `half`, and are converted.
    pub(crate) converts: bool,
}

/// Bytes in memory of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Number of elements.
    pub(crate) count: u32,
    /// Number of bytes that an access may touch, which is also the distance of successive vectors.
    pub(crate) size: i128,
    /// Whether every access touches all of these bytes.
    pub(crate) is_dense: bool,
}

impl VectorAccess {
    /// Returns the access of an instruction; `None` if the instruction does not call such a function.
    pub(crate) fn of(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Self> {
        let (is_store, converts) = match extended(definitions, i)? {
            Extended::vloadn => (false, false),
            Extended::vstoren => (true, false),
            Extended::vload_half | Extended::vload_halfn | Extended::vloada_halfn => (false, true),
            Extended::vstore_half
            | Extended::vstore_half_r
            | Extended::vstore_halfn
            | Extended::vstore_halfn_r
            | Extended::vstorea_halfn
            | Extended::vstorea_halfn_r => (true, true),
            _ => return None,
        };
        let View::ExtInst { operands, .. } = i.view() else { return None };
        let first = usize::from(is_store);
        let (offset, pointer) = (operands.get(first)?, operands.get(first + 1)?);
        let stored = if is_store { operands.get(0) } else { None };
        let span = span(definitions, i, stored, converts);
        Some(Self { offset, pointer, stored, span, converts })
    }

    /// Returns the index of the offset among the words of the instruction. The pointer follows.
    pub(crate) fn offset_at(&self) -> usize {
        4 + usize::from(self.stored.is_some())
    }
}

/// Returns the bytes that an access touches, from the type of the value that is loaded or stored.
fn span(
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    stored: Option<u32>,
    converts: bool,
) -> Option<Span> {
    let function = extended(definitions, i)?;
    let ty = match stored {
        None => i.result_type()?,
        Some(stored) => definitions.get(stored)?.result_type()?,
    };
    let ty = definitions.get(ty)?;
    let (component, count) = match ty.vector() {
        Some((component, count)) => (definitions.get(component)?, count),
        None => (ty, 1),
    };
    let is_single =
        matches!(function, Extended::vload_half | Extended::vstore_half | Extended::vstore_half_r);
    if !matches!(count, 1 | 2 | 3 | 4 | 8 | 16) || (is_single && count != 1) {
        return None;
    }
    // Loads of vectors state the number of elements, too.
    if stored.is_none() && !is_single && i.extended_operands().nth(2)? != count {
        return None;
    }
    let width = match (component.op()?, component.width()?) {
        (Op::TypeFloat, 16 | 32 | 64) if converts => 16,
        (Op::TypeInt | Op::TypeFloat, width @ (8 | 16 | 32 | 64)) if !converts => width,
        _ => return None,
    };
    let is_aligned = matches!(
        function,
        Extended::vloada_halfn | Extended::vstorea_halfn | Extended::vstorea_halfn_r
    );
    let places = if is_aligned { count.next_power_of_two() } else { count };
    let size = i128::from(places * (width / 8));
    Some(Span { count, size, is_dense: places == count })
}

/// Returns the OpenCL function that an instruction calls.
pub(crate) fn extended(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Extended> {
    let (set, function) = i.extended().filter(|_| i.op() == Some(Op::ExtInst))?;
    let is_opencl = definitions.get(set)?.text() == Some("OpenCL.std");
    Extended::from_u32(function).filter(|_| is_opencl)
}
