//! Samplers, which a context keeps for as long as it lives: there are few different ones.

use std::sync::{Arc, Mutex};

// opencl3 has no samplers.
use cl3::sampler::create_sampler;
use opencl3::context::context::cl_context;
use opencl3::memory::{
    CL_ADDRESS_CLAMP, CL_ADDRESS_CLAMP_TO_EDGE, CL_ADDRESS_MIRRORED_REPEAT, CL_ADDRESS_NONE,
    CL_ADDRESS_REPEAT, CL_FILTER_LINEAR, CL_FILTER_NEAREST,
};

use super::codes::error;
use super::handle::OwnedSampler;
use crate::device::{Addressing, Filter};
use crate::error::Result;
use crate::sync::lock;
use kiln_compiler::Sampler;

/// Samplers of a context.
#[derive(Default)]
pub(super) struct Samplers(Mutex<Vec<(Sampler, Arc<OwnedSampler>)>>);

impl Samplers {
    /// Returns the driver's sampler, and creates it if there is none yet.
    pub(super) fn get(&self, context: cl_context, sampler: Sampler) -> Result<Arc<OwnedSampler>> {
        let mut known = lock(&self.0);
        if let Some((_, found)) = known.iter().find(|(known, _)| *known == sampler) {
            return Ok(Arc::clone(found));
        }
        let addressing = match sampler.addressing {
            Addressing::None => CL_ADDRESS_NONE,
            Addressing::ClampToEdge => CL_ADDRESS_CLAMP_TO_EDGE,
            Addressing::Clamp => CL_ADDRESS_CLAMP,
            Addressing::Repeat => CL_ADDRESS_REPEAT,
            Addressing::MirroredRepeat => CL_ADDRESS_MIRRORED_REPEAT,
        };
        let filter = match sampler.filter {
            Filter::Nearest => CL_FILTER_NEAREST,
            Filter::Linear => CL_FILTER_LINEAR,
        };
        let created = create_sampler(context, sampler.is_normalized.into(), addressing, filter);
        let raw = created.map_err(|code| error(code, format!("the driver refused {sampler:?}")))?;
        // SAFETY: just created, and referenced here alone.
        let created = Arc::new(unsafe { OwnedSampler::new(raw) });
        known.push((sampler, Arc::clone(&created)));
        Ok(created)
    }
}
