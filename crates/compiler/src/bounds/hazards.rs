//! Hazards of a kernel besides accesses outside of its memory: code whose behaviour SPIR-V or the compilers of
//! drivers leave undefined, and that a guarded variant has to mend.
//!
//! A proof about indexes is worth nothing if a compiler may give a value twice, and differently. LLVM does that
//! with values that are undefined: those of `OpUndef`, and those of variables that were not written. A division
//! by zero, or a shift by too many bits, makes such a value, too. A value that is loaded from memory which
//! other work-items write may be loaded again.
//!
//! | hazard | mend |
//! | --- | --- |
//! | [`Division`](Hazard::Division), [`Shift`](Hazard::Shift), [`VectorIndex`](Hazard::VectorIndex) | zero for a division that is not defined; the amount or the index modulo the size |
//! | [`Limits`](Hazard::Limits) | the upper limit, where it is below the lower one |
//! | [`Undefined`](Hazard::Undefined) | zero in place of the undefined value; variables start as zeros; conversions to integers are saturated; calculations lose their claims not to overflow; loads from shared memory are done once |
//! | [`Shared`](Hazard::Shared) | a load that is done once: a volatile one, or that of a function or a pixel, whose result goes through a volatile variable |
//! | [`Unreachable`](Hazard::Unreachable) | a return |
//! | [`Lifetime`](Hazard::Lifetime) | variables live as long as their function runs |
//! | [`Barrier`](Hazard::Barrier) | none: the kernel is refused |
//!
//! In a checked program, most values that are not defined are [defined](super::define) before the analysis. What is left
//! comes from local memory, and from what claims not to wrap or to be finite.
//!
//! A data race between work-items gives unspecified values, and nothing worse: the host never reads memory
//! while a launch writes it, and each value that an address depends on is loaded once.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{
    Class, Definitions, Effect, Instruction, Location, Meaning, Section, View, is_atomic, located,
    operand_ids,
};
use rspirv::spirv::{Decoration, FPFastMathMode, Op, OpenclStd100Op as Extended, StorageClass};

use super::claims;
use crate::analysis::declaration::by_value;
use crate::analysis::vector_access::{VectorAccess, extended};
use crate::analysis::{images, lifetimes, uniformity};

/// Behaviour that is not defined, or not the same in all compilers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// A divisor may be zero, or a quotient too large.
    Division,
    /// A value may be shifted by as many bits as it has, or more.
    Shift,
    /// A value may be clamped to limits of which the lower one is above the upper one.
    Limits,
    /// The index of a vector's component may be too large.
    VectorIndex,
    /// An address or a branch may depend on a value that is not defined.
    Undefined,
    /// An address or a comparison of integers may depend on memory that other work-items write.
    Shared,
    /// Code may run that its compiler was told is never reached.
    Unreachable,
    /// A variable may be used after the end of its lifetime.
    Lifetime,
    /// The work-items of a work-group may not all reach an instruction that they have to reach together.
    Barrier,
}

impl Hazard {
    /// Returns the hazard in words that follow the name of the kernel.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Division => "may divide by zero, or with a result that is too large",
            Self::Shift => "may shift by more bits than a value has",
            Self::Limits => "may clamp a value to limits in the wrong order",
            Self::VectorIndex => "may index a vector beyond its last component",
            Self::Undefined => "may use a value that was never set in an address or a branch",
            Self::Shared => {
                "may use a value that other work-items change in an address or a comparison"
            }
            Self::Unreachable => "may reach code that is marked as never reached",
            Self::Lifetime => "may use a variable after the end of its lifetime",
            Self::Barrier => {
                "has a barrier, or a function of the work-group, that some work-items of a work-group may not \
                 reach"
            }
        }
    }
}

/// Returns the hazards of a kernel that do not depend on its arguments, by location. `written` has the variables
/// that are written before they are read, by all work-items that read them.
pub(super) fn hazards(
    definitions: &Definitions<'_>,
    kernel: u32,
    written: HashSet<u32>,
) -> BTreeSet<(Location, Hazard)> {
    let module = definitions.module();
    let mut found = BTreeSet::new();
    let mut taint = Taint::of(definitions);
    taint.written = with_parameters(definitions, kernel, written);
    taint.initialised = with_parameters(definitions, kernel, initialised(definitions, kernel));
    taint.close();
    for (stream, known) in (Section::COUNT as u32..).zip(&module.functions) {
        for (location, i) in located((stream, &known.body)) {
            for hazard in taint.hazards(&i) {
                found.insert((location, hazard));
            }
        }
    }
    let divergent = uniformity::divergent_collectives(definitions).into_iter();
    found.extend(divergent.map(|location| (location, Hazard::Barrier)));
    let broken = lifetimes::broken(definitions).into_iter();
    found.extend(broken.map(|location| (location, Hazard::Lifetime)));
    found
}

