//! Shadows of pointers: which pointers need one, and where it comes from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kiln_spirv::Result;
use kiln_spirv::edit::{Definitions, Instruction, Location, Section, View, located};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use super::super::kernel::{Kernel, ParameterMemory};
use super::super::refusal::{at_line, refuse};
use super::super::report::Report;
use crate::analysis::access::Layouts;
use crate::analysis::images;
use crate::analysis::vector_access::{VectorAccess, extended};

/// Pointers that need a shadow, and the accesses that are guarded.
pub(super) struct Shadows {
    /// Ids of the pointers.
    pub(super) pointers: BTreeSet<u32>,
    /// Accesses that are guarded, each with its pointers.
    pub(super) guarded: BTreeMap<Location, Vec<u32>>,
    /// Accesses to pixels that are guarded.
    pub(super) pixels: BTreeSet<Location>,
    /// For each function, the positions of its parameters that need a shadow.
    pub(super) parameters: HashMap<u32, BTreeSet<usize>>,
    /// Sizes of variables in bytes.
    pub(super) sizes: HashMap<u32, i128>,
    pub(super) layouts: Layouts,
    kernel: u32,
    /// Positions of the kernel's parameters whose lengths are known at compile time.
    pub(super) by_value: BTreeSet<usize>,
}

impl Shadows {
    pub(super) fn of(
        kernel: &Kernel,
        definitions: &Definitions<'_>,
        report: &Report,
    ) -> Result<Self> {
        let module = definitions.module();
        let by_value = kernel.parameters.iter().enumerate();
        let by_value = by_value.filter(|(_, known)| known.memory == ParameterMemory::ByValue);
        let mut shadows = Self {
            pointers: BTreeSet::new(),
            guarded: BTreeMap::new(),
            pixels: BTreeSet::new(),
            parameters: HashMap::new(),
            sizes: HashMap::new(),
            layouts: Layouts::of(module, definitions),
            kernel: kernel.function,
            by_value: by_value.map(|(at, _)| at).collect(),
        };
        let mut pending = Vec::new();
        for checked in report.accesses.iter().filter(|checked| checked.needs_check()) {
            let i = checked.location.instruction(module);
            if i.as_ref().and_then(Instruction::op).is_some_and(images::is_access) {
                shadows.pixels.insert(checked.location);
                continue;
            }
            let pointers = i.as_ref().map(|i| pointers_of(definitions, i)).unwrap_or_default();
            if pointers.is_empty() {
                let name = i.as_ref().map_or("an instruction".into(), Instruction::name);
                let reason = format!("{name} accesses memory in a way that is not guarded");
                let reason = at_line(definitions, checked.location, reason);
                return Err(refuse(&kernel.name, &reason));
            }
            pending.extend(pointers.iter().map(|&pointer| (pointer, checked.location)));
            shadows.guarded.insert(checked.location, pointers);
        }
        let functions = Functions::of(definitions);
        while let Some((pointer, access)) = pending.pop() {
            if shadows.pointers.insert(pointer) {
                let mut more = Vec::new();
                shadows.follow(definitions, &functions, pointer, &mut more).map_err(|why| {
                    let reason = format!("an access cannot be guarded: {why}");
                    refuse(&kernel.name, &at_line(definitions, access, reason))
                })?;
                pending.extend(more.into_iter().map(|pointer| (pointer, access)));
            }
        }
        Ok(shadows)
    }

    /// Returns the positions of the kernel's parameters whose lengths are passed.
    pub(super) fn lengths(&self) -> Vec<usize> {
        let all = self.parameters.get(&self.kernel).into_iter().flatten().copied();
        all.filter(|at| !self.by_value.contains(at)).collect()
    }

    /// Returns the size in bytes of what an instruction's result points to.
    fn pointee_size(&self, definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<i128> {
        self.layouts.size(definitions.get(i.result_type()?)?.pointee()?)
    }

    /// Adds the pointers that a pointer's shadow is calculated from.
    fn follow(
        &mut self,
        definitions: &Definitions<'_>,
        functions: &Functions<'_>,
        pointer: u32,
        pending: &mut Vec<u32>,
    ) -> Result<(), String> {
        let i = definitions.get(pointer).ok_or("a pointer is not defined")?;
        if i.row().is_some_and(|row| row.address.is_derived()) {
            pending.extend(i.derived_from());
            return Ok(());
        }
        match i.op() {
            Some(Op::Select) => {
                if let View::Select { yes, no, .. } = i.view() {
                    pending.extend([yes, no]);
                }
            }
            Some(Op::Phi) => pending.extend(i.incoming().map(|(value, _)| value)),
            Some(Op::Variable) => {
                let size = self.pointee_size(definitions, &i);
                self.sizes.insert(pointer, size.ok_or("the size of a variable is not known")?);
            }
            Some(Op::ConstantNull | Op::Undef) => {}
            Some(Op::FunctionParameter) => {
                let &(function, at) = functions.parameters.get(&pointer).ok_or("it is damaged")?;
                self.parameters.entry(function).or_default().insert(at);
                if function == self.kernel {
                    if self.by_value.contains(&at) {
                        let size = self.pointee_size(definitions, &i);
                        self.sizes.insert(pointer, size.ok_or("a size is not known")?);
                    }
                    return Ok(());
                }
                let calls = functions.calls.get(&function).into_iter().flatten();
                pending.extend(calls.filter_map(|call| call.arguments().nth(at)));
            }
            Some(op) => return Err(format!("its pointer comes from Op{op:?}")),
            None => return Err("its pointer is not followed".to_owned()),
        }
        Ok(())
    }
}

/// Functions of a module, by what refers to them.
struct Functions<'m> {
    /// Function and position of each parameter.
    parameters: HashMap<u32, (u32, usize)>,
    calls: HashMap<u32, Vec<Instruction<'m>>>,
}

impl<'m> Functions<'m> {
    fn of(definitions: &Definitions<'m>) -> Self {
        let module: &'m _ = definitions.module();
        let (mut parameters, mut calls) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for (stream, known) in (Section::COUNT as u32..).zip(&module.functions) {
            let mut position = 0;
            for (_, i) in located((stream, &known.body)) {
                match i.op() {
                    Some(Op::FunctionParameter) => {
                        parameters.insert(i.result().unwrap_or_default(), (known.id, position));
                        position += 1;
                    }
                    Some(Op::FunctionCall) => {
                        calls.entry(i.called().unwrap_or_default()).or_default().push(i);
                    }
                    _ => {}
                }
            }
        }
        Self { parameters, calls }
    }
}

/// Returns the pointers of an access to the memory it touches. The list is empty if the access cannot be guarded.
fn pointers_of(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Vec<u32> {
    match i.view() {
        View::CopyMemory { target, source, .. } => vec![target, source],
        View::Load { .. }
        | View::Store { .. }
        | View::Atomic { .. }
        | View::AtomicUpdate { .. }
        | View::AtomicCompare { .. } => i.pointer().into_iter().collect(),
        View::ExtInst { operands, .. } => match VectorAccess::of(definitions, i) {
            Some(VectorAccess { span: Some(_), pointer, .. }) => vec![pointer],
            Some(_) => Vec::new(),
            None => {
                let at = match extended(definitions, i) {
                    Some(Extended::remquo) => 2,
                    Some(
                        Extended::fract
                        | Extended::modf
                        | Extended::sincos
                        | Extended::frexp
                        | Extended::lgamma_r,
                    ) => 1,
                    _ => return Vec::new(),
                };
                operands.get(at).into_iter().collect()
            }
        },
        _ => Vec::new(),
    }
}
