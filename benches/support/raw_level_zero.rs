//! Level Zero without Kiln: only the calls that a careful programmer would write for the same work.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};

use libloading::Library;

#[path = "../../src/backend/level_zero/bindings.rs"]
mod bindings;

use bindings::*;

/// Calls a function of the loader by its name, which must exist.
macro_rules! call {
    ($raw:expr, $name:ident: $type:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the headers give the function of this name this type.
        let found = unsafe { $raw.loader.get::<$type>(stringify!($name)) };
        let function = (*found.expect("the loader has it")).expect("it is no null pointer");
        // SAFETY: all handles are alive and belong together, and all pointers point to what the
        // function takes.
        let result = unsafe { function($($argument),*) };
        assert_eq!(result, ZE_RESULT_SUCCESS, stringify!($name));
    }};
}

/// A kernel with a number and two buffers, an in-order immediate command list and an event. Lives as long as
/// the benchmark.
pub(crate) struct Raw {
    loader: Library,
    context: ze_context_handle_t,
    device: ze_device_handle_t,
    list: ze_command_list_handle_t,
    kernel: ze_kernel_handle_t,
    event: ze_event_handle_t,
    /// Functions called for each launch, looked up once.
    hot: Hot,
    buffers: [*mut c_void; 2],
}

// SAFETY: any thread may use the handles. A single thread appends and waits; others only load modules.
unsafe impl Sync for Raw {}

struct Hot {
    set: <ze_pfnKernelSetArgumentValue_t as Function>::Pointer,
    append: <ze_pfnCommandListAppendLaunchKernel_t as Function>::Pointer,
    query: <ze_pfnEventQueryStatus_t as Function>::Pointer,
    reset: <ze_pfnEventHostReset_t as Function>::Pointer,
}

trait Function {
    type Pointer;
}

impl<F> Function for Option<F> {
    type Pointer = F;
}

