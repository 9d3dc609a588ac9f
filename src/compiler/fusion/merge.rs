//! Merging of all slots' kernels into one module, in which each is a plain function.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rspirv::spirv::{
    Capability, Decoration, ExecutionMode, FunctionControl, LinkageType, Op, StorageClass,
};

use super::extract::Kernel;
use super::ranges::Sizes;
use super::remap::is_barrier;
use crate::compiler::spirv::edit::{Instruction, Linkage, Section, Stream, string_words};
use crate::compiler::spirv::{Input, Module, Options, merge};
use crate::error::{Error, ErrorKind, Result};

/// Module of a slot that holds only the kernel, as an exported function.
pub(super) struct Part {
    pub(super) module: Module,
    name: String,
}

/// Merged modules of all slots.
pub(super) struct Whole {
    pub(super) module: Module,
    /// Function of each part, in order.
    pub(super) functions: Vec<u32>,
}

/// Declares that a module uses a capability.
pub(super) fn require(module: &mut Module, capability: Capability) {
    let capabilities = module.section_mut(Section::Capabilities);
    if !capabilities.iter().any(|i| i.word(0) == Some(capability as u32)) {
        capabilities.push(Op::Capability, [capability as u32]);
    }
}

impl Part {
    /// Makes the part of a slot. `rewrite` changes the kernel's function before everything that the function
    /// no longer needs is dropped.
    pub(super) fn new(
        kernel: &Kernel,
        slot: usize,
        rewrite: impl FnOnce(&mut Module, u32) -> Result<()>,
    ) -> Result<Self> {
        let &Kernel { name: ref kernel, ref module, function, ref imports, .. } = kernel;
        if let Some(name) = imports {
            return Err(Error::unsupported(format!(
                "the module of `{kernel}` imports `{name}`; link it first"
            )));
        }
        let mut module = module.clone();
        rewrite(&mut module, function)?;

        module.section_mut(Section::EntryPoints).retain(|_| false);
        module.section_mut(Section::ExecutionModes).retain(|_| false);
        let is_kept = |i: &Instruction<'_>| {
            Linkage::of(i).is_none_or(|linkage| linkage.kind == LinkageType::Import)
        };
        module.section_mut(Section::Annotations).retain(is_kept);
        let name = format!("kiln.slot{slot}");
        let words = [function, Decoration::LinkageAttributes as u32];
        let words = words.into_iter().chain(string_words(&name));
        let annotations = module.section_mut(Section::Annotations);
        annotations.push(Op::Decorate, words.chain([LinkageType::Export as u32]));
        let clash = |i: &Instruction<'_>| i.op() == Some(Op::Name) && i.string(1) == Some(&name);
        module.section_mut(Section::Names).retain(|i| !clash(i));
        module.prune()?;
        inline(&mut module, function);

        let variables = module.section(Section::Globals).iter();
        let mut variables = variables.filter(|i| i.op() == Some(Op::Variable));
        if variables.any(|i| i.word(2) == Some(StorageClass::CrossWorkgroup as u32)) {
            return Err(Error::unsupported(format!(
                "`{kernel}` uses a global variable of its program, which the fused kernel would \
                 not share with other kernels"
            )));
        }
        Ok(Self { module, name })
    }

    pub(super) fn merge(parts: &[Self]) -> Result<Whole> {
        let inputs = parts.iter().map(|part| Input { name: &part.name, module: &part.module });
        let inputs: Vec<_> = inputs.collect();
        let merged = merge(&inputs, Options { keep_exports: true, allow_unresolved: true })?;
        let mut module = merged.module;
        let found: BTreeMap<_, _> =
            module.linkages().iter().map(|l| (l.name.to_owned(), l.target)).collect();
        let functions = parts.iter().map(|part| found.get(&part.name).copied());
        let functions = functions.collect::<Option<Vec<_>>>().ok_or_else(|| {
            Error::new(ErrorKind::InvalidModule, "a kernel is missing from the merged module")
        })?;
        let names: HashSet<_> = parts.iter().map(|part| part.name.as_str()).collect();
        let is_own = |i: &Instruction<'_>| {
            Linkage::of(i).is_some_and(|linkage| names.contains(linkage.name))
        };
        module.section_mut(Section::Annotations).retain(|i| !is_own(i));
        Ok(Whole { module, functions })
    }
}

impl Whole {
    /// Returns whether work-items wait for each other within a launch.
    pub(super) fn has_barriers(&self) -> bool {
        let mut instructions =
            self.module.functions.iter().flat_map(|function| function.body.iter());
        instructions.any(|i| i.op().is_some_and(is_barrier))
    }

    /// Marks each slot's function as not to be inlined, so that drivers keep it as it is.
    pub(super) fn keep_apart(&mut self) {
        let (inline, not) = (FunctionControl::INLINE, FunctionControl::DONT_INLINE);
        for &function in &self.functions {
            set_control(&mut self.module, function, |control| {
                control & !inline.bits() | not.bits()
            });
        }
    }
}

