//! Writer of instructions that calculate with coordinates: signed numbers of 32 bits.

use kiln_spirv::edit::{Interner, Stream};
use kiln_spirv::{Module, Result};
use rspirv::spirv::{BuiltIn, Capability, Op, StorageClass};

use crate::transform::built_ins::vector;
use crate::transform::merge::require;

/// Writer of instructions to a stream.
pub(super) struct Code<'m> {
    pub(super) module: &'m mut Module,
    pub(super) interner: Interner,
    pub(super) new: Stream,
    /// Type of coordinates.
    pub(super) int: u32,
    bool: u32,
    /// Label of the block that is being written.
    block: u32,
}

/// Bounds of a loop: the first coordinate, and the end, exclusive.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Loop that is being written.
pub(super) struct Loop {
    head: u32,
    latch: u32,
    after: u32,
    /// Coordinate of the iteration.
    pub(super) counter: u32,
    next: u32,
}

impl<'m> Code<'m> {
    pub(super) fn new(module: &'m mut Module) -> Result<Self> {
        let mut interner = Interner::of(module);
        let int = interner.type_id(module, Op::TypeInt, &[32, 0])?;
        let bool = interner.type_id(module, Op::TypeBool, &[])?;
        Ok(Self { module, interner, new: Stream::default(), int, bool, block: 0 })
    }

    pub(super) fn number(&mut self, value: i128) -> Result<u32> {
        self.interner.constant_id(self.module, Op::Constant, self.int, &[value as u32])
    }

    /// Writes an operation on two coordinates.
    pub(super) fn binary(&mut self, op: Op, a: u32, b: u32) -> Result<u32> {
        self.typed(self.int, op, &[a, b])
    }

    /// Writes an instruction with a result of the given type.
    pub(super) fn typed(&mut self, ty: u32, op: Op, operands: &[u32]) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.new.push(op, [ty, id].into_iter().chain(operands.iter().copied()));
        Ok(id)
    }

    /// Writes the load of one of the device's ids. Returns its coordinates.
    pub(super) fn load_id(&mut self, built_in: BuiltIn) -> Result<[u32; 3]> {
        let (variable, ty) = vector(self.module, &mut self.interner, built_in)?;
        let loaded = self.typed(ty.ty, Op::Load, &[variable])?;
        let mut own = [0; 3];
        for (d, own) in (0..).zip(&mut own) {
            let component = self.typed(ty.component, Op::CompositeExtract, &[loaded, d])?;
            *own = match ty.width {
                32 => component,
                _ => self.typed(self.int, Op::UConvert, &[component])?,
            };
        }
        Ok(own)
    }

    /// Adds a constant to a coordinate.
    pub(super) fn plus(&mut self, a: u32, constant: i128) -> Result<u32> {
        if constant == 0 {
            return Ok(a);
        }
        let constant = self.number(constant)?;
        self.binary(Op::IAdd, a, constant)
    }

    /// Multiplies a coordinate by a constant.
    pub(super) fn times(&mut self, a: u32, constant: i128) -> Result<u32> {
        if constant == 1 {
            return Ok(a);
        }
        let constant = self.number(constant)?;
        self.binary(Op::IMul, a, constant)
    }

    /// Writes a comparison of two coordinates.
    pub(super) fn compare(&mut self, op: Op, a: u32, b: u32) -> Result<u32> {
        self.typed(self.bool, op, &[a, b])
    }

    /// Writes the conjunction of two conditions.
    pub(super) fn both(&mut self, a: u32, b: u32) -> Result<u32> {
        self.typed(self.bool, Op::LogicalAnd, &[a, b])
    }

    /// Writes the lesser of two coordinates.
    pub(super) fn least(&mut self, a: u32, b: u32) -> Result<u32> {
        let is_less = self.compare(Op::SLessThan, a, b)?;
        self.typed(self.int, Op::Select, &[is_less, a, b])
    }

    /// Writes the greater of two coordinates.
    pub(super) fn most(&mut self, a: u32, b: u32) -> Result<u32> {
        let is_less = self.compare(Op::SLessThan, a, b)?;
        self.typed(self.int, Op::Select, &[is_less, b, a])
    }

    /// States the label of the first block, which is written with the function's declaration.
    pub(super) fn begin(&mut self, label: u32) {
        self.block = label;
    }

    /// Begins a block.
    fn label(&mut self, label: u32) {
        self.new.push(Op::Label, [label]);
        self.block = label;
    }

    /// Begins a loop over the coordinates within the bounds.
    pub(super) fn begin_loop(&mut self, bounds: Bounds) -> Result<Loop> {
        let mut fresh = || self.module.fresh_id();
        let (head, inside, latch, after) = (fresh()?, fresh()?, fresh()?, fresh()?);
        let (counter, next) = (fresh()?, fresh()?);
        let before = self.block;
        self.new.push(Op::Branch, [head]);
        self.label(head);
        self.new.push(Op::Phi, [self.int, counter, bounds.from, before, next, latch]);
        let stays = self.compare(Op::SLessThan, counter, bounds.to)?;
        self.new.push(Op::BranchConditional, [stays, inside, after]);
        self.label(inside);
        Ok(Loop { head, latch, after, counter, next })
    }

    /// Ends a loop whose coordinates are `step` apart.
    pub(super) fn end_loop(&mut self, own: Loop, step: i128) -> Result<()> {
        self.new.push(Op::Branch, [own.latch]);
        self.label(own.latch);
        let step = self.number(step)?;
        self.new.push(Op::IAdd, [self.int, own.next, own.counter, step]);
        self.new.push(Op::Branch, [own.head]);
        self.label(own.after);
        Ok(())
    }

    /// Begins a block that runs only under a condition. Returns the label of the block that follows it.
    pub(super) fn begin_if(&mut self, condition: u32) -> Result<u32> {
        let (then, after) = (self.module.fresh_id()?, self.module.fresh_id()?);
        self.new.push(Op::SelectionMerge, [after, 0]);
        self.new.push(Op::BranchConditional, [condition, then, after]);
        self.label(then);
        Ok(after)
    }

    /// Ends the block before `after`.
    pub(super) fn end_if(&mut self, after: u32) {
        self.new.push(Op::Branch, [after]);
        self.label(after);
    }

    /// Returns the type of an unsigned integer of `bytes` bytes, in which arrays are declared.
    pub(super) fn unit(&mut self, bytes: u32) -> Result<u32> {
        if bytes == 1 {
            require(self.module, Capability::Int8);
        }
        self.interner.type_id(self.module, Op::TypeInt, &[bytes * 8, 0])
    }

    pub(super) fn pointer(&mut self, class: StorageClass, pointee: u32) -> Result<u32> {
        self.interner.type_id(self.module, Op::TypePointer, &[class as u32, pointee])
    }

    /// Writes the address of an element, given by its index, after a pointer of the given type.
    pub(super) fn at(&mut self, pointer: u32, ty: u32, index: u32) -> Result<u32> {
        self.typed(ty, Op::InBoundsPtrAccessChain, &[pointer, index])
    }

    /// Declares an array of `count` units of `bytes` bytes. Returns the types of the pointer to it and of a
    /// pointer to a unit.
    pub(super) fn array(
        &mut self,
        class: StorageClass,
        bytes: u32,
        count: i128,
    ) -> Result<[u32; 2]> {
        let unit = self.unit(bytes)?;
        let count = self.number(count)?;
        let array = self.interner.type_id(self.module, Op::TypeArray, &[unit, count])?;
        Ok([self.pointer(class, array)?, self.pointer(class, unit)?])
    }
}
