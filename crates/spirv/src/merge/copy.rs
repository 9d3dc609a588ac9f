//! Copies the inputs into the result, with new ids.
//!
//! The globals of all inputs are copied first. Types then have their final ids, by which signatures are
//! compared. Names, annotations and function bodies follow. An id is redirected (as an import to its export),
//! shared (if the result already has something equal), or gets a new id when it is first seen.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{Decoration, LinkageType, Op};

use super::super::grammar::Role;
use super::super::ids::{IdMap, IdSet};
use super::super::intern::{Interner, Traits, interned};
use super::super::module::{Function, Linkage, Module, Section};
use super::super::stream::Stream;
use super::super::words::{Header, Instruction};
use super::groups::{self, Member, Operand};
use super::resolve::Resolution;
use super::types::{self, Pair, Signature, in_words};
use super::{Dropped, Ids, Options, Source, merge_error};
use crate::error::Result;
use crate::grammar;

/// State of a merge: the inputs, and the result as far as it is copied.
pub(super) struct Copier<'a, 'm> {
    sources: &'a [Source<'m>],
    options: Options,
    duplicates: Vec<Pair>,
    replaced: Vec<Pair>,
    /// For each input, the functions whose calls need casts.
    calls: Vec<HashMap<u32, Signature>>,
    module: Module,
    ids: Ids,
    /// For each input, the ids that are redirected, with all ids defined inside of them.
    dropped: Dropped,
    /// For each input, the ids that are not copied, because the result already has an equal type, constant,
    /// string or built-in variable.
    shared: Vec<IdSet>,
    /// Ids of each group of types that refer to one another, by the description of the group.
    groups: HashMap<Box<[u32]>, Vec<u32>>,
    /// Instructions that the result has only once: capabilities, extensions, sources and so on.
    unique: HashSet<Vec<u8>>,
    spec_ids: Vec<HashMap<u32, u32>>,
    used_spec_ids: HashSet<u32>,
    /// Lower bound of the `SpecId`s that are still assigned.
    next_spec_id: u32,
}

