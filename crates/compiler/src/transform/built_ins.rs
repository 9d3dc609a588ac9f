//! Built-in values of the device, such as the global id: the variables that hold them, and calculations with
//! them.

use kiln_spirv::edit::{Interner, Section, Stream, string_words};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{BuiltIn, Decoration, LinkageType, Op, StorageClass};

use crate::NdRange;
use crate::analysis::access::Layouts;
use crate::ranges::{Sizes, padded};

/// Type of a variable that holds a built-in value.
#[derive(Clone, Copy)]
pub(crate) struct BuiltInType {
    pub(crate) ty: u32,
    /// Type of the components.
    pub(crate) component: u32,
    /// Width of a component, in bits.
    pub(crate) width: u32,
    pub(crate) is_vector: bool,
}

impl BuiltInType {
    pub(crate) fn of(module: &Module, variable: u32) -> Option<Self> {
        let definitions = module.definitions();
        let ty = definitions.type_of(variable)?.pointee()?;
        let vector = definitions.get(ty)?.vector().filter(|(_, count)| *count == 3);
        let (is_vector, component) =
            (vector.is_some(), vector.map_or(ty, |(component, _)| component));
        let int = definitions.get(component).filter(|i| i.op() == Some(Op::TypeInt))?;
        let width = int.width().filter(|width| matches!(width, 32 | 64))?;
        Some(Self { ty, component, width, is_vector })
    }

    /// Emits the calculation of a vector of ids, without the offset, from the linear id in an nd-range of these
    /// sizes. Returns the vector's id.
    pub(crate) fn id_vector(
        self,
        module: &mut Module,
        interner: &mut Interner,
        body: &mut Stream,
        linear: u32,
        sizes: Sizes,
    ) -> Result<u32> {
        let zero = number(module, interner, self, 0)?;
        let (mut parts, mut rest) = ([zero; 3], linear);
        let last = sizes.iter().rposition(|&size| size > 1).unwrap_or(0);
        for (d, &size) in sizes.iter().enumerate().take(last + 1) {
            if d == last {
                parts[d] = rest;
            } else if size > 1 {
                let size = number(module, interner, self, size as u64)?;
                let (part, quotient) = (module.fresh_id()?, module.fresh_id()?);
                body.push(Op::UMod, [self.component, part, rest, size]);
                body.push(Op::UDiv, [self.component, quotient, rest, size]);
                (parts[d], rest) = (part, quotient);
            }
        }
        let whole = module.fresh_id()?;
        body.push(Op::CompositeConstruct, [self.ty, whole, parts[0], parts[1], parts[2]]);
        Ok(whole)
    }
}

/// Returns the constant of a number, in the component type of a built-in value.
pub(crate) fn number(
    module: &mut Module,
    interner: &mut Interner,
    value_type: BuiltInType,
    value: u64,
) -> Result<u32> {
    let words = [value as u32, (value >> 32) as u32];
    let words = if value_type.width == 32 { &words[..1] } else { &words };
    interner.constant_id(module, Op::Constant, value_type.component, words)
}

/// Returns the variable of a module that holds a vector of the device's values. Adds one if the module has
/// none.
pub(crate) fn vector(
    module: &mut Module,
    interner: &mut Interner,
    built_in: BuiltIn,
) -> Result<(u32, BuiltInType)> {
    let known = module.built_ins().find(|&(_, known)| known == built_in as u32);
    if let Some((variable, _)) = known
        && let Some(value_type) =
            BuiltInType::of(module, variable).filter(|value_type| value_type.is_vector)
    {
        return Ok((variable, value_type));
    }
    let width = Layouts::of(module, &module.definitions()).address as u32 * 8;
    let component = interner.type_id(module, Op::TypeInt, &[width, 0])?;
    let ty = interner.type_id(module, Op::TypeVector, &[component, 3])?;
    let class = StorageClass::Input as u32;
    let pointer = interner.type_id(module, Op::TypePointer, &[class, ty])?;
    let variable = module.fresh_id()?;
    module.section_mut(Section::Globals).push(Op::Variable, [pointer, variable, class]);
    let annotations = module.section_mut(Section::Annotations);
    let name = format!("__spirv_BuiltIn{built_in:?}");
    let linkage = [variable, Decoration::LinkageAttributes as u32].into_iter();
    let linkage = linkage.chain(string_words(&name)).chain([LinkageType::Import as u32]);
    annotations.push(Op::Decorate, linkage);
    annotations.push(Op::Decorate, [variable, Decoration::Constant as u32]);
    let words = [variable, Decoration::BuiltIn as u32, built_in as u32];
    annotations.push(Op::Decorate, words);
    let value_type = BuiltInType { ty, component, width, is_vector: true };
    Ok((variable, value_type))
}

