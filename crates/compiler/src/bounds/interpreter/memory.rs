//! Types, constants and memory of the interpreter.

use kiln_spirv::edit::{Class, Instruction, View};
use rspirv::spirv::Op;

use super::scalars::mask;
use super::{MAX_DEPTH, MAX_VARIABLE, Machine, Run, Stopped, Val};
use crate::analysis::access::Parts;
use crate::{Addressing, Filter, Sampler};

impl<'m> Machine<'m> {
    pub(super) fn ty(&self, id: u32) -> Run<Instruction<'m>> {
        self.definitions.get(id).ok_or(Stopped)
    }

    pub(super) fn type_id(&self, value: u32) -> Run<u32> {
        self.ty(value)?.result_type().ok_or(Stopped)
    }

    pub(super) fn pointee(&self, pointer_type: u32) -> Run<u32> {
        self.ty(pointer_type)?.pointee().ok_or(Stopped)
    }

    /// Returns the size of a type in bytes. Booleans have one byte.
    pub(super) fn size(&self, ty: u32) -> Run<usize> {
        let size = match self.ty(ty)?.op() {
            Some(Op::TypeBool) => 1,
            _ => self.layouts.size(ty).ok_or(Stopped)?,
        };
        usize::try_from(size).ok().filter(|&size| size <= MAX_VARIABLE).ok_or(Stopped)
    }

    /// Returns the width of an integer, or of the components of a vector, in bits.
    pub(super) fn width(&self, ty: u32) -> Run<u32> {
        let declared = self.ty(ty)?;
        match declared.view() {
            View::TypeVector { component, .. } if component != ty => {
                let part = self.ty(component)?;
                let is_bool = part.op() == Some(Op::TypeBool);
                if is_bool { Ok(1) } else { part.width().ok_or(Stopped) }
            }
            View::TypeInt { width, .. } | View::TypeFloat { width, .. } => Ok(width),
            _ if declared.op() == Some(Op::TypeBool) => Ok(1),
            _ => Ok(64),
        }
    }

    /// Adds the object of a variable.
    pub(super) fn new_object(&mut self, variable: &Instruction<'_>) -> Run<usize> {
        let size = self.size(self.pointee(variable.result_type().ok_or(Stopped)?)?)?;
        self.objects.push(vec![0; size]);
        Ok(self.objects.len() - 1)
    }

    /// Returns zero, or a pointer to nothing.
    pub(super) fn zero(&self, ty: u32) -> Run<Val> {
        let declared = self.ty(ty)?;
        Ok(match declared.class() {
            Some(Class::Aggregate) => {
                let parts = self.parts(ty)?.into_iter();
                Val::Parts(parts.map(|(part, _)| self.zero(part)).collect::<Run<_>>()?)
            }
            Some(Class::Object) => return Err(Stopped),
            _ if declared.op() == Some(Op::TypePointer) => Val::Pointer(usize::MAX, 0),
            _ => Val::Bits(0),
        })
    }

    pub(super) fn constant(&self, id: u32, depth: usize) -> Run<Val> {
        let i = self.definitions.get(id).ok_or(Stopped)?;
        let ty = i.result_type().ok_or(Stopped)?;
        match i.op() {
            Some(Op::Constant) => {
                let bits = i.literal().and_then(|bits| bits.number()).ok_or(Stopped)?;
                Ok(Val::Bits(bits & mask(self.width(ty)?)))
            }
            Some(Op::ConstantTrue) => Ok(Val::Bits(1)),
            Some(Op::ConstantComposite) if depth < MAX_DEPTH => {
                let parts = i.parts().map(|part| self.constant(part, depth + 1));
                Ok(Val::Parts(parts.collect::<Run<_>>()?))
            }
            Some(Op::Variable) if self.globals.contains_key(&id) => {
                Ok(Val::Pointer(self.globals[&id], 0))
            }
            Some(Op::ConstantFalse | Op::ConstantNull | Op::Undef) => self.zero(ty),
            Some(Op::ConstantSampler) => sampler(&i).map(Val::Sampler),
            _ => Err(Stopped),
        }
    }

    /// Returns a value in memory, all of which exists.
    pub(super) fn read(&self, ty: u32, object: usize, offset: i64) -> Run<Val> {
        match self.ty(ty)?.class() {
            Some(Class::Aggregate) => {
                let parts = self.parts(ty)?.into_iter();
                let parts = parts.map(|(part, at)| self.read(part, object, offset + at));
                Ok(Val::Parts(parts.collect::<Run<_>>()?))
            }
            Some(Class::Scalar) => {
                let (start, size) = (usize::try_from(offset).map_err(|_| Stopped)?, self.size(ty)?);
                let all = self.objects.get(object).ok_or(Stopped)?;
                let own = all.get(start..start + size).ok_or(Stopped)?;
                let mut bytes = [0; 8];
                bytes.get_mut(..size).ok_or(Stopped)?.copy_from_slice(own);
                Ok(Val::Bits(u64::from_le_bytes(bytes)))
            }
            // Pointers in memory are not followed.
            _ => Err(Stopped),
        }
    }

    /// Changes memory, all of which exists.
    pub(super) fn write(&mut self, ty: u32, object: usize, offset: i64, value: &Val) -> Run<()> {
        match value {
            Val::Parts(values) => {
                let parts = self.parts(ty)?;
                if parts.len() != values.len() {
                    return Err(Stopped);
                }
                for ((part, at), value) in parts.into_iter().zip(values) {
                    self.write(part, object, offset + at, value)?;
                }
                Ok(())
            }
            Val::Bits(bits) => {
                let (start, size) = (usize::try_from(offset).map_err(|_| Stopped)?, self.size(ty)?);
                let all = self.objects.get_mut(object).ok_or(Stopped)?;
                let own = all.get_mut(start..start + size).ok_or(Stopped)?;
                own.copy_from_slice(bits.to_le_bytes().get(..size).ok_or(Stopped)?);
                Ok(())
            }
            Val::Pointer(..) | Val::Image(_) | Val::Sampler(_) | Val::Combined(..) => Err(Stopped),
        }
    }

    /// Returns the types and offsets of the parts of a type.
    pub(super) fn parts(&self, ty: u32) -> Run<Vec<(u32, i64)>> {
        if let Some((part, count)) = self.ty(ty)?.vector() {
            let count = i64::from(count);
            if count > 16 {
                return Err(Stopped);
            }
            // Vectors of booleans have no layout.
            let stride = self.size(part)? as i64;
            return Ok((0..count).map(|at| (part, at * stride)).collect());
        }
        match &self.layouts.get(ty).ok_or(Stopped)?.parts {
            Parts::Equal(part, stride) => {
                let stride = usize::try_from(*stride).map_err(|_| Stopped)?;
                let count = self.size(ty)?.checked_div(stride).ok_or(Stopped)?;
                Ok((0..count).map(|at| (*part, (at * stride) as i64)).collect())
            }
            Parts::Members(members) => {
                Ok(members.iter().map(|&(part, start)| (part, start as i64)).collect())
            }
            Parts::None => Err(Stopped),
        }
    }
}

/// Returns the sampler that a constant declares.
fn sampler(constant: &Instruction<'_>) -> Run<Sampler> {
    let View::ConstantSampler { addressing, normalized, filter } = constant.view() else {
        return Err(Stopped);
    };
    let addressing = match addressing {
        0 => Addressing::None,
        1 => Addressing::ClampToEdge,
        2 => Addressing::Clamp,
        3 => Addressing::Repeat,
        4 => Addressing::MirroredRepeat,
        _ => return Err(Stopped),
    };
    let filter = match filter {
        0 => Filter::Nearest,
        1 => Filter::Linear,
        _ => return Err(Stopped),
    };
    Ok(Sampler::new().normalized(normalized != 0).addressing(addressing).filter(filter))
}
