//! Discovery of devices and of their properties.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use opencl3::context::context::{CL_CONTEXT_PLATFORM, cl_context_properties, create_context};
use opencl3::device::*;
use opencl3::error_codes::{CL_PLATFORM_NOT_FOUND_KHR, DLOPEN_RUNTIME_LOAD_FAILED};
use opencl3::platform::platform::{
    CL_PLATFORM_NAME, CL_PLATFORM_VERSION, cl_platform_id, get_platform_data, get_platform_ids,
};

use super::codes::{driver_code, error};
use super::compute_cache;
use super::context::Context;
use super::device::ClDevice;
use super::finish_worker::FinishWorker;
use super::handle::{DeviceId, OwnedContext, PlatformId, Version};
use super::loader::{self, INSTALL};
use super::sampler::Samplers;
use super::spare_memory::SpareMemory;
use super::{NAME, integer, text};
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::poller::Poller;
use crate::backend::{Adapter, Device, compiler_files};
use crate::device::{DeviceInfo, DeviceKind, ImageLimits, Limits, ModuleFormat, Workarounds};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Oldest supported version. Markers with a wait list, fills and the names of parameters need OpenCL 1.2.
const OLDEST: Version = Version { major: 1, minor: 2 };

/// Text in place of a failed query's answer.
const UNKNOWN: &str = "unknown";

/// Sizes of the two parts of a `cl_name_version` in bytes.
const VERSION_BYTES: usize = 4;
const NAME_BYTES: usize = 64;

/// Device that a driver lists.
pub(super) struct ClAdapter {
    pub(super) platform: PlatformId,
    pub(super) device: DeviceId,
    pub(super) version: Version,
    pub(super) info: Arc<DeviceInfo>,
}

impl Adapter for ClAdapter {
    fn info(&self) -> &Arc<DeviceInfo> {
        &self.info
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(self.open_with(Workarounds::of(&self.info))?))
    }
}

impl ClAdapter {
    /// Opens the device with these workarounds.
    pub(super) fn open_with(&self, workarounds: Workarounds) -> Result<ClDevice> {
        let _call = handler_guard::begin(CallKind::Open)?;
        let Self { platform, device, ref info, .. } = *self;
        let properties = [CL_CONTEXT_PLATFORM, platform.0 as cl_context_properties, 0];
        let start = Instant::now();
        let raw = create_context(&[device.0], properties.as_ptr(), None, ptr::null_mut())
            .map_err(|code| error(code, format!("the device `{}` cannot be opened", info.name)))?;
        if workarounds.check_compute_cache {
            compute_cache::check(start.elapsed());
        }
        // SAFETY: just created, and referenced here alone.
        let context = unsafe { OwnedContext::new(raw) };
        Ok(self.open_in(context, workarounds))
    }

    /// Opens the device in a context that exists.
    pub(super) fn open_in(&self, context: OwnedContext, workarounds: Workarounds) -> ClDevice {
        let Self { device, version, .. } = *self;
        let info = Arc::clone(&self.info);
        let spare = workarounds.defer_releases.then(|| SpareMemory::new(info.limits.global_memory));
        let context = Context {
            spare,
            samplers: Samplers::default(),
            context,
            device,
            version,
            poller: workarounds.poll_for_ends.then(|| Arc::new(Poller::new())),
            worker: workarounds.help_execute.then(FinishWorker::new),
            has_launched: AtomicBool::new(!workarounds.expect_late_compiles),
            info,
            workarounds,
        };
        ClDevice { context: Arc::new(context) }
    }

    /// Describes a device of the driver, without listing others.
    pub(super) fn of(device: DeviceId) -> Result<Self> {
        let platform = get_device_info(device.0, CL_DEVICE_PLATFORM)
            .map_err(|code| error(code, "the given device does not name its platform"))?;
        let platform = PlatformId(isize::from(platform) as cl_platform_id);
        let (version, info) =
            describe(&Platform::of(platform.0), device.0).map_err(Error::unsupported)?;
        Ok(Self { platform, device, version, info: Arc::new(info) })
    }
}

