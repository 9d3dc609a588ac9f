//! Removal of dead code.

use std::collections::HashMap;

use rspirv::spirv::{LinkageType, Op};

use super::grammar::{self, Role};
use super::ids::IdSet;
use super::index::Definitions;
use super::intern::interned;
use super::module::{Module, Section};
use super::stream::Stream;
use super::words::Instruction;
use crate::error::Result;

impl Module {
    /// Removes the functions that neither an entry point nor an export reaches. Then removes what is no longer
    /// referred to: global variables, types, constants, strings, names and decorations.
    ///
    /// A string that was never referred to stays, because producers state facts of the source by such strings.
    ///
    /// # Errors
    ///
    /// Fails like [`grammar::ids`]: nothing is removed from a module whose live code has unknown instructions.
    pub fn prune(&mut self) -> Result<()> {
        let references = References::of(self)?;
        let mut marker = Marker::new(&references);
        for instruction in self.section(Section::EntryPoints).iter() {
            marker.mark_operands(&instruction)?;
        }
        let is_root = |kind| matches!(kind, LinkageType::Export | LinkageType::LinkOnceODR);
        for linkage in self.linkages().iter().filter(|linkage| is_root(linkage.kind)) {
            marker.mark(linkage.target);
        }
        let live = marker.run()?;
        self.keep(&live);
        Ok(())
    }

    /// Removes functions, globals, strings, names, decorations and execution modes whose ids are not live.
    fn keep(&mut self, live: &IdSet) {
        self.functions.retain(|function| live.contains(function.id));
        for section in Section::ALL {
            match section {
                Section::ExecutionModes | Section::Names => self
                    .section_mut(section)
                    .retain(|i| i.word(0).is_none_or(|target| live.contains(target))),
                Section::Sources | Section::ExtInstImports => self
                    .section_mut(section)
                    .retain(|i| i.result().is_none_or(|result| live.contains(result))),
                Section::Annotations => self.prune_annotations(|id| live.contains(id)),
                Section::Globals => self.prune_globals(live),
                _ => {}
            }
        }
        self.tail.retain(|i| i.result().is_none_or(|result| live.contains(result)));
    }

    /// Removes the annotations of ids that are not live.
    pub(super) fn prune_annotations(&mut self, is_live: impl Fn(u32) -> bool) {
        let mut kept = Stream::default();
        for instruction in self.section(Section::Annotations).iter() {
            let target = instruction.word(0).unwrap_or_default();
            match instruction.op() {
                Some(op @ (Op::GroupDecorate | Op::GroupMemberDecorate)) => {
                    let step = if op == Op::GroupDecorate { 1 } else { 2 };
                    let operands: Vec<_> = instruction.words_from(1).collect();
                    let targets = operands.chunks(step).filter(|t| is_live(t[0]));
                    let targets: Vec<_> = targets.flatten().copied().collect();
                    if !targets.is_empty() && is_live(target) {
                        kept.push(op, [target].into_iter().chain(targets));
                    }
                }
                _ if is_live(target) => kept.push_instruction(&instruction),
                _ => {}
            }
        }
        *self.section_mut(Section::Annotations) = kept;
    }

    fn prune_globals(&mut self, live: &IdSet) {
        let mut kept = Stream::default();
        // An OpLine belongs to the instruction that follows it.
        let mut line: Option<Instruction<'_>> = None;
        for instruction in self.section(Section::Globals).iter() {
            let is_kept = match instruction.op() {
                Some(Op::Line | Op::NoLine) => {
                    line = Some(instruction);
                    continue;
                }
                Some(Op::TypeForwardPointer) => {
                    instruction.word(0).is_some_and(|pointer| live.contains(pointer))
                }
                _ => instruction.result().is_none_or(|result| live.contains(result)),
            };
            if is_kept {
                if let Some(line) = line.take() {
                    kept.push_instruction(&line);
                }
                kept.push_instruction(&instruction);
            }
        }
        *self.section_mut(Section::Globals) = kept;
    }
}

/// Index of the references in a module. It is built once, for any number of extractions.
#[derive(Debug)]
pub struct References<'m> {
    module: &'m Module,
    definitions: Definitions<'m>,
    /// Decorations and execution modes, by their target.
    decorations: IdLists<Instruction<'m>>,
    /// Decoration groups, by their target.
    groups: IdLists<u32>,
    /// Ids of strings that no instruction refers to.
    lone_strings: Vec<u32>,
}

type IdLists<T> = HashMap<u32, Vec<T>, foldhash::fast::RandomState>;

impl<'m> References<'m> {
    /// Indexes a module.
    ///
    /// # Errors
    ///
    /// Fails like [`grammar::ids`] if the module has strings: it is not known which of them unknown
    /// instructions use.
    pub fn of(module: &'m Module) -> Result<Self> {
        let definitions = module.definitions();
        let lone_strings = lone_strings(module, &definitions)?;
        let mut decorations = IdLists::<Instruction<'_>>::default();
        let mut groups = IdLists::default();
        let annotations = module.section(Section::Annotations).iter();
        for instruction in annotations.chain(module.section(Section::ExecutionModes).iter()) {
            let Some(first) = instruction.word(0) else { continue };
            match instruction.op() {
                Some(op @ (Op::GroupDecorate | Op::GroupMemberDecorate)) => {
                    let step = if op == Op::GroupDecorate { 1 } else { 2 };
                    for target in instruction.words_from(1).step_by(step) {
                        groups.entry(target).or_default().push(first);
                    }
                }
                _ => decorations.entry(first).or_default().push(instruction),
            }
        }
        Ok(Self { module, definitions, decorations, groups, lone_strings })
    }

