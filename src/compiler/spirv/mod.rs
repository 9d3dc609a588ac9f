//! SPIR-V modules: whether bytes are one, and what one says of itself.
//!
//! Everything here is a pure function of bytes that may come from anywhere. What the physical
//! layout requires is checked ([`words`]), for nothing can be read from a stream that breaks it.
//! The meaning of instructions is read as far as it goes ([`reflect`]) and is left to the driver to
//! judge: a module with instructions of an extension nobody here knows is as good as any other.
//!
//! A module that is to be changed is taken apart into sections of instructions ([`module`]), with
//! indexes of ids ([`index`]) by the specification's grammar ([`grammar`]). Types and constants are
//! kept once ([`intern`]), dead code is dropped ([`prune`]), several are linked to one ([`merge`](mod@merge)).
//!
//! Section numbers in comments are those of the SPIR-V specification, version 1.6.
//!
//! Memory and time are linear in the size of the module, whatever its header claims.

mod describe;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grammar;
mod index;
mod intern;
mod merge;
mod module;
mod prune;
mod reflect;
mod requirements;
mod sizes;
mod stream;
#[cfg(test)]
mod tests;
mod types;
mod validate;
mod words;

use std::collections::HashMap;
use std::sync::Arc;

use rspirv::spirv::LinkageType;

use crate::compiler::signature::Parameter;
use crate::compiler::signature::SpecializationConstant;
use crate::error::Result;
use words::Words;

pub(crate) use merge::{Input, Merged, Options, VERSION as MERGER, check_signatures, merge};
pub(crate) use module::Module;
pub(crate) use requirements::{Demand, Demands, demands};
pub(crate) use sizes::private_memory;

/// What reads and rewrites modules elsewhere.
pub(crate) mod edit {
    pub(crate) use super::grammar::{Context, ExtendedSet, Role, ids};
    pub(crate) use super::index::{Definitions, Location, located};
    pub(crate) use super::intern::Interner;
    pub(crate) use super::merge::complete_interfaces;
    pub(crate) use super::module::{Function, Linkage, Section};
    pub(crate) use super::prune::References;
    pub(crate) use super::stream::{Stream, literal_words, string_words};
    pub(crate) use super::words::{Instruction, OPCODES, invalid};
}

/// What a module says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reflection {
    /// The names of its kernels, in its order, each once.
    pub(crate) kernels: Vec<String>,
    /// Sorted by id, each id once. Integers whose sign the module does not tell, which is all of
    /// them in OpenCL's SPIR-V, are named as unsigned.
    pub(crate) specialization_constants: Vec<SpecializationConstant>,
    /// What other modules can import, in its order.
    pub(crate) exports: Vec<Symbol>,
    /// What it needs of other modules, in its order.
    pub(crate) imports: Vec<Symbol>,
    /// Whether it declares that it uses pointers to functions.
    pub(crate) has_function_pointers: bool,
    parameters: HashMap<String, Arc<[Parameter]>>,
}

/// A function or a global variable that modules share by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) linkage: LinkageType,
}

impl Reflection {
    /// The parameters of a kernel, in order; `None` if the module does not show them.
    ///
    /// A field is set only where the module is certain of it. Types are those of the source, and
    /// complete, if the module was made with `llvm-spirv
    /// --preserve-ocl-kernel-arg-type-metadata-through-string`. Otherwise integers have none,
    /// because their sign is not kept, and pointers have none, because LLVM with opaque pointers
    /// infers the pointee from how it is used: `global float *` read through a cast becomes
    /// `float4 *`. Names are kept by `clang -cl-kernel-arg-info` or `-fno-discard-value-names`.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.parameters.get(kernel).map(AsRef::as_ref)
    }
}

/// Whether the bytes begin as a SPIR-V module does, in either byte order.
pub(crate) fn has_magic(bytes: &[u8]) -> bool {
    words::byte_order(bytes).is_some()
}

/// Checks a module and reads what it says of itself.
///
/// The bytes come back in little-endian order, which is what drivers take, whatever order they
/// came in.
///
/// # Errors
///
/// [`InvalidImage`](crate::ErrorKind::InvalidImage) if the bytes are no module: empty, no whole
/// number of words, without the magic number, of an unknown version, with a header that is cut
/// short or has no ids, or with instructions or a function that do not end where the module does.
pub(crate) fn read(bytes: Vec<u8>) -> Result<(Vec<u8>, Reflection)> {
    let words = Words::new(bytes)?;
    let reflection = reflect::reflect(&words);
    Ok((words.into_bytes(), reflection))
}
