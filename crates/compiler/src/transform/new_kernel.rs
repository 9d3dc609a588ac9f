//! Kernels that are added to a module.

use std::collections::BTreeSet;

use kiln_spirv::edit::{Function, Interner, Section, Stream, complete_interfaces, string_words};
use kiln_spirv::{Module, Result};
use rspirv::spirv::{ExecutionModel, Op};

use super::modes::Modes;

/// Parameter of a new kernel.
pub(crate) struct NewParameter<'a> {
    pub(crate) id: u32,
    pub(crate) ty: u32,
    /// Decorations, each as the words after the id that it decorates.
    pub(crate) decorations: Option<&'a BTreeSet<Vec<u32>>>,
    pub(crate) name: Option<&'a str>,
}

/// Kernel to add.
pub(crate) struct NewKernel<'a> {
    pub(crate) name: &'a str,
    pub(crate) parameters: &'a [NewParameter<'a>],
    /// Id of its only block, if the block's instructions depend on it.
    pub(crate) label: Option<u32>,
    pub(crate) modes: &'a Modes,
}

impl NewKernel<'_> {
    /// Adds the kernel, which runs the instructions and returns. Returns the id of its function.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
    pub(crate) fn add(
        &self,
        module: &mut Module,
        interner: &mut Interner,
        instructions: &[&Stream],
    ) -> Result<u32> {
        let Self { name, parameters, label, modes } = *self;
        let void = interner.type_id(module, Op::TypeVoid, &[])?;
        let types = parameters.iter().map(|parameter| parameter.ty);
        let types: Vec<_> = [void].into_iter().chain(types).collect();
        let ty = interner.type_id(module, Op::TypeFunction, &types)?;
        let id = module.fresh_id()?;
        let label = label.map_or_else(|| module.fresh_id(), Ok)?;
        let mut body = Stream::default();
        body.push(Op::Function, [void, id, 0, ty]);
        for parameter in parameters {
            body.push(Op::FunctionParameter, [parameter.ty, parameter.id]);
            describe(module, parameter);
        }
        body.push(Op::Label, [label]);
        for stream in instructions {
            body.append(stream);
        }
        body.push(Op::Return, []);
        body.push(Op::FunctionEnd, []);
        module.functions.push(Function { id, body });
        add_entry_point(module, id, name, modes)?;
        Ok(id)
    }
}

/// Adds the decorations and the name of a parameter.
fn describe(module: &mut Module, parameter: &NewParameter<'_>) {
    for words in parameter.decorations.into_iter().flatten() {
        let words = [parameter.id].into_iter().chain(words.iter().copied());
        module.section_mut(Section::Annotations).push(Op::Decorate, words);
    }
    if let Some(name) = parameter.name {
        let words = [parameter.id].into_iter().chain(string_words(name));
        module.section_mut(Section::Names).push(Op::Name, words);
    }
}

/// Makes a function the entry point of a kernel.
///
/// # Errors
///
/// As [`complete_interfaces`].
pub(crate) fn add_entry_point(
    module: &mut Module,
    function: u32,
    name: &str,
    modes: &Modes,
) -> Result<()> {
    let words = [ExecutionModel::Kernel as u32, function].into_iter().chain(string_words(name));
    module.section_mut(Section::EntryPoints).push(Op::EntryPoint, words);
    modes.write(module, function);
    complete_interfaces(module)
}
