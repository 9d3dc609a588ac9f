//! Programs, built from one module or linked from objects.
//!
//! Linking patches the driver's modules. So an object is kept as the binary that its compile produced, and each
//! program loads all of its objects for itself. A linked program is stored as the same binaries, in a
//! [container].

use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::codes::{Code, check};
use super::container;
use super::context::Context;
use super::handle::OwnedModule;
use super::kernel::LzKernel;
use super::module::{self, Modules};
use super::ze_info::{Signatures, signatures};
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::{Kernel, Program, Source, own_object};
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};

/// Name of the kernel under which Intel's driver keeps the addresses of exported functions.
const SYMBOL_TABLE: &str = "Intel_Symbol_Table_Void_Program";

/// Build option that keeps the symbols that other objects import. Without it the compiler drops them, and
/// linking fails.
const KEEP_SYMBOLS: &str = "-library-compilation";

/// Maximum number of undefined symbols that a message names.
const MAX_NAMES: usize = 8;

pub(super) struct LzProgram {
    kernels: Vec<Arc<dyn Kernel>>,
    build_log: String,
    binary_size: Option<usize>,
    modules: Arc<Modules>,
}

impl Program for LzProgram {
    fn kernels(&self) -> &[Arc<dyn Kernel>] {
        &self.kernels
    }

    fn build_log(&self) -> &str {
        &self.build_log
    }

    fn binary_size(&self) -> Option<usize> {
        self.binary_size
    }

    fn binary(&self) -> Result<Vec<u8>> {
        let _call = handler_guard::begin(CallKind::Compile)?;
        self.modules.binary()
    }
}

impl LzProgram {
    /// Creates the kernels of modules that are ready to run. `known` has the known properties of their
    /// parameters.
    fn new(modules: Modules, build_log: String, known: &[Signatures<'_>]) -> Result<Self, Code> {
        let modules = Arc::new(modules);
        let kernels = create_kernels(&modules, known)?;
        let binary_size = modules.binary_size();
        Ok(Self { kernels, build_log, binary_size, modules })
    }
}

/// Builds a program and creates all its kernels.
pub(super) fn build(context: &Arc<Context>, source: &Source<'_>) -> Result<LzProgram> {
    if source.format == ModuleFormat::Native
        && let Some(binaries) = container::unpack(source.code)
    {
        return link_binaries(context, &binaries?);
    }
    if let Some(lost) = context.loss() {
        return Err(lost.clone());
    }
    let kind = match source.format {
        ModuleFormat::Native => CallKind::Load,
        ModuleFormat::SpirV | ModuleFormat::OpenClC => CallKind::Compile,
    };
    let _call = handler_guard::begin(kind)?;
    let (module, build_log) = module::create(context, source)?;
    let binary;
    let known = match source.format {
        ModuleFormat::Native => signatures(source.code),
        _ => {
            // Without a binary, nothing is known beyond the contents of the SPIR-V module.
            binary = module::binary(context, &module).unwrap_or_default();
            signatures(&binary)
        }
    };
    LzProgram::new(Modules::single(module, context), build_log.clone(), &[known])
        .map_err(|code| module::build_error(context, source, code).with_log(build_log))
}

/// Takes a module that other code built, with kernels of its own.
///
/// # Safety
///
/// The module lives longer than the returned program and its kernels, if its handle is not null.
pub(super) unsafe fn adopt(context: &Arc<Context>, handle: *mut c_void) -> Result<LzProgram> {
    if let Some(lost) = context.loss() {
        return Err(lost.clone());
    }
    let handle = NonNull::new(handle).ok_or_else(|| {
        Error::invalid("the given `ze_module_handle_t` is null; give an object of the driver")
    })?;
    let _call = handler_guard::begin(CallKind::Load)?;
    // SAFETY: the module is alive, and is never destroyed through this value.
    let module = unsafe { OwnedModule::new(context.api, handle.as_ptr().cast()) };
    let modules = Modules::given(module, context);
    // Without a binary, nothing is known about the parameters but their number.
    let binary = modules.binary().unwrap_or_default();
    LzProgram::new(modules, String::new(), &[signatures(&binary)]).map_err(|code| {
        context.error(code, "the driver refused to create the kernels of the given module")
    })
}

/// Creates the kernels of each module by their names.
fn create_kernels(
    modules: &Arc<Modules>,
    known: &[Signatures<'_>],
) -> Result<Vec<Arc<dyn Kernel>>, Code> {
    let get = modules.context.api.zeModuleGetKernelNames;
    let mut kernels: Vec<Arc<dyn Kernel>> = Vec::new();
    for (module, known) in modules.modules.iter().zip(known) {
        let mut count = 0;
        // SAFETY: the module is alive; without a buffer, the driver only counts.
        check(unsafe { get(module.raw(), &raw mut count, ptr::null_mut()) })?;
        let mut names = vec![ptr::null(); count as usize];
        if count > 0 {
            // SAFETY: the module is alive, and there is room for `count` names.
            check(unsafe { get(module.raw(), &raw mut count, names.as_mut_ptr()) })?;
            names.truncate(count as usize);
        }
        for name in names {
            // SAFETY: the driver's names end in NUL and live as long as the module.
            let name = unsafe { std::ffi::CStr::from_ptr(name) };
            if name.to_bytes() != SYMBOL_TABLE.as_bytes() {
                let known = known.get(&*name.to_string_lossy()).map_or(&[][..], Vec::as_slice);
                kernels.push(Arc::new(LzKernel::create(modules, module, name, known)?));
            }
        }
    }
    Ok(kernels)
}

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
        if container::unpack(source.code).is_some() {
            let message = "the native binary is a linked program, but only objects and unlinked \
                           programs can be linked; make it with `kiln build --object`";
            return Err(Error::new(ErrorKind::BuildFailed, message));
        }
        return Ok(LzObject { binary: source.code.to_vec(), build_log: String::new() });
    }
    let _call = handler_guard::begin(CallKind::Compile)?;
    let options = format!("{KEEP_SYMBOLS} {}", source.options);
    let (module, log) = module::create(context, &Source { options: &options, ..*source })?;
    // Imported symbols are unresolved until the object is linked.
    let is_expected = |line: &&str| line.starts_with("error : unresolved external symbol");
    let lines: Vec<_> = log.lines().filter(|line| !is_expected(line)).collect();
    let build_log = lines.join("\n").trim().to_owned();
    Ok(LzObject { binary: module::binary(context, &module)?, build_log })
}