/// Returns the ids of floating-point numbers that claim to be neither infinite nor NaN. They are not defined
/// where they are.
fn finite_claims<'a>(definitions: &'a Definitions<'_>) -> impl Iterator<Item = u32> + 'a {
    let all = definitions.module().section(Section::Annotations).iter();
    all.filter(claims_to_be_finite).filter_map(|i| i.target())
}

/// Returns whether a decoration claims that a number is neither infinite nor NaN.
pub(super) fn claims_to_be_finite(i: &Instruction<'_>) -> bool {
    let claims = FPFastMathMode::NOT_NAN | FPFastMathMode::NOT_INF | FPFastMathMode::FAST;
    let mode = i.decoration(Decoration::FPFastMathMode).and_then(|(_, mode)| mode.get(0));
    mode.is_some_and(|mask| mask & claims.bits() != 0)
}

/// Returns the variables of functions that have an initial value, and the kernel's structs that are passed by value.
fn initialised(definitions: &Definitions<'_>, kernel: u32) -> HashSet<u32> {
    let module = definitions.module();
    let all = module.functions.iter().flat_map(|function| function.body.iter());
    let has_value =
        |i: &Instruction<'_>| matches!(i.view(), View::Variable { initial: Some(_), .. });
    let variables = all.filter(has_value).filter_map(|i| i.result());
    let parameters = claims::parameters(definitions);
    let of_kernel = |id: &u32| parameters.get(id).is_some_and(|(function, _)| *function == kernel);
    variables.chain(by_value(module).into_iter().filter(of_kernel)).collect()
}

/// Adds to a set of variables the parameters of functions that only pointers to these variables are passed to.
fn with_parameters(
    definitions: &Definitions<'_>,
    kernel: u32,
    mut written: HashSet<u32>,
) -> HashSet<u32> {
    if written.is_empty() {
        return written;
    }
    let mut passed = HashMap::<(u32, usize), Vec<u32>>::new();
    for call in claims::calls(definitions) {
        let called = call.called().unwrap_or_default();
        for (at, argument) in call.arguments().enumerate() {
            let base = claims::base(definitions, argument).map_or(argument, |(base, _)| base);
            passed.entry((called, at)).or_default().push(base);
        }
    }
    let parameters = claims::parameters(definitions);
    loop {
        let before = written.len();
        for (&id, place) in parameters.iter().filter(|(_, (function, _))| *function != kernel) {
            let all = passed.get(place);
            if all.is_some_and(|all| all.iter().all(|base| written.contains(base))) {
                written.insert(id);
            }
        }
        if before == written.len() {
            return written;
        }
    }
}

/// Maximum number of insertions and shuffles that a component of a vector is followed through. Code that is never
/// reached may build up a vector from itself.
const MAX_STEPS: usize = 64;

/// Maximum number of coordinates of a pixel.
const MAX_COORDINATES: u32 = 3;

/// Values that may not be the same wherever they are used.
struct Taint<'a, 'm> {
    definitions: &'a Definitions<'m>,
    /// Ids of values that may not be defined.
    undefined: HashSet<u32>,
    /// Ids of values that depend on memory which other work-items may write.
    shared: HashSet<u32>,
    /// Ids of conversions whose results are limited to the values that exist.
    saturated: HashSet<u32>,
    /// Ids of variables that are written before they are read, and of parameters that point to them.
    written: HashSet<u32>,
    /// Whether a value that is not defined may be in memory.
    is_stored: bool,
    /// Whether a value that depends on memory which other work-items may write may be in any private variable.
    /// [`shared`](Self::shared) has the variables that such a value was stored to directly.
    is_shared_stored: bool,
    /// Parameters of each function, by the function's id.
    parameters: HashMap<u32, Vec<u32>>,
    /// Ids of variables that have an initial value, and of parameters that point to them or are copies of them.
    initialised: HashSet<u32>,
}

