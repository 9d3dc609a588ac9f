//! Reads of the operands of an instruction by name.

use rspirv::spirv::{Decoration, Op};

use super::columns::{Address, Class};
use super::formats::View;
use super::opcodes::row;
use super::operands::{List, Pairs};
use super::row::Row;
use crate::grammar::Shape;
use crate::words::Instruction;

impl<'k> Instruction<'k> {
    /// Returns the row of the opcode, or `None` if the table has none.
    #[must_use]
    pub fn row(&self) -> Option<&'static Row> {
        row(self.opcode())
    }

    /// Returns the group of opcodes that the instruction belongs to, or `None` if the table has no row for it.
    #[must_use]
    pub fn class(&self) -> Option<Class> {
        self.row().map(|row| row.class)
    }

    /// Returns the operands by name. The view is [`Unknown`](View::Unknown) if the table has no row for the opcode, or
    /// if words are missing or left over.
    #[must_use]
    pub fn view(&self) -> View<'k> {
        let Shape { has_type, has_result, .. } = Shape::of(self.opcode());
        let operands = self.operands().get(usize::from(has_type) + usize::from(has_result)..);
        let format = self.row().map(|row| row.format);
        let view = format.zip(operands).and_then(|(format, operands)| format.read(operands));
        view.unwrap_or(View::Unknown)
    }

    /// Returns the id of the function that a call calls.
    #[must_use]
    pub fn called(&self) -> Option<u32> {
        match self.view() {
            View::Call { function, .. } => Some(function),
            _ => None,
        }
    }

    /// Returns the arguments of a call; none for other instructions.
    pub fn arguments(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + use<'k> {
        let arguments = match self.view() {
            View::Call { arguments, .. } => Some(arguments),
            _ => None,
        };
        arguments.into_iter().flat_map(List::iter)
    }

    /// Returns the values of a phi and the blocks that they come from; none for other instructions.
    pub fn incoming(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> + Clone + use<'k> {
        let pairs = match self.view() {
            View::Phi { pairs } => Some(pairs),
            _ => None,
        };
        pairs.into_iter().flat_map(Pairs::iter)
    }

    /// Returns the parts of a composite value; none for other instructions.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + use<'k> {
        let parts = match self.view() {
            View::Composite { parts } => Some(parts),
            _ => None,
        };
        parts.into_iter().flat_map(List::iter)
    }

    /// Returns the operands of an operation on two values.
    #[must_use]
    pub fn both(&self) -> Option<(u32, u32)> {
        match self.view() {
            View::Binary { left, right } => Some((left, right)),
            _ => None,
        }
    }

    /// Returns the operand of an operation on one value.
    #[must_use]
    pub fn operand(&self) -> Option<u32> {
        match self.view() {
            View::Unary { value } => Some(value),
            _ => None,
        }
    }

    /// Returns the pointer of a load, a store, an atomic operation or the marker of a lifetime.
    #[must_use]
    pub fn pointer(&self) -> Option<u32> {
        match self.view() {
            View::Load { pointer, .. }
            | View::Store { pointer, .. }
            | View::Atomic { pointer, .. }
            | View::AtomicUpdate { pointer, .. }
            | View::AtomicCompare { pointer, .. }
            | View::Lifetime { pointer, .. } => Some(pointer),
            _ => None,
        }
    }

    /// Returns the first operand of an instruction whose result has an [address](Address) that depends on it.
    #[must_use]
    pub fn derived_from(&self) -> Option<u32> {
        match self.view() {
            View::Unary { value } if self.row()?.address != Address::No => Some(value),
            View::Chain { base, .. } | View::PtrChain { base, .. } => Some(base),
            View::CastExplicit { pointer, .. } => Some(pointer),
            _ => None,
        }
    }

    /// Returns the base of an access chain, and all indexes, which begin with the number of an element if the
    /// instruction takes one.
    #[must_use]
    pub fn chain(&self) -> Option<(u32, impl Iterator<Item = u32> + Clone + use<'k>)> {
        let (base, element, indexes) = match self.view() {
            View::Chain { base, indexes } => (base, None, indexes),
            View::PtrChain { base, element, indexes } => (base, Some(element), indexes),
            _ => return None,
        };
        Some((base, element.into_iter().chain(indexes.iter())))
    }

    /// Returns the value that a branch depends on.
    #[must_use]
    pub fn condition(&self) -> Option<u32> {
        match self.view() {
            View::BranchIf { condition, .. } => Some(condition),
            View::Switch { selector, .. } => Some(selector),
            _ => None,
        }
    }

    /// Returns the id that a name or a decoration is about, or the group whose decorations other ids get.
    #[must_use]
    pub fn target(&self) -> Option<u32> {
        match self.view() {
            View::Name { target, .. }
            | View::MemberName { target, .. }
            | View::Decorate { target, .. }
            | View::DecorateId { target, .. }
            | View::MemberDecorate { target, .. } => Some(target),
            View::GroupDecorate { group, .. } | View::GroupMemberDecorate { group, .. } => {
                Some(group)
            }
            _ => None,
        }
    }

    /// Returns the target and the parameters of a decoration of an id, if it is the given one.
    #[must_use]
    pub fn decoration(&self, expected: Decoration) -> Option<(u32, List<'k>)> {
        match self.view() {
            View::Decorate { target, decoration, parameters }
            | View::DecorateId { target, decoration, parameters } => {
                (decoration == expected as u32).then_some((target, parameters))
            }
            _ => None,
        }
    }

    /// Returns the id and the text of the name of an id, if it is UTF-8.
    #[must_use]
    pub fn named(&self) -> Option<(u32, &'k str)> {
        match self.view() {
            View::Name { target, name } => Some((target, name.get()?)),
            _ => None,
        }
    }

    /// Returns the text of a string, or the name of an import, an extension or the like, if it is UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&'k str> {
        match self.view() {
            View::String { text } | View::Note { text } => text.get(),
            View::Import { name } | View::TypeOpaque { name } => name.get(),
            _ => None,
        }
    }

    /// Returns the function and the name of an entry point, if the name is UTF-8.
    #[must_use]
    pub fn entry_point(&self) -> Option<(u32, &'k str)> {
        match self.view() {
            View::EntryPoint { function, name, .. } => Some((function, name.get()?)),
            _ => None,
        }
    }

    /// Returns the storage class of a variable, and its initial value.
    #[must_use]
    pub fn variable(&self) -> Option<(u32, Option<u32>)> {
        match self.view() {
            View::Variable { class, initial } => Some((class, initial)),
            _ => None,
        }
    }

    /// Returns the bits of a number that is a constant, from the least significant one.
    #[must_use]
    pub fn literal(&self) -> Option<List<'k>> {
        match self.view() {
            View::Constant { bits } if self.op() == Some(Op::Constant) => Some(bits),
            _ => None,
        }
    }

    /// Returns the number of bits of a type of numbers.
    #[must_use]
    pub fn width(&self) -> Option<u32> {
        match self.view() {
            View::TypeInt { width, .. } | View::TypeFloat { width, .. } => Some(width),
            _ => None,
        }
    }

    /// Returns the type and the number of the components of a vector type.
    #[must_use]
    pub fn vector(&self) -> Option<(u32, u32)> {
        match self.view() {
            View::TypeVector { component, count } => Some((component, count)),
            _ => None,
        }
    }

    /// Returns the members of a struct type; none for other instructions.
    pub fn members(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + use<'k> {
        let members = match self.view() {
            View::TypeStruct { members } => Some(members),
            _ => None,
        };
        members.into_iter().flat_map(List::iter)
    }

    /// Returns the pointee of a pointer type.
    #[must_use]
    pub fn pointee(&self) -> Option<u32> {
        match self.view() {
            View::TypePointer { pointee, .. } => Some(pointee),
            _ => None,
        }
    }

    /// Returns the storage class of a pointer type.
    #[must_use]
    pub fn storage_class(&self) -> Option<u32> {
        match self.view() {
            View::TypePointer { class, .. }
            | View::TypeForwardPointer { class, .. }
            | View::TypeUntypedPointer { class } => Some(class),
            _ => None,
        }
    }

    /// Returns the set of extended instructions and the number of the function that the instruction calls.
    #[must_use]
    pub fn extended(&self) -> Option<(u32, u32)> {
        match self.view() {
            View::ExtInst { set, function, .. } => Some((set, function)),
            _ => None,
        }
    }

    /// Returns the operands of a function of a set of extended instructions; none for other instructions.
    pub fn extended_operands(&self) -> impl DoubleEndedIterator<Item = u32> + Clone + use<'k> {
        let operands = match self.view() {
            View::ExtInst { operands, .. } => Some(operands),
            _ => None,
        };
        operands.into_iter().flat_map(List::iter)
    }
}
