//! What the headers of Level Zero 1.17 declare, as far as it is used. Made by
//! `scripts/level-zero-bindings`, not to be edited.
//!
//! The headers are Copyright (C) Intel Corporation, SPDX-License-Identifier: MIT.

#![allow(
    dead_code,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    unused_imports,
    clippy::all,
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "generated"
)]

#[repr(C)]
#[derive(Debug)]
pub struct _ze_driver_handle_t {
    _unused: [u8; 0],
}
pub type ze_driver_handle_t = *mut _ze_driver_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_device_handle_t {
    _unused: [u8; 0],
}
pub type ze_device_handle_t = *mut _ze_device_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_context_handle_t {
    _unused: [u8; 0],
}
pub type ze_context_handle_t = *mut _ze_context_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_command_list_handle_t {
    _unused: [u8; 0],
}
pub type ze_command_list_handle_t = *mut _ze_command_list_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_event_pool_handle_t {
    _unused: [u8; 0],
}
pub type ze_event_pool_handle_t = *mut _ze_event_pool_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_event_handle_t {
    _unused: [u8; 0],
}
pub type ze_event_handle_t = *mut _ze_event_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_module_handle_t {
    _unused: [u8; 0],
}
pub type ze_module_handle_t = *mut _ze_module_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_module_build_log_handle_t {
    _unused: [u8; 0],
}
pub type ze_module_build_log_handle_t = *mut _ze_module_build_log_handle_t;
#[repr(C)]
#[derive(Debug)]
pub struct _ze_kernel_handle_t {
    _unused: [u8; 0],
}
pub type ze_kernel_handle_t = *mut _ze_kernel_handle_t;
pub const ZE_RESULT_SUCCESS: _ze_result_t = 0;
pub const ZE_RESULT_NOT_READY: _ze_result_t = 1;
pub const ZE_RESULT_ERROR_DEVICE_LOST: _ze_result_t = 1879048193;
pub const ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY: _ze_result_t = 1879048194;
pub const ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY: _ze_result_t = 1879048195;
pub const ZE_RESULT_ERROR_MODULE_BUILD_FAILURE: _ze_result_t = 1879048196;
pub const ZE_RESULT_ERROR_MODULE_LINK_FAILURE: _ze_result_t = 1879048197;
pub const ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET: _ze_result_t = 1879048198;
pub const ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE: _ze_result_t = 1879048199;
pub const ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS: _ze_result_t = 1879113728;
pub const ZE_RESULT_ERROR_NOT_AVAILABLE: _ze_result_t = 1879113729;
pub const ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE: _ze_result_t = 1879179264;
pub const ZE_RESULT_WARNING_DROPPED_DATA: _ze_result_t = 1879179265;
pub const ZE_RESULT_ERROR_UNINITIALIZED: _ze_result_t = 2013265921;
pub const ZE_RESULT_ERROR_UNSUPPORTED_VERSION: _ze_result_t = 2013265922;
pub const ZE_RESULT_ERROR_UNSUPPORTED_FEATURE: _ze_result_t = 2013265923;
pub const ZE_RESULT_ERROR_INVALID_ARGUMENT: _ze_result_t = 2013265924;
pub const ZE_RESULT_ERROR_INVALID_NULL_HANDLE: _ze_result_t = 2013265925;
pub const ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE: _ze_result_t = 2013265926;
pub const ZE_RESULT_ERROR_INVALID_NULL_POINTER: _ze_result_t = 2013265927;
pub const ZE_RESULT_ERROR_INVALID_SIZE: _ze_result_t = 2013265928;
pub const ZE_RESULT_ERROR_UNSUPPORTED_SIZE: _ze_result_t = 2013265929;
pub const ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT: _ze_result_t = 2013265930;
pub const ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT: _ze_result_t = 2013265931;
pub const ZE_RESULT_ERROR_INVALID_ENUMERATION: _ze_result_t = 2013265932;
pub const ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION: _ze_result_t = 2013265933;
pub const ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT: _ze_result_t = 2013265934;
pub const ZE_RESULT_ERROR_INVALID_NATIVE_BINARY: _ze_result_t = 2013265935;
pub const ZE_RESULT_ERROR_INVALID_GLOBAL_NAME: _ze_result_t = 2013265936;
pub const ZE_RESULT_ERROR_INVALID_KERNEL_NAME: _ze_result_t = 2013265937;
pub const ZE_RESULT_ERROR_INVALID_FUNCTION_NAME: _ze_result_t = 2013265938;
pub const ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION: _ze_result_t = 2013265939;
pub const ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION: _ze_result_t = 2013265940;
pub const ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX: _ze_result_t = 2013265941;
pub const ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE: _ze_result_t = 2013265942;
pub const ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE: _ze_result_t = 2013265943;
pub const ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED: _ze_result_t = 2013265944;
pub const ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE: _ze_result_t = 2013265945;
pub const ZE_RESULT_ERROR_OVERLAPPING_REGIONS: _ze_result_t = 2013265946;
pub const ZE_RESULT_WARNING_ACTION_REQUIRED: _ze_result_t = 2013265947;
pub const ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE: _ze_result_t = 2013265948;
pub const ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED: _ze_result_t = 2013265952;
pub const ZE_RESULT_ERROR_ADDRESS_NOT_FOUND: _ze_result_t = 2013265953;
pub const ZE_RESULT_ERROR_UNKNOWN: _ze_result_t = 2147483646;
pub type _ze_result_t = ::core::ffi::c_uint;
pub use self::_ze_result_t as ze_result_t;
pub const ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES: _ze_structure_type_t = 1;
pub const ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES: _ze_structure_type_t = 4;
pub const ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES: _ze_structure_type_t = 5;
pub const ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES: _ze_structure_type_t = 6;
pub const ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES: _ze_structure_type_t = 7;
pub const ZE_STRUCTURE_TYPE_DEVICE_IMAGE_PROPERTIES: _ze_structure_type_t = 10;
pub const ZE_STRUCTURE_TYPE_CONTEXT_DESC: _ze_structure_type_t = 13;
pub const ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC: _ze_structure_type_t = 14;
pub const ZE_STRUCTURE_TYPE_EVENT_POOL_DESC: _ze_structure_type_t = 16;
pub const ZE_STRUCTURE_TYPE_EVENT_DESC: _ze_structure_type_t = 17;
pub const ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC: _ze_structure_type_t = 21;
pub const ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC: _ze_structure_type_t = 22;
pub const ZE_STRUCTURE_TYPE_MODULE_DESC: _ze_structure_type_t = 27;
pub const ZE_STRUCTURE_TYPE_KERNEL_DESC: _ze_structure_type_t = 29;
pub const ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES: _ze_structure_type_t = 30;
pub const ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT: _ze_structure_type_t = 65551;
pub const ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES: _ze_structure_type_t = 65555;
pub const ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2: _ze_structure_type_t = 131078;
pub const ZE_STRUCTURE_TYPE_COUNTER_BASED_EVENT_POOL_EXP_DESC: _ze_structure_type_t = 131092;
pub const ZE_STRUCTURE_TYPE_INIT_DRIVER_TYPE_DESC: _ze_structure_type_t = 131105;
pub type _ze_structure_type_t = ::core::ffi::c_uint;
pub use self::_ze_structure_type_t as ze_structure_type_t;
pub type ze_init_driver_type_desc_t = _ze_init_driver_type_desc_t;
pub type ze_driver_uuid_t = _ze_driver_uuid_t;
pub type ze_driver_properties_t = _ze_driver_properties_t;
pub type ze_driver_extension_properties_t = _ze_driver_extension_properties_t;
pub type ze_device_uuid_t = _ze_device_uuid_t;
pub type ze_device_properties_t = _ze_device_properties_t;
pub type ze_device_compute_properties_t = _ze_device_compute_properties_t;
pub type ze_native_kernel_uuid_t = _ze_native_kernel_uuid_t;
pub type ze_device_module_properties_t = _ze_device_module_properties_t;
pub type ze_command_queue_group_properties_t = _ze_command_queue_group_properties_t;
pub type ze_device_memory_properties_t = _ze_device_memory_properties_t;
pub type ze_device_image_properties_t = _ze_device_image_properties_t;
pub type ze_context_desc_t = _ze_context_desc_t;
pub type ze_command_queue_desc_t = _ze_command_queue_desc_t;
pub type ze_event_pool_desc_t = _ze_event_pool_desc_t;
pub type ze_event_desc_t = _ze_event_desc_t;
pub type ze_kernel_timestamp_data_t = _ze_kernel_timestamp_data_t;
pub type ze_kernel_timestamp_result_t = _ze_kernel_timestamp_result_t;
pub type ze_device_mem_alloc_desc_t = _ze_device_mem_alloc_desc_t;
pub type ze_host_mem_alloc_desc_t = _ze_host_mem_alloc_desc_t;
pub type ze_module_constants_t = _ze_module_constants_t;
pub type ze_module_desc_t = _ze_module_desc_t;
pub type ze_kernel_desc_t = _ze_kernel_desc_t;
pub type ze_kernel_uuid_t = _ze_kernel_uuid_t;
pub type ze_kernel_properties_t = _ze_kernel_properties_t;
pub type ze_group_count_t = _ze_group_count_t;
pub type ze_device_ip_version_ext_t = _ze_device_ip_version_ext_t;
pub type ze_kernel_max_group_size_properties_ext_t = _ze_kernel_max_group_size_properties_ext_t;
pub type ze_event_pool_counter_based_exp_desc_t = _ze_event_pool_counter_based_exp_desc_t;
pub type ze_init_flags_t = u32;
pub type ze_init_driver_type_flags_t = u32;
pub const ZE_INIT_DRIVER_TYPE_FLAG_GPU: _ze_init_driver_type_flag_t = 1;
pub const ZE_INIT_DRIVER_TYPE_FLAG_NPU: _ze_init_driver_type_flag_t = 2;
pub type _ze_init_driver_type_flag_t = ::core::ffi::c_uint;
pub use self::_ze_init_driver_type_flag_t as ze_init_driver_type_flag_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_init_driver_type_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_init_driver_type_flags_t,
}
impl Default for _ze_init_driver_type_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type _ze_api_version_t = ::core::ffi::c_uint;
pub use self::_ze_api_version_t as ze_api_version_t;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_driver_uuid_t {
    pub id: [u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_driver_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub uuid: ze_driver_uuid_t,
    pub driverVersion: u32,
}
impl Default for _ze_driver_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_driver_extension_properties_t {
    pub name: [::core::ffi::c_char; 256usize],
    pub version: u32,
}
impl Default for _ze_driver_extension_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const ZE_DEVICE_TYPE_GPU: _ze_device_type_t = 1;
pub const ZE_DEVICE_TYPE_CPU: _ze_device_type_t = 2;
pub type _ze_device_type_t = ::core::ffi::c_uint;
pub use self::_ze_device_type_t as ze_device_type_t;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_device_uuid_t {
    pub id: [u8; 16usize],
}
pub type ze_device_property_flags_t = u32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub type_: ze_device_type_t,
    pub vendorId: u32,
    pub deviceId: u32,
    pub flags: ze_device_property_flags_t,
    pub subdeviceId: u32,
    pub coreClockRate: u32,
    pub maxMemAllocSize: u64,
    pub maxHardwareContexts: u32,
    pub maxCommandQueuePriority: u32,
    pub numThreadsPerEU: u32,
    pub physicalEUSimdWidth: u32,
    pub numEUsPerSubslice: u32,
    pub numSubslicesPerSlice: u32,
    pub numSlices: u32,
    pub timerResolution: u64,
    pub timestampValidBits: u32,
    pub kernelTimestampValidBits: u32,
    pub uuid: ze_device_uuid_t,
    pub name: [::core::ffi::c_char; 256usize],
}
impl Default for _ze_device_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_compute_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub maxTotalGroupSize: u32,
    pub maxGroupSizeX: u32,
    pub maxGroupSizeY: u32,
    pub maxGroupSizeZ: u32,
    pub maxGroupCountX: u32,
    pub maxGroupCountY: u32,
    pub maxGroupCountZ: u32,
    pub maxSharedLocalMemory: u32,
    pub numSubGroupSizes: u32,
    pub subGroupSizes: [u32; 8usize],
}
impl Default for _ze_device_compute_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_native_kernel_uuid_t {
    pub id: [u8; 16usize],
}
pub type ze_device_module_flags_t = u32;
pub const ZE_DEVICE_MODULE_FLAG_FP16: _ze_device_module_flag_t = 1;
pub const ZE_DEVICE_MODULE_FLAG_FP64: _ze_device_module_flag_t = 2;
pub const ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS: _ze_device_module_flag_t = 4;
pub type _ze_device_module_flag_t = ::core::ffi::c_uint;
pub use self::_ze_device_module_flag_t as ze_device_module_flag_t;
pub type ze_device_fp_flags_t = u32;
pub const ZE_DEVICE_FP_FLAG_FMA: _ze_device_fp_flag_t = 32;
pub type _ze_device_fp_flag_t = ::core::ffi::c_uint;
pub use self::_ze_device_fp_flag_t as ze_device_fp_flag_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_module_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub spirvVersionSupported: u32,
    pub flags: ze_device_module_flags_t,
    pub fp16flags: ze_device_fp_flags_t,
    pub fp32flags: ze_device_fp_flags_t,
    pub fp64flags: ze_device_fp_flags_t,
    pub maxArgumentsSize: u32,
    pub printfBufferSize: u32,
    pub nativeKernelSupported: ze_native_kernel_uuid_t,
}
impl Default for _ze_device_module_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_command_queue_group_property_flags_t = u32;
pub const ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE: _ze_command_queue_group_property_flag_t = 1;
pub type _ze_command_queue_group_property_flag_t = ::core::ffi::c_uint;
pub use self::_ze_command_queue_group_property_flag_t as ze_command_queue_group_property_flag_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_command_queue_group_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub flags: ze_command_queue_group_property_flags_t,
    pub maxMemoryFillPatternSize: usize,
    pub numQueues: u32,
}
impl Default for _ze_command_queue_group_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_device_memory_property_flags_t = u32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_memory_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub flags: ze_device_memory_property_flags_t,
    pub maxClockRate: u32,
    pub maxBusWidth: u32,
    pub totalSize: u64,
    pub name: [::core::ffi::c_char; 256usize],
}
impl Default for _ze_device_memory_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_image_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub maxImageDims1D: u32,
    pub maxImageDims2D: u32,
    pub maxImageDims3D: u32,
    pub maxImageBufferSize: u64,
    pub maxImageArraySlices: u32,
    pub maxSamplers: u32,
    pub maxReadImageArgs: u32,
    pub maxWriteImageArgs: u32,
}
impl Default for _ze_device_image_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_context_flags_t = u32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_context_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_context_flags_t,
}
impl Default for _ze_context_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_command_queue_flags_t = u32;
pub const ZE_COMMAND_QUEUE_FLAG_IN_ORDER: _ze_command_queue_flag_t = 2;
pub type _ze_command_queue_flag_t = ::core::ffi::c_uint;
pub use self::_ze_command_queue_flag_t as ze_command_queue_flag_t;
pub const ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS: _ze_command_queue_mode_t = 2;
pub type _ze_command_queue_mode_t = ::core::ffi::c_uint;
pub use self::_ze_command_queue_mode_t as ze_command_queue_mode_t;
pub const ZE_COMMAND_QUEUE_PRIORITY_NORMAL: _ze_command_queue_priority_t = 0;
pub type _ze_command_queue_priority_t = ::core::ffi::c_uint;
pub use self::_ze_command_queue_priority_t as ze_command_queue_priority_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_command_queue_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub ordinal: u32,
    pub index: u32,
    pub flags: ze_command_queue_flags_t,
    pub mode: ze_command_queue_mode_t,
    pub priority: ze_command_queue_priority_t,
}
impl Default for _ze_command_queue_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_event_pool_flags_t = u32;
pub const ZE_EVENT_POOL_FLAG_HOST_VISIBLE: _ze_event_pool_flag_t = 1;
pub const ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP: _ze_event_pool_flag_t = 4;
pub type _ze_event_pool_flag_t = ::core::ffi::c_uint;
pub use self::_ze_event_pool_flag_t as ze_event_pool_flag_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_event_pool_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_event_pool_flags_t,
    pub count: u32,
}
impl Default for _ze_event_pool_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_event_scope_flags_t = u32;
pub const ZE_EVENT_SCOPE_FLAG_DEVICE: _ze_event_scope_flag_t = 2;
pub const ZE_EVENT_SCOPE_FLAG_HOST: _ze_event_scope_flag_t = 4;
pub type _ze_event_scope_flag_t = ::core::ffi::c_uint;
pub use self::_ze_event_scope_flag_t as ze_event_scope_flag_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_event_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub index: u32,
    pub signal: ze_event_scope_flags_t,
    pub wait: ze_event_scope_flags_t,
}
impl Default for _ze_event_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_kernel_timestamp_data_t {
    pub kernelStart: u64,
    pub kernelEnd: u64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_kernel_timestamp_result_t {
    pub global: ze_kernel_timestamp_data_t,
    pub context: ze_kernel_timestamp_data_t,
}
pub type ze_device_mem_alloc_flags_t = u32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_mem_alloc_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_device_mem_alloc_flags_t,
    pub ordinal: u32,
}
impl Default for _ze_device_mem_alloc_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_host_mem_alloc_flags_t = u32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_host_mem_alloc_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_host_mem_alloc_flags_t,
}
impl Default for _ze_host_mem_alloc_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const ZE_MODULE_FORMAT_IL_SPIRV: _ze_module_format_t = 0;
pub const ZE_MODULE_FORMAT_NATIVE: _ze_module_format_t = 1;
pub type _ze_module_format_t = ::core::ffi::c_uint;
pub use self::_ze_module_format_t as ze_module_format_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_module_constants_t {
    pub numConstants: u32,
    pub pConstantIds: *const u32,
    pub pConstantValues: *mut *const ::core::ffi::c_void,
}
impl Default for _ze_module_constants_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_module_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub format: ze_module_format_t,
    pub inputSize: usize,
    pub pInputModule: *const u8,
    pub pBuildFlags: *const ::core::ffi::c_char,
    pub pConstants: *const ze_module_constants_t,
}
impl Default for _ze_module_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_kernel_flags_t = u32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_kernel_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_kernel_flags_t,
    pub pKernelName: *const ::core::ffi::c_char,
}
impl Default for _ze_kernel_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_kernel_uuid_t {
    pub kid: [u8; 16usize],
    pub mid: [u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_kernel_properties_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub numKernelArgs: u32,
    pub requiredGroupSizeX: u32,
    pub requiredGroupSizeY: u32,
    pub requiredGroupSizeZ: u32,
    pub requiredNumSubGroups: u32,
    pub requiredSubgroupSize: u32,
    pub maxSubgroupSize: u32,
    pub maxNumSubgroups: u32,
    pub localMemSize: u32,
    pub privateMemSize: u32,
    pub spillMemSize: u32,
    pub uuid: ze_kernel_uuid_t,
}
impl Default for _ze_kernel_properties_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct _ze_group_count_t {
    pub groupCountX: u32,
    pub groupCountY: u32,
    pub groupCountZ: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_device_ip_version_ext_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub ipVersion: u32,
}
impl Default for _ze_device_ip_version_ext_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_kernel_max_group_size_properties_ext_t {
    pub stype: ze_structure_type_t,
    pub pNext: *mut ::core::ffi::c_void,
    pub maxGroupSize: u32,
}
impl Default for _ze_kernel_max_group_size_properties_ext_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_event_pool_counter_based_exp_flags_t = u32;
pub const ZE_EVENT_POOL_COUNTER_BASED_EXP_FLAG_IMMEDIATE: _ze_event_pool_counter_based_exp_flag_t =
    1;
pub type _ze_event_pool_counter_based_exp_flag_t = ::core::ffi::c_uint;
pub use self::_ze_event_pool_counter_based_exp_flag_t as ze_event_pool_counter_based_exp_flag_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _ze_event_pool_counter_based_exp_desc_t {
    pub stype: ze_structure_type_t,
    pub pNext: *const ::core::ffi::c_void,
    pub flags: ze_event_pool_counter_based_exp_flags_t,
}
impl Default for _ze_event_pool_counter_based_exp_desc_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type ze_pfnInit_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_init_flags_t) -> ze_result_t>;
pub type ze_pfnInitDrivers_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: *mut u32,
        arg2: *mut ze_driver_handle_t,
        arg3: *mut ze_init_driver_type_desc_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDriverGet_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: *mut u32, arg2: *mut ze_driver_handle_t) -> ze_result_t,
