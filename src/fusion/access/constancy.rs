//! What of a kernel a compiler may calculate instead of the device.

use std::collections::HashSet;

use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use crate::spirv::edit::{Context as _, Definitions, ExtendedSet, Instruction, Role, ids};

/// What may be constant of a kernel's function and of what that calls, at least now and then: a value
/// chosen among constants and others counts. What no constant goes into does not, though it could be one,
/// like a number times 0.
#[derive(Debug, Default)]
pub(crate) struct Constancy {
    parameters: Vec<u32>,
    /// Values, and pointers to where constants may be.
    constant: HashSet<u32>,
    /// Functions that may return a constant.
    returning: HashSet<u32>,
    /// It was not followed to its end.
    is_unknown: bool,
}

/// A value goes around few loops, and through few variables, before all is known of it.
const MAX_ROUNDS: usize = 32;

impl Constancy {
    /// If `is_given` is true of the parameters that are constant, or buffers that hold constants.
    pub(crate) fn of(
        definitions: &Definitions<'_>,
        function: u32,
        is_given: impl Fn(usize) -> bool,
    ) -> Self {
        let parameters: Vec<_> = parameters(definitions, function).collect();
        let given = parameters.iter().enumerate().filter(|&(at, _)| is_given(at));
        let constant = given.map(|(_, &id)| id).collect();
        let mut found = Self { parameters, constant, ..Self::default() };
        found.is_unknown = (0..MAX_ROUNDS).all(|_| found.go_through(definitions));
        found
    }

    /// Whether a value may be constant, or what a pointer points to.
    pub(crate) fn may_be(&self, id: u32) -> bool {
        self.is_unknown || self.constant.contains(&id)
    }

    /// Whether the buffer that a parameter is given may hold constants afterwards.
    pub(crate) fn leaves(&self, parameter: usize) -> bool {
        self.parameters.get(parameter).is_some_and(|&id| self.may_be(id))
    }

    /// Whether that told anything new.
    fn go_through(&mut self, definitions: &Definitions<'_>) -> bool {
        let known = self.constant.len() + self.returning.len();
        for function in &definitions.module().functions {
            for i in function.body.iter() {
                match i.op() {
                    Some(Op::FunctionCall) => self.call(&i, definitions),
                    Some(Op::ReturnValue)
                        if i.word(0).is_some_and(|id| self.is(id, definitions)) =>
                    {
                        self.returning.insert(function.id);
                    }
                    _ => self.calculate(&i, definitions),
                }
            }
        }
        self.constant.len() + self.returning.len() > known
    }

    fn is(&self, id: u32, definitions: &Definitions<'_>) -> bool {
        let is_global = || {
            let module = definitions.module();
            let global = definitions.location(id).filter(|at| at.function(module).is_none());
            let global = global.and_then(|_| definitions.get(id));
            global.is_some_and(|i| i.op() != Some(Op::Variable) || i.word(3).is_some())
        };
        self.constant.contains(&id) || is_global()
    }

    fn call(&mut self, i: &Instruction<'_>, definitions: &Definitions<'_>) {
        let (Some(result), Some(called)) = (i.result(), i.word(2)) else { return };
        for (parameter, argument) in parameters(definitions, called).zip(i.words_from(3)) {
            if self.is(argument, definitions) {
                self.constant.insert(parameter);
            } else if is_pointer(parameter, definitions) && self.constant.contains(&parameter) {
                self.constant.insert(argument);
            }
        }
        if self.returning.contains(&called) {
            self.constant.insert(result);
        }
    }

    fn calculate(&mut self, i: &Instruction<'_>, definitions: &Definitions<'_>) {
        let (mut pointers, mut values) = (Vec::new(), Vec::new());
        let named = ids(i, definitions, |word, role| {
            let Some(id) = i.word(word).filter(|_| role == Role::Operand) else { return };
            if is_pointer(id, definitions) { pointers.push(id) } else { values.push(id) }
        });
        // A kernel with what is not known is not fused.
        if named.is_err() {
            return;
        }
        let result = i.result();
        let through = result.filter(|&id| is_pointer(id, definitions));
        let is_constant = |id: &u32| self.is(*id, definitions);
        let is_there = pointers.iter().any(is_constant);
        let is_written =
            !pointers.is_empty() && written(i, definitions).is_some_and(|id| is_constant(&id));
        let is_constant = match i.op() {
            Some(Op::Phi | Op::Select) => values.iter().any(is_constant),
            _ if pointers.is_empty() => !values.is_empty() && values.iter().all(is_constant),
            _ => is_there || is_written,
        };
        if is_there || is_written || through.is_some_and(|id| self.constant.contains(&id)) {
            // Where one of them points to, the others may, too.
            self.constant.extend(pointers.into_iter().chain(through));
        }
        if let Some(result) = result.filter(|_| is_constant) {
            self.constant.insert(result);
        }
    }
}

fn parameters<'m>(
    definitions: &Definitions<'m>,
    function: u32,
) -> impl Iterator<Item = u32> + use<'m> {
    let body = definitions.module().functions.iter().find(|known| known.id == function);
    let body = body.into_iter().flat_map(|function| function.body.iter());
    body.filter(|i| i.op() == Some(Op::FunctionParameter)).filter_map(|i| i.result())
}

fn is_pointer(id: u32, definitions: &Definitions<'_>) -> bool {
    definitions.type_of(id).is_some_and(|ty| ty.op() == Some(Op::TypePointer))
}

/// What an instruction writes to where it is told to, if it calculates or is given that.
fn written(i: &Instruction<'_>, definitions: &Definitions<'_>) -> Option<u32> {
    match i.op()? {
        Op::Store => i.word(1),
        Op::ExtInst if definitions.extended_set(i.word(2)?) == ExtendedSet::OpenClStd => {
            match Extended::from_u32(i.word(3)?)? {
                Extended::vloadn
                | Extended::vload_half
                | Extended::vload_halfn
                | Extended::vloada_halfn
                | Extended::prefetch => None,
                _ => i.word(4),
            }
        }
        _ => None,
    }
}
