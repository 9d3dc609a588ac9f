//! Discovery of devices, and the properties that they report.

use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use super::bindings::*;
use super::clock::Clock;
use super::codes::{Code, check};
use super::context::Context;
use super::device::LzDevice;
use super::event_pool::{EventPool, Kind};
use super::handle::{DeviceHandle, DriverHandle, OwnedContext};
use super::loader::{Api, INSTALL, LIBRARY, api};
use super::sampler::Samplers;
use super::staging_pool::StagingPool;
use super::{NAME, extensions, text};
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::poller::Poller;
use crate::backend::{Adapter, Device, compiler_files, shutdown};
use crate::device::{
    DeviceInfo, DeviceKind, ImageLimits, LEVEL_ZERO, Limits, ModuleFormat, Workarounds,
};
use crate::error::{Error, ErrorKind, Result};

/// Alignment of slices of buffers: the size of the largest type of OpenCL C, in bytes. Kernels may assume that
/// a buffer is aligned to it.
const SLICE_ALIGNMENT: usize = 128;

const INTEL: u32 = 0x8086;

/// Beginning of the name of the library of Intel's driver, which the loader has opened if there is a device. The
/// API does not tell which library a driver is.
const INTEL_LIBRARY: &str = "libze_intel_gpu.so";

/// `ZE_EVENT_POOL_COUNTER_BASED_EXP_NAME`.
const COUNTED_EVENTS: &str = "ZE_experimental_event_pool_counter_based";

/// `ZE_IMMEDIATE_COMMAND_LIST_APPEND_EXP_NAME`.
const APPENDED_LISTS: &str = "ZE_experimental_immediate_command_list_append";

/// A device of a driver.
pub(super) struct LzAdapter {
    pub(super) api: &'static Api,
    pub(super) driver: DriverHandle,
    pub(super) device: DeviceHandle,
    /// Ordinal of the queue group that runs kernels.
    pub(super) ordinal: u32,
    pub(super) clock: Clock,
    /// Whether events can be based on the counters of in-order lists.
    pub(super) has_counted_events: bool,
    /// Whether closed command lists can be executed behind the commands of an immediate list.
    pub(super) has_appended_lists: bool,
    pub(super) info: Arc<DeviceInfo>,
}

impl Adapter for LzAdapter {
    fn info(&self) -> &Arc<DeviceInfo> {
        &self.info
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(self.open_device()?))
    }
}

impl LzAdapter {
    fn open_device(&self) -> Result<LzDevice> {
        let _call = handler_guard::begin(CallKind::Open)?;
        let Self { api, driver, ref info, .. } = *self;
        let description =
            ze_context_desc_t { stype: ZE_STRUCTURE_TYPE_CONTEXT_DESC, ..Default::default() };
        let mut raw = ptr::null_mut();
        // SAFETY: the driver is alive, and the description is valid.
        let created =
            unsafe { (api.zeContextCreate)(driver.0, &raw const description, &raw mut raw) };
        check(created)
            .map_err(|code| code.error(format!("the device `{}` cannot be opened", info.name)))?;
        // SAFETY: just created, and owned only here.
        let context = Arc::new(unsafe { OwnedContext::new(api, raw) });
        Ok(self.open_in(context))
    }

    /// Opens the device in a context that exists.
    pub(super) fn open_in(&self, context: Arc<OwnedContext>) -> LzDevice {
        let Self { api, device, ordinal, ref clock, has_counted_events, ref info, .. } = *self;
        let events = if has_counted_events { Kind::Counted } else { Kind::Plain };
        // Drivers got in-order lists and counter-based events together. An older driver accepts the flag for an
        // in-order list, and ignores it.
        let has_ordered_lists = has_counted_events;
        let append_lists = api
            .zeCommandListImmediateAppendCommandListsExp
            .filter(|_| has_ordered_lists && self.has_appended_lists);
        let pool = |kind| EventPool::new(api, &context, device, kind);
        let context = Context {
            api,
            device,
            ordinal,
            clock: clock.clone(),
            info: Arc::clone(info),
            poller: Poller::new(),
            has_ordered_lists,
            append_lists,
            events: [pool(events), pool(Kind::Stamped)],
            staging: StagingPool::default(),
            samplers: Samplers::default(),
            lost: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            context,
        };
        let context = Arc::new(context);
        let commands: Weak<Context> = Arc::downgrade(&context);
        shutdown::wait_at_end(commands);
        LzDevice { context }
    }

