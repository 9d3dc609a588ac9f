//! Writer of functions with shadows and checks.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{
    Class, Definitions, Instruction, Interner, List, Location, Section, Stream, View, located,
};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Capability, MemoryAccess, Op};

use super::super::hazards::Hazard;
use super::super::kernel::Kernel;
use super::super::report::Report;
use super::code::Code;
use super::mend;
use super::shadows::Shadows;
use crate::analysis::access::Parts;
use crate::analysis::declaration::Declaration;
use crate::analysis::images;
use crate::analysis::vector_access::VectorAccess;
use crate::transform::merge::require;

/// Offset of a pointer from the start of its memory, and the length of the memory, as ids of 64-bit numbers.
#[derive(Clone, Copy)]
struct Shadow {
    offset: u32,
    length: u32,
}

/// Writes all functions of the kernel's module, of which `module` is a copy.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if an access cannot be guarded.
pub(super) fn write(
    module: &mut Module,
    definitions: &Definitions<'_>,
    kernel: &Kernel,
    report: &Report,
    shadows: Shadows,
) -> Result<()> {
    if !shadows.guarded.is_empty() || !shadows.pixels.is_empty() {
        require(module, Capability::Int64);
    }
    let mut interner = Interner::of(module);
    let long = interner.type_id(module, Op::TypeInt, &[64, 0])?;
    let bool = interner.type_id(module, Op::TypeBool, &[])?;
    let mut hazards = HashMap::<_, BTreeSet<_>>::new();
    for (location, hazard) in &report.hazards {
        hazards.entry(*location).or_default().insert(*hazard);
    }
    let mut writer = Writer {
        code: Code { module, interner, new: Stream::default(), long, bool, block: 0 },
        definitions,
        kernel: kernel.function,
        unaligned: report
            .accesses
            .iter()
            .filter(|known| known.is_unaligned)
            .map(|known| known.location)
            .collect(),
        hazards,
        shadows,
        known: HashMap::new(),
        last_labels: HashMap::new(),
        kinds: report.hazards.iter().map(|(_, hazard)| *hazard).collect(),
    };
    for pointer in writer.shadows.pointers.clone() {
        let shadow = Shadow {
            offset: writer.code.module.fresh_id()?,
            length: writer.code.module.fresh_id()?,
        };
        writer.known.insert(pointer, shadow);
    }
    for (stream, known) in (Section::COUNT as u32..).zip(&definitions.module().functions) {
        let body: Vec<_> = located((stream, &known.body)).collect();
        writer.function(known.id, &known.body, &body)?;
        let new = std::mem::take(&mut writer.code.new);
        writer.code.module.functions[(stream as usize) - Section::COUNT].body = new;
    }
    Ok(())
}

pub(super) struct Writer<'w, 'm> {
    pub(super) code: Code<'w>,
    pub(super) definitions: &'w Definitions<'m>,
    kernel: u32,
    /// Accesses whose addresses may be less aligned than these declare.
    unaligned: HashSet<Location>,
    hazards: HashMap<Location, BTreeSet<Hazard>>,
    shadows: Shadows,
    known: HashMap<u32, Shadow>,
    /// Label of the block in which each block that is split ends, by the block's own label.
    last_labels: HashMap<u32, u32>,
    /// Hazards of the kernel, wherever they are.
    kinds: BTreeSet<Hazard>,
}

