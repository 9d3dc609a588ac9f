//! Size of the private memory that a module's functions declare.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{ExecutionModel, Op, StorageClass};

use super::words::{Header, Instruction, Instructions};

/// Size of a pointer and of a handle, in bytes.
const ADDRESS: u64 = 8;

/// Returns the size, in bytes, of the variables of all functions that are not kernels, in a module in
/// little-endian order.
///
/// A size that is unknown or too large counts as `u64::MAX`. Time and memory are linear in the module's
/// size, because types come before the types that are made of them.
#[must_use]
pub fn private_memory(code: &[u8]) -> u64 {
    let mut sizes = Sizes::default();
    let (mut kernels, mut is_counted) = (HashSet::new(), false);
    let words = code.as_chunks().0.get(Header::WORDS..).unwrap_or_default();
    for instruction in Instructions::of(words) {
        let word = |index| instruction.word(index);
        match instruction.op() {
            Some(Op::EntryPoint) if word(0) == Some(ExecutionModel::Kernel as u32) => {
                kernels.extend(word(1));
            }
            Some(Op::Function) => is_counted = word(1).is_some_and(|id| !kernels.contains(&id)),
            Some(Op::Constant) => _ = sizes.add_constant(&instruction),
            Some(Op::Variable | Op::UntypedVariableKHR) if is_counted => {
                _ = sizes.add_variable(&instruction);
            }
            _ => _ = sizes.add_type(&instruction),
        }
    }
    sizes.variables
}

#[derive(Default)]
struct Sizes {
    types: HashMap<u32, u64>,
    pointees: HashMap<u32, u32>,
    constants: HashMap<u32, u64>,
    variables: u64,
}

impl Sizes {
    fn add_type(&mut self, instruction: &Instruction<'_>) -> Option<()> {
        let word = |index| instruction.word(index);
        let id = word(0)?;
        let bits = |width: u32| u64::from(width).div_ceil(8);
        let size = match instruction.op()? {
            Op::TypeBool => 1,
            Op::TypeInt | Op::TypeFloat => bits(word(1)?),
            // A vector of 3 components takes the space of 4.
            Op::TypeVector => {
                let count = word(2)?.checked_next_power_of_two().map_or(u64::MAX, u64::from);
                self.of_type(word(1)?).saturating_mul(count)
            }
            Op::TypeArray => {
                let length = self.constants.get(&word(2)?).copied().unwrap_or(u64::MAX);
                self.of_type(word(1)?).saturating_mul(length)
            }
            Op::TypeStruct => {
                let members = instruction.words_from(1).map(|member| self.of_type(member));
                members.fold(0, u64::saturating_add)
            }
            Op::TypePointer => {
                self.pointees.insert(id, word(2)?);
                ADDRESS
            }
            Op::TypeUntypedPointerKHR | Op::TypeImage | Op::TypeSampler | Op::TypeEvent => ADDRESS,
            // The size of other types is unknown and counts as `u64::MAX`.
            _ => return None,
        };
        self.types.insert(id, size);
        Some(())
    }

    /// Records a constant, which may be the length of an array.
    fn add_constant(&mut self, instruction: &Instruction<'_>) -> Option<()> {
        let (low, high) = (instruction.word(2)?, instruction.word(3).unwrap_or_default());
        self.constants.insert(instruction.word(1)?, u64::from(high) << 32 | u64::from(low));
        Some(())
    }

    /// Adds the size of a variable, if it is local to a function.
    fn add_variable(&mut self, instruction: &Instruction<'_>) -> Option<()> {
        let word = |index| instruction.word(index);
        if word(2)? != StorageClass::Function as u32 {
            return None;
        }
        let ty = match instruction.op()? {
            Op::UntypedVariableKHR => word(3),
            _ => self.pointees.get(&word(0)?).copied(),
        };
        let size = ty.map_or(u64::MAX, |ty| self.of_type(ty));
        self.variables = self.variables.saturating_add(size);
        Some(())
    }

    fn of_type(&self, id: u32) -> u64 {
        self.types.get(&id).copied().unwrap_or(u64::MAX)
    }
}
