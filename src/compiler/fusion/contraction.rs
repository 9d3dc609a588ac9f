//! Whether drivers may contract operations of several launches, or find other values for them.
//!
//! A product that is added to something may be rounded once instead of twice where an entry point lacks
//! the execution mode `ContractionOff`. One by one, no launch's operation is contracted with another
//! launch's, for what is between them is rounded as it is stored to memory. In a fused kernel a driver
//! may see through that, be it memory or a variable of ours, and make other bytes of it. SPIR-V has no
//! means to forbid it between two operations of a kernel and to allow it between others: the mode is
//! the whole entry point's. (Volatile accesses and opaque bit operations would hide the values from
//! the driver, at the cost of what fusion gains, or by a trick that the next driver sees through.)
//!
//! So the fused kernel gets the mode where that changes nothing in the launches: where each has it
//! already, or has nothing that could be contracted. That is so for the usual translators, which set it
//! on all kernels that both add and multiply. If a launch relies on the mode's absence, it must not be
//! next to one that has it, nor pass products on to one that adds.
//!
//! Intel's runtime for CPUs (2026.22) finds other values, too, for what it knows more of:
//!
//! - It computes the sine and the cosine of the same value at once, with other last bits than either
//!   alone.
//! - What all work-items share it calculates once, by other instructions than for vectors of work-items:
//!   estimates like `native_recip` are of another precision then.
//!
//! Launches that do so stay functions apart, which are compiled as they are alone. They stay alone where
//! their functions are not the same, for they have an nd-range of their own, and for `dot`, `length` and
//! what is made of them, of double precision, which it calculates otherwise even then.
//!
//! `mad` it rounds once, twice, or not at all, as in `mad(x, c, x)` that becomes `(c + 1) * x`, in one
//! kernel as in the next: it is for whom speed counts more than bytes (OpenCL C 1.2, 6.12.2).

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{Decoration, FPFastMathMode, Op, OpenclStd100Op as Extended};

use super::extract::Kernel;
use super::legality::Examined;
use super::plan::{Argument, Memory, Slot};
use super::ranges::{Mapping, Ranges, Shape};
use crate::compiler::spirv::edit::{Definitions, Instruction, Section};

/// A slot's operations whose bytes OpenCL leaves open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Operations {
    /// By the execution mode.
    forbids: bool,
    multiplies: bool,
    adds: bool,
    /// Both, by a function of which the driver knows more.
    fuses: bool,
    /// By instructions of which processors have several.
    pub(super) estimates: bool,
    /// The components of vectors of double precision, or their squares.
    adds_vectors: bool,
    sines: bool,
    cosines: bool,
}

impl Operations {
    /// Those of a kernel's function and of what that calls. Operations that may be transformed freely,
    /// by a decoration of their own, do not count: whoever allowed that asked for no certain bytes.
    pub(super) fn of(kernel: &Kernel, definitions: &Definitions<'_>) -> Self {
        let forbids = kernel.modes.forbids_contraction();
        Self { forbids, ..Self::in_function(definitions, kernel.function) }
    }

    /// Accesses of a function and of the functions that it calls.
    pub(super) fn in_function(definitions: &Definitions<'_>, function: u32) -> Self {
        let module = definitions.module();
        let annotations = module.section(Section::Annotations).iter();
        let is_free = annotations.filter(|i| {
            let mode = i.word(2).unwrap_or_default();
            let free = FPFastMathMode::FAST | FPFastMathMode::ALLOW_CONTRACT;
            i.op() == Some(Op::Decorate)
                && i.word(1) == Some(Decoration::FPFastMathMode as u32)
                && mode & free.bits() != 0
        });
        let free: HashSet<_> = is_free.filter_map(|i| i.word(0)).collect();
        let functions: HashMap<_, _> = module.functions.iter().map(|f| (f.id, f)).collect();
        let mut found = Self::default();
        let (mut seen, mut left) = (HashSet::from([function]), vec![function]);
        while let Some(id) = left.pop() {
            let body = functions.get(&id).into_iter().flat_map(|function| function.body.iter());
            for i in body.filter(|i| i.result().is_none_or(|id| !free.contains(&id))) {
                found.adds_vectors |= adds_vectors(&i, definitions);
                match i.op() {
                    Some(
                        Op::FMul
                        | Op::VectorTimesScalar
                        | Op::Dot
                        | Op::MatrixTimesScalar
                        | Op::MatrixTimesVector
                        | Op::VectorTimesMatrix
                        | Op::MatrixTimesMatrix,
                    ) => found.multiplies = true,
                    Some(Op::FAdd | Op::FSub) => found.adds = true,
                    Some(Op::ExtInst) => found.add(&i),
                    Some(Op::FunctionCall) => left.extend(i.word(2).filter(|&id| seen.insert(id))),
                    _ => {}
                }
            }
        }
        found
    }

    fn add(&mut self, function: &Instruction<'_>) {
        let Some(known) = function.word(3).and_then(Extended::from_u32) else { return };
        match known {
            Extended::degrees | Extended::radians | Extended::normalize => self.multiplies = true,
            Extended::mad
            | Extended::mix
            | Extended::smoothstep
            | Extended::cross
            | Extended::distance
            | Extended::fast_distance => self.fuses = true,
            Extended::sin | Extended::sinpi | Extended::half_sin | Extended::native_sin => {
                self.sines = true;
            }
            Extended::cos | Extended::cospi | Extended::half_cos | Extended::native_cos => {
                self.cosines = true;
            }
            Extended::sincos => (self.sines, self.cosines) = (true, true),
            Extended::rsqrt
            | Extended::half_divide
            | Extended::half_recip
            | Extended::half_rsqrt
            | Extended::native_divide
            | Extended::native_recip
            | Extended::native_rsqrt => self.estimates = true,
            Extended::fast_normalize => (self.multiplies, self.estimates) = (true, true),
            _ => {}
        }
    }

