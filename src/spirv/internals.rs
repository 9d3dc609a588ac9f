//! What this crate's own benchmarks and tests reach of this room.

use super::merge::{Input, Options, merge};
use super::module::Module;
use super::reflect::reflect;
use super::words::Words;
use crate::error::Result;

/// Reads what a module says of itself, takes it apart and assembles it again.
///
/// # Errors
///
/// [`InvalidImage`](crate::ErrorKind::InvalidImage) if it is no module.
pub fn reassemble(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let words = Words::new(bytes)?;
    std::hint::black_box(reflect(&words));
    Ok(Module::from_words(&words)?.assemble())
}

/// Links modules, given with the names that errors call them by.
///
/// # Errors
///
/// Those of [`reassemble`], and [`BuildFailed`](crate::ErrorKind::BuildFailed) if the modules do not
/// fit together.
pub fn link(modules: &[(&str, &[u8])], keep_exports: bool) -> Result<Vec<u8>> {
    let mut parsed = Vec::new();
    for &(name, bytes) in modules {
        parsed.push((name, Module::parse(bytes).map_err(|error| error.within(name))?));
    }
    let inputs: Vec<_> = parsed.iter().map(|(name, module)| Input { name, module }).collect();
    let merged = merge(&inputs, Options { keep_exports, allow_unresolved: false })?;
    Ok(merged.module.assemble())
}

/// Translates a module to OpenCL C 1.2.
///
/// # Errors
///
/// Those of [`reassemble`], and [`Unsupported`](crate::ErrorKind::Unsupported) for what OpenCL C
/// cannot express.
pub fn emit(bytes: &[u8]) -> Result<String> {
    crate::emit::opencl_c(&Module::parse(bytes)?)
}
