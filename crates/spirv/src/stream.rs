//! Sequences of instructions, as words. The sections and functions of a module are made of them.

use rspirv::spirv::Op;

use super::grammar::{self, Context, Role};
use super::words::{Instruction, Instructions, Word};
use crate::error::Result;

/// Sequence of whole instructions. It stores only their words, so that a module takes no more memory than
/// its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream(Vec<Word>);

impl Stream {
    /// Creates a stream from words that hold whole instructions.
    #[must_use]
    pub fn of(words: &[Word]) -> Self {
        Self(words.to_vec())
    }

    /// Returns whether there is no instruction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the words of all instructions.
    #[must_use]
    pub fn words(&self) -> &[Word] {
        &self.0
    }

    /// Returns the instructions in order.
    #[must_use]
    pub fn iter(&self) -> Instructions<'_> {
        Instructions::of(&self.0)
    }

    /// Returns the instruction that begins at the word `offset`.
    #[must_use]
    pub fn at(&self, offset: usize) -> Option<Instruction<'_>> {
        Instructions::of(self.0.get(offset..)?).next()
    }

    /// Returns whether an instruction can have this number of operand words: its word count has 16 bits.
    #[must_use]
    pub fn holds(operands: usize) -> bool {
        operands < usize::from(u16::MAX)
    }

    /// Appends an instruction. Operands beyond the maximum number are cut off; check [`holds`](Self::holds)
    /// first if there can be that many.
    pub fn push(&mut self, op: Op, operands: impl IntoIterator<Item = u32>) {
        let start = self.0.len();
        self.0.push([0; 4]);
        self.0.extend(operands.into_iter().take(usize::from(u16::MAX) - 1).map(u32::to_le_bytes));
        let count = (self.0.len() - start) as u32;
        self.0[start] = (count << 16 | op as u32).to_le_bytes();
    }

    /// Appends an instruction.
    pub fn push_instruction(&mut self, instruction: &Instruction<'_>) {
        self.0.extend_from_slice(instruction.words());
    }

    /// Appends an instruction with every id replaced.
    ///
    /// # Errors
    ///
    /// Fails like [`grammar::ids`], or with the error that `id` returns.
    pub fn push_renumbered(
        &mut self,
        instruction: &Instruction<'_>,
        context: &impl Context,
        mut id: impl FnMut(u32, Role) -> Result<u32>,
    ) -> Result<()> {
        let start = self.0.len();
        self.push_instruction(instruction);
        let operands = &mut self.0[start + 1..];
        let mut failed = None;
        grammar::ids(instruction, context, |at, role| {
            if let Some(word) = operands.get_mut(at) {
                match id(u32::from_le_bytes(*word), role) {
                    Ok(new) => *word = new.to_le_bytes(),
                    Err(error) => failed = Some(error),
                }
            }
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Appends the instructions of another stream.
    pub fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// Removes the instructions for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(&Instruction<'_>) -> bool) {
        let (mut read, mut write) = (0, 0);
        while let Some(instruction) = self.at(read) {
            let count = instruction.words().len();
            if keep(&instruction) {
                self.0.copy_within(read..read + count, write);
                write += count;
            }
            read += count;
        }
        self.0.truncate(write);
    }
}

/// Returns the words of a literal string: UTF-8, terminated by a zero byte, padded with zeros (2.2.1).
pub fn string_words(text: &str) -> impl Iterator<Item = u32> {
    (0..text.len() / 4 + 1).map(move |word| {
        let mut bytes = [0; 4];
        let rest = &text.as_bytes()[word * 4..];
        let count = rest.len().min(4);
        bytes[..count].copy_from_slice(&rest[..count]);
        u32::from_le_bytes(bytes)
    })
}

/// Returns the words of a literal of the numeric type `ty`, from its bytes in memory. Returns `None` if the
/// type is not numeric or has another size.
pub fn literal_words(ty: &Instruction<'_>, bytes: &[u8]) -> Option<Vec<u32>> {
    let is_number = matches!(ty.op(), Some(Op::TypeInt | Op::TypeFloat));
    if !is_number || bytes.is_empty() || ty.word(1)? as usize != bytes.len() * 8 {
        return None;
    }
    // Numbers narrower than a word are extended as their type requires (2.2.1).
    let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let is_signed = ty.op() == Some(Op::TypeInt) && ty.word(2) == Some(1);
    let mut words = bytes.to_vec();
    let rest = if is_signed && is_negative { 0xff } else { 0 };
    words.resize(bytes.len().next_multiple_of(4), rest);
    Some(words.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect())
}
