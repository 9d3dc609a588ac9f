//! Code that the proof does not cover, and that cannot be guarded either.
//!
//! Each instruction of an accepted kernel has a [meaning](Meaning). An instruction that has none is refused by name, so
//! that an extension that accesses memory in a new way cannot go unnoticed.

use std::collections::HashMap;

use kiln_spirv::edit::Context as _;
use kiln_spirv::edit::{
    Definitions, Effect, ExtendedSet, Instruction, Location, Meaning, Section, View, ids, located,
};
use kiln_spirv::{Error, Result, is_known_class};
use rspirv::spirv::{Op, OpenclStd100Op as Extended, StorageClass};

use super::{claims, types};
use crate::analysis::explain;
use crate::analysis::vector_access::VectorAccess;

/// Returns the error for a kernel that is refused for a reason, worded to follow "it".
pub(super) fn refuse(kernel: &str, reason: &str) -> Error {
    Error::unsupported(format!(
        "the launches of `{kernel}` cannot be checked: {reason}; `unsafe program.kernel(\"{kernel}\")` gives the \
         kernel unchecked, for a caller who knows that its launches stay inside their buffers"
    ))
}

/// Returns a reason with the line of the source that it is about, if the module states the line.
pub(super) fn at_line(definitions: &Definitions<'_>, location: Location, reason: String) -> String {
    match explain::line(definitions, location) {
        Some(line) => format!("{reason} ({line})"),
        None => reason,
    }
}

/// Sections outside of functions whose instructions the proof reads.
const READ_SECTIONS: [Section; 5] = [
    Section::MemoryModel,
    Section::EntryPoints,
    Section::ExecutionModes,
    Section::Annotations,
    Section::Globals,
];

/// Checks that a function, and the functions that it calls, have only code that the proof covers.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) with the reason.
pub(super) fn check_code(definitions: &Definitions<'_>, function: u32, kernel: &str) -> Result<()> {
    let calls = Calls::of(definitions);
    calls.check(function, &mut HashMap::new()).map_err(|reason| refuse(kernel, &reason))?;
    let module = definitions.module();
    let refused = module.section(Section::Globals).iter().find(|i| !is_known_global(i));
    if let Some(i) = refused {
        return Err(refuse(kernel, &format!("its module has {}, which is not followed", i.name())));
    }
    let mut globals = module.section(Section::Globals).iter();
    if let Some(class) = globals.find_map(|i| unknown_class(&i)) {
        let reason = format!("its module has pointers of the storage class {class}");
        return Err(refuse(kernel, &format!("{reason}, which is not followed")));
    }
    let mut read = READ_SECTIONS.iter().flat_map(|section| module.section(*section).iter());
    if let Some(i) = read.find(|i| i.row().is_some() && matches!(i.view(), View::Unknown)) {
        return Err(refuse(kernel, &unknown_reason(&i)));
    }
    if let Some(reason) = claims::refused(definitions) {
        return Err(refuse(kernel, &reason));
    }
    for (stream, known) in (Section::COUNT as u32..).zip(&module.functions) {
        for (location, i) in located((stream, &known.body)) {
            let reason = refused_instruction(definitions, &i)
                .or_else(|| claims::refused_flags(&i))
                .or_else(|| unknown_operands(definitions, &i))
                .or_else(|| written_constant(definitions, &i))
                .or_else(|| {
                    let unfit = types::unfit(definitions, known, &i);
                    unfit.map(|reason| format!("it {reason}"))
                });
            if let Some(reason) = reason {
                return Err(refuse(kernel, &at_line(definitions, location, reason)));
            }
        }
    }
    Ok(())
}

/// Functions of a module and their calls.
struct Calls<'a, 'm> {
    definitions: &'a Definitions<'m>,
    functions: HashMap<u32, usize>,
}

impl<'a, 'm> Calls<'a, 'm> {
    fn of(definitions: &'a Definitions<'m>) -> Self {
        let functions = definitions.module().functions.iter().enumerate();
        Self { definitions, functions: functions.map(|(at, known)| (known.id, at)).collect() }
    }

