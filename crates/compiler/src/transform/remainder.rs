//! Functions that return the remainder of one of the device's built-in values.

use kiln_spirv::edit::{Function, Interner, Stream};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{FunctionControl, Op};

use super::built_ins::{BuiltInType, number};

/// Remainder of a built-in value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remainder {
    /// Component of the vector that is divided; `None` if the value is a single number. The other components
    /// stay as they are.
    pub(crate) dimension: Option<usize>,
    /// Divisor.
    pub(crate) size: u64,
}

impl Remainder {
    /// Returns a function that returns the remainder of the value that a variable holds.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the variable holds a value of
    /// another type.
    pub(crate) fn function(
        self,
        module: &mut Module,
        interner: &mut Interner,
        variable: u32,
        value_type: BuiltInType,
    ) -> Result<Function> {
        if value_type.is_vector != self.dimension.is_some() {
            return Err(Error::unsupported("a built-in value has an unusual type"));
        }
        let mut body = Stream::default();
        let ty = interner.type_id(module, Op::TypeFunction, &[value_type.ty])?;
        let (id, label, loaded) = (module.fresh_id()?, module.fresh_id()?, module.fresh_id()?);
        body.push(Op::Function, [value_type.ty, id, FunctionControl::INLINE.bits(), ty]);
        body.push(Op::Label, [label]);
        body.push(Op::Load, [value_type.ty, loaded, variable]);
        let result = match self.dimension {
            None => self.remainder(module, interner, &mut body, (loaded, value_type))?,
            Some(d) => {
                let (part, whole) = (module.fresh_id()?, module.fresh_id()?);
                body.push(Op::CompositeExtract, [value_type.component, part, loaded, d as u32]);
                let rest = self.remainder(module, interner, &mut body, (part, value_type))?;
                body.push(Op::CompositeInsert, [value_type.ty, whole, rest, loaded, d as u32]);
                whole
            }
        };
        body.push(Op::ReturnValue, [result]);
        body.push(Op::FunctionEnd, []);
        Ok(Function { id, body })
    }

    /// Emits the remainder of a number. Returns its id.
    fn remainder(
        self,
        module: &mut Module,
        interner: &mut Interner,
        body: &mut Stream,
        (value, value_type): (u32, BuiltInType),
    ) -> Result<u32> {
        if self.size == 1 {
            return number(module, interner, value_type, 0);
        }
        let size = number(module, interner, value_type, self.size)?;
        let id = module.fresh_id()?;
        body.push(Op::UMod, [value_type.component, id, value, size]);
        Ok(id)
    }
}
