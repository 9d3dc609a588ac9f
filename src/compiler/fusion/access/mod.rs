//! Which bytes of its buffers each work-item of a kernel touches.
//!
//! The kernel's function is evaluated once, in order of its blocks, with [`Form`]s for integers and
//! the parameters that a pointer comes from for pointers. Calls are followed. Whatever is not
//! understood makes an access that is [unknown](Access::bytes): nothing is ever left out.
//!
//! What is found holds for the given nd-range and values of scalars only; which values were used is
//! told. It also relies on what the caller of [`Program::kernel`](crate::Program::kernel) vouches
//! for, that the kernel stays inside the buffers bound to it.

mod blocks;
mod eval;
mod flow;
mod groups;
mod layout;
mod loops;
mod memory;
mod slice;
mod symbols;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeSet;

use super::affine::{Form, Space};
use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Definitions, Linkage, Location, Section};
use crate::error::{Error, ErrorKind, Result};

pub(super) use flow::Flow;
pub(super) use groups::{OfGroups, of_groups};
pub(super) use layout::{Layout, Layouts, MAX_ALIGN, Parts};
pub(super) use slice::feeding;
pub(super) use symbols::{Condition, Symbol};

/// What a kernel does with the buffers that it is given.
#[derive(Clone, Debug, Default)]
pub(super) struct Accesses {
    pub(super) all: Vec<Access>,
    pub(super) flow: Flow,
    /// The scalars by whose values this was found, by the index of the parameter.
    pub(super) constants: BTreeSet<usize>,
}

/// What one instruction does with one buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Access {
    /// The index of the kernel's parameter.
    pub(super) parameter: usize,
    pub(super) kind: Kind,
    /// `None` for any of the buffer.
    pub(super) bytes: Option<Bytes>,
    /// Why they are not known, or what is special; for messages.
    pub(super) note: Option<&'static str>,
    /// Whether every work-item does it whenever the kernel runs.
    pub(super) is_certain: bool,
    /// `None` inside of functions that the kernel calls.
    pub(super) location: Option<Location>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Read,
    Write,
    /// Reads and writes, atomically.
    Atomic,
    /// The pointer goes where it is not followed; anything may be done by it.
    Escape,
}

impl Kind {
    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// From `start`, counted in bytes from the buffer's first, as many as `width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bytes {
    pub(super) start: Form,
    pub(super) width: i128,
    /// The start [by the work-group](Form::by_group).
    pub(super) group: Option<Form>,
    /// How the start differs [within the work-group](Form::inside).
    pub(super) inside: Option<[i128; 3]>,
}

/// Analyses the kernel that is the function `kernel`, whose arguments have the given values.
///
/// # Errors
///
/// [`InvalidImage`](ErrorKind::InvalidImage) if the module lacks what it refers to.
/// [`Unsupported`](ErrorKind::Unsupported) if the kernel is too large to be followed.
pub(super) fn analyse(
    definitions: &Definitions<'_>,
    kernel: u32,
    values: &[Value],
    space: &Space,
) -> Result<Accesses> {
    eval::Evaluation::new(definitions, space).run(kernel, values)
}

/// What is known of a kernel's argument beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Buffer,
    /// The bytes of an integer that may be relied on.
    Scalar(Vec<u8>),
    Other,
}

/// The function that an entry point of a name stands for. Translators let the entry point be one that
/// only calls the function of the source, which is what is returned then.
///
/// # Errors
///
/// [`UnknownKernel`](ErrorKind::UnknownKernel) if there is none of that name.
pub(super) fn function_of(module: &Module, kernel: &str) -> Result<(u32, u32)> {
    let entry = module.section(Section::EntryPoints).iter().find(|i| i.string(2) == Some(kernel));
    let entry = entry.and_then(|entry| entry.word(1)).ok_or_else(|| {
        Error::new(
            ErrorKind::UnknownKernel,
            format!("the module of the launch has no kernel `{kernel}`"),
        )
    })?;
    Ok((entry, blocks::forwarded(module, entry).unwrap_or(entry)))
}

/// Whether a module needs others to be complete.
pub(super) fn imports(module: &Module) -> Option<String> {
    use rspirv::spirv::{Decoration, LinkageType, Op};
    let annotations = || module.section(Section::Annotations).iter();
    let built_ins: BTreeSet<_> = annotations()
        .filter(|i| i.op() == Some(Op::Decorate) && i.word(1) == Some(Decoration::BuiltIn as u32))
        .filter_map(|i| i.word(0))
        .collect();
    annotations()
        .filter_map(|i| Linkage::of(&i))
        .find(|linkage| linkage.kind == LinkageType::Import && !built_ins.contains(&linkage.target))
        .map(|linkage| linkage.name.to_owned())
}