impl<'a, 'm> Taint<'a, 'm> {
    fn of(definitions: &'a Definitions<'m>) -> Self {
        let module = definitions.module();
        let parameters = module.functions.iter().map(|function| {
            let all = function.body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
            (function.id, all.filter_map(|i| i.result()).collect())
        });
        let globals = module.section(Section::Globals).iter();
        let undefined = globals.filter(|i| i.op() == Some(Op::Undef));
        let decorated = |decoration: Decoration| {
            let all = module.section(Section::Annotations).iter();
            all.filter_map(move |i| i.decoration(decoration)).map(|(id, _)| id)
        };
        // Sums that claim not to wrap are not defined where they do.
        let wrapping =
            decorated(Decoration::NoSignedWrap).chain(decorated(Decoration::NoUnsignedWrap));
        Self {
            definitions,
            undefined: undefined
                .filter_map(|i| i.result())
                .chain(wrapping)
                .chain(finite_claims(definitions))
                .collect(),
            saturated: decorated(Decoration::SaturatedConversion).collect(),
            shared: HashSet::new(),
            written: HashSet::new(),
            is_stored: false,
            is_shared_stored: false,
            parameters: parameters.collect(),
            initialised: HashSet::new(),
        }
    }

    /// Adds all values that depend on those known.
    fn close(&mut self) {
        loop {
            let size = |taint: &Self| {
                let stored = [taint.is_stored, taint.is_shared_stored];
                (taint.undefined.len(), taint.shared.len(), stored)
            };
            let before = size(self);
            for function in &self.definitions.module().functions {
                for i in function.body.iter() {
                    self.step(function.id, &i);
                }
            }
            if before == size(self) {
                return;
            }
        }
    }

    fn step(&mut self, function: u32, i: &Instruction<'m>) {
        let Some(op) = i.op() else { return };
        let view = i.view();
        match op {
            Op::FunctionCall => {
                let called = i.called().and_then(|called| self.parameters.get(&called)).cloned();
                for (parameter, argument) in called.into_iter().flatten().zip(i.arguments()) {
                    self.pass(argument, parameter);
                }
                // The result of the function is noted under the function's id.
                if let Some((called, result)) = i.called().zip(i.result()) {
                    self.pass(called, result);
                }
            }
            Op::ReturnValue => {
                if let View::Return { value } = view {
                    self.pass(value, function);
                }
            }
            Op::Store => {
                if let View::Store { pointer, value, .. } = view {
                    self.store(pointer, value);
                }
            }
            Op::CopyMemory | Op::CopyMemorySized => {
                if let View::CopyMemory { target, source, .. }
                | View::CopyMemorySized { target, source, .. } = view
                {
                    self.copy(target, source);
                }
            }
            Op::Load => self.load(i),
            Op::Undef | Op::PtrDiff | Op::PtrEqual | Op::PtrNotEqual | Op::ConvertPtrToU => {
                // An address outside of its memory is not defined if its calculation claims to stay inside.
                self.undefined.extend(i.result());
            }
            Op::ConvertFToU | Op::ConvertFToS
                if i.result().is_some_and(|id| !self.saturated.contains(&id)) =>
            {
                self.undefined.extend(i.result());
            }
            // A vector is built up from an undefined one. Which components are set is not followed, unless all
            // are.
            Op::CompositeInsert => {
                if let View::Insert { part, whole, .. } = view {
                    let others = Some(whole).filter(|_| !self.is_whole(i));
                    self.depend(i, [part].into_iter().chain(others));
                }
            }
            Op::VectorShuffle => {
                let components = self.shuffled(i);
                self.depend_on_components(i, components);
            }
            Op::CompositeExtract if self.extracted(i).is_some() => {
                let component = self.extracted(i).map(|(of, at)| self.component(of, at));
                self.depend_on_components(i, component.into_iter().collect());
            }
            Op::ExtInst => self.called(i),
            Op::ImageWrite => {
                if let View::ImageWrite { texel, .. } = view {
                    self.is_stored |= self.undefined.contains(&texel);
                }
            }
            // The pixels of an image that is only read do not change, and were written.
            Op::ImageRead | Op::ImageSampleExplicitLod => self.read_pixel(i),
            // An atomic operation is done once. What it stores may not be defined.
            _ if is_atomic(op) => {
                let operands = self.operands(i);
                if let Some((&pointer, values)) = operands.split_first() {
                    values.iter().for_each(|&value| self.store(pointer, value));
                }
            }
            _ => match Meaning::of(op).map(|meaning| meaning.effect) {
                Some(
                    Effect::Structure
                    | Effect::Calculation
                    | Effect::Address
                    | Effect::Image
                    | Effect::Group
                    | Effect::Fence,
                ) => {
                    let operands = self.operands(i);
                    self.depend(i, operands.into_iter());
                }
                Some(Effect::Memory | Effect::Atomic | Effect::Pixel | Effect::Extended) | None => {
                    self.is_stored = true;
                    self.undefined.extend(i.result());
                    self.shared.extend(i.result());
                }
            },
        }
    }

