//! Functions that the work-items of a work-group or of a subgroup call together.
//!
//! Functions of work-groups are part of OpenCL C 2.0, functions of subgroups belong to extensions.

use kiln_spirv::edit::{Instruction, View};
use kiln_spirv::{Demand, Result};
use rspirv::spirv::{GroupOperation, Op, Scope};

use super::function::Body;
use super::types::{Lanes, Scalar};
use super::{damaged, malformed, typed, unsupported};

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
        let is_non_uniform = format!("{op:?}").starts_with("GroupNonUniform");
        if let Some((name, sign)) = reduction(op) {
            let (scope, operation, operand, cluster) = match instruction.view() {
                View::GroupReduce { scope, operation, value } => (scope, operation, value, None),
                View::GroupCluster { scope, operation, value, cluster } => {
                    (scope, operation, value, cluster)
                }
                _ => return Err(damaged(instruction)),
            };
            let group = self.group(scope)?;
            let value = match sign {
                Sign::Signed => self.signed(operand)?,
                Sign::AsIs => self.value(operand)?,
            };
            let lanes = self.emitter.lanes(self.emitter.type_of(operand)?)?;
            check_operand(op, lanes)?;
            let value = if lanes.scalar == Scalar::Bool { format!("(int){value}") } else { value };
            let (non_uniform, operation) = (is_non_uniform, GroupOperation::from_u32(operation));
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
                    let size = self.value(cluster.ok_or_else(|| damaged(instruction))?)?;
                    format!("{group}_clustered_reduce_{name}({value}, {size})")
                }
                _ => return Err(unsupported(format!("Op{op:?} of {operation:?}"))),
            };
            self.assign_from(instruction, lanes, sign, &text)?;
            return Ok(true);
        }
        let text = match (op, instruction.view()) {
            (Op::GroupAll | Op::GroupAny, View::GroupVote { scope, value }) => {
                let group = self.group(scope)?;
                let name = if op == Op::GroupAll { "all" } else { "any" };
                format!("{group}_{name}((int){}) != 0", self.value(value)?)
            }
            (Op::GroupBroadcast, View::GroupBroadcast { scope, value, index }) => {
                self.broadcast(scope, value, index)?
            }
            (_, View::GroupElect { scope }) => format!("{}_elect() != 0", self.group(scope)?),
            (_, View::GroupVote { scope, value }) => {
                let (group, value) = (self.group(scope)?, self.value(value)?);
                match op {
                    Op::GroupNonUniformAll => {
                        format!("{group}_non_uniform_all((int){value}) != 0")
                    }
                    Op::GroupNonUniformAny => {
                        format!("{group}_non_uniform_any((int){value}) != 0")
                    }
                    Op::GroupNonUniformAllEqual => {
                        format!("{group}_non_uniform_all_equal({value}) != 0")
                    }
                    Op::GroupNonUniformBallot => format!("{group}_ballot((int){value})"),
                    Op::GroupNonUniformBroadcastFirst => {
                        format!("{group}_broadcast_first({value})")
                    }
                    _ => return Ok(false),
                }
            }
            (_, View::GroupBroadcast { scope, value, index }) => {
                let name = match op {
                    Op::GroupNonUniformBroadcast => "non_uniform_broadcast",
                    Op::GroupNonUniformShuffle => "shuffle",
                    Op::GroupNonUniformShuffleXor => "shuffle_xor",
                    Op::GroupNonUniformShuffleUp => "shuffle_up",
                    Op::GroupNonUniformShuffleDown => "shuffle_down",
                    _ => return Ok(false),
                };
                let group = self.group(scope)?;
                self.function(&format!("{group}_{name}"), &[value, index])?
            }
            (_, View::SubgroupShuffle { value, index }) => {
                let xor = if op == Op::SubgroupShuffleXorINTEL { "_xor" } else { "" };
                self.need_subgroups();
                self.function(&format!("intel_sub_group_shuffle{xor}"), &[value, index])?
            }
            (_, View::SubgroupShift { current, next, delta }) => {
                let down = if op == Op::SubgroupShuffleDownINTEL { "down" } else { "up" };
                self.need_subgroups();
                let name = format!("intel_sub_group_shuffle_{down}");
                self.function(&name, &[current, next, delta])?
            }
            _ => return Ok(false),
        };
        let (ty, id) = typed(instruction)?;
        self.assign(id, ty, &text)?;
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

    fn broadcast(&mut self, scope: u32, value: u32, from: u32) -> Result<String> {
        let group = self.group(scope)?;
        let lanes = self.emitter.lanes(self.emitter.type_of(from)?)?;
        let (value, from) = (self.value(value)?, self.value(from)?);
        let ids: Vec<_> = match lanes.count {
            1 => vec![from],
            count @ (2 | 3) => (0..count).map(|at| format!("({from}).s{at}")).collect(),
            _ => return Err(malformed("OpGroupBroadcast")),
        };
        Ok(format!("{group}_broadcast({value}, {})", ids.join(", ")))
    }

    /// Assigns the result of a reduction or scan, which has the type of its operand.
    fn assign_from(
        &mut self,
        instruction: &Instruction<'_>,
        lanes: Lanes,
        sign: Sign,
        text: &str,
    ) -> Result<()> {
        let (ty, id) = typed(instruction)?;
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
