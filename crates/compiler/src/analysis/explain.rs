//! Origins of the offsets and coordinates that kernels access, in the kernel's own names, for messages.
//!
//! The analysis says what is known of an offset. This module says why not more is known: it follows the
//! offset's calculation back to the values that it depends on, and picks the one that explains most. It decides
//! nothing about legality.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Definitions, Instruction, Location, Section, View, located, operand_ids};
use kiln_spirv::{file_name, user_symbol};
use rspirv::spirv::{BuiltIn, Op};

use super::access::Access;
use super::declaration::Parameter;
use super::pointer_uses::AccessOperands;

/// Maximum number of values that are followed for one access.
const MAX_VALUES: usize = 256;

/// Origin of an access in the source, and of its offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Value that the offsets depend on, and that is not known before the kernel runs.
    pub(crate) cause: Option<Cause>,
    /// Whether the offsets depend on the size of work-groups.
    pub(crate) is_by_group: bool,
    /// File and line of the source, if the module states them.
    pub(crate) line: Option<String>,
}

/// Value that an offset depends on. The later variants explain more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Counter of a loop, or another value that changes in one, by its name.
    Loop(Option<String>),
    /// Variable that is stored to in several places, by its name.
    Variable(Option<String>),
    /// Result of a function, by its name.
    Result(Option<String>),
    /// Contents of a buffer, by the name of the parameter.
    Contents(String),
}

impl Cause {
    /// Returns the name of the counter of a loop.
    pub(crate) fn counter(&self) -> Option<&str> {
        match self {
            Self::Loop(counter) => counter.as_deref(),
            _ => None,
        }
    }

    /// Returns the origin of an offset in words that follow "reads `x`".
    pub(crate) fn describe(&self) -> String {
        let named = |name: &Option<String>, what: &str| match name {
            Some(name) => format!("{what} `{name}`"),
            None => format!("a {}", what.trim_start_matches("the ")),
        };
        match self {
            Self::Loop(Some(counter)) => {
                format!("at an index that depends on `{counter}`, which changes in a loop")
            }
            Self::Loop(None) => "at an index that changes in a loop".to_owned(),
            Self::Variable(variable) => {
                format!(
                    "at an index from {}, which is not followed",
                    named(variable, "the variable")
                )
            }
            Self::Result(function) => {
                format!("at an index that {} returns", named(function, "the function"))
            }
            Self::Contents(buffer) => format!("at an index that it reads from {buffer}"),
        }
    }
}

/// Returns the origins of those accesses of a kernel's function whose offsets are not the same whenever they
/// run, and of all accesses with a line, by their word offset in the function's body.
pub(crate) fn origins(
    definitions: &Definitions<'_>,
    function: u32,
    accesses: &[Access],
    parameters: &[Parameter],
) -> HashMap<u32, Origin> {
    let module = definitions.module();
    let Some(at) = module.functions.iter().position(|known| known.id == function) else {
        return HashMap::new();
    };
    let body = &module.functions[at].body;
    let is_exact = |access: &Access| access.bytes.is_some_and(|bytes| bytes.start.is_exact());
    let places = accesses.iter().filter_map(|access| access.location.map(|at| at.offset));
    let inexact = accesses.iter().filter(|access| !is_exact(access));
    let inexact: HashSet<_> =
        inexact.filter_map(|access| access.location.map(|at| at.offset)).collect();
    let mut origins = HashMap::new();
    if !inexact.is_empty() {
        let search = Search::of(definitions, at, parameters);
        let found = inexact.iter().filter_map(|&offset| Some((offset, body.at(offset as usize)?)));
        origins.extend(found.map(|(offset, i)| (offset, search.origin(&i))));
    }
    let lines = lines(definitions, at);
    for offset in places {
        if let Some(line) = lines.get(&offset) {
            origins.entry(offset).or_insert_with(Origin::default).line = Some(line.clone());
        }
    }
    origins
}

/// Returns the origin of the offset of an access, in words that follow "reads `x`", if it is known.
pub(crate) fn origin(definitions: &Definitions<'_>, location: Location) -> Option<String> {
    let at = location.function(definitions.module())?;
    let access = location.instruction(definitions.module())?;
    let parameters = Parameter::all(definitions, definitions.module().functions[at].id);
    let origin = Search::of(definitions, at, &parameters).origin(&access);
    origin.cause.map(|cause| cause.describe())
}

