//! Devices of a runtime, which are opened when they are first needed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use super::{Adapter, Device};
use crate::error::Result;
use crate::process::resources;
use crate::sync::lock;

/// Device of a runtime, opened when it is first needed.
pub(crate) struct DeviceSlot {
    handle: crate::device::Device,
    adapter: Arc<dyn Adapter>,
    opened: OnceLock<Arc<dyn Device>>,
    opening: Mutex<()>,
    /// Number of bytes of memory that is allocated for buffers and images.
    allocated: AtomicU64,
}

impl DeviceSlot {
    pub(crate) fn new(handle: crate::device::Device, adapter: Arc<dyn Adapter>) -> Self {
        Self {
            handle,
            adapter,
            opened: OnceLock::new(),
            opening: Mutex::default(),
            allocated: AtomicU64::new(0),
        }
    }

    pub(crate) fn handle(&self) -> &crate::device::Device {
        &self.handle
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened.get().is_some()
    }

    /// Counts memory that was allocated on the device.
    pub(crate) fn add_allocated(&self, bytes: usize) {
        self.allocated.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts memory that is being freed.
    pub(crate) fn subtract_allocated(&self, bytes: usize) {
        self.allocated.fetch_sub(bytes as u64, Relaxed);
    }

    /// Returns the number of bytes of memory that is allocated.
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// Returns the opened device, and opens it if that has not been done yet. Opening blocks. A failure is not
    /// cached, because it may be temporary; the next call tries again.
    pub(crate) fn open(&self) -> Result<&Arc<dyn Device>> {
        if let Some(device) = self.opened.get() {
            return Ok(device);
        }
        let _one_at_a_time = lock(&self.opening);
        if let Some(device) = self.opened.get() {
            return Ok(device);
        }
        if self.handle.runs_code {
            resources::check_for_driver()?;
        }
        let device = self.adapter.open()?;
        Ok(self.opened.get_or_init(|| device))
    }
}
