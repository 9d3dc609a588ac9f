//! Each slot's kernel in a module of its own, so that what is asked of a kernel is not asked of all
//! others of its program.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::access;
use super::merge::Modes;
use super::plan::{Plan, Slot};
use super::specialize::specialize;
use crate::error::{Error, Result};
use crate::spirv::Module;
use crate::spirv::edit::References;

/// What a slot's program is made of: a module, and the values of its specialization constants.
fn key(slot: &Slot) -> (usize, &[(u32, Vec<u8>)]) {
    (slot.module, &slot.constants)
}

/// The kernels of a plan's slots, in order, with their programs' constants at the slots' values.
///
/// # Errors
///
/// Those of [`specialize`] and of [`Modes::of`], and
/// [`UnknownKernel`](crate::ErrorKind::UnknownKernel) if there is none of a slot's name.
pub(super) fn kernels(plan: &Plan, modules: &[&Module]) -> Result<Vec<Kernel>> {
    let mut specialized = HashMap::new();
    for slot in &plan.slots {
        if let Entry::Vacant(new) = specialized.entry(key(slot)) {
            let module = specialize(modules[slot.module], &slot.constants);
            new.insert(module.map_err(|error| error.within(format!("`{}`", slot.kernel)))?);
        }
    }
    let programs = specialized.iter().map(|(&key, module)| (key, Program::of(module)));
    let programs: HashMap<_, _> = programs.collect();
    let kernel = |(at, slot)| {
        let kernel = programs[&key(slot)].kernel(&slot.kernel);
        kernel.map_err(|error| within(at, slot, error))
    };
    plan.slots.iter().enumerate().map(kernel).collect()
}

/// An error of a slot.
pub(super) fn within(at: usize, slot: &Slot, error: Error) -> Error {
    error.within(format!("launch {at} of `{}`", slot.kernel))
}

/// What kernels are taken out of.
struct Program<'m> {
    module: &'m Module,
    /// `None` if it has instructions that are not known.
    references: Option<References<'m>>,
    imports: Option<String>,
}

impl<'m> Program<'m> {
    fn of(module: &'m Module) -> Self {
        let references = References::of(module).ok();
        Self { module, references, imports: access::imports(module) }
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        let (entry, function) = access::function_of(self.module, name)?;
        let modes = Modes::of(self.module, entry, name)?;
        let extract = self.references.as_ref().and_then(|all| all.extract(function).ok());
        Ok(Kernel {
            name: name.to_owned(),
            // It is refused later, for what it holds, if it is not refused for something else.
            module: extract.unwrap_or_else(|| self.module.clone()),
            function,
            modes,
            imports: self.imports.clone(),
        })
    }
}

/// A slot's kernel.
pub(super) struct Kernel {
    pub(super) name: String,
    /// Its function and what that calls, with all types and constants of its program.
    pub(super) module: Module,
    /// Its function.
    pub(super) function: u32,
    pub(super) modes: Modes,
    /// What its program needs of others.
    pub(super) imports: Option<String>,
}
