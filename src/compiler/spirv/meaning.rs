//! Meaning of decorations, storage classes and built-in variables for analyses.
//!
//! An analysis that calculates values from operations must know each decoration of a result: some change what the
//! operation gives. Here is the list of those that do not. A decoration that is not in the list, such as one of a new
//! extension, counts as one that may.

use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};

use super::index::{Definitions, IdSet};
use super::module::{Module, Section};
use super::words::Instruction;

/// Returns whether a decoration leaves the result of an operation on integers, pointers or vectors of these as it is,
/// wherever the operation is defined.
fn keeps_value(decoration: Decoration) -> bool {
    matches!(
        decoration,
        // Claims: where they do not hold, the result is not defined.
        Decoration::NoSignedWrap
            | Decoration::NoUnsignedWrap
            | Decoration::Alignment
            | Decoration::FuncParamAttr
            | Decoration::Restrict
            | Decoration::RestrictPointer
            | Decoration::Aliased
            | Decoration::AliasedPointer
            | Decoration::NonWritable
            | Decoration::NonReadable
            | Decoration::Constant
            // About memory, symbols, types or the source.
            | Decoration::Volatile
            | Decoration::Coherent
            | Decoration::BuiltIn
            | Decoration::SpecId
            | Decoration::CPacked
            | Decoration::LinkageAttributes
            | Decoration::UserSemantic
            // About floating-point numbers.
            | Decoration::NoContraction
            | Decoration::FPFastMathMode
    )
}

/// Returns the ids of results that a decoration may change. Members of decoration groups count as changed.
pub(super) fn changed(module: &Module) -> IdSet {
    let mut changed = IdSet::of(module);
    for i in module.section(Section::Annotations).iter() {
        match i.op() {
            Some(Op::Decorate | Op::DecorateString) => {
                if !i.word(1).and_then(Decoration::from_u32).is_some_and(keeps_value) {
                    i.word(0).map(|id| changed.insert(id));
                }
            }
            Some(Op::MemberDecorate | Op::MemberDecorateString | Op::DecorationGroup) => {}
            _ => i.words_from(0).for_each(|id| _ = changed.insert(id)),
        }
    }
    changed
}

/// Returns whether an analysis knows the memory that pointers of a storage class lead to.
pub(crate) fn is_known_class(class: StorageClass) -> bool {
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
pub(crate) fn unfit_built_in(
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