    /// Describes a device of a driver, without listing others.
    pub(super) fn of(driver: DriverHandle, device: DeviceHandle) -> Result<Self> {
        let api = api()?;
        describe(api, driver.0, device.0).map_err(Error::unsupported)
    }
}

/// Returns all usable devices of all drivers. Unusable drivers and devices are skipped, and do not hide the
/// others.
pub(super) fn discover() -> Result<Vec<LzAdapter>> {
    let _call = handler_guard::begin(CallKind::Discover)?;
    let api = api()?;
    let drivers = drivers(api).map_err(|code| {
        let message = format!("the Level Zero loader `{LIBRARY}` found no driver; {INSTALL}");
        code.error_of(ErrorKind::NoDevice, message)
    })?;
    let mut adapters = Vec::new();
    let mut skipped = Vec::new();
    for driver in drivers {
        let devices = list(ptr::null_mut(), |count, devices| {
            // SAFETY: the driver is alive, and `devices` null or with room for `count`.
            unsafe { (api.zeDeviceGet)(driver, count, devices) }
        });
        match devices {
            Ok(devices) if devices.is_empty() => skipped.push("a driver has no devices".to_owned()),
            Ok(devices) => {
                for device in devices {
                    match describe(api, driver, device) {
                        Ok(adapter) => adapters.push(adapter),
                        Err(reason) => skipped.push(reason),
                    }
                }
            }
            Err(code) => skipped.push(format!("a driver failed with {}", code.driver_code())),
        }
    }
    for reason in &skipped {
        tracing::debug!(%reason, "skipped");
    }
    if adapters.is_empty() {
        return Err(Error::new(
            ErrorKind::NoDevice,
            format!("no Level Zero device can be used: {}; {INSTALL}", skipped.join("; ")),
        ));
    }
    Ok(adapters)
}

/// Returns the drivers of all devices that compute.
fn drivers(api: &Api) -> Result<Vec<ze_driver_handle_t>, Code> {
    let with_older_functions = || {
        // SAFETY: the function only takes flags.
        check(unsafe { (api.zeInit)(0) })?;
        list(ptr::null_mut(), |count, drivers| {
            // SAFETY: `drivers` is null or has room for `count`.
            unsafe { (api.zeDriverGet)(count, drivers) }
        })
    };
    let Some(init_drivers) = api.zeInitDrivers else { return with_older_functions() };
    let mut description = ze_init_driver_type_desc_t {
        stype: ZE_STRUCTURE_TYPE_INIT_DRIVER_TYPE_DESC,
        pNext: ptr::null(),
        flags: ZE_INIT_DRIVER_TYPE_FLAG_GPU | ZE_INIT_DRIVER_TYPE_FLAG_NPU,
    };
    let found = list(ptr::null_mut(), |count, drivers| {
        // SAFETY: `drivers` is null or has room for `count`, and the description is valid.
        unsafe { init_drivers(count, drivers, &raw mut description) }
    });
    // A loader that has the function fails if no driver is recent enough for it.
    found.or_else(|code| with_older_functions().map_err(|_| code))
}

/// Lists items of the driver in two calls: the first returns their number, the second the items.
fn list<T: Clone>(
    empty: T,
    mut call: impl FnMut(*mut u32, *mut T) -> ze_result_t,
) -> Result<Vec<T>, Code> {
    let mut count = 0;
    check(call(&raw mut count, ptr::null_mut()))?;
    let mut all = vec![empty; count as usize];
    if count > 0 {
        check(call(&raw mut count, all.as_mut_ptr()))?;
    }
    all.truncate(count as usize);
    Ok(all)
}

/// Returns a structure that the driver fills in.
fn fill_in<T>(mut structure: T, call: impl FnOnce(*mut T) -> ze_result_t) -> Result<T, Code> {
    check(call(&raw mut structure))?;
    Ok(structure)
}

