//! Objects, and the linking of programs from them.
//!
//! Linking patches the driver's modules. So an object is kept as the binary that its compile produced, and each
//! program loads all of its objects for itself. A linked program is stored as the same binaries, in a container
//! of Kiln's own format.

use std::any::Any;
use std::collections::HashSet;
use std::ptr;
use std::sync::Arc;

use super::codes::{Code, check};
use super::context::Context;
use super::program::{self, LzProgram, Modules, one_at_a_time, take_log};
use super::ze_info::signatures;
use crate::backend::{Kernel, Program, Source, arranging};
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};

/// Build option that keeps the symbols that other objects import. Without it the compiler drops them, and
/// linking fails.
const SHARING: &str = "-library-compilation";

/// Magic number at the start of a container. It is not text, since it is not valid UTF-8, and is neither ELF
/// nor SPIR-V. A transfer that converts line ends, or cuts off the eighth bit, damages it.
const MAGIC: [u8; 16] = *b"\x8eKiln objects\r\n\x1a";

/// Alignment of the binaries in a container, in bytes.
const ALIGNMENT: usize = 8;

/// Maximum number of undefined symbols that a message names.
const TOLD: usize = 8;

/// A module that is compiled and not linked.
pub(super) struct LzObject {
    binary: Vec<u8>,
    build_log: String,
}

impl Program for LzObject {
    fn kernels(&self) -> &[Arc<dyn Kernel>] {
        &[]
    }

    fn build_log(&self) -> &str {
        &self.build_log
    }

    fn binary_size(&self) -> Option<usize> {
        Some(self.binary.len())
    }

    fn binary(&self) -> Result<Vec<u8>> {
        Ok(self.binary.clone())
    }
}

/// Compiles an object, or takes the binary of one. The driver checks such a binary only when it is linked.
pub(super) fn compile(context: &Arc<Context>, source: &Source<'_>) -> Result<LzObject> {
    if let Some(lost) = context.loss() {
        return Err(lost.clone());
    }
    if source.format == ModuleFormat::Native {
        return Ok(LzObject { binary: source.code.to_vec(), build_log: String::new() });
    }
    let _call = arranging::compile(arranging::Kind::Compile)?;
    let options = format!("{SHARING} {}", source.options);
    let (module, log) = program::create(context, &Source { options: &options, ..*source })?;
    // Imported symbols are unresolved until the object is linked.
    let is_expected = |line: &&str| line.starts_with("error : unresolved external symbol");
    let lines: Vec<_> = log.lines().filter(|line| !is_expected(line)).collect();
    let build_log = lines.join("\n").trim().to_owned();
    Ok(LzObject { binary: program::binary(context, &module)?, build_log })
}

/// Links objects to a program and creates all its kernels.
pub(super) fn link(context: &Arc<Context>, objects: &[&dyn Program]) -> Result<LzProgram> {
    let binary = |object: &&'_ dyn Program| {
        let object = (*object as &dyn Any).downcast_ref::<LzObject>();
        object.map(|object| object.binary.clone()).ok_or_else(|| {
            Error::invalid("an object to link belongs to a device of another backend")
        })
    };
    let binaries: Vec<_> = objects.iter().map(binary).collect::<Result<_>>()?;
    link_binaries(context, &binaries.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Links the binaries of objects to a program and creates all its kernels.
pub(super) fn link_binaries(context: &Arc<Context>, binaries: &[&[u8]]) -> Result<LzProgram> {
    if let Some(lost) = context.loss() {
        return Err(lost.clone());
    }
    let _call = arranging::compile(arranging::Kind::Load)?;
    let load = |code: &&[u8]| {
        let format = ModuleFormat::Native;
        let source = Source { format, code, options: "", constants: &[] };
        program::create(context, &source).map(|(module, _)| module)
    };
    let modules: Vec<_> = binaries.iter().map(load).collect::<Result<_>>()?;
    let mut handles: Vec<_> = modules.iter().map(|module| module.raw()).collect();
    let mut log = ptr::null_mut();
    let linking = one_at_a_time();
    // SAFETY: the modules are alive, belong to one context, and are owned only here; `handles` has as many
    // elements as its length says.
    let linked = unsafe {
        (context.api.zeModuleDynamicLink)(handles.len() as u32, handles.as_mut_ptr(), &raw mut log)
    };
    drop(linking);
    let log = Log::of(&take_log(context, log));
    check(linked).map_err(|code| refusal(context, code, binaries.len(), &log))?;
    let known: Vec<_> = binaries.iter().map(|binary| signatures(binary)).collect();
    let program = LzProgram::new(Modules::linked(modules, context), log.text.clone(), &known)
        .map_err(|code| refusal(context, code, binaries.len(), &log))?;
    let mut names = HashSet::new();
    if let Some(twice) = program.kernels().iter().find(|kernel| !names.insert(kernel.name())) {
        let message = format!("the kernel `{}` is in two of the linked modules", twice.name());
        return Err(Error::new(ErrorKind::BuildFailed, message));
    }
    Ok(program)
}

fn refusal(context: &Context, code: Code, count: usize, log: &Log) -> Error {
    let mut message = format!("`{}` cannot link the {count} modules", context.info.name);
    let names: Vec<_> = log.unresolved.iter().map(|name| format!("`{name}`")).collect();
    if !names.is_empty() {
        let (told, more) = names.split_at(names.len().min(TOLD));
        let more = if more.is_empty() { "" } else { " and others" };
        message.push_str(&format!(": none of them defines {}{more}", told.join(", ")));
    }
    if code.is_loss() {
        return context.error(code, message);
    }
    code.error_of(code.build_kind(), message).with_log(log.text.as_str())
}

/// Messages of the linker.
struct Log {
    text: String,
    /// Symbols that no object defines, each once.
    unresolved: Vec<String>,
}

impl Log {
    /// Parses a driver's log. The log mentions every place where a symbol is used, even if the symbol is
    /// resolved, and names modules by their addresses. Those messages, the addresses and repeated lines are
    /// dropped.
    fn of(log: &str) -> Self {
        let (mut lines, mut unresolved) = (Vec::new(), Vec::new());
        for line in log.lines().filter(|line| !line.contains("Successfully Resolved")) {
            let what = match line.split_once(">:") {
                Some((module, what)) if module.starts_with("Module <") => what,
                _ => line,
            };
            let what = what.trim();
            if !what.is_empty() && !lines.contains(&what) {
                lines.push(what);
            }
            let symbol = what.strip_prefix("Unresolved Symbol <").and_then(|s| s.split_once('>'));
            if let Some((symbol, _)) = symbol
                && !unresolved.iter().any(|known| known == symbol)
            {
                unresolved.push(symbol.to_owned());
            }
        }
        Self { text: lines.join("\n"), unresolved }
    }
}

/// Returns the size of a container of binaries of these sizes, in bytes.
pub(super) fn packed_size(sizes: &[usize]) -> usize {
    let head = MAGIC.len() + size_of::<u64>() * (1 + sizes.len());
    head + sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT)).sum::<usize>()
}