impl<'a, 'm> Copier<'a, 'm> {
    pub(super) fn new(
        sources: &'a [Source<'m>],
        resolution: Resolution,
        header: Header,
        options: Options,
    ) -> Self {
        let Resolution { redirects, duplicates, replaced } = resolution;
        let mut dropped = Vec::new();
        for (source, redirects) in sources.iter().zip(&redirects) {
            let mut set = IdSet::of(source.module);
            redirects.keys().for_each(|&id| _ = set.insert(id));
            let functions = source.module.functions.iter();
            for function in functions.filter(|function| redirects.contains_key(&function.id)) {
                function.body.iter().filter_map(|i| i.result()).for_each(|id| _ = set.insert(id));
            }
            dropped.push(set);
        }
        let ids = Ids {
            maps: sources.iter().map(|source| IdMap::of(source.module)).collect(),
            redirects,
            texts: HashMap::new(),
            first_bound: header.bound,
            next: header.bound,
        };
        Self {
            sources,
            options,
            duplicates,
            replaced,
            calls: vec![HashMap::new(); sources.len()],
            module: Module::empty(header),
            ids,
            dropped,
            shared: sources.iter().map(|source| IdSet::of(source.module)).collect(),
            groups: HashMap::new(),
            unique: HashSet::new(),
            spec_ids: vec![HashMap::new(); sources.len()],
            used_spec_ids: HashSet::new(),
            next_spec_id: 0,
        }
    }

    pub(super) fn finish(mut self) -> (Module, Vec<Vec<(u32, u32)>>) {
        self.module.header.bound = self.ids.next;
        let sorted = |ids: HashMap<u32, u32>| {
            let mut ids: Vec<_> = ids.into_iter().collect();
            ids.sort_unstable();
            ids
        };
        (self.module, self.spec_ids.into_iter().map(sorted).collect())
    }

    pub(super) fn run(&mut self) -> Result<()> {
        let sources = self.sources;
        let mut interner = Interner::default();
        let mut built_ins = HashMap::new();
        for (index, source) in sources.iter().enumerate() {
            self.copy_section(index, Section::Capabilities)?;
            self.copy_section(index, Section::Extensions)?;
            self.copy_section(index, Section::ExtInstImports)?;
            self.copy_section(index, Section::MemoryModel)?;
            self.copy_section(index, Section::Sources)?;
            self.copy_globals(index, &mut interner, &mut built_ins)
                .map_err(|error| source.within(&error))?;
        }
        self.calls = types::check(self.sources, &self.replaced, &self.ids)?;
        self.check_duplicates()?;
        for (index, source) in sources.iter().enumerate() {
            self.copy_section(index, Section::EntryPoints)?;
            self.copy_section(index, Section::ExecutionModes)?;
            self.copy_names(index).map_err(|error| source.within(&error))?;
            self.copy_section(index, Section::ModuleProcessed)?;
            self.copy_annotations(index).map_err(|error| source.within(&error))?;
        }
        // Declarations come before definitions (2.4).
        self.copy_functions(Function::is_declaration)?;
        self.copy_functions(|function| !function.is_declaration())?;
        for (index, source) in sources.iter().enumerate() {
            let mut tail = std::mem::take(&mut self.module.tail);
            for instruction in source.module.tail.iter() {
                self.push(index, &mut tail, &instruction).map_err(|error| source.within(&error))?;
            }
            self.module.tail = tail;
        }
        Ok(())
    }

    /// Appends an instruction with the ids that it has in the result.
    fn push(
        &mut self,
        index: usize,
        stream: &mut Stream,
        instruction: &Instruction<'_>,
    ) -> Result<()> {
        let definitions = &self.sources[index].definitions;
        stream.push_renumbered(instruction, definitions, |id, _| self.ids.map(index, id))
    }

    /// Copies the instructions of a section, except those that the result already has. Strings and imports of
    /// extended instructions share an id if their texts are equal.
    fn copy_section(&mut self, index: usize, section: Section) -> Result<()> {
        let source = &self.sources[index];
        for instruction in source.module.section(section).iter() {
            let mut copied = Stream::default();
            if let Some(id) = instruction.result() {
                let key = [
                    &instruction.opcode().to_le_bytes()[..],
                    &[section as u8],
                    instruction.bytes_from(1),
                ];
                if let Some(known) = self.ids.text(key.concat(), index, id)? {
                    self.ids.maps[index].insert(id, known);
                    self.shared[index].insert(id);
                    continue;
                }
            }
            self.push(index, &mut copied, &instruction).map_err(|error| source.within(&error))?;
            if instruction.result().is_some()
                || self.unique.insert(copied.words().as_flattened().to_vec())
            {
                self.module.section_mut(section).append(&copied);
            }
        }
        Ok(())
    }

    fn copy_globals(
        &mut self,
        index: usize,
        interner: &mut Interner,
        built_ins: &mut HashMap<(u32, u32), u32>,
    ) -> Result<()> {
        let source = &self.sources[index];
        let traits = Traits::of(source.module);
        groups::each_group(source, |group| match group {
            [single] => self.share(index, single, &traits, interner),
            group => self.share_group(index, group, &traits),
        })?;
        let mut globals = std::mem::take(self.module.section_mut(Section::Globals));
        for instruction in source.module.section(Section::Globals).iter() {
            let declared = match instruction.op() {
                Some(Op::TypeForwardPointer) => instruction.word(0),
                _ => instruction.result(),
            };
            if declared.is_some_and(|id| self.is_omitted(index, id)) {
                continue;
            }
            if let Some(id) = instruction.result()
                && let Some(&built_in) = source.built_ins.get(&id)
            {
                let is_new = self.ids.known(index, id).is_none();
                let ty = self.ids.map(index, instruction.word(0).unwrap_or_default())?;
                if is_new && let Some(&known) = built_ins.get(&(built_in, ty)) {
                    self.map_to(index, id, known);
                    continue;
                }
                let new = self.ids.map(index, id)?;
                built_ins.insert((built_in, ty), new);
            }
            self.push(index, &mut globals, &instruction)?;
        }
        *self.module.section_mut(Section::Globals) = globals;
        Ok(())
    }

    /// Appends a call of another input's function, with casts between its pointer types and the caller's.
    fn push_call(
        &mut self,
        index: usize,
        body: &mut Stream,
        call: &Instruction<'_>,
        signature: &Signature,
    ) -> Result<()> {
        let mut words = Vec::new();
        for id in call.words_from(0) {
            words.push(self.ids.map(index, id)?);
        }
        let [ty, result, _, arguments @ ..] = words.as_mut_slice() else { return Ok(()) };
        for (argument, parameter) in arguments.iter_mut().zip(&signature.parameters) {
            if let &Some(parameter) = parameter {
                let cast = self.ids.fresh()?;
                body.push(Op::Bitcast, [parameter, cast, *argument]);
                *argument = cast;
            }
        }
        let Some(returned) = signature.returned else {
            body.push(Op::FunctionCall, words);
            return Ok(());
        };
        let cast = [*ty, *result, self.ids.fresh()?];
        (*ty, *result) = (returned, cast[2]);
        body.push(Op::FunctionCall, words);
        body.push(Op::Bitcast, cast);
        Ok(())
    }

    /// Maps an id of an input to an existing id of the result.
    fn map_to(&mut self, index: usize, id: u32, known: u32) {
        self.ids.maps[index].insert(id, known);
        self.shared[index].insert(id);
    }

    /// Assigns an id to a type or constant: the id of an equal one, or one of its own.
    fn share(
        &mut self,
        index: usize,
        instruction: &Instruction<'_>,
        traits: &Traits,
        interner: &mut Interner,
    ) -> Result<()> {
        let Some((id, op)) = instruction.result().zip(interned(instruction)) else {
            return Ok(());
        };
        // A type or constant that was referred to before already has an id of its own.
        let is_new = self.ids.known(index, id).is_none();
        let Some(traits) = traits.get(id) else { return Ok(()) };
        let mut operands = self.operands(index, instruction)?;
        if let Some(length) = groups::array_length(instruction, &self.sources[index]) {
            operands.splice(1.., length);
        }
        match interner.find(op, &operands, traits) {
            Some(known) if is_new => self.map_to(index, id, known),
            Some(_) => {}
            None => interner.insert_id(op, &operands, traits, self.ids.map(index, id)?),
        }
        Ok(())
    }

    /// Like [`share`](Self::share), for types that refer to one another: shares all of them, or none.
    fn share_group(
        &mut self,
        index: usize,
        group: &[Instruction<'_>],
        traits: &Traits,
    ) -> Result<()> {
        let definitions = &self.sources[index].definitions;
        let ids: HashSet<_> = group.iter().filter_map(|member| member.result()).collect();
        let mut members = Vec::new();
        for instruction in group {
            let Some(id) = instruction.result() else { return Ok(()) };
            let Some(traits) = traits.get(id).filter(|_| self.ids.known(index, id).is_none())
            else {
                return Ok(());
            };
            let mut operands: Vec<_> = instruction.words_from(0).map(Operand::Other).collect();
            let mut failed = None;
            grammar::ids(instruction, definitions, |at, role| {
                let used = instruction.word(at).unwrap_or_default();
                if role == Role::Result {
                    operands[at] = Operand::Other(0);
                } else if ids.contains(&used) {
                    operands[at] = Operand::Member(used);
                } else {
                    match self.ids.map(index, used) {
                        Ok(new) => operands[at] = Operand::Other(new),
                        Err(error) => failed = Some(error),
                    }
                }
            })?;
            if let Some(error) = failed {
                return Err(error);
            }
            if let Some(length) = groups::array_length(instruction, &self.sources[index]) {
                operands.splice(2.., length.map(Operand::Other));
            }
            members.push(Member { id, opcode: instruction.opcode(), operands, traits });
        }
        let (order, description) = groups::describe(&members);
        if let Some(known) = self.groups.get(&description) {
            for (id, known) in order.into_iter().zip(known.clone()) {
                self.map_to(index, id, known);
            }
        } else {
            let ids = order.into_iter().map(|id| self.ids.map(index, id)).collect::<Result<_>>()?;
            self.groups.insert(description, ids);
        }
        Ok(())
    }

    /// Returns the operands with their ids in the result, without the result id.
    fn operands(&mut self, index: usize, instruction: &Instruction<'_>) -> Result<Vec<u32>> {
        let mut words: Vec<_> = instruction.words_from(0).collect();
        let (mut result, mut failed) = (None, None);
        let definitions = &self.sources[index].definitions;
        grammar::ids(instruction, definitions, |at, role| {
            if role == Role::Result {
                result = Some(at);
            } else if let Some(word) = words.get_mut(at) {
                match self.ids.map(index, *word) {
                    Ok(new) => *word = new,
                    Err(error) => failed = Some(error),
                }
            }
        })?;
        if let Some(result) = result {
            words.remove(result);
        }
        failed.map_or(Ok(words), Err)
    }

    /// Checks that symbols that are exported more than once have equal definitions.
    fn check_duplicates(&self) -> Result<()> {
        for Pair { name, first, second } in &self.duplicates {
            let equal = match (self.definition(*first)?, self.definition(*second)?) {
                (Some(first), Some(second)) => first == second,
                _ => false,
            };
            if !equal {
                let [first, second] = [first, second].map(|&(index, id)| {
                    let source = &self.sources[index];
                    format!("{} ({})", source.name, in_words(source, id))
                });
                return Err(merge_error(format!(
                    "`{name}` is exported by {first} and by {second}, with different definitions; \
                     rename one, or declare it `static`"
                )));
            }
        }
        Ok(())
    }

    /// Returns a definition in a form that can be compared: with ids as in the result, and consecutive numbers
    /// for ids that it defines itself. Returns `None` if an id is unknown.
    fn definition(&self, (index, id): (usize, u32)) -> Result<Option<Vec<u32>>> {
        let source = &self.sources[index];
        let Some(location) = source.definitions.location(id) else { return Ok(None) };
        let function = location.function(source.module);
        let body: Vec<_> = match function {
            Some(function) => source.module.functions[function].body.iter().collect(),
            None => location.instruction(source.module).into_iter().collect(),
        };
        let numbers: HashMap<_, _> =
            body.iter().filter_map(Instruction::result).zip(0_u32..).collect();
        let mut definition = Vec::new();
        for instruction in body {
            if matches!(instruction.op(), Some(Op::Line | Op::NoLine)) {
                continue;
            }
            definition.push(instruction.opcode().into());
            let start = definition.len();
            definition.extend(instruction.words_from(0));
            let mut is_known = true;
            grammar::ids(&instruction, &source.definitions, |at, _| {
                let id = instruction.word(at).unwrap_or_default();
                let known = numbers.get(&id).copied().or_else(|| self.ids.known(index, id));
                is_known &= known.is_some();
                definition[start + at] = known.unwrap_or_default();
                // Distinguishes ids from consecutive numbers.
                definition.push(numbers.contains_key(&id).into());
            })
            .map_err(|error| source.within(&error))?;
            if !is_known {
                return Ok(None);
            }
        }
        Ok(Some(definition))
    }

    /// Returns whether the result has something else in place of an id of an input.
    fn is_omitted(&self, index: usize, id: u32) -> bool {
        self.dropped[index].contains(id) || self.shared[index].contains(id)
    }

    fn copy_names(&mut self, index: usize) -> Result<()> {
        let mut names = std::mem::take(self.module.section_mut(Section::Names));
        for name in self.sources[index].module.section(Section::Names).iter() {
            if name.word(0).is_none_or(|target| !self.is_omitted(index, target)) {
                self.push(index, &mut names, &name)?;
            }
        }
        *self.module.section_mut(Section::Names) = names;
        Ok(())
    }

    fn copy_annotations(&mut self, index: usize) -> Result<()> {
        let source = &self.sources[index];
        let mut annotations = std::mem::take(self.module.section_mut(Section::Annotations));
        let own = spec_ids(source.module);
        for instruction in source.module.section(Section::Annotations).iter() {
            let target = instruction.word(0).unwrap_or_default();
            match instruction.op() {
                Some(op @ (Op::GroupDecorate | Op::GroupMemberDecorate)) => {
                    let step = if op == Op::GroupDecorate { 1 } else { 2 };
                    let operands: Vec<_> = instruction.words_from(1).collect();
                    let mut words = vec![self.ids.map(index, target)?];
                    for operand in operands.chunks(step) {
                        if !self.is_omitted(index, operand[0]) {
                            words.push(self.ids.map(index, operand[0])?);
                            words.extend(&operand[1..]);
                        }
                    }
                    if words.len() > 1 {
                        annotations.push(op, words);
                    }
                }
                Some(Op::Decorate) if self.is_omitted(index, target) => {}
                Some(Op::Decorate) if instruction.word(1) == Some(Decoration::SpecId as u32) => {
                    let old = instruction.word(2).unwrap_or_default();
                    let new = self.spec_id(index, old, &own);
                    let target = self.ids.map(index, target)?;
                    annotations.push(Op::Decorate, [target, Decoration::SpecId as u32, new]);
                }
                Some(Op::Decorate) if !self.options.keep_exports && is_export(&instruction) => {}
                _ if self.is_omitted(index, target) => {}
                _ => self.push(index, &mut annotations, &instruction)?,
            }
        }
        self.used_spec_ids.extend(self.spec_ids[index].values());
        *self.module.section_mut(Section::Annotations) = annotations;
        Ok(())
    }

    /// Returns a `SpecId` that sets only constants of this input. `own` holds the input's original ids.
    fn spec_id(&mut self, index: usize, old: u32, own: &HashSet<u32>) -> u32 {
        if let Some(&new) = self.spec_ids[index].get(&old) {
            return new;
        }
        let mut new = old;
        if self.used_spec_ids.contains(&old) {
            let free = self.next_spec_id..=u32::MAX;
            let is_free = |id: &u32| !self.used_spec_ids.contains(id) && !own.contains(id);
            new = free.into_iter().find(is_free).unwrap_or(old);
            self.next_spec_id = new.saturating_add(1);
        }
        self.spec_ids[index].insert(old, new);
        new
    }

    /// Copies the functions of all inputs that `accepts` accepts.
    fn copy_functions(&mut self, accepts: impl Fn(&Function) -> bool) -> Result<()> {
        let calls = std::mem::take(&mut self.calls);
        for (index, source) in self.sources.iter().enumerate() {
            for function in &source.module.functions {
                if self.dropped[index].contains(function.id) || !accepts(function) {
                    continue;
                }
                let mut body = Stream::default();
                for instruction in function.body.iter() {
                    let called = instruction.word(2).and_then(|id| calls[index].get(&id));
                    match called.filter(|_| instruction.op() == Some(Op::FunctionCall)) {
                        Some(callee) => self.push_call(index, &mut body, &instruction, callee),
                        None => self.push(index, &mut body, &instruction),
                    }
                    .map_err(|error| source.within(&error))?;
                }
                let id = self.ids.map(index, function.id)?;
                self.module.functions.push(Function { id, body });
            }
        }
        self.calls = calls;
        Ok(())
    }
}

fn is_export(instruction: &Instruction<'_>) -> bool {
    Linkage::of(instruction).is_some_and(|linkage| linkage.kind != LinkageType::Import)
}

/// Returns the `SpecId`s of a module.
fn spec_ids(module: &Module) -> HashSet<u32> {
    let annotations = module.section(Section::Annotations).iter();
    annotations
        .filter(|i| i.op() == Some(Op::Decorate))
        .filter(|i| i.word(1) == Some(Decoration::SpecId as u32))
        .filter_map(|i| i.word(2))
        .collect()
}
