//! Claims of a module that compilers take for granted, and that a launch might not keep.
//!
//! Each decoration of an accepted module is in a list of known ones: those that claim nothing, and those whose
//! claims the check covers. The same holds for execution modes, for the flags of loops, accesses and functions.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{
    Access, Address, Definitions, Effect, Function, Instruction, Meaning, Section, View,
};
use kiln_spirv::{Module, unfit_built_in};
use rspirv::spirv::{
    Decoration, ExecutionMode, FunctionControl, LoopControl, MemoryAccess, Op, StorageClass,
};

use super::defined::refused_struct;
use crate::analysis::vector_access::extended;
use crate::transform::merge::set_control;
use crate::transform::modes::Modes;

/// Maximum number of calculations of an address that are followed.
const MAX_STEPS: usize = 16;

/// Maximum number of copies and selections from which the address that a function gets is followed.
const MAX_ORIGINS: usize = 256;

/// Returns the reason why a kernel's module is refused for a claim, worded to follow "it".
pub(super) fn refused(definitions: &Definitions<'_>) -> Option<String> {
    let module = definitions.module();
    let mut annotations = module.section(Section::Annotations).iter();
    let decorations = annotations.find_map(|i| refused_decoration(definitions, &i));
    decorations
        .or_else(|| refused_built_in(definitions))
        .or_else(|| refused_struct(definitions))
        .or_else(|| {
            let is_false = !false_claims(definitions).is_empty();
            is_false.then(|| {
                "it calls a function that claims to have no effects, but accesses memory".to_owned()
            })
        })
}

/// Returns the reason why a built-in value or an input variable is refused, if one is.
fn refused_built_in(definitions: &Definitions<'_>) -> Option<String> {
    let module = definitions.module();
    let Some(address_bytes) = module.address_bytes() else {
        return Some("its module has an addressing model that is not followed".to_owned());
    };
    let is_built_in = |i: &Instruction<'_>| match i.view() {
        View::Decorate { decoration, .. }
        | View::DecorateId { decoration, .. }
        | View::MemberDecorate { decoration, .. } => decoration == Decoration::BuiltIn as u32,
        _ => false,
    };
    let mut known = HashSet::new();
    for i in module.section(Section::Annotations).iter().filter(is_built_in) {
        let unfit = unfit_built_in(definitions, &i, 8 * address_bytes);
        let is_new = i.target().is_some_and(|id| known.insert(id));
        let twice = (!is_new).then(|| "has a variable with two built-in values".to_owned());
        if let Some(reason) = unfit.or(twice) {
            return Some(format!("its module {reason}"));
        }
    }
    let mut globals = module.section(Section::Globals).iter();
    let other = globals.find(|i| {
        let is_input = i.variable().is_some_and(|(class, _)| class == StorageClass::Input as u32);
        is_input && i.result().is_some_and(|id| !known.contains(&id))
    });
    other.map(|_| "its module has an input variable without a built-in value".to_owned())
}

/// Returns the reason why an execution mode of a kernel is refused, if one is.
pub(super) fn refused_mode(modes: &Modes) -> Option<String> {
    const KNOWN: [ExecutionMode; 9] = [
        ExecutionMode::LocalSize,
        ExecutionMode::LocalSizeHint,
        ExecutionMode::VecTypeHint,
        ExecutionMode::ContractionOff,
        ExecutionMode::DenormPreserve,
        ExecutionMode::DenormFlushToZero,
        ExecutionMode::SignedZeroInfNanPreserve,
        ExecutionMode::RoundingModeRTE,
        ExecutionMode::RoundingModeRTZ,
    ];
    let mode = modes.ids().find(|&mode| !KNOWN.iter().any(|known| *known as u32 == mode))?;
    Some(match ExecutionMode::from_u32(mode) {
        Some(mode) => format!("it has the execution mode {mode:?}, which is not followed"),
        None => format!("it has the execution mode {mode}, which is not known"),
    })
}

/// Returns the reason why the flags of an instruction are refused, if they are.
pub(super) fn refused_flags(i: &Instruction<'_>) -> Option<String> {
    let accesses = MemoryAccess::VOLATILE | MemoryAccess::ALIGNED | MemoryAccess::NONTEMPORAL;
    let loops = LoopControl::UNROLL
        | LoopControl::DONT_UNROLL
        | LoopControl::PEEL_COUNT
        | LoopControl::PARTIAL_COUNT;
    let mask = |access: Access<'_>| access.mask().unwrap_or(0);
    let (flags, known) = match i.view() {
        View::Load { access, .. } | View::Store { access, .. } => (mask(access), accesses.bits()),
        View::CopyMemory { access, source_access, .. }
        | View::CopyMemorySized { access, source_access, .. } => {
            (mask(access) | mask(source_access), accesses.bits())
        }
        View::LoopMerge { control, .. } => (control, loops.bits()),
        _ => return None,
    };
    let other = flags & !known;
    (other != 0).then(|| format!("{} has the flags {other:#x}, which are not followed", i.name()))
}

