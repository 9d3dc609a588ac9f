//! What a module asks of the device that it is for.

use std::collections::HashSet;

use rspirv::spirv::{AddressingModel, Capability, Op};

use super::words::{Header, Instructions};

/// What not every device, or its compiler, can do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Demands<'m> {
    /// Those of [`Float16`](Capability::Float16), [`Float64`](Capability::Float64),
    /// [`Int64Atomics`](Capability::Int64Atomics) and [`ImageBasic`](Capability::ImageBasic) that
    /// the module has types or instructions of. Compilers take others that it only declares, as a
    /// module does from which what used them was taken out.
    pub(crate) capabilities: Vec<Capability>,
    /// Of how many bits its addresses are, as far as that is said.
    pub(crate) address_bits: Option<u32>,
    /// Those that it declares, used or not: compilers refuse a name that they do not know.
    pub(crate) extensions: Vec<&'m str>,
}

/// Reads the module, in little-endian order, as far as it is one.
pub(crate) fn demands(code: &[u8]) -> Demands<'_> {
    let mut demands = Demands::default();
    let (mut has_half, mut longs) = (false, HashSet::new());
    let words = code.as_chunks().0.get(Header::WORDS..).unwrap_or_default();
    for instruction in Instructions::of(words) {
        let (op, word) = (instruction.op(), |index| instruction.word(index));
        let used = match op {
            Some(Op::Extension) => {
                demands.extensions.extend(instruction.string(0));
                None
            }
            Some(Op::MemoryModel) => {
                demands.address_bits = match word(0).and_then(AddressingModel::from_u32) {
                    Some(AddressingModel::Physical32) => Some(32),
                    Some(AddressingModel::Physical64) => Some(64),
                    _ => None,
                };
                None
            }
            Some(Op::Capability) => {
                // Without it, numbers of 16 bits are only loaded and stored.
                has_half |= word(0) == Some(Capability::Float16 as u32);
                None
            }
            Some(Op::TypeInt) if word(1) == Some(64) => {
                longs.extend(word(0));
                None
            }
            Some(Op::TypeFloat) => match (word(1), word(2)) {
                (Some(64), _) => Some(Capability::Float64),
                (Some(16), None) => has_half.then_some(Capability::Float16),
                _ => None,
            },
            Some(Op::TypeImage) => Some(Capability::ImageBasic),
            Some(
                Op::AtomicLoad
                | Op::AtomicExchange
                | Op::AtomicCompareExchange
                | Op::AtomicIIncrement
                | Op::AtomicIDecrement
                | Op::AtomicIAdd
                | Op::AtomicISub
                | Op::AtomicSMin
                | Op::AtomicUMin
                | Op::AtomicSMax
                | Op::AtomicUMax
                | Op::AtomicAnd
                | Op::AtomicOr
                | Op::AtomicXor,
            ) => word(0).filter(|ty| longs.contains(ty)).map(|_| Capability::Int64Atomics),
            _ => None,
        };
        if let Some(used) = used
            && !demands.capabilities.contains(&used)
        {
            demands.capabilities.push(used);
        }
    }
    demands
}
