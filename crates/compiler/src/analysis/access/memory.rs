//! Evaluation of instructions that calculate or access memory.

use std::rc::Rc;

use kiln_spirv::edit::{Address, Instruction, Meaning, View, is_atomic, operand_ids};
use rspirv::spirv::{BuiltIn, Op, OpenclStd100Op as Extended, StorageClass};

use super::arithmetic::Arithmetic;
use super::eval::{At, Evaluation, Frame};
use super::facts::{Facts, Known};
use super::layout::Parts;
use super::pointers::{Base, Pointer};
use super::{Access, Bytes, Kind, UNKNOWN_OFFSETS};
use crate::analysis::affine::{Form, Id};
use crate::analysis::images::is_access;
use crate::analysis::vector_access::{VectorAccess, extended};

/// Limit of offsets and widths in bytes. Offsets beyond it may have wrapped.
const MAX_OFFSET: i128 = 1 << 62;

impl<'m> Evaluation<'m> {
    /// Evaluates an instruction: records its accesses and returns the value of its result. Returns `None`
    /// for a value of which only the type is known.
    pub(super) fn instruction(
        &mut self,
        frame: &mut Frame<'m>,
        at: At,
        i: &Instruction<'m>,
    ) -> Option<Known> {
        let Some(op) = i.op() else {
            self.escape_operands(frame, at, i, "is used by an unknown instruction");
            return None;
        };
        self.watch_operation(frame, at.1, op, i);
        if i.row().is_some() && matches!(i.view(), View::Unknown) {
            self.escape_operands(frame, at, i, "is used in a way that cannot be analyzed");
            return None;
        }
        match op {
            Op::Variable => {
                let id = i.result()?;
                if let Some((_, Some(initial))) = i.variable() {
                    let initial = self.value(frame, initial);
                    self.store(frame, at, id, initial, false);
                }
                let offset = Some(Form::constant(0));
                Some(Known::Pointer(Pointer { base: Base::Variable(id), offset }))
            }
            Op::Load => self.load(frame, at, i),
            Op::Store => {
                let View::Store { pointer, value, .. } = i.view() else { return None };
                let size = self.definitions.get(value).and_then(|i| i.result_type());
                let size = size.and_then(|ty| self.layouts.size(ty));
                let target = self.value(frame, pointer);
                self.touch(frame, at, &target, Kind::Write, size);
                let value = self.value(frame, value);
                self.store(frame, at, pointer, value, true);
                None
            }
            Op::CopyMemory | Op::CopyMemorySized => {
                let (target, source, size) = match i.view() {
                    View::CopyMemorySized { target, source, size, .. } => {
                        let size = match self.value(frame, size) {
                            Known::Integer(size) => size.value(),
                            _ => None,
                        };
                        (target, source, size)
                    }
                    View::CopyMemory { target, source, .. } => {
                        let pointee = self.pointee(target);
                        (target, source, pointee.and_then(|ty| self.layouts.size(ty)))
                    }
                    _ => return None,
                };
                for (pointer, kind) in [(target, Kind::Write), (source, Kind::Read)] {
                    let pointer = self.value(frame, pointer);
                    self.touch(frame, at, &pointer, kind, size);
                }
                None
            }
            _ if i.row().is_some_and(|row| row.address == Address::Part) => {
                self.chain(i, &|id| self.value(frame, id))
            }
            Op::PtrCastToGeneric | Op::CopyObject => Some(self.value(frame, i.operand()?)),
            Op::GenericCastToPtr => {
                let value = self.value(frame, i.operand()?);
                let ty = self.definitions.get(i.result_type()?);
                let class = ty.and_then(|ty| ty.storage_class());
                Some(if self.is_strict { self.cast_to(class, value) } else { value })
            }
            // The result is null if the memory is of another kind.
            Op::GenericCastToPtrExplicit => match self.value(frame, i.derived_from()?) {
                Known::Pointer(_) if self.is_strict => None,
                value => Some(value),
            },
            Op::ISub if frame.distance(i).is_some() => frame.distance(i).map(Known::Integer),
            Op::Bitcast => self.bitcast(frame, at, i),
            Op::ConvertPtrToU => {
                let pointer = self.value(frame, i.operand()?);
                if !self.is_only_compared(frame, i.result()?) {
                    self.escape(frame, at, &pointer, "has its address converted to an integer");
                }
                None
            }
            Op::PtrEqual | Op::PtrNotEqual => {
                let holds = self.compare_pointers(frame, i)?;
                Some(Known::Integer(Form::constant(holds.into())))
            }
            Op::IEqual | Op::INotEqual if self.compare_pointers(frame, i).is_some() => {
                let holds = self.compare_pointers(frame, i)?;
                Some(Known::Integer(Form::constant(holds.into())))
            }
            _ if is_access(op) => {
                self.watch_pixel(frame, at.1, i);
                self.pixel(frame, at, i);
                None
            }
            // A sampled image stands for the image, whose pixels are read.
            Op::SampledImage => match i.view() {
                View::SampledImage { image, .. } => Some(self.value(frame, image)),
                _ => None,
            },
            Op::ImageQuerySizeLod | Op::ImageQuerySize => self.image_size(frame, i),
            Op::ReturnValue => {
                let View::Return { value } = i.view() else { return None };
                let value = self.value(frame, value);
                frame.returned.push((value, Rc::clone(&frame.facts)));
                None
            }
            // Harmless, whatever their operands point to.
            Op::PtrDiff | Op::ImageQueryFormat | Op::ImageQueryOrder => None,
            Op::GenericPtrMemSemantics | Op::Undef => None,
            _ if i.class().is_some_and(|class| class.is_note() || class.is_terminator()) => None,
            Op::Select => self.select(frame, &frame.facts, i, 0),
            Op::ExtInst => self.extended(frame, at, i),
            Op::CompositeExtract | Op::VectorExtractDynamic => self.part(frame, i),
            Op::CompositeConstruct => {
                if self.is_vector(i.result_type()?, i) {
                    let parts: Vec<_> = i.parts().map(|id| self.value(frame, id)).collect();
                    if parts.iter().all(|part| matches!(part, Known::Integer(_))) {
                        return Some(Known::Parts(parts));
                    }
                }
                self.escape_operands(frame, at, i, "is put into a composite value");
                None
            }
            _ if is_atomic(op) => {
                self.atomic(frame, at, i);
                None
            }
            _ => {
                self.escape_operands(frame, at, i, "is used in a way that cannot be analyzed");
                let see = |id| self.value(frame, id);
                match op {
                    Op::CompositeInsert => self.inserted(i, &see),
                    Op::VectorShuffle => self.shuffled(i, &see),
                    _ if self.parts_of(i.result_type()?).is_some() => {
                        self.by_parts(i, &see, &|see| self.arithmetic(i, &see))
                    }
                    _ => {
                        let selected = self.with_selected(frame, &frame.facts, i, 0);
                        selected.or_else(|| self.arithmetic(i, &see))
                    }
                }
            }
        }
    }