    /// Adds the values that depend on those known through a call of a function of OpenCL.
    fn called(&mut self, i: &Instruction<'m>) {
        let Some(access) = VectorAccess::of(self.definitions, i) else {
            return self.calculate(i);
        };
        match access.stored {
            Some(value) => self.store(access.pointer, value),
            None => self.load(i),
        }
    }

    /// Adds the results of a calculation. Some functions write a second result through a pointer.
    fn calculate(&mut self, i: &Instruction<'m>) {
        let operands = self.operands(i);
        let is_pointer = |id: &u32| {
            let ty = self.definitions.type_of(*id);
            ty.is_some_and(|ty| ty.op() == Some(Op::TypePointer))
        };
        let (pointers, values): (Vec<_>, Vec<_>) = operands.iter().partition(|id| is_pointer(id));
        for pointer in pointers {
            values.iter().for_each(|&value| self.store(pointer, value));
        }
        self.depend(i, operands.into_iter());
    }

    /// Returns the ids of an instruction's operands.
    fn operands(&self, i: &Instruction<'m>) -> Vec<u32> {
        let mut operands = Vec::new();
        let known = operand_ids(i, self.definitions, |id| operands.push(id));
        debug_assert!(known.is_ok(), "instructions of prepared kernels are known");
        operands
    }

    fn pass(&mut self, from: u32, to: u32) {
        if self.undefined.contains(&from) {
            self.undefined.insert(to);
        }
        if self.shared.contains(&from) {
            self.shared.insert(to);
        }
    }

    fn depend(&mut self, i: &Instruction<'m>, operands: impl Iterator<Item = u32>) {
        let Some(result) = i.result() else { return };
        for operand in operands {
            self.pass(operand, result);
        }
    }

    /// Notes that a value is stored.
    fn store(&mut self, pointer: u32, value: u32) {
        self.is_stored |= self.undefined.contains(&value);
        if self.shared.contains(&value) {
            self.store_shared(pointer);
        }
    }

    /// Notes that memory is copied.
    fn copy(&mut self, to: u32, from: u32) {
        let class = self.definitions.type_of(from).and_then(|ty| ty.storage_class());
        let (is_shared, is_undefined) = match class.and_then(StorageClass::from_u32) {
            Some(StorageClass::Function) => {
                let is_shared = self.is_shared_stored || self.is_shared_variable(from);
                (is_shared, !self.is_initialised(from))
            }
            Some(StorageClass::Input | StorageClass::UniformConstant) => (false, false),
            Some(StorageClass::CrossWorkgroup) => (true, false),
            _ => (true, true),
        };
        if is_shared {
            self.store_shared(to);
        }
        self.is_stored |= is_undefined && !self.is_written(from);
    }

    /// Notes that a value which depends on memory that other work-items may write is stored.
    fn store_shared(&mut self, pointer: u32) {
        match claims::base(self.definitions, pointer) {
            // Memory that other work-items see counts as shared anyway.
            _ if !self.is_private(pointer) => {}
            Some((id, i)) if i.op() == Some(Op::Variable) => _ = self.shared.insert(id),
            _ => self.is_shared_stored = true,
        }
    }

    /// Returns whether a pointer leads to memory of the work-item alone. A generic one may lead there.
    fn is_private(&self, pointer: u32) -> bool {
        let class = self.definitions.type_of(pointer).and_then(|ty| ty.storage_class());
        let class = class.and_then(StorageClass::from_u32);
        matches!(class, Some(StorageClass::Function | StorageClass::Generic))
    }

    /// Returns whether a pointer leads to a variable that a value from shared memory was stored to.
    fn is_shared_variable(&self, pointer: u32) -> bool {
        let base = claims::base(self.definitions, pointer);
        base.is_none_or(|(id, _)| self.shared.contains(&id))
    }

