//! Samplers, which a context keeps for as long as it lives: there are few different ones.

use std::sync::{Arc, Mutex};

use kiln_compiler::Sampler;

use super::handle::OwnedSampler;
use crate::error::Result;
use crate::sync::lock;

/// Samplers of a context.
#[derive(Default)]
pub(super) struct Samplers(Mutex<Vec<(Sampler, Arc<OwnedSampler>)>>);

impl Samplers {
    /// Returns the driver's sampler, and calls `create` if there is none yet.
    pub(super) fn get_or_create(
        &self,
        sampler: Sampler,
        create: impl FnOnce() -> Result<OwnedSampler>,
    ) -> Result<Arc<OwnedSampler>> {
        let mut known = lock(&self.0);
        if let Some((_, found)) = known.iter().find(|(known, _)| *known == sampler) {
            return Ok(Arc::clone(found));
        }
        let created = Arc::new(create()?);
        known.push((sampler, Arc::clone(&created)));
        Ok(created)
    }
}
