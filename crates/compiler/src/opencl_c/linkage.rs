//! Functions and variables that a module shares with other objects: a linker finds them by their linkage names.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use kiln_spirv::edit::{Linkage, Section};
use kiln_spirv::{Module, Result};
use rspirv::spirv::{FunctionControl, LinkageType, Op, StorageClass};

use super::function::{Instance, prototype};
use super::{Emitter, is_identifier, unsupported};

/// Linkage of the ids that a module imports or exports, except the functions of its kernels.
pub(super) type Linked<'m> = HashMap<u32, Linkage<'m>>;

/// Returns the linkage of a module's ids.
pub(super) fn linked(module: &Module) -> Linked<'_> {
    let entries = module.section(Section::EntryPoints);
    let kernels: HashSet<_> =
        entries.iter().filter_map(|entry| Some(entry.entry_point()?.0)).collect();
    let linkages = module.linkages().into_iter();
    let shared = linkages.filter(|linkage| !kernels.contains(&linkage.target));
    shared.map(|linkage| (linkage.target, linkage)).collect()
}

impl<'m> Emitter<'m> {
    /// Emits the functions and the variables of constant memory that the module exports, and what they use.
    pub(super) fn exports(&mut self) -> Result<()> {
        let is_export = |linkage: &&Linkage<'_>| linkage.kind != LinkageType::Import;
        let mut exports: Vec<_> = self.linked.values().filter(is_export).copied().collect();
        exports.sort_unstable_by_key(|linkage| (linkage.target, linkage.name));
        for Linkage { target, name, .. } in exports {
            self.export(target).map_err(|error| error.within(format!("in the export `{name}`")))?;
        }
        Ok(())
    }

    fn export(&mut self, id: u32) -> Result<()> {
        let definition = self.definition(id)?;
        let class = definition.variable().map(|(class, _)| class);
        if class == Some(StorageClass::UniformConstant as u32) {
            return self.constant_variable(id).map(drop);
        }
        if definition.op() != Some(Op::Function) {
            // Importers of other variables are rejected by the linker.
            return Ok(());
        }
        for parameter in self.function_type(id)?.iter() {
            if !self.generic_levels(parameter)?.is_empty() {
                return Err(unsupported("a parameter of the generic address space"));
            }
        }
        if self.emit_function(id, &[], None)?.takes_locals() {
            return Err(unsupported("a function with variables of local memory"));
        }
        Ok(())
    }

    /// Returns the name under which other objects know an id, if they share it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) for a name that is not an identifier.
    pub(super) fn linked_name(&self, id: u32) -> Result<Option<&'m str>> {
        match self.linked.get(&id) {
            None => Ok(None),
            Some(linkage) if is_identifier(linkage.name) => Ok(Some(linkage.name)),
            Some(linkage) => Err(unsupported(format!("the linkage name `{}`", linkage.name))),
        }
    }

    /// Returns the specifiers of a function that the module exports; `None` for other functions.
    pub(super) fn exported_specifiers(
        &self,
        id: u32,
        control: FunctionControl,
    ) -> Option<&'static str> {
        let linkage = self.linked.get(&id)?;
        Some(match linkage.kind {
            // The linker keeps one of several definitions.
            LinkageType::LinkOnceODR => "__attribute__((weak)) ",
            _ if control.contains(FunctionControl::DONT_INLINE) => "__attribute__((noinline)) ",
            _ => "",
        })
    }

    /// Declares an imported function.
    pub(super) fn declare_function(&mut self, name: &str, result: &str, signature: &[String]) {
        let _ = writeln!(self.code, "\n{};", prototype(name, result, signature));
    }
}

impl Instance {
    /// Creates an imported function.
    pub(super) fn imported(name: &str) -> Self {
        Self { name: name.to_owned(), returns: Vec::new(), locals: Default::default() }
    }

    fn takes_locals(&self) -> bool {
        !self.locals.is_empty()
    }
}
