//! Removal of exported definitions, which another module's definitions replace.

use std::collections::HashSet;

use rspirv::spirv::{Decoration, LinkageType, Op};

use super::module::{Function, Linkage, Module, Section};
use super::stream::{Stream, string_words};
use super::table::Class;
use super::words::Instruction;
use crate::error::{Error, Result};

/// Version of the results of [`remove_definitions`]. It is part of the keys of what is built from them. Each
/// change of the results must raise it.
pub const VERSION: u32 = 1;

/// Turns the definitions of exported symbols into imports of the same names and types. Calls and accesses
/// inside the module then refer to the definitions of other modules. Names that the module does not export
/// are ignored.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if a function is also the entry point of a kernel, which
/// cannot be imported.
pub fn remove_definitions(module: &mut Module, names: &[String]) -> Result<()> {
    let is_removed = |linkage: &Linkage<'_>| {
        linkage.kind != LinkageType::Import && names.iter().any(|name| name == linkage.name)
    };
    let linkages = module.linkages();
    let removed: Vec<_> = linkages.into_iter().filter(&is_removed).collect();
    check_entry_points(module, &removed)?;
    let removed: HashSet<u32> = removed.iter().map(|linkage| linkage.target).collect();
    if removed.is_empty() {
        return Ok(());
    }
    import(module, is_removed);
    declare_variables(module, &removed);
    let dead = declare_functions(module, &removed);
    let is_live = |id| !dead.contains(&id);
    module.section_mut(Section::Names).retain(|name| name.word(0).is_none_or(is_live));
    module.prune_annotations(is_live);
    Ok(())
}

/// Fails if a removed function is the function of a kernel.
fn check_entry_points(module: &Module, removed: &[Linkage<'_>]) -> Result<()> {
    for entry in module.section(Section::EntryPoints).iter() {
        let of_entry = |linkage: &&Linkage<'_>| entry.word(1) == Some(linkage.target);
        if let Some(linkage) = removed.iter().find(of_entry) {
            return Err(Error::unsupported(format!(
                "another module replaces `{}`, but that is also the function of the kernel `{}`, \
                 which cannot be imported; let the kernel call the function instead",
                linkage.name,
                entry.string(2).unwrap_or_default()
            )));
        }
    }
    Ok(())
}

/// Changes the linkage of symbols to `Import`.
fn import(module: &mut Module, is_removed: impl Fn(&Linkage<'_>) -> bool) {
    let mut annotations = Stream::default();
    for instruction in module.section(Section::Annotations).iter() {
        match Linkage::of(&instruction).filter(&is_removed) {
            None => annotations.push_instruction(&instruction),
            Some(Linkage { target, name, .. }) => {
                let operands = [target, Decoration::LinkageAttributes as u32].into_iter();
                let operands = operands.chain(string_words(name));
                annotations.push(Op::Decorate, operands.chain([LinkageType::Import as u32]));
            }
        }
    }
    *module.section_mut(Section::Annotations) = annotations;
}

/// Removes the initial values of variables.
fn declare_variables(module: &mut Module, removed: &HashSet<u32>) {
    let mut globals = Stream::default();
    for instruction in module.section(Section::Globals).iter() {
        let is_removed = instruction.result().is_some_and(|id| removed.contains(&id));
        // The operands before the initial value are kept.
        let kept = match instruction.op() {
            Some(op @ Op::Variable) if is_removed => Some((op, 3)),
            Some(op @ Op::UntypedVariableKHR) if is_removed => Some((op, 4)),
            _ => None,
        };
        match kept {
            Some((op, operands)) => globals.push(op, instruction.words_from(0).take(operands)),
            None => globals.push_instruction(&instruction),
        }
    }
    *module.section_mut(Section::Globals) = globals;
}

/// Removes the bodies of functions, and moves these functions before all that have a body (2.4). Returns the
/// ids that the bodies defined.
fn declare_functions(module: &mut Module, removed: &HashSet<u32>) -> HashSet<u32> {
    let mut dead = HashSet::new();
    for function in module.functions.iter_mut().filter(|known| removed.contains(&known.id)) {
        let is_body = |i: &Instruction<'_>| !i.class().is_some_and(Class::is_frame);
        dead.extend(function.body.iter().filter(is_body).filter_map(|i| i.result()));
        let mut has_body = false;
        function.body.retain(|instruction| {
            has_body |= is_body(instruction);
            !has_body || instruction.op() == Some(Op::FunctionEnd)
        });
    }
    let functions = std::mem::take(&mut module.functions);
    let (declared, defined): (Vec<_>, Vec<_>) =
        functions.into_iter().partition(Function::is_declaration);
    module.functions = declared.into_iter().chain(defined).collect();
    dead
}
