//! SPIR-V modules of OpenCL kernels: read, checked, rewritten and linked.
//!
//! The crate belongs to [`kiln`](https://docs.rs/kiln): its interface changes with any version of `kiln`, which names the
//! exact version of this crate.
//!
//! Everything here is a pure function of bytes, which may come from an untrusted source. [`words`] checks
//! the physical layout, because a stream that breaks it cannot be read. [`reflect`] interprets the known
//! instructions; their validity is left to the driver. A module with instructions of an unknown extension is
//! accepted like any other.
//!
//! For rewriting, a module is [parsed](parse) into sections of instructions ([`module`]). Ids are indexed by
//! definition and use ([`index`]), following the specification's grammar ([`grammar`]). The operands of an instruction
//! are read by name ([`table`]). Analyses know the meaning of [`instructions`], of [`functions`] of OpenCL, of [`decorations`], and of [storage classes and built-in
//! variables](meaning). Types and constants are interned ([`intern`]), dead code is removed ([`prune`]), definitions
//! become imports ([`remove`]), functions and kernels get names that Kiln made ([`names`]), and several modules are
//! linked into one ([`merge`](mod@merge)). Modules are compared without regard to lines of the source ([`lines`]).
//!
//! Section numbers in comments refer to the SPIR-V specification, version 1.6.
//!
//! Memory and time are linear in the size of the module, regardless of the values in its header.

#![forbid(unsafe_code)]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the crate is internal to `kiln`: its documentation is for those who change it"
)]

mod decorations;
mod describe;
mod error;
mod flow;
mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grammar;
mod ids;
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
mod signature;
mod sizes;
mod stream;
mod table;
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

use self::words::Words;

pub use error::{DriverCode, Error, ErrorKind, Result};
pub use flow::{Dominators, reverse_postorder};
pub use lines::{file_name, is_same_code, name_standard_input, remove_debug_info};
pub use meaning::{is_known_class, unfit_built_in};
pub use merge::{Input, Merged, Options, VERSION as MERGER, check_signatures, merge};
pub use module::Module;
pub use names::{own_names, user_name, user_symbol};
pub use record::FOR_DEVICE;
pub use recursion::recursive_function;
pub use reflect::exported_names;
pub use remove::{VERSION as REMOVER, remove_definitions};
pub use requirements::{Demand, Demands, demands};
pub use signature::{Access, AddressSpace, Parameter, SpecializationConstant, is_object};
pub use sizes::private_memory;
pub use volatile::{keep_values, split_volatile_loads};
pub use widen::widen_vectors;

/// Items to read and rewrite modules with.
pub mod edit {
    pub use super::grammar::{Context, ExtendedSet, Role, ids, operand_ids};
    pub use super::index::{Definitions, Location, located};
    pub use super::instructions::{Domain, Effect, Meaning, Types, Value};
    pub use super::intern::Interner;
    pub use super::merge::complete_interfaces;
    pub use super::module::{Function, Linkage, Section};
    pub use super::prune::References;
    pub use super::stream::{Stream, literal_words, string_words};
    pub use super::table::{
        Access, Address, Cases, Class, Evaluation, Format, Global, ImageOperands, List, Pairs, Row,
        Text, View, is_atomic, row,
    };
    pub use super::words::{Instruction, OPCODES, Words, invalid};
}

/// Interface of a module: kernels with their parameters, specialization constants, exports and imports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reflection {
    /// Names of the kernels, in the module's order, without duplicates.
    pub kernels: Vec<String>,
    /// Specialization constants, sorted by id, one per id. Integers whose sign the module does not state (in
    /// OpenCL's SPIR-V, all integers) have the names of unsigned types.
    pub specialization_constants: Vec<SpecializationConstant>,
    /// Symbols that other modules can import, in the module's order.
    pub exports: Vec<Symbol>,
    /// Symbols that the module needs from other modules, in the module's order.
    pub imports: Vec<Symbol>,
    /// Whether the module declares the capability for pointers to functions (`FunctionPointersINTEL`).
    pub has_function_pointers: bool,
    /// Options of the recorded command lines that a device's compiler needs as well; `None` if there are none.
    pub recorded_options: Option<Box<str>>,
    parameters: HashMap<String, Arc<[Parameter]>>,
}

/// A function or a global variable that modules share by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name of the symbol.
    pub name: String,
    /// Role of the symbol.
    pub linkage: LinkageType,
}

impl Reflection {
    /// Creates the interface of a module of which only the symbols are known.
    #[must_use]
    pub fn of_symbols(exports: Vec<Symbol>, imports: Vec<Symbol>) -> Self {
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
    pub fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.parameters.get(kernel).map(AsRef::as_ref)
    }
}

/// Returns whether the bytes begin with the magic number of SPIR-V, in either byte order.
#[must_use]
pub fn has_magic(bytes: &[u8]) -> bool {
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
pub fn read(bytes: Vec<u8>) -> Result<(Vec<u8>, Reflection)> {
    let words = Words::new(bytes)?;
    let reflection = reflect::reflect(&words);
    Ok((words.into_bytes(), reflection))
}
