//! An opened device: its context, and what is made in it.

use std::ptr;
use std::sync::Arc;

use opencl3::context::context::{
    CL_CONTEXT_PLATFORM, cl_context, cl_context_properties, create_context,
};
use opencl3::types::cl_device_id;

use super::adapter::{ClAdapter, Version};
use super::codes::error;
use super::handle::{DeviceId, OwnedContext};
use super::lane::ClLane;
use super::memory::ClMemory;
use super::program;
use crate::backend::watcher::Watcher;
use crate::backend::{Device, Lane, Memory, Program, Source};
use crate::device::DeviceInfo;
use crate::error::Result;

/// A context of one device. Everything that is made in it keeps it alive.
pub(super) struct Context {
    context: OwnedContext,
    device: DeviceId,
    pub(super) version: Version,
    pub(super) info: Arc<DeviceInfo>,
    /// For a driver that reports the ends of commands too late.
    pub(super) watcher: Option<Arc<Watcher>>,
}

impl Context {
    pub(super) fn raw(&self) -> cl_context {
        self.context.raw()
    }

    pub(super) fn device(&self) -> cl_device_id {
        self.device.0
    }
}

pub(super) struct ClDevice {
    pub(super) context: Arc<Context>,
}

impl ClDevice {
    pub(super) fn open(adapter: &ClAdapter) -> Result<Self> {
        Self::open_with(adapter, calls_back_late(&adapter.info))
    }

    /// With the ends of commands found by asking for them, or else by the driver's callbacks.
    pub(super) fn open_with(adapter: &ClAdapter, asks_for_ends: bool) -> Result<Self> {
        let ClAdapter { platform, device, version, ref info } = *adapter;
        let properties = [CL_CONTEXT_PLATFORM, platform.0 as cl_context_properties, 0];
        let raw = create_context(&[device.0], properties.as_ptr(), None, ptr::null_mut())
            .map_err(|code| error(code, format!("the device `{}` cannot be opened", info.name)))?;
        // SAFETY: just created, and referenced here alone.
        let context = unsafe { OwnedContext::new(raw) };
        let watcher = asks_for_ends.then(|| Arc::new(Watcher::new()));
        let context = Context { context, device, version, info: Arc::clone(info), watcher };
        Ok(Self { context: Arc::new(context) })
    }
}

/// Whether the driver reports the ends of commands so late that asking for them serves better.
///
/// NVIDIA's calls back up to 20 ms late (H100, driver 580, `cargo bench --bench wake`), those of CPUs
/// within 20 us.
fn calls_back_late(info: &DeviceInfo) -> bool {
    info.platform.contains("NVIDIA")
}

impl Device for ClDevice {
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::build(&self.context, source)?))
    }

    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::compile_object(&self.context, source)?))
    }

    fn link(&self, objects: &[&dyn Program]) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::link(&self.context, objects)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(ClMemory::allocate(&self.context, bytes)?))
    }

    fn create_lane(&self, profiling: bool) -> Result<Box<dyn Lane>> {
        Ok(Box::new(ClLane::create(&self.context, profiling)?))
    }
}