    fn load(&mut self, frame: &mut Frame<'m>, at: At, i: &Instruction<'m>) -> Option<Known> {
        let pointer = i.pointer()?;
        let target = self.value(frame, pointer);
        let size = self.layouts.size(i.result_type()?);
        self.touch(frame, at, &target, Kind::Read, size);
        match target {
            Known::Pointer(Pointer { base: Base::Variable(id), .. })
                if id == pointer && !self.is_strict =>
            {
                frame.stored.get(&id).cloned()
            }
            Known::Pointer(Pointer { base: Base::BuiltIn(id), offset }) => {
                let built_in = self.built_ins.get(&id).copied().and_then(BuiltIn::from_u32)?;
                self.built_in(built_in, offset?.value()?, i.result_type()?)
            }
            _ => None,
        }
    }

    /// Keeps the value that is stored to a variable that is stored to once. A pointer that is stored
    /// elsewhere escapes.
    fn store(
        &mut self,
        frame: &mut Frame<'m>,
        at: At,
        pointer: u32,
        value: Known,
        is_instruction: bool,
    ) {
        if frame.function.spilled.contains(&pointer) {
            let is_first = !frame.stored.contains_key(&pointer);
            debug_assert!(is_first || !is_instruction);
            frame.stored.insert(pointer, value);
        } else {
            self.escape(frame, at, &value, "has its address stored in memory");
        }
    }