/// Returns the module without the flags of functions that claim to have no effects, or to depend on nothing but
/// their arguments, and do not keep that. Returns `None` if all keep what they claim.
///
/// llvm-spirv exchanges the two flags, so that one of them is set for each function that reads memory.
#[must_use]
pub fn without_false_claims(module: &Module) -> Option<Module> {
    let definitions = module.definitions();
    let false_claims = false_claims(&definitions);
    if false_claims.is_empty() {
        return None;
    }
    let mut new = module.clone();
    for function in false_claims {
        set_control(&mut new, function, |control| control & !CLAIMS.bits());
    }
    Some(new)
}

/// Flags by which a function claims to have no effects.
const CLAIMS: FunctionControl = FunctionControl::PURE.union(FunctionControl::CONST);

/// Returns the ids of the functions that claim to have no effects, but access other memory than their own
/// variables, or call functions that may. Compilers omit writes to memory that only functions without effects
/// would read.
fn false_claims(definitions: &Definitions<'_>) -> BTreeSet<u32> {
    let functions = &definitions.module().functions;
    let claiming = functions.iter().filter(|function| {
        let declared = function.body.iter().find(|i| i.op() == Some(Op::Function));
        declared.is_some_and(|i| match i.view() {
            View::Function { control, .. } => control & CLAIMS.bits() != 0,
            _ => false,
        })
    });
    let claiming: Vec<_> = claiming.filter(|function| !function.is_declaration()).collect();
    let mut pure: HashSet<_> = claiming.iter().map(|function| function.id).collect();
    loop {
        let keeps = |function: &&&Function| {
            function.body.iter().all(|i| has_no_effects(definitions, &pure, &i))
        };
        let kept: HashSet<_> = claiming
            .iter()
            .filter(|function| pure.contains(&function.id))
            .filter(keeps)
            .map(|function| function.id)
            .collect();
        if kept.len() == pure.len() {
            break;
        }
        pure = kept;
    }
    claiming.iter().map(|function| function.id).filter(|id| !pure.contains(id)).collect()
}

/// Returns whether an instruction accesses no memory but variables of its own function. `pure` has the
/// functions that do not, either.
fn has_no_effects(definitions: &Definitions<'_>, pure: &HashSet<u32>, i: &Instruction<'_>) -> bool {
    match i.view() {
        View::Load { pointer, .. } | View::Store { pointer, .. } => is_own(definitions, pointer),
        View::Call { function, .. } => pure.contains(&function),
        View::ExtInst { .. } => extended(definitions, i).is_none() || !has_pointer(definitions, i),
        View::ControlBarrier { .. } => false,
        _ => match i.op().and_then(Meaning::of).map(|meaning| meaning.effect) {
            Some(
                Effect::Structure
                | Effect::Calculation
                | Effect::Address
                | Effect::Image
                | Effect::Group,
            ) => true,
            Some(
                Effect::Memory | Effect::Atomic | Effect::Fence | Effect::Pixel | Effect::Extended,
            )
            | None => false,
        },
    }
}

/// Returns whether an extended instruction has a pointer among its arguments.
fn has_pointer(definitions: &Definitions<'_>, i: &Instruction<'_>) -> bool {
    i.extended_operands()
        .any(|id| definitions.type_of(id).is_some_and(|ty| ty.op() == Some(Op::TypePointer)))
}

/// Returns whether a pointer leads to a variable of the function itself, or to an input.
fn is_own(definitions: &Definitions<'_>, pointer: u32) -> bool {
    let base = base(definitions, pointer).filter(|(_, i)| i.op() == Some(Op::Variable));
    let class = base.and_then(|(_, i)| StorageClass::from_u32(i.variable()?.0));
    let own = [StorageClass::Function, StorageClass::Input, StorageClass::UniformConstant];
    class.is_some_and(|class| own.contains(&class))
}

/// Returns what an address is calculated from: the id, and the instruction that defines it. `None` if there are
/// too many calculations to follow.
pub(super) fn base<'m>(
    definitions: &Definitions<'m>,
    mut pointer: u32,
) -> Option<(u32, Instruction<'m>)> {
    for _ in 0..MAX_STEPS {
        let i = definitions.get(pointer)?;
        match i.row().map(|row| row.address) {
            Some(Address::Copy | Address::Part) => pointer = i.derived_from()?,
            _ => return Some((pointer, i)),
        }
    }
    None
}