/// Links objects to a program and creates all its kernels.
pub(super) fn link(context: &Arc<Context>, objects: &[&dyn Program]) -> Result<LzProgram> {
    let binary = |object: &&'_ dyn Program| {
        own_object(*object, "an object to link").map(|object: &LzObject| object.binary.clone())
    };
    let binaries: Vec<_> = objects.iter().map(binary).collect::<Result<_>>()?;
    link_binaries(context, &binaries.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Links the binaries of objects to a program and creates all its kernels.
fn link_binaries(context: &Arc<Context>, binaries: &[&[u8]]) -> Result<LzProgram> {
    if let Some(lost) = context.loss() {
        return Err(lost.clone());
    }
    let _call = handler_guard::begin(CallKind::Load)?;
    let load = |code: &&[u8]| {
        let format = ModuleFormat::Native;
        let source = Source { format, code, options: "", constants: &[] };
        module::create(context, &source).map(|(module, _)| module)
    };
    let modules: Vec<_> = binaries.iter().map(load).collect::<Result<_>>()?;
    let mut handles: Vec<_> = modules.iter().map(|module| module.raw()).collect();
    let mut log = ptr::null_mut();
    let linking = module::one_at_a_time();
    // SAFETY: the modules are alive, belong to one context, and are owned only here; `handles` has as many
    // elements as its length says.
    let linked = unsafe {
        (context.api.zeModuleDynamicLink)(handles.len() as u32, handles.as_mut_ptr(), &raw mut log)
    };
    drop(linking);
    let log = Log::of(&module::take_log(context, log));
    check(linked).map_err(|code| link_error(context, code, binaries.len(), &log))?;
    let known: Vec<_> = binaries.iter().map(|binary| signatures(binary)).collect();
    let program = LzProgram::new(Modules::linked(modules, context), log.text.clone(), &known)
        .map_err(|code| link_error(context, code, binaries.len(), &log))?;
    let mut names = HashSet::new();
    if let Some(twice) = program.kernels().iter().find(|kernel| !names.insert(kernel.name())) {
        let message = format!("the kernel `{}` is in two of the linked modules", twice.name());
        return Err(Error::new(ErrorKind::BuildFailed, message));
    }
    Ok(program)
}

fn link_error(context: &Context, code: Code, count: usize, log: &Log) -> Error {
    let mut message = format!("`{}` cannot link the {count} modules", context.info.name);
    let names: Vec<_> = log.unresolved.iter().map(|name| format!("`{name}`")).collect();
    if !names.is_empty() {
        let (named, more) = names.split_at(names.len().min(MAX_NAMES));
        let more = if more.is_empty() { "" } else { " and others" };
        message.push_str(&format!(": none of them defines {}{more}", named.join(", ")));
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
            let message = match line.split_once(">:") {
                Some((module, message)) if module.starts_with("Module <") => message,
                _ => line,
            };
            let message = message.trim();
            if !message.is_empty() && !lines.contains(&message) {
                lines.push(message);
            }
            let symbol =
                message.strip_prefix("Unresolved Symbol <").and_then(|s| s.split_once('>'));
            if let Some((symbol, _)) = symbol
                && !unresolved.iter().any(|known| known == symbol)
            {
                unresolved.push(symbol.to_owned());
            }
        }
        Self { text: lines.join("\n"), unresolved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
