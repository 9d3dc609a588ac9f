//! Context of an opened device.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use opencl3::context::context::cl_context;
use opencl3::types::cl_device_id;

use super::finish_worker::FinishWorker;
use super::handle::{DeviceId, OwnedContext, Version};
use super::sampler::Samplers;
use super::spare_memory::SpareMemory;
use crate::backend::poller::Poller;
use crate::device::{DeviceInfo, Workarounds};

/// Context of one device. Every object that is created in it keeps it alive.
pub(super) struct Context {
    /// Spare memory, for a driver that releases no memory while there are commands. Declared before the
    /// context, so released before it.
    pub(super) spare: Option<SpareMemory>,
    /// Declared before the context, so released before it.
    pub(super) samplers: Samplers,
    pub(super) context: OwnedContext,
    pub(super) device: DeviceId,
    pub(super) version: Version,
    pub(super) info: Arc<DeviceInfo>,
    pub(super) workarounds: Workarounds,
    /// Poller thread, for a driver that reports the ends of commands too late.
    pub(super) poller: Option<Arc<Poller>>,
    /// Finish worker, for a driver that relies on waiting threads to do work.
    pub(super) worker: Option<FinishWorker>,
    /// Whether there was a launch, for a driver that compiles at a launch. True from the start for other
    /// drivers.
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