>;
pub type ze_pfnDriverGetApiVersion_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: ze_driver_handle_t, arg2: *mut ze_api_version_t) -> ze_result_t,
>;
pub type ze_pfnDriverGetProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_driver_handle_t,
        arg2: *mut ze_driver_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDriverGetExtensionProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_driver_handle_t,
        arg2: *mut u32,
        arg3: *mut ze_driver_extension_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGet_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_driver_handle_t,
        arg2: *mut u32,
        arg3: *mut ze_device_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_device_handle_t,
        arg2: *mut ze_device_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetComputeProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_device_handle_t,
        arg2: *mut ze_device_compute_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetModuleProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_device_handle_t,
        arg2: *mut ze_device_module_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetCommandQueueGroupProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_device_handle_t,
        arg2: *mut u32,
        arg3: *mut ze_command_queue_group_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetMemoryProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_device_handle_t,
        arg2: *mut u32,
        arg3: *mut ze_device_memory_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetImageProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_device_handle_t,
        arg2: *mut ze_device_image_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnDeviceGetStatus_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_device_handle_t) -> ze_result_t>;
pub type ze_pfnDeviceGetGlobalTimestamps_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: ze_device_handle_t, arg2: *mut u64, arg3: *mut u64) -> ze_result_t,
>;
pub type ze_pfnContextCreate_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_driver_handle_t,
        arg2: *const ze_context_desc_t,
        arg3: *mut ze_context_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnContextDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_context_handle_t) -> ze_result_t>;
