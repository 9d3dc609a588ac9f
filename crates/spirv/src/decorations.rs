//! Meaning of decorations for analyses.
//!
//! An analysis that calculates values from operations must know each decoration of a result: some change what the
//! operation gives. Here is the list of those that do not. A decoration that is not in the list, such as one of a new
//! extension, counts as one that may.

use rspirv::spirv::{Decoration, Op};

use super::ids::IdSet;
use super::module::{Module, Section};

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
