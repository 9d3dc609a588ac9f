//! Functions that the work-items of a work-group or of a subgroup call together.
//!
//! Functions of work-groups are part of OpenCL C 2.0, functions of subgroups belong to extensions.

use kiln_spirv::edit::Instruction;
use kiln_spirv::{Demand, Result};
use rspirv::spirv::{GroupOperation, Op, Scope};

use super::function::Body;
use super::types::{Lanes, Scalar};
use super::{malformed, operand, unsupported};

/// Interpretation of the operand of a reduction or scan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    AsIs,
    Signed,
}

/// Returns the operation of a reduction or scan, and how it takes its operand.
fn reduction(op: Op) -> Option<(&'static str, Sign)> {
    Some(match op {
        Op::GroupIAdd | Op::GroupFAdd | Op::GroupNonUniformIAdd | Op::GroupNonUniformFAdd => {
            ("add", Sign::AsIs)
        }
        Op::GroupNonUniformIMul | Op::GroupNonUniformFMul => ("mul", Sign::AsIs),
        Op::GroupFMin | Op::GroupUMin | Op::GroupNonUniformFMin | Op::GroupNonUniformUMin => {
            ("min", Sign::AsIs)
        }
        Op::GroupSMin | Op::GroupNonUniformSMin => ("min", Sign::Signed),
        Op::GroupFMax | Op::GroupUMax | Op::GroupNonUniformFMax | Op::GroupNonUniformUMax => {
            ("max", Sign::AsIs)
        }
        Op::GroupSMax | Op::GroupNonUniformSMax => ("max", Sign::Signed),
        Op::GroupNonUniformBitwiseAnd => ("and", Sign::AsIs),
        Op::GroupNonUniformBitwiseOr => ("or", Sign::AsIs),
        Op::GroupNonUniformBitwiseXor => ("xor", Sign::AsIs),
        Op::GroupNonUniformLogicalAnd => ("logical_and", Sign::AsIs),
        Op::GroupNonUniformLogicalOr => ("logical_or", Sign::AsIs),
        Op::GroupNonUniformLogicalXor => ("logical_xor", Sign::AsIs),
        _ => return None,
    })
}