pub type ze_pfnCommandListCreateImmediate_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_context_handle_t,
        arg2: ze_device_handle_t,
        arg3: *const ze_command_queue_desc_t,
        arg4: *mut ze_command_list_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnCommandListDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_command_list_handle_t) -> ze_result_t>;
pub type ze_pfnCommandListAppendBarrier_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_command_list_handle_t,
        arg2: ze_event_handle_t,
        arg3: u32,
        arg4: *mut ze_event_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnCommandListAppendMemoryCopy_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_command_list_handle_t,
        arg2: *mut ::core::ffi::c_void,
        arg3: *const ::core::ffi::c_void,
        arg4: usize,
        arg5: ze_event_handle_t,
        arg6: u32,
        arg7: *mut ze_event_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnCommandListAppendMemoryFill_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_command_list_handle_t,
        arg2: *mut ::core::ffi::c_void,
        arg3: *const ::core::ffi::c_void,
        arg4: usize,
        arg5: usize,
        arg6: ze_event_handle_t,
        arg7: u32,
        arg8: *mut ze_event_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnCommandListAppendLaunchKernel_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_command_list_handle_t,
        arg2: ze_kernel_handle_t,
        arg3: *const ze_group_count_t,
        arg4: ze_event_handle_t,
        arg5: u32,
        arg6: *mut ze_event_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnMemAllocDevice_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_context_handle_t,
        arg2: *const ze_device_mem_alloc_desc_t,
        arg3: usize,
        arg4: usize,
        arg5: ze_device_handle_t,
        arg6: *mut *mut ::core::ffi::c_void,
    ) -> ze_result_t,