/// Describes a device. Fails with the reason why the device cannot be used.
fn describe(
    api: &'static Api,
    driver: ze_driver_handle_t,
    device: ze_device_handle_t,
) -> Result<LzAdapter, String> {
    let query = Query { api, driver, device };
    let about = |what: &'static str| {
        move |code: Code| format!("a device does not report {what}: {}", code.driver_code())
    };
    let (properties, ip_version) = query.properties().map_err(about("its properties"))?;
    let name = text(&properties.name);
    let unusable = |reason: String| format!("device `{name}` {reason}");
    let about = |what: &'static str| {
        let unusable = &unusable;
        move |code: Code| unusable(format!("does not report {what}: {}", code.driver_code()))
    };
    let module = query.module().map_err(about("its supported module formats"))?;
    let limits = query.limits(&properties, &module).map_err(about("its limits"))?;
    let ordinal = query
        .compute_ordinal()
        .map_err(about("its queues"))?
        .ok_or_else(|| unusable("has no queue that runs kernels".to_owned()))?;
    if module.spirvVersionSupported == 0 {
        return Err(unusable("does not accept SPIR-V".to_owned()));
    }

    let has_images = limits.images != ImageLimits::default();
    let api_version = query.api_version().map_err(about("its version"))?;
    let kind = match properties.type_ {
        ZE_DEVICE_TYPE_GPU => DeviceKind::Gpu,
        ZE_DEVICE_TYPE_CPU => DeviceKind::Cpu,
        _ => DeviceKind::Accelerator,
    };
    let mut info = DeviceInfo {
        backend: NAME,
        platform: LEVEL_ZERO.to_owned(),
        platform_version: String::new(),
        vendor: match properties.vendorId {
            INTEL => "Intel(R) Corporation".to_owned(),
            other => format!("{other:#06x}"),
        },
        kind,
        instructions: DeviceInfo::instructions_of(kind),
        driver_version: query.driver_version().map_err(about("its driver's version"))?,
        compiler: String::new(),
        device_version: device_version(api_version, &properties, ip_version),
        il_version: il_version(module.spirvVersionSupported),
        extensions: opencl_extensions(&module, has_images),
        opencl_c_features: features(&module, has_images),
        images: has_images,
        runs_code: true,
        fuses: true,
        fused_multiply_add: module.fp32flags & ZE_DEVICE_FP_FLAG_FMA != 0,
        formats: vec![ModuleFormat::SpirV, ModuleFormat::Native],
        links: vec![ModuleFormat::SpirV],
        links_by_calls: true,
        spirv_extensions: (properties.vendorId == INTEL).then_some(extensions::ACCEPTED),
        limits,
        name,
    };
    if properties.vendorId == INTEL {
        let late = Workarounds::of(&info).compiler_files;
        info.compiler = compiler_files::of_library(INTEL_LIBRARY, late);
    }
    Ok(LzAdapter {
        api,
        driver: DriverHandle(driver),
        device: DeviceHandle(device),
        ordinal,
        clock: query.clock(&properties),
        has_counted_events: query.has_extension(COUNTED_EVENTS),
        has_appended_lists: query.has_extension(APPENDED_LISTS),
        info: Arc::new(info),
    })
}

/// Returns the version of the API and the ids of the hardware, as text. An `ip_version` of 0 is left out.
fn device_version(
    api_version: u32,
    properties: &ze_device_properties_t,
    ip_version: u32,
) -> String {
    let (major, minor) = versions(api_version);
    let mut version = format!(
        "Level Zero {major}.{minor}, device {:#06x}:{:#06x}",
        properties.vendorId, properties.deviceId
    );
    if ip_version != 0 {
        version.push_str(&format!(", IP version {ip_version:#010x}"));
    }
    version
}

/// Splits a number into a major and a minor version.
fn versions(number: u32) -> (u32, u32) {
    (number >> 16, number & 0xffff)
}

/// Lists the supported SPIR-V versions as OpenCL drivers do: every version up to the newest.
fn il_version(newest: u32) -> String {
    let (major, newest) = versions(newest);
    let each = (0..=newest).map(|minor| format!("SPIR-V_{major}.{minor}"));
    each.collect::<Vec<_>>().join(" ")
}

