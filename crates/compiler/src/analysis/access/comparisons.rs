//! Comparisons of pointers.

use kiln_spirv::edit::{Class, Instruction, operand_ids};
use rspirv::spirv::Op;

use super::eval::{Evaluation, Frame};
use super::facts::Known;
use super::pointers::{Base, Pointer};

impl<'m> Evaluation<'m> {
    /// Returns whether an integer is used only in comparisons.
    pub(super) fn is_only_compared(&self, frame: &Frame<'_>, id: u32) -> bool {
        let mut all = frame.function.blocks.all.iter().flat_map(|block| &block.body);
        all.all(|(_, i)| {
            let mut is_used = false;
            let uses = operand_ids(i, self.definitions, |operand| is_used |= operand == id);
            let is_comparison = matches!(i.class(), Some(Class::Equality | Class::Unsigned));
            uses.is_ok() && (!is_used || is_comparison)
        })
    }

    /// Returns whether a comparison of two pointers holds, or of their addresses; `None` if that is not known.
    pub(super) fn compare_pointers(&self, frame: &Frame<'m>, i: &Instruction<'m>) -> Option<bool> {
        let pointer = |id| {
            match self.value(frame, id) {
                Known::Pointer(pointer) => return Some(pointer),
                Known::Integer(form) if form.value() == Some(0) => {
                    return Some(Pointer::to(Base::Null));
                }
                _ => {}
            }
            let address = self.definitions.get(id)?;
            let is_whole = self.width_of(id).map(i128::from) == Some(self.layouts.address * 8);
            let is_address = is_whole && address.op() == Some(Op::ConvertPtrToU);
            match self.value(frame, address.operand().filter(|_| is_address)?) {
                Known::Pointer(pointer) => Some(pointer),
                _ => None,
            }
        };
        let (left, right) = i.both()?;
        let (a, b) = (pointer(left)?, pointer(right)?);
        let is_equal = match i.op()? {
            Op::PtrEqual | Op::IEqual => true,
            Op::PtrNotEqual | Op::INotEqual => false,
            _ => return None,
        };
        self.same_address(&a, &b).map(|is_same| is_same == is_equal)
    }

    /// Returns whether two pointers are the same, if it is known. Pointers to the end of a buffer may be equal
    /// to pointers into others, so they are never compared.
    fn same_address(&self, a: &Pointer, b: &Pointer) -> Option<bool> {
        if (&a.base, &b.base) == (&Base::Null, &Base::Null) {
            return Some(true);
        }
        let inside = |pointer: &Pointer| {
            let Base::Parameter(parameter) = pointer.base else { return None };
            let region = self.buffers.get(&parameter)?;
            let offset = pointer.offset?;
            let (low, high) = offset.bounds(self.space);
            let is_inside = 0 <= low && high < region.length as i128;
            is_inside.then(|| (region.memory, offset.moved_by(region.offset as i128)))
        };
        match (&a.base, &b.base) {
            // Null may be the address of local memory.
            (Base::Null, _) | (_, Base::Null) if self.is_strict => None,
            (Base::Null, _) => inside(b).map(|_| false),
            (_, Base::Null) => inside(a).map(|_| false),
            _ => {
                let ((memory, first), (other, second)) = (inside(a)?, inside(b)?);
                if memory != other {
                    return (!self.is_strict).then_some(false);
                }
                match first.minus(&second, self.space)?.bounds(self.space) {
                    (0, 0) => Some(true),
                    (low, high) => (low > 0 || high < 0).then_some(false),
                }
            }
        }
    }
}