impl Body<'_, '_> {
    /// Translates an instruction that a group executes together. Returns whether the instruction is one.
    pub(super) fn collective(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<bool> {
        let word = |index| operand(instruction, index);
        let is_non_uniform = format!("{op:?}").starts_with("GroupNonUniform");
        if let Some((name, sign)) = reduction(op) {
            let group = self.group(word(2)?)?;
            let value = match sign {
                Sign::Signed => self.signed(word(4)?)?,
                Sign::AsIs => self.value(word(4)?)?,
            };
            let lanes = self.emitter.lanes(self.emitter.type_of(word(4)?)?)?;
            check_operand(op, lanes)?;
            let value = if lanes.scalar == Scalar::Bool { format!("(int){value}") } else { value };
            let (non_uniform, operation) = (is_non_uniform, GroupOperation::from_u32(word(3)?));
            let middle = if non_uniform { "non_uniform_" } else { "" };
            let text = match operation {
                Some(GroupOperation::Reduce) => format!("{group}_{middle}reduce_{name}({value})"),
                Some(GroupOperation::InclusiveScan) => {
                    format!("{group}_{middle}scan_inclusive_{name}({value})")
                }
                Some(GroupOperation::ExclusiveScan) => {
                    format!("{group}_{middle}scan_exclusive_{name}({value})")
                }
                Some(GroupOperation::ClusteredReduce) if non_uniform => {
                    let size = self.value(word(5)?)?;
                    format!("{group}_clustered_reduce_{name}({value}, {size})")
                }
                _ => return Err(unsupported(format!("Op{op:?} of {operation:?}"))),
            };
            self.assign_from(instruction, lanes, sign, &text)?;
            return Ok(true);
        }
        match op {
            Op::GroupAll | Op::GroupAny => {
                let group = self.group(word(2)?)?;
                let name = if op == Op::GroupAll { "all" } else { "any" };
                let text = format!("{group}_{name}((int){}) != 0", self.value(word(3)?)?);
                self.assign(word(1)?, word(0)?, &text)?;
            }
            Op::GroupBroadcast => self.broadcast(instruction)?,
            Op::GroupNonUniformElect => {
                let group = self.group(word(2)?)?;
                self.assign(word(1)?, word(0)?, &format!("{group}_elect() != 0"))?;
            }
            Op::GroupNonUniformAll | Op::GroupNonUniformAny => {
                let group = self.group(word(2)?)?;
                let name = if op == Op::GroupNonUniformAll { "all" } else { "any" };
                let value = self.value(word(3)?)?;
                let text = format!("{group}_non_uniform_{name}((int){value}) != 0");
                self.assign(word(1)?, word(0)?, &text)?;
            }
            Op::GroupNonUniformAllEqual => {
                let (group, value) = (self.group(word(2)?)?, self.value(word(3)?)?);
                let text = format!("{group}_non_uniform_all_equal({value}) != 0");
                self.assign(word(1)?, word(0)?, &text)?;
            }
            Op::GroupNonUniformBallot => {
                let (group, value) = (self.group(word(2)?)?, self.value(word(3)?)?);
                self.assign(word(1)?, word(0)?, &format!("{group}_ballot((int){value})"))?;
            }
            Op::GroupNonUniformBroadcastFirst => {
                let (group, value) = (self.group(word(2)?)?, self.value(word(3)?)?);
                self.assign(word(1)?, word(0)?, &format!("{group}_broadcast_first({value})"))?;
            }
            Op::GroupNonUniformBroadcast
            | Op::GroupNonUniformShuffle
            | Op::GroupNonUniformShuffleXor
            | Op::GroupNonUniformShuffleUp
            | Op::GroupNonUniformShuffleDown => {
                let name = match op {
                    Op::GroupNonUniformBroadcast => "non_uniform_broadcast",
                    Op::GroupNonUniformShuffle => "shuffle",
                    Op::GroupNonUniformShuffleXor => "shuffle_xor",
                    Op::GroupNonUniformShuffleUp => "shuffle_up",
                    _ => "shuffle_down",
                };
                let group = self.group(word(2)?)?;
                let text = self.function(&format!("{group}_{name}"), &[word(3)?, word(4)?])?;
                self.assign(word(1)?, word(0)?, &text)?;
            }
            Op::SubgroupShuffleINTEL | Op::SubgroupShuffleXorINTEL => {
                let xor = if op == Op::SubgroupShuffleXorINTEL { "_xor" } else { "" };
                self.need_subgroups();
                let name = format!("intel_sub_group_shuffle{xor}");
                let text = self.function(&name, &[word(2)?, word(3)?])?;
                self.assign(word(1)?, word(0)?, &text)?;
            }
            Op::SubgroupShuffleDownINTEL | Op::SubgroupShuffleUpINTEL => {
                let down = if op == Op::SubgroupShuffleDownINTEL { "down" } else { "up" };
                self.need_subgroups();
                let name = format!("intel_sub_group_shuffle_{down}");
                let text = self.function(&name, &[word(2)?, word(3)?, word(4)?])?;
                self.assign(word(1)?, word(0)?, &text)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the first part of the names of the functions of a group.
    fn group(&mut self, scope: u32) -> Result<&'static str> {
        let scope = u32::try_from(self.emitter.integer(scope)?).ok().and_then(Scope::from_u32);
        match scope {
            Some(Scope::Workgroup) => {
                self.emitter.demands.insert(Demand::GroupFunctions);
                Ok("work_group")
            }
            Some(Scope::Subgroup) => {
                self.need_subgroups();
                Ok("sub_group")
            }
            _ => Err(unsupported("a function of another group than work-groups and subgroups")),
        }
    }

    pub(super) fn need_subgroups(&mut self) {
        self.emitter.demands.insert(Demand::Subgroups);
    }

    fn broadcast(&mut self, instruction: &Instruction<'_>) -> Result<()> {
        let word = |index| operand(instruction, index);
        let (group, value, from) = (self.group(word(2)?)?, word(3)?, word(4)?);
        let lanes = self.emitter.lanes(self.emitter.type_of(from)?)?;
        let (value, from) = (self.value(value)?, self.value(from)?);
        let ids: Vec<_> = match lanes.count {
            1 => vec![from],
            count @ (2 | 3) => (0..count).map(|at| format!("({from}).s{at}")).collect(),
            _ => return Err(malformed("OpGroupBroadcast")),
        };
        let text = format!("{group}_broadcast({value}, {})", ids.join(", "));
        self.assign(word(1)?, word(0)?, &text)
    }

    /// Assigns the result of a reduction or scan, which has the type of its operand.
    fn assign_from(
        &mut self,
        instruction: &Instruction<'_>,
        lanes: Lanes,
        sign: Sign,
        text: &str,
    ) -> Result<()> {
        let (ty, id) = (operand(instruction, 0)?, operand(instruction, 1)?);
        let text = match (sign, lanes.scalar) {
            (Sign::Signed, _) => format!("as_{lanes}({text})"),
            (_, Scalar::Bool) => format!("{text} != 0"),
            _ => text.to_owned(),
        };
        self.assign(id, ty, &text)
    }
}

/// Fails for operands for which there are no functions without further extensions.
fn check_operand(op: Op, lanes: Lanes) -> Result<()> {
    match (lanes.scalar, lanes.is_vector()) {
        (Scalar::Int(32 | 64) | Scalar::Float(_) | Scalar::Bool, false) => Ok(()),
        _ => Err(unsupported(format!("Op{op:?} of {lanes}"))),
    }
}
