//! Building programs.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use opencl3::error_codes::{
    CL_BUILD_PROGRAM_FAILURE, CL_INVALID_KERNEL_NAME, CL_INVALID_PROGRAM_EXECUTABLE,
};
use opencl3::program::*;

use super::codes::{build_kind, constant_kind, driver_code, error, error_of};
use super::device::Context;
use super::handle::OwnedProgram;
use super::kernel::ClKernel;
use super::text;
use crate::backend::{Kernel, Program, Source};
use crate::device::ImageFormat;
use crate::error::{Error, ErrorKind, Result};

/// Without it, kernels built from source tell nothing of their parameters.
const ARG_INFO: &str = "-cl-kernel-arg-info";

pub(super) struct ClProgram {
    kernels: Vec<Arc<dyn Kernel>>,
    build_log: String,
    binary_size: Option<usize>,
    object: Arc<ProgramObject>,
    /// Held while the binary is asked for: PoCL makes it then, and crashes if two threads ask.
    asking: Mutex<()>,
}

/// The driver's program; its kernels keep it alive.
pub(super) struct ProgramObject {
    program: OwnedProgram,
    pub(super) context: Arc<Context>,
}

impl ProgramObject {
    pub(super) fn raw(&self) -> cl_program {
        self.program.raw()
    }
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
        let device = &self.object.context.info.name;
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let binaries =
            get_program_info(self.object.raw(), CL_PROGRAM_BINARIES).map_err(|code| {
                error(code, format!("the driver of `{device}` does not give the program's binary"))
            })?;
        // One for each device, and there is one.
        let binary = Vec::<Vec<u8>>::from(binaries).into_iter().next().unwrap_or_default();
        if binary.is_empty() {
            return Err(Error::new(
                ErrorKind::Driver,
                format!("the driver of `{device}` has no binary of the program"),
            ));
        }
        Ok(binary)
    }
}

/// Builds a program and creates all its kernels.
pub(super) fn build(context: &Arc<Context>, source: &Source<'_>) -> Result<ClProgram> {
    let options = c_string(source.options)?;
    let object =
        Arc::new(ProgramObject { program: create(context, source)?, context: Arc::clone(context) });
    specialize(&object, source.constants)?;

    let (built, build_log) = match source.format {
        ImageFormat::OpenClC => {
            let reflecting = c_string(&format!("{ARG_INFO} {}", source.options))?;
            compile_reflecting(&object, &reflecting, &options)
        }
        ImageFormat::SpirV | ImageFormat::Native => compile(&object, &options),
    };
    let failed = |code| failure(context, source, code).with_log(build_log.as_str());
    built.map_err(failed)?;

    let kernels = create_kernels(&object).map_err(failed)?;
    // Some compilers do their work when kernels are created: only now is the binary complete.
    let binary_size = binary_size(&object);
    Ok(ClProgram { kernels, build_log, binary_size, object, asking: Mutex::default() })
}

/// Has the driver build the program. Returns how that went, as the driver's code, and the log.
fn compile(object: &ProgramObject, options: &CStr) -> (Result<(), cl_int>, String) {
    let device = object.context.device();
    let built = build_program(object.raw(), &[device], options, None, ptr::null_mut());
    let log = get_program_build_data(object.raw(), device, CL_PROGRAM_BUILD_LOG)
        .map_or_else(|_| String::new(), |log| text(&log));
    (built, log)
}

/// The same with options that ask for signatures, or with plain ones where those cannot be had.
fn compile_reflecting(
    object: &ProgramObject,
    reflecting: &CStr,
    plain: &CStr,
) -> (Result<(), cl_int>, String) {
    let (built, log) = compile(object, reflecting);
    // For kernels without parameters, NVIDIA's compiler then writes PTX that its own assembler
    // refuses.
    if built == Err(CL_BUILD_PROGRAM_FAILURE) && log.contains("ptxas") {
        return compile(object, plain);
    }
    (built, log)
}

