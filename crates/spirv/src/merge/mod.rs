//! Links several modules into one: resolves imports against exports, and shares types and constants.
//!
//! Device libraries are linked here if the driver cannot link SPIR-V itself. Kernel fusion builds on it.

mod copy;
mod finish;
mod groups;
mod resolve;
mod signatures;
#[cfg(test)]
mod tests;
mod types;

use std::collections::HashMap;

use rspirv::spirv::{AddressingModel, LinkageType, MemoryModel, Op};

use super::ids::{IdMap, IdSet};
use super::index::Definitions;
use super::module::{Linkage, Module, Section};
use super::words::{Header, Instruction};
use crate::error::{Error, ErrorKind, Result};
use copy::Copier;

pub use finish::complete_interfaces;
pub use signatures::check_signatures;

/// Module to merge, with its name in error messages.
#[derive(Clone, Copy, Debug)]
pub struct Input<'m> {
    /// Name in error messages.
    pub name: &'m str,
    /// The module.
    pub module: &'m Module,
}

/// Settings of [`merge`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether the result keeps its exports. If not, and if it has kernels, code that no kernel reaches is
    /// removed.
    pub keep_exports: bool,
    /// Whether imports without an export may stay.
    pub allow_unresolved: bool,
}

/// Version of the results of [`merge`]. It is part of the keys of what is built from them. Each change of the
/// results for valid modules must raise it.
pub const VERSION: u32 = 1;

/// The result of [`merge`].
#[derive(Clone, Debug)]
pub struct Merged {
    /// The linked module.
    pub module: Module,
    /// For each input, sorted pairs of an original `SpecId` and its `SpecId` in the result. They differ if an
    /// earlier input has the same id.
    pub spec_ids: Vec<Vec<(u32, u32)>>,
}

/// Links modules into one. The first module keeps its ids.
///
/// A symbol may have several definitions of linkage LinkOnceODR: one of them is kept, or an export of that
/// name, if there is one. Several exports of one name must have equal definitions.
///
/// # Errors
///
/// [`BuildFailed`](ErrorKind::BuildFailed), naming inputs, symbol and types, if an import has no
/// export or one of another type, if a symbol or a kernel is defined twice, or if the modules have
/// different addressing or memory models. [`Unsupported`](ErrorKind::Unsupported) if an input has
/// unknown instructions. [`InvalidModule`](ErrorKind::InvalidModule) if an input is damaged.
pub fn merge(inputs: &[Input<'_>], options: Options) -> Result<Merged> {
    let Some(first) = inputs.first() else {
        return Err(Error::invalid("there are no modules to link; give at least one"));
    };
    check_memory_models(inputs)?;
    check_kernels(inputs)?;
    let sources: Vec<_> = inputs.iter().map(|&input| Source::new(input)).collect();
    signatures::check(&sources)?;
    let resolution = resolve::resolve(&sources, options)?;
    let header = Header {
        version: inputs.iter().map(|i| i.module.header.version).max().unwrap_or((1, 0)),
        // The number of an unregistered producer.
        generator: 0,
        ..first.module.header
    };
    let mut copier = Copier::new(&sources, resolution, header, options);
    copier.run()?;
    let (mut module, spec_ids) = copier.finish();
    finish::order_globals(&mut module)?;
    complete_interfaces(&mut module)?;
    finish::make_names_unique(&mut module);
    if !options.keep_exports && !module.section(Section::EntryPoints).is_empty() {
        module.prune()?;
    }
    Ok(Merged { module, spec_ids })
}

/// An input with its indexes.
struct Source<'m> {
    name: &'m str,
    module: &'m Module,
    definitions: Definitions<'m>,
    linkages: Vec<Linkage<'m>>,
    /// Variables that stand for a built-in value of the device, such as the global id (3.21), each with the
    /// number of that value.
    built_ins: HashMap<u32, u32>,
    names: HashMap<u32, &'m str>,
}

impl<'m> Source<'m> {
    fn new(input: Input<'m>) -> Self {
        let Input { name, module } = input;
        let names = module.section(Section::Names).iter();
        let names = names.filter(|i| i.op() == Some(Op::Name));
        Self {
            name,
            module,
            definitions: module.definitions(),
            linkages: module.linkages(),
            built_ins: module.built_ins().collect(),
            names: names.filter_map(|i| Some((i.word(0)?, i.string(1)?))).collect(),
        }
    }

    fn imports(&self, id: u32) -> bool {
        let mut linkages = self.linkages.iter().filter(|linkage| linkage.target == id);
        linkages.any(|linkage| linkage.kind == LinkageType::Import)
    }

