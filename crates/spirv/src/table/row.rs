//! Row of the table.

use super::columns::{Address, Class, Evaluation, Global};
use super::formats::Format;
use crate::instructions::Meaning;

/// Answers of the table about an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Names and kinds of the operands.
    pub format: Format,
    /// Group of opcodes that are treated alike.
    pub class: Class,
    /// Address of the result, compared with that of the first operand.
    pub address: Address,
    /// Extent to which integers are calculated from what is known of the operands.
    pub evaluation: Evaluation,
    /// Treatment outside of functions.
    pub global: Global,
    /// Meaning in functions; `None` if checks refuse the instruction there.
    pub meaning: Option<Meaning>,
}
