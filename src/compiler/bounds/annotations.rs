//! Claims of a module about its values and its memory, as decorations, that a launch might not keep.
//!
//! Compilers take decorations for granted. Each decoration of an accepted module is in a list of known ones:
//! those that claim nothing, and those whose claims the check covers.

use rspirv::spirv::{Decoration, Op, StorageClass};

use crate::compiler::spirv::edit::{Definitions, Instruction, Section};

/// Returns the reason why a kernel's module is refused for a decoration, worded to follow "it".
pub(super) fn refused(definitions: &Definitions<'_>, kernel: u32) -> Option<String> {
    let module = definitions.module();
    module.section(Section::Annotations).iter().find_map(|i| {
        let decoration = match i.op() {
            Some(Op::Decorate | Op::DecorateString) => i.word(1),
            Some(Op::MemberDecorate | Op::MemberDecorateString) => i.word(2),
            // An operand that is an id may be a claim about a value that is not known here.
            _ => return Some(format!("its module has {}, which is not followed", i.name())),
        };
        let known = decoration.and_then(Decoration::from_u32);
        match known {
            Some(Decoration::Alignment) if is_about_pointer(definitions, kernel, &i) => Some(
                "a function that it calls claims that the address in a parameter is aligned"
                    .to_owned(),
            ),
            Some(known) if is_covered(known) => None,
            Some(other) => {
                Some(format!("its module has the decoration {other:?}, which is not followed"))
            }
            None => Some("its module has a decoration that is not known".to_owned()),
        }
    })
}

/// Returns whether an alignment is claimed of a pointer to memory that a launch provides. Alignments of variables are
/// kept by compilers, and those of the kernel's own parameters are compared with the arguments.
fn is_about_pointer(
    definitions: &Definitions<'_>,
    kernel: u32,
    decoration: &Instruction<'_>,
) -> bool {
    let Some(target) = decoration.word(0) else { return true };
    let Some(i) = definitions.get(target) else { return true };
    match i.op() {
        Some(Op::Variable) => false,
        Some(Op::FunctionParameter) => {
            let class = definitions.type_of(target).and_then(|ty| ty.word(1));
            let is_private = class == Some(StorageClass::Function as u32);
            let module = definitions.module();
            let own = module.functions.iter().find(|function| function.id == kernel);
            let mut own = own.into_iter().flat_map(|function| function.body.iter());
            !is_private
                && !own.any(|i| i.op() == Some(Op::FunctionParameter) && i.result() == Some(target))
        }
        _ => true,
    }
}

/// Returns whether a decoration claims nothing, or whether the check covers what it claims.
fn is_covered(decoration: Decoration) -> bool {
    matches!(
        decoration,
        Decoration::RelaxedPrecision
            | Decoration::SpecId
            | Decoration::CPacked
            | Decoration::BuiltIn
            | Decoration::Restrict
            | Decoration::RestrictPointer
            | Decoration::Aliased
            | Decoration::AliasedPointer
            | Decoration::Volatile
            | Decoration::Constant
            | Decoration::Coherent
            | Decoration::NonWritable
            | Decoration::SaturatedConversion
            | Decoration::FuncParamAttr
            | Decoration::FPRoundingMode
            | Decoration::FPFastMathMode
            | Decoration::LinkageAttributes
            | Decoration::NoContraction
            | Decoration::Alignment
            | Decoration::NoSignedWrap
            | Decoration::NoUnsignedWrap
            | Decoration::UserSemantic
    )
}