    /// Returns the value of type `ty` that a built-in variable holds, `offset` bytes from its start.
    pub(super) fn built_in(&self, built_in: BuiltIn, offset: i128, ty: u32) -> Option<Known> {
        let space = self.space;
        let enqueued = |d: usize| match space.local {
            Some(local) => Some(Form::constant(local[d])),
            None => space.is_uniform.then(|| Form::id(Id::Size, d, space)),
        };
        // Groups at the end of a dimension may be smaller.
        let largest = |d: usize| space.local.map_or(space.global[d], |local| local[d]).max(1);
        let local = |d: usize| match space.is_uniform {
            true => enqueued(d),
            false => Some(Form::between(1, largest(d))),
        };
        let groups = |d: usize| match space.local {
            Some(local) => {
                let local = local[d].max(1);
                Form::constant((space.global[d] + local - 1) / local)
            }
            None => Form::id(Id::Count, d, space),
        };
        let component = |d: usize| {
            Some(match built_in {
                BuiltIn::GlobalInvocationId => Form::id(Id::Global, d, space),
                BuiltIn::LocalInvocationId => Form::id(Id::Local, d, space),
                BuiltIn::WorkgroupId => Form::id(Id::Group, d, space),
                BuiltIn::GlobalSize => Form::constant(space.global[d]),
                BuiltIn::GlobalOffset => Form::constant(space.offset[d]),
                BuiltIn::WorkgroupSize => local(d)?,
                BuiltIn::EnqueuedWorkgroupSize => enqueued(d)?,
                BuiltIn::NumWorkgroups => groups(d),
                _ => return None,
            })
        };
        if let Some(width) = self.width(ty) {
            let size = i128::from(width / 8).max(1);
            let form = match built_in {
                BuiltIn::WorkDim => Form::constant(space.dimensions as i128),
                BuiltIn::GlobalLinearId => {
                    let mut sum = Form::constant(0);
                    for d in (0..3).rev() {
                        let own = Form::id(Id::Global, d, space);
                        let own = own.plus(&Form::constant(-space.offset[d]), space)?;
                        sum = sum.times(space.global[d])?.plus(&own, space)?;
                    }
                    sum
                }
                BuiltIn::LocalInvocationIndex => match space.local.filter(|_| space.is_uniform) {
                    Some(local) => {
                        let mut sum = Form::constant(0);
                        for d in (0..3).rev() {
                            let own = Form::id(Id::Local, d, space);
                            sum = sum.times(local[d])?.plus(&own, space)?;
                        }
                        sum
                    }
                    None => Form::between(0, (0..3).map(largest).product::<i128>() - 1),
                },
                _ if offset % size == 0 => {
                    component(usize::try_from(offset / size).ok().filter(|&d| d < 3)?)?
                }
                _ => return None,
            };
            let (low, high) = form.bounds(space);
            return (0 <= low && high < 1 << width).then_some(Known::Integer(form));
        }
        let (part, count) = self.definitions.get(ty)?.vector()?;
        let width = self.width(part)?;
        let parts = (0..count as usize).take(3).map(|d| {
            let form = component(d)?;
            let (low, high) = form.bounds(space);
            (0 <= low && high < 1 << width).then_some(Known::Integer(form))
        });
        (offset == 0 && count <= 3).then_some(())?;
        parts.collect::<Option<_>>().map(Known::Parts)
    }

