//! Operations of a kernel whose exact results OpenCL does not specify.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Class, Definitions, Instruction, Section};
use rspirv::spirv::{Decoration, FPFastMathMode, Op, OpenclStd100Op as Extended};

/// Kinds of operations in a slot whose exact results OpenCL does not specify.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operations {
    /// Whether the execution mode forbids contraction.
    pub(crate) forbids: bool,
    pub(crate) multiplies: bool,
    pub(crate) adds: bool,
    /// Whether the slot calls library functions that both multiply and add.
    pub(crate) fuses: bool,
    /// Whether the slot calculates estimates, for which processors have several instructions.
    pub(crate) estimates: bool,
    /// Whether the slot adds the components of vectors of double precision, or their squares.
    pub(crate) adds_vectors: bool,
    pub(crate) sines: bool,
    pub(crate) cosines: bool,
    /// Whether a loop adds up numbers in an order that depends on the nd-range and on the compiler.
    pub(crate) long_sums: bool,
}

impl Operations {
    /// Collects the operations of a function and of the functions that it calls. Operations with a decoration
    /// that allows free transformation do not count: their source does not ask for certain bytes.
    pub(crate) fn in_function(definitions: &Definitions<'_>, function: u32) -> Self {
        let module = definitions.module();
        let annotations = module.section(Section::Annotations).iter();
        let modes = annotations.filter_map(|i| i.decoration(Decoration::FPFastMathMode));
        let free = modes.filter(|(_, mode)| {
            let free = FPFastMathMode::FAST | FPFastMathMode::ALLOW_CONTRACT;
            mode.get(0).is_some_and(|mode| mode & free.bits() != 0)
        });
        let free: HashSet<_> = free.map(|(id, _)| id).collect();
        let functions: HashMap<_, _> = module.functions.iter().map(|f| (f.id, f)).collect();
        let mut found = Self::default();
        let (mut seen, mut pending) = (HashSet::from([function]), vec![function]);
        while let Some(id) = pending.pop() {
            let body = functions.get(&id).into_iter().flat_map(|function| function.body.iter());
            for i in body.filter(|i| i.result().is_none_or(|id| !free.contains(&id))) {
                found.adds_vectors |= adds_vectors(&i, definitions);
                match i.class() {
                    Some(Class::FloatProduct) => found.multiplies = true,
                    Some(Class::FloatSum) => found.adds = true,
                    _ => {}
                }
                found.add(&i);
                pending.extend(i.called().filter(|&id| seen.insert(id)));
            }
        }
        found
    }

    fn add(&mut self, function: &Instruction<'_>) {
        let Some(known) = extended(function) else { return };
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

    /// Returns whether a compiler of [`Target::separate_functions`](crate::plan::Target::separate_functions) may
    /// calculate other values for some of the operations if they are in another function.
    pub(crate) fn depend_on_function(self) -> bool {
        self.estimates || self.adds_vectors || self.sines || self.cosines
    }

    /// Returns whether such a compiler may calculate other values for some of the operations in another nd-range, or
    /// where a function is called several times.
    pub(crate) fn depend_on_range(self) -> bool {
        self.estimates || self.adds_vectors || self.long_sums
    }

    /// Returns whether a driver may contract some of the operations with each other.
    pub(crate) fn is_contracted(self) -> bool {
        !self.forbids && self.multiplies && self.adds
    }
}

/// Returns the function that an instruction calls, if its set is that of OpenCL.
fn extended(i: &Instruction<'_>) -> Option<Extended> {
    let (_, function) = i.extended()?;
    Extended::from_u32(function)
}

/// Returns whether an instruction adds the components of a vector of double precision, or their squares.
fn adds_vectors(i: &Instruction<'_>, definitions: &Definitions<'_>) -> bool {
    let adds = match i.op() {
        Some(Op::Dot) => true,
        _ => {
            matches!(extended(i), Some(Extended::distance | Extended::length | Extended::normalize))
        }
    };
    let component = |ty: Instruction<'_>| match ty.vector() {
        Some((component, _)) => definitions.get(component)?.width(),
        None => ty.width(),
    };
    let ty = i.result_type().filter(|_| adds).and_then(|ty| definitions.get(ty));
    ty.and_then(component) == Some(64)
}
