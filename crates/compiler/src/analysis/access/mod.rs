//! Analysis of the bytes that each work-item of a kernel accesses in its buffers and images.
//!
//! The kernel's function is evaluated block by block, in one pass. An integer is represented by a
//! [`Form`], a pointer by the kernel's parameters that it may come from. Calls are followed. An access
//! that is not understood is recorded as [unknown](Access::bytes): no access is ever left out.
//!
//! Pixels of images count as [bytes](pixels), too. An image is represented like a pointer to its first pixel.
//!
//! The result holds only for the given nd-range and scalar values. [`Accesses::constants`] lists the
//! scalars whose values were used. The result also relies on the promise of the caller of
//! [`Program::kernel`](crate::Program::kernel) that the kernel stays inside the buffers bound to it.

mod arithmetic;
mod blocks;
mod budget;
mod comparisons;
mod conditions;
mod eval;
mod facts;
mod flow;
mod groups;
mod images;
mod layout;
mod loops;
mod memory;
mod moving_pointers;
mod pixels;
mod pointers;
#[cfg(test)]
pub(crate) mod random_tests;
mod registers;
pub(crate) mod samplers;
mod slice;
mod symbols;
#[cfg(test)]
mod tests;
mod touches;
mod values;
mod vectors;
mod watch;

use std::collections::BTreeSet;

use kiln_spirv::edit::{Definitions, Linkage, Location, Section};
use kiln_spirv::{Error, ErrorKind, Module, Result, user_name};

use super::affine::{Form, Space};
use crate::plan::Region;
use crate::{ImageShape, Sampler};

pub(crate) use budget::Budget;
pub(crate) use flow::Flow;
pub(crate) use groups::{GroupUse, group_use};
pub(crate) use layout::{Layout, Layouts, MAX_ALIGN, Parts};
pub(crate) use moving_pointers::follow_moving_pointers;
pub(crate) use registers::keep_in_registers;
pub(crate) use slice::controlling_parameters;
pub(crate) use slice::deciding_parameters;
pub(crate) use symbols::{Condition, Symbol};
pub(crate) use touches::Watcher;
pub(crate) use values::Values;
pub(crate) use watch::{Findings, PixelTouch, Root, Touch, Undefined};

/// Accesses of a kernel to its buffers, and its control flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accesses {
    pub(crate) all: Vec<Access>,
    pub(crate) flow: Flow,
    /// Indices of the scalar parameters on whose values this result depends.
    pub(crate) constants: BTreeSet<usize>,
    /// Whether a loop may add up more than [`SHORT_SUM`] floating-point numbers.
    pub(crate) has_long_sums: bool,
}

/// Maximum number of iterations of a loop whose floating-point numbers Intel's compiler for CPUs (2026.22)
/// always adds up in order. In longer loops it adds up several parts, where the work-items of a work-group do
/// not fill its vectors.
pub(crate) const SHORT_SUM: i128 = 7;

/// Note on an access to a known buffer at offsets that are not known.
pub(crate) const UNKNOWN_OFFSETS: &str = "at offsets that are not known before it runs";

/// Note on an access to a known image at coordinates that are not known.
pub(crate) const UNKNOWN_COORDINATES: &str = "at coordinates that are not known before it runs";

/// Access of one instruction to one buffer or image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Access {
    /// Index of the kernel's parameter.
    pub(crate) parameter: usize,
    pub(crate) kind: Kind,
    /// Accessed bytes; `None` if they may be any bytes of the buffer.
    pub(crate) bytes: Option<Bytes>,
    /// Reason why the bytes are not known, or what is special about the access; used in messages.
    pub(crate) note: Option<&'static str>,
    /// Whether every work-item performs the access whenever the kernel runs.
    pub(crate) is_certain: bool,
    /// Location of the instruction; `None` inside functions that the kernel calls.
    pub(crate) location: Option<Location>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
    /// Atomic operation, treated as a read and a write.
    Atomic,
    /// The pointer escapes the analysis; any access through it is possible.
    Escape,
}

