//! Touches of memory by single instructions, for a proof that a kernel stays inside its memory.
//!
//! The analysis of [accesses](super) is about the buffers of a launch, and relies on what the kernel's author
//! promises. A proof relies on nothing: it asks for the touches of all memory, in called functions, too. The
//! evaluation is [strict](Evaluation::is_strict).

use std::collections::{BTreeSet, HashMap};

use kiln_spirv::Result;
use kiln_spirv::edit::{
    Access as MemoryOperands, Class, Definitions, Instruction, Location, Section, View,
};
use rspirv::spirv::{Decoration, Op, OpenclStd100Op as Extended};

use super::arithmetic::Arithmetic;
use super::budget::Budget;
use super::eval::{Evaluation, Frame};
use super::facts::Known;
use super::pointers::Pointer;
use super::watch::{Findings, Root, Touch, Undefined, Watch};
use super::{Kind, Value};
use crate::analysis::affine::{Form, Space};
use crate::analysis::vector_access::{VectorAccess, extended};

/// Evaluation of a kernel for its touches.
pub(crate) struct Watcher<'m> {
    evaluation: Evaluation<'m>,
    kernel: u32,
    /// Alignments in bytes that the module declares, by id.
    alignments: HashMap<u32, i128>,
}

impl<'m> Watcher<'m> {
    pub(crate) fn new(definitions: &'m Definitions<'m>, space: &'m Space, kernel: u32) -> Self {
        let mut evaluation = Evaluation::new(definitions, space);
        evaluation.is_strict = true;
        evaluation.watch = Some(Watch::default());
        let annotations = definitions.module().section(Section::Annotations).iter();
        let declared = annotations.filter_map(|i| i.decoration(Decoration::Alignment));
        let declared = declared.filter_map(|(id, bytes)| Some((id, i128::from(bytes.get(0)?))));
        Self { evaluation, kernel, alignments: declared.collect() }
    }

    /// Limits the work of all evaluations.
    pub(crate) fn within(mut self, budget: &'m Budget) -> Self {
        self.evaluation.set_budget(budget);
        self
    }

    /// Sets the sizes of images, by the ids of the parameters that stand for them.
    pub(crate) fn with_image_sizes(mut self, sizes: HashMap<u32, [usize; 3]>) -> Self {
        self.evaluation.image_sizes = sizes;
        self
    }

    /// Drops the scalars that the evaluation does not interpret, such as floating-point numbers.
    pub(crate) fn drop_uninterpreted(&mut self, values: &mut [Value]) {
        self.evaluation.drop_uninterpreted(self.kernel, values);
    }

    /// Returns the touches of a kernel whose arguments have the given values, and its operations whose results
    /// may not be defined.
    ///
    /// # Errors
    ///
    /// Fails like [`analyse`](super::analyse).
    pub(crate) fn watch(&mut self, values: &[Value]) -> Result<Findings> {
        self.evaluation.watch = Some(Watch::default());
        _ = self.evaluation.evaluate(self.kernel, values)?;
        let watch = self.evaluation.watch.take().unwrap_or_default();
        Ok(Findings {
            touches: watch.touches.into_inner(),
            pixels: watch.pixels.into_inner(),
            undefined: watch.undefined.into_inner(),
        })
    }

    /// Returns the size in bytes of a variable.
    pub(crate) fn size_of(&self, variable: u32) -> Option<i128> {
        let pointee = self.evaluation.pointee(variable)?;
        self.evaluation.layouts.size(pointee)
    }

    /// Returns the number of bytes of which the address of a variable is a multiple: the natural alignment of
    /// its type, or the larger one that is declared. A compiler places variables as declared. Fusion declares
    /// arrays of words that hold vectors in this way.
    pub(crate) fn alignment_of(&self, variable: u32) -> i128 {
        let pointee = self.evaluation.pointee(variable);
        let layout = pointee.and_then(|ty| self.evaluation.layouts.get(ty));
        let declared = self.alignments.get(&variable).copied().unwrap_or(1);
        layout.map_or(1, |layout| layout.align).max(declared)
    }
}

impl<'m> Evaluation<'m> {
    /// Records a touch of the memory that a pointer points to.
    pub(super) fn watch(
        &self,
        location: Location,
        pointer: &Known,
        kind: Kind,
        width: Option<i128>,
    ) {
        let Some(watch) = &self.watch else { return };
        let alignment = location.instruction(self.definitions.module());
        let alignment = alignment.map_or(1, |i| self.alignment(&i)).max(1);
        let (root, offset) = match pointer {
            Known::Pointer(Pointer { base, offset }) => (Root::of(base), *offset),
            _ => (Root::Unknown, None),
        };
        watch.touches.borrow_mut().push(Touch {
            location,
            kind,
            root,
            offsets: offset.map(|offset| offset.bounds(self.space)),
            width,
            alignment,
            is_aligned: alignment == 1
                || offset.is_some_and(|offset| offset.is_multiple_of(alignment))
                || self.keeps_alignment(location, alignment),
            note: None,
        });
    }

