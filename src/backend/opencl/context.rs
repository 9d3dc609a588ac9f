//! The context of an opened device.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use opencl3::context::context::cl_context;
use opencl3::types::cl_device_id;

use super::finish_worker::Helper;
use super::handle::{DeviceId, OwnedContext, Version};
use super::memory::SpareMemory;
use crate::backend::poller::Watcher;
use crate::device::{DeviceInfo, Workarounds};

/// A context of one device. Everything that is made in it keeps it alive.
pub(super) struct Context {
    /// For a driver that releases no memory while there are commands. Declared before the context, so
    /// released before it.
    pub(super) spare: Option<SpareMemory>,
    pub(super) context: OwnedContext,
    pub(super) device: DeviceId,
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
