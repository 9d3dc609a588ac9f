//! The driver's program object.

use std::sync::Arc;

use opencl3::program::*;

use super::codes::{build_kind, constant_kind, driver_code, error_of};
use super::context::Context;
use super::handle::OwnedProgram;
use super::text;
use crate::backend::Source;
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};

/// Driver's program, which its kernels keep alive.
pub(super) struct ProgramObject {
    program: OwnedProgram,
    pub(super) context: Arc<Context>,
}

impl ProgramObject {
    pub(super) fn new(program: OwnedProgram, context: &Arc<Context>) -> Self {
        Self { program, context: Arc::clone(context) }
    }

    /// Creates a program and sets its constants, before it is built or compiled.
    pub(super) fn create(context: &Arc<Context>, source: &Source<'_>) -> Result<Arc<Self>> {
        let object = Self::new(create(context, source)?, context);
        specialize(&object, source.constants)?;
        Ok(Arc::new(object))
    }

    pub(super) fn raw(&self) -> cl_program {
        self.program.raw()
    }

    pub(super) fn build_log(&self) -> String {
        get_program_build_data(self.raw(), self.context.device(), CL_PROGRAM_BUILD_LOG)
            .map_or_else(|_| String::new(), |log| text(&log))
    }

    /// Returns the size of the binary in bytes. `None` if the driver does not report it, which does not keep
    /// the program from running.
    pub(super) fn binary_size(&self) -> Option<usize> {
        let Context { info, workarounds, .. } = &*self.context;
        // The query would compile the program, for about 200 ms a kernel, only to get a size.
        if workarounds.expect_late_compiles {
            return None;
        }
        match get_program_info(self.raw(), CL_PROGRAM_BINARY_SIZES) {
            Ok(sizes) => Vec::<usize>::from(sizes).first().copied().filter(|size| *size > 0),
            Err(code) => {
                let code = driver_code(code);
                tracing::debug!(
                    device = %info.name, %code,
                    "the driver does not report the size of the binary"
                );
                None
            }
        }
    }
}

fn create(context: &Context, source: &Source<'_>) -> Result<OwnedProgram> {
    let created = match source.format {
        ModuleFormat::OpenClC => {
            let code = std::str::from_utf8(source.code).map_err(|error| {
                Error::new(ErrorKind::InvalidModule, "the OpenCL C source is not UTF-8")
                    .with_source(error)
            })?;
            // OpenCL interprets the length 0 as "up to the NUL", and there is none.
            let code = if code.is_empty() { "\n" } else { code };
            create_program_with_source(context.raw(), &[code])
        }
        ModuleFormat::SpirV if !context.version.at_least(2, 1) => {
            return Err(unsupported_error(context, "SPIR-V programs", "2.1"));
        }
        ModuleFormat::SpirV => create_program_with_il(context.raw(), source.code),
        // cl3 drops the status of each binary. With one binary, the status of the call is the same.
        ModuleFormat::Native => {
            // SAFETY: the context is alive and the device is its own.
            unsafe {
                create_program_with_binary(context.raw(), &[context.device()], &[source.code])
            }
        }
    };
    let raw = created.map_err(|code| build_error(context, source, code))?;
    // SAFETY: just created, and referenced here alone.
    Ok(unsafe { OwnedProgram::new(raw) })
}

fn specialize(object: &ProgramObject, constants: &[(u32, Vec<u8>)]) -> Result<()> {
    let context = &object.context;
    if !constants.is_empty() && !context.version.at_least(2, 2) {
        return Err(unsupported_error(context, "specialization constants", "2.2"));
    }
    for (id, value) in constants {
        // SAFETY: the program is alive, and the value has the length that is passed.
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

/// Returns the error of a program that cannot be built.
pub(super) fn build_error(context: &Context, source: &Source<'_>, code: cl_int) -> Error {
    let mut message = format!("`{}` cannot build the {} program", context.info.name, source.format);
    // Not every driver's log names the option that it rejects.
    if !source.options.is_empty() {
        message.push_str(&format!(" with the options `{}`", source.options));
    }
    error_of(build_kind(code), code, message)
}

fn unsupported_error(context: &Context, what: &str, since: &str) -> Error {
    let info = &context.info;
    Error::unsupported(format!(
        "`{}` does not accept {what}: they need OpenCL {since}, and the device has {}",
        info.name, info.device_version
    ))
}
