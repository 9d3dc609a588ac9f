//! Building programs.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use opencl3::error_codes::{
    CL_BUILD_PROGRAM_FAILURE, CL_INVALID_KERNEL_NAME, CL_INVALID_PROGRAM,
    CL_INVALID_PROGRAM_EXECUTABLE, CL_SUCCESS,
};
use opencl3::program::*;

use super::adopt;
use super::codes::{build_kind, error, error_of};
use super::context::Context;
use super::gate::{self, FetchGuard};
use super::handle::OwnedProgram;
use super::kernel::ClKernel;
use super::program_object::{ProgramObject, build_error};
use super::text;
use crate::backend::exceptions::ending_on_exception;
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::{Kernel, Program, Source, own_object, shutdown};
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::process::resources;
use crate::sync::lock;

/// Build option without which kernels built from source do not describe their parameters.
const ARG_INFO: &str = "-cl-kernel-arg-info";

pub(super) struct ClProgram {
    kernels: Vec<Arc<dyn Kernel>>,
    build_log: String,
    binary_size: Option<usize>,
    object: Arc<ProgramObject>,
    /// Binary that an object was loaded from: PoCL 3.1 does not return it again.
    loaded: Option<Vec<u8>>,
}

/// Guard that permits calls of a device's compiler while it is held.
struct Compiling {
    _call: handler_guard::RegisteringCall,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Compiling {
    /// Waits for this thread's turn, if the driver does not serialize builds itself. Fails if the process is
    /// ending.
    fn on(context: &Context, kind: CallKind) -> Result<Self> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        // A forked child may have inherited the lock from a thread that it does not have.
        drop(shutdown::begin()?);
        let turn = (context.workarounds.serialize_builds).then(|| lock(&ONE_AT_A_TIME));
        Ok(Self { _call: handler_guard::begin(kind)?, _turn: turn })
    }
}

/// Returns the kind of the call that creates a program from a source.
fn call_kind(source: &Source<'_>) -> CallKind {
    if source.format == ModuleFormat::Native { CallKind::Load } else { CallKind::Compile }
}

impl Program for ClProgram {
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
        if let Some(loaded) = &self.loaded {
            return Ok(loaded.clone());
        }
        let context = &self.object.context;
        if context.workarounds.expect_late_compiles {
            resources::check_for_process()?;
        }
        let may_lack_file = context.workarounds.serialize_builds;
        let mut binary = self.fetch_binary()?;
        for _ in 0..FETCH_RETRIES {
            if !may_lack_file || !lacks_program_file(&binary) {
                break;
            }
            thread::sleep(FETCH_PAUSE);
            binary = self.fetch_binary()?;
        }
        if binary.is_empty() || (may_lack_file && lacks_program_file(&binary)) {
            let device = &context.info.name;
            return Err(Error::new(
                ErrorKind::Driver,
                format!("the driver of `{device}` has no binary of the program"),
            ));
        }
        Ok(binary)
    }
}

impl ClProgram {
    /// Fetches the binary once, in this thread's turn.
    fn fetch_binary(&self) -> Result<Vec<u8>> {
        let context = &self.object.context;
        let may_interfere = self.kernels.iter().any(|kernel| gate::interferes(context, &**kernel));
        if may_interfere {
            // This wait comes before this thread's turn to compile, because a launch may take long and other
            // threads may compile meanwhile.
            let _call = shutdown::begin()?;
            gate::wait_for_launches()?;
        }
        let _compiling = Compiling::on(context, CallKind::Compile)?;
        let _fetch_guard = if may_interfere { Some(FetchGuard::new()?) } else { None };
        let program = self.object.raw();
        let binaries = ending_on_exception(|| get_program_info(program, CL_PROGRAM_BINARIES));
        let binaries = binaries.map_err(|code| {
            let device = &context.info.name;
            error(code, format!("the driver of `{device}` does not return the program's binary"))
        })?;
        // There is one binary for each device, and there is one device.
        Ok(Vec::<Vec<u8>>::from(binaries).into_iter().next().unwrap_or_default())
    }

    fn new(object: Arc<ProgramObject>, kernels: Vec<Arc<dyn Kernel>>, build_log: String) -> Self {
        // Some compilers do their work when kernels are created, so only now is the binary complete.
        let binary_size = object.binary_size();
        Self { kernels, build_log, binary_size, object, loaded: None }
    }

    /// Creates an object from the binary that it was loaded from.
    fn of_loaded(object: Arc<ProgramObject>, binary: &[u8]) -> Self {
        Self {
            kernels: Vec::new(),
            build_log: String::new(),
            binary_size: Some(binary.len()),
            object,
            loaded: Some(binary.to_vec()),
        }
    }
}

