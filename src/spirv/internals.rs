//! What this crate's own benchmarks, tests and fuzz targets reach of this room.

use super::merge::{Input, Options, merge};
use super::module::{Module, Section};
use super::reflect::reflect;
use super::stream::Stream;
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

/// Does to bytes whatever can be done to a module.
///
/// # Panics
///
/// If what was assembled does not read the same again. Nothing else may panic, whatever the bytes.
pub fn exercise(bytes: &[u8]) {
    let Ok(module) = Module::parse(bytes) else { return };
    let assembled = module.assemble();
    assert!(Module::parse(assembled).is_ok_and(|again| again == module));
    // One that can be linked with it, where no symbol is in the way.
    let mut other = module.clone();
    *other.section_mut(Section::EntryPoints) = Stream::default();
    *other.section_mut(Section::ExecutionModes) = Stream::default();
    let inputs =
        [Input { name: "first", module: &module }, Input { name: "second", module: &other }];
    for options in [
        Options { keep_exports: true, allow_unresolved: true },
        Options { keep_exports: false, allow_unresolved: true },
    ] {
        for inputs in [&inputs[..1], &inputs[..]] {
            if let Ok(merged) = merge(inputs, options) {
                let bytes = merged.module.assemble();
                assert!(Module::parse(&*bytes).is_ok_and(|again| again.assemble() == bytes));
            }
        }
    }
}