/// Finds the usable devices of all platforms. An unusable device or platform does not hide the others.
pub(super) fn discover() -> Result<Vec<ClAdapter>> {
    // PoCL 3.1 initializes its devices when they are first listed, and shows them half initialized to a second
    // thread.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = lock(&ONE_AT_A_TIME);
    let _call = handler_guard::begin(CallKind::Discover)?;
    loader::check_chosen()?;
    loader::open_drivers();
    let platforms = get_platform_ids();
    handler_guard::restore();
    let platforms = match platforms {
        Ok(platforms) if platforms.is_empty() => return Err(loader::no_driver_error()),
        Ok(platforms) => platforms,
        Err(CL_PLATFORM_NOT_FOUND_KHR) => return Err(loader::no_driver_error()),
        Err(DLOPEN_RUNTIME_LOAD_FAILED) => return Err(loader::no_loader_error()),
        Err(code) => return Err(error(code, "the OpenCL platforms cannot be listed")),
    };
    let mut adapters = Vec::new();
    let mut skipped = Vec::new();
    for platform in platforms {
        let description = Platform::of(platform);
        let name = &description.name;
        let devices = get_device_ids(platform, CL_DEVICE_TYPE_ALL);
        handler_guard::restore();
        let devices = match devices {
            Ok(devices) => devices,
            Err(code) => {
                let code = driver_code(code);
                tracing::debug!(platform = %name, %code, "platform skipped");
                skipped.push(format!("platform `{name}` failed with {code}"));
                continue;
            }
        };
        if devices.is_empty() {
            skipped.push(format!("platform `{name}` has no devices"));
        }
        for device in devices {
            match describe(&description, device) {
                Ok((version, info)) => adapters.push(ClAdapter {
                    platform: PlatformId(platform),
                    device: DeviceId(device),
                    version,
                    info: Arc::new(info),
                }),
                Err(reason) => {
                    tracing::debug!(platform = %name, %reason, "device skipped");
                    skipped.push(reason);
                }
            }
        }
    }
    if adapters.is_empty() {
        return Err(Error::new(
            ErrorKind::NoDevice,
            format!("no OpenCL device can be used: {}; {INSTALL}", skipped.join("; ")),
        ));
    }
    Ok(adapters)
}

/// Name and version of a platform.
struct Platform {
    name: String,
    version: String,
    /// Address of a function of the driver.
    function: Option<usize>,
}

impl Platform {
    fn of(platform: cl_platform_id) -> Self {
        let query = |what| {
            get_platform_data(platform, what)
                .map_or_else(|_| UNKNOWN.to_owned(), |answer| text(&answer))
        };
        Self {
            name: query(CL_PLATFORM_NAME),
            version: query(CL_PLATFORM_VERSION),
            function: Self::function(platform),
        }
    }

    /// Returns the address of the function that every driver has for the loader (`cl_khr_icd`). The other
    /// functions that a program links with are the loader's.
    fn function(platform: cl_platform_id) -> Option<usize> {
        let opencl = cl3::load_library().as_ref().ok()?;
        let name = c"clIcdGetPlatformIDsKHR";
        let function = opencl.clGetExtensionFunctionAddressForPlatform(platform, name.as_ptr())?;
        (!function.is_null()).then_some(function as usize)
    }
}

