//! Declaration of a function: its type and its parameters, which change with the arguments passed to it.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Definitions, Instruction, Interner, Section, Stream, View};
use kiln_spirv::{Module, Result};
use rspirv::spirv::{
    AccessQualifier, Decoration, FunctionControl, FunctionParameterAttribute as Attribute, Op,
    StorageClass,
};

/// Parameter of a kernel, as its module describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameter {
    pub(crate) name: Option<String>,
    /// Whether the parameter is a pointer to constant memory.
    pub(crate) is_constant: bool,
    /// Whether the parameter is an image that the kernel only reads.
    pub(crate) is_read_only_image: bool,
}

impl Parameter {
    /// Returns the parameters of a function, in order.
    pub(crate) fn all(definitions: &Definitions<'_>, function: u32) -> Vec<Self> {
        let module = definitions.module();
        let body = module.functions.iter().find(|known| known.id == function);
        let body = body.into_iter().flat_map(|function| function.body.iter());
        let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter));
        let names: HashMap<_, _> = module
            .section(Section::Names)
            .iter()
            .filter_map(|i| i.named())
            .map(|(id, name)| (id, name.to_owned()))
            .collect();
        let parameters = parameters.map(|parameter| Self {
            name: parameter.result().and_then(|id| names.get(&id).cloned()),
            is_constant: parameter
                .result_type()
                .and_then(|ty| definitions.get(ty)?.storage_class())
                == Some(StorageClass::UniformConstant as u32),
            is_read_only_image: parameter
                .result()
                .is_some_and(|id| is_read_only_image(definitions, id)),
        });
        parameters.collect()
    }

    /// Returns the parameter in words: its name, or its position `at`.
    pub(crate) fn describe(&self, at: usize) -> String {
        match &self.name {
            Some(name) => format!("`{name}`"),
            None => format!("its argument {at}"),
        }
    }
}

/// Returns whether a parameter is an image that is declared as `read_only`. Without an access qualifier, an
/// image is read-only (OpenCL SPIR-V environment).
pub(crate) fn is_read_only_image(definitions: &Definitions<'_>, parameter: u32) -> bool {
    match definitions.type_of(parameter).map(|ty| ty.view()) {
        Some(View::TypeImage { access, .. }) => {
            access.is_none_or(|access| access == AccessQualifier::ReadOnly as u32)
        }
        _ => false,
    }
}

/// The declaration of a function while its body is rewritten.
pub(crate) struct Declaration {
    /// Ids and types of the parameters after the rewrite.
    pub(crate) parameters: Vec<(u32, u32)>,
    is_written: bool,
}

impl Declaration {
    pub(crate) fn of(body: &Stream) -> Self {
        let parameters = body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
        let parameters = parameters.filter_map(|i| i.result().zip(i.result_type())).collect();
        Self { parameters, is_written: false }
    }

    /// Writes the new form of an instruction of the declaration. All parameters are written in place of
    /// the first one. Returns whether `i` is an instruction of the declaration.
    pub(crate) fn rewrite(
        &mut self,
        i: &Instruction<'_>,
        module: &mut Module,
        interner: &mut Interner,
        new: &mut Stream,
    ) -> Result<bool> {
        match i.op() {
            Some(Op::Function) => {
                let types = self.parameters.iter().map(|(_, ty)| *ty);
                let types: Vec<_> = i.result_type().into_iter().chain(types).collect();
                let ty = interner.type_id(module, Op::TypeFunction, &types)?;
                let words = i.words_from(0).enumerate();
                // The function may now write to a variable, so it no longer has the `Pure` or `Const`
                // control.
                let control = (FunctionControl::PURE | FunctionControl::CONST).bits();
                let word = |(at, word)| match at {
                    2 => word & !control,
                    3 => ty,
                    _ => word,
                };
                new.push(Op::Function, words.map(word));
            }
            Some(Op::FunctionParameter) => {
                if !std::mem::replace(&mut self.is_written, true) {
                    for &(id, ty) in &self.parameters {
                        new.push(Op::FunctionParameter, [ty, id]);
                    }
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns the parameters that are structs passed by value.
pub(crate) fn by_value(module: &Module) -> HashSet<u32> {
    let annotations = module.section(Section::Annotations).iter();
    let attributes = annotations.filter_map(|i| i.decoration(Decoration::FuncParamAttr));
    let by_value = attributes.filter(|(_, all)| all.get(0) == Some(Attribute::ByVal as u32));
    by_value.map(|(id, _)| id).collect()
}
