//! Opened device, and the objects that are created in its context.

use std::ffi::c_void;
use std::sync::Arc;

use super::context::Context;
use super::memory::{ClImage, ClMemory};
use super::native_queue::ClNativeQueue;
use super::program;
use crate::backend::{
    Device, DriverHandles, GivenMemory, Memory, NativeQueue, Program, Source, shutdown,
};
use crate::device::ImageShape;
use crate::error::Result;

pub(super) struct ClDevice {
    pub(super) context: Arc<Context>,
}

impl Device for ClDevice {
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::build(&self.context, source)?))
    }

    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::compile_object(&self.context, source)?))
    }

    fn link(&self, objects: &[&dyn Program], options: &str) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::link(&self.context, objects, options)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(ClMemory::allocate(&self.context, bytes)?))
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(ClMemory::allocate_on_host(&self.context, bytes)?))
    }

    fn create_image(&self, shape: &ImageShape) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(ClImage::create(&self.context, shape)?))
    }

    fn create_native_queue(&self, profiling: bool) -> Result<Box<dyn NativeQueue>> {
        Ok(Box::new(ClNativeQueue::create(&self.context, profiling)?))
    }

    fn handles(&self) -> Result<DriverHandles> {
        let _call = shutdown::enter()?;
        Ok(DriverHandles { context: self.context.raw(), device: self.context.device() })
    }

    unsafe fn adopt_buffer(&self, handle: *mut c_void, bytes: usize) -> Result<GivenMemory> {
        // SAFETY: guaranteed by the caller.
        unsafe { ClMemory::adopt(&self.context, handle, bytes) }
    }

    unsafe fn adopt_image(&self, handle: *mut c_void) -> Result<(Arc<dyn Memory>, ImageShape)> {
        // SAFETY: guaranteed by the caller.
        let (image, shape) = unsafe { ClImage::adopt(&self.context, handle)? };
        Ok((Arc::new(image), shape))
    }

    unsafe fn adopt_program(&self, handle: *mut c_void) -> Result<Arc<dyn Program>> {
        // SAFETY: guaranteed by the caller.
        Ok(Arc::new(unsafe { program::adopt(&self.context, handle)? }))
    }
}
