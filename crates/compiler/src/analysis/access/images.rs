//! Images and samplers of a kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kiln_spirv::edit::Definitions;

use super::samplers;
use crate::analysis::declaration::is_read_only_image;
use crate::{ImageShape, Sampler};

/// Images and samplers that a kernel is given.
pub(super) struct Images {
    /// Shapes of the images, by the index of the kernel's parameter.
    pub(super) shapes: BTreeMap<usize, ImageShape>,
    /// Indices of the images that the kernel declares as `read_only`.
    pub(super) read_only: BTreeSet<usize>,
    /// Samplers, by the ids of the kernel's parameters and of constants.
    pub(super) samplers: HashMap<u32, Sampler>,
}

impl Images {
    /// Returns the constant samplers of a module, without images.
    pub(super) fn of(definitions: &Definitions<'_>) -> Self {
        let samplers = samplers::constants(definitions);
        Self { shapes: BTreeMap::new(), read_only: BTreeSet::new(), samplers }
    }

    /// Adds the image that the parameter with the index `at` stands for.
    pub(super) fn add(
        &mut self,
        definitions: &Definitions<'_>,
        (at, parameter): (usize, u32),
        shape: &ImageShape,
    ) {
        self.shapes.insert(at, *shape);
        if is_read_only_image(definitions, parameter) {
            self.read_only.insert(at);
        }
    }

    /// Returns the sizes of the images, by the ids of the kernel's parameters.
    pub(super) fn sizes(&self, parameters: &[u32]) -> HashMap<u32, [usize; 3]> {
        let sizes = self.shapes.iter().map(|(&at, shape)| (parameters[at], shape.size));
        sizes.collect()
    }
}
