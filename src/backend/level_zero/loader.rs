//! Level Zero's loader: opened at run time, its functions looked up by name.

use std::sync::{Mutex, OnceLock};

use libloading::Library;

use super::bindings::*;
use super::image_bindings::*;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

#[cfg(windows)]
pub(super) const LIBRARY: &str = "ze_loader.dll";
#[cfg(not(windows))]
pub(super) const LIBRARY: &str = "libze_loader.so.1";

pub(super) const INSTALL: &str =
    "install the GPU's Level Zero driver: on Debian and Ubuntu `apt install libze-intel-gpu1`";

/// Type of the function to which a nullable function pointer of the headers points.
pub(super) trait Nullable {
    type Function: Copy;
}

impl<F: Copy> Nullable for Option<F> {
    type Function = F;
}

/// Defines a table of functions by their own names. The `required` functions exist since the oldest supported
/// loader. Without an `optional` function, the backend does its work in another way.
macro_rules! functions {
    ($($need:ident $name:ident: $type:ident;)*) => {
        #[allow(non_snake_case, reason = "the names are the API's")]
        pub(super) struct Api {
            $(pub(super) $name: functions!(@field $need $type),)*
        }

        impl Api {
            fn of(library: &Library) -> Result<Self> {
                Ok(Self { $($name: functions!(@find $need $type library stringify!($name)),)* })
            }
        }
    };
    (@field required $type:ident) => { <$type as Nullable>::Function };
    (@field optional $type:ident) => { $type };
    (@find required $type:ident $library:ident $name:expr) => {{
        // SAFETY: the headers give the function of this name this type, in every version.
        let found: $type = unsafe { find($library, $name) };
        found.ok_or_else(|| missing_function_error($name))?
    }};
    (@find optional $type:ident $library:ident $name:expr) => {{
        // SAFETY: the headers give the function of this name this type, in every version.
        let found: $type = unsafe { find($library, $name) };
        found
    }};
}

functions! {
    required zeInit: ze_pfnInit_t;
    optional zeInitDrivers: ze_pfnInitDrivers_t;
    required zeDriverGet: ze_pfnDriverGet_t;
    required zeDriverGetApiVersion: ze_pfnDriverGetApiVersion_t;
    required zeDriverGetProperties: ze_pfnDriverGetProperties_t;
    required zeDriverGetExtensionProperties: ze_pfnDriverGetExtensionProperties_t;
    required zeDeviceGet: ze_pfnDeviceGet_t;
    required zeDeviceGetProperties: ze_pfnDeviceGetProperties_t;
    required zeDeviceGetComputeProperties: ze_pfnDeviceGetComputeProperties_t;
    required zeDeviceGetModuleProperties: ze_pfnDeviceGetModuleProperties_t;
    required zeDeviceGetImageProperties: ze_pfnDeviceGetImageProperties_t;
    required zeDeviceGetMemoryProperties: ze_pfnDeviceGetMemoryProperties_t;
    required zeDeviceGetCommandQueueGroupProperties: ze_pfnDeviceGetCommandQueueGroupProperties_t;
    required zeDeviceGetStatus: ze_pfnDeviceGetStatus_t;
    optional zeDeviceGetGlobalTimestamps: ze_pfnDeviceGetGlobalTimestamps_t;
    required zeContextCreate: ze_pfnContextCreate_t;
    required zeContextDestroy: ze_pfnContextDestroy_t;
    required zeCommandListCreate: ze_pfnCommandListCreate_t;
    required zeCommandListCreateImmediate: ze_pfnCommandListCreateImmediate_t;
    required zeCommandListDestroy: ze_pfnCommandListDestroy_t;
    required zeCommandListClose: ze_pfnCommandListClose_t;
    required zeCommandListAppendBarrier: ze_pfnCommandListAppendBarrier_t;
    required zeCommandListAppendMemoryCopy: ze_pfnCommandListAppendMemoryCopy_t;
    required zeCommandListAppendMemoryFill: ze_pfnCommandListAppendMemoryFill_t;
    required zeCommandListAppendImageCopyRegion: ze_pfnCommandListAppendImageCopyRegion_t;
    required zeCommandListAppendImageCopyToMemory: ze_pfnCommandListAppendImageCopyToMemory_t;
    required zeCommandListAppendImageCopyFromMemory: ze_pfnCommandListAppendImageCopyFromMemory_t;
    required zeCommandListAppendLaunchKernel: ze_pfnCommandListAppendLaunchKernel_t;
    optional zeCommandListImmediateAppendCommandListsExp: ze_pfnCommandListImmediateAppendCommandListsExp_t;
    required zeEventPoolCreate: ze_pfnEventPoolCreate_t;
    required zeEventPoolDestroy: ze_pfnEventPoolDestroy_t;
    required zeEventCreate: ze_pfnEventCreate_t;
    required zeEventDestroy: ze_pfnEventDestroy_t;
    required zeEventHostReset: ze_pfnEventHostReset_t;
    required zeEventQueryStatus: ze_pfnEventQueryStatus_t;
    required zeEventQueryKernelTimestamp: ze_pfnEventQueryKernelTimestamp_t;
    required zeMemAllocDevice: ze_pfnMemAllocDevice_t;
    required zeMemAllocHost: ze_pfnMemAllocHost_t;
    required zeMemFree: ze_pfnMemFree_t;
    required zeImageCreate: ze_pfnImageCreate_t;
    required zeImageDestroy: ze_pfnImageDestroy_t;
    required zeSamplerCreate: ze_pfnSamplerCreate_t;
    required zeSamplerDestroy: ze_pfnSamplerDestroy_t;
    required zeModuleCreate: ze_pfnModuleCreate_t;
    required zeModuleDestroy: ze_pfnModuleDestroy_t;
    required zeModuleDynamicLink: ze_pfnModuleDynamicLink_t;
    required zeModuleBuildLogDestroy: ze_pfnModuleBuildLogDestroy_t;
    required zeModuleBuildLogGetString: ze_pfnModuleBuildLogGetString_t;
    required zeModuleGetNativeBinary: ze_pfnModuleGetNativeBinary_t;
    required zeModuleGetKernelNames: ze_pfnModuleGetKernelNames_t;
    required zeKernelCreate: ze_pfnKernelCreate_t;
    required zeKernelDestroy: ze_pfnKernelDestroy_t;
    required zeKernelSetGroupSize: ze_pfnKernelSetGroupSize_t;
    required zeKernelSuggestGroupSize: ze_pfnKernelSuggestGroupSize_t;
    required zeKernelSetArgumentValue: ze_pfnKernelSetArgumentValue_t;
    required zeKernelGetProperties: ze_pfnKernelGetProperties_t;
    optional zeKernelSetGlobalOffsetExp: ze_pfnKernelSetGlobalOffsetExp_t;
}