/// Returns whether an alignment is claimed of a variable, or of a parameter, whose claims are
/// [known](alignments).
fn is_about_memory(definitions: &Definitions<'_>, decoration: &Instruction<'_>) -> bool {
    let target = decoration.target().and_then(|target| definitions.get(target));
    let op = target.and_then(|target| target.op());
    matches!(op, Some(Op::Variable | Op::FunctionParameter))
}

/// Returns the reason why a decoration is refused, if it is.
fn refused_decoration(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<String> {
    let decoration = match i.view() {
        View::Decorate { decoration, .. } | View::MemberDecorate { decoration, .. } => decoration,
        // An operand that is an id may be a claim about a value that is not known here.
        _ => return Some(format!("its module has {}, which is not followed", i.name())),
    };
    match Decoration::from_u32(decoration) {
        Some(Decoration::Alignment) if !is_about_memory(definitions, i) => {
            Some("it claims that a calculated address is aligned".to_owned())
        }
        Some(known) if is_covered(known) => None,
        Some(other) => {
            Some(format!("its module has the decoration {other:?}, which is not followed"))
        }
        None => Some("its module has a decoration that is not known".to_owned()),
    }
}

/// Returns the alignments in bytes that a kernel claims of the addresses in its parameters, by the parameters'
/// ids: those of its declaration, and those of the functions that it passes them to.
///
/// # Errors
///
/// The reason why the kernel is refused, worded to follow "it", if an alignment is claimed of another address.
pub(super) fn alignments(
    definitions: &Definitions<'_>,
    kernel: u32,
) -> Result<HashMap<u32, i128>, String> {
    let (functions, calls) = (parameters(definitions), calls(definitions));
    let annotations = definitions.module().section(Section::Annotations).iter();
    let claims = annotations.filter_map(|i| i.decoration(Decoration::Alignment));
    let claims = claims.filter_map(|(id, bytes)| Some((id, bytes.get(0)?)));
    let mut pending: Vec<_> = claims.filter(|(id, _)| functions.contains_key(id)).collect();
    let (mut known, mut seen) = (HashMap::new(), HashSet::new());
    while let Some((parameter, bytes)) = pending.pop() {
        let class = definitions.type_of(parameter).and_then(|ty| ty.storage_class());
        // Compilers align variables by themselves.
        if class == Some(StorageClass::Function as u32) || !seen.insert((parameter, bytes)) {
            continue;
        }
        let Some(&(function, at)) = functions.get(&parameter) else { continue };
        if function == kernel {
            let claimed = known.entry(parameter).or_insert(1);
            *claimed = i128::from(bytes).max(*claimed);
            continue;
        }
        for call in calls.iter().filter(|call| call.called() == Some(function)) {
            let passed = call.arguments().nth(at).and_then(|id| origins(definitions, id));
            let are_parameters = |ids: &Vec<u32>| ids.iter().all(|id| functions.contains_key(id));
            match passed.filter(are_parameters) {
                Some(ids) => pending.extend(ids.into_iter().map(|id| (id, bytes))),
                None => {
                    return Err(
                        "a function that it calls claims that the address in a parameter is aligned"
                            .to_owned(),
                    );
                }
            }
        }
    }
    Ok(known)
}

/// Returns the function and the position of each parameter, by its id.
pub(super) fn parameters(definitions: &Definitions<'_>) -> HashMap<u32, (u32, usize)> {
    let functions = definitions.module().functions.iter();
    let parameters = functions.flat_map(|function| {
        let all = function.body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
        let ids = all.filter_map(|i| i.result()).enumerate();
        ids.map(|(at, id)| (id, (function.id, at)))
    });
    parameters.collect()
}

/// Returns the calls of all functions.
pub(super) fn calls<'m>(definitions: &Definitions<'m>) -> Vec<Instruction<'m>> {
    let bodies = definitions.module().functions.iter().flat_map(|function| function.body.iter());
    bodies.filter(|i| i.op() == Some(Op::FunctionCall)).collect()
}

/// Returns the values that a value is a copy of, or a selection from, with the same addresses. `None` if there are
/// too many to follow.
fn origins(definitions: &Definitions<'_>, id: u32) -> Option<Vec<u32>> {
    let (mut pending, mut found) = (vec![id], Vec::new());
    for _ in 0..MAX_ORIGINS {
        let Some(id) = pending.pop() else { return Some(found) };
        let definition = definitions.get(id);
        let is_copy =
            definition.and_then(|i| i.row()).is_some_and(|row| row.address == Address::Copy);
        match definition.map(|i| i.view()) {
            Some(View::Select { yes, no, .. }) => pending.extend([yes, no]),
            Some(View::Unary { value }) if is_copy => pending.push(value),
            _ => found.push(id),
        }
    }
    None
}

/// Returns whether a decoration claims nothing, or whether the check covers what it claims.
fn is_covered(decoration: Decoration) -> bool {
    matches!(
        decoration,
        Decoration::SpecId
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
