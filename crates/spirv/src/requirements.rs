//! Features that a module requires of its device.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use rspirv::spirv::{AccessQualifier, AddressingModel, BuiltIn, Capability, Decoration, Op, Scope};

use super::table::Class;
use super::words::{Header, Instruction, Instructions};

/// Feature that not every device or device compiler has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Demand {
    /// Arithmetic of half precision. `vload_half` and `vstore_half` do not require it.
    Half,
    /// Double precision.
    Double,
    /// Integers of 64 bits, which devices of the embedded profile may lack.
    Long,
    /// Atomics of 64 bits.
    LongAtomics,
    /// Atomics of 64 bits such as minimum, maximum and bitwise operations.
    ExtendedLongAtomics,
    /// Images.
    Images,
    /// Images that a kernel reads and writes.
    ReadWriteImages,
    /// Pointers to memory of any kind.
    GenericPointers,
    /// Operations of a sub-group.
    Subgroups,
    /// Operations of a work-group.
    GroupFunctions,
    /// Pipes.
    Pipes,
    /// Launches from kernels.
    DeviceQueues,
}

/// Opcodes of the instructions `OpGroupNonUniform..`, `OpSubgroup..KHR` and `OpSubgroup..INTEL`.
const SUBGROUPS: [RangeInclusive<u32>; 3] = [333..=366, 4421..=4432, 5571..=5580];

/// Requirements of a module.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Demands<'m> {
    /// Features of the types and instructions in the module. A feature that is only declared does not count:
    /// compilers accept it, and a module still declares it after the code that used it was taken out.
    pub features: BTreeSet<Demand>,
    /// Number of bits of the module's addresses, if its memory model states it.
    pub address_bits: Option<u32>,
    /// Extensions that the module declares, used or not: compilers reject a name that they do not support.
    pub extensions: Vec<&'m str>,
}

/// Returns the requirements of a module in little-endian order, read up to the first malformed instruction.
pub fn demands(code: &[u8]) -> Demands<'_> {
    let mut demands = Demands::default();
    let mut reader = Reader::default();
    let words = code.as_chunks().0.get(Header::WORDS..).unwrap_or_default();
    for instruction in Instructions::of(words) {
        let word = |index| instruction.word(index);
        match instruction.op() {
            Some(Op::Extension) => demands.extensions.extend(instruction.string(0)),
            Some(Op::MemoryModel) => {
                demands.address_bits = match word(0).and_then(AddressingModel::from_u32) {
                    Some(AddressingModel::Physical32) => Some(32),
                    Some(AddressingModel::Physical64) => Some(64),
                    _ => None,
                };
            }
            Some(op) => demands.features.extend(reader.feature(op, &instruction)),
            None => {}
        }
    }
    demands
}

/// State of one pass over a module.
#[derive(Default)]
struct Reader {
    /// Whether `Float16` is declared. `Float16Buffer` alone is for memory, but translators declare only that
    /// capability where they use values, too.
    has_half: bool,
    /// Ids of the types of half precision, and of vectors of them.
    halves: HashSet<u32>,
    longs: HashSet<u32>,
    /// Values of constants of 32 bits, by id.
    constants: HashMap<u32, u32>,
}

impl Reader {
    /// Returns the feature that an instruction requires, if any, and records what later instructions depend on.
    fn feature(&mut self, op: Op, instruction: &Instruction<'_>) -> Option<Demand> {
        let word = |index| instruction.word(index);
        match op {
            Op::Capability => {
                self.has_half |= word(0) == Some(Capability::Float16 as u32);
                None
            }
            Op::TypeInt if word(1) == Some(64) => {
                self.longs.extend(word(0));
                Some(Demand::Long)
            }
            Op::TypeFloat => match (word(1), word(2)) {
                (Some(64), _) => Some(Demand::Double),
                (Some(16), None) => {
                    self.halves.extend(word(0));
                    self.has_half.then_some(Demand::Half)
                }
                _ => None,
            },
            Op::TypeVector => {
                let is_half = word(1).is_some_and(|component| self.halves.contains(&component));
                self.halves.extend(word(0).filter(|_| is_half));
                None
            }
            Op::Constant => {
                if let (Some(id), Some(value)) = (word(1), word(2)) {
                    self.constants.insert(id, value);
                }
                self.half_feature(instruction)
            }
            Op::TypeImage => match word(8) {
                Some(access) if access == AccessQualifier::ReadWrite as u32 => {
                    Some(Demand::ReadWriteImages)
                }
                _ => Some(Demand::Images),
            },
            Op::TypePipe => Some(Demand::Pipes),
            Op::TypeQueue | Op::EnqueueKernel => Some(Demand::DeviceQueues),
            Op::PtrCastToGeneric => Some(Demand::GenericPointers),
            Op::Decorate if word(1) == Some(Decoration::BuiltIn as u32) => {
                let needs_subgroups = matches!(
                    BuiltIn::from_u32(word(2)?)?,
                    BuiltIn::SubgroupSize
                        | BuiltIn::SubgroupMaxSize
                        | BuiltIn::NumSubgroups
                        | BuiltIn::NumEnqueuedSubgroups
                        | BuiltIn::SubgroupId
                        | BuiltIn::SubgroupLocalInvocationId
                );
                needs_subgroups.then_some(Demand::Subgroups)
            }
            _ => self
                .long_atomic_feature(instruction)
                .or_else(|| self.group_feature(op, instruction))
                .or_else(|| self.half_feature(instruction)),
        }
    }

    fn half_feature(&self, instruction: &Instruction<'_>) -> Option<Demand> {
        let is_half = self.halves.contains(&instruction.result_type()?);
        is_half.then_some(Demand::Half)
    }

    fn long_atomic_feature(&self, instruction: &Instruction<'_>) -> Option<Demand> {
        let demand = match instruction.class()? {
            Class::LongAtomic => Demand::LongAtomics,
            Class::ExtendedAtomic => Demand::ExtendedLongAtomics,
            _ => return None,
        };
        self.longs.contains(&instruction.result_type()?).then_some(demand)
    }

    /// Returns the feature of a group function, which all work-items of a group call together.
    fn group_feature(&self, op: Op, instruction: &Instruction<'_>) -> Option<Demand> {
        let scope = if instruction.class() == Some(Class::Group) {
            self.constants.get(&instruction.word(2)?)?
        } else {
            let needs_subgroups = SUBGROUPS.iter().any(|ops| ops.contains(&(op as u32)));
            return needs_subgroups.then_some(Demand::Subgroups);
        };
        match Scope::from_u32(*scope)? {
            Scope::Subgroup => Some(Demand::Subgroups),
            Scope::Workgroup => Some(Demand::GroupFunctions),
            _ => None,
        }
    }
}