/// Returns the device's version and properties, or the reason why it cannot be used.
fn describe(platform: &Platform, device: cl_device_id) -> Result<(Version, DeviceInfo), String> {
    let query = Query(device);
    let name = query.text(CL_DEVICE_NAME);
    let unusable =
        |reason: String| format!("device `{name}` of platform `{}` {reason}", platform.name);

    let device_version = query.text(CL_DEVICE_VERSION);
    let version = Version::parse(&device_version)
        .filter(|&version| version >= OLDEST)
        .ok_or_else(|| unusable(format!("implements `{device_version}`, older than OpenCL 1.2")))?;
    if query.integer(CL_DEVICE_AVAILABLE) == Ok(0) {
        return Err(unusable("is not available".to_owned()));
    }
    let limits = query.limits().map_err(unusable)?;

    // `clCreateProgramWithIL` needs OpenCL 2.1.
    let il_version = if version.at_least(2, 1) {
        get_device_data(device, CL_DEVICE_IL_VERSION).map_or_else(|_| String::new(), |il| text(&il))
    } else {
        String::new()
    };
    let (formats, links) = query.formats(&il_version);
    let kind = query.kind();
    let mut info = DeviceInfo {
        backend: NAME,
        platform: platform.name.clone(),
        platform_version: platform.version.clone(),
        vendor: query.text(CL_DEVICE_VENDOR),
        kind,
        instructions: DeviceInfo::instructions_of(kind),
        driver_version: query.text(CL_DRIVER_VERSION),
        compiler: String::new(),
        device_version,
        il_version,
        extensions: words(&query.text(CL_DEVICE_EXTENSIONS)),
        opencl_c_features: query.opencl_c_features(),
        images: query.has(CL_DEVICE_IMAGE_SUPPORT),
        runs_code: true,
        fuses: true,
        fused_multiply_add: query
            .integer(CL_DEVICE_SINGLE_FP_CONFIG)
            .is_ok_and(|config| config & CL_FP_FMA != 0),
        formats,
        links,
        links_by_calls: false,
        spirv_extensions: None,
        limits,
        name,
    };
    if let Some(function) = platform.function {
        let late = Workarounds::of(&info).compiler_files;
        info.compiler = compiler_files::of_function(function, late);
    }
    Ok((version, info))
}

/// Returns the names in a list. The answer of a failed query has none.
fn words(list: &str) -> Vec<String> {
    if list == UNKNOWN { Vec::new() } else { list.split_whitespace().map(str::to_owned).collect() }
}

/// Queries of a device's properties.
struct Query(cl_device_id);

impl Query {
    fn text(&self, what: cl_device_info) -> String {
        get_device_data(self.0, what).map_or_else(|_| UNKNOWN.to_owned(), |answer| text(&answer))
    }

    fn integer(&self, what: cl_device_info) -> Result<u64, String> {
        let answer = get_device_data(self.0, what)
            .map_err(|code| format!("returned {} for query {what:#x}", driver_code(code)))?;
        integer(&answer).ok_or_else(|| {
            format!(
                "returned {} bytes for query {what:#x}, which is not the size of an integer",
                answer.len()
            )
        })
    }

    /// Returns the answer to a query whether the device has something. A failed query counts as no.
    fn has(&self, what: cl_device_info) -> bool {
        self.integer(what).is_ok_and(|answer| answer != 0)
    }

    /// Returns the module formats that the driver accepts, and those of which it links several modules.
    fn formats(&self, il_version: &str) -> (Vec<ModuleFormat>, Vec<ModuleFormat>) {
        let mut formats = Vec::new();
        if self.has(CL_DEVICE_COMPILER_AVAILABLE) {
            formats.push(ModuleFormat::OpenClC);
        }
        if il_version.contains("SPIR-V") {
            formats.push(ModuleFormat::SpirV);
        }
        let links = if self.has(CL_DEVICE_LINKER_AVAILABLE) { formats.clone() } else { Vec::new() };
        formats.push(ModuleFormat::Native);
        (formats, links)
    }

    /// Returns the names of the features that OpenCL 3.0 devices list with versions; none for other devices.
    fn opencl_c_features(&self) -> Vec<String> {
        let answer = get_device_data(self.0, CL_DEVICE_OPENCL_C_FEATURES).unwrap_or_default();
        let (features, _) = answer.as_chunks::<{ VERSION_BYTES + NAME_BYTES }>();
        // The bytes after a name's NUL may have any value.
        let names = features.iter().filter_map(|feature| {
            CStr::from_bytes_until_nul(&feature[VERSION_BYTES..]).ok()?.to_str().ok()
        });
        names.filter(|name| name.starts_with("__opencl_c_")).map(str::to_owned).collect()
    }