    /// Returns a pointer after a cast to a storage class that promises where it leads. A pointer to other memory leads
    /// anywhere then.
    fn cast_to(&self, class: Option<u32>, value: Known) -> Known {
        let class = class.and_then(StorageClass::from_u32);
        let is_in_class = |base: &Base| match base {
            Base::Parameter(at) => class.is_some() && self.parameter_class(*at) == class,
            Base::OneOf(all, is_complete) => {
                let mut all = all.iter().map(|&at| self.parameter_class(at));
                *is_complete && class.is_some() && all.all(|own| own == class)
            }
            Base::Variable(id) => {
                let own = self.definitions.get(*id).and_then(|i| i.variable());
                own.zip(class).is_some_and(|((own, _), class)| own == class as u32)
            }
            Base::Null => true,
            Base::BuiltIn(_) | Base::Harmless | Base::Anything => false,
        };
        match &value {
            Known::Pointer(Pointer { base, .. }) if is_in_class(base) => value,
            _ => Known::Pointer(Pointer::to(Base::Anything)),
        }
    }

    /// Returns the storage class of the memory that a parameter of the kernel points to.
    fn parameter_class(&self, at: usize) -> Option<StorageClass> {
        self.parameter_classes.get(at).copied().flatten()
    }

    pub(super) fn pointee(&self, pointer: u32) -> Option<u32> {
        self.definitions.type_of(pointer)?.pointee()
    }

    /// Returns the pointer that an access chain calculates. `see` returns the values of its operands.
    pub(super) fn chain(&self, i: &Instruction<'_>, see: &impl Fn(u32) -> Known) -> Option<Known> {
        let Known::Pointer(pointer) = see(i.derived_from()?) else {
            return None;
        };
        let offset = pointer.offset.and_then(|offset| self.indexed_offset(i, offset, see));
        let base = match pointer.base {
            Base::Null => Base::Harmless,
            base => base,
        };
        Some(Known::Pointer(Pointer { base, offset }))
    }

    /// Returns `offset` after the indexes of an access chain.
    fn indexed_offset(
        &self,
        i: &Instruction<'_>,
        mut offset: Form,
        see: &impl Fn(u32) -> Known,
    ) -> Option<Form> {
        let (base, element, indexes) = match i.view() {
            View::Chain { base, indexes } => (base, None, indexes),
            View::PtrChain { base, element, indexes } => (base, Some(element), indexes),
            _ => return None,
        };
        let mut ty = self.pointee(base)?;
        if let Some(element) = element {
            let size = self.layouts.size(ty)?;
            let index = self.index(element, see)?;
            offset = offset.plus(&index.times(size)?, self.space)?;
        }
        for index in indexes.iter() {
            let index = self.index(index, see)?;
            match &self.layouts.get(ty)?.parts {
                Parts::Equal(part, stride) => {
                    offset = offset.plus(&index.times(*stride)?, self.space)?;
                    ty = *part;
                }
                Parts::Members(members) => {
                    let at = usize::try_from(index.value()?).ok()?;
                    let &(member, start) = members.get(at)?;
                    offset = offset.plus(&Form::constant(start), self.space)?;
                    ty = member;
                }
                Parts::None => return None,
            }
        }
        Some(offset)
    }

    /// Returns the value of an index. Indexes are signed.
    pub(super) fn index(&self, id: u32, see: &impl Fn(u32) -> Known) -> Option<Form> {
        let Known::Integer(index) = see(id) else { return None };
        let width = self.width_of(id)?;
        Some(Arithmetic { space: self.space, width }.signed(&index))
    }

    fn bitcast(&mut self, frame: &mut Frame<'m>, at: At, i: &Instruction<'m>) -> Option<Known> {
        let value = self.value(frame, i.operand()?);
        let ty = i.result_type().and_then(|ty| self.definitions.get(ty)?.op());
        match (&value, ty) {
            (Known::Pointer(_), Some(Op::TypePointer)) => Some(value),
            (Known::Integer(_), Some(Op::TypeInt)) => Some(value),
            _ => {
                self.escape(frame, at, &value, "has its address converted to an integer");
                None
            }
        }
    }