/// Packs binaries into a container: the magic number, the number of binaries and the size of each,
/// little-endian, then the binaries themselves, each padded with zeros to the next multiple of [`ALIGNMENT`].
pub(super) fn pack(binaries: &[Vec<u8>]) -> Vec<u8> {
    let sizes: Vec<_> = binaries.iter().map(Vec::len).collect();
    let mut bytes = Vec::with_capacity(packed_size(&sizes));
    bytes.extend_from_slice(&MAGIC);
    for number in [binaries.len()].iter().chain(&sizes) {
        bytes.extend_from_slice(&(*number as u64).to_le_bytes());
    }
    for binary in binaries {
        bytes.extend_from_slice(binary);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
    bytes
}

/// Returns the binaries in a container, or `None` if the bytes are not a container.
///
/// # Errors
///
/// [`BuildFailed`](ErrorKind::BuildFailed) if the container is damaged.
pub(super) fn unpack(bytes: &[u8]) -> Option<Result<Vec<&[u8]>>> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    Some(unpacked(rest).ok_or_else(|| {
        Error::new(
            ErrorKind::BuildFailed,
            "the binary of a linked program is damaged: its sizes do not add up; build it anew",
        )
    }))
}

fn unpacked(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut number = || {
        let (number, more) = rest.split_first_chunk()?;
        rest = more;
        usize::try_from(u64::from_le_bytes(*number)).ok()
    };
    let count = number()?;
    // Every size has to be in the input. So the memory used is bounded by the input, whatever the count is.
    let sizes: Vec<_> = (0..count).map_while(|_| number()).collect();
    if sizes.len() != count || count == 0 {
        return None;
    }
    let mut binaries = Vec::with_capacity(count);
    for size in sizes {
        let (binary, _) = rest.split_at_checked(size)?;
        (_, rest) = rest.split_at_checked(size.checked_next_multiple_of(ALIGNMENT)?)?;
        binaries.push(binary);
    }
    rest.is_empty().then_some(binaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> (Vec<Vec<u8>>, Vec<u8>) {
        let binaries = vec![b"\x7fELF one".to_vec(), b"two".to_vec(), vec![7; 1000]];
        let packed = pack(&binaries);
        (binaries, packed)
    }

    #[test]
    fn containers_return_the_packed_binaries() {
        let (binaries, packed) = container();
        assert_eq!(unpack(&packed).expect("it is one").expect("it is complete"), binaries);
        let sizes: Vec<_> = binaries.iter().map(Vec::len).collect();
        assert_eq!(packed.len(), packed_size(&sizes));
        assert!(std::str::from_utf8(&MAGIC).is_err(), "it is not text");
        assert!(unpack(b"\x7fELF").is_none() && unpack(b"").is_none());
    }

    #[test]
    fn a_damaged_container_is_an_error() {
        let (_, packed) = container();
        let refused = |bytes: &[u8]| match unpack(bytes) {
            Some(Err(error)) => error.kind() == ErrorKind::BuildFailed,
            Some(Ok(_)) => false,
            None => bytes.len() < MAGIC.len(),
        };
        for length in 0..packed.len() {
            assert!(refused(&packed[..length]), "cut to {length} bytes");
        }
        assert!(refused(&[&packed[..], b"more"].concat()));
        // Each byte of the count and of the sizes is damaged in turn.
        for at in MAGIC.len()..MAGIC.len() + 4 * size_of::<u64>() {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x80;
            assert!(refused(&damaged), "byte {at}");
        }
        assert!(refused(&pack(&[])), "a program has at least one module");
    }

    #[test]
    fn logs_list_each_unresolved_symbol_once_and_no_resolved_ones() {
        let log = "Module <0x5650>:  Unresolved Symbol <f> Successfully Resolved Thru Dynamic Link to \
                   Module <0x5651>\nModule <0x5650>:  Unresolved Symbol <g>\n\
                   Module <0x5650>:  Unresolved Symbol <g>\nerror : something else\n";
        let log = Log::of(log);
        assert_eq!(log.unresolved, ["g"]);
        assert_eq!(log.text, "Unresolved Symbol <g>\nerror : something else");
    }
}
