//! Types of the values that instructions use, as far as a proof relies on them.
//!
//! SPIR-V says which types fit together. Drivers do not check that, and the analysis follows the types of results. So a
//! module whose types do not fit is refused: what a driver makes of it is not known.

use kiln_spirv::edit::Types as Listed;
use kiln_spirv::edit::{Class, Definitions, Domain, Function, Instruction, List, Meaning, View};
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
        match self.definitions.get(ty?)?.view() {
            View::TypePointer { class, pointee } => Some((class, pointee)),
            _ => None,
        }
    }

    fn pointee(&self, pointer: u32) -> Option<u32> {
        self.pointer(self.of(Some(pointer))).map(|(_, pointee)| pointee)
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
                Some(Listed::Of(result, operands)) => {
                    let given: Vec<_> = i.extended_operands().collect();
                    self.patterns().fit(i, &given, (result, operands))
                }
                _ => false,
            };
        }
        match i.op().and_then(Meaning::of).map(|meaning| meaning.types) {
            Some(Listed::Any) => true,
            Some(Listed::Of(result, operands)) => {
                let first = if i.result().is_some() { 2 } else { 0 };
                let given: Vec<_> = i.words_from(first).collect();
                self.patterns().fit(i, &given, (result, operands))
            }
            Some(Listed::Own) => self.fit(i),
            None => false,
        }
    }

    /// Returns whether the types of an instruction fit for which no list of types says so.
    fn fit(&self, i: &Instruction<'m>) -> bool {
        let (Some(op), ty) = (i.op(), i.result_type()) else { return false };
        let of = |id| self.of(Some(id));
        let patterns = self.patterns();
        match i.view() {
            View::Variable { class, initial } => self.pointer(ty).is_some_and(|(own, pointee)| {
                own == class && initial.is_none_or(|initial| of(initial) == Some(pointee))
            }),
            View::Load { pointer, .. } => self.are_same(ty, self.pointee(pointer)),
            View::Store { pointer, value, .. } => self.are_same(of(value), self.pointee(pointer)),
            View::CopyMemory { target, source, .. } => {
                self.are_same(self.pointee(target), self.pointee(source))
            }
            View::CopyMemorySized { target, source, size, .. } => {
                let are_pointers = [target, source].map(|id| self.pointer(of(id)).is_some());
                are_pointers == [true; 2] && patterns.is_one(of(size), Domain::Int)
            }
            View::Chain { .. } | View::PtrChain { .. } => self.chain_fits(i),
            View::Unary { value } => self.cast_fits(op, ty, of(value)),
            View::CastExplicit { pointer, class } => {
                let is_stated = self.pointer(ty).is_some_and(|(to, _)| to == class);
                is_stated && self.cast_fits(op, ty, of(pointer))
            }
            View::Phi { pairs } => pairs.iter().all(|(id, _)| self.are_same(ty, of(id))),
            View::BranchIf { condition, .. } => patterns.is_one(of(condition), Domain::Bool),
            View::Switch { selector, .. } => patterns.is_one(of(selector), Domain::Int),
            View::Call { function, arguments } => self.call_fits(i, function, arguments),
            View::Return { value } => {
                let declared = self.function.body.iter().find(|i| i.op() == Some(Op::Function));
                self.are_same(of(value), declared.and_then(|i| i.result_type()))
            }
            View::Shuffle { .. } => patterns.shuffle_fits(i),
            View::Composite { .. } => patterns.construction_fits(i),
            View::Extract { whole, path } => {
                self.are_same(ty, patterns.part(of(whole), path.iter()))
            }
            View::Insert { part, whole, path } => {
                self.are_same(ty, of(whole))
                    && self.are_same(of(part), patterns.part(ty, path.iter()))
            }
            View::Binary { left, right } if i.class() == Some(Class::TwoResults) => {
                let pair = [0, 1].map(|at| patterns.part(ty, [at].into_iter()));
                let is_int = patterns.is_like(pair[0], Domain::Int);
                let others = [pair[1], of(left), of(right)];
                is_int && others.iter().all(|other| self.are_same(pair[0], *other))
            }
            View::Atomic { pointer, .. } => self.atomic_fits(op, ty, pointer),
            View::AtomicUpdate { pointer, value, .. } if op == Op::AtomicStore => {
                self.are_same(self.pointee(pointer), of(value))
            }
            View::AtomicUpdate { pointer, .. } | View::AtomicCompare { pointer, .. } => {
                self.are_same(self.pointee(pointer), ty)
            }
            _ => false,
        }
    }

    /// Returns whether a pointer, or a value with as many bits, can be converted from one type to another.
    fn cast_fits(&self, op: Op, ty: Option<u32>, own: Option<u32>) -> bool {
        let pointers = (self.pointer(ty), self.pointer(own));
        let generic = StorageClass::Generic as u32;
        match (op, pointers) {
            (Op::Bitcast, (Some((to, _)), Some((from, _)))) => to == from,
            // A pointer that becomes a number, or the other way round, is refused where it is used.
            (Op::Bitcast, (Some(_), None)) => self.patterns().is_one(own, Domain::Int),
            (Op::Bitcast, (None, Some(_))) => self.patterns().is_one(ty, Domain::Int),
            (Op::Bitcast, (None, None)) => self.patterns().have_same_bits(ty, own),
            (Op::PtrCastToGeneric, (Some((to, a)), Some((from, b)))) => {
                let known =
                    [StorageClass::Function, StorageClass::Workgroup, StorageClass::CrossWorkgroup];
                let is_known = known.iter().any(|class| *class as u32 == from);
                to == generic && is_known && a == b
            }
            (
                Op::GenericCastToPtr | Op::GenericCastToPtrExplicit,
                (Some((_, a)), Some((from, b))),
            ) => from == generic && a == b,
            _ => false,
        }
    }

    /// Returns whether an access chain has the type of what it leads to.
    fn chain_fits(&self, i: &Instruction<'m>) -> bool {
        let (base, indexes) = match i.view() {
            View::Chain { base, indexes } | View::PtrChain { base, indexes, .. } => (base, indexes),
            _ => return false,
        };
        let Some((class, mut ty)) = self.pointer(self.of(Some(base))) else { return false };
        for index in indexes.iter() {
            let Some(whole) = self.definitions.get(ty) else { return false };
            let is_int = || self.patterns().is_one(self.of(Some(index)), Domain::Int);
            let part = match whole.view() {
                View::TypeVector { component: part, .. }
                | View::TypeArray { element: part, .. } => Some(part).filter(|_| is_int()),
                View::TypeStruct { members } => {
                    let index = self.definitions.get(index).and_then(|i| i.literal()?.get(0));
                    index.and_then(|index| members.get(usize::try_from(index).ok()?))
                }
                _ => None,
            };
            let Some(part) = part else { return false };
            ty = part;
        }
        self.pointer(i.result_type()) == Some((class, ty))
    }

    /// Returns whether a function is called with arguments of its parameters' types.
    fn call_fits(&self, i: &Instruction<'m>, function: u32, arguments: List<'m>) -> bool {
        let ty = match self.definitions.get(function).map(|called| called.view()) {
            Some(View::Function { ty, .. }) => self.definitions.get(ty),
            _ => None,
        };
        let Some(View::TypeFunction { returned, parameters }) = ty.map(|ty| ty.view()) else {
            return false;
        };
        let mut pairs = arguments.iter().map(|id| self.of(Some(id))).zip(parameters.iter());
        arguments.len() == parameters.len()
            && pairs.all(|(given, expected)| given == Some(expected) || self.is_object(expected))
            && Some(returned) == i.result_type()
    }

    /// Returns whether a type is that of an image or a sampler, whose uses are followed by themselves.
    fn is_object(&self, ty: u32) -> bool {
        self.definitions.get(ty).and_then(|ty| ty.class()) == Some(Class::Object)
    }

    fn atomic_fits(&self, op: Op, ty: Option<u32>, pointer: u32) -> bool {
        let pointee = self.pointee(pointer);
        match op {
            // They are about a flag of another type than their result.
            Op::AtomicFlagTestAndSet | Op::AtomicFlagClear => pointee.is_some(),
            _ => self.are_same(pointee, ty),
        }
    }
}
