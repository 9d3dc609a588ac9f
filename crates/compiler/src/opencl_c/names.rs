//! Names in the text: the module's where they are unique, else with the id appended.

use std::collections::{BTreeMap, HashMap, HashSet};

use kiln_spirv::Module;
use kiln_spirv::edit::Section;
use rspirv::spirv::{Op, OpenclStd100Op as Std};

use super::is_identifier;

#[derive(Debug, Default)]
pub(super) struct Names {
    /// Names of the ids that have one.
    of_ids: HashMap<u32, String>,
    /// Names that are never changed: those of kernels, and those that other objects know.
    fixed: HashSet<String>,
}

impl Names {
    /// Chooses the names of a module's ids. `linked` are the names that it shares with other objects.
    pub(super) fn of<'m>(module: &'m Module, linked: impl Iterator<Item = &'m str>) -> Self {
        let mut bases = BTreeMap::new();
        for name in module.section(Section::Names).iter() {
            if let Some((id, text)) = name.named()
                && let Some(base) = identifier(text)
            {
                bases.insert(id, base);
            }
        }
        // The index of the function that contains an id.
        let mut owners = HashMap::new();
        for (at, function) in module.functions.iter().enumerate() {
            for instruction in function.body.iter().filter(|inner| inner.op() != Some(Op::Function))
            {
                if let Some(id) = instruction.result() {
                    owners.insert(id, at);
                }
            }
        }
        let mut fixed = kernels(module);
        fixed.extend(linked.map(str::to_owned));
        let reserved = reserved();
        let mut uses = HashMap::<_, u32>::new();
        for (id, base) in &bases {
            *uses.entry((owners.get(id), base.as_str())).or_default() += 1;
        }
        let is_unique = |id, base: &str| {
            let owner = owners.get(&id);
            uses.get(&(owner, base)) == Some(&1)
                && (owner.is_none() || !uses.contains_key(&(None, base)))
                && !reserved.contains(base)
                && !fixed.contains(base)
                && !looks_generated(base)
        };
        let name = |(&id, base): (&u32, &String)| {
            let is_unique = is_unique(id, base);
            (id, if is_unique { base.clone() } else { avoid(&fixed, format!("{base}_{id}")) })
        };
        Self { of_ids: bases.iter().map(name).collect(), fixed }
    }

    /// Returns the name of an id, which no other id has where it is visible. If the id has no name, the name is
    /// `prefix` with the id appended.
    pub(super) fn get(&self, id: u32, prefix: &str) -> String {
        let named = self.of_ids.get(&id).cloned();
        named.unwrap_or_else(|| self.beside_fixed(format!("{prefix}{id}")))
    }

    /// Makes a generated name differ from those that are never changed.
    pub(super) fn beside_fixed(&self, name: String) -> String {
        avoid(&self.fixed, name)
    }
}

/// Appends underscores to a name until it is not a fixed one.
fn avoid(fixed: &HashSet<String>, mut name: String) -> String {
    while fixed.contains(&name) {
        name.push('_');
    }
    name
}

/// Returns a name as an identifier, or `None` for an empty name.
fn identifier(name: &str) -> Option<String> {
    let name = name.strip_prefix("struct.").unwrap_or(name);
    let replace = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let text: String = name.chars().take(40).map(replace).collect();
    match text.chars().next()? {
        'a'..='z' | 'A'..='Z' => Some(text),
        _ => Some(format!("v{text}")),
    }
}

/// Returns names that the text uses for something else. If a name is missing here, compilers reject the text;
/// it does not take on another meaning.
fn reserved() -> HashSet<String> {
    let mut reserved: HashSet<_> = WORDS.iter().map(|word| (*word).to_owned()).collect();
    for function in (0..=u32::from(u8::MAX)).filter_map(Std::from_u32) {
        let name = format!("{function:?}");
        let unsigned = name.strip_prefix("s_").or_else(|| name.strip_prefix("u_"));
        reserved.extend(unsigned.map(str::to_owned));
        reserved.insert(name);
    }
    reserved
}

/// Returns the names of the kernels that are identifiers.
fn kernels(module: &Module) -> HashSet<String> {
    let entries = module.section(Section::EntryPoints).iter();
    let names = entries.filter_map(|entry| Some(entry.entry_point()?.1.to_owned()));
    names.filter(|name| is_identifier(name)).collect()
}

/// Returns whether the name is like a macro's or a type's, or like those generated for the text.
fn looks_generated(name: &str) -> bool {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let ends_in_number = stem.len() < name.len();
    !name.contains(|c: char| c.is_ascii_lowercase())
        || ["_t", "_any", "_private", "_local", "_global", "_constant"]
            .iter()
            .any(|end| name.ends_with(end))
        || PREFIXES.iter().any(|start| name.starts_with(start))
        || (ends_in_number
            && (stem == "v"
                || stem.ends_with('_')
                || stem.ends_with("_at")
                || WORDS.contains(&stem)))
}

#[rustfmt::skip]
const PREFIXES: [&str; 23] = [
    "as_", "async_", "atom", "bit_", "cl_", "convert_", "copy_to_", "get_", "image", "intel_",
    "fma_", "is", "mem_", "modulo_", "next_", "of_", "pocl_", "read_", "sub_group_", "vload", "vstore", "work_group_",
    "write_",
];

/// Keywords, types (which a number may follow), functions and macros, in lower case.
#[rustfmt::skip]
const WORDS: [&str; 73] = [
    "all", "any", "asm", "auto", "barrier", "bool", "break", "case", "char", "complex", "const",
    "constant", "continue", "default", "defined", "do", "dot", "double", "else", "enum", "extern",
    "false", "float", "for", "generic", "global", "goto", "half", "i386", "if", "imaginary",
    "inline", "int", "kernel", "linux", "local", "long", "main", "pipe", "private", "quad",
    "read_only", "register", "restrict", "return", "short", "signbit", "signed", "size_t",
    "sizeof", "static", "struct", "switch", "true", "typedef", "typeof", "uchar", "uint", "ulong",
    "uniform", "union", "unix", "unsigned", "ushort", "vec_step", "vec_type_hint", "void",
    "volatile", "wait_group_events", "while", "work_group_barrier", "work_group_size_hint",
    "write_only",
];
