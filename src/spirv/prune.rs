//! Dead code, dropped.

use std::collections::HashMap;

use rspirv::spirv::{LinkageType, Op};

use super::grammar::{self, Role};
use super::index::{Definitions, IdSet};
use super::module::{Module, Section};
use super::stream::Stream;
use super::words::Instruction;
use crate::error::Result;

impl Module {
    /// Drops the functions that neither an entry point nor an export reaches, then what nothing
    /// refers to any more: global variables, types, constants, strings, names and decorations.
    ///
    /// A string that nothing referred to in the first place stays: producers state facts of the
    /// source by such.
    ///
    /// # Errors
    ///
    /// As [`grammar::ids`]: nothing is dropped from a module with instructions that are not known.
    pub(crate) fn prune(&mut self) -> Result<()> {
        let live = Marker::new(self).run()?;
        self.functions.retain(|function| live.contains(function.id));
        for section in Section::ALL {
            match section {
                Section::ExecutionModes | Section::Names => self
                    .section_mut(section)
                    .retain(|i| i.word(0).is_none_or(|target| live.contains(target))),
                Section::Sources | Section::ExtInstImports => self
                    .section_mut(section)
                    .retain(|i| i.result().is_none_or(|result| live.contains(result))),
                Section::Annotations => self.prune_annotations(&live),
                Section::Globals => self.prune_globals(&live),
                _ => {}
            }
        }
        self.tail.retain(|i| i.result().is_none_or(|result| live.contains(result)));
        Ok(())
    }

    fn prune_annotations(&mut self, live: &IdSet) {
        let mut kept = Stream::default();
        for instruction in self.section(Section::Annotations).iter() {
            let target = instruction.word(0).unwrap_or_default();
            match instruction.op() {
                Some(op @ (Op::GroupDecorate | Op::GroupMemberDecorate)) => {
                    let step = if op == Op::GroupDecorate { 1 } else { 2 };
                    let operands: Vec<_> = instruction.words_from(1).collect();
                    let targets = operands.chunks(step).filter(|t| live.contains(t[0]));
                    let targets: Vec<_> = targets.flatten().copied().collect();
                    if !targets.is_empty() && live.contains(target) {
                        kept.push(op, [target].into_iter().chain(targets));
                    }
                }
                _ if live.contains(target) => kept.push_instruction(&instruction),
                _ => {}
            }
        }
        *self.section_mut(Section::Annotations) = kept;
    }

    fn prune_globals(&mut self, live: &IdSet) {
        let mut kept = Stream::default();
        // A line is of what follows it.
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

struct Marker<'m> {
    module: &'m Module,
    definitions: Definitions<'m>,
    live: IdSet,
    /// Live ids whose own operands are still to be marked.
    found: Vec<u32>,
    /// Decorations and execution modes, by their target.
    said: HashMap<u32, Vec<Instruction<'m>>>,
    /// The groups that decorate a target.
    groups: HashMap<u32, Vec<u32>>,
}

impl<'m> Marker<'m> {
    fn new(module: &'m Module) -> Self {
        let (mut said, mut groups) = (HashMap::<_, Vec<_>>::new(), HashMap::<_, Vec<_>>::new());
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
                _ => said.entry(first).or_default().push(instruction),
            }
        }
        let (definitions, live) = (module.definitions(), IdSet::of(module));
        Self { module, definitions, live, found: Vec::new(), said, groups }
    }

    fn run(mut self) -> Result<IdSet> {
        let module = self.module;
        for instruction in module.section(Section::EntryPoints).iter() {
            self.mark_operands(&instruction)?;
        }
        let is_root = |kind| matches!(kind, LinkageType::Export | LinkageType::LinkOnceODR);
        for linkage in module.linkages().iter().filter(|linkage| is_root(linkage.kind)) {
            self.mark(linkage.target);
        }
        for instruction in module.section(Section::Sources).iter() {
            if instruction.op() != Some(Op::String) {
                self.mark_operands(&instruction)?;
            }
        }
        self.mark_lone_strings()?;
        for instruction in module.section(Section::Globals).iter().chain(module.tail.iter()) {
            // Instructions without a result are there for what they say, lines for their files.
            if instruction.result().is_none() && instruction.op() != Some(Op::TypeForwardPointer) {
                self.mark_operands(&instruction)?;
            }
        }
        while let Some(id) = self.found.pop() {
            self.follow(id)?;
        }
        Ok(self.live)
    }

    fn mark(&mut self, id: u32) {
        if self.live.insert(id) {
            self.found.push(id);
        }
    }

    fn mark_operands(&mut self, instruction: &Instruction<'_>) -> Result<()> {
        let mut ids = Vec::new();
        grammar::ids(instruction, &self.definitions, |at, role| {
            if role != Role::Result {
                ids.extend(instruction.word(at));
            }
        })?;
        ids.into_iter().for_each(|id| self.mark(id));
        Ok(())
    }

    fn follow(&mut self, id: u32) -> Result<()> {
        self.follow_said(id)?;
        let Some(location) = self.definitions.location(id) else { return Ok(()) };
        let Some(function) = location.function(self.module) else {
            return location.instruction(self.module).map_or(Ok(()), |i| self.mark_operands(&i));
        };
        // Also for what a function defines, so that nothing refers into one that is gone.
        let function = &self.module.functions[function];
        if id != function.id {
            self.mark(function.id);
            return Ok(());
        }
        for instruction in function.body.iter() {
            if let Some(result) = instruction.result().filter(|&result| result != id) {
                self.live.insert(result);
                self.follow_said(result)?;
            }
            self.mark_operands(&instruction)?;
        }
        Ok(())
    }

    /// What decorations and execution modes of an id refer to, and its groups.
    fn follow_said(&mut self, id: u32) -> Result<()> {
        for instruction in self.said.remove(&id).unwrap_or_default() {
            self.mark_operands(&instruction)?;
        }
        for group in self.groups.remove(&id).unwrap_or_default() {
            self.mark(group);
        }
        Ok(())
    }

    fn mark_lone_strings(&mut self) -> Result<()> {
        let mut used = IdSet::of(self.module);
        for stream in self.module.streams() {
            for instruction in stream.iter() {
                grammar::ids(&instruction, &self.definitions, |at, role| {
                    if role != Role::Result {
                        used.insert(instruction.word(at).unwrap_or_default());
                    }
                })?;
            }
        }
        for string in self.module.section(Section::Sources).iter() {
            if let Some(id) = string.result().filter(|&id| !used.contains(id)) {
                self.mark(id);
            }
        }
        Ok(())
    }
}
