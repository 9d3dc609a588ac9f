//! Writer of single instructions.

use rspirv::spirv::Op;

use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Interner, Stream};
use crate::error::Result;

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

    pub(super) fn label(&mut self, label: u32) {
        self.new.push(Op::Label, [label]);
        self.block = label;
    }
}