fn c_string(options: &str) -> Result<CString> {
    CString::new(options.trim())
        .map_err(|error| Error::invalid("the build options hold a NUL").with_source(error))
}

fn create(context: &Context, source: &Source<'_>) -> Result<OwnedProgram> {
    let created = match source.format {
        ImageFormat::OpenClC => {
            let code = std::str::from_utf8(source.code).map_err(|error| {
                Error::new(ErrorKind::InvalidImage, "the OpenCL C source is not UTF-8")
                    .with_source(error)
            })?;
            // OpenCL takes the length 0 for "up to the NUL", and there is none.
            let code = if code.is_empty() { "\n" } else { code };
            create_program_with_source(context.raw(), &[code])
        }
        ImageFormat::SpirV if !context.version.at_least(2, 1) => {
            return Err(unsupported(context, "SPIR-V programs", "2.1"));
        }
        ImageFormat::SpirV => create_program_with_il(context.raw(), source.code),
        // cl3 drops the status of each binary; with one, the status of the call is the same.
        ImageFormat::Native => {
            // SAFETY: the context is alive and the device is its own.
            unsafe {
                create_program_with_binary(context.raw(), &[context.device()], &[source.code])
            }
        }
    };
    let raw = created.map_err(|code| failure(context, source, code))?;
    // SAFETY: just created, and referenced here alone.
    Ok(unsafe { OwnedProgram::new(raw) })
}

fn specialize(object: &ProgramObject, constants: &[(u32, Vec<u8>)]) -> Result<()> {
    let context = &object.context;
    if !constants.is_empty() && !context.version.at_least(2, 2) {
        return Err(unsupported(context, "specialization constants", "2.2"));
    }
    for (id, value) in constants {
        // SAFETY: the program is alive, and the value has the length that is told.
        let set = unsafe {
            set_program_specialization_constant(
                object.raw(),
                *id,
                value.len(),
                value.as_ptr().cast(),
            )
        };
        set.map_err(|code| {
            let message = format!(
                "the driver of `{}` refused a value of {} bytes for specialization constant {id}",
                context.info.name,
                value.len()
            );
            error_of(constant_kind(code), code, message)
        })?;
    }
    Ok(())
}

/// Creates the kernels by their names. The error is the driver's code.
fn create_kernels(object: &Arc<ProgramObject>) -> Result<Vec<Arc<dyn Kernel>>, cl_int> {
    match get_program_info(object.raw(), CL_PROGRAM_NUM_KERNELS).map(usize::from) {
        // PoCL leaves the names unwritten where there are none.
        Ok(0) => return Ok(Vec::new()),
        // What Intel's driver says of a program that it has built, if there are none.
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

/// The program runs also if the driver does not tell.
fn binary_size(object: &ProgramObject) -> Option<usize> {
    let info = &object.context.info;
    // PoCL compiles for the device only now, some 200 ms a kernel, and nobody asked for that.
    if info.platform == "Portable Computing Language" {
        return None;
    }
    match get_program_info(object.raw(), CL_PROGRAM_BINARY_SIZES) {
        Ok(sizes) => Vec::<usize>::from(sizes).first().copied().filter(|size| *size > 0),
        Err(code) => {
            let code = driver_code(code);
            tracing::debug!(device = %info.name, %code, "no binary size");
            None
        }
    }
}

fn failure(context: &Context, source: &Source<'_>, code: cl_int) -> Error {
    let mut message = format!("`{}` cannot build the {} program", context.info.name, source.format);
    // Not every driver's log names the option that it refuses.
    if !source.options.is_empty() {
        message.push_str(&format!(" with the options `{}`", source.options));
    }
    error_of(build_kind(code), code, message)
}

fn unsupported(context: &Context, what: &str, since: &str) -> Error {
    let info = &context.info;
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "`{}` takes no {what}: they need OpenCL {since}, it has {}",
            info.name, info.device_version
        ),
    )
}
