//! Contexts that other code created, as backends with one device.

use std::ffi::c_void;
use std::sync::Arc;

use super::NAME;
use super::adapter::LzAdapter;
use super::handle::{DeviceHandle, DriverHandle, OwnedContext};
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::{Adapter, Backend, Device};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};

/// Context and device that other code opened: a backend with this device alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenContext {
    driver: *mut c_void,
    device: *mut c_void,
    context: *mut c_void,
}

// SAFETY: objects of drivers are not bound to a thread.
unsafe impl Send for GivenContext {}
// SAFETY: as above; all functions on contexts and devices are thread-safe.
unsafe impl Sync for GivenContext {}

impl GivenContext {
    /// # Safety
    ///
    /// Each is an object of the loader that lives as long as everything that is made of this value, if it is not
    /// null, and the device and the context belong to the driver.
    pub(crate) unsafe fn new(
        driver: *mut c_void,
        device: *mut c_void,
        context: *mut c_void,
    ) -> Self {
        Self { driver, device, context }
    }
}

impl Backend for GivenContext {
    fn name(&self) -> &'static str {
        NAME
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        let _call = handler_guard::begin(CallKind::Discover)?;
        let Self { driver, device, context } = *self;
        let given = [
            (driver, "ze_driver_handle_t"),
            (device, "ze_device_handle_t"),
            (context, "ze_context_handle_t"),
        ];
        if let Some((_, what)) = given.iter().find(|(object, _)| object.is_null()) {
            let problem = format!("the given `{what}` is null; give an object of the driver");
            return Err(Error::invalid(problem));
        }
        let adapter = LzAdapter::of(DriverHandle(driver.cast()), DeviceHandle(device.cast()))?;
        // SAFETY: the context is alive.
        let context = Arc::new(unsafe { OwnedContext::new(adapter.api, context.cast()) });
        // One reference stays, so that the context is left to its owner.
        std::mem::forget(Arc::clone(&context));
        Ok(vec![Arc::new(GivenAdapter { adapter, context })])
    }
}

/// Device in a context that exists.
struct GivenAdapter {
    adapter: LzAdapter,
    context: Arc<OwnedContext>,
}

impl Adapter for GivenAdapter {
    fn info(&self) -> &Arc<DeviceInfo> {
        self.adapter.info()
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        let _call = handler_guard::begin(CallKind::Open)?;
        Ok(Arc::new(self.adapter.open_in(Arc::clone(&self.context))))
    }
}
