//! An opened device. It builds programs, allocates memory and creates native queues in its context.

use std::ffi::c_void;
use std::sync::Arc;

use super::context::Context;
use super::image::LzImage;
use super::memory::LzMemory;
use super::native_queue::LzNativeQueue;
use super::program;
use crate::backend::{
    Device, DriverHandles, GivenMemory, Memory, NativeQueue, Program, Source, shutdown,
};
use crate::device::ImageShape;
use crate::error::{Error, Result};

pub(super) struct LzDevice {
    pub(super) context: Arc<Context>,
}

impl Device for LzDevice {
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::build(&self.context, source)?))
    }

    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::compile(&self.context, source)?))
    }

    fn link(&self, objects: &[&dyn Program], options: &str) -> Result<Arc<dyn Program>> {
        if !options.is_empty() {
            return Err(Error::unsupported(format!(
                "the linker of `{}` takes no options, but `{options}` was given",
                self.context.info.name
            )));
        }
        Ok(Arc::new(program::link(&self.context, objects)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(LzMemory::allocate(&self.context, bytes)?))
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(LzMemory::allocate_on_host(&self.context, bytes)?))
    }

    fn create_image(&self, shape: &ImageShape) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(LzImage::create(&self.context, shape)?))
    }

    fn create_native_queue(&self, profiling: bool) -> Result<Box<dyn NativeQueue>> {
        Ok(Box::new(LzNativeQueue::create(&self.context, profiling)?))
    }

    fn handles(&self) -> Result<DriverHandles> {
        let _call = shutdown::enter()?;
        let (context, device) = (self.context.raw().cast(), self.context.device.0.cast());
        Ok(DriverHandles { context, device })
    }

    unsafe fn adopt_buffer(&self, handle: *mut c_void, bytes: usize) -> Result<GivenMemory> {
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { LzMemory::adopt(&self.context, handle, bytes)? };
        Ok(GivenMemory { memory: Arc::new(memory), bytes, start: 0 })
    }

    unsafe fn adopt_image_of(
        &self,
        handle: *mut c_void,
        shape: &ImageShape,
    ) -> Result<Arc<dyn Memory>> {
        // SAFETY: guaranteed by the caller.
        Ok(Arc::new(unsafe { LzImage::adopt(&self.context, handle, shape)? }))
    }

    unsafe fn adopt_program(&self, handle: *mut c_void) -> Result<Arc<dyn Program>> {
        // SAFETY: guaranteed by the caller.
        Ok(Arc::new(unsafe { program::adopt(&self.context, handle)? }))
    }
}
