//! Table of the opcodes that the code of Kiln reads.
//!
//! Each opcode has one row: the [format](Format) of its operands, and an answer in every column. A [`View`] gives the
//! operands of an instruction by name. An instruction without a row is carried as it is: its view is
//! [`Unknown`](View::Unknown), transformations keep it, and analyses refuse it by name.

mod columns;
mod formats;
mod opcodes;
mod operands;
mod row;
#[cfg(test)]
mod tests;
mod view;

pub use columns::{Address, Class, Evaluation, Global};
pub use formats::{Format, View};
pub use opcodes::{is_atomic, row};
pub use operands::{Access, Cases, ImageOperands, List, Pairs, Text};
pub use row::Row;