/// Returns the OpenCL C extensions of the device, beginning with those that every Level Zero device has. SPIR-V has no
/// capability for writes to images of three dimensions, so a device with images has them.
fn opencl_extensions(module: &ze_device_module_properties_t, has_images: bool) -> Vec<String> {
    let always = [
        "cl_khr_byte_addressable_store",
        "cl_khr_global_int32_base_atomics",
        "cl_khr_global_int32_extended_atomics",
        "cl_khr_local_int32_base_atomics",
        "cl_khr_local_int32_extended_atomics",
    ];
    let by_flag = [
        (ZE_DEVICE_MODULE_FLAG_FP16, "cl_khr_fp16"),
        (ZE_DEVICE_MODULE_FLAG_FP64, "cl_khr_fp64"),
        (ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS, "cl_khr_int64_base_atomics"),
        (ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS, "cl_khr_int64_extended_atomics"),
    ];
    let flagged = by_flag.into_iter().filter(|(flag, _)| module.flags & flag != 0);
    let of_images = has_images.then_some("cl_khr_3d_image_writes");
    let all = always.into_iter().chain(flagged.map(|(_, name)| name)).chain(of_images);
    all.map(str::to_owned).collect()
}

/// Returns the features of OpenCL C. The specification requires read-write images of a device with images.
fn features(module: &ze_device_module_properties_t, has_images: bool) -> Vec<String> {
    let mut features = vec!["__opencl_c_int64".to_owned()];
    if module.flags & ZE_DEVICE_MODULE_FLAG_FP64 != 0 {
        features.push("__opencl_c_fp64".to_owned());
    }
    if has_images {
        let of_images = ["images", "3d_image_writes", "read_write_images"];
        features.extend(of_images.map(|name| format!("__opencl_c_{name}")));
    }
    features
}

/// Queries for the properties of a device.
struct Query {
    api: &'static Api,
    driver: ze_driver_handle_t,
    device: ze_device_handle_t,
}

