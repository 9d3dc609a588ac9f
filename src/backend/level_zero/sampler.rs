//! Samplers, which a context keeps for as long as it lives: there are few different ones.

use std::ptr;
use std::sync::{Arc, Mutex};

use kiln_compiler::Sampler;

use super::bindings::*;
use super::codes::check;
use super::context::Context;
use super::handle::OwnedSampler;
use super::image_bindings::*;
use crate::device::{Addressing, Filter};
use crate::error::Result;
use crate::sync::lock;

/// Samplers of a context.
#[derive(Default)]
pub(super) struct Samplers(Mutex<Vec<(Sampler, Arc<OwnedSampler>)>>);

impl Samplers {
    /// Returns the driver's sampler, and creates it if there is none yet.
    pub(super) fn get(&self, context: &Context, sampler: Sampler) -> Result<Arc<OwnedSampler>> {
        let mut known = lock(&self.0);
        if let Some((_, found)) = known.iter().find(|(known, _)| *known == sampler) {
            return Ok(Arc::clone(found));
        }
        let description = ze_sampler_desc_t {
            stype: ZE_STRUCTURE_TYPE_SAMPLER_DESC,
            pNext: ptr::null(),
            addressMode: match sampler.addressing {
                Addressing::None => ZE_SAMPLER_ADDRESS_MODE_NONE,
                Addressing::ClampToEdge => ZE_SAMPLER_ADDRESS_MODE_CLAMP,
                Addressing::Clamp => ZE_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER,
                Addressing::Repeat => ZE_SAMPLER_ADDRESS_MODE_REPEAT,
                Addressing::MirroredRepeat => ZE_SAMPLER_ADDRESS_MODE_MIRROR,
            },
            filterMode: match sampler.filter {
                Filter::Nearest => ZE_SAMPLER_FILTER_MODE_NEAREST,
                Filter::Linear => ZE_SAMPLER_FILTER_MODE_LINEAR,
            },
            isNormalized: sampler.is_normalized.into(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (context.api.zeSamplerCreate)(
                context.raw(),
                context.device.0,
                &raw const description,
                &raw mut raw,
            )
        };
        check(created)
            .map_err(|code| context.error(code, format!("the driver refused {sampler:?}")))?;
        // SAFETY: just created, and owned only here; the context outlives it.
        let created = Arc::new(unsafe { OwnedSampler::new(context.api, raw) });
        known.push((sampler, Arc::clone(&created)));
        Ok(created)
    }
}