/// Number of times that a binary without the program's file is fetched again.
const FETCH_RETRIES: u32 = 20;

/// Pause before a binary is fetched again. Another process that is writing the file needs a few milliseconds.
const FETCH_PAUSE: Duration = Duration::from_millis(10);

/// Returns whether PoCL made the binary without the program's file. Another process may have been writing the
/// file, which [`Compiling`] cannot prevent. In a whole binary the file's name comes first, and then the
/// kernels.
fn lacks_program_file(binary: &[u8]) -> bool {
    const NAME: &[u8] = b"/program.";
    !binary.windows(NAME.len()).any(|bytes| bytes == NAME)
}

/// Builds a program and creates all its kernels.
pub(super) fn build(context: &Arc<Context>, source: &Source<'_>) -> Result<ClProgram> {
    let _compiling = Compiling::on(context, call_kind(source))?;
    let options = c_string(source.options)?;
    let object = ProgramObject::create(context, source)?;
    let (built, build_log) = match source.format {
        ModuleFormat::OpenClC => build_reflecting(&object, &reflecting_options(source)?, &options),
        ModuleFormat::SpirV | ModuleFormat::Native => build_plainly(&object, &options),
    };
    let failed = |code| build_error(context, source, code).with_log(build_log.as_str());
    built.map_err(failed)?;
    let kernels = create_kernels(&object).map_err(failed)?;
    Ok(ClProgram::new(object, kernels, build_log))
}

/// Compiles an object, or loads the binary of one.
pub(super) fn compile_object(context: &Arc<Context>, source: &Source<'_>) -> Result<ClProgram> {
    let _compiling = Compiling::on(context, call_kind(source))?;
    let object = ProgramObject::create(context, source)?;
    let device = context.device();
    if source.format == ModuleFormat::Native {
        // An object is not built, because some drivers would make an executable of it.
        let kind = get_program_build_info(object.raw(), device, CL_PROGRAM_BINARY_TYPE);
        let kind = kind.map_err(|code| build_error(context, source, code))?;
        let loaded_as = match cl_uint::from(kind) {
            CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT | CL_PROGRAM_BINARY_TYPE_LIBRARY => None,
            CL_PROGRAM_BINARY_TYPE_EXECUTABLE => Some("a linked program"),
            _ => Some("something else"),
        };
        if let Some(loaded_as) = loaded_as {
            return Err(Error::new(
                ErrorKind::BuildFailed,
                format!(
                    "the driver of `{}` loads the native binary as {loaded_as}, but only objects and \
                     libraries can be linked; make it with `kiln build --object`",
                    context.info.name
                ),
            ));
        }
        return Ok(ClProgram::of_loaded(object, source.code));
    }
    let options = match source.format {
        ModuleFormat::OpenClC => reflecting_options(source)?,
        ModuleFormat::SpirV | ModuleFormat::Native => c_string(source.options)?,
    };
    let compiled = ending_on_exception(|| {
        compile_program(object.raw(), &[device], &options, &[], &[], None, ptr::null_mut())
    });
    let log = object.build_log();
    compiled.map_err(|code| build_error(context, source, code).with_log(log.as_str()))?;
    Ok(ClProgram::new(object, Vec::new(), log))
}

/// Links objects to a program, and creates all its kernels.
pub(super) fn link(
    context: &Arc<Context>,
    objects: &[&dyn Program],
    options: &str,
) -> Result<ClProgram> {
    let _compiling = Compiling::on(context, CallKind::Compile)?;
    let mut raw = Vec::with_capacity(objects.len());
    for object in objects {
        let object: &ClProgram = own_object(*object, "an object to link")?;
        raw.push(object.object.raw());
    }
    let name = &context.info.name;
    let raw_options = c_string(options)?;
    let (program, linked) = link_objects(context, &raw, &raw_options).ok_or_else(|| {
        Error::unsupported(format!("the OpenCL loader does not provide a linker for `{name}`"))
    })?;
    let object = program.map(|program| Arc::new(ProgramObject::new(program, context)));
    let log = object.as_deref().map(ProgramObject::build_log).unwrap_or_default();
    let failed = |code| {
        let mut message = format!("`{name}` cannot link the {} modules", raw.len());
        if !options.is_empty() {
            message.push_str(&format!(" with the options `{options}`"));
        }
        error_of(build_kind(code), code, message).with_log(log.as_str())
    };
    linked.map_err(failed)?;
    let object = object.ok_or_else(|| failed(CL_INVALID_PROGRAM))?;
    let kernels = create_kernels(&object).map_err(failed)?;
    Ok(ClProgram::new(object, kernels, log))
}