impl Query {
    /// Returns the properties and the version of the hardware; 0 if the version is not reported.
    fn properties(&self) -> Result<(ze_device_properties_t, u32), Code> {
        let mut version = ze_device_ip_version_ext_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT,
            ..Default::default()
        };
        let empty = ze_device_properties_t {
            // With this type, the timer's resolution is in ticks per second.
            stype: ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2,
            pNext: (&raw mut version).cast(),
            ..Default::default()
        };
        let properties = fill_in(empty, |structure| {
            // SAFETY: the device is alive, and each structure is of the type that its `stype` states.
            unsafe { (self.api.zeDeviceGetProperties)(self.device, structure) }
        })?;
        Ok((properties, version.ipVersion))
    }

    fn module(&self) -> Result<ze_device_module_properties_t, Code> {
        let empty = ze_device_module_properties_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES,
            ..Default::default()
        };
        fill_in(empty, |structure| {
            // SAFETY: the device is alive, and the structure is of the type that its `stype` states.
            unsafe { (self.api.zeDeviceGetModuleProperties)(self.device, structure) }
        })
    }

    fn limits(
        &self,
        properties: &ze_device_properties_t,
        module: &ze_device_module_properties_t,
    ) -> Result<Limits, Code> {
        let empty = ze_device_compute_properties_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES,
            ..Default::default()
        };
        let compute = fill_in(empty, |structure| {
            // SAFETY: the device is alive, and the structure is of the type that its `stype` states.
            unsafe { (self.api.zeDeviceGetComputeProperties)(self.device, structure) }
        })?;
        let units =
            [properties.numSlices, properties.numSubslicesPerSlice, properties.numEUsPerSubslice];
        Ok(Limits {
            compute_units: units.iter().map(|&n| n as usize).product::<usize>().max(1),
            max_work_group_size: compute.maxTotalGroupSize as usize,
            max_work_item_sizes: [
                compute.maxGroupSizeX as usize,
                compute.maxGroupSizeY as usize,
                compute.maxGroupSizeZ as usize,
            ],
            global_memory: self.memory()?,
            max_allocation: properties.maxMemAllocSize,
            local_memory: compute.maxSharedLocalMemory.into(),
            max_parameter_size: module.maxArgumentsSize as usize,
            slice_alignment: SLICE_ALIGNMENT,
            address_bits: usize::BITS,
            images: self.images(),
        })
    }

    fn memory(&self) -> Result<u64, Code> {
        let empty = ze_device_memory_properties_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES,
            ..Default::default()
        };
        let memories = list(empty, |count, memories| {
            // SAFETY: the device is alive, and `memories` null or with room for `count`.
            unsafe { (self.api.zeDeviceGetMemoryProperties)(self.device, count, memories) }
        })?;
        Ok(memories.iter().map(|memory| memory.totalSize).sum())
    }

    /// Returns the ordinal of the first group of queues that run kernels, and copies with them.
    fn compute_ordinal(&self) -> Result<Option<u32>, Code> {
        let get = self.api.zeDeviceGetCommandQueueGroupProperties;
        let empty = ze_command_queue_group_properties_t {
            stype: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES,
            ..Default::default()
        };
        let groups = list(empty, |count, groups| {
            // SAFETY: the device is alive, and `groups` null or with room for `count`.
            unsafe { get(self.device, count, groups) }
        })?;
        let computes = |flags: u32| flags & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE != 0;
        Ok((0..).zip(&groups).find(|(_, group)| computes(group.flags)).map(|(index, _)| index))
    }

    /// Returns the limits of images: zeros unless the device has images of one, two and three dimensions, as OpenCL C
    /// requires of a device that has any.
    fn images(&self) -> ImageLimits {
        let empty = ze_device_image_properties_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_IMAGE_PROPERTIES,
            ..Default::default()
        };
        let answer = fill_in(empty, |structure| {
            // SAFETY: the device is alive, and the structure is of the type that its `stype` states.
            unsafe { (self.api.zeDeviceGetImageProperties)(self.device, structure) }
        });
        let Ok(images) = answer else { return ImageLimits::default() };
        let [d1, d2, d3] = [images.maxImageDims1D, images.maxImageDims2D, images.maxImageDims3D]
            .map(|size| size as usize);
        if [d1, d2, d3].contains(&0) {
            return ImageLimits::default();
        }
        ImageLimits {
            // The width is also that of images of one dimension.
            d2: [d1.min(d2), d2],
            d3: [d3; 3],
            layers: images.maxImageArraySlices as usize,
            // Level Zero's images of the type "buffer" have memory of their own.
            buffer: 0,
        }
    }

    fn api_version(&self) -> Result<u32, Code> {
        fill_in(0, |structure| {
            // SAFETY: the driver is alive.
            unsafe { (self.api.zeDriverGetApiVersion)(self.driver, structure) }
        })
    }

    fn driver_version(&self) -> Result<String, Code> {
        let empty = ze_driver_properties_t {
            stype: ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES,
            ..Default::default()
        };
        let properties = fill_in(empty, |structure| {
            // SAFETY: the driver is alive, and the structure is of the type that its `stype` states.
            unsafe { (self.api.zeDriverGetProperties)(self.driver, structure) }
        })?;
        let number = properties.driverVersion;
        Ok(format!("{}.{}.{}", number >> 24, number >> 16 & 0xff, number & 0xffff))
    }

    fn has_extension(&self, name: &str) -> bool {
        let extensions = list(ze_driver_extension_properties_t::default(), |count, extensions| {
            // SAFETY: the driver is alive, and `extensions` null or with room for `count`.
            unsafe { (self.api.zeDriverGetExtensionProperties)(self.driver, count, extensions) }
        });
        extensions.is_ok_and(|all| all.iter().any(|extension| text(&extension.name) == name))
    }

    fn clock(&self, properties: &ze_device_properties_t) -> Clock {
        let mut ticks = 0;
        let now = Instant::now();
        if let Some(timestamps) = self.api.zeDeviceGetGlobalTimestamps {
            let mut host: u64 = 0;
            // SAFETY: the device is alive.
            let status = unsafe { timestamps(self.device, &raw mut host, &raw mut ticks) };
            if let Err(code) = check(status) {
                let code = code.driver_code();
                tracing::debug!(%code, "the device does not report its timestamp");
            }
        }
        Clock {
            frequency: properties.timerResolution.max(1),
            stamp_bits: properties.kernelTimestampValidBits,
            origin: (now, ticks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spirv_versions_up_to_the_newest_are_listed() {
        assert_eq!(il_version(0x1_0002), "SPIR-V_1.0 SPIR-V_1.1 SPIR-V_1.2");
    }
}
