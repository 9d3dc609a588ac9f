//! Barriers, fences, atomic instructions and asynchronous copies.
//!
//! The atomic functions of OpenCL C 1.2 order no other accesses. If an instruction orders others, the text has
//! fences around it.

use kiln_spirv::edit::{Class, Instruction, Row, View, is_atomic};
use kiln_spirv::{Demand, Result};
use rspirv::spirv::{MemorySemantics, Op, Scope};

use super::function::Body;
use super::types::{Lanes, Scalar, Space};
use super::{damaged, malformed, typed, unsupported};

impl Body<'_, '_> {
    /// Translates a barrier, a fence or an atomic instruction. Returns whether the instruction is one.
    pub(super) fn synchronization(
        &mut self,
        op: Op,
        instruction: &Instruction<'_>,
    ) -> Result<bool> {
        match instruction.view() {
            View::ControlBarrier { execution, semantics, .. } if op == Op::ControlBarrier => {
                let scope = u32::try_from(self.emitter.integer(execution)?).ok();
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
                let flags = match flags(self.semantics(semantics)?) {
                    "0" => "CLK_LOCAL_MEM_FENCE",
                    flags => flags,
                };
                self.line(&format!("{barrier}({flags});"));
            }
            View::MemoryBarrier { semantics, .. } => {
                let semantics = self.semantics(semantics)?;
                self.fence(semantics);
            }
            _ if is_atomic(op) => self.atomic(op, instruction)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Translates an instruction of asynchronous copies. Returns whether the instruction is one.
    pub(super) fn asynchronous(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<bool> {
        let (View::GroupCopy { scope, .. } | View::GroupWait { scope, .. }) = instruction.view()
        else {
            return Ok(false);
        };
        if self.emitter.integer(scope)? != Scope::Workgroup as u64 {
            return Err(unsupported(format!("Op{op:?} with a scope other than Workgroup")));
        }
        let (target, source, count, stride, event) = match instruction.view() {
            View::GroupCopy { target, source, count, stride, event, .. } => {
                (target, source, count, stride, event)
            }
            View::GroupWait { count, events, .. } => {
                let text = self.function("wait_group_events", &[count, events])?;
                self.line(&format!("{text};"));
                return Ok(true);
            }
            _ => return Ok(false),
        };
        // Copy functions exist for scalars and vectors only.
        self.emitter.lanes(self.pointee(target)?)?;
        let text = if self.emitter.evaluate(stride)? == Some(1) {
            self.function("async_work_group_copy", &[target, source, count, event])?
        } else {
            let operands = [target, source, count, stride, event];
            self.function("async_work_group_strided_copy", &operands)?
        };
        let (ty, id) = typed(instruction)?;
        self.assign(id, ty, &text)?;
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
        let (pointer, semantics) = match instruction.view() {
            View::Atomic { pointer, semantics, .. }
            | View::AtomicUpdate { pointer, semantics, .. }
            | View::AtomicCompare { pointer, equal: semantics, .. } => (pointer, semantics),
            _ => return Err(damaged(instruction)),
        };
        let semantics = self.semantics(semantics)?;
        let ty = match (op, instruction.view()) {
            (Op::AtomicStore, View::AtomicUpdate { value, .. }) => self.emitter.type_of(value)?,
            (Op::AtomicFlagTestAndSet | Op::AtomicFlagClear, _) => self.pointee(pointer)?,
            _ => typed(instruction)?.0,
        };
        let lanes = self.emitter.lanes(ty)?;
        let text = self.atomic_call(op, instruction, pointer, lanes)?;
        let both = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::SEQUENTIALLY_CONSISTENT;
        if semantics.intersects(both | MemorySemantics::RELEASE) {
            self.fence(semantics);
        }
        match instruction.result_type().zip(instruction.result()) {
            Some((ty, id)) => self.assign(id, ty, &text)?,
            None => self.line(&format!("{text};")),
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
        let place = self.atomic_place(op, pointer, lanes)?;
        let prefix = if lanes.width() == 64 { "atom" } else { "atomic" };
        let operand = match instruction.view() {
            View::AtomicUpdate { value, .. } | View::AtomicCompare { value, .. } => Some(value),
            _ => None,
        };
        let operand = || operand.ok_or_else(|| damaged(instruction));
        let value = |body: &mut Self| body.value(operand()?);
        let plain = |name: &str, operand: String| format!("{prefix}_{name}({place}, {operand})");
        let text = match op {
            // An `or` with 0 is a read that is not torn, and is ordered with the writes.
            Op::AtomicLoad => plain("or", "0".to_owned()),
            Op::AtomicStore | Op::AtomicExchange => {
                let text = value(self)?;
                let text = match lanes.scalar {
                    Scalar::Float(_) => format!("as_{}({text})", integer(lanes)),
                    _ => text,
                };
                plain("xchg", text)
            }
            Op::AtomicFlagTestAndSet => format!("{} != 0", plain("xchg", "1u".to_owned())),
            Op::AtomicFlagClear => plain("xchg", "0u".to_owned()),
            Op::AtomicCompareExchange | Op::AtomicCompareExchangeWeak => {
                let View::AtomicCompare { comparator, .. } = instruction.view() else {
                    return Err(damaged(instruction));
                };
                let (new, expected) = (value(self)?, self.value(comparator)?);
                plain("cmpxchg", format!("{expected}, {new}"))
            }
            Op::AtomicIIncrement => format!("{prefix}_inc({place})"),
            Op::AtomicIDecrement => format!("{prefix}_dec({place})"),
            Op::AtomicIAdd => plain("add", value(self)?),
            Op::AtomicISub => plain("sub", value(self)?),
            Op::AtomicUMin => plain("min", value(self)?),
            Op::AtomicUMax => plain("max", value(self)?),
            Op::AtomicSMin | Op::AtomicSMax => {
                let name = if op == Op::AtomicSMin { "min" } else { "max" };
                format!("as_{lanes}({})", plain(name, self.signed(operand()?)?))
            }
            Op::AtomicAnd => plain("and", value(self)?),
            Op::AtomicOr => plain("or", value(self)?),
            Op::AtomicXor => plain("xor", value(self)?),
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
            let is_extended = Row::of(op).is_some_and(|row| row.class == Class::ExtendedAtomic);
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