impl Kind {
    pub(crate) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// Range of `width` bytes that begins `start` bytes after the buffer's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bytes {
    pub(crate) start: Form,
    pub(crate) width: i128,
    /// Start as a [form of the work-group's id](Form::by_group), if known.
    pub(crate) group: Option<Form>,
    /// Factors of the local id by which the start differs [within a work-group](Form::inside), if known.
    pub(crate) inside: Option<[i128; 3]>,
}

/// Analyses the kernel whose function has the id `kernel` and whose arguments have the given values.
///
/// # Errors
///
/// [`InvalidModule`](ErrorKind::InvalidModule) if the module lacks what it refers to.
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if the number of values differs from that of the
/// kernel's parameters. [`Unsupported`](ErrorKind::Unsupported) if the kernel is too large to be
/// followed, or its function has no blocks that can be followed.
pub(crate) fn analyse(
    definitions: &Definitions<'_>,
    kernel: u32,
    values: &[Value],
    space: &Space,
) -> Result<Accesses> {
    eval::Evaluation::new(definitions, space).run(kernel, values)
}

/// Analyses a kernel like [`analyse`], and returns the values that its function calculates. The accesses rely
/// on more scalars, because the limits of their bytes count, too.
///
/// # Errors
///
/// Fails like [`analyse`].
pub(crate) fn analyse_values<'m>(
    definitions: &'m Definitions<'m>,
    kernel: u32,
    values: &[Value],
    space: &'m Space,
) -> Result<Values<'m>> {
    Values::of(eval::Evaluation::new(definitions, space), kernel, values)
}

/// Returns the estimated number of instructions that a work-item runs in all functions of a kernel's module.
pub(crate) fn weight(definitions: &Definitions<'_>) -> u64 {
    let module = definitions.module();
    let functions =
        (0..module.functions.len()).map(|at| match blocks::Blocks::of(module, definitions, at) {
            Some(blocks) => blocks.weight(definitions),
            None => module.functions[at].body.iter().count() as u64,
        });
    functions.fold(0, u64::saturating_add)
}

/// Kernel argument, as far as it is known before the analysis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Buffer(Region),
    /// Bytes of an integer on whose value the analysis may rely.
    Scalar(Vec<u8>),
    Image(ImageShape),
    Sampler(Sampler),
    Other,
}

/// Returns the ids of the entry point with the given name and of the function that it stands for.
/// Translators may emit an entry point that only calls the function of the source; the second id is then
/// that function's. Otherwise both ids are the same.
///
/// # Errors
///
/// [`UnknownKernel`](ErrorKind::UnknownKernel) if the module has no entry point of that name.
pub(crate) fn function_of(module: &Module, kernel: &str) -> Result<(u32, u32)> {
    let entries = module.section(Section::EntryPoints).iter();
    let mut entries = entries.filter_map(|i| i.entry_point());
    let entry = entries.find(|(_, name)| user_name(name) == kernel);
    let (entry, _) = entry.ok_or_else(|| {
        Error::new(
            ErrorKind::UnknownKernel,
            format!("the module of the launch has no kernel `{kernel}`"),
        )
    })?;
    Ok((entry, blocks::forwarded(module, entry).unwrap_or(entry)))
}

/// Returns the name of a symbol that a module imports from another one, or `None` if the module is
/// complete. Built-in variables do not count as imports.
pub(crate) fn imports(module: &Module) -> Option<String> {
    use rspirv::spirv::{Decoration, LinkageType};
    let annotations = || module.section(Section::Annotations).iter();
    let built_ins: BTreeSet<_> =
        annotations().filter_map(|i| i.decoration(Decoration::BuiltIn)).map(|(id, _)| id).collect();
    annotations()
        .filter_map(|i| Linkage::of(&i))
        .find(|linkage| linkage.kind == LinkageType::Import && !built_ins.contains(&linkage.target))
        .map(|linkage| linkage.name.to_owned())
}