    /// Returns whether the pointer of an access is a multiple of an alignment away from the start of its memory
    /// because of its types alone, whatever its indexes are.
    fn keeps_alignment(&self, location: Location, alignment: i128) -> bool {
        let i = location.instruction(self.definitions.module());
        let pointer = i.and_then(|i| match i.class()? {
            // A marker accesses nothing.
            Class::Lifetime => None,
            _ => i.pointer().or_else(|| Some(VectorAccess::of(self.definitions, &i)?.pointer)),
        });
        // Addresses wrap, which keeps multiples of powers of two alone.
        let is_power = u64::try_from(alignment).is_ok_and(u64::is_power_of_two);
        is_power && pointer.is_some_and(|id| self.steps_by(id, alignment, &mut BTreeSet::new()))
    }

    /// Returns whether all steps from the start of its memory to a pointer are multiples of a number. `seen` has
    /// the pointers that were visited.
    fn steps_by(&self, pointer: u32, number: i128, seen: &mut BTreeSet<u32>) -> bool {
        if !seen.insert(pointer) {
            return true;
        }
        let Some(i) = self.definitions.get(pointer) else { return false };
        let keeps_address = i.row().is_some_and(|row| row.address.is_kept());
        match i.view() {
            View::Variable { .. } => true,
            View::Unary { value } if keeps_address => self.steps_by(value, number, seen),
            View::Select { yes, no, .. } => {
                [yes, no].into_iter().all(|from| self.steps_by(from, number, seen))
            }
            View::Phi { pairs } => pairs.iter().all(|(from, _)| self.steps_by(from, number, seen)),
            View::PtrChain { base, indexes, .. } if indexes.is_empty() => {
                let stride = self.pointee(base).and_then(|ty| self.layouts.size(ty));
                stride.is_some_and(|stride| stride % number == 0)
                    && self.steps_by(base, number, seen)
            }
            // A parameter of another function than the kernel's may point anywhere into its memory.
            _ => i.op() == Some(Op::FunctionParameter) && self.is_of_kernel(pointer),
        }
    }

    /// Returns whether an id is a parameter of a function that no other function calls.
    fn is_of_kernel(&self, parameter: u32) -> bool {
        let functions = &self.definitions.module().functions;
        let has = |id: u32| {
            let own = functions.iter().find(|function| function.id == id);
            own.is_some_and(|own| own.body.iter().any(|i| i.result() == Some(parameter)))
        };
        let bodies = functions.iter().flat_map(|function| function.body.iter());
        let calls = bodies.filter(|i| i.op() == Some(Op::FunctionCall));
        !calls.filter_map(|call| call.called()).any(has)
    }

    /// Records that a pointer escapes.
    pub(super) fn watch_escape(&self, location: Location, pointer: &Known, note: &'static str) {
        self.watch(location, pointer, Kind::Escape, None);
        let all = self.watch.as_ref().map(|watch| watch.touches.borrow_mut());
        if let Some(mut all) = all
            && let Some(last) = all.last_mut().filter(|last| last.location == location)
        {
            last.note = Some(note);
        }
    }

    /// Records an operation whose result may not be defined.
    pub(super) fn watch_operation(
        &self,
        frame: &Frame<'m>,
        location: Location,
        op: Op,
        i: &Instruction<'_>,
    ) {
        let Some(watch) = &self.watch else { return };
        let found = match i.view() {
            View::Binary { .. } if i.class() == Some(Class::Division) => {
                let is_signed = !matches!(op, Op::UDiv | Op::UMod);
                let is_defined = self
                    .all_parts(frame, i.both(), |a, b, width| self.divides(a, b, width, is_signed));
                (!is_defined).then_some(Undefined::Division)
            }
            View::Binary { .. } if i.class() == Some(Class::Shift) => {
                let is_defined = self.all_parts(frame, i.both(), |_, amount, width| {
                    let (low, high) = amount.bounds(self.space);
                    0 <= low && high < i128::from(width)
                });
                (!is_defined).then_some(Undefined::Shift)
            }
            View::ExtractDynamic { vector, index } | View::InsertDynamic { vector, index, .. } => {
                let ty = self.definitions.type_of(vector).and_then(|ty| ty.vector());
                let index = self.index(index, &|id| self.value(frame, id));
                let is_defined = ty.zip(index).is_some_and(|((_, count), index)| {
                    let (low, high) = index.bounds(self.space);
                    0 <= low && high < i128::from(count)
                });
                (!is_defined).then_some(Undefined::Component)
            }
            View::ExtInst { operands, .. } => {
                let function = extended(self.definitions, i);
                let is_signed = function == Some(Extended::s_clamp);
                let is_clamp = is_signed || function == Some(Extended::u_clamp);
                let limits = operands.get(1).zip(operands.get(2));
                let is_defined = !is_clamp
                    || self.all_parts(frame, limits, |low, high, width| {
                        self.are_ordered(low, high, width, is_signed)
                    });
                (!is_defined).then_some(Undefined::Limits)
            }
            _ => (op == Op::Unreachable).then_some(Undefined::Unreachable),
        };
        watch.undefined.borrow_mut().extend(found.map(|found| (location, found)));
    }

