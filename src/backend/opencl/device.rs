//! An opened device: its context, and what is made in it.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use opencl3::context::context::{
    CL_CONTEXT_PLATFORM, cl_context, cl_context_properties, create_context,
};
use opencl3::types::cl_device_id;

use super::adapter::{ClAdapter, Version};
use super::codes::error;
use super::handle::{DeviceId, OwnedContext};
use super::helper::Helper;
use super::lane::ClLane;
use super::memory::{ClMemory, SpareMemory};
use super::program;
use crate::backend::arranging::{Arranging, Kind};
use crate::backend::watcher::Watcher;
use crate::backend::{Device, Lane, Memory, Program, Source, exit};
use crate::device::{DeviceInfo, Workarounds};
use crate::error::Result;

/// A context of one device. Everything that is made in it keeps it alive.
pub(super) struct Context {
    /// For a driver that releases no memory while there are commands. Declared before the context, so
    /// released before it.
    pub(super) spare: Option<SpareMemory>,
    context: OwnedContext,
    device: DeviceId,
    pub(super) version: Version,
    pub(super) info: Arc<DeviceInfo>,
    pub(super) workarounds: Workarounds,
    /// For a driver that reports the ends of commands too late.
    pub(super) watcher: Option<Arc<Watcher>>,
    /// For a driver that counts on those who wait.
    pub(super) helper: Option<Helper>,
    /// For a driver that compiles at a launch: whether there was one.
    pub(super) has_launched: AtomicBool,
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
        Self::open_with(adapter, Workarounds::of(&adapter.info))
    }

    /// Opens a device with these workarounds.
    pub(super) fn open_with(adapter: &ClAdapter, workarounds: Workarounds) -> Result<Self> {
        let _call = exit::begin()?;
        let _arranging = Arranging::of(Kind::Open);
        let ClAdapter { platform, device, version, ref info } = *adapter;
        let properties = [CL_CONTEXT_PLATFORM, platform.0 as cl_context_properties, 0];
        let raw = create_context(&[device.0], properties.as_ptr(), None, ptr::null_mut())
            .map_err(|code| error(code, format!("the device `{}` cannot be opened", info.name)))?;
        // SAFETY: just created, and referenced here alone.
        let context = unsafe { OwnedContext::new(raw) };
        let info = Arc::clone(info);
        let spare = workarounds.defer_releases.then(|| SpareMemory::new(info.limits.global_memory));
        let context = Context {
            spare,
            context,
            device,
            version,
            watcher: workarounds.poll_for_ends.then(|| Arc::new(Watcher::new())),
            helper: workarounds.help_execute.then(Helper::new),
            has_launched: AtomicBool::new(!workarounds.expect_late_compiles),
            info,
            workarounds,
        };
        Ok(Self { context: Arc::new(context) })
    }
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
