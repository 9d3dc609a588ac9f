//! Meaning of storage classes and built-in variables for analyses.

use rspirv::spirv::{BuiltIn, Op, StorageClass};

use super::index::Definitions;
use super::words::Instruction;

/// Returns whether an analysis knows the memory that pointers of a storage class lead to.
#[must_use]
pub fn is_known_class(class: StorageClass) -> bool {
    matches!(
        class,
        // Built-in variables.
        StorageClass::Input
            // Variables of a work-item.
            | StorageClass::Function
            // Local memory.
            | StorageClass::Workgroup
            // Global memory.
            | StorageClass::CrossWorkgroup
            // Constant memory, images and samplers.
            | StorageClass::UniformConstant
            // Memory of a work-item, local or global memory.
            | StorageClass::Generic
    )
}

/// Type of a built-in variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BuiltInType {
    /// Three integers as wide as an address.
    Sizes,
    /// An integer as wide as an address.
    Size,
    /// An integer of 32 bits.
    Int,
}

/// Returns the type of a built-in variable of kernels; `None` if it is not known.
fn built_in_type(built_in: BuiltIn) -> Option<BuiltInType> {
    Some(match built_in {
        BuiltIn::GlobalInvocationId
        | BuiltIn::LocalInvocationId
        | BuiltIn::WorkgroupId
        | BuiltIn::NumWorkgroups
        | BuiltIn::WorkgroupSize
        | BuiltIn::EnqueuedWorkgroupSize
        | BuiltIn::GlobalSize
        | BuiltIn::GlobalOffset => BuiltInType::Sizes,
        BuiltIn::GlobalLinearId | BuiltIn::LocalInvocationIndex => BuiltInType::Size,
        BuiltIn::WorkDim
        | BuiltIn::SubgroupSize
        | BuiltIn::SubgroupMaxSize
        | BuiltIn::NumSubgroups
        | BuiltIn::NumEnqueuedSubgroups
        | BuiltIn::SubgroupId
        | BuiltIn::SubgroupLocalInvocationId => BuiltInType::Int,
        _ => return None,
    })
}

/// Returns why a variable, or another id, cannot be the built-in variable that a decoration says it is, worded to
/// follow "it". Returns `None` if it can.
pub fn unfit_built_in(
    definitions: &Definitions<'_>,
    decoration: &Instruction<'_>,
    address_bits: u32,
) -> Option<String> {
    let number = decoration.word(2).unwrap_or(u32::MAX);
    let Some(built_in) = BuiltIn::from_u32(number) else {
        return Some(format!("has the built-in value {number}, which is not known"));
    };
    let variable = decoration.word(0).and_then(|id| definitions.get(id));
    let is_input = decoration.op() == Some(Op::Decorate)
        && variable.is_some_and(|i| {
            i.op() == Some(Op::Variable) && i.word(2) == Some(StorageClass::Input as u32)
        });
    if !is_input {
        return Some(format!("has the built-in value {built_in:?} outside of an input variable"));
    }
    let Some(expected) = built_in_type(built_in) else {
        return Some(format!("has the built-in variable {built_in:?}, which is not followed"));
    };
    let pointer = variable.and_then(|i| definitions.get(i.result_type()?));
    let value = pointer.and_then(|ty| definitions.get(ty.word(2)?));
    let is_int = |ty: Option<Instruction<'_>>, bits: u32| {
        ty.is_some_and(|ty| ty.op() == Some(Op::TypeInt) && ty.word(1) == Some(bits))
    };
    let fits = match expected {
        BuiltInType::Int => is_int(value, 32),
        BuiltInType::Size => is_int(value, address_bits),
        BuiltInType::Sizes => value.is_some_and(|ty| {
            let component = ty.word(1).and_then(|id| definitions.get(id));
            ty.op() == Some(Op::TypeVector)
                && ty.word(2) == Some(3)
                && is_int(component, address_bits)
        }),
    };
    (!fits).then(|| format!("has the built-in variable {built_in:?} with another type than it has"))
}