    /// Whether Intel's runtime for CPUs may find other values for some of them in another function.
    pub(super) fn depend_on_place(self) -> bool {
        self.estimates || self.adds_vectors || self.sines || self.cosines
    }

    /// Whether a driver may contract some of them among themselves.
    fn is_contracted(self) -> bool {
        !self.forbids && self.multiplies && self.adds
    }
}

/// Whether it adds the components of a vector of double precision, or their squares.
fn adds_vectors(i: &Instruction<'_>, definitions: &Definitions<'_>) -> bool {
    let adds = match i.op() {
        Some(Op::Dot) => true,
        Some(Op::ExtInst) => matches!(
            i.word(3).and_then(Extended::from_u32),
            Some(Extended::distance | Extended::length | Extended::normalize)
        ),
        _ => false,
    };
    let component = |ty: Instruction<'_>| match ty.op() {
        Some(Op::TypeVector) => definitions.get(ty.word(1)?)?.word(1),
        _ => ty.word(1),
    };
    let ty = i.result_type().filter(|_| adds).and_then(|ty| definitions.get(ty));
    ty.and_then(component) == Some(64)
}

/// Why Intel's runtime for CPUs may find other values for a launch that stays a function apart.
pub(super) fn alone(slots: &[Slot], ranges: &Ranges, operations: &[Operations]) -> Option<String> {
    let why = |own: &Operations, mapping: &Mapping| {
        let is_its_own = mapping.shape != Shape::Same || mapping.guard.is_some();
        if own.adds_vectors {
            Some(
                "`dot` or a length in double precision, which Intel's compiler for CPUs does otherwise \
                 in a fused kernel",
            )
        } else if own.estimates && is_its_own {
            Some("estimates, which Intel's compiler for CPUs does otherwise in another nd-range")
        } else {
            None
        }
    };
    let mut all = slots.iter().zip(operations).zip(&ranges.slots);
    let found = all.find_map(|((slot, own), mapping)| Some((slot, why(own, mapping)?)));
    let (slot, why) = found.filter(|_| slots.len() > 1)?;
    Some(format!("`{}` calculates {why}", slot.kernel))
}

/// Whether Intel's runtime for CPUs may find other values for what the launches calculate if it sees
/// through their calls.
pub(super) fn may_meet(operations: &[Operations]) -> bool {
    shares_angles(operations) || operations.iter().any(|own| own.estimates)
}

/// Whether some launch has a sine, and another one a cosine.
fn shares_angles(operations: &[Operations]) -> bool {
    let cosines = || operations.iter().enumerate().filter(|(_, slot)| slot.cosines);
    let is_paired = |at: usize| cosines().any(|(other, _)| other != at);
    operations.iter().enumerate().any(|(at, slot)| slot.sines && is_paired(at))
}

/// Whether the fused kernel is to have the mode.
///
/// # Errors
///
/// The reason why, with it as well as without it, bytes may differ.
pub(super) fn forbids(
    slots: &[Slot],
    examined: &[Examined],
    operations: &[Operations],
) -> Result<bool, String> {
    let passed_on = || passed_on(slots, examined, operations);
    let name = |at: usize| &slots[at].kernel;
    let contracted = operations.iter().position(|slot| slot.is_contracted());
    let forbidding = operations.iter().position(|slot| slot.forbids);
    match (contracted, forbidding) {
        (None, forbidding) => Ok(forbidding.is_some() || passed_on().is_some()),
        (Some(contracted), Some(forbidding)) => Err(format!(
            "`{}` lets drivers round products and sums at once, `{}` forbids it",
            name(contracted),
            name(forbidding)
        )),
        (Some(_), None) => match passed_on() {
            None => Ok(false),
            Some((from, to)) => Err(format!(
                "the driver may round products of `{}` and sums of `{}` at once, for their modules \
                 allow it",
                name(from),
                name(to)
            )),
        },
    }
}

/// A slot of products, and a later one that may add to them. Others between them may pass them on as
/// they are, or with their signs changed.
fn passed_on(
    slots: &[Slot],
    examined: &[Examined],
    operations: &[Operations],
) -> Option<(usize, usize)> {
    let memory = |slot: &Slot, argument: usize| -> Option<Memory> {
        match slot.arguments.get(argument)? {
            Argument::Buffer(region) => Some(region.memory),
            Argument::Scalar(_) | Argument::Local(_) => None,
        }
    };
    // Those that may hold products, and whose.
    let mut products = HashMap::new();
    for (at, (slot, own)) in slots.iter().zip(operations).enumerate() {
        let mut given = (0..slot.arguments.len()).filter_map(|argument| memory(slot, argument));
        let from = given.find_map(|memory| products.get(&memory).copied());
        if let Some(from) = from
            && (own.adds || own.fuses)
        {
            return Some((from, at));
        }
        let own = (own.multiplies || own.fuses).then_some(at);
        if let Some(origin) = own.or(from) {
            let written = examined[at].accesses.all.iter().filter(|access| access.kind.writes());
            let written = written.filter_map(|access| memory(slot, access.parameter));
            products.extend(written.map(|memory| (memory, origin)));
        }
    }
    None
}