/// Loads the id of the work-group. Returns the vector, and the type and width of its components.
pub(crate) fn group_id(
    module: &mut Module,
    interner: &mut Interner,
    body: &mut Stream,
) -> Result<(u32, u32, u32)> {
    let (variable, value_type) = vector(module, interner, BuiltIn::WorkgroupId)?;
    let loaded = module.fresh_id()?;
    body.push(Op::Load, [value_type.ty, loaded, variable]);
    Ok((loaded, value_type.component, value_type.width))
}

/// Variable that holds the global id.
#[derive(Clone, Copy)]
pub(crate) struct Global {
    pub(crate) variable: u32,
    pub(crate) value_type: BuiltInType,
}

impl Global {
    /// Finds the variable of a module, or adds one.
    pub(crate) fn of(module: &mut Module, interner: &mut Interner) -> Result<Self> {
        let (variable, value_type) = vector(module, interner, BuiltIn::GlobalInvocationId)?;
        Ok(Self { variable, value_type })
    }

    /// Emits the calculation of the linear id in an nd-range. Returns its id.
    pub(crate) fn linear_id(
        self,
        module: &mut Module,
        interner: &mut Interner,
        body: &mut Stream,
        whole: &NdRange,
    ) -> Result<u32> {
        let Self { variable, value_type } = self;
        let loaded = module.fresh_id()?;
        body.push(Op::Load, [value_type.ty, loaded, variable]);
        let (sizes, offsets) = (padded(whole.global(), 1), padded(whole.offset(), 0));
        let mut sum = None;
        for d in (0..3).rev() {
            if let Some(known) = &mut sum {
                if sizes[d] > 1 {
                    let size = number(module, interner, value_type, sizes[d] as u64)?;
                    let product = module.fresh_id()?;
                    body.push(Op::IMul, [value_type.component, product, *known, size]);
                    *known = product;
                } else {
                    continue;
                }
            } else if sizes[d] <= 1 && d > 0 {
                continue;
            }
            let mut part = module.fresh_id()?;
            body.push(Op::CompositeExtract, [value_type.component, part, loaded, d as u32]);
            if offsets[d] > 0 {
                let offset = number(module, interner, value_type, offsets[d] as u64)?;
                let from_zero = module.fresh_id()?;
                body.push(Op::ISub, [value_type.component, from_zero, part, offset]);
                part = from_zero;
            }
            sum = Some(match sum {
                None => part,
                Some(sum) => {
                    let id = module.fresh_id()?;
                    body.push(Op::IAdd, [value_type.component, id, sum, part]);
                    id
                }
            });
        }
        sum.ok_or_else(|| Error::unsupported("the nd-range has no dimensions"))
    }

    /// Emits the condition that the linear id is below a number. Returns the condition's id.
    pub(crate) fn is_below(
        self,
        module: &mut Module,
        interner: &mut Interner,
        body: &mut Stream,
        whole: &NdRange,
        count: u64,
    ) -> Result<u32> {
        let linear = self.linear_id(module, interner, body, whole)?;
        let count = number(module, interner, self.value_type, count)?;
        let bool = interner.type_id(module, Op::TypeBool, &[])?;
        let id = module.fresh_id()?;
        body.push(Op::ULessThan, [bool, id, linear, count]);
        Ok(id)
    }
}
