//! Calculations of the interpreter on values of all types.

use kiln_spirv::edit::{Instruction, Location};
use rspirv::spirv::Op;

use super::scalars::{mask, scalar_operation};
use super::{Frame, Machine, Run, Stopped, Val, word};

impl<'m> Machine<'m> {
    /// Applies an operation to each component of a vector, or to scalars.
    pub(super) fn by_parts(
        &self,
        ty: u32,
        operands: &[Val],
        operate: &dyn Fn(&Self, u32, &[u64]) -> u64,
    ) -> Run<Val> {
        let bits = |value: &Val, at: usize| match value {
            Val::Bits(bits) => *bits,
            Val::Parts(parts) => match parts.get(at) {
                Some(Val::Bits(bits)) => *bits,
                _ => 0,
            },
            Val::Pointer(object, offset) => (*object as u64) << 40 | *offset as u64,
            // No operation has one as an operand.
            Val::Image(_) | Val::Sampler(_) | Val::Combined(..) => 0,
        };
        match self.ty(ty)?.op() {
            Some(Op::TypeVector) => {
                let parts = self.parts(ty)?.into_iter().enumerate();
                let parts = parts.map(|(at, (part, _))| {
                    let own: Vec<_> = operands.iter().map(|value| bits(value, at)).collect();
                    Ok(Val::Bits(operate(self, part, &own) & mask(self.width(part)?)))
                });
                Ok(Val::Parts(parts.collect::<Run<_>>()?))
            }
            Some(Op::TypeBool | Op::TypeInt | Op::TypeFloat) => {
                let own: Vec<_> = operands.iter().map(|value| bits(value, 0)).collect();
                Ok(Val::Bits(operate(self, ty, &own) & mask(self.width(ty)?)))
            }
            // Pointers from integers, and calculations on whole structs, are not followed.
            _ => Err(Stopped),
        }
    }

    pub(super) fn calculate(
        &mut self,
        frame: &Frame,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
    ) -> Run<Val> {
        let ty = i.result_type().ok_or(Stopped)?;
        let see = |this: &Self, at: usize| this.value(frame, word(i, at)?);
        Ok(match op {
            Op::Undef => self.zero(ty)?,
            Op::CopyObject
            | Op::PtrCastToGeneric
            | Op::GenericCastToPtr
            | Op::GenericCastToPtrExplicit => see(self, 2)?,
            Op::Bitcast => {
                let (value, own) = (see(self, 2)?, self.ty(ty)?.op());
                let same_width = || Ok(self.width(ty)? == self.width(self.type_id(word(i, 2)?)?)?);
                let is_alike = match value {
                    Val::Pointer(..) => own == Some(Op::TypePointer),
                    Val::Bits(_) => {
                        matches!(own, Some(Op::TypeInt | Op::TypeFloat)) && same_width()?
                    }
                    Val::Parts(_) => own == Some(Op::TypeVector) && same_width()?,
                    Val::Image(_) | Val::Sampler(_) | Val::Combined(..) => false,
                };
                if is_alike { value } else { return Err(Stopped) }
            }
            Op::Select => match see(self, 2)? {
                Val::Bits(holds) => see(self, if holds == 1 { 3 } else { 4 })?,
                holds => {
                    let operands = [holds, see(self, 3)?, see(self, 4)?];
                    self.by_parts(ty, &operands, &|_, _, all| {
                        if all[0] == 1 { all[1] } else { all[2] }
                    })?
                }
            },
            Op::CompositeConstruct => {
                let mut parts = Vec::new();
                for word in 2..i.words().len() - 1 {
                    match see(self, word)? {
                        Val::Parts(own) if self.ty(ty)?.op() == Some(Op::TypeVector) => {
                            parts.extend(own);
                        }
                        other => parts.push(other),
                    }
                }
                Val::Parts(parts)
            }
            Op::CompositeExtract => {
                let mut value = see(self, 2)?;
                for at in i.words_from(3) {
                    let Val::Parts(parts) = value else { return Err(Stopped) };
                    value = parts.get(at as usize).cloned().ok_or(Stopped)?;
                }
                value
            }
            Op::CompositeInsert => {
                let (new, mut whole) = (see(self, 2)?, see(self, 3)?);
                let mut place = &mut whole;
                for at in i.words_from(4) {
                    let Val::Parts(parts) = place else { return Err(Stopped) };
                    place = parts.get_mut(at as usize).ok_or(Stopped)?;
                }
                *place = new;
                whole
            }
            Op::VectorShuffle => {
                let (Val::Parts(mut all), Val::Parts(second)) = (see(self, 2)?, see(self, 3)?)
                else {
                    return Err(Stopped);
                };
                all.extend(second);
                let part = |at: u32| all.get(at as usize).cloned().unwrap_or(Val::Bits(0));
                Val::Parts(i.words_from(4).map(part).collect())
            }
            Op::VectorExtractDynamic => {
                let (Val::Parts(all), Val::Bits(at)) = (see(self, 2)?, see(self, 3)?) else {
                    return Err(Stopped);
                };
                all.get(at as usize).cloned().unwrap_or(Val::Bits(0))
            }
            Op::VectorInsertDynamic => {
                let (Val::Parts(mut all), Val::Bits(at)) = (see(self, 2)?, see(self, 4)?) else {
                    return Err(Stopped);
                };
                let new = see(self, 3)?;
                if let Some(place) = all.get_mut(at as usize) {
                    *place = new;
                }
                Val::Parts(all)
            }
            Op::All | Op::Any => {
                let Val::Parts(all) = see(self, 2)? else { return Err(Stopped) };
                let mut all = all.iter();
                let holds = match op {
                    Op::All => all.all(|part| *part == Val::Bits(1)),
                    _ => all.any(|part| *part == Val::Bits(1)),
                };
                Val::Bits(holds.into())
            }
            _ => self.operation(frame, at, op, ty, i)?,
        })
    }

    /// Evaluates an operation on the components of its operands.
    fn operation(
        &mut self,
        frame: &Frame,
        at: Location,
        op: Op,
        ty: u32,
        i: &Instruction<'m>,
    ) -> Run<Val> {
        let operands = (2..i.words().len() - 1).map(|at| self.value(frame, word(i, at)?));
        let operands = operands.collect::<Run<Vec<_>>>()?;
        let is_pointer = |value: &Val| matches!(value, Val::Pointer(..));
        let is_object =
            |value: &Val| matches!(value, Val::Image(_) | Val::Sampler(_) | Val::Combined(..));
        let is_refused = operands.iter().any(is_pointer) && !compares_pointers(op);
        if operands.is_empty() || is_refused || operands.iter().any(is_object) {
            return Err(Stopped);
        }
        let width = self.width(self.type_id(word(i, 2)?)?)?;
        let events = std::cell::RefCell::new(Vec::new());
        let result = self.by_parts(ty, &operands, &|this, ty, all| {
            let (a, b) = (all[0], all.get(1).copied().unwrap_or(0));
            scalar_operation(op, (a, b), width, this.width(ty).unwrap_or(64), &|event| {
                events.borrow_mut().push(event);
            })
        })?;
        self.events.extend(events.into_inner().into_iter().map(|event| (at, event)));
        Ok(result)
    }
}

/// Returns whether an operation compares pointers. Other operations on them give integers, which are not followed.
fn compares_pointers(op: Op) -> bool {
    matches!(op, Op::PtrEqual | Op::PtrNotEqual | Op::IEqual | Op::INotEqual)
}
