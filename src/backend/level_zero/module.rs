//! Modules of the driver: their creation from a source, their logs and their binaries.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::handle::OwnedModule;
use super::{container, text};
use crate::backend::Source;
use crate::backend::exceptions::ending_on_exception;
use crate::device::{ModuleFormat, spirv_versions};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Driver modules of a program: a single module, or linked modules that call each other. The kernels keep them
/// alive.
pub(super) struct Modules {
    pub(super) modules: Vec<OwnedModule>,
    are_linked: bool,
    /// Whether other code destroys the modules.
    are_given: bool,
    pub(super) context: Arc<Context>,
}

impl Drop for Modules {
    fn drop(&mut self) {
        if self.are_given {
            self.modules.drain(..).for_each(std::mem::forget);
        }
    }
}

impl Modules {
    pub(super) fn single(module: OwnedModule, context: &Arc<Context>) -> Self {
        let context = Arc::clone(context);
        Self { modules: vec![module], are_linked: false, are_given: false, context }
    }

    /// Takes a module that other code created and destroys. It is not destroyed with the returned value.
    pub(super) fn given(module: OwnedModule, context: &Arc<Context>) -> Self {
        let context = Arc::clone(context);
        Self { modules: vec![module], are_linked: false, are_given: true, context }
    }

    pub(super) fn linked(modules: Vec<OwnedModule>, context: &Arc<Context>) -> Self {
        Self { modules, are_linked: true, are_given: false, context: Arc::clone(context) }
    }

    /// Returns the binary of a single module, or a container with the binaries of linked modules.
    pub(super) fn binary(&self) -> Result<Vec<u8>> {
        let mut binaries = self.modules.iter().map(|module| binary(&self.context, module));
        if self.are_linked {
            return Ok(container::pack(&binaries.collect::<Result<Vec<_>>>()?));
        }
        binaries.next().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Returns the size of [`binary`](Self::binary) in bytes. `None` if the driver does not report it.
    pub(super) fn binary_size(&self) -> Option<usize> {
        let sizes: Result<Vec<_>, Code> =
            self.modules.iter().map(|module| binary_size(&self.context, module)).collect();
        let size = |sizes: Vec<usize>| match sizes[..] {
            [size] if !self.are_linked => size,
            _ => container::packed_size(&sizes),
        };
        sizes.ok().map(size).filter(|size| *size > 0)
    }
}

/// Returns a module as the device's own code, which linking does not change.
pub(super) fn binary(context: &Context, module: &OwnedModule) -> Result<Vec<u8>> {
    let name = &context.info.name;
    let refused = |code: Code| {
        context.error(code, format!("the driver of `{name}` does not return the program's binary"))
    };
    let mut bytes = vec![0; binary_size(context, module).map_err(refused)?];
    let mut size = bytes.len();
    // SAFETY: the module is alive, and there is room for `size` bytes.
    let status = unsafe {
        (context.api.zeModuleGetNativeBinary)(module.raw(), &raw mut size, bytes.as_mut_ptr())
    };
    check(status).map_err(refused)?;
    bytes.truncate(size);
    if bytes.is_empty() {
        let message = format!("the driver of `{name}` has no binary of the program");
        return Err(Error::new(ErrorKind::Driver, message));
    }
    Ok(bytes)
}

fn binary_size(context: &Context, module: &OwnedModule) -> Result<usize, Code> {
    let mut size = 0;
    // SAFETY: the module is alive; without a buffer, the driver only returns the size.
    check(unsafe {
        (context.api.zeModuleGetNativeBinary)(module.raw(), &raw mut size, ptr::null_mut())
    })?;
    Ok(size)
}

/// Creates a module of the driver. Returns it with the build log. An error contains the log, too.
pub(super) fn create(context: &Context, source: &Source<'_>) -> Result<(OwnedModule, String)> {
    let format = match source.format {
        ModuleFormat::SpirV => {
            check_spirv(&context.info.name, &context.info.il_version, source.code)?;
            ZE_MODULE_FORMAT_IL_SPIRV
        }
        ModuleFormat::Native => ZE_MODULE_FORMAT_NATIVE,
        ModuleFormat::OpenClC => {
            let name = &context.info.name;
            return Err(Error::unsupported(format!("`{name}` does not accept OpenCL C")));
        }
    };
    let options = CString::new(source.options.trim()).map_err(|error| {
        Error::invalid("the build options contain a NUL character").with_source(error)
    })?;
    let (ids, mut values): (Vec<_>, Vec<_>) =
        source.constants.iter().map(|(id, value)| (*id, value.as_ptr().cast())).unzip();
    let constants = ze_module_constants_t {
        numConstants: ids.len() as u32,
        pConstantIds: ids.as_ptr(),
        pConstantValues: values.as_mut_ptr(),
    };
    let description = ze_module_desc_t {
        stype: ZE_STRUCTURE_TYPE_MODULE_DESC,
        pNext: ptr::null(),
        format,
        inputSize: source.code.len(),
        pInputModule: source.code.as_ptr(),
        pBuildFlags: options.as_ptr(),
        pConstants: if ids.is_empty() { ptr::null() } else { &raw const constants },
    };
    let (mut raw, mut log) = (ptr::null_mut(), ptr::null_mut());
    let one_at_a_time = one_at_a_time();
    // SAFETY: context and device are alive and belong together; the description and all that it points to are
    // alive, and each value is as long as its constant.
    let created = ending_on_exception(|| unsafe {
        (context.api.zeModuleCreate)(
            context.raw(),
            context.device.0,
            &raw const description,
            &raw mut raw,
            &raw mut log,
        )
    });
    drop(one_at_a_time);
    let log = take_log(context, log);
    if let Err(code) = check(created) {
        return Err(build_error(context, source, code).with_log(log));
    }
    // SAFETY: just created, and owned only here.
    let module = unsafe { OwnedModule::new(context.api, raw) };
    Ok((module, log))
}

/// Takes the lock that keeps compiles, loads and links apart: some compilers crash when one thread compiles
/// while another thread compiles, loads or links.
pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    lock(&ONE_AT_A_TIME)
}

