//! Merging of all slots' kernels into one module, in which each is a plain function.

use std::collections::{BTreeMap, HashSet};

use kiln_spirv::edit::{Instruction, Linkage, Section, Stream, View, string_words};
use kiln_spirv::{Error, ErrorKind, Input, Module, Options, Result, merge};
use rspirv::spirv::{Capability, Decoration, FunctionControl, LinkageType, Op, StorageClass};

use super::extract::Kernel;
use super::remap::is_barrier;

/// Module of a slot that holds only the kernel, as an exported function.
pub(crate) struct Part {
    pub(crate) module: Module,
    name: String,
}

/// Merged modules of all slots.
pub(crate) struct Whole {
    pub(crate) module: Module,
    /// Function of each part, in order.
    pub(crate) functions: Vec<u32>,
}

/// Declares that a module uses a capability.
pub(crate) fn require(module: &mut Module, capability: Capability) {
    let capabilities = module.section_mut(Section::Capabilities);
    let own = View::Capability { capability: capability as u32 };
    if !capabilities.iter().any(|i| i.view() == own) {
        capabilities.push(Op::Capability, [capability as u32]);
    }
}

impl Part {
    /// Makes the part of a slot. `rewrite` changes the kernel's function before everything that the function
    /// no longer needs is dropped.
    pub(crate) fn new(
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
        let is_taken = |i: &Instruction<'_>| i.named().is_some_and(|(_, own)| own == name);
        module.section_mut(Section::Names).retain(|i| !is_taken(i));
        module.prune()?;
        inline(&mut module, function);

        let mut variables = module.section(Section::Globals).iter().filter_map(|i| i.variable());
        if variables.any(|(class, _)| class == StorageClass::CrossWorkgroup as u32) {
            return Err(Error::unsupported(format!(
                "`{kernel}` uses a global variable of its program, which the fused kernel would \
                 not share with other kernels"
            )));
        }
        Ok(Self { module, name })
    }

    pub(crate) fn merge(parts: &[Self]) -> Result<Whole> {
        let inputs = parts.iter().map(|part| Input { name: &part.name, module: &part.module });
        let inputs: Vec<_> = inputs.collect();
        let merged = merge(&inputs, Options { keep_exports: true, allow_unresolved: true })?;
        let mut module = merged.module;
        let exports: BTreeMap<_, _> =
            module.linkages().iter().map(|l| (l.name.to_owned(), l.target)).collect();
        let functions = parts.iter().map(|part| exports.get(&part.name).copied());
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
    pub(crate) fn has_barriers(&self) -> bool {
        let mut instructions =
            self.module.functions.iter().flat_map(|function| function.body.iter());
        instructions.any(|i| i.op().is_some_and(is_barrier))
    }

    /// Marks each slot's function as not to be inlined, so that drivers keep it as it is.
    pub(crate) fn keep_apart(&mut self) {
        let (inline, dont_inline) = (FunctionControl::INLINE, FunctionControl::DONT_INLINE);
        for &function in &self.functions {
            set_control(&mut self.module, function, |control| {
                control & !inline.bits() | dont_inline.bits()
            });
        }
    }
}

/// Marks a slot's function as to be inlined, so that drivers see through its call, unless its author forbids
/// inlining.
fn inline(module: &mut Module, function: u32) {
    let (inline, dont_inline) =
        (FunctionControl::INLINE.bits(), FunctionControl::DONT_INLINE.bits());
    set_control(module, function, |control| match control & dont_inline {
        0 => control | inline,
        _ => control,
    });
}

/// Replaces a function's control mask `m` by `new(m)`.
pub(crate) fn set_control(module: &mut Module, function: u32, new: impl Fn(u32) -> u32) {
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
