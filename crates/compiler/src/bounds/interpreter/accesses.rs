//! Accesses of the interpreter: loads, stores, copies, atomic operations, and functions that access memory.

use kiln_spirv::edit::{Class, Instruction, List, Location, View, is_atomic};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use super::scalars::{called, signed};
use super::{Event, Frame, Machine, Run, Stopped, Val};
use crate::analysis::access::Parts;
use crate::analysis::images::is_known;
use crate::analysis::vector_access::VectorAccess;

impl<'m> Machine<'m> {
    /// Runs an instruction that does not end its block. Returns its result, if it has one.
    pub(super) fn instruction(
        &mut self,
        frame: &Frame,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
    ) -> Run<Option<Val>> {
        let see = |this: &Self, id: u32| this.value(frame, id);
        Ok(match i.view() {
            View::Unknown => return Err(Stopped),
            View::Load { pointer, .. } if self.built_ins.contains_key(&pointer) => {
                Some(self.built_in(pointer))
            }
            View::Load { pointer, .. } => {
                let pointer = see(self, pointer)?;
                Some(self.load(at, i.result_type().ok_or(Stopped)?, &pointer)?)
            }
            View::Store { pointer, value: id, .. } => {
                let (pointer, value) = (see(self, pointer)?, see(self, id)?);
                self.store(at, self.type_id(id)?, &pointer, &value)?;
                None
            }
            _ if is_atomic(op) => self.atomic(frame, at, op, i)?,
            _ if is_known(op) => self.image(frame, at, op, i)?,
            View::Chain { base, indexes } => Some(self.chain(frame, base, None, indexes)?),
            View::PtrChain { base, element, indexes } => {
                Some(self.chain(frame, base, Some(element), indexes)?)
            }
            View::ExtInst { .. } => self.extended(frame, at, i)?,
            View::CopyMemory { target, source, .. } => {
                let (to, from) = (see(self, target)?, see(self, source)?);
                let ty = self.pointee(self.type_id(target)?)?;
                let value = self.load(at, ty, &from)?;
                self.store(at, ty, &to, &value)?;
                None
            }
            View::CopyMemorySized { target, source, size, .. } => {
                let (to, from) = (see(self, target)?, see(self, source)?);
                let size = see(self, size)?;
                self.copy(at, &to, &from, &size)?;
                None
            }
            View::ControlBarrier { .. } | View::MemoryBarrier { .. } => None,
            _ if i.class().is_some_and(Class::is_note) => None,
            _ => Some(self.calculate(frame, at, op, i)?),
        })
    }

    /// Returns whether an access is inside of an object. Notes it if it is not.
    fn is_inside(&mut self, at: Location, writes: bool, pointer: &Val, size: usize) -> Run<bool> {
        if !matches!(pointer, Val::Pointer(..)) {
            return Err(Stopped);
        }
        self.touched.insert(at);
        let is_inside = self.exists(pointer, size);
        if !is_inside {
            self.events.insert((at, Event::Outside { writes }));
        }
        Ok(is_inside)
    }