/// Rejects SPIR-V that makes Intel's compiler end the process instead of returning an error. The rest of the
/// module was checked when its `Module` was created.
fn check_spirv(device: &str, il_version: &str, code: &[u8]) -> Result<()> {
    /// Size of a header in bytes: the magic number, the version, and three more words.
    const HEADER: usize = 20;
    const MAGIC: u32 = 0x0723_0203;
    let invalid = |message: &'static str| Err(Error::new(ErrorKind::InvalidModule, message));
    let (words, rest) = code.as_chunks::<4>();
    if code.len() < HEADER || !rest.is_empty() {
        return invalid(
            "the SPIR-V module is truncated: expected a header of 5 words, followed by complete \
             words of 4 bytes",
        );
    }
    if u32::from_le_bytes(words[0]) != MAGIC {
        return invalid("the code is not a SPIR-V module with little-endian words");
    }
    let [_, minor, major, _] = words[1];
    if !spirv_versions(il_version).any(|known| known == (major, minor)) {
        return Err(Error::unsupported(format!(
            "`{device}` does not accept SPIR-V {major}.{minor}; it accepts: {il_version}"
        )));
    }
    Ok(())
}

/// Returns the text of a log, and destroys the log.
pub(super) fn take_log(context: &Context, log: ze_module_build_log_handle_t) -> String {
    if log.is_null() {
        return String::new();
    }
    let get = context.api.zeModuleBuildLogGetString;
    let mut size = 0;
    // SAFETY: the log is alive; without a buffer, the driver only returns the size.
    let status = unsafe { get(log, &raw mut size, ptr::null_mut()) };
    let mut characters: Vec<c_char> = vec![0; if check(status).is_ok() { size } else { 0 }];
    if !characters.is_empty() {
        // SAFETY: the log is alive, and there is room for `size` characters.
        let status = unsafe { get(log, &raw mut size, characters.as_mut_ptr()) };
        if check(status).is_err() {
            characters.clear();
        }
    }
    // SAFETY: the log is alive, and not used again.
    let destroyed = unsafe { (context.api.zeModuleBuildLogDestroy)(log) };
    if let Err(code) = check(destroyed) {
        let code = code.driver_code();
        tracing::debug!(%code, "zeModuleBuildLogDestroy failed");
    }
    text(&characters)
}

/// Returns the error of a module that cannot be built.
pub(super) fn build_error(context: &Context, source: &Source<'_>, code: Code) -> Error {
    let mut message = format!("`{}` cannot build the {} program", context.info.name, source.format);
    // The log does not name the option that is refused.
    if !source.options.is_empty() {
        message.push_str(&format!(" with the options `{}`", source.options));
    }
    if code.is_loss() {
        return context.error(code, message);
    }
    code.error_of(code.build_kind(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAXPY: &[u8] = include_bytes!("../../../tests/data/saxpy.spv");
    const ACCEPTED_VERSIONS: &str = "SPIR-V_1.0 SPIR-V_1.1 SPIR-V_1.2";

    #[test]
    fn invalid_spirv_is_refused_before_it_reaches_the_compiler() {
        let check = |code: &[u8]| {
            check_spirv("a GPU", ACCEPTED_VERSIONS, code).map_err(|error| error.kind())
        };
        assert_eq!(check(SAXPY), Ok(()));
        for length in [0, 4, 19, SAXPY.len() - 1] {
            assert_eq!(check(&SAXPY[..length]), Err(ErrorKind::InvalidModule), "{length} bytes");
        }
        let with = |at: usize, byte: u8| {
            let mut code = SAXPY.to_vec();
            code[at] = byte;
            code
        };
        assert_eq!(check(&with(0, 0x02)), Err(ErrorKind::InvalidModule), "the magic number");
        assert_eq!(check(&with(5, 9)), Err(ErrorKind::Unsupported), "the minor version");
        assert_eq!(check(&with(6, 2)), Err(ErrorKind::Unsupported), "the major version");
    }

    #[test]
    fn unsupported_versions_are_reported_with_the_supported_ones() {
        let error =
            check_spirv("a GPU", "SPIR-V_1.3", SAXPY).expect_err("the module has an older version");
        let text = error.to_string();
        assert!(text.contains("`a GPU`") && text.contains("SPIR-V_1.3"), "{text}");
    }
}