    fn load(&mut self, i: &Instruction<'m>) {
        let pointer = match i.view() {
            View::Load { access, .. } if access.is_volatile() => return,
            View::Load { pointer, .. } => Some(pointer),
            _ => VectorAccess::of(self.definitions, i).map(|access| access.pointer),
        };
        let Some((result, pointer)) = i.result().zip(pointer) else { return };
        let class = self.definitions.type_of(pointer).and_then(|ty| ty.storage_class());
        match class.and_then(StorageClass::from_u32) {
            Some(StorageClass::Input | StorageClass::UniformConstant) => {}
            Some(StorageClass::Function | StorageClass::Workgroup) if self.is_written(pointer) => {
                if self.is_stored {
                    self.undefined.insert(result);
                }
            }
            Some(StorageClass::Function) => {
                // A struct that is passed by value is set before the kernel runs.
                if self.is_stored || !self.is_initialised(pointer) {
                    self.undefined.insert(result);
                }
                if self.is_shared_stored || self.is_shared_variable(pointer) {
                    self.shared.insert(result);
                }
            }
            Some(StorageClass::Workgroup | StorageClass::Generic) => {
                self.undefined.insert(result);
                self.shared.insert(result);
            }
            _ => {
                if self.is_stored {
                    self.undefined.insert(result);
                }
                self.shared.insert(result);
            }
        }
    }

    fn read_pixel(&mut self, i: &Instruction<'m>) {
        let Some(result) = i.result().filter(|_| images::reads_changing(self.definitions, i))
        else {
            return;
        };
        if self.is_stored {
            self.undefined.insert(result);
        }
        self.shared.insert(result);
    }

    /// Returns whether a pointer is to a variable that is written before it is read.
    fn is_written(&self, pointer: u32) -> bool {
        let base = claims::base(self.definitions, pointer);
        base.is_some_and(|(id, _)| self.written.contains(&id))
    }

    /// Returns whether a pointer is to a variable with an initial value, or to a copy of one.
    fn is_initialised(&self, pointer: u32) -> bool {
        let base = claims::base(self.definitions, pointer);
        base.is_some_and(|(id, _)| self.initialised.contains(&id))
    }

    /// Returns the vector and the number of the component that an instruction takes.
    fn extracted(&self, i: &Instruction<'m>) -> Option<(u32, u32)> {
        let View::Extract { whole, path } = i.view() else { return None };
        self.definitions.type_of(whole)?.vector()?;
        Some((whole, path.single()?))
    }

    /// Returns the insertions that a vector was built up with, from the last one.
    fn insertions(&self, last: Option<Instruction<'m>>) -> impl Iterator<Item = Instruction<'m>> {
        let is_insertion = |i: &Instruction<'_>| i.op() == Some(Op::CompositeInsert);
        let before = move |i: &Instruction<'m>| {
            let View::Insert { whole, .. } = i.view() else { return None };
            self.definitions.get(whole).filter(is_insertion)
        };
        std::iter::successors(last.filter(is_insertion), before).take(MAX_STEPS)
    }

    /// Returns whether an insertion completes a vector: the ones before it set all other components.
    fn is_whole(&self, i: &Instruction<'m>) -> bool {
        let count = i.result_type().and_then(|ty| self.definitions.get(ty));
        let count = count.and_then(|ty| ty.vector()).map(|(_, count)| count);
        let Some(count) = count.filter(|&count| count <= 16) else { return false };
        let mut set = 0_u32;
        for insertion in self.insertions(Some(*i)) {
            let View::Insert { path, .. } = insertion.view() else { return false };
            let Some(at) = path.get(0).filter(|&at| at < count) else { return false };
            set |= 1 << at;
            if set == (1 << count) - 1 {
                return true;
            }
        }
        false
    }

    /// Returns the value that a component of a vector comes from: a component that was inserted, or a vector that is
    /// not followed further. Returns `None` for a component that a shuffle leaves undefined.
    fn component(&self, mut vector: u32, mut at: u32) -> Option<u32> {
        for _ in 0..MAX_STEPS {
            let Some(i) = self.definitions.get(vector) else { return Some(vector) };
            match i.view() {
                View::Insert { part, whole, path } if path.len() < 2 => {
                    if path.single() == Some(at) {
                        return Some(part);
                    }
                    vector = whole;
                }
                View::Shuffle { first, second, lanes } => {
                    let count = |id| Some(self.definitions.type_of(id)?.vector()?.1);
                    let (Some(count), Some(others)) = (count(first), count(second)) else { break };
                    let from = lanes.get(at as usize)?;
                    if from >= count.saturating_add(others) {
                        return None;
                    }
                    (vector, at) =
                        if from < count { (first, from) } else { (second, from - count) };
                }
                _ => break,
            }
        }
        Some(vector)
    }

