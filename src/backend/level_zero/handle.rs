//! Owned Level Zero objects. Each is destroyed once: when its value is dropped, or by the driver when the
//! process ends.

use std::ffi::c_void;
use std::sync::Arc;

use super::bindings::*;
use super::codes::check;
use super::image_bindings::*;
use super::loader::Api;
use crate::backend::shutdown;

macro_rules! owned {
    ($(#[$attribute:meta])* $name:ident, $raw:ty, $destroy:ident) => {
        $(#[$attribute])*
        pub(super) struct $name {
            raw: $raw,
            api: &'static Api,
        }

        impl $name {
            /// # Safety
            ///
            /// The object is alive, the caller transfers its ownership, and the objects that it was created
            /// from outlive it.
            pub(super) unsafe fn new(api: &'static Api, raw: $raw) -> Self {
                Self { raw, api }
            }

            /// Returns the handle for a call of the driver, which is made inside a [`shutdown::Call`].
            pub(super) fn raw(&self) -> $raw {
                debug_assert!(shutdown::is_inside(), "a driver call is made outside of a `Call`");
                self.raw
            }
        }

        // SAFETY: Level Zero's objects are not bound to a thread; any thread may use and destroy them.
        unsafe impl Send for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                let Ok(_call) = shutdown::enter() else { return };
                // SAFETY: this value owns the object, which is destroyed only here.
                let destroyed = unsafe { (self.api.$destroy)(self.raw) };
                if let Err(code) = check(destroyed) {
                    let code = code.driver_code();
                    tracing::debug!(%code, concat!(stringify!($destroy), " failed"));
                }
            }
        }
    };
}

owned!(OwnedContext, ze_context_handle_t, zeContextDestroy);
owned!(OwnedModule, ze_module_handle_t, zeModuleDestroy);
owned!(OwnedImage, ze_image_handle_t, zeImageDestroy);
owned!(OwnedSampler, ze_sampler_handle_t, zeSamplerDestroy);
owned!(OwnedPool, ze_event_pool_handle_t, zeEventPoolDestroy);
owned!(OwnedEvent, ze_event_handle_t, zeEventDestroy);
owned!(
    /// Not `Sync`: its arguments and sizes are set before a launch reads them.
    OwnedKernel, ze_kernel_handle_t, zeKernelDestroy
);
owned!(
    /// Not `Sync`: one thread appends at a time. It is destroyed only when all its commands have ended, since
    /// the driver would wait for them.
    OwnedList, ze_command_list_handle_t, zeCommandListDestroy
);

// SAFETY: a context may be used by several threads at the same time.
unsafe impl Sync for OwnedContext {}
// SAFETY: once a module is created, several threads may query it.
unsafe impl Sync for OwnedModule {}
// SAFETY: nothing changes an image's handle, and several threads may append commands that use it.
unsafe impl Sync for OwnedImage {}
// SAFETY: nothing changes a sampler.
unsafe impl Sync for OwnedSampler {}
// SAFETY: an event pool may be used by several threads, for different events.
unsafe impl Sync for OwnedPool {}
// SAFETY: an event may be queried by several threads; it is reset by its only owner.
unsafe impl Sync for OwnedEvent {}

/// Memory that the driver allocated.
pub(super) struct OwnedMemory {
    start: *mut c_void,
    api: &'static Api,
    context: Arc<OwnedContext>,
}

impl OwnedMemory {
    /// # Safety
    ///
    /// The memory belongs to the context, and the caller transfers its ownership.
    pub(super) unsafe fn new(
        api: &'static Api,
        context: &Arc<OwnedContext>,
        start: *mut c_void,
    ) -> Self {
        Self { start, api, context: Arc::clone(context) }
    }

    pub(super) fn start(&self) -> *mut c_void {
        self.start
    }
}

// SAFETY: memory is not bound to a thread.
unsafe impl Send for OwnedMemory {}
// SAFETY: this value only holds the address of the memory.
unsafe impl Sync for OwnedMemory {}

impl Drop for OwnedMemory {
    fn drop(&mut self) {
        let Ok(_call) = shutdown::enter() else { return };
        // SAFETY: this value owns the memory, and no command uses it any more.
        let freed = unsafe { (self.api.zeMemFree)(self.context.raw(), self.start) };
        if let Err(code) = check(freed) {
            let code = code.driver_code();
            tracing::debug!(%code, "zeMemFree failed");
        }
    }
}

/// A driver. It lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct DriverHandle(pub(super) ze_driver_handle_t);

// SAFETY: a handle of an object that the loader owns; all functions on drivers are thread-safe.
unsafe impl Send for DriverHandle {}
// SAFETY: as above.
unsafe impl Sync for DriverHandle {}

/// A device. The driver owns it; it lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct DeviceHandle(pub(super) ze_device_handle_t);

// SAFETY: a handle of an object that the driver owns; all functions on devices are thread-safe.
unsafe impl Send for DeviceHandle {}
// SAFETY: as above.
unsafe impl Sync for DeviceHandle {}
