//! Calculations of the interpreter on values of all types.

use std::collections::HashMap;

use rspirv::spirv::Op;

use super::scalars::{mask, scalar_operation};
use super::{Machine, Run, Stopped, Val};
use crate::compiler::spirv::edit::{Instruction, Location};

impl<'m> Machine<'m> {
    /// Applies an operation to each component of a vector, or to scalars.
    pub(super) fn by_parts(
        &self,
        ty: u32,
        operands: &[Val],
        operate: &dyn Fn(&Self, u32, &[u64]) -> u64,
    ) -> Val {
        let declared = self.ty(ty);
        let bits = |value: &Val, at: usize| match value {
            Val::Bits(bits) => *bits,
            Val::Parts(parts) => match parts.get(at) {
                Some(Val::Bits(bits)) => *bits,
                _ => 0,
            },
            Val::Pointer(object, offset) => (*object as u64) << 40 | *offset as u64,
        };
        match declared.op() {
            Some(Op::TypeVector) => {
                let part = declared.word(1).unwrap();
                let parts = (0..declared.word(2).unwrap() as usize).map(|at| {
                    let own: Vec<_> = operands.iter().map(|value| bits(value, at)).collect();
                    Val::Bits(operate(self, part, &own) & mask(self.width(part)))
                });
                Val::Parts(parts.collect())
            }
            Some(Op::TypePointer | Op::TypeStruct | Op::TypeArray) => self.zero(ty),
            _ => {
                let own: Vec<_> = operands.iter().map(|value| bits(value, 0)).collect();
                Val::Bits(operate(self, ty, &own) & mask(self.width(ty)))
            }
        }
    }

    fn width(&self, ty: u32) -> u32 {
        let declared = self.ty(ty);
        match declared.op() {
            Some(Op::TypeBool) => 1,
            Some(Op::TypeVector) => self.width(declared.word(1).unwrap()),
            _ => declared.word(1).unwrap_or(64),
        }
    }

    pub(super) fn calculate(
        &mut self,
        frame: &HashMap<u32, Val>,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
    ) -> Run<Val> {
        let ty = i.result_type().ok_or(Stopped)?;
        let see = |this: &Self, word: usize| this.value(frame, i.word(word).unwrap());
        Ok(match op {
            Op::Undef => self.zero(ty),
            Op::CopyObject
            | Op::PtrCastToGeneric
            | Op::GenericCastToPtr
            | Op::GenericCastToPtrExplicit => see(self, 2),
            Op::Bitcast => {
                let value = see(self, 2);
                let is_alike = |value: &Val| match value {
                    Val::Pointer(..) => self.ty(ty).op() == Some(Op::TypePointer),
                    Val::Bits(_) => self.ty(ty).op() != Some(Op::TypeVector),
                    Val::Parts(_) => self.ty(ty).op() == Some(Op::TypeVector),
                };
                if is_alike(&value) { value } else { return Err(Stopped) }
            }
            Op::Select => match see(self, 2) {
                Val::Bits(holds) => see(self, if holds == 1 { 3 } else { 4 }),
                _ => {
                    self.by_parts(ty, &[see(self, 2), see(self, 3), see(self, 4)], &|_, _, all| {
                        if all[0] == 1 { all[1] } else { all[2] }
                    })
                }
            },
            Op::CompositeConstruct => {
                let mut parts = Vec::new();
                for word in 2..i.words().len() - 1 {
                    match see(self, word) {
                        Val::Parts(own) if self.ty(ty).op() == Some(Op::TypeVector) => {
                            parts.extend(own);
                        }
                        other => parts.push(other),
                    }
                }
                Val::Parts(parts)
            }
            Op::CompositeExtract => {
                let mut value = see(self, 2);
                for at in i.words_from(3) {
                    let Val::Parts(parts) = value else { return Err(Stopped) };
                    value = parts[at as usize].clone();
                }
                value
            }
            Op::CompositeInsert => {
                let (new, mut whole) = (see(self, 2), see(self, 3));
                let mut place = &mut whole;
                for at in i.words_from(4) {
                    let Val::Parts(parts) = place else { return Err(Stopped) };
                    place = &mut parts[at as usize];
                }
                *place = new;
                whole
            }
            Op::VectorShuffle => {
                let (Val::Parts(mut all), Val::Parts(second)) = (see(self, 2), see(self, 3)) else {
                    return Err(Stopped);
                };
                all.extend(second);
                let part = |at: u32| all.get(at as usize).cloned().unwrap_or(Val::Bits(0));
                Val::Parts(i.words_from(4).map(part).collect())
            }
            Op::VectorExtractDynamic => {
                let (Val::Parts(all), Val::Bits(at)) = (see(self, 2), see(self, 3)) else {
                    return Err(Stopped);
                };
                all.get(at as usize).cloned().unwrap_or(Val::Bits(0))
            }
            Op::VectorInsertDynamic => {
                let (Val::Parts(mut all), Val::Bits(at)) = (see(self, 2), see(self, 4)) else {
                    return Err(Stopped);
                };
                let new = see(self, 3);
                if let Some(place) = all.get_mut(at as usize) {
                    *place = new;
                }
                Val::Parts(all)
            }
            _ => self.operation(frame, at, op, ty, i)?,
        })
    }

    /// Evaluates an operation on the components of its operands.
    fn operation(
        &mut self,
        frame: &HashMap<u32, Val>,
        at: Location,
        op: Op,
        ty: u32,
        i: &Instruction<'m>,
    ) -> Run<Val> {
        let words = 2..i.words().len() - 1;
        let operands: Vec<_> = words.map(|word| self.value(frame, i.word(word).unwrap())).collect();
        let width = self.width(self.type_id(i.word(2).ok_or(Stopped)?));
        let events = std::cell::RefCell::new(Vec::new());
        let result = self.by_parts(ty, &operands, &|this, ty, all| {
            let (a, b) = (all[0], all.get(1).copied().unwrap_or(0));
            scalar_operation(op, a, b, width, this.width(ty), &|event| {
                events.borrow_mut().push(event);
            })
        });
        self.events.extend(events.into_inner().into_iter().map(|event| (at, event)));
        Ok(result)
    }
}
