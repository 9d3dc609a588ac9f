//! Opened device, and the objects that are created in its context.

use std::sync::Arc;

use super::context::Context;
use super::memory::ClMemory;
use super::native_queue::ClLane;
use super::program;
use crate::backend::{Device, Lane, Memory, Program, Source};
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