>;
pub type ze_pfnMemAllocHost_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_context_handle_t,
        arg2: *const ze_host_mem_alloc_desc_t,
        arg3: usize,
        arg4: usize,
        arg5: *mut *mut ::core::ffi::c_void,
    ) -> ze_result_t,
>;
pub type ze_pfnMemFree_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: ze_context_handle_t, arg2: *mut ::core::ffi::c_void) -> ze_result_t,
>;
pub type ze_pfnEventPoolCreate_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_context_handle_t,
        arg2: *const ze_event_pool_desc_t,
        arg3: u32,
        arg4: *mut ze_device_handle_t,
        arg5: *mut ze_event_pool_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnEventPoolDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_event_pool_handle_t) -> ze_result_t>;
pub type ze_pfnEventCreate_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_event_pool_handle_t,
        arg2: *const ze_event_desc_t,
        arg3: *mut ze_event_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnEventDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_event_handle_t) -> ze_result_t>;
pub type ze_pfnEventQueryStatus_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_event_handle_t) -> ze_result_t>;
pub type ze_pfnEventHostReset_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_event_handle_t) -> ze_result_t>;
pub type ze_pfnEventQueryKernelTimestamp_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_event_handle_t,
        arg2: *mut ze_kernel_timestamp_result_t,
    ) -> ze_result_t,
