//! Calculations of the interpreter on values of all types.

use kiln_spirv::edit::{Class, Instruction, Location, View};
use rspirv::spirv::Op;

use super::scalars::{mask, scalar_operation};
use super::{Frame, Machine, Run, Stopped, Val};

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
            _ if self.ty(ty)?.class() == Some(Class::Scalar) => {
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
        let see = |this: &Self, id: u32| this.value(frame, id);
        Ok(match i.view() {
            View::Plain {} if op == Op::Undef => self.zero(ty)?,
            View::CastExplicit { pointer, .. } => see(self, pointer)?,
            View::Unary { value: id } => match op {
                Op::CopyObject | Op::PtrCastToGeneric | Op::GenericCastToPtr => see(self, id)?,
                Op::Bitcast => self.bitcast(see(self, id)?, ty, self.type_id(id)?)?,
                Op::All | Op::Any => {
                    let Val::Parts(all) = see(self, id)? else { return Err(Stopped) };
                    let mut all = all.iter();
                    let holds = match op {
                        Op::All => all.all(|part| *part == Val::Bits(1)),
                        _ => all.any(|part| *part == Val::Bits(1)),
                    };
                    Val::Bits(holds.into())
                }
                _ => self.operation(frame, at, op, ty, &[id])?,
            },
            View::Binary { left, right } => self.operation(frame, at, op, ty, &[left, right])?,
            View::Select { condition, yes, no } => match see(self, condition)? {
                Val::Bits(holds) => see(self, if holds == 1 { yes } else { no })?,
                holds => {
                    let operands = [holds, see(self, yes)?, see(self, no)?];
                    self.by_parts(ty, &operands, &|_, _, all| {
                        if all[0] == 1 { all[1] } else { all[2] }
                    })?
                }
            },
            View::Composite { parts: given } => {
                let mut parts = Vec::new();
                for id in given.iter() {
                    match see(self, id)? {
                        Val::Parts(own) if self.ty(ty)?.op() == Some(Op::TypeVector) => {
                            parts.extend(own);
                        }
                        other => parts.push(other),
                    }
                }
                Val::Parts(parts)
            }
            View::Extract { whole, path } => {
                let mut value = see(self, whole)?;
                for at in path.iter() {
                    let Val::Parts(parts) = value else { return Err(Stopped) };
                    value = parts.get(at as usize).cloned().ok_or(Stopped)?;
                }
                value
            }
            View::Insert { part, whole, path } => {
                let (new, mut whole) = (see(self, part)?, see(self, whole)?);
                let mut place = &mut whole;
                for at in path.iter() {
                    let Val::Parts(parts) = place else { return Err(Stopped) };
                    place = parts.get_mut(at as usize).ok_or(Stopped)?;
                }
                *place = new;
                whole
            }
            View::Shuffle { first, second, lanes } => {
                let (Val::Parts(mut all), Val::Parts(second)) =
                    (see(self, first)?, see(self, second)?)
                else {
                    return Err(Stopped);
                };
                all.extend(second);
                let part = |at: u32| all.get(at as usize).cloned().unwrap_or(Val::Bits(0));
                Val::Parts(lanes.iter().map(part).collect())
            }
            View::ExtractDynamic { vector, index } => {
                let (Val::Parts(all), Val::Bits(at)) = (see(self, vector)?, see(self, index)?)
                else {
                    return Err(Stopped);
                };
                all.get(at as usize).cloned().unwrap_or(Val::Bits(0))
            }
            View::InsertDynamic { vector, part, index } => {
                let (Val::Parts(mut all), Val::Bits(at)) = (see(self, vector)?, see(self, index)?)
                else {
                    return Err(Stopped);
                };
                let new = see(self, part)?;
                if let Some(place) = all.get_mut(at as usize) {
                    *place = new;
                }
                Val::Parts(all)
            }
            _ => return Err(Stopped),
        })
    }

    /// Returns the value with the same bits, of the type `ty`. `from` is the type of the given value.
    fn bitcast(&self, value: Val, ty: u32, from: u32) -> Run<Val> {
        let own = self.ty(ty)?.op();
        let same_width = || Ok(self.width(ty)? == self.width(from)?);
        let is_alike = match value {
            Val::Pointer(..) => own == Some(Op::TypePointer),
            Val::Bits(_) => matches!(own, Some(Op::TypeInt | Op::TypeFloat)) && same_width()?,
            Val::Parts(_) => own == Some(Op::TypeVector) && same_width()?,
            Val::Image(_) | Val::Sampler(_) | Val::Combined(..) => false,
        };
        if is_alike { Ok(value) } else { Err(Stopped) }
    }

    /// Evaluates an operation on the components of its operands.
    fn operation(&mut self, frame: &Frame, at: Location, op: Op, ty: u32, ids: &[u32]) -> Run<Val> {
        let operands = ids.iter().map(|&id| self.value(frame, id));
        let operands = operands.collect::<Run<Vec<_>>>()?;
        let is_pointer = |value: &Val| matches!(value, Val::Pointer(..));
        let is_object =
            |value: &Val| matches!(value, Val::Image(_) | Val::Sampler(_) | Val::Combined(..));
        let is_refused = operands.iter().any(is_pointer) && !compares_pointers(op);
        if operands.is_empty() || is_refused || operands.iter().any(is_object) {
            return Err(Stopped);
        }
        let width = self.width(self.type_id(*ids.first().ok_or(Stopped)?)?)?;
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
