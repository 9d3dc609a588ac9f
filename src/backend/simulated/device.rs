//! The backend, its one adapter and the opened device.

use std::sync::Arc;

use super::counters::count;
use super::memory::{Image, Region, SLICE_ALIGNMENT};
use super::native_queue::{ImmediateQueue, ThreadedQueue};
use super::program::{self, MAX_WORK_GROUP_SIZE};
use super::shared::Shared;
use crate::backend::{Adapter, Backend, Device, Memory, NativeQueue, Program, Source};
use crate::device::{DeviceInfo, DeviceKind, ImageLimits, ImageShape, Limits, ModuleFormat};
use crate::error::Result;

/// Backend of a simulator. It has no state of its own, so it is its own adapter and device.
#[derive(Clone)]
pub(super) struct Simulated {
    shared: Arc<Shared>,
    info: Arc<DeviceInfo>,
    /// Whether launches whose ends nobody has to learn at once get no events.
    omits_events: bool,
}

impl Simulated {
    pub(super) fn new(
        shared: Arc<Shared>,
        name: &str,
        memory: u64,
        fuses: bool,
        omits_events: bool,
    ) -> Self {
        let info = DeviceInfo {
            backend: "simulated",
            platform: "Kiln simulator".to_owned(),
            platform_version: String::new(),
            instructions: String::new(),
            name: name.to_owned(),
            vendor: "Kiln".to_owned(),
            kind: DeviceKind::Accelerator,
            // Part of every cache key: a device with a new version does not load binaries of the old one.
            driver_version: "1.0".to_owned(),
            compiler: String::new(),
            device_version: "simulated 1.0".to_owned(),
            il_version: "SPIR-V_1.6".to_owned(),
            extensions: Vec::new(),
            opencl_c_features: Vec::new(),
            images: true,
            fused_multiply_add: false,
            runs_code: false,
            fuses,
            formats: vec![ModuleFormat::OpenClC, ModuleFormat::SpirV, ModuleFormat::Native],
            // SPIR-V is left out, so that Kiln links it.
            links: vec![ModuleFormat::OpenClC],
            links_by_calls: false,
            spirv_extensions: None,
            limits: Limits {
                compute_units: 8,
                max_work_group_size: MAX_WORK_GROUP_SIZE,
                max_work_item_sizes: [MAX_WORK_GROUP_SIZE, MAX_WORK_GROUP_SIZE, 64],
                global_memory: memory,
                max_allocation: memory,
                local_memory: 64 << 10,
                max_parameter_size: 4096,
                slice_alignment: SLICE_ALIGNMENT,
                address_bits: 64,
                images: ImageLimits {
                    d2: [16384; 2],
                    d3: [2048; 3],
                    layers: 2048,
                    buffer: 1 << 27,
                },
            },
        };
        Self { shared, info: Arc::new(info), omits_events }
    }
}

impl Simulated {
    /// Counts a call of the compiler or the loader, then waits for pauses and delays. Fails if a fault was
    /// requested.
    fn begin(&self, source: &Source<'_>) -> Result<()> {
        let shared = &self.shared;
        match source.format {
            ModuleFormat::OpenClC | ModuleFormat::SpirV => {
                count(&shared.counters.builds);
                shared.compiles.pass();
                shared.compile_delay.spend();
            }
            ModuleFormat::Native => count(&shared.counters.loads),
        }
        shared.builds.pass();
        shared.build_delay.spend();
        shared.build_faults.take().map_or(Ok(()), |fault| Err(fault.build_error()))
    }
}

impl Backend for Simulated {
    fn name(&self) -> &'static str {
        self.info.backend
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        Ok(vec![Arc::new(self.clone())])
    }
}

impl Adapter for Simulated {
    fn info(&self) -> &Arc<DeviceInfo> {
        &self.info
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Device for Simulated {
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        self.begin(source)?;
        program::build(&self.shared, source)
    }

    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        self.begin(source)?;
        program::compile(&self.shared, source)
    }

    fn link(&self, objects: &[&dyn Program], options: &str) -> Result<Arc<dyn Program>> {
        count(&self.shared.counters.links);
        program::link(&self.shared, objects, options)
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        let limit = self.info.limits.global_memory;
        Ok(Arc::new(Region::allocate(&self.shared.counters, bytes, limit)?))
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.allocate(bytes)
    }

    fn create_image(&self, shape: &ImageShape) -> Result<Arc<dyn Memory>> {
        let (bytes, limit) = (shape.bytes().unwrap_or(usize::MAX), self.info.limits.global_memory);
        Ok(Arc::new(Image::new(Region::allocate(&self.shared.counters, bytes, limit)?)))
    }

    fn create_native_queue(&self, profiling: bool) -> Result<Box<dyn NativeQueue>> {
        let omits_events = self.omits_events && !profiling;
        Ok(if self.shared.threads {
            Box::new(ThreadedQueue::new(&self.shared, profiling, omits_events)?)
        } else {
            Box::new(ImmediateQueue::new(&self.shared, profiling, omits_events))
        })
    }
}
