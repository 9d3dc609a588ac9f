//! Declaration of a function: its type and its parameters, which change with the arguments passed to it.

use rspirv::spirv::{FunctionControl, Op};

use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Instruction, Interner, Stream};
use crate::error::Result;

/// The declaration of a function while its body is rewritten.
pub(super) struct Declaration {
    /// Ids and types of the parameters after the rewrite.
    pub(super) parameters: Vec<(u32, u32)>,
    is_written: bool,
}

impl Declaration {
    pub(super) fn of(body: &Stream) -> Self {
        let parameters = body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
        let parameters = parameters.filter_map(|i| Some((i.word(1)?, i.word(0)?))).collect();
        Self { parameters, is_written: false }
    }

    /// Writes the new form of an instruction of the declaration. All parameters are written in place of
    /// the first one. Returns whether `i` is an instruction of the declaration.
    pub(super) fn rewrite(
        &mut self,
        i: &Instruction<'_>,
        module: &mut Module,
        interner: &mut Interner,
        new: &mut Stream,
    ) -> Result<bool> {
        match i.op() {
            Some(Op::Function) => {
                let types = self.parameters.iter().map(|(_, ty)| *ty);
                let types: Vec<_> = i.word(0).into_iter().chain(types).collect();
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
