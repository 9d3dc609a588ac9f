//! Operands of several words, and the reader of an instruction's words.

use rspirv::spirv::MemoryAccess;

use crate::words::{Word, string_length};

/// Operands that fill the rest of an instruction: ids, literals, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'k>(&'k [Word]);

impl<'k> List<'k> {
    /// Returns the words in order.
    pub fn iter(
        self,
    ) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + Clone + use<'k> {
        self.0.iter().copied().map(u32::from_le_bytes)
    }

    /// Returns the word at an index.
    #[must_use]
    pub fn get(self, index: usize) -> Option<u32> {
        self.0.get(index).copied().map(u32::from_le_bytes)
    }

    /// Returns the only word; `None` if there are none, or several.
    #[must_use]
    pub fn single(self) -> Option<u32> {
        self.get(0).filter(|_| self.len() == 1)
    }

    /// Returns the number of words.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no words.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the words of a number of up to 64 bits as one; higher words are ignored.
    #[must_use]
    pub fn number(self) -> Option<u64> {
        let high = self.get(1).unwrap_or(0);
        Some(u64::from(high) << 32 | u64::from(self.get(0)?))
    }
}

/// Pairs of words: of a value and the block that it comes from, or of a struct and the number of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs<'k>(&'k [Word]);

impl<'k> Pairs<'k> {
    /// Returns the pairs in order.
    #[must_use]
    pub fn iter(self) -> impl DoubleEndedIterator<Item = (u32, u32)> + Clone + use<'k> {
        let pairs = self.0.as_chunks::<2>().0.iter();
        pairs.map(|&[first, second]| (u32::from_le_bytes(first), u32::from_le_bytes(second)))
    }
}

/// Cases of a switch: literals, which are as wide as the selector's type, and the blocks that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cases<'k>(&'k [Word]);

impl<'k> Cases<'k> {
    /// Returns the literals, each of one or two words, and the blocks.
    pub fn iter(self, words: usize) -> impl Iterator<Item = (u64, u32)> + use<'k> {
        let cases = self.0.chunks_exact(words.clamp(1, 2) + 1);
        cases.filter_map(|case| {
            let (&label, literal) = case.split_last()?;
            Some((List(literal).number()?, u32::from_le_bytes(label)))
        })
    }
}

/// Literal string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'k>(&'k [Word]);

impl<'k> Text<'k> {
    /// Returns the text; `None` if it is not UTF-8.
    #[must_use]
    pub fn get(self) -> Option<&'k str> {
        let bytes = self.0.as_flattened();
        let end = bytes.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }
}

/// Memory operands of a load, a store or a copy (3.26).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'k> {
    /// Bits of the mask; `None` if the instruction has no memory operands.
    mask: Option<u32>,
    /// Operands of the bits, in the order of the bits.
    operands: &'k [Word],
}

/// Bits with an operand that is an id.
const WITH_ID: MemoryAccess = MemoryAccess::MAKE_POINTER_AVAILABLE
    .union(MemoryAccess::MAKE_POINTER_VISIBLE)
    .union(MemoryAccess::ALIAS_SCOPE_INTEL_MASK)
    .union(MemoryAccess::NO_ALIAS_INTEL_MASK);

impl Access<'_> {
    /// Returns the bits, some of which may not be known; `None` if the instruction has no memory operands.
    #[must_use]
    pub fn mask(self) -> Option<u32> {
        self.mask
    }

    /// Returns whether a bit is set.
    fn has(self, bit: MemoryAccess) -> bool {
        self.mask.is_some_and(|mask| mask & bit.bits() != 0)
    }

    /// Returns whether the access is volatile.
    #[must_use]
    pub fn is_volatile(self) -> bool {
        self.has(MemoryAccess::VOLATILE)
    }

    /// Returns the declared alignment in bytes.
    #[must_use]
    pub fn alignment(self) -> Option<u32> {
        // No bit before this one has an operand.
        List(self.operands).get(0).filter(|_| self.has(MemoryAccess::ALIGNED))
    }
}

#[cfg(test)]
impl<'k> Access<'k> {
    /// Returns the operands that are ids.
    pub(super) fn ids(self) -> impl Iterator<Item = u32> + use<'k> {
        List(self.operands).iter().skip(self.has(MemoryAccess::ALIGNED).into())
    }
}

/// Operands of an access to an image (3.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOperands<'k> {
    /// Bits of the mask; `None` if there is none.
    pub mask: Option<u32>,
    /// Operands of the bits, in the order of the bits.
    pub ids: List<'k>,
}

/// Reader of the operand words of an instruction.
pub(super) struct Reader<'k>(&'k [Word]);

impl<'k> Reader<'k> {
    pub(super) fn of(words: &'k [Word]) -> Self {
        Self(words)
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(u32::from_le_bytes(first))
    }

    fn take(&mut self, count: usize) -> Option<&'k [Word]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn rest(&mut self) -> List<'k> {
        List(std::mem::take(&mut self.0))
    }

    /// Reads a number, which has a word at least.
    pub(super) fn bits(&mut self) -> Option<List<'k>> {
        Some(self.rest()).filter(|bits| !bits.is_empty())
    }

    pub(super) fn pairs(&mut self) -> Option<Pairs<'k>> {
        let all = std::mem::take(&mut self.0);
        all.len().is_multiple_of(2).then_some(Pairs(all))
    }

    pub(super) fn cases(&mut self) -> Cases<'k> {
        Cases(std::mem::take(&mut self.0))
    }

    pub(super) fn text(&mut self) -> Option<Text<'k>> {
        self.take(string_length(self.0)?).map(Text)
    }

    pub(super) fn maybe_text(&mut self) -> Option<Option<Text<'k>>> {
        if self.is_done() { Some(None) } else { self.text().map(Some) }
    }

    /// Reads memory operands. If a bit is not known, all words that follow are taken for its operands. Operands that
    /// are ids may be missing: analyses refuse the bits that have them by name.
    pub(super) fn access(&mut self) -> Option<Access<'k>> {
        let Some(mask) = self.word() else { return Some(Access { mask: None, operands: &[] }) };
        let (least, most) = match MemoryAccess::from_bits(mask) {
            Some(access) => {
                let with_operands = access & (WITH_ID | MemoryAccess::ALIGNED);
                let least = usize::from(access.contains(MemoryAccess::ALIGNED));
                (least, with_operands.bits().count_ones() as usize)
            }
            None => (0, self.0.len()),
        };
        let operands = self.take(most.min(self.0.len()).max(least))?;
        Some(Access { mask: Some(mask), operands })
    }

    pub(super) fn image(&mut self) -> Option<ImageOperands<'k>> {
        Some(ImageOperands { mask: Some(self.word()?), ids: self.rest() })
    }

    pub(super) fn maybe_image(&mut self) -> Option<ImageOperands<'k>> {
        Some(ImageOperands { mask: self.word(), ids: self.rest() })
    }
}
