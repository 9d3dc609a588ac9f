//! How much private memory a module's functions declare.

use std::collections::HashMap;

use rspirv::spirv::{Op, StorageClass};

use super::words::Instruction;

/// That of a pointer, and of a handle.
const ADDRESS: u64 = 8;

/// Bytes of types, and of the variables of functions. Where a size is not known, or more than there
/// can be, it is the largest number. Work and memory are linear in the module's size: types come
/// before what is made of them.
#[derive(Default)]
pub(super) struct Sizes {
    types: HashMap<u32, u64>,
    pointees: HashMap<u32, u32>,
    constants: HashMap<u32, u64>,
    variables: u64,
}

impl Sizes {
    /// Of the variables that were added, together.
    pub(super) fn of_variables(&self) -> u64 {
        self.variables
    }

    pub(super) fn add_type(&mut self, instruction: &Instruction<'_>) -> Option<()> {
        let word = |index| instruction.word(index);
        let id = word(0)?;
        let bits = |width: u32| u64::from(width).div_ceil(8);
        let size = match instruction.op()? {
            Op::TypeBool => 1,
            Op::TypeInt | Op::TypeFloat => bits(word(1)?),
            // A vector of three takes the room of four.
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
            _ => u64::MAX,
        };
        self.types.insert(id, size);
        Some(())
    }

    /// Takes note of what may be the length of an array.
    pub(super) fn add_constant(&mut self, instruction: &Instruction<'_>) -> Option<()> {
        let (low, high) = (instruction.word(2)?, instruction.word(3).unwrap_or_default());
        self.constants.insert(instruction.word(1)?, u64::from(high) << 32 | u64::from(low));
        Some(())
    }

    /// Adds a variable, if it is a function's own.
    pub(super) fn add_variable(&mut self, instruction: &Instruction<'_>) -> Option<()> {
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
