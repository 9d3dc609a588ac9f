//! Barriers, fences, atomic instructions and asynchronous copies.
//!
//! The atomic functions of OpenCL C 1.2 order no other accesses. If an instruction orders others, the text has
//! fences around it.

use kiln_spirv::edit::{Instruction, is_atomic};
use kiln_spirv::{Demand, Result};
use rspirv::spirv::{MemorySemantics, Op, Scope};

use super::function::Body;
use super::types::{Lanes, Scalar, Space};
use super::{malformed, operand, unsupported};

impl Body<'_, '_> {
    /// Translates a barrier, a fence or an atomic instruction. Returns whether the instruction is one.
    pub(super) fn synchronization(
        &mut self,
        op: Op,
        instruction: &Instruction<'_>,
    ) -> Result<bool> {
        let word = |index| operand(instruction, index);
        match op {
            Op::ControlBarrier => {
                let scope = u32::try_from(self.emitter.integer(word(0)?)?).ok();
                let barrier = match scope.and_then(Scope::from_u32) {
                    Some(Scope::Workgroup) => "barrier",
                    Some(Scope::Subgroup) => {
                        self.need_subgroups();
                        "sub_group_barrier"
                    }
                    _ => {
                        return Err(unsupported(
                            "OpControlBarrier with a scope other than Workgroup and Subgroup",
                        ));
                    }
                };
                let flags = match flags(self.semantics(word(2)?)?) {
                    "0" => "CLK_LOCAL_MEM_FENCE",
                    flags => flags,
                };
                self.line(&format!("{barrier}({flags});"));
            }
            Op::MemoryBarrier => {
                let semantics = self.semantics(word(1)?)?;
                self.fence(semantics);
            }
            _ if is_atomic(op) => self.atomic(op, instruction)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Translates an instruction of asynchronous copies. Returns whether the instruction is one.
    pub(super) fn asynchronous(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<bool> {
        let word = |index| operand(instruction, index);
        let scope = match op {
            Op::GroupAsyncCopy => word(2)?,
            Op::GroupWaitEvents => word(0)?,
            _ => return Ok(false),
        };
        if self.emitter.integer(scope)? != Scope::Workgroup as u64 {
            return Err(unsupported(format!("Op{op:?} with a scope other than Workgroup")));
        }
        if op == Op::GroupWaitEvents {
            let text = self.function("wait_group_events", &[word(1)?, word(2)?])?;
            self.line(&format!("{text};"));
            return Ok(true);
        }
        // Copy functions exist for scalars and vectors only.
        self.emitter.lanes(self.pointee(word(3)?)?)?;
        let (stride, event) = (word(6)?, word(7)?);
        let text = if self.emitter.evaluate(stride)? == Some(1) {
            self.function("async_work_group_copy", &[word(3)?, word(4)?, word(5)?, event])?
        } else {
            let operands = [word(3)?, word(4)?, word(5)?, stride, event];
            self.function("async_work_group_strided_copy", &operands)?
        };
        self.assign(word(1)?, word(0)?, &text)?;
        Ok(true)
    }

    fn semantics(&self, id: u32) -> Result<MemorySemantics> {
        let bits = self.emitter.integer(id)?;
        Ok(MemorySemantics::from_bits_truncate(bits as u32))
    }

    fn fence(&mut self, semantics: MemorySemantics) {
        let flags = match flags(semantics) {
            "0" => "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE",
            flags => flags,
        };
        self.line(&format!("mem_fence({flags});"));
    }

    fn atomic(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<()> {
        // Instructions without a result begin with the pointer.
        let first = match op {
            Op::AtomicStore | Op::AtomicFlagClear => 0,
            _ => 2,
        };
        let word = |index| operand(instruction, index);
        let pointer = word(first)?;
        let semantics = self.semantics(word(first + 2)?)?;
        let ty = match op {
            Op::AtomicStore => self.emitter.type_of(word(3)?)?,
            Op::AtomicFlagTestAndSet | Op::AtomicFlagClear => self.pointee(pointer)?,
            _ => word(0)?,
        };
        let lanes = self.emitter.lanes(ty)?;
        let text = self.atomic_call(op, instruction, pointer, lanes)?;
        let both = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::SEQUENTIALLY_CONSISTENT;
        if semantics.intersects(both | MemorySemantics::RELEASE) {
            self.fence(semantics);
        }
        if first == 0 {
            self.line(&format!("{text};"));
        } else {
            let ty = word(0)?;
            self.assign(word(1)?, ty, &text)?;
        }
        if semantics.intersects(both | MemorySemantics::ACQUIRE) {
            self.fence(semantics);
        }
        Ok(())
    }

    /// Returns the call of the atomic function, converted to the type of the instruction's result.
    fn atomic_call(
        &mut self,
        op: Op,
        instruction: &Instruction<'_>,
        pointer: u32,
        lanes: Lanes,
    ) -> Result<String> {
        let word = |index| operand(instruction, index);
        let place = self.atomic_place(op, pointer, lanes)?;
        let prefix = if lanes.width() == 64 { "atom" } else { "atomic" };
        let value = |body: &mut Self, index: usize| body.value(word(index)?);
        let plain = |name: &str, operand: String| format!("{prefix}_{name}({place}, {operand})");
        let text = match op {
            // An `or` with 0 is a read that is not torn, and is ordered with the writes.
            Op::AtomicLoad => plain("or", "0".to_owned()),
            Op::AtomicStore | Op::AtomicExchange => {
                let text = value(self, if op == Op::AtomicStore { 3 } else { 5 })?;
                let text = match lanes.scalar {
                    Scalar::Float(_) => format!("as_{}({text})", integer(lanes)),
                    _ => text,
                };
                plain("xchg", text)
            }
            Op::AtomicFlagTestAndSet => format!("{} != 0", plain("xchg", "1u".to_owned())),
            Op::AtomicFlagClear => plain("xchg", "0u".to_owned()),
            Op::AtomicCompareExchange | Op::AtomicCompareExchangeWeak => {
                let (new, expected) = (value(self, 6)?, value(self, 7)?);
                plain("cmpxchg", format!("{expected}, {new}"))
            }
            Op::AtomicIIncrement => format!("{prefix}_inc({place})"),
            Op::AtomicIDecrement => format!("{prefix}_dec({place})"),
            Op::AtomicIAdd => plain("add", value(self, 5)?),
            Op::AtomicISub => plain("sub", value(self, 5)?),
            Op::AtomicUMin => plain("min", value(self, 5)?),
            Op::AtomicUMax => plain("max", value(self, 5)?),
            Op::AtomicSMin | Op::AtomicSMax => {
                let name = if op == Op::AtomicSMin { "min" } else { "max" };
                format!("as_{lanes}({})", plain(name, self.signed(word(5)?)?))
            }
            Op::AtomicAnd => plain("and", value(self, 5)?),
            Op::AtomicOr => plain("or", value(self, 5)?),
            Op::AtomicXor => plain("xor", value(self, 5)?),
            _ => return Err(unsupported(instruction.name())),
        };
        Ok(match (op, lanes.scalar) {
            (Op::AtomicLoad | Op::AtomicExchange, Scalar::Float(_)) => {
                format!("as_{lanes}({text})")
            }
            _ => text,
        })
    }

    /// Returns the pointer in the form that the atomic function takes.
    fn atomic_place(&mut self, op: Op, pointer: u32, lanes: Lanes) -> Result<String> {
        let space = self.space(pointer)?;
        if !matches!(space, Space::Global | Space::Local) {
            return Err(unsupported(format!("Op{op:?} of {space} memory")));
        }
        let is_wide = match (lanes.bits(), lanes.count) {
            (32, 1) => false,
            (64, 1) => true,
            _ => return Err(unsupported(format!("Op{op:?} of {lanes}"))),
        };
        if is_wide {
            let is_extended = matches!(
                op,
                Op::AtomicLoad
                    | Op::AtomicUMin
                    | Op::AtomicUMax
                    | Op::AtomicSMin
                    | Op::AtomicSMax
                    | Op::AtomicAnd
                    | Op::AtomicOr
                    | Op::AtomicXor
            );
            self.emitter.demands.insert(if is_extended {
                Demand::ExtendedLongAtomics
            } else {
                Demand::LongAtomics
            });
        }
        let name = match op {
            Op::AtomicSMin | Op::AtomicSMax => lanes.signed(),
            _ => integer(lanes).to_string(),
        };
        if lanes.scalar == Scalar::Bool {
            return Err(malformed(format!("Op{op:?}")));
        }
        Ok(format!("(volatile {space} {name} *){}", self.value(pointer)?))
    }
}

fn integer(lanes: Lanes) -> Lanes {
    lanes.with(Scalar::Int(lanes.width()))
}

fn flags(semantics: MemorySemantics) -> &'static str {
    let local = semantics.contains(MemorySemantics::WORKGROUP_MEMORY);
    let global = semantics
        .intersects(MemorySemantics::CROSS_WORKGROUP_MEMORY | MemorySemantics::IMAGE_MEMORY);
    match (local, global) {
        (true, true) => "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE",
        (true, false) => "CLK_LOCAL_MEM_FENCE",
        (false, true) => "CLK_GLOBAL_MEM_FENCE",
        (false, false) => "0",
    }
}