impl Raw {
    /// Opens the first device of the first driver, with the kernel `name` of a SPIR-V module, which is launched
    /// with `items` work-items in one group.
    pub(crate) fn new(spirv: &[u8], name: &CStr, items: u32) -> Option<&'static Self> {
        // SAFETY: the loader's initializers only set up its own tables.
        let loader = unsafe { Library::new("libze_loader.so.1") }.ok()?;
        let hot = {
            // SAFETY: the headers give the functions of these names these types.
            let set = unsafe { loader.get(b"zeKernelSetArgumentValue\0") };
            // SAFETY: as above.
            let append = unsafe { loader.get(b"zeCommandListAppendLaunchKernel\0") };
            // SAFETY: as above.
            let query = unsafe { loader.get(b"zeEventQueryStatus\0") };
            // SAFETY: as above.
            let reset = unsafe { loader.get(b"zeEventHostReset\0") };
            Hot { set: *set.ok()?, append: *append.ok()?, query: *query.ok()?, reset: *reset.ok()? }
        };
        let mut raw = Self {
            loader,
            context: null_mut(),
            device: null_mut(),
            list: null_mut(),
            kernel: null_mut(),
            event: null_mut(),
            hot,
            buffers: [null_mut(); 2],
        };
        raw.open();
        let module = raw.module(ZE_MODULE_FORMAT_IL_SPIRV, spirv);
        raw.kernel = raw.create_kernel(module, name);
        call!(raw, zeKernelSetGroupSize: ze_pfnKernelSetGroupSize_t(raw.kernel, items, 1, 1));
        raw.buffers = [0, 1].map(|_| raw.allocate(items as usize * 4));
        Some(Box::leak(Box::new(raw)))
    }

    fn open(&mut self) {
        call!(self, zeInit: ze_pfnInit_t(0));
        let (mut count, mut driver) = (1, null_mut());
        call!(self, zeDriverGet: ze_pfnDriverGet_t(&raw mut count, &raw mut driver));
        let mut count = 1;
        call!(
            self,
            zeDeviceGet: ze_pfnDeviceGet_t(driver, &raw mut count, &raw mut self.device)
        );
        let context =
            ze_context_desc_t { stype: ZE_STRUCTURE_TYPE_CONTEXT_DESC, ..Default::default() };
        call!(
            self,
            zeContextCreate: ze_pfnContextCreate_t(
                driver,
                &raw const context,
                &raw mut self.context,
            )
        );
        let queue = ze_command_queue_desc_t {
            stype: ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
            pNext: null(),
            ordinal: 0,
            index: 0,
            flags: ZE_COMMAND_QUEUE_FLAG_IN_ORDER,
            mode: ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS,
            priority: ZE_COMMAND_QUEUE_PRIORITY_NORMAL,
        };
        call!(
            self,
            zeCommandListCreateImmediate: ze_pfnCommandListCreateImmediate_t(
                self.context,
                self.device,
                &raw const queue,
                &raw mut self.list,
            )
        );
        let pool = ze_event_pool_desc_t {
            stype: ZE_STRUCTURE_TYPE_EVENT_POOL_DESC,
            pNext: null(),
            flags: ZE_EVENT_POOL_FLAG_HOST_VISIBLE,
            count: 1,
        };
        let mut pool_handle = null_mut();
        call!(
            self,
            zeEventPoolCreate: ze_pfnEventPoolCreate_t(
                self.context,
                &raw const pool,
                1,
                &raw mut self.device,
                &raw mut pool_handle,
            )
        );
        let event = ze_event_desc_t {
            stype: ZE_STRUCTURE_TYPE_EVENT_DESC,
            pNext: null(),
            index: 0,
            signal: ZE_EVENT_SCOPE_FLAG_HOST,
            wait: ZE_EVENT_SCOPE_FLAG_DEVICE,
        };
        call!(
            self,
            zeEventCreate: ze_pfnEventCreate_t(pool_handle, &raw const event, &raw mut self.event)
        );
    }

    fn allocate(&self, bytes: usize) -> *mut c_void {
        let description = ze_device_mem_alloc_desc_t {
            stype: ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC,
            ..Default::default()
        };
        let mut memory = null_mut();
        call!(
            self,
            zeMemAllocDevice: ze_pfnMemAllocDevice_t(
                self.context,
                &raw const description,
                bytes,
                64,
                self.device,
                &raw mut memory,
            )
        );
        memory
    }

    fn module(&self, format: ze_module_format_t, code: &[u8]) -> ze_module_handle_t {
        let description = ze_module_desc_t {
            stype: ZE_STRUCTURE_TYPE_MODULE_DESC,
            pNext: null(),
            format,
            inputSize: code.len(),
            pInputModule: code.as_ptr(),
            pBuildFlags: c"".as_ptr(),
            pConstants: null(),
        };
        let mut module = null_mut();
        call!(
            self,
            zeModuleCreate: ze_pfnModuleCreate_t(
                self.context,
                self.device,
                &raw const description,
                &raw mut module,
                null_mut(),
            )
        );
        module
    }

    fn create_kernel(&self, module: ze_module_handle_t, name: &CStr) -> ze_kernel_handle_t {
        let description = ze_kernel_desc_t {
            stype: ZE_STRUCTURE_TYPE_KERNEL_DESC,
            pKernelName: name.as_ptr(),
            ..Default::default()
        };
        let mut kernel = null_mut();
        call!(
            self,
            zeKernelCreate: ze_pfnKernelCreate_t(module, &raw const description, &raw mut kernel)
        );
        kernel
    }

    /// Creates a module from a native binary, and its kernels.
    pub(crate) fn load(&'static self, binary: &[u8], names: &[CString]) -> RawModule {
        let module = self.module(ZE_MODULE_FORMAT_NATIVE, binary);
        let kernels = names.iter().map(|name| self.create_kernel(module, name)).collect();
        RawModule { raw: self, module, kernels }
    }

    /// Sets the arguments and appends a launch, with or without the event.
    pub(crate) fn append(&self, with_event: bool) {
        let number = 1.0f32;
        let set = |index, size, value: *const c_void| {
            // SAFETY: the kernel is alive and takes a value of that size there.
            let result = unsafe { (self.hot.set)(self.kernel, index, size, value) };
            assert_eq!(result, ZE_RESULT_SUCCESS, "it fits");
        };
        let [x, y] = &self.buffers;
        set(0, 4, (&raw const number).cast());
        set(1, 8, (&raw const *x).cast());
        set(2, 8, (&raw const *y).cast());
        let groups = ze_group_count_t { groupCountX: 1, groupCountY: 1, groupCountZ: 1 };
        let signal = if with_event { self.event } else { null_mut() };
        // SAFETY: all handles are alive, and the arguments are set.
        let result = unsafe {
            (self.hot.append)(self.list, self.kernel, &raw const groups, signal, 0, null_mut())
        };
        assert_eq!(result, ZE_RESULT_SUCCESS, "it is appended");
    }

    /// Busy-waits until the event is signalled, and resets it.
    pub(crate) fn spin(&self) {
        loop {
            // SAFETY: the event is alive.
            match unsafe { (self.hot.query)(self.event) } {
                ZE_RESULT_SUCCESS => break,
                ZE_RESULT_NOT_READY => std::hint::spin_loop(),
                other => panic!("{other:#x}"),
            }
        }
        // SAFETY: the event is alive, and no thread waits for it.
        let result = unsafe { (self.hot.reset)(self.event) };
        assert_eq!(result, ZE_RESULT_SUCCESS, "it is reset");
    }
}

/// A module that was loaded; destroyed when dropped.
pub(crate) struct RawModule {
    raw: &'static Raw,
    module: ze_module_handle_t,
    kernels: Vec<ze_kernel_handle_t>,
}

// SAFETY: any thread may use the handles.
unsafe impl Send for RawModule {}

impl Drop for RawModule {
    fn drop(&mut self) {
        for &kernel in &self.kernels {
            call!(self.raw, zeKernelDestroy: ze_pfnKernelDestroy_t(kernel));
        }
        call!(self.raw, zeModuleDestroy: ze_pfnModuleDestroy_t(self.module));
    }
}