    fn size(&self, what: cl_device_info) -> Result<usize, String> {
        // A size beyond the host's address space is clamped to its largest one, which has the same effect.
        self.integer(what).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn kind(&self) -> DeviceKind {
        match self.integer(CL_DEVICE_TYPE) {
            Ok(kind) if kind & CL_DEVICE_TYPE_GPU != 0 => DeviceKind::Gpu,
            Ok(kind) if kind & CL_DEVICE_TYPE_CPU != 0 => DeviceKind::Cpu,
            _ => DeviceKind::Accelerator,
        }
    }

    /// Returns the device's limits. Every device must report them, so a device that fails to is broken.
    fn limits(&self) -> Result<Limits, String> {
        Ok(Limits {
            compute_units: self.size(CL_DEVICE_MAX_COMPUTE_UNITS)?,
            max_work_group_size: self.size(CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
            max_work_item_sizes: self.work_item_sizes()?,
            global_memory: self.integer(CL_DEVICE_GLOBAL_MEM_SIZE)?,
            max_allocation: self.integer(CL_DEVICE_MAX_MEM_ALLOC_SIZE)?,
            local_memory: self.integer(CL_DEVICE_LOCAL_MEM_SIZE)?,
            max_parameter_size: self.size(CL_DEVICE_MAX_PARAMETER_SIZE)?,
            // The driver reports bits.
            slice_alignment: (self.size(CL_DEVICE_MEM_BASE_ADDR_ALIGN)? / 8).max(1),
            address_bits: u32::try_from(self.integer(CL_DEVICE_ADDRESS_BITS)?).unwrap_or(u64::BITS),
            images: self.image_limits(),
        })
    }

    /// Returns the limits of images. A device without images reports no limits or zeros.
    fn image_limits(&self) -> ImageLimits {
        let size = |what| self.size(what).unwrap_or(0);
        ImageLimits {
            d2: [CL_DEVICE_IMAGE2D_MAX_WIDTH, CL_DEVICE_IMAGE2D_MAX_HEIGHT].map(size),
            d3: [
                CL_DEVICE_IMAGE3D_MAX_WIDTH,
                CL_DEVICE_IMAGE3D_MAX_HEIGHT,
                CL_DEVICE_IMAGE3D_MAX_DEPTH,
            ]
            .map(size),
            layers: size(CL_DEVICE_IMAGE_MAX_ARRAY_SIZE),
            buffer: size(CL_DEVICE_IMAGE_MAX_BUFFER_SIZE),
        }
    }

    fn work_item_sizes(&self) -> Result<[usize; 3], String> {
        let answer = get_device_data(self.0, CL_DEVICE_MAX_WORK_ITEM_SIZES).map_err(|code| {
            format!("does not report its work-item sizes: {}", driver_code(code))
        })?;
        let mut sizes = [1; 3];
        let (words, _) = answer.as_chunks::<{ size_of::<usize>() }>();
        for (size, word) in sizes.iter_mut().zip(words) {
            *size = usize::from_ne_bytes(*word);
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let version = |text| Version::parse(text).map(|version| (version.major, version.minor));
        assert_eq!(version("OpenCL 3.0 PoCL HSTR: pthread"), Some((3, 0)));
        assert_eq!(version("OpenCL 1.2"), Some((1, 2)));
        assert_eq!(version("OpenCL 2.x"), None);
        assert_eq!(version("unknown"), None);
        assert!(Version { major: 2, minor: 1 }.at_least(2, 1));
        assert!(Version { major: 3, minor: 0 }.at_least(2, 1));
        assert!(!Version { major: 1, minor: 2 }.at_least(2, 0));
    }
}
