//! Variables of fused kernels that are written before they are read.
//!
//! A check of a fused kernel cannot find this out again: a function writes a variable, another one reads it, and
//! the proof was about whole launches. Where a variable takes the place of a buffer, each work-item or work-group
//! [reads](crate::fusion::private_legality) what it [wrote or copied](crate::fusion::local_legality) before, or what a stage
//! [wrote for it](crate::fusion::recompute). So the variables have a name by which they are found. Modules that are to be
//! fused lose such names, so that only fusion gives them.

use std::collections::HashSet;

use kiln_spirv::Module;
use kiln_spirv::edit::{Definitions, Section, string_words};
use rspirv::spirv::Op;

/// Name of the variables.
const NAME: &str = "kiln.intermediate";

/// Marks a variable as written before it is read.
pub(crate) fn mark(module: &mut Module, variable: u32) {
    let words = [variable].into_iter().chain(string_words(NAME));
    module.section_mut(Section::Names).push(Op::Name, words);
}

/// Drops the marks of a module that fusion did not make.
pub(crate) fn drop_marks(module: &mut Module) {
    module.section_mut(Section::Names).retain(|i| i.named().is_none_or(|(_, name)| name != NAME));
}

/// Returns the ids of the marked variables of a fused module.
pub(crate) fn variables(definitions: &Definitions<'_>) -> HashSet<u32> {
    let names = definitions.module().section(Section::Names).iter();
    names.filter_map(|i| i.named()).filter(|(_, name)| *name == NAME).map(|(id, _)| id).collect()
}