    fn extended(&mut self, frame: &mut Frame<'m>, at: At, i: &Instruction<'m>) -> Option<Known> {
        if let Some(access) = VectorAccess::of(self.definitions, i) {
            let kind = if access.stored.is_some() { Kind::Write } else { Kind::Read };
            let (pointer, size) = self.vector(frame, &access);
            self.touch(frame, at, &pointer, kind, size);
            return None;
        }
        let function = extended(self.definitions, i);
        match function {
            Some(Extended::prefetch) => None,
            Some(Extended::fract | Extended::modf | Extended::sincos) => {
                // Writes one value of the result's type.
                let size = i.result_type().and_then(|ty| self.layouts.size(ty));
                let pointer = self.value(frame, i.extended_operands().nth(1)?);
                self.touch(frame, at, &pointer, Kind::Write, size);
                None
            }
            Some(Extended::frexp | Extended::lgamma_r | Extended::remquo) => {
                // Writes integers, as many as the result has components.
                let position = if function == Some(Extended::remquo) { 2 } else { 1 };
                let pointer = i.extended_operands().nth(position)?;
                let size = self.pointee(pointer).and_then(|ty| self.layouts.size(ty));
                let pointer = self.value(frame, pointer);
                self.touch(frame, at, &pointer, Kind::Write, size);
                None
            }
            _ => {
                self.escape_operands(frame, at, i, "is used by a function that cannot be analyzed");
                let see = |id| self.value(frame, id);
                match self.parts_of(i.result_type()?) {
                    Some(_) => self.by_parts(i, &see, &|see| self.called(i, &frame.facts, &see)),
                    None => self.called(i, &frame.facts, &see),
                }
            }
        }
    }

    /// Returns the result of a function of OpenCL on integers, where facts hold. `see` returns the values of
    /// its operands.
    pub(super) fn called(
        &self,
        i: &Instruction<'_>,
        facts: &Facts,
        see: &impl Fn(u32) -> Known,
    ) -> Option<Known> {
        self.definitions.value_op(i)?;
        let function = extended(self.definitions, i)?;
        Meaning::of_function(function).filter(|meaning| meaning.has_range)?;
        let operands = i.extended_operands().map(|id| match see(id) {
            Known::Integer(form) => Some(form),
            _ => None,
        });
        let operands = operands.collect::<Option<Vec<_>>>()?;
        let arithmetic =
            Arithmetic { space: self.space, width: self.part_width(i.result_type()?)? };
        // The result is not defined if the lower bound is above the upper one.
        if self.is_strict
            && let (Extended::s_clamp | Extended::u_clamp, [_, low, high]) = (function, &*operands)
        {
            let is_signed = function == Extended::s_clamp;
            let op = if is_signed { Op::SLessThanEqual } else { Op::ULessThanEqual };
            arithmetic.compare(op, low, high).filter(|&holds| holds)?;
        }
        arithmetic.extended(function, &operands, facts).map(Known::Integer)
    }

    /// Returns the address that a load or store by a function accesses, and the number of bytes.
    fn vector(&self, frame: &Frame<'_>, access: &VectorAccess) -> (Known, Option<i128>) {
        let mut pointer = self.value(frame, access.pointer);
        let size = access.span.map(|span| span.size);
        if let Known::Pointer(pointer) = &mut pointer {
            let index = self.index(access.offset, &|id| self.value(frame, id));
            let steps = index.zip(size).and_then(|(index, size)| index.times(size));
            pointer.offset =
                pointer.offset.zip(steps).and_then(|(offset, by)| offset.plus(&by, self.space));
        }
        (pointer, size)
    }