    /// Returns whether a condition holds for two operands of an operation, or for all of their components.
    fn all_parts(
        &self,
        frame: &Frame<'m>,
        operands: Option<(u32, u32)>,
        holds: impl Fn(&Form, &Form, u32) -> bool,
    ) -> bool {
        let width = operands.and_then(|(first, _)| self.part_width_of(first));
        let Some(((a, b), width)) = operands.zip(width) else { return false };
        let unknown = Known::Integer(Arithmetic { space: self.space, width }.unknown());
        match (self.value(frame, a), self.value(frame, b)) {
            (Known::Integer(a), Known::Integer(b)) => holds(&a, &b, width),
            (a, Known::Parts(parts)) => (0..parts.len()).all(|at| {
                let a = match &a {
                    Known::Parts(all) => all.get(at).cloned(),
                    _ => None,
                };
                match (a.unwrap_or_else(|| unknown.clone()), &parts[at]) {
                    (Known::Integer(a), Known::Integer(b)) => holds(&a, b, width),
                    _ => false,
                }
            }),
            _ => false,
        }
    }

    /// Returns whether a quotient is defined.
    fn divides(&self, a: &Form, b: &Form, width: u32, is_signed: bool) -> bool {
        let arithmetic = Arithmetic { space: self.space, width };
        let read = |form: &Form| {
            if is_signed { arithmetic.signed(form) } else { arithmetic.unsigned(form) }
        };
        let ((low, high), (least, _)) = (read(b).bounds(self.space), read(a).bounds(self.space));
        let may_overflow =
            is_signed && low <= -1 && high >= -1 && least == -(1_i128 << (width - 1));
        (low > 0 || high < 0) && !may_overflow
    }

    /// Returns whether a number is at most another one.
    fn are_ordered(&self, low: &Form, high: &Form, width: u32, is_signed: bool) -> bool {
        let arithmetic = Arithmetic { space: self.space, width };
        let read = |form: &Form| {
            if is_signed { arithmetic.signed(form) } else { arithmetic.unsigned(form) }
        };
        let (low, high) = (read(low), read(high));
        let difference =
            high.minus(&low, self.space).map(|difference| difference.bounds(self.space));
        difference.is_some_and(|(least, _)| least >= 0)
            || low.bounds(self.space).1 <= high.bounds(self.space).0
    }

    /// Returns the alignment in bytes that an instruction requires of the address it accesses.
    fn alignment(&self, i: &Instruction<'_>) -> i128 {
        // No address is a multiple of zero.
        let declared = |access: MemoryOperands<'_>| {
            access.alignment().filter(|&bytes| bytes > 0).map(i128::from)
        };
        let natural = |pointer: u32| {
            let layout = self.pointee(pointer).and_then(|ty| self.layouts.get(ty));
            layout.map_or(1, |layout| layout.align)
        };
        match i.view() {
            View::Load { pointer, access } | View::Store { pointer, access, .. } => {
                declared(access).unwrap_or_else(|| natural(pointer))
            }
            View::CopyMemory { target, source, access, source_access } => {
                let declared = [access, source_access].map(|access| declared(access).unwrap_or(1));
                let natural = natural(target).max(natural(source));
                declared.into_iter().fold(natural, i128::max)
            }
            View::CopyMemorySized { access, source_access, .. } => {
                let declared = [access, source_access].map(|access| declared(access).unwrap_or(1));
                declared.into_iter().fold(1, i128::max)
            }
            View::ExtInst { operands, .. } => match VectorAccess::of(self.definitions, i) {
                Some(VectorAccess { span: Some(span), .. }) => {
                    let is_whole = matches!(
                        extended(self.definitions, i),
                        Some(
                            Extended::vloada_halfn
                                | Extended::vstorea_halfn
                                | Extended::vstorea_halfn_r
                        )
                    );
                    if is_whole { span.size } else { span.size / i128::from(span.count).max(1) }
                }
                Some(_) => 1,
                None if extended(self.definitions, i).is_some() => {
                    operands.iter().skip(1).take(2).map(natural).fold(1, i128::max)
                }
                None => 1,
            },
            View::Atomic { pointer, .. }
            | View::AtomicUpdate { pointer, .. }
            | View::AtomicCompare { pointer, .. } => natural(pointer),
            _ => 1,
        }
    }
}
