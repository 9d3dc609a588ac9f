//! Final passes that make a merged module valid.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use rspirv::spirv::{Op, StorageClass};

use super::super::grammar::Role;
use super::super::ids::IdSet;
use super::super::index::located;
use super::super::module::{Module, Section};
use super::super::stream::{Stream, string_words};
use super::super::words::{Instruction, string_length};
use crate::error::Result;
use crate::grammar;

/// First version whose entry points list all global variables that they use. In earlier versions they list
/// only those of the storage classes Input and Output (OpEntryPoint).
const INTERFACES_ARE_COMPLETE: (u8, u8) = (1, 4);

/// Moves globals after what they refer to (2.4: definitions come before uses). Without this, an import that
/// is replaced by a variable of a later input would be used before its definition.
pub(super) fn order_globals(module: &mut Module) -> Result<()> {
    let definitions = module.definitions();
    let globals = module.section(Section::Globals);
    let mut forward = IdSet::of(module);
    for pointer in globals.iter().filter(|i| i.op() == Some(Op::TypeForwardPointer)) {
        pointer.word(0).map(|id| forward.insert(id));
    }
    let uses = |instruction: &Instruction<'_>, found: &mut dyn FnMut(u32)| {
        // Debug information may refer forwards, and types may refer to pointers that are declared in advance by
        // OpTypeForwardPointer.
        let is_free = matches!(instruction.op(), Some(Op::ExtInst | Op::ExtInstWithForwardRefsKHR));
        let is_type = instruction.result_type().is_none();
        grammar::ids(instruction, &definitions, |at, role| {
            let id = instruction.word(at).unwrap_or_default();
            if role != Role::Result && !is_free && !(is_type && forward.contains(id)) {
                found(id);
            }
        })
    };
    let mut is_ordered = true;
    for (location, instruction) in located((Section::Globals as u32, globals)) {
        uses(&instruction, &mut |id| is_ordered &= !definitions.is_global_from(id, location))?;
    }
    if is_ordered {
        return Ok(());
    }
    let ordered = sorted(globals, uses)?;
    *module.section_mut(Section::Globals) = ordered;
    Ok(())
}

/// Returns the globals, each after those that it uses. `uses` calls a function with the ids that an instruction
/// uses.
fn sorted(
    globals: &Stream,
    uses: impl Fn(&Instruction<'_>, &mut dyn FnMut(u32)) -> Result<()>,
) -> Result<Stream> {
    let instructions: Vec<_> = globals.iter().collect();
    let positions: HashMap<_, _> =
        instructions.iter().enumerate().filter_map(|(at, i)| Some((i.result()?, at))).collect();
    let mut ordered = Stream::default();
    let mut state = vec![State::Waiting; instructions.len()];
    // Depth first, without recursion: initializers can refer to one another in long chains.
    let mut stack = Vec::new();
    // Forward declarations of pointers come before all types.
    let is_forward = |at: &usize| instructions[*at].op() == Some(Op::TypeForwardPointer);
    for at in (0..instructions.len()).filter(is_forward) {
        ordered.push_instruction(&instructions[at]);
        state[at] = State::Done;
    }
    for at in 0..instructions.len() {
        stack.push(at);
        while let Some(&top) = stack.last() {
            match state[top] {
                State::Waiting => {
                    state[top] = State::Begun;
                    uses(&instructions[top], &mut |id| {
                        let used = positions.get(&id).copied();
                        stack.extend(used.filter(|&used| state[used] == State::Waiting));
                    })?;
                }
                State::Begun => {
                    ordered.push_instruction(&instructions[top]);
                    state[top] = State::Done;
                    stack.pop();
                }
                State::Done => _ = stack.pop(),
            }
        }
    }
    Ok(ordered)
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Waiting,
    Begun,
    Done,
}

/// Completes the interface of each entry point: adds the global variables that its calls reach. Kernels have
/// no output.
///
/// # Errors
///
/// Fails like [`ids`](crate::edit::ids).
pub fn complete_interfaces(module: &mut Module) -> Result<()> {
    let is_complete = module.header.version >= INTERFACES_ARE_COMPLETE;
    let definitions = module.definitions();
    let functions: HashMap<_, _> = module.functions.iter().map(|f| (f.id, f)).collect();
    let mut entry_points = Stream::default();
    // The set grows with what a kernel reaches, not with the module: there may be many kernels and many ids.
    let mut seen = HashSet::<u32, RandomState>::default();
    for entry in module.section(Section::EntryPoints).iter() {
        let name = entry.operands().get(2..).and_then(string_length).unwrap_or_default();
        let mut interface: Vec<u32> = entry.words_from(2 + name).collect();
        seen.clear();
        seen.extend(&interface);
        let mut pending = vec![entry.word(1).unwrap_or_default()];
        while let Some(id) = pending.pop() {
            let Some(definition) = definitions.get(id) else { continue };
            let is_global = definitions
                .location(id)
                .is_some_and(|location| location.function(module).is_none());
            let body = functions.get(&id).map(|function| function.body.iter());
            for instruction in body.into_iter().flatten().chain([definition]) {
                let op = instruction.op();
                if matches!(op, Some(Op::Variable | Op::UntypedVariableKHR)) && is_global {
                    let class = definition.word(2).and_then(StorageClass::from_u32);
                    if is_complete || class == Some(StorageClass::Input) {
                        interface.push(id);
                    }
                }
                grammar::ids(&instruction, &definitions, |at, role| {
                    let id = instruction.word(at).unwrap_or_default();
                    if role == Role::Operand && seen.insert(id) {
                        pending.push(id);
                    }
                })?;
            }
        }
        let mut listed = HashSet::new();
        interface.retain(|id| listed.insert(*id));
        if Stream::holds(2 + name + interface.len()) {
            let words = entry.words_from(0).take(2 + name).chain(interface);
            entry_points.push(Op::EntryPoint, words);
        } else {
            entry_points.push_instruction(&entry);
        }
    }
    *module.section_mut(Section::EntryPoints) = entry_points;
    Ok(())
}

/// Gives functions of the same name different names. The names have no meaning in the specification, but
/// Intel's compiler uses them as names of its own functions, and fails if two are equal.
pub(super) fn make_names_unique(module: &mut Module) {
    let functions: HashSet<_> = module.functions.iter().map(|function| function.id).collect();
    let linkages: HashMap<u32, String> =
        module.linkages().iter().map(|l| (l.target, l.name.to_owned())).collect();
    let mut taken: HashSet<String> = linkages.values().cloned().collect();
    let mut counts: HashMap<String, u32> = HashMap::new();
    let mut names = Stream::default();
    for name in module.section(Section::Names).iter() {
        let id = name.word(0).unwrap_or_default();
        let text = name.string(1).unwrap_or_default();
        if name.op() != Some(Op::Name) || !functions.contains(&id) || text.is_empty() {
            names.push_instruction(&name);
            continue;
        }
        if linkages.get(&id).is_some_and(|linked| linked == text) || taken.insert(text.to_owned()) {
            names.push_instruction(&name);
            continue;
        }
        let count = counts.entry(text.to_owned()).or_default();
        let unique = loop {
            *count += 1;
            let unique = format!("{text}.{count}");
            if taken.insert(unique.clone()) {
                break unique;
            }
        };
        names.push(Op::Name, [id].into_iter().chain(string_words(&unique)));
    }
    *module.section_mut(Section::Names) = names;
}