    /// Notes that a result depends on components of vectors; `None` stands for one that is not defined.
    fn depend_on_components(&mut self, i: &Instruction<'m>, components: Vec<Option<u32>>) {
        if components.contains(&None) {
            self.undefined.extend(i.result());
        }
        self.depend(i, components.into_iter().flatten());
    }

    /// Returns the components of a vector that an instruction makes of those of others.
    fn shuffled(&self, i: &Instruction<'m>) -> Vec<Option<u32>> {
        let (Some(result), View::Shuffle { lanes, .. }) = (i.result(), i.view()) else {
            return Vec::new();
        };
        (0..lanes.len() as u32).map(|at| self.component(result, at)).collect()
    }

    /// Returns the hazards of the coordinates of a pixel.
    fn coordinate_hazards(&self, image: Option<u32>, coordinate: u32) -> Vec<Hazard> {
        let ty = image.and_then(|image| images::image_type(self.definitions, image));
        let count = ty.map_or(MAX_COORDINATES, |ty| ty.coordinates() as u32);
        let components = (0..count).map(|at| self.component(coordinate, at));
        components
            .flat_map(|id| id.map_or(vec![Hazard::Undefined], |id| self.of_value(id)))
            .collect()
    }

    /// Returns the hazards of an address or a comparison that depends on a value.
    fn of_value(&self, id: u32) -> Vec<Hazard> {
        let undefined = self.undefined.contains(&id).then_some(Hazard::Undefined);
        undefined.into_iter().chain(self.shared.contains(&id).then_some(Hazard::Shared)).collect()
    }

    /// Returns whether the result of an instruction is a pointer.
    fn is_pointer(&self, i: &Instruction<'m>) -> bool {
        let ty = i.result_type().and_then(|ty| self.definitions.get(ty));
        ty.is_some_and(|ty| ty.op() == Some(Op::TypePointer))
    }

    /// Returns the hazards of an instruction, given the values that it uses.
    fn hazards(&self, i: &Instruction<'m>) -> Vec<Hazard> {
        let of_values = |values: &mut dyn Iterator<Item = u32>| -> Vec<Hazard> {
            values.flat_map(|id| self.of_value(id)).collect()
        };
        match i.view() {
            View::Chain { .. } | View::PtrChain { .. } => {
                let indexes = i.chain().map(|(_, indexes)| indexes);
                of_values(&mut indexes.into_iter().flatten())
            }
            // The compiler and the check of a guarded variant must choose the same pointer.
            View::Select { condition, .. } if self.is_pointer(i) => {
                of_values(&mut [condition].into_iter())
            }
            View::BranchIf { condition: value, .. } | View::Switch { selector: value, .. } => {
                let is_undefined = self.undefined.contains(&value);
                is_undefined.then_some(Hazard::Undefined).into_iter().collect()
            }
            View::Binary { left, right } if i.class().is_some_and(Class::is_comparison) => {
                let mut found = of_values(&mut [left, right].into_iter());
                found.retain(|hazard| *hazard == Hazard::Shared);
                found
            }
            View::ExtInst { operands, .. } => match VectorAccess::of(self.definitions, i) {
                Some(access) => of_values(&mut [access.offset].into_iter()),
                None => {
                    let compares = matches!(
                        extended(self.definitions, i),
                        Some(
                            Extended::s_min
                                | Extended::u_min
                                | Extended::s_max
                                | Extended::u_max
                                | Extended::s_clamp
                                | Extended::u_clamp
                        )
                    );
                    let mut found = of_values(&mut operands.iter());
                    found.retain(|hazard| compares && *hazard == Hazard::Shared);
                    found
                }
            },
            View::CopyMemorySized { size, .. } => of_values(&mut [size].into_iter()),
            View::ImageRead { image, coordinate, .. }
            | View::ImageWrite { image, coordinate, .. } => {
                self.coordinate_hazards(Some(image), coordinate)
            }
            View::ImageSample { image, coordinate, .. } => {
                let combined = self.definitions.get(image).map(|i| i.view());
                let image = match combined {
                    Some(View::SampledImage { image, .. }) => Some(image),
                    _ => None,
                };
                self.coordinate_hazards(image, coordinate)
            }
            _ => Vec::new(),
        }
    }
}