>;
pub type ze_pfnModuleCreate_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_context_handle_t,
        arg2: ze_device_handle_t,
        arg3: *const ze_module_desc_t,
        arg4: *mut ze_module_handle_t,
        arg5: *mut ze_module_build_log_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnModuleDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_module_handle_t) -> ze_result_t>;
pub type ze_pfnModuleDynamicLink_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: u32,
        arg2: *mut ze_module_handle_t,
        arg3: *mut ze_module_build_log_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnModuleGetNativeBinary_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: ze_module_handle_t, arg2: *mut usize, arg3: *mut u8) -> ze_result_t,
>;
pub type ze_pfnModuleGetKernelNames_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_module_handle_t,
        arg2: *mut u32,
        arg3: *mut *const ::core::ffi::c_char,
    ) -> ze_result_t,
>;
pub type ze_pfnModuleBuildLogDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_module_build_log_handle_t) -> ze_result_t>;
pub type ze_pfnModuleBuildLogGetString_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_module_build_log_handle_t,
        arg2: *mut usize,
        arg3: *mut ::core::ffi::c_char,
    ) -> ze_result_t,
>;
pub type ze_pfnKernelCreate_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_module_handle_t,
        arg2: *const ze_kernel_desc_t,
        arg3: *mut ze_kernel_handle_t,
    ) -> ze_result_t,
