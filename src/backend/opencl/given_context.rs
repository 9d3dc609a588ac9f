//! Contexts that other code created, as backends with one device.

use std::ffi::c_void;
use std::sync::Arc;

use opencl3::context::context::{CL_CONTEXT_DEVICES, get_context_info};

use super::NAME;
use super::adapter::ClAdapter;
use super::adopt::{not_null, retained_context};
use super::codes::error;
use super::handle::{DeviceId, OwnedContext};
use crate::backend::handler_guard::{self, CallKind};
use crate::backend::{Adapter, Backend, Device, shutdown};
use crate::device::{DeviceInfo, Workarounds};
use crate::error::{Error, Result};

/// Context and device that other code opened: a backend with this device alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenContext {
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
    /// Each is an object of the driver that lives as long as this value and its copies, if it is not null.
    pub(crate) unsafe fn new(device: *mut c_void, context: *mut c_void) -> Self {
        Self { device, context }
    }
}

impl Backend for GivenContext {
    fn name(&self) -> &'static str {
        NAME
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        let _call = handler_guard::begin(CallKind::Discover)?;
        let device = not_null(self.device, "cl_device_id")?;
        let context = not_null(self.context, "cl_context")?;
        // SAFETY: the context is alive.
        let context = unsafe { retained_context(context)? };
        let devices = get_context_info(context.raw(), CL_CONTEXT_DEVICES)
            .map_err(|code| error(code, "the given context does not list its devices"))?;
        if !Vec::<isize>::from(devices).contains(&(device as isize)) {
            return Err(Error::invalid(
                "the given device is not one of the given context; give a device for which the context was created",
            ));
        }
        let adapter = ClAdapter::of(DeviceId(device))?;
        Ok(vec![Arc::new(GivenAdapter { adapter, context })])
    }
}

/// Device in a context that exists.
struct GivenAdapter {
    adapter: ClAdapter,
    context: OwnedContext,
}

impl Adapter for GivenAdapter {
    fn info(&self) -> &Arc<DeviceInfo> {
        self.adapter.info()
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        let _call = shutdown::begin()?;
        // SAFETY: the context is alive.
        let context = unsafe { retained_context(self.context.raw())? };
        Ok(Arc::new(self.adapter.open_in(context, Workarounds::of(self.info()))))
    }
}
