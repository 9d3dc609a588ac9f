//! Names of Kiln's own in modules.
//!
//! Drivers, and readers of SPIR-V in front of them, give meaning to names: a function with the name of a built-in one
//! may be replaced by it, whatever its code says, and of two things with one name they choose one. What a module was
//! checked for then no longer holds. So a checked module gets names that no reader knows.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{LinkageType, Op};

use super::module::{Linkage, Module, Section};
use super::stream::{Stream, string_words};
use crate::error::{Error, Result};

/// Beginning of a kernel's name in a module whose names are Kiln's own.
const PREFIX: &str = "kiln_kernel_";

/// Beginning of the name of a variable outside of functions in such a module.
const VARIABLE: &str = "kiln_variable_";

/// Beginning of the name of a struct, or of a type without known members, in such a module.
const TYPE: &str = "kiln_type_";

/// Beginning of the name of a value inside of a function in such a module.
const VALUE: &str = "kiln_value_";

/// Returns the name that users know a kernel by.
#[must_use]
pub fn user_name(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// Returns the name that users know a variable, a type or a value by.
#[must_use]
pub fn user_symbol(name: &str) -> &str {
    let mut prefixes = [VARIABLE, TYPE, VALUE].into_iter();
    prefixes.find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Gives all kernels, functions, variables and types of a module names that Kiln made, removes the kernels for which
/// `is_kept` does not hold, and the exports: nothing is linked with the module any more. Code stays as it is.
///
/// # Errors
///
/// * [`Unsupported`](crate::ErrorKind::Unsupported) if two kernels have the same name or are the same function, or if
///   the module has exports in decoration groups.
/// * Fails like [`Module::prune`] if a kernel is removed.
pub fn own_names(module: &mut Module, is_kept: impl Fn(&str) -> bool) -> Result<()> {
    check_entry_points(module)?;
    let mut has_removed = false;
    module.section_mut(Section::EntryPoints).retain(|i| {
        let is_kept = i.string(2).is_some_and(|name| is_kept(user_name(name)));
        has_removed |= !is_kept;
        is_kept
    });
    remove_exports(module)?;
    if has_removed {
        module.prune()?;
    }
    let entries = rename_entry_points(module);
    rename_functions(module, &entries);
    rename_symbols(module);
    rename_in_strings(module, &entries.into_values().collect());
    Ok(())
}

/// Checks that each kernel has a name and a function that no other one has.
fn check_entry_points(module: &Module) -> Result<()> {
    let (mut names, mut functions) = (HashSet::new(), HashSet::new());
    for i in module.section(Section::EntryPoints).iter() {
        let (Some(Op::EntryPoint), Some(name)) = (i.op(), i.string(2)) else {
            return Err(Error::unsupported(format!(
                "the module declares a kernel by {}, or with a name that is not UTF-8",
                i.name()
            )));
        };
        if !names.insert(user_name(name)) {
            return Err(Error::unsupported(format!("the module has two kernels named `{name}`")));
        }
        if !i.word(1).is_some_and(|function| functions.insert(function)) {
            return Err(Error::unsupported(format!(
                "the module has another kernel with the same function as `{name}`"
            )));
        }
    }
    Ok(())
}

/// Removes the linkage of what a module defines.
fn remove_exports(module: &mut Module) -> Result<()> {
    let is_export = |linkage: &Linkage<'_>| linkage.kind != LinkageType::Import;
    let groups: HashSet<_> = {
        let annotations = module.section(Section::Annotations).iter();
        annotations
            .filter(|i| i.op() == Some(Op::GroupDecorate))
            .filter_map(|i| i.word(0))
            .collect()
    };
    let is_grouped = |linkage: &Linkage<'_>| groups.contains(&linkage.target);
    let mut annotations = module.section(Section::Annotations).iter();
    if annotations.any(|i| Linkage::of(&i).is_some_and(|linkage| is_grouped(&linkage))) {
        return Err(Error::unsupported("the module exports or imports by a decoration group"));
    }
    let is_kept = |i: &super::words::Instruction<'_>| {
        !Linkage::of(i).is_some_and(|linkage| is_export(&linkage))
    };
    module.section_mut(Section::Annotations).retain(is_kept);
    Ok(())
}

/// Renames the kernels. Returns the names that users know them by, by the functions' ids.
fn rename_entry_points(module: &mut Module) -> HashMap<u32, String> {
    let mut entries = HashMap::new();
    let mut renamed = Stream::default();
    for i in module.section(Section::EntryPoints).iter() {
        let (Some(function), Some(name)) = (i.word(1), i.string(2)) else {
            renamed.push_instruction(&i);
            continue;
        };
        let user = user_name(name);
        // The name is followed by the ids of the interface.
        let interface = i.words_from(2 + string_words(name).count());
        let own = format!("{PREFIX}{user}");
        let words = i.words_from(0).take(2).chain(string_words(&own)).chain(interface);
        renamed.push(Op::EntryPoint, words.collect::<Vec<_>>());
        entries.insert(function, user.to_owned());
    }
    *module.section_mut(Section::EntryPoints) = renamed;
    entries
}

/// Renames the functions that the module defines.
fn rename_functions(module: &mut Module, entries: &HashMap<u32, String>) {
    let defined = module.functions.iter().filter(|function| !function.is_declaration());
    let defined: Vec<_> = defined.map(|function| function.id).collect();
    let ids: HashSet<_> = defined.iter().copied().collect();
    let names = module.section_mut(Section::Names);
    names.retain(|i| {
        let is_of_function = i.word(0).is_some_and(|id| ids.contains(&id));
        !(i.op() == Some(Op::Name) && is_of_function)
    });
    for (number, id) in defined.into_iter().enumerate() {
        let name = match entries.get(&id) {
            Some(kernel) => format!("{PREFIX}{kernel}"),
            None => format!("kiln_function_{number}"),
        };
        names.push(Op::Name, [id].into_iter().chain(string_words(&name)).collect::<Vec<_>>());
    }
}

/// Renames variables, types and the values inside of functions. LLVM has names for structs and for types whose members
/// are not known: drivers take those of some names for images, samplers or queues. Parameters keep their names.
fn rename_symbols(module: &mut Module) {
    let mut prefixes = HashMap::new();
    for i in module.section(Section::Globals).iter() {
        let prefix = match i.op() {
            Some(Op::Variable) => VARIABLE,
            Some(Op::TypeStruct | Op::TypeOpaque) => TYPE,
            _ => continue,
        };
        prefixes.extend(i.result().map(|id| (id, prefix)));
    }
    for i in module.functions.iter().flat_map(|function| function.body.iter()) {
        if !matches!(i.op(), Some(Op::Function | Op::FunctionParameter)) {
            prefixes.extend(i.result().map(|id| (id, VALUE)));
        }
    }
    let mut renamed = Stream::default();
    for i in module.section(Section::Names).iter() {
        let id = i.word(0).filter(|_| i.op() == Some(Op::Name));
        match id.and_then(|id| Some((id, prefixes.get(&id)?))) {
            Some((id, prefix)) => {
                let name = format!("{prefix}{}", user_symbol(i.string(1).unwrap_or_default()));
                let words = [id].into_iter().chain(string_words(&name));
                renamed.push(Op::Name, words.collect::<Vec<_>>());
            }
            None => renamed.push_instruction(&i),
        }
    }
    *module.section_mut(Section::Names) = renamed;
}

/// Renames the kernels in clang's descriptions of their parameters, such as `kernel_arg_type.saxpy.float,float*,`.
fn rename_in_strings(module: &mut Module, kernels: &HashSet<String>) {
    let mut renamed = Stream::default();
    for i in module.section(Section::Sources).iter() {
        let text = (i.op() == Some(Op::String)).then(|| i.string(1)).flatten();
        let own = text.and_then(|text| {
            let (what, rest) = text.split_once('.')?;
            let (kernel, list) = rest.rsplit_once('.')?;
            let is_description = matches!(what, "kernel_arg_type" | "kernel_arg_type_qual");
            let kernel = user_name(kernel);
            let is_known = is_description && kernels.contains(kernel);
            is_known.then(|| format!("{what}.{PREFIX}{kernel}.{list}"))
        });
        match own.zip(i.word(0)) {
            Some((text, id)) => {
                let words = [id].into_iter().chain(string_words(&text));
                renamed.push(Op::String, words.collect::<Vec<_>>());
            }
            None => renamed.push_instruction(&i),
        }
    }
    *module.section_mut(Section::Sources) = renamed;
}