/// Returns the file and line of an instruction's source, if the module states them.
pub(crate) fn line(definitions: &Definitions<'_>, at: Location) -> Option<String> {
    let function = at.function(definitions.module())?;
    lines(definitions, function).remove(&at.offset)
}

/// Returns the line of the source of each instruction of a function, by the instruction's word offset.
fn lines(definitions: &Definitions<'_>, function: usize) -> HashMap<u32, String> {
    let body = &definitions.module().functions[function].body;
    let (mut lines, mut current) = (HashMap::new(), None);
    if !body.iter().any(|i| i.op() == Some(Op::Line)) {
        return lines;
    }
    for (location, i) in located((0, body)) {
        match i.op() {
            Some(Op::Line) => {
                let (file, line) = match i.view() {
                    View::Line { file, line, .. } => (definitions.get(file), Some(line)),
                    _ => (None, None),
                };
                let file = file.and_then(|file| file.text()).map_or("", file_name);
                // Compilers write zero for code that belongs to no line.
                let line = line.filter(|line| *line != 0);
                current = line.map(|line| match file {
                    "" => format!("line {line}"),
                    _ => format!("{file}:{line}"),
                });
            }
            // A line holds until the end of its block.
            Some(Op::NoLine | Op::Label) => current = None,
            _ => {
                if let Some(line) = &current {
                    lines.insert(location.offset, line.clone());
                }
            }
        }
    }
    lines
}

/// Search for the origins of offsets in a function.
struct Search<'a, 'm> {
    definitions: &'a Definitions<'m>,
    /// Names of the function's parameters, by their ids.
    parameters: HashMap<u32, String>,
    names: HashMap<u32, &'m str>,
    built_ins: HashMap<u32, u32>,
}

impl<'a, 'm> Search<'a, 'm> {
    fn of(definitions: &'a Definitions<'m>, function: usize, parameters: &[Parameter]) -> Self {
        let module = definitions.module();
        let body = module.functions[function].body.iter();
        let ids = body.filter(|i| i.op() == Some(Op::FunctionParameter));
        let ids = ids.filter_map(|i| i.result()).zip(parameters).enumerate();
        let parameters = ids.map(|(at, (id, parameter))| (id, parameter.describe(at)));
        let names = module.section(Section::Names).iter().filter_map(|i| i.named());
        Self {
            definitions,
            parameters: parameters.collect(),
            names: names.map(|(id, name)| (id, user_symbol(name))).collect(),
            built_ins: module.built_ins().collect(),
        }
    }

    /// Returns the origin of the offset of an access.
    fn origin(&self, access: &Instruction<'_>) -> Origin {
        let mut origin = Origin::default();
        let operands = AccessOperands::of(self.definitions, access);
        let mut pending = match (access.view(), operands) {
            (
                View::ImageRead { coordinate, .. }
                | View::ImageWrite { coordinate, .. }
                | View::ImageSample { coordinate, .. },
                _,
            ) => vec![coordinate],
            (View::CopyMemory { target, .. } | View::CopyMemorySized { target, .. }, _) => {
                vec![target]
            }
            (_, Some(operands)) => {
                let offset = operands.vector.map(|vector| vector.offset);
                [operands.pointer].into_iter().chain(offset).collect()
            }
            (_, None) => access.pointer().into_iter().collect(),
        };
        let mut seen = HashSet::new();
        while let Some(id) = pending.pop() {
            if !seen.insert(id) || seen.len() > MAX_VALUES {
                continue;
            }
            let Some(i) = self.definitions.get(id) else { continue };
            let cause = match i.op() {
                Some(Op::Load) => self.loaded(&i, &mut origin),
                Some(Op::FunctionCall) => {
                    let name = i.called().and_then(|function| self.names.get(&function));
                    Some(Cause::Result(name.map(|name| (*name).to_owned())))
                }
                Some(Op::Phi) if self.depends_on(&i, id) => {
                    pending.extend(i.incoming().map(|(value, _)| value));
                    Some(Cause::Loop(self.names.get(&id).and_then(|name| source_name(name))))
                }
                // A condition decides between two values, and is not a part of either.
                Some(Op::Select) => {
                    if let View::Select { yes, no, .. } = i.view() {
                        pending.extend([yes, no]);
                    }
                    None
                }
                // All operands: for an access chain, the pointer and the indexes.
                Some(_) if i.result_type().is_some() => {
                    pending.extend(self.operands(&i));
                    None
                }
                _ => None,
            };
            origin.cause = origin.cause.max(cause);
        }
        origin
    }