    fn atomic(&mut self, frame: &mut Frame<'m>, at: At, i: &Instruction<'m>) {
        if let Some(pointer) = i.pointer() {
            let size = self.pointee(pointer).and_then(|ty| self.layouts.size(ty));
            let pointer = self.value(frame, pointer);
            self.touch(frame, at, &pointer, Kind::Atomic, size);
        }
        if let View::AtomicUpdate { value, .. } | View::AtomicCompare { value, .. } = i.view() {
            let value = self.value(frame, value);
            self.escape(frame, at, &value, "has its address stored in memory");
        }
    }

    /// Returns the result of an operation on integers. `see` returns the values of its operands.
    pub(super) fn arithmetic(
        &self,
        i: &Instruction<'_>,
        see: &impl Fn(u32) -> Known,
    ) -> Option<Known> {
        let ty = i.result_type()?;
        let integer = |id| match see(id) {
            Known::Integer(form) => Some(form),
            _ => None,
        };
        let operand = || integer(i.operand()?);
        let operands = || {
            let (left, right) = i.both()?;
            Some((integer(left)?, integer(right)?))
        };
        let arithmetic = Arithmetic { space: self.space, width: self.part_width(ty)? };
        // Decorations may change what an operation gives.
        let op = self.definitions.value_op(i)?;
        Meaning::of(op).filter(|meaning| meaning.has_range)?;
        let form = match op {
            Op::UConvert | Op::SConvert => {
                arithmetic.convert(op, &operand()?, self.part_width_of(i.operand()?)?)
            }
            Op::ShiftRightArithmetic | Op::ShiftRightLogical => {
                let narrowed = self.narrowed(op, i, &arithmetic, see);
                narrowed.or_else(|| {
                    let (a, b) = operands()?;
                    arithmetic.binary(op, &a, &b)
                })
            }
            Op::SNegate | Op::Not => arithmetic.unary(op, &operand()?),
            Op::LogicalNot => Form::constant(1).minus(&operand()?, self.space),
            Op::LogicalAnd => {
                let (a, b) = operands()?;
                match (a.value(), b.value()) {
                    (Some(0), _) | (_, Some(0)) => Some(Form::constant(0)),
                    (Some(1), Some(1)) => Some(Form::constant(1)),
                    _ => None,
                }
            }
            Op::LogicalOr => {
                let (a, b) = operands()?;
                match (a.value(), b.value()) {
                    (Some(1), _) | (_, Some(1)) => Some(Form::constant(1)),
                    (Some(0), Some(0)) => Some(Form::constant(0)),
                    _ => None,
                }
            }
            _ => {
                let (a, b) = operands()?;
                let width = self.part_width_of(i.both()?.0)?;
                let operands = Arithmetic { space: self.space, width };
                match operands.compare(op, &a, &b) {
                    Some(is_true) => Some(Form::constant(is_true.into())),
                    None => arithmetic.binary(op, &a, &b),
                }
            }
        };
        form.map(Known::Integer)
    }

    /// Evaluates a shift to the right of a value that was shifted to the left by the same number of bits.
    /// The pair of shifts extends the lower bits of the value.
    fn narrowed(
        &self,
        op: Op,
        i: &Instruction<'_>,
        arithmetic: &Arithmetic<'_>,
        see: &impl Fn(u32) -> Known,
    ) -> Option<Form> {
        let (left, right) = i.both()?;
        let shifted = self.definitions.get(left)?;
        if shifted.op() != Some(Op::ShiftLeftLogical) {
            return None;
        }
        let (narrow, by) = shifted.both()?;
        let value = |id| match see(id) {
            Known::Integer(form) => Some(form),
            _ => None,
        };
        let form = value(narrow)?;
        let (left_bits, right_bits) = (value(by)?.value()?, value(right)?.value()?);
        if left_bits != right_bits || !(1..i128::from(arithmetic.width)).contains(&left_bits) {
            return None;
        }
        let narrow = Arithmetic { width: arithmetic.width - left_bits as u32, ..*arithmetic };
        let (low, high) = form.bounds(self.space);
        let modulus = 1_i128 << narrow.width;
        if low < -modulus / 2 || high >= modulus {
            return None;
        }
        Some(if op == Op::ShiftRightArithmetic {
            narrow.signed(&form)
        } else {
            narrow.unsigned(&form)
        })
    }