/// # Safety
///
/// `T` is an `Option` of the function's type.
unsafe fn find<T: Copy + Default>(library: &Library, name: &str) -> T {
    // SAFETY: guaranteed by the caller.
    let symbol = unsafe { library.get::<T>(name) };
    symbol.map_or_else(|_| T::default(), |symbol| *symbol)
}

fn missing_function_error(name: &str) -> Error {
    Error::new(
        ErrorKind::NoDevice,
        format!(
            "the Level Zero loader `{LIBRARY}` has no function `{name}`: it is too old; update it, on \
             Debian and Ubuntu the package `libze1`"
        ),
    )
}

/// Returns the loader's functions. The library stays loaded, because drivers do not support being unloaded. A
/// failure to open it is not cached, because the loader may be installed meanwhile. Blocks.
pub(super) fn api() -> Result<&'static Api> {
    static API: OnceLock<Api> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = lock(&LOADING);
    if let Some(api) = API.get() {
        return Ok(api);
    }
    // SAFETY: the loader's initializers only set up its own tables.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
        Error::new(
            ErrorKind::NoDevice,
            format!("no Level Zero loader can be opened (tried `{LIBRARY}`); {INSTALL}"),
        )
        .with_source(error)
    })?;
    let api = Api::of(&library)?;
    std::mem::forget(library);
    Ok(API.get_or_init(|| api))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_loader_and_the_function_that_it_lacks() {
        let text = missing_function_error("zeFuture").to_string();
        assert!(text.contains("`zeFuture`") && text.contains(LIBRARY), "{text}");
        assert_eq!(missing_function_error("zeFuture").kind(), ErrorKind::NoDevice);
    }

    #[test]
    #[cfg(unix)]
    fn libraries_other_than_the_loader_lack_the_first_function() {
        let library = libloading::os::unix::Library::this();
        let error = Api::of(&library.into()).err().expect("this program is not a loader");
        assert!(error.to_string().contains("`zeInit`"), "{error}");
    }
}