    /// Returns the cause for an offset that depends on a load, if the loaded value is not known in advance.
    fn loaded(&self, load: &Instruction<'_>, origin: &mut Origin) -> Option<Cause> {
        let mut pointer = load.pointer()?;
        for _ in 0..MAX_VALUES {
            if let Some(&built_in) = self.built_ins.get(&pointer) {
                origin.is_by_group |= matches!(
                    BuiltIn::from_u32(built_in),
                    Some(
                        BuiltIn::LocalInvocationId
                            | BuiltIn::WorkgroupId
                            | BuiltIn::WorkgroupSize
                            | BuiltIn::EnqueuedWorkgroupSize
                            | BuiltIn::NumWorkgroups
                    )
                );
                return None;
            }
            if let Some(parameter) = self.parameters.get(&pointer) {
                return Some(Cause::Contents(parameter.clone()));
            }
            let i = self.definitions.get(pointer)?;
            if i.op() == Some(Op::Variable) {
                let name = self.names.get(&pointer).and_then(|name| source_name(name));
                return Some(Cause::Variable(name));
            }
            pointer = *self.operands(&i).first()?;
        }
        None
    }

    /// Returns whether the values of a phi depend on the phi itself.
    fn depends_on(&self, phi: &Instruction<'_>, id: u32) -> bool {
        let mut pending: Vec<_> = phi.incoming().map(|(value, _)| value).collect();
        let mut seen = HashSet::new();
        while let Some(value) = pending.pop() {
            if value == id {
                return true;
            }
            if seen.insert(value)
                && seen.len() <= MAX_VALUES
                && let Some(i) = self.definitions.get(value)
            {
                pending.extend(self.operands(&i));
            }
        }
        false
    }

    /// Returns the operands of an instruction that are ids. Blocks are not values.
    fn operands(&self, i: &Instruction<'_>) -> Vec<u32> {
        if i.op() == Some(Op::Phi) {
            return i.incoming().map(|(value, _)| value).collect();
        }
        let mut operands = Vec::new();
        // An unknown instruction explains nothing.
        _ = operand_ids(i, self.definitions, |id| operands.push(id));
        operands
    }
}

/// Returns the name of a variable in the source from the name of a value. LLVM names a value after the variable
/// that it was stored to, followed by numbers, as in `i.013`; other names are those of temporary values.
fn source_name(name: &str) -> Option<String> {
    const TEMPORARY: [&str; 7] = ["indvars", "retval", "cond", "spec", "storemerge", "tmp", "lsr"];
    let (stem, rest) = name.split_once('.').unwrap_or((name, ""));
    let is_number = rest.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_identifier = stem.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && stem.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_variable = is_identifier && (is_number || rest == "addr") && !TEMPORARY.contains(&stem);
    is_variable.then(|| stem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_values_are_those_of_the_source_without_numbers() {
        let named = ["i", "i.0", "i.013", "row_2.0.1", "n.addr", "x"].map(source_name);
        let expected = ["i", "i", "i", "row_2", "n", "x"].map(|name| Some(name.to_owned()));
        assert_eq!(named, expected);
        assert_eq!(
            ["indvars.iv", "for.body", "cond.i", "", "1", "a-b"].map(source_name),
            [const { None }; 6]
        );
    }

    #[test]
    fn causes_are_described_by_name_if_they_have_one() {
        let counter = |name: Option<&str>| Cause::Loop(name.map(str::to_owned));
        let texts = [
            counter(Some("i")),
            counter(None),
            Cause::Variable(None),
            Cause::Result(Some("next".into())),
            Cause::Contents("`src`".into()),
        ];
        assert_eq!(
            texts.map(|cause| cause.describe()),
            [
                "at an index that depends on `i`, which changes in a loop",
                "at an index that changes in a loop",
                "at an index from a variable, which is not followed",
                "at an index that the function `next` returns",
                "at an index that it reads from `src`",
            ]
        );
    }
}
