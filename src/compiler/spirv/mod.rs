//! Reads, checks, rewrites and links SPIR-V modules.
//!
//! Everything here is a pure function of bytes, which may come from an untrusted source. [`words`] checks
//! the physical layout, because a stream that breaks it cannot be read. [`reflect`] interprets the known
//! instructions; their validity is left to the driver. A module with instructions of an unknown extension is
//! accepted like any other.
//!
//! For rewriting, a module is [parsed](parse) into sections of instructions ([`module`]). Ids are indexed by
//! definition and use ([`index`]), following the specification's grammar ([`grammar`]). Analyses know the
//! meaning of [`instructions`], of [`functions`] of OpenCL, and of [decorations and storage classes](meaning). Types and constants are interned ([`intern`]), dead code is removed ([`prune`]), definitions become
//! imports ([`remove`]), functions and kernels get names that Kiln made ([`names`]), and several modules are linked
//! into one ([`merge`](mod@merge)). Modules are compared without regard to lines of the source ([`lines`]).
//!
//! Section numbers in comments refer to the SPIR-V specification, version 1.6.
//!
//! Memory and time are linear in the size of the module, regardless of the values in its header.

mod describe;
mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grammar;
mod index;
mod instructions;
mod intern;
mod lines;
mod meaning;
mod merge;
mod module;
mod names;
mod parse;
mod prune;
mod record;
mod recursion;
mod reflect;
mod remove;
mod requirements;
mod sizes;
mod stream;
#[cfg(test)]
mod tests;
mod types;
mod validate;
mod volatile;
mod widen;
mod words;

use std::collections::HashMap;
use std::sync::Arc;

use rspirv::spirv::LinkageType;

use crate::compiler::signature::{Parameter, SpecializationConstant};
use crate::error::Result;
use words::Words;

pub(crate) use lines::{file_name, is_same_code, name_standard_input, remove_debug_info};
pub(crate) use meaning::{is_known_class, unfit_built_in};
pub(crate) use merge::{Input, Merged, Options, VERSION as MERGER, check_signatures, merge};
pub(crate) use module::Module;
pub(crate) use names::{own_names, user_name, user_symbol};
pub(crate) use recursion::recursive_function;
pub(crate) use reflect::exported_names;
pub(crate) use remove::{VERSION as REMOVER, remove_definitions};
pub(crate) use requirements::{Demand, Demands, demands};
pub(crate) use sizes::private_memory;
pub(crate) use volatile::{keep_values, split_volatile_loads};
pub(crate) use widen::widen_vectors;

/// Items that other parts of the crate use to read and rewrite modules.
pub(crate) mod edit {
    pub(crate) use super::grammar::{Context, ExtendedSet, Role, ids};
    pub(crate) use super::index::{Definitions, Location, located};
    pub(crate) use super::instructions::{Domain, Effect, Meaning, Types, Value, is_atomic};
    pub(crate) use super::intern::Interner;
    pub(crate) use super::merge::complete_interfaces;
    pub(crate) use super::module::{Function, Linkage, Section};
    pub(crate) use super::prune::References;
    pub(crate) use super::stream::{Stream, literal_words, string_words};
    pub(crate) use super::words::{Instruction, OPCODES, invalid};
}

/// Interface of a module: kernels with their parameters, specialization constants, exports and imports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reflection {
    /// Names of the kernels, in the module's order, without duplicates.
    pub(crate) kernels: Vec<String>,
    /// Specialization constants, sorted by id, one per id. Integers whose sign the module does not state (in
    /// OpenCL's SPIR-V, all integers) have the names of unsigned types.
    pub(crate) specialization_constants: Vec<SpecializationConstant>,
    /// Symbols that other modules can import, in the module's order.
    pub(crate) exports: Vec<Symbol>,
    /// Symbols that the module needs from other modules, in the module's order.
    pub(crate) imports: Vec<Symbol>,
    /// Whether the module declares the capability for pointers to functions (`FunctionPointersINTEL`).
    pub(crate) has_function_pointers: bool,
    /// Options of the recorded command lines that a device's compiler needs as well; `None` if there are none.
    pub(crate) recorded_options: Option<Box<str>>,
    parameters: HashMap<String, Arc<[Parameter]>>,
}

/// A function or a global variable that modules share by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    pub(crate) linkage: LinkageType,
}

impl Reflection {
    /// Creates the interface of a module of which only the symbols are known.
    pub(crate) fn of_symbols(exports: Vec<Symbol>, imports: Vec<Symbol>) -> Self {
        Self { exports, imports, ..Self::default() }
    }

    /// Returns the parameters of a kernel, in order, or `None` if the module has no such kernel or lacks its
    /// function.
    ///
    /// A field of a parameter is set only if the module is unambiguous about it. Type names are those of the
    /// source, and complete, if the module was made with `llvm-spirv
    /// --preserve-ocl-kernel-arg-type-metadata-through-string`. Otherwise integers and pointers have no type
    /// name. The sign of an integer is not kept. The pointee of a pointer is not reliable, because LLVM with
    /// opaque pointers infers it from how the pointer is used: `global float *` read through a cast becomes
    /// `float4 *`. Names are kept by `clang -cl-kernel-arg-info` or `-fno-discard-value-names`.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.parameters.get(kernel).map(AsRef::as_ref)
    }
}

/// Returns whether the bytes begin with the magic number of SPIR-V, in either byte order.
pub(crate) fn has_magic(bytes: &[u8]) -> bool {
    words::byte_order(bytes).is_some()
}

/// Checks a module and reads its interface.
///
/// Returns the bytes in little-endian order, which drivers expect, whatever their order in the input.
///
/// # Errors
///
/// [`InvalidModule`](crate::ErrorKind::InvalidModule) if the bytes are not a valid module: if they are empty,
/// their number is not a multiple of 4, the magic number is missing, the version is unknown, the header is
/// cut short or has an id bound of 0, an instruction has a word count that is 0 or exceeds the module, or
/// the last function has no end.
pub(crate) fn read(bytes: Vec<u8>) -> Result<(Vec<u8>, Reflection)> {
    let words = Words::new(bytes)?;
    let reflection = reflect::reflect(&words);
    Ok((words.into_bytes(), reflection))
}