    /// Checks that all functions that a function calls have code, and do not call themselves. `seen` has the
    /// functions that were checked, and false for those whose calls are being checked.
    fn check(&self, function: u32, seen: &mut HashMap<u32, bool>) -> Result<(), String> {
        let module = self.definitions.module();
        let name = || {
            let names = module.section(Section::Names).iter();
            let mut names = names.filter_map(|i| i.named());
            let name = names.find(|(id, _)| *id == function);
            name.map_or_else(|| "a function".to_owned(), |(_, name)| format!("`{name}`"))
        };
        match seen.get(&function) {
            Some(true) => return Ok(()),
            Some(false) => return Err(format!("{} calls itself", name())),
            None => {}
        }
        let known = self.functions.get(&function).map(|&at| &module.functions[at]);
        let Some(known) = known.filter(|known| !known.is_declaration()) else {
            return Err(format!("it calls {}, whose code is not in the module", name()));
        };
        if seen.values().filter(|is_done| !*is_done).count() >= MAX_DEPTH {
            return Err("its calls are nested too deeply".to_owned());
        }
        seen.insert(function, false);
        for i in known.body.iter().filter(|i| i.op() == Some(Op::FunctionCall)) {
            self.check(i.called().unwrap_or_default(), seen)?;
        }
        seen.insert(function, true);
        Ok(())
    }
}

/// Maximum depth of nested calls that the analysis follows.
const MAX_DEPTH: usize = 16;

/// Returns whether an instruction outside of functions is covered.
fn is_known_global(i: &Instruction<'_>) -> bool {
    i.row().is_some_and(|row| row.global.is_followed())
}

/// Returns the storage class of a type of pointers, if its memory is not known.
fn unknown_class(i: &Instruction<'_>) -> Option<String> {
    let class = i.storage_class()?;
    match StorageClass::from_u32(class) {
        Some(class) => (!is_known_class(class)).then(|| format!("{class:?}")),
        None => Some(class.to_string()),
    }
}

/// Returns the reason to refuse an instruction whose operands are not known. The values that its result depends on
/// would not be known, either.
fn unknown_operands(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<String> {
    let known = ids(i, definitions, |_, _| {});
    known.is_err().then(|| unknown_reason(i))
}

/// Returns the reason to refuse an instruction with words that are missing or left over.
fn unknown_reason(i: &Instruction<'_>) -> String {
    format!("the operands of {} are not known", i.name())
}

/// Returns the reason to refuse an instruction that writes to memory which no code may write: a built-in variable, or
/// constant memory. Compilers of drivers do not expect it.
fn written_constant(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<String> {
    let pointers: Vec<u32> = match (Meaning::of(i.op()?)?.effect, i.view()) {
        // A load reads, and a pixel is in an image. Other instructions access no memory.
        (Effect::Memory, View::Load { .. }) => Vec::new(),
        (
            Effect::Memory,
            View::CopyMemory { target, .. } | View::CopyMemorySized { target, .. },
        ) => {
            vec![target]
        }
        (Effect::Memory | Effect::Atomic, _) => i.pointer().into_iter().collect(),
        (Effect::Extended, _) => match VectorAccess::of(definitions, i) {
            Some(access) if access.stored.is_none() => Vec::new(),
            _ => i.extended_operands().collect(),
        },
        (
            Effect::Structure
            | Effect::Calculation
            | Effect::Address
            | Effect::Fence
            | Effect::Group
            | Effect::Image
            | Effect::Pixel,
            _,
        ) => Vec::new(),
    };
    let class = |pointer: &u32| {
        let ty = definitions.type_of(*pointer)?;
        let View::TypePointer { class, .. } = ty.view() else { return None };
        StorageClass::from_u32(class)
    };
    let memory = pointers.iter().find_map(|pointer| match class(pointer)? {
        StorageClass::Input => Some("a built-in variable"),
        StorageClass::UniformConstant => Some("constant memory"),
        _ => None,
    })?;
    Some(format!("it has {}, which writes to {memory}", i.name()))
}

/// Returns the reason why an instruction of a function is refused, if it is.
fn refused_instruction(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<String> {
    let Some(op) = i.op() else {
        return Some(format!("it has the instruction {}, which is not known", i.name()));
    };
    if op == Op::ExtInst {
        let set = i.extended().map(|(set, _)| definitions.extended_set(set));
        let function = i.extended().and_then(|(_, function)| Extended::from_u32(function));
        return match (set, function) {
            (Some(ExtendedSet::OpenClStd), Some(Extended::printf)) => {
                Some("it calls `printf`, whose format is not checked".to_owned())
            }
            (Some(ExtendedSet::OpenClStd), Some(function)) => Meaning::of_function(function)
                .is_none()
                .then(|| format!("it calls the function `{function:?}`, which is not followed")),
            (
                Some(
                    ExtendedSet::DebugInfo
                    | ExtendedSet::OpenClDebugInfo100
                    | ExtendedSet::NonSemantic,
                ),
                _,
            ) => None,
            _ => Some("it calls a function of an unknown set of extended instructions".to_owned()),
        };
    }
    let name = i.name();
    let is_known = Meaning::of(op).is_some();
    (!is_known).then(|| format!("it has the instruction {name}, which is not followed"))
}