    fn within(&self, error: &Error) -> Error {
        error.clone().within(self.name)
    }
}

impl super::types::Declarations for Source<'_> {
    fn declaration(&self, id: u32) -> Option<Instruction<'_>> {
        self.definitions.get(id)
    }

    fn name(&self, id: u32) -> Option<&str> {
        self.names.get(&id).copied()
    }
}

fn merge_error(message: String) -> Error {
    Error::new(ErrorKind::BuildFailed, message)
}

/// Checks that all modules have the same addressing model, which includes the width of pointers (3.4), and
/// the same memory model (3.5).
fn check_memory_models(inputs: &[Input<'_>]) -> Result<()> {
    let model = |module: &Module| {
        let mut models = module.section(Section::MemoryModel).iter();
        let model = models.find(|i| i.op() == Some(Op::MemoryModel))?;
        Some((model.word(0)?, model.word(1)?))
    };
    let described = |(addressing, memory): (u32, u32)| {
        let addressing = AddressingModel::from_u32(addressing);
        let memory = MemoryModel::from_u32(memory);
        let unknown = || "an unknown one".to_owned();
        format!(
            "{} and {}",
            addressing.map_or_else(unknown, |model| format!("{model:?}")),
            memory.map_or_else(unknown, |model| format!("{model:?}"))
        )
    };
    let mut models = Vec::new();
    for input in inputs {
        models.push((
            input.name,
            model(input.module).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidModule,
                    "the module does not declare a memory model; it is damaged: rebuild it",
                )
                .within(input.name)
            })?,
        ));
    }
    match models.iter().find(|(_, model)| *model != models[0].1) {
        None => Ok(()),
        Some(&(name, model)) => Err(merge_error(format!(
            "{} and {name} cannot be linked: the addressing and memory models of the first are {}, \
             those of the second are {}; compile both for the same target, `spir64` or `spir`",
            models[0].0,
            described(models[0].1),
            described(model)
        ))),
    }
}

/// Checks that no two entry points of an execution model have the same name (2.16.1).
fn check_kernels(inputs: &[Input<'_>]) -> Result<()> {
    let mut kernels = HashMap::new();
    for input in inputs {
        for entry in input.module.section(Section::EntryPoints).iter() {
            let name = entry.string(2).unwrap_or_default();
            if let Some(other) = kernels.insert((entry.word(0), name), input.name) {
                return Err(merge_error(format!(
                    "the kernel `{name}` is defined in {other} and in {}; rename one",
                    input.name
                )));
            }
        }
    }
    Ok(())
}

/// Map from the ids of the inputs to those of the result.
struct Ids {
    maps: Vec<IdMap<u32>>,
    /// For each input, imports and surplus definitions, with the input and the id that replace them.
    redirects: Vec<HashMap<u32, (usize, u32)>>,
    /// Ids of strings and of imports of extended instructions, by opcode, section and text.
    texts: HashMap<Vec<u8>, u32>,
    first_bound: u32,
    next: u32,
}

impl Ids {
    fn known(&self, source: usize, id: u32) -> Option<u32> {
        let (source, id) = self.target(source, id);
        self.maps[source].get(id)
    }

    /// Returns the id that a text already has. Otherwise, gives it the id that `id` has in the result, and
    /// returns `None`.
    fn text(&mut self, key: Vec<u8>, source: usize, id: u32) -> Result<Option<u32>> {
        if let Some(&known) = self.texts.get(&key) {
            return Ok(Some(known));
        }
        let new = self.map(source, id)?;
        self.texts.insert(key, new);
        Ok(None)
    }

    fn target(&self, source: usize, id: u32) -> (usize, u32) {
        self.redirects[source].get(&id).copied().unwrap_or((source, id))
    }

    /// Returns the id in the result. An id of the first input stays as it is; any other gets a fresh id when it
    /// is first seen.
    fn map(&mut self, source: usize, id: u32) -> Result<u32> {
        let (source, id) = self.target(source, id);
        if let Some(known) = self.maps[source].get(id) {
            return Ok(known);
        }
        let new = if source == 0 && id < self.first_bound { id } else { self.fresh()? };
        self.maps[source].insert(id, new);
        Ok(new)
    }

    fn fresh(&mut self) -> Result<u32> {
        let new = self.next;
        self.next = new.checked_add(1).ok_or_else(|| {
            Error::unsupported("the modules together need more ids than fit in 32 bits")
        })?;
        Ok(new)
    }
}

/// For each input, the ids that do not appear in the result.
type Dropped = Vec<IdSet>;
