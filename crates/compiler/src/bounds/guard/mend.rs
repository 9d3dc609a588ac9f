//! Rewrites undefined operations into defined ones.

use std::collections::BTreeSet;

use kiln_spirv::edit::{Class, Definitions, Instruction, Section, View};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Decoration, Op, OpenclStd100Op as Extended, StorageClass};

use super::super::defined::define;
use super::super::hazards::{Hazard, claims_to_be_finite};
use super::code::Code;
use crate::analysis::images;
use crate::analysis::vector_access::{VectorAccess, extended};

/// Writes an instruction whose hazards have to be mended. Returns false if it needs no other form. `returned`
/// is the type that its function returns.
pub(super) fn instruction(
    code: &mut Code<'_>,
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    hazards: &BTreeSet<Hazard>,
    returned: u32,
) -> Result<bool> {
    let has = |hazard| hazards.contains(&hazard);
    let Some(op) = i.op() else { return Ok(false) };
    match op {
        _ if i.class() == Some(Class::Division) && has(Hazard::Division) => {
            divide(code, definitions, i, op)?;
        }
        _ if i.class() == Some(Class::Shift) && has(Hazard::Shift) => {
            shift(code, definitions, i, op)?;
        }
        Op::VectorExtractDynamic | Op::VectorInsertDynamic if has(Hazard::VectorIndex) => {
            index(code, definitions, i, op)?;
        }
        Op::ExtInst if has(Hazard::Limits) => clamp(code, definitions, i)?,
        Op::Unreachable => {
            let is_void = definitions.get(returned).is_some_and(|ty| ty.op() == Some(Op::TypeVoid));
            if is_void {
                code.new.push(Op::Return, []);
            } else {
                let zero = code.zero(returned)?;
                code.new.push(Op::ReturnValue, [zero]);
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn damaged_error() -> Error {
    Error::unsupported("an operation cannot be guarded: its types are not known")
}

/// Integer type of one number, or of a vector of them.
struct Numbers {
    ty: u32,
    part: u32,
    width: u32,
    count: Option<u32>,
}

impl Numbers {
    fn of(definitions: &Definitions<'_>, ty: u32) -> Option<Self> {
        let declared = definitions.get(ty)?;
        let (part, count) = match declared.vector() {
            Some((component, count)) => (component, Some(count)),
            None => (ty, None),
        };
        let width = definitions.get(part)?.width().filter(|width| (1..=64).contains(width))?;
        Some(Self { ty, part, width, count })
    }

    /// Returns a constant, the same in all components.
    fn constant(&self, code: &mut Code<'_>, value: i128) -> Result<u32> {
        let kept = if self.width >= 64 { value } else { value & ((1 << self.width) - 1) };
        let words = [kept as u32, (kept >> 32) as u32];
        let words = &words[..if self.width > 32 { 2 } else { 1 }];
        let one = code.interner.constant_id(code.module, Op::Constant, self.part, words)?;
        match self.count {
            Some(count) => {
                let parts = vec![one; count as usize];
                code.interner.constant_id(code.module, Op::ConstantComposite, self.ty, &parts)
            }
            None => Ok(one),
        }
    }

    /// Returns the type of a comparison.
    fn condition(&self, code: &mut Code<'_>) -> Result<u32> {
        match self.count {
            Some(count) => code.interner.type_id(code.module, Op::TypeVector, &[code.bool, count]),
            None => Ok(code.bool),
        }
    }
}

/// Writes a division that gives zero where its result is not defined.
fn divide(
    code: &mut Code<'_>,
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    op: Op,
) -> Result<()> {
    let words = (i.result_type(), i.result(), i.both());
    let (Some(ty), Some(result), Some((a, b))) = words else { return Err(damaged_error()) };
    let numbers = Numbers::of(definitions, ty).ok_or_else(damaged_error)?;
    let condition = numbers.condition(code)?;
    let (zero, one) = (numbers.constant(code, 0)?, numbers.constant(code, 1)?);
    let mut is_bad = code.typed(condition, Op::IEqual, &[b, zero])?;
    if !matches!(op, Op::UDiv | Op::UMod) {
        let least = numbers.constant(code, -(1_i128 << (numbers.width - 1)))?;
        let minus_one = numbers.constant(code, -1)?;
        let is_least = code.typed(condition, Op::IEqual, &[a, least])?;
        let is_negated = code.typed(condition, Op::IEqual, &[b, minus_one])?;
        let overflows = code.typed(condition, Op::LogicalAnd, &[is_least, is_negated])?;
        is_bad = code.typed(condition, Op::LogicalOr, &[is_bad, overflows])?;
    }
    let divisor = code.typed(ty, Op::Select, &[is_bad, one, b])?;
    let quotient = code.typed(ty, op, &[a, divisor])?;
    code.with_id(ty, result, Op::Select, &[is_bad, zero, quotient]);
    Ok(())
}

/// Writes a shift by an amount modulo the width.
fn shift(
    code: &mut Code<'_>,
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    op: Op,
) -> Result<()> {
    let words = (i.result_type(), i.result(), i.both());
    let (Some(ty), Some(result), Some((a, amount))) = words else { return Err(damaged_error()) };
    let width = Numbers::of(definitions, ty).ok_or_else(damaged_error)?.width;
    let own = definitions.get(amount).and_then(|i| i.result_type()).ok_or_else(damaged_error)?;
    let mask = Numbers::of(definitions, own).ok_or_else(damaged_error)?;
    let mask = mask.constant(code, i128::from(width) - 1)?;
    let amount = code.typed(own, Op::BitwiseAnd, &[amount, mask])?;
    code.with_id(ty, result, op, &[a, amount]);
    Ok(())
}

/// Writes a clamped value as comparisons, whose results are the same with every compiler. Where the limits are
/// in the wrong order, `clamp` gives the lower one on Intel's runtime for CPUs, and the upper one on PoCL.
fn clamp(code: &mut Code<'_>, definitions: &Definitions<'_>, i: &Instruction<'_>) -> Result<()> {
    let below = match extended(definitions, i) {
        Some(Extended::s_clamp) => Op::SLessThan,
        _ => Op::ULessThan,
    };
    let operands: Vec<_> = i.extended_operands().collect();
    let words = (i.result_type(), i.result(), operands.as_slice());
    let (Some(ty), Some(result), &[value, low, high]) = words else { return Err(damaged_error()) };
    let condition = Numbers::of(definitions, ty).ok_or_else(damaged_error)?.condition(code)?;
    let is_low = code.typed(condition, below, &[value, low])?;
    let raised = code.typed(ty, Op::Select, &[is_low, low, value])?;
    let is_high = code.typed(condition, below, &[high, raised])?;
    code.with_id(ty, result, Op::Select, &[is_high, high, raised]);
    Ok(())
}

/// Writes the use of a component whose index is taken modulo the number of components.
fn index(
    code: &mut Code<'_>,
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    op: Op,
) -> Result<()> {
    let (vector, at) = match i.view() {
        View::ExtractDynamic { vector, index } | View::InsertDynamic { vector, index, .. } => {
            (vector, index)
        }
        _ => return Err(damaged_error()),
    };
    let ty = definitions.type_of(vector).and_then(|ty| ty.vector());
    let (_, count) = ty.ok_or_else(damaged_error)?;
    let own = definitions.get(at).and_then(|i| i.result_type()).ok_or_else(damaged_error)?;
    let count =
        Numbers::of(definitions, own).ok_or_else(damaged_error)?.constant(code, count.into())?;
    let at = code.typed(own, Op::UMod, &[at, count])?;
    // The index is the last operand.
    let mut words: Vec<_> = i.words_from(0).collect();
    words.last_mut().into_iter().for_each(|word| *word = at);
    code.new.push(op, words);
    Ok(())
}

/// Returns whether a load is from memory that other work-items may write, or that may not have been written.
pub(super) fn may_change(definitions: &Definitions<'_>, load: &Instruction<'_>) -> bool {
    load.pointer().is_some_and(|pointer| is_shared(definitions, pointer))
}

/// Returns whether an instruction is a function that loads from such memory, or from an image that may be written.
pub(super) fn is_changing_call(definitions: &Definitions<'_>, i: &Instruction<'_>) -> bool {
    let vector = VectorAccess::of(definitions, i).filter(|access| access.stored.is_none());
    images::reads_changing(definitions, i)
        || vector.is_some_and(|vector| is_shared(definitions, vector.pointer))
}

fn is_shared(definitions: &Definitions<'_>, pointer: u32) -> bool {
    let class = definitions.type_of(pointer).and_then(|ty| ty.storage_class());
    matches!(
        class.and_then(StorageClass::from_u32),
        Some(StorageClass::CrossWorkgroup | StorageClass::Workgroup | StorageClass::Generic)
    )
}

/// Mends what concerns the whole module, for the kinds of hazards that a kernel has.
pub(super) fn module(module: &mut Module, kinds: &BTreeSet<Hazard>) -> Result<()> {
    if kinds.contains(&Hazard::Lifetime) {
        let is_marker = |i: &Instruction<'_>| i.class() == Some(Class::Lifetime);
        module.functions.iter_mut().for_each(|function| function.body.retain(|i| !is_marker(i)));
    }
    if kinds.contains(&Hazard::Undefined) {
        define_values(module)?;
    }
    Ok(())
}

/// Makes zeros of values that are not defined, saturates conversions, and takes from calculations their claims not
/// to overflow and to be finite, and from addresses those to be inside of their memory.
fn define_values(module: &mut Module) -> Result<()> {
    define(module)?;
    let is_claim = |i: &Instruction<'_>| {
        let claims = [Decoration::NoSignedWrap, Decoration::NoUnsignedWrap];
        claims.iter().any(|claim| i.decoration(*claim).is_some()) || claims_to_be_finite(i)
    };
    module.section_mut(Section::Annotations).retain(|i| !is_claim(i));
    for function in &mut module.functions {
        let body = std::mem::take(&mut function.body);
        for i in body.iter() {
            match i.op() {
                Some(Op::InBoundsAccessChain) => {
                    function.body.push(Op::AccessChain, i.words_from(0));
                }
                Some(Op::InBoundsPtrAccessChain) => {
                    function.body.push(Op::PtrAccessChain, i.words_from(0));
                }
                _ => function.body.push_instruction(&i),
            }
        }
    }
    Ok(())
}
