//! Types of the values that instructions use, as far as a proof relies on them.
//!
//! SPIR-V says which types fit together. Drivers do not check that, and the analysis follows the types of results. So a
//! module whose types do not fit is refused: what a driver makes of it is not known.

use kiln_spirv::edit::Types as Listed;
use kiln_spirv::edit::{Definitions, Domain, Function, Instruction, Meaning, is_atomic};
use rspirv::spirv::{Op, StorageClass};

use super::patterns::Patterns;
use crate::analysis::vector_access::extended;

/// Returns the reason why the types of an instruction do not fit together, if that is so, worded to follow "it".
pub(super) fn unfit(
    definitions: &Definitions<'_>,
    function: &Function,
    i: &Instruction<'_>,
) -> Option<String> {
    let types = Types { definitions, function };
    (!types.are_known_to_fit(i))
        .then(|| format!("has {} whose types do not fit together", i.name()))
}

struct Types<'a, 'm> {
    definitions: &'a Definitions<'m>,
    /// Function of the instruction.
    function: &'a Function,
}

impl<'m> Types<'_, 'm> {
    fn of(&self, id: Option<u32>) -> Option<u32> {
        self.definitions.get(id?)?.result_type()
    }

    /// Returns the storage class and the pointee of a type that is a pointer.
    fn pointer(&self, ty: Option<u32>) -> Option<(u32, u32)> {
        let ty = self.definitions.get(ty?).filter(|ty| ty.op() == Some(Op::TypePointer))?;
        Some((ty.word(1)?, ty.word(2)?))
    }

    fn pointee(&self, pointer: Option<u32>) -> Option<u32> {
        self.pointer(self.of(pointer)).map(|(_, pointee)| pointee)
    }

    fn are_same(&self, a: Option<u32>, b: Option<u32>) -> bool {
        a.is_some() && a == b
    }

    fn patterns(&self) -> Patterns<'_, 'm> {
        Patterns { definitions: self.definitions }
    }

    fn are_known_to_fit(&self, i: &Instruction<'m>) -> bool {
        if let Some(function) = extended(self.definitions, i) {
            return match Meaning::of_function(function).map(|meaning| meaning.types) {
                Some(Listed::Of(result, operands)) => self.patterns().fit(i, 4, (result, operands)),
                _ => false,
            };
        }
        match i.op().and_then(Meaning::of).map(|meaning| meaning.types) {
            Some(Listed::Any) => true,
            Some(Listed::Of(result, operands)) => {
                let first = if i.result().is_some() { 2 } else { 0 };
                self.patterns().fit(i, first, (result, operands))
            }
            Some(Listed::Own) => self.fit(i),
            None => false,
        }
    }

    /// Returns whether the types of an instruction fit for which no list of types says so.
    fn fit(&self, i: &Instruction<'m>) -> bool {
        let (Some(op), ty) = (i.op(), i.result_type()) else { return false };
        let operand = |word| self.of(i.word(word));
        match op {
            Op::Variable => self.pointer(ty).is_some_and(|(class, pointee)| {
                let initial = i.word(3).map(|id| self.of(Some(id)) == Some(pointee));
                i.word(2) == Some(class) && initial.unwrap_or(true)
            }),
            Op::Load => self.are_same(ty, self.pointee(i.word(2))),
            Op::Store => self.are_same(operand(1), self.pointee(i.word(0))),
            Op::CopyMemory => self.are_same(self.pointee(i.word(0)), self.pointee(i.word(1))),
            Op::CopyMemorySized => {
                let are_pointers = [0, 1].iter().all(|&at| self.pointer(operand(at)).is_some());
                are_pointers && self.patterns().is_one(operand(2), Domain::Int)
            }
            Op::AccessChain
            | Op::InBoundsAccessChain
            | Op::PtrAccessChain
            | Op::InBoundsPtrAccessChain => self.chain_fits(op, i),
            Op::Bitcast => match (self.pointer(ty), self.pointer(operand(2))) {
                (Some((to, _)), Some((from, _))) => to == from,
                // A pointer that becomes a number, or the other way round, is refused where it is used.
                (Some(_), None) => self.patterns().is_one(operand(2), Domain::Int),
                (None, Some(_)) => self.patterns().is_one(ty, Domain::Int),
                (None, None) => self.patterns().have_same_bits(ty, operand(2)),
            },
            Op::PtrCastToGeneric => {
                let (to, from) = (self.pointer(ty), self.pointer(operand(2)));
                let known =
                    [StorageClass::Function, StorageClass::Workgroup, StorageClass::CrossWorkgroup];
                to.zip(from).is_some_and(|((to, a), (from, b))| {
                    let is_known = known.iter().any(|class| *class as u32 == from);
                    to == StorageClass::Generic as u32 && is_known && a == b
                })
            }
            Op::GenericCastToPtr | Op::GenericCastToPtrExplicit => {
                let (to, from) = (self.pointer(ty), self.pointer(operand(2)));
                to.zip(from).is_some_and(|((_, a), (from, b))| {
                    from == StorageClass::Generic as u32 && a == b
                })
            }
            Op::Phi => i.words_from(2).step_by(2).all(|id| self.are_same(ty, self.of(Some(id)))),
            Op::BranchConditional => self.patterns().is_one(operand(0), Domain::Bool),
            Op::Switch => self.patterns().is_one(operand(0), Domain::Int),
            Op::FunctionCall => self.call_fits(i),
            Op::ReturnValue => {
                let declared = self.function.body.iter().find(|i| i.op() == Some(Op::Function));
                self.are_same(operand(0), declared.and_then(|i| i.result_type()))
            }
            Op::VectorShuffle => self.patterns().shuffle_fits(i),
            Op::CompositeConstruct => self.patterns().construction_fits(i),
            Op::CompositeExtract => {
                self.are_same(ty, self.patterns().part(operand(2), i.words_from(3)))
            }
            Op::CompositeInsert => {
                self.are_same(ty, operand(3))
                    && self.are_same(operand(2), self.patterns().part(ty, i.words_from(4)))
            }
            Op::IAddCarry | Op::ISubBorrow | Op::UMulExtended | Op::SMulExtended => {
                let pair = [0, 1].map(|at| self.patterns().part(ty, [at].into_iter()));
                let is_int = self.patterns().is_like(pair[0], Domain::Int);
                let others = [pair[1], operand(2), operand(3)];
                is_int && others.iter().all(|other| self.are_same(pair[0], *other))
            }
            _ if is_atomic(op) => self.atomic_fits(op, i),
            _ => false,
        }
    }

    /// Returns whether an access chain has the type of what it leads to.
    fn chain_fits(&self, op: Op, i: &Instruction<'m>) -> bool {
        let Some((class, mut ty)) = self.pointer(self.of(i.word(2))) else { return false };
        let mut indexes = i.words_from(3);
        if matches!(op, Op::PtrAccessChain | Op::InBoundsPtrAccessChain) && indexes.next().is_none()
        {
            return false;
        }
        for index in indexes {
            let Some(whole) = self.definitions.get(ty) else { return false };
            let is_int = || self.patterns().is_one(self.of(Some(index)), Domain::Int);
            let part = match whole.op() {
                Some(Op::TypeVector | Op::TypeArray) if is_int() => whole.word(1),
                Some(Op::TypeStruct) => {
                    let index = self.definitions.get(index);
                    let index = index.filter(|i| i.op() == Some(Op::Constant));
                    index
                        .and_then(|i| whole.word(usize::try_from(i.word(2)?).ok()?.checked_add(1)?))
                }
                _ => None,
            };
            let Some(part) = part else { return false };
            ty = part;
        }
        self.pointer(i.result_type()) == Some((class, ty))
    }

    /// Returns whether a function is called with arguments of its parameters' types.
    fn call_fits(&self, i: &Instruction<'m>) -> bool {
        let called = i.word(2).and_then(|id| self.definitions.get(id));
        let ty = called.and_then(|function| self.definitions.get(function.word(3)?));
        let Some(ty) = ty.filter(|ty| ty.op() == Some(Op::TypeFunction)) else { return false };
        let given: Vec<_> = i.words_from(3).map(|id| self.of(Some(id))).collect();
        let expected: Vec<_> = ty.words_from(2).map(Some).collect();
        let mut pairs = given.iter().zip(&expected);
        given.len() == expected.len()
            && pairs.all(|(given, expected)| given == expected || self.is_object(*expected))
            && ty.word(1) == i.result_type()
    }

    /// Returns whether a type is that of an image or a sampler, whose uses are followed by themselves.
    fn is_object(&self, ty: Option<u32>) -> bool {
        let ty = ty.and_then(|ty| self.definitions.get(ty));
        let op = ty.and_then(|ty| ty.op());
        matches!(op, Some(Op::TypeImage | Op::TypeSampledImage | Op::TypeSampler))
    }

    fn atomic_fits(&self, op: Op, i: &Instruction<'m>) -> bool {
        let pointee = self.pointee(i.word(usize::from(i.result().is_some()) * 2));
        match op {
            Op::AtomicStore => self.are_same(pointee, self.of(i.word(3))),
            // They are about a flag of another type than their result.
            Op::AtomicFlagTestAndSet | Op::AtomicFlagClear => pointee.is_some(),
            _ => self.are_same(pointee, i.result_type()),
        }
    }
}