    /// Returns a module that holds a function, everything that it refers to, and all types and constants.
    /// Ids are unchanged. The module has no entry points.
    ///
    /// # Errors
    ///
    /// Fails like [`grammar::ids`] if the function, or what it refers to, has unknown instructions.
    pub fn extract(&self, function: u32) -> Result<Module> {
        let mut marker = Marker::new(self);
        marker.mark(function);
        let globals = self.module.section(Section::Globals).iter();
        for instruction in globals.filter(|instruction| interned(instruction).is_some()) {
            instruction.result().into_iter().for_each(|id| marker.mark(id));
        }
        let live = marker.run()?;
        let functions = self.module.functions.iter().filter(|known| live.contains(known.id));
        let mut extract = Module {
            header: self.module.header,
            sections: self.module.sections.clone(),
            functions: functions.cloned().collect(),
            tail: self.module.tail.clone(),
        };
        for section in [Section::EntryPoints, Section::ExecutionModes] {
            *extract.section_mut(section) = Stream::default();
        }
        extract.keep(&live);
        Ok(extract)
    }
}

/// Returns the strings that no instruction refers to. Producers state facts of the source by such strings.
fn lone_strings(module: &Module, definitions: &Definitions<'_>) -> Result<Vec<u32>> {
    let strings = module.section(Section::Sources).iter().filter(|i| i.op() == Some(Op::String));
    let strings: Vec<_> = strings.filter_map(|i| i.result()).collect();
    if strings.is_empty() {
        return Ok(strings);
    }
    let mut used = IdSet::of(module);
    for instruction in module.streams().flat_map(Stream::iter) {
        grammar::ids(&instruction, definitions, |at, role| {
            if role != Role::Result {
                used.insert(instruction.word(at).unwrap_or_default());
            }
        })?;
    }
    Ok(strings.into_iter().filter(|&id| !used.contains(id)).collect())
}

/// Search for the live ids of a module: those that the marked ids refer to, directly or through others.
struct Marker<'a, 'm> {
    references: &'a References<'m>,
    live: IdSet,
    /// Live ids whose own operands are still to be marked.
    pending: Vec<u32>,
}

impl<'a, 'm> Marker<'a, 'm> {
    fn new(references: &'a References<'m>) -> Self {
        Self { references, live: IdSet::of(references.module), pending: Vec::new() }
    }

    /// Returns all live ids: those marked before, those that are always live, and everything they refer to.
    fn run(mut self) -> Result<IdSet> {
        let &References { module, ref lone_strings, .. } = self.references;
        for instruction in module.section(Section::Sources).iter() {
            if instruction.op() != Some(Op::String) {
                self.mark_operands(&instruction)?;
            }
        }
        lone_strings.iter().for_each(|&string| self.mark(string));
        for instruction in module.section(Section::Globals).iter().chain(module.tail.iter()) {
            // Instructions without a result are kept for what they state, lines for their files.
            if instruction.result().is_none() && instruction.op() != Some(Op::TypeForwardPointer) {
                self.mark_operands(&instruction)?;
            }
        }
        while let Some(id) = self.pending.pop() {
            self.follow(id)?;
        }
        Ok(self.live)
    }

    fn mark(&mut self, id: u32) {
        if self.live.insert(id) {
            self.pending.push(id);
        }
    }

    fn mark_operands(&mut self, instruction: &Instruction<'_>) -> Result<()> {
        grammar::ids(instruction, &self.references.definitions, |at, role| {
            if role != Role::Result
                && let Some(id) = instruction.word(at)
                && self.live.insert(id)
            {
                self.pending.push(id);
            }
        })
    }

    /// Marks what the definition and the decorations of an id refer to.
    fn follow(&mut self, id: u32) -> Result<()> {
        self.follow_decorations(id)?;
        let References { module, definitions, .. } = self.references;
        let Some(location) = definitions.location(id) else { return Ok(()) };
        let Some(function) = location.function(module) else {
            return location.instruction(module).map_or(Ok(()), |i| self.mark_operands(&i));
        };
        // An id that a function defines keeps the whole function, so that no reference to a removed
        // definition stays.
        let function = &module.functions[function];
        if id != function.id {
            self.mark(function.id);
            return Ok(());
        }
        for instruction in function.body.iter() {
            if let Some(result) = instruction.result().filter(|&result| result != id) {
                self.live.insert(result);
                self.follow_decorations(result)?;
            }
            self.mark_operands(&instruction)?;
        }
        Ok(())
    }

    /// Marks what the decorations and execution modes of an id refer to, and the id's decoration groups.
    fn follow_decorations(&mut self, id: u32) -> Result<()> {
        for instruction in self.references.decorations.get(&id).into_iter().flatten() {
            self.mark_operands(instruction)?;
        }
        for &group in self.references.groups.get(&id).into_iter().flatten() {
            self.mark(group);
        }
        Ok(())
    }
}