>;
pub type ze_pfnKernelDestroy_t =
    ::core::option::Option<unsafe extern "C" fn(arg1: ze_kernel_handle_t) -> ze_result_t>;
pub type ze_pfnKernelSetGroupSize_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: ze_kernel_handle_t, arg2: u32, arg3: u32, arg4: u32) -> ze_result_t,
>;
pub type ze_pfnKernelSuggestGroupSize_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_kernel_handle_t,
        arg2: u32,
        arg3: u32,
        arg4: u32,
        arg5: *mut u32,
        arg6: *mut u32,
        arg7: *mut u32,
    ) -> ze_result_t,
>;
pub type ze_pfnKernelSetArgumentValue_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_kernel_handle_t,
        arg2: u32,
        arg3: usize,
        arg4: *const ::core::ffi::c_void,
    ) -> ze_result_t,
>;
pub type ze_pfnKernelGetProperties_t = ::core::option::Option<
    unsafe extern "C" fn(
        arg1: ze_kernel_handle_t,
        arg2: *mut ze_kernel_properties_t,
    ) -> ze_result_t,
>;
pub type ze_pfnKernelSetGlobalOffsetExp_t = ::core::option::Option<
    unsafe extern "C" fn(arg1: ze_kernel_handle_t, arg2: u32, arg3: u32, arg4: u32) -> ze_result_t,
>;