/// Marks a slot's function as to be inlined, so that drivers see through its call, unless its author forbids
/// inlining.
fn inline(module: &mut Module, function: u32) {
    let (inline, not) = (FunctionControl::INLINE.bits(), FunctionControl::DONT_INLINE.bits());
    set_control(module, function, |control| match control & not {
        0 => control | inline,
        _ => control,
    });
}

/// Replaces a function's control mask `m` by `new(m)`.
pub(super) fn set_control(module: &mut Module, function: u32, new: impl Fn(u32) -> u32) {
    let Some(function) = module.functions.iter_mut().find(|known| known.id == function) else {
        return;
    };
    let mut body = Stream::default();
    for i in function.body.iter() {
        if i.op() == Some(Op::Function) {
            let words = i.words_from(0).enumerate();
            body.push(Op::Function, words.map(|(at, w)| if at == 2 { new(w) } else { w }));
        } else {
            body.push_instruction(&i);
        }
    }
    function.body = body;
}

/// Execution modes of an entry point, each with its operands. Modes of floating-point arithmetic occur once
/// for each width.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Modes(BTreeSet<(u32, Vec<u32>)>);

impl Modes {
    pub(super) fn of(module: &Module, entry: u32, kernel: &str) -> Result<Self> {
        let mut modes = BTreeSet::new();
        let said = module.section(Section::ExecutionModes).iter();
        for mode in said.filter(|mode| mode.word(0) == Some(entry)) {
            if mode.op() != Some(Op::ExecutionMode) {
                return Err(Error::unsupported(format!(
                    "`{kernel}` has an execution mode that depends on constants"
                )));
            }
            modes.insert((mode.word(1).unwrap_or_default(), mode.words_from(2).collect()));
        }
        Ok(Self(modes))
    }

    /// Returns the operands of a mode that occurs at most once.
    fn operands(&self, mode: ExecutionMode) -> Option<&[u32]> {
        let (_, operands) = self.0.iter().find(|(known, _)| *known == mode as u32)?;
        Some(operands)
    }

    /// Returns the work-group size that launches must have.
    pub(super) fn local_size(&self) -> Option<Sizes> {
        let size = self.operands(ExecutionMode::LocalSize)?;
        Some(std::array::from_fn(|d| size.get(d).map_or(1, |&size| size as usize)))
    }

    pub(super) fn forbids_contraction(&self) -> bool {
        self.operands(ExecutionMode::ContractionOff).is_some()
    }

    pub(super) fn add_contraction_off(&mut self) {
        self.0.insert((ExecutionMode::ContractionOff as u32, Vec::new()));
    }

    /// Returns the modes of a kernel that is fused from several. A work-group size that one kernel demands
    /// holds for all. Hints are dropped. `ContractionOff` holds if one kernel has it. All other modes must be
    /// the same in every kernel.
    pub(super) fn join<'a>(all: impl Iterator<Item = (&'a str, &'a Self)> + Clone) -> Result<Self> {
        let name = |mode: u32, operands: &[u32]| {
            let known = ExecutionMode::from_u32(mode);
            let name = known.map_or_else(|| mode.to_string(), |mode| format!("{mode:?}"));
            if operands.is_empty() { name } else { format!("{name} {operands:?}") }
        };
        let mut joined = Self::default();
        for (kernel, modes) in all.clone() {
            for (mode, operands) in &modes.0 {
                let known = ExecutionMode::from_u32(*mode);
                let lonely = match known {
                    Some(ExecutionMode::LocalSizeHint | ExecutionMode::VecTypeHint) => continue,
                    Some(ExecutionMode::LocalSize | ExecutionMode::ContractionOff) => None,
                    _ => {
                        let has = |other: &Self| other.0.contains(&(*mode, operands.clone()));
                        all.clone().find(|(_, other)| !has(other))
                    }
                };
                if let Some((other, _)) = lonely {
                    return Err(Error::unsupported(format!(
                        "`{kernel}` has the execution mode {}, but `{other}` does not",
                        name(*mode, operands)
                    )));
                }
                if known == Some(ExecutionMode::LocalSize)
                    && let Some(earlier) = joined.operands(ExecutionMode::LocalSize)
                    && earlier != operands
                {
                    return Err(Error::unsupported(format!(
                        "the execution mode {} of `{kernel}` is {operands:?}, but that of an \
                         earlier launch is {earlier:?}",
                        name(*mode, &[])
                    )));
                }
                joined.0.insert((*mode, operands.clone()));
            }
        }
        Ok(joined)
    }

    pub(super) fn write(&self, module: &mut Module, entry: u32) {
        let section = module.section_mut(Section::ExecutionModes);
        for (mode, operands) in &self.0 {
            let words = [entry, *mode].into_iter().chain(operands.iter().copied());
            section.push(Op::ExecutionMode, words);
        }
    }
}