/// Takes a program that was built for the context's device by other code, and creates all its kernels.
///
/// # Safety
///
/// `raw` is a program that is alive, if it is not null.
pub(super) unsafe fn adopt(context: &Arc<Context>, raw: cl_program) -> Result<ClProgram> {
    // Some compilers do their work when kernels are created.
    let _compiling = Compiling::on(context, CallKind::Compile)?;
    // SAFETY: guaranteed by the caller.
    let program = unsafe { adopt::program(context, raw)? };
    let object = Arc::new(ProgramObject::new(program, context));
    let kernels = create_kernels(&object).map_err(|code| {
        let device = &context.info.name;
        error(code, format!("the kernels of the program cannot be created on `{device}`"))
    })?;
    let log = object.build_log();
    Ok(ClProgram::new(object, kernels, log))
}

/// Calls the linker. Returns `None` if the loader has none. A program may be returned together with an error,
/// and then has the log. `opencl3`'s function drops such a program, so it is not used.
fn link_objects(
    context: &Context,
    objects: &[cl_program],
    options: &CStr,
) -> Option<(Option<OwnedProgram>, Result<(), cl_int>)> {
    let opencl = cl3::load_library().as_ref().ok()?;
    let device = context.device();
    let mut code = CL_SUCCESS;
    let program = ending_on_exception(|| {
        opencl.clLinkProgram(
            context.raw(),
            1,
            &raw const device,
            options.as_ptr(),
            objects.len() as cl_uint,
            objects.as_ptr(),
            None,
            ptr::null_mut(),
            &raw mut code,
        )
    })?;
    // SAFETY: just created, and referenced here alone.
    let program = (!program.is_null()).then(|| unsafe { OwnedProgram::new(program) });
    Some((program, if code == CL_SUCCESS { Ok(()) } else { Err(code) }))
}

/// Builds the program. Returns the driver's result code, and the log.
fn build_plainly(object: &ProgramObject, options: &CStr) -> (Result<(), cl_int>, String) {
    let device = object.context.device();
    let built = ending_on_exception(|| {
        build_program(object.raw(), &[device], options, None, ptr::null_mut())
    });
    (built, object.build_log())
}

/// Builds the program with options that ask for signatures, or with plain options where signatures are not
/// available.
fn build_reflecting(
    object: &ProgramObject,
    reflecting: &CStr,
    plain: &CStr,
) -> (Result<(), cl_int>, String) {
    let (built, log) = build_plainly(object, reflecting);
    // With these options, NVIDIA's compiler writes PTX for kernels without parameters that its own assembler
    // rejects.
    if built == Err(CL_BUILD_PROGRAM_FAILURE) && log.contains("ptxas") {
        return build_plainly(object, plain);
    }
    (built, log)
}

/// Returns the build options of a source, with the option that asks for the signatures of its kernels.
fn reflecting_options(source: &Source<'_>) -> Result<CString> {
    c_string(&format!("{ARG_INFO} {}", source.options))
}

fn c_string(options: &str) -> Result<CString> {
    CString::new(options.trim()).map_err(|error| {
        Error::invalid("the build options contain a NUL character").with_source(error)
    })
}

/// Creates the kernels by their names. The error is the driver's code.
fn create_kernels(object: &Arc<ProgramObject>) -> Result<Vec<Arc<dyn Kernel>>, cl_int> {
    match get_program_info(object.raw(), CL_PROGRAM_NUM_KERNELS).map(usize::from) {
        // PoCL does not write the names if there are none.
        Ok(0) => return Ok(Vec::new()),
        // Intel's driver returns this code for a built program without kernels.
        Err(CL_INVALID_PROGRAM_EXECUTABLE) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(code) => return Err(code),
    }
    let names = text(&get_program_data(object.raw(), CL_PROGRAM_KERNEL_NAMES)?);
    (names.split(';').filter(|name| !name.is_empty()))
        .map(|name| {
            let name = CString::new(name).map_err(|_| CL_INVALID_KERNEL_NAME)?;
            Ok(Arc::new(ClKernel::create(object, &name)?) as _)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_without_a_program_are_detected() {
        let binary = |program: &str| format!("poclbin\0\x09\0\0\0{program}\x27\0\0\0apply\0");
        assert!(!lacks_program_file(binary("\x0b\0\0\0/program.bc\x04\0\0\0BCxx").as_bytes()));
        assert!(lacks_program_file(binary("\0\0\0\0\0\0\0\0").as_bytes()));
    }
}
