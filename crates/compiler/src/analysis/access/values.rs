//! Values of a kernel's function, for questions about single instructions.

use kiln_spirv::Result;
use kiln_spirv::edit::{Instruction, Location};

use super::eval::{Evaluation, Frame};
use super::facts::Known;
use super::{Accesses, Value};
use crate::analysis::affine::Form;

/// Values of a kernel's function, as far as they are known.
pub(crate) struct Values<'m> {
    /// Accesses of the kernel, whose limits count: the scalars that these depend on are constants.
    pub(crate) accesses: Accesses,
    evaluation: Evaluation<'m>,
    frame: Frame<'m>,
}

impl<'m> Values<'m> {
    /// Evaluates the kernel with the values of those scalars alone on which the accesses and their limits
    /// depend.
    pub(super) fn of(
        mut evaluation: Evaluation<'m>,
        kernel: u32,
        values: &[Value],
    ) -> Result<Self> {
        let is_same = |found: &Accesses, other: &Accesses| found.all == other.all;
        let (accesses, frame) = evaluation.with_few_scalars(kernel, values, is_same)?;
        Ok(Self { accesses, evaluation, frame })
    }

    /// Returns the form of an integer, by its id, where an instruction of the kernel's own function uses it.
    /// Returns `None` if the id is not that of an integer, or the instruction never runs.
    pub(crate) fn form(&self, id: u32, at: Location) -> Option<Form> {
        let blocks = &self.frame.function.blocks.all;
        let is_here = |(location, _): &(Location, Instruction<'_>)| *location == at;
        let block = blocks.iter().position(|block| block.body.iter().any(is_here))?;
        let mut previous = self.frame.function.reachable_before(block);
        if block != 0 && !previous.any(|from| self.frame.is_live(from, block)) {
            return None;
        }
        let facts = &self.frame.block_facts[block];
        match self.evaluation.value_where(&self.frame, facts, id, 0) {
            Known::Integer(form) => Some(form),
            _ => None,
        }
    }
}