    /// Records an access to the memory that a pointer points to.
    fn touch(
        &self,
        frame: &mut Frame<'m>,
        at: At,
        pointer: &Known,
        kind: Kind,
        size: Option<i128>,
    ) {
        self.watch(at.1, pointer, kind, size);
        let Known::Pointer(pointer) = pointer else {
            // Not a pointer that is understood: another kind of pointer, or a damaged module.
            let anything = Known::Pointer(Pointer::to(Base::Anything));
            self.record(
                frame,
                at,
                &anything,
                kind,
                None,
                "through a value that cannot be analyzed",
            );
            return;
        };
        let bytes = pointer.offset.zip(size).and_then(|(start, width)| {
            let (group, inside) = (start.by_group(self.space), start.inside());
            let start = start.without_local(self.space);
            let (low, high) = start.bounds(self.space);
            (-MAX_OFFSET < low && high < MAX_OFFSET && width < MAX_OFFSET).then_some(Bytes {
                start,
                width,
                group,
                inside,
            })
        });
        let text = match pointer.base {
            Base::Parameter(_) if bytes.is_none() => UNKNOWN_OFFSETS,
            Base::OneOf(..) => "through a pointer that is chosen while it runs",
            Base::Anything => "through a pointer that cannot be analyzed",
            _ => "",
        };
        self.record(frame, at, &Known::Pointer(pointer.clone()), kind, bytes, text);
    }

    /// Records that the pointers in a value escape the analysis.
    pub(super) fn escape(&self, frame: &mut Frame<'m>, at: At, value: &Known, text: &'static str) {
        match value {
            Known::Pointer(_) => {
                self.watch_escape(at.1, value, text);
                self.record(frame, at, value, Kind::Escape, None, text);
            }
            Known::Parts(parts) => {
                for part in parts {
                    self.escape(frame, at, part, text);
                }
            }
            Known::Integer(_) | Known::Other => {}
        }
    }

    fn escape_operands(
        &self,
        frame: &mut Frame<'m>,
        at: At,
        i: &Instruction<'m>,
        text: &'static str,
    ) {
        let mut operands = Vec::new();
        let known = operand_ids(i, self.definitions, |id| operands.push(id));
        if known.is_err() {
            let anything = Known::Pointer(Pointer::to(Base::Anything));
            self.escape(frame, at, &anything, text);
        }
        for operand in operands {
            let value = self.value(frame, operand);
            self.escape(frame, at, &value, text);
        }
    }

    /// Records an access to each buffer that a pointer may point to.
    pub(super) fn record(
        &self,
        frame: &mut Frame<'m>,
        (block, location): At,
        pointer: &Known,
        kind: Kind,
        bytes: Option<Bytes>,
        text: &'static str,
    ) {
        let Known::Pointer(pointer) = pointer else { return };
        let location = self.own_location(frame, location);
        let note = (!text.is_empty()).then_some(text);
        let mut push = |parameter, bytes, is_certain| {
            let kind = match self.images.read_only.contains(&parameter) {
                true => Kind::Read,
                false => kind,
            };
            let access = Access { parameter, kind, bytes, note, is_certain, location };
            frame.accesses.push((block, access));
        };
        match &pointer.base {
            Base::Parameter(parameter) => push(*parameter, bytes, true),
            Base::OneOf(parameters, _) => parameters.iter().for_each(|&p| push(p, None, false)),
            Base::Anything => self.buffers.keys().for_each(|&p| push(p, None, false)),
            Base::Variable(_) | Base::BuiltIn(_) | Base::Harmless | Base::Null => {}
        }
    }
}
