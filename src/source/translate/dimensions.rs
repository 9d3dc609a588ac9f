//! Makes `get_global_size(d)` and similar functions return what OpenCL C specifies also if `d` is 3 or more.
//!
//! The functions take any number: for a dimension that does not exist, a size is 1, and an id or offset is 0
//! (OpenCL C, "Work-Item Functions"). llvm-spirv extracts component `d` of a vector, which SPIR-V defines for three
//! components only. If `d` is a constant (OpCompositeExtract), the module is not valid; if `d` is only known at run
//! time (OpVectorExtractDynamic), Intel's CPU runtime returns another component.

use std::collections::HashMap;

use kiln_spirv::Module;
use kiln_spirv::edit::{Definitions, Instruction, Interner, Stream, View};
use rspirv::spirv::{BuiltIn, Op};

use crate::error::Result;

const DIMENSIONS: u32 = 3;

/// Adds a bounds check to every dimension that is only known at run time, and replaces constant dimensions that do
/// not exist.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if all ids are used up.
pub(super) fn add_dimension_checks(module: &mut Module) -> Result<()> {
    let definitions = module.definitions();
    let defaults = default_values(module);
    let functions = module.functions.iter();
    let loads = functions.flat_map(|function| function.body.iter()).filter_map(|i| {
        let View::Load { pointer, .. } = i.view() else { return None };
        Some((i.result()?, *defaults.get(&pointer)?))
    });
    let loaded_defaults: HashMap<_, _> = loads.collect();
    let extract = |i: Instruction<'_>| Extract::of(&i, &definitions, &loaded_defaults);
    let functions = module.functions.iter();
    let extracts: Vec<Vec<_>> =
        functions.map(|function| function.body.iter().map(extract).collect()).collect();
    let mut interner = Interner::of(module);
    module.replace(extracts, |extract, module, body| extract.write(module, &mut interner, body))
}

/// Returns the values of the built-in variables for dimensions that do not exist, by variable.
fn default_values(module: &Module) -> HashMap<u32, u32> {
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
    /// Id of the type.
    ty: u32,
    is_long: bool,
}

impl Integer {
    fn of(ty: u32, definitions: &Definitions<'_>) -> Option<Self> {
        let width = definitions.get(ty).filter(|i| i.op() == Some(Op::TypeInt))?.width()?;
        Some(Self { ty, is_long: width == 64 })
    }

    /// Returns the id of a constant of this type.
    fn number(self, module: &mut Module, interner: &mut Interner, value: u32) -> Result<u32> {
        let words = [value, 0];
        let words = if self.is_long { &words[..] } else { &words[..1] };
        interner.constant_id(module, Op::Constant, self.ty, words)
    }
}

/// Extraction of a component of a built-in vector, which may be a component that does not exist.
struct Extract {
    component_type: Integer,
    result: u32,
    /// Value for a dimension that does not exist.
    default: u32,
    dimension: Dimension,
}

/// Dimension that a component of a built-in vector is for.
enum Dimension {
    /// A constant for which the vector has no component.
    Missing,
    /// A value that is only known at run time.
    Dynamic { vector: u32, index: u32, index_type: Integer },
}

impl Extract {
    /// Returns the extraction if it has to be replaced.
    fn of(
        instruction: &Instruction<'_>,
        definitions: &Definitions<'_>,
        loaded_defaults: &HashMap<u32, u32>,
    ) -> Option<Self> {
        let (vector, dimension) = match instruction.view() {
            View::Extract { whole, path } if path.get(0)? >= DIMENSIONS => {
                (whole, Dimension::Missing)
            }
            View::ExtractDynamic { vector, index } => {
                let index_type = definitions.type_of(index)?.result()?;
                let index_type = Integer::of(index_type, definitions)?;
                (vector, Dimension::Dynamic { vector, index, index_type })
            }
            _ => return None,
        };
        Some(Self {
            component_type: Integer::of(instruction.result_type()?, definitions)?,
            result: instruction.result()?,
            default: *loaded_defaults.get(&vector)?,
            dimension,
        })
    }

    /// Writes the instructions that replace the extraction.
    fn write(&self, module: &mut Module, interner: &mut Interner, body: &mut Stream) -> Result<()> {
        let Self { component_type, result, default, ref dimension } = *self;
        let default = component_type.number(module, interner, default)?;
        let Dimension::Dynamic { vector, index, index_type } = *dimension else {
            body.push(Op::CopyObject, [component_type.ty, result, default]);
            return Ok(());
        };
        let count = index_type.number(module, interner, DIMENSIONS)?;
        let first = index_type.number(module, interner, 0)?;
        let bool = interner.type_id(module, Op::TypeBool, &[])?;
        let [is_valid, valid_index, value] =
            [module.fresh_id()?, module.fresh_id()?, module.fresh_id()?];
        body.push(Op::ULessThan, [bool, is_valid, index, count]);
        body.push(Op::Select, [index_type.ty, valid_index, is_valid, index, first]);
        body.push(Op::VectorExtractDynamic, [component_type.ty, value, vector, valid_index]);
        body.push(Op::Select, [component_type.ty, result, is_valid, value, default]);
        Ok(())
    }
}