impl<'m> Writer<'_, 'm> {
    fn function(
        &mut self,
        id: u32,
        stream: &Stream,
        body: &[(Location, Instruction<'m>)],
    ) -> Result<()> {
        let mut declaration = Declaration::of(stream);
        let after = self.plan_labels(body)?;
        let returned = body.iter().find(|(_, i)| i.op() == Some(Op::Function));
        let returned = returned.and_then(|(_, i)| i.result_type()).unwrap_or_default();
        // Shadows that begin with the function are written once all variables are declared.
        let mut starting = self.add_parameters(id, &mut declaration);
        let mut is_split = false;
        for (location, i) in body {
            let Code { module, interner, new, .. } = &mut self.code;
            if declaration.rewrite(i, module, interner, new)? {
                continue;
            }
            let op = i.op();
            if op == Some(Op::Label) {
                self.code.block = i.result().unwrap_or_default();
                is_split = self.last_labels.contains_key(&self.code.block);
            }
            let is_head = matches!(
                i.class(),
                Some(Class::Label | Class::Variable | Class::Phi | Class::Line)
            );
            if !is_head {
                for pointer in starting.drain(..) {
                    self.start_shadow(pointer)?;
                }
            }
            let result = i.result().filter(|id| self.known.contains_key(id));
            match (op, result) {
                (Some(Op::Variable), Some(pointer)) => {
                    self.variable(i)?;
                    starting.push(pointer);
                }
                (Some(Op::Variable), None) => self.variable(i)?,
                (Some(Op::Phi), result) => {
                    self.phi(i, result)?;
                }
                (Some(Op::LoopMerge | Op::SelectionMerge), _) if is_split => {}
                (Some(Op::FunctionCall), _) => self.call(i)?,
                (Some(op), _) if images::is_access(op) || op == Op::SampledImage => {
                    self.pixel(i, after.get(location).and_then(|labels| labels.first()))?;
                }
                _ if self.shadows.guarded.contains_key(location) => {
                    self.guarded(*location, i, &after[location])?;
                }
                _ => {
                    self.plain(*location, i, returned)?;
                    if let Some(pointer) = result {
                        self.shadow(pointer, i)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether an instruction loads a value that other work-items may change, where an address or a branch
    /// may depend on such a value.
    fn is_done_once(&self, i: &Instruction<'m>) -> bool {
        let is_unstable =
            self.kinds.contains(&Hazard::Undefined) || self.kinds.contains(&Hazard::Shared);
        i.op() == Some(Op::Load) && is_unstable && mend::may_change(self.definitions, i)
    }

    /// Adds the parameters for shadows to a function's declaration. Returns the pointers of the function's own
    /// parameters whose shadows are calculated at its start.
    fn add_parameters(&mut self, function: u32, declaration: &mut Declaration) -> Vec<u32> {
        let positions = self.shadows.parameters.get(&function).cloned().unwrap_or_default();
        let (own, long) = (declaration.parameters.clone(), self.code.long);
        let mut starting = Vec::new();
        for at in positions {
            let Some(&(pointer, _)) = own.get(at) else { continue };
            let Shadow { offset, length } = self.known[&pointer];
            if function != self.kernel {
                declaration.parameters.extend([(offset, long), (length, long)]);
                continue;
            }
            if !self.shadows.by_value.contains(&at) {
                declaration.parameters.push((length, long));
            }
            starting.push(pointer);
        }
        starting
    }

    /// Chooses the labels after each guarded access, and notes with which label each block ends.
    fn plan_labels(
        &mut self,
        body: &[(Location, Instruction<'m>)],
    ) -> Result<HashMap<Location, Vec<u32>>> {
        let (mut after, mut block) = (HashMap::new(), 0);
        for (location, i) in body {
            if i.op() == Some(Op::Label) {
                block = i.result().unwrap_or_default();
            }
            let is_pixel = self.shadows.pixels.contains(location);
            if is_pixel || self.shadows.guarded.contains_key(location) {
                let count = if i.op() == Some(Op::CopyMemory) { 2 } else { 1 };
                let mut labels = Vec::new();
                for _ in 0..count {
                    labels.push(self.code.module.fresh_id()?);
                }
                self.last_labels.insert(block, labels[count - 1]);
                after.insert(*location, labels);
            }
        }
        Ok(after)
    }

    /// Writes the shadow of a variable, or of a parameter of the kernel.
    fn start_shadow(&mut self, pointer: u32) -> Result<()> {
        let (zero, shadow, long) = (self.code.number(0)?, self.known[&pointer], self.code.long);
        self.code.with_id(long, shadow.offset, Op::CopyObject, &[zero]);
        if let Some(&size) = self.shadows.sizes.get(&pointer) {
            let size = self.code.number(size)?;
            self.code.with_id(long, shadow.length, Op::CopyObject, &[size]);
        }
        Ok(())
    }

    /// Returns the shadow of an operand.
    fn shadow_of(&mut self, pointer: u32) -> Result<Shadow> {
        let i = self.definitions.get(pointer);
        let location = self.definitions.location(pointer);
        let is_global = location.is_some_and(|at| (at.stream as usize) < Section::COUNT);
        match i.and_then(|i| i.op()) {
            Some(Op::Variable) if is_global => {
                let size = self.shadows.sizes.get(&pointer).copied().unwrap_or(0);
                Ok(Shadow { offset: self.code.number(0)?, length: self.code.number(size)? })
            }
            Some(Op::ConstantNull | Op::Undef) if is_global => {
                let zero = self.code.number(0)?;
                Ok(Shadow { offset: zero, length: zero })
            }
            _ => self.known.get(&pointer).copied().ok_or_else(|| {
                Error::unsupported("an access cannot be guarded: its pointer is not followed")
            }),
        }
    }

    /// Writes the shadow of a pointer that an instruction calculates.
    fn shadow(&mut self, pointer: u32, i: &Instruction<'m>) -> Result<()> {
        let (own, long) = (self.known[&pointer], self.code.long);
        match i.view() {
            View::Select { condition, yes, no } => {
                let (yes, no) = (self.shadow_of(yes)?, self.shadow_of(no)?);
                let operands = [condition, yes.offset, no.offset];
                self.code.with_id(long, own.offset, Op::Select, &operands);
                let operands = [condition, yes.length, no.length];
                self.code.with_id(long, own.length, Op::Select, &operands);
            }
            _ if i.op() == Some(Op::Undef) => {
                let zero = self.code.number(0)?;
                self.code.with_id(long, own.offset, Op::CopyObject, &[zero]);
                self.code.with_id(long, own.length, Op::CopyObject, &[zero]);
            }
            view => {
                let base = self.shadow_of(i.derived_from().unwrap_or_default())?;
                let offset = match view {
                    View::Chain { base: id, indexes } => {
                        self.chain(id, None, indexes, base.offset)?
                    }
                    View::PtrChain { base: id, element, indexes } => {
                        self.chain(id, Some(element), indexes, base.offset)?
                    }
                    _ => base.offset,
                };
                self.code.with_id(long, own.offset, Op::CopyObject, &[offset]);
                self.code.with_id(long, own.length, Op::CopyObject, &[base.length]);
            }
        }
        Ok(())
    }

    /// Writes the offset that an access chain calculates.
    fn chain(
        &mut self,
        base: u32,
        element: Option<u32>,
        indexes: List<'m>,
        mut offset: u32,
    ) -> Result<u32> {
        let damaged = || Error::unsupported("an access cannot be guarded: its type is not known");
        let base = self.definitions.type_of(base);
        let mut ty = base.and_then(|ty| ty.pointee()).ok_or_else(damaged)?;
        if let Some(element) = element {
            let size = self.shadows.layouts.size(ty).ok_or_else(damaged)?;
            offset = self.step(offset, element, size)?;
        }
        for index in indexes.iter() {
            let parts = self.shadows.layouts.get(ty).ok_or_else(damaged)?.parts.clone();
            match parts {
                Parts::Equal(part, stride) => {
                    offset = self.step(offset, index, stride)?;
                    ty = part;
                }
                Parts::Members(members) => {
                    let at = self.definitions.get(index).and_then(|i| i.literal()?.get(0));
                    let at = at.and_then(|at| members.get(at as usize));
                    let &(member, start) = at.ok_or_else(damaged)?;
                    let (start, long) = (self.code.number(start)?, self.code.long);
                    offset = self.code.typed(long, Op::IAdd, &[offset, start])?;
                    ty = member;
                }
                Parts::None => return Err(damaged()),
            }
        }
        Ok(offset)
    }

    /// Writes `offset` plus a multiple of a signed index.
    fn step(&mut self, offset: u32, index: u32, stride: i128) -> Result<u32> {
        let long = self.code.long;
        let width = self.definitions.type_of(index).and_then(|ty| ty.width());
        let index = match width {
            Some(64) => index,
            _ => self.code.typed(long, Op::SConvert, &[index])?,
        };
        let stride = self.code.number(stride)?;
        let by = self.code.typed(long, Op::IMul, &[index, stride])?;
        self.code.typed(long, Op::IAdd, &[offset, by])
    }

    /// Writes a variable, with zeros as its value where values may not be defined.
    fn variable(&mut self, i: &Instruction<'m>) -> Result<()> {
        let has_value = matches!(i.view(), View::Variable { initial: Some(_), .. });
        if has_value || !self.kinds.contains(&Hazard::Undefined) {
            self.code.new.push_instruction(i);
            return Ok(());
        }
        let pointee = i.result_type().and_then(|ty| self.definitions.get(ty)?.pointee());
        let zero = self.code.zero(pointee.unwrap_or_default())?;
        self.code.new.push(Op::Variable, i.words_from(0).chain([zero]));
        Ok(())
    }

    /// Writes a phi, and the phis of its shadow.
    fn phi(&mut self, i: &Instruction<'m>, pointer: Option<u32>) -> Result<()> {
        let last = |from: u32| self.last_labels.get(&from).copied().unwrap_or(from);
        let labels: Vec<_> = i.incoming().map(|(_, from)| last(from)).collect();
        let values = i.incoming().map(|(value, _)| value);
        let pairs = values.clone().zip(&labels).flat_map(|(value, &from)| [value, from]);
        self.code.new.push(Op::Phi, i.words_from(0).take(2).chain(pairs));
        let Some(pointer) = pointer else { return Ok(()) };
        let shadows = values.map(|value| self.shadow_of(value)).collect::<Result<Vec<_>>>()?;
        let (own, long) = (self.known[&pointer], self.code.long);
        let offsets = shadows.iter().zip(&labels).flat_map(|(known, &from)| [known.offset, from]);
        self.code.with_id(long, own.offset, Op::Phi, &offsets.collect::<Vec<_>>());
        let lengths = shadows.iter().zip(&labels).flat_map(|(known, &from)| [known.length, from]);
        self.code.with_id(long, own.length, Op::Phi, &lengths.collect::<Vec<_>>());
        Ok(())
    }

    /// Writes a call, with the shadows that the function takes.
    fn call(&mut self, i: &Instruction<'m>) -> Result<()> {
        let called = i.called().unwrap_or_default();
        let positions = self.shadows.parameters.get(&called).cloned().unwrap_or_default();
        let mut words: Vec<_> = i.words_from(0).collect();
        for at in positions {
            let argument = i.arguments().nth(at).unwrap_or_default();
            let Shadow { offset, length } = self.shadow_of(argument)?;
            words.extend([offset, length]);
        }
        self.code.new.push(Op::FunctionCall, words);
        Ok(())
    }

    /// Writes an instruction that is not guarded, with its hazards mended.
    fn plain(&mut self, location: Location, i: &Instruction<'m>, returned: u32) -> Result<()> {
        let hazards = self.hazards.get(&location).cloned().unwrap_or_default();
        if mend::instruction(&mut self.code, self.definitions, i, &hazards, returned)? {
            return Ok(());
        }
        let words = self.access_words(location, i);
        match i.op() {
            Some(op) => self.code.new.push(op, words),
            None => self.code.new.push_instruction(i),
        }
        Ok(())
    }

    /// Returns the operands of an access: with the alignment that is certain, and volatile where it has to be
    /// done once.
    fn access_words(&self, location: Location, i: &Instruction<'m>) -> Vec<u32> {
        let mut words: Vec<_> = i.words_from(0).collect();
        let mask = match i.op() {
            Some(Op::Load | Op::CopyMemorySized) => 3,
            Some(Op::Store | Op::CopyMemory) => 2,
            _ => return words,
        };
        if self.unaligned.contains(&location) {
            let (aligned, before) =
                (MemoryAccess::ALIGNED.bits(), words.get(mask).copied().unwrap_or(0));
            let rest = words.split_off((mask + 1).min(words.len()));
            words.truncate(mask);
            let rest = rest.into_iter().skip(usize::from(before & aligned != 0));
            // The operands that follow in a copy are about its source alone. Without them, the first hold for both.
            let rest = rest.filter(|_| matches!(i.op(), Some(Op::Load | Op::Store)));
            words.extend([before | aligned, 1].into_iter().chain(rest));
        }
        if self.is_done_once(i) {
            match words.get_mut(mask) {
                Some(word) => *word |= MemoryAccess::VOLATILE.bits(),
                None => words.push(MemoryAccess::VOLATILE.bits()),
            }
        }
        words
    }

    /// Writes an access behind a check.
    fn guarded(&mut self, location: Location, i: &Instruction<'m>, after: &[u32]) -> Result<()> {
        if i.op() == Some(Op::CopyMemory) {
            return self.guarded_copy(location, i, after);
        }
        let pointer = self.shadows.guarded[&location][0];
        let width = self.width(i).ok_or_else(|| {
            Error::unsupported("an access cannot be guarded: its size is not known")
        })?;
        let vector = VectorAccess::of(self.definitions, i);
        let mut offset = self.shadow_of(pointer)?.offset;
        if let Some(vector) = vector {
            offset = self.step(offset, vector.offset, width)?;
        }
        let length = self.shadow_of(pointer)?.length;
        let words = self.access_words(location, i);
        let op = i.op().unwrap_or(Op::Nop);
        // An instruction of a set of functions has a result even if it only stores.
        let value = i.result().zip(i.result_type());
        let value = value.filter(|_| vector.is_none_or(|vector| vector.stored.is_none()));
        self.behind_check((offset, length, width), after[0], value, |code, result| {
            let mut words = words;
            if let Some(result) = result {
                words[1] = result;
            }
            code.new.push(op, words);
        })
    }

    /// Writes a copy as a load and a store, each behind a check.
    fn guarded_copy(
        &mut self,
        location: Location,
        i: &Instruction<'m>,
        after: &[u32],
    ) -> Result<()> {
        // Without a declaration, an address is as aligned as its type requires.
        let is_unaligned = self.unaligned.contains(&location);
        let any = is_unaligned.then_some([MemoryAccess::ALIGNED.bits(), 1]);
        let (to, from) = match i.view() {
            View::CopyMemory { target, source, .. } => (target, source),
            _ => (0, 0),
        };
        let ty = self.definitions.type_of(from).and_then(|ty| ty.pointee());
        let width = ty.and_then(|ty| self.shadows.layouts.size(ty));
        let (ty, width) = ty.zip(width).ok_or_else(|| {
            Error::unsupported("an access cannot be guarded: its size is not known")
        })?;
        let (source, value) = (self.shadow_of(from)?, self.code.module.fresh_id()?);
        let access = (source.offset, source.length, width);
        self.behind_check(access, after[0], Some((value, ty)), |code, result| {
            let words = [ty, result.unwrap_or_default(), from];
            code.new.push(Op::Load, words.into_iter().chain(any.into_iter().flatten()));
        })?;
        let target = self.shadow_of(to)?;
        let access = (target.offset, target.length, width);
        self.behind_check(access, after[1], None, |code, _| {
            code.new.push(Op::Store, [to, value].into_iter().chain(any.into_iter().flatten()));
        })
    }

    /// Writes an access behind a check. `value` is its result and the type of that. The access gets an id of
    /// its own for its result.
    fn behind_check(
        &mut self,
        (offset, length, width): (u32, u32, i128),
        after: u32,
        value: Option<(u32, u32)>,
        access: impl FnOnce(&mut Code<'_>, Option<u32>),
    ) -> Result<()> {
        let code = &mut self.code;
        let (long, bool) = (code.long, code.bool);
        let width = code.number(width)?;
        let fits = code.typed(bool, Op::UGreaterThanEqual, &[length, width])?;
        let last = code.typed(long, Op::ISub, &[length, width])?;
        let is_before = code.typed(bool, Op::ULessThanEqual, &[offset, last])?;
        let is_inside = code.typed(bool, Op::LogicalAnd, &[fits, is_before])?;
        code.only_if(is_inside, after, value, access)
    }

    /// Returns the number of bytes that an access touches.
    fn width(&self, i: &Instruction<'m>) -> Option<i128> {
        let pointee =
            |pointer: u32| self.shadows.layouts.size(self.definitions.type_of(pointer)?.pointee()?);
        match i.view() {
            View::Load { .. } => self.shadows.layouts.size(i.result_type()?),
            View::Store { value, .. } => {
                let ty = self.definitions.get(value)?.result_type()?;
                self.shadows.layouts.size(ty)
            }
            View::ExtInst { operands, .. } => match VectorAccess::of(self.definitions, i) {
                Some(access) => access.span.map(|span| span.size),
                None => {
                    let own = self.shadows.layouts.size(i.result_type()?);
                    let results = operands.iter().skip(1).take(2).filter_map(pointee);
                    results.chain(own).max()
                }
            },
            _ => pointee(i.pointer()?),
        }
    }
}
