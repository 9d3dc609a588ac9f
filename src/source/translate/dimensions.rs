//! Makes `get_global_size(d)` and similar functions return what OpenCL C specifies also if `d` is 3 or more.
//!
//! The functions take any number: for a dimension that does not exist, a size is 1, and an id or offset is 0
//! (OpenCL C, "Work-Item Functions"). If `d` is only known at run time, llvm-spirv extracts a component of a
//! vector (OpVectorExtractDynamic), which SPIR-V defines for three components only: Intel's CPU runtime then
//! returns another component.

use std::collections::HashMap;

use rspirv::spirv::{BuiltIn, Op};

use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{Definitions, Instruction, Interner, Stream};
use crate::error::Result;

const DIMENSIONS: u32 = 3;

/// Adds a bounds check to every dimension that is only known at run time.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if all ids are used up.
pub(super) fn dimensions_looked_at(module: &mut Module) -> Result<()> {
    let definitions = module.definitions();
    let beyond = values_beyond(module);
    let functions = module.functions.iter();
    let loads = functions.flat_map(|function| function.body.iter()).filter_map(|i| {
        let variable = i.word(2).filter(|_| i.op() == Some(Op::Load))?;
        Some((i.result()?, *beyond.get(&variable)?))
    });
    let loaded: HashMap<_, _> = loads.collect();
    let taken = |i: Instruction<'_>| Taken::of(&i, &definitions, &loaded);
    let functions = module.functions.iter();
    let found: Vec<Vec<_>> =
        functions.map(|function| function.body.iter().map(taken).collect()).collect();
    let mut interner = Interner::of(module);
    module.replace(found, |taken, module, body| taken.chosen_component(module, &mut interner, body))
}

/// Returns the values of the built-in variables in dimensions that do not exist.
fn values_beyond(module: &Module) -> HashMap<u32, u32> {
    module
        .built_ins()
        .filter_map(|(variable, built_in)| {
            let value = match BuiltIn::from_u32(built_in)? {
                BuiltIn::GlobalSize
                | BuiltIn::WorkgroupSize
                | BuiltIn::EnqueuedWorkgroupSize
                | BuiltIn::NumWorkgroups => 1,
                BuiltIn::GlobalInvocationId
                | BuiltIn::GlobalOffset
                | BuiltIn::LocalInvocationId
                | BuiltIn::WorkgroupId => 0,
                _ => return None,
            };
            Some((variable, value))
        })
        .collect()
}

/// An integer type.
#[derive(Clone, Copy)]
struct Integer {
    ty: u32,
    is_long: bool,
}

impl Integer {
    fn of(ty: u32, definitions: &Definitions<'_>) -> Option<Self> {
        let width = definitions.get(ty).filter(|i| i.op() == Some(Op::TypeInt))?.word(1)?;
        Some(Self { ty, is_long: width == 64 })
    }

    fn number(self, module: &mut Module, interner: &mut Interner, value: u32) -> Result<u32> {
        let words = [value, 0];
        let words = if self.is_long { &words[..] } else { &words[..1] };
        interner.constant_id(module, Op::Constant, self.ty, words)
    }
}

/// Extraction of a component whose index is only known at run time.
struct Taken {
    of: Integer,
    result: u32,
    vector: u32,
    index: u32,
    of_index: Integer,
    /// Value for a dimension that does not exist.
    otherwise: u32,
}

impl Taken {
    fn of(
        instruction: &Instruction<'_>,
        definitions: &Definitions<'_>,
        loaded: &HashMap<u32, u32>,
    ) -> Option<Self> {
        if instruction.op() != Some(Op::VectorExtractDynamic) {
            return None;
        }
        let word = |at| instruction.word(at);
        let index = word(3)?;
        Some(Self {
            of: Integer::of(word(0)?, definitions)?,
            result: word(1)?,
            vector: word(2)?,
            index,
            of_index: Integer::of(definitions.type_of(index)?.result()?, definitions)?,
            otherwise: *loaded.get(&word(2)?)?,
        })
    }

    fn chosen_component(
        &self,
        module: &mut Module,
        interner: &mut Interner,
        body: &mut Stream,
    ) -> Result<()> {
        let Self { of, result, vector, index, of_index, otherwise } = *self;
        let count = of_index.number(module, interner, DIMENSIONS)?;
        let first = of_index.number(module, interner, 0)?;
        let otherwise = of.number(module, interner, otherwise)?;
        let bool = interner.type_id(module, Op::TypeBool, &[])?;
        let [is_there, inside, value] =
            [module.fresh_id()?, module.fresh_id()?, module.fresh_id()?];
        body.push(Op::ULessThan, [bool, is_there, index, count]);
        body.push(Op::Select, [of_index.ty, inside, is_there, index, first]);
        body.push(Op::VectorExtractDynamic, [of.ty, value, vector, inside]);
        body.push(Op::Select, [of.ty, result, is_there, value, otherwise]);
        Ok(())
    }
}
