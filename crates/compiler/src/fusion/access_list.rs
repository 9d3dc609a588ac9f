//! Accesses of a launch in words.

use std::collections::BTreeSet;

use kiln_spirv::{Module, Result};

use super::examined;
use crate::NdRange;
use crate::analysis::access::{
    Access, Accesses, Bytes, Kind, Value, analyse, analyse_values, function_of,
};
use crate::analysis::affine::Space;
use crate::plan::Argument;

/// Accesses of a launch in words, with the scalars on whose values they rely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessList {
    /// Accesses, one by one, such as `0 reads 4x+0 4 always in 0..396`: every work-item reads 4 bytes of argument 0,
    /// from 4 times its global id in the first dimension; all work-items together read from the bytes 0 to 396 on.
    /// `4x+8..12` is a range of offsets, and `?` stands for any bytes, with the reason.
    pub accesses: Vec<String>,
    /// Positions of the scalars on whose values the accesses rely.
    pub constants: BTreeSet<usize>,
}

/// Details of accesses, which decide about the scalars that a list relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDetail {
    /// Offsets as functions of the work-item, whatever limits them.
    Offsets,
    /// Offsets, with the conditions that limit them.
    Limits,
}

/// Lists the bytes that each work-item of a launch accesses in its buffers and images. Arguments whose values are not
/// known are `None`.
///
/// # Errors
///
/// [`UnknownKernel`](kiln_spirv::ErrorKind::UnknownKernel) if the module has no such kernel.
/// [`InvalidArgument`](kiln_spirv::ErrorKind::InvalidArgument) if the number of arguments differs from that of the
/// kernel's parameters. [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if the kernel is too large to be followed.
pub fn list_accesses(
    module: &Module,
    kernel: &str,
    arguments: &[Option<Argument>],
    range: &NdRange,
    detail: AccessDetail,
) -> Result<AccessList> {
    let (_, function) = function_of(module, kernel)?;
    let value =
        |argument: &Option<Argument>| argument.as_ref().map_or(Value::Other, examined::value);
    let values: Vec<_> = arguments.iter().map(value).collect();
    let (definitions, space) = (module.definitions(), Space::new(range));
    let Accesses { all, constants, .. } = match detail {
        AccessDetail::Offsets => analyse(&definitions, function, &values, &space)?,
        AccessDetail::Limits => analyse_values(&definitions, function, &values, &space)?.accesses,
    };
    Ok(AccessList {
        accesses: all.iter().map(|access| describe(access, &space)).collect(),
        constants,
    })
}

/// Returns an access in words.
fn describe(access: &Access, space: &Space) -> String {
    let kind = match access.kind {
        Kind::Read => "reads",
        Kind::Write => "writes",
        Kind::Atomic => "changes",
        Kind::Escape => "escapes",
    };
    let always = if access.is_certain { " always" } else { "" };
    let (place, limits) = match &access.bytes {
        None => (format!("? {}", access.note.unwrap_or_default()), String::new()),
        Some(bytes) => {
            let (low, high) = bytes.start.bounds(space);
            (place(bytes), format!(" in {low}..{high}"))
        }
    };
    format!("{} {kind} {place}{always}{limits}", access.parameter)
}

/// Returns the start of an access as a function of the global id, and its number of bytes.
fn place(bytes: &Bytes) -> String {
    let Bytes { start, width, .. } = bytes;
    let parts = ["x", "y", "z"].into_iter().zip(start.coefficients());
    let mut text: String = parts
        .filter(|(_, factor)| *factor != 0)
        .map(|(name, factor)| format!("{factor}{name}+"))
        .collect();
    text += &start.low.to_string();
    if start.low != start.high {
        text += &format!("..{}", start.high);
    }
    format!("{text} {width}")
}