    /// Returns whether memory exists.
    fn exists(&self, pointer: &Val, size: usize) -> bool {
        let &Val::Pointer(object, offset) = pointer else { return false };
        let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(size));
        end.zip(self.objects.get(object)).is_some_and(|(end, bytes)| end <= bytes.len())
    }

    fn load(&mut self, at: Location, ty: u32, pointer: &Val) -> Run<Val> {
        let is_inside = self.is_inside(at, false, pointer, self.size(ty)?)?;
        match pointer {
            &Val::Pointer(object, offset) if is_inside => self.read(ty, object, offset),
            _ => self.zero(ty),
        }
    }

    fn store(&mut self, at: Location, ty: u32, pointer: &Val, value: &Val) -> Run<()> {
        let is_inside = self.is_inside(at, true, pointer, self.size(ty)?)?;
        match pointer {
            &Val::Pointer(object, offset) if is_inside => self.write(ty, object, offset, value),
            _ => Ok(()),
        }
    }

    /// Copies bytes, if all of them exist.
    fn copy(&mut self, at: Location, to: &Val, from: &Val, size: &Val) -> Run<()> {
        let &Val::Bits(size) = size else { return Err(Stopped) };
        let size = usize::try_from(size).map_err(|_| Stopped)?;
        let has_source = self.is_inside(at, false, from, size)?;
        let has_target = self.is_inside(at, true, to, size)?;
        if !(has_source && has_target) {
            return Ok(());
        }
        let (&Val::Pointer(source, start), &Val::Pointer(target, place)) = (from, to) else {
            return Err(Stopped);
        };
        let (start, place) = (start as usize, place as usize);
        let bytes = self.objects[source][start..start + size].to_vec();
        self.objects[target][place..place + size].copy_from_slice(&bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        frame: &Frame,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
    ) -> Run<Option<Val>> {
        let id = i.pointer().ok_or(Stopped)?;
        let pointer = self.value(frame, id)?;
        let ty = self.pointee(self.type_id(id)?)?;
        let operand = match i.view() {
            View::AtomicUpdate { value, .. } | View::AtomicCompare { value, .. } => {
                Some(self.value(frame, value)?)
            }
            _ => match op {
                Op::AtomicIIncrement | Op::AtomicIDecrement | Op::AtomicLoad => None,
                _ => return Err(Stopped),
            },
        };
        let before = self.load(at, ty, &pointer)?;
        let Val::Bits(old) = before else { return Err(Stopped) };
        let by = match operand {
            Some(Val::Bits(by)) => by,
            _ => 1,
        };
        let width = self.width(ty)?;
        let (a, b) = (signed(old, width), signed(by, width));
        let new = match op {
            Op::AtomicIAdd | Op::AtomicIIncrement => old.wrapping_add(by),
            Op::AtomicISub | Op::AtomicIDecrement => old.wrapping_sub(by),
            Op::AtomicStore | Op::AtomicExchange => by,
            Op::AtomicAnd => old & by,
            Op::AtomicOr => old | by,
            Op::AtomicXor => old ^ by,
            Op::AtomicUMax => old.max(by),
            Op::AtomicUMin => old.min(by),
            Op::AtomicSMax => a.max(b) as u64,
            Op::AtomicSMin => a.min(b) as u64,
            _ => old,
        };
        if self.exists(&pointer, self.size(ty)?) {
            self.store(at, ty, &pointer, &Val::Bits(new))?;
        }
        Ok(i.result().map(|_| before))
    }

    fn chain(&self, frame: &Frame, base: u32, element: Option<u32>, indexes: List<'m>) -> Run<Val> {
        let Val::Pointer(object, mut offset) = self.value(frame, base)? else {
            return Err(Stopped);
        };
        let mut ty = self.pointee(self.type_id(base)?)?;
        let index = |id: u32| match self.value(frame, id)? {
            Val::Bits(bits) => Ok(signed(bits, self.width(self.type_id(id)?)?)),
            _ => Err(Stopped),
        };
        if let Some(element) = element {
            let by = index(element)?;
            offset = offset.wrapping_add(by.wrapping_mul(self.size(ty)? as i64));
        }
        for id in indexes.iter() {
            let index = index(id)?;
            match &self.layouts.get(ty).ok_or(Stopped)?.parts {
                Parts::Equal(part, stride) => {
                    offset = offset.wrapping_add(index.wrapping_mul(*stride as i64));
                    ty = *part;
                }
                Parts::Members(members) => {
                    let member = usize::try_from(index).ok().and_then(|at| members.get(at));
                    let &(member, start) = member.ok_or(Stopped)?;
                    offset = offset.wrapping_add(start as i64);
                    ty = member;
                }
                Parts::None => return Err(Stopped),
            }
        }
        Ok(Val::Pointer(object, offset))
    }

    /// Calls a function of a set.
    fn extended(&mut self, frame: &Frame, at: Location, i: &Instruction<'m>) -> Run<Option<Val>> {
        if let Some(access) = VectorAccess::of(self.definitions, i) {
            return self.vector(frame, at, i, access);
        }
        let ty = i.result_type().ok_or(Stopped)?;
        let (_, function) = i.extended().ok_or(Stopped)?;
        let function = Extended::from_u32(function);
        let touches = [
            Extended::fract,
            Extended::frexp,
            Extended::lgamma_r,
            Extended::modf,
            Extended::remquo,
            Extended::sincos,
        ];
        if function.is_none_or(|function| touches.contains(&function)) {
            return Err(Stopped);
        }
        let operands = i.extended_operands().map(|id| self.value(frame, id));
        let operands = operands.collect::<Run<Vec<_>>>()?;
        let result = self.by_parts(ty, &operands, &|this, ty, operands| {
            let width = this.width(ty).unwrap_or(64);
            let is_int = this.ty(ty).is_ok_and(|ty| ty.op() == Some(Op::TypeInt));
            match function {
                Some(function) if is_int => called(function, operands, width),
                _ => operands.first().copied().unwrap_or(0),
            }
        });
        result.map(Some)
    }

    /// Calls a function that loads or stores a vector.
    fn vector(
        &mut self,
        frame: &Frame,
        at: Location,
        i: &Instruction<'m>,
        access: VectorAccess,
    ) -> Run<Option<Val>> {
        let size = access.span.ok_or(Stopped)?.size as i64;
        let (index, base) = (access.offset, access.pointer);
        let (Val::Bits(bits), Val::Pointer(object, offset)) =
            (self.value(frame, index)?, self.value(frame, base)?)
        else {
            return Err(Stopped);
        };
        let by = signed(bits, self.width(self.type_id(index)?)?).wrapping_mul(size);
        let offset = offset.wrapping_add(by);
        let writes = access.stored.is_some();
        let is_inside = self.is_inside(at, writes, &Val::Pointer(object, offset), size as usize)?;
        let ty = match access.stored {
            Some(stored) => self.type_id(stored)?,
            None => i.result_type().ok_or(Stopped)?,
        };
        // A vector of three components touches the bytes of three.
        let parts = match self.ty(ty)?.op() {
            Some(Op::TypeVector) => self.parts(ty)?,
            _ => vec![(ty, 0)],
        };
        if let Some(stored) = access.stored {
            let value = self.value(frame, stored)?;
            let values = match value {
                Val::Parts(values) => values,
                one => vec![one],
            };
            for ((part, start), value) in parts.into_iter().zip(values) {
                if is_inside && !access.converts {
                    self.write(part, object, offset + start, &value)?;
                }
            }
            return Ok(None);
        }
        if !is_inside || access.converts {
            return self.zero(ty).map(Some);
        }
        let values = parts.into_iter().map(|(part, start)| self.read(part, object, offset + start));
        let mut values = values.collect::<Run<Vec<_>>>()?;
        let is_vector = self.ty(ty)?.op() == Some(Op::TypeVector);
        Ok(Some(if is_vector { Val::Parts(values) } else { values.pop().ok_or(Stopped)? }))
    }
}
