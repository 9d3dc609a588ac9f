//! Writer of single instructions.

use kiln_spirv::edit::{Interner, Stream};
use kiln_spirv::{Module, Result};
use rspirv::spirv::Op;

/// Writer of instructions.
pub(super) struct Code<'w> {
    pub(super) module: &'w mut Module,
    pub(super) interner: Interner,
    pub(super) new: Stream,
    /// Type of offsets and lengths.
    pub(super) long: u32,
    pub(super) bool: u32,
    /// Label of the block that is being written.
    pub(super) block: u32,
}

impl Code<'_> {
    pub(super) fn typed(&mut self, ty: u32, op: Op, operands: &[u32]) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.with_id(ty, id, op, operands);
        Ok(id)
    }

    pub(super) fn with_id(&mut self, ty: u32, id: u32, op: Op, operands: &[u32]) {
        self.new.push(op, [ty, id].into_iter().chain(operands.iter().copied()));
    }

    pub(super) fn number(&mut self, value: i128) -> Result<u32> {
        let words = [value as u32, (value >> 32) as u32];
        self.interner.constant_id(self.module, Op::Constant, self.long, &words)
    }

    pub(super) fn zero(&mut self, ty: u32) -> Result<u32> {
        self.interner.constant_id(self.module, Op::ConstantNull, ty, &[])
    }

    /// Writes an access that is done only under a condition. `value` is its result and the type of that. The access
    /// gets an id of its own for its result, which is zero otherwise.
    pub(super) fn only_if(
        &mut self,
        condition: u32,
        after: u32,
        value: Option<(u32, u32)>,
        access: impl FnOnce(&mut Self, Option<u32>),
    ) -> Result<()> {
        let (then, before) = (self.module.fresh_id()?, self.block);
        self.new.push(Op::BranchConditional, [condition, then, after]);
        self.label(then);
        let own = value.map(|_| self.module.fresh_id()).transpose()?;
        access(self, own);
        self.new.push(Op::Branch, [after]);
        self.label(after);
        if let Some(((result, ty), own)) = value.zip(own) {
            let zero = self.zero(ty)?;
            self.with_id(ty, result, Op::Phi, &[own, then, zero, before]);
        }
        Ok(())
    }

    pub(super) fn label(&mut self, label: u32) {
        self.new.push(Op::Label, [label]);
        self.block = label;
    }
}
