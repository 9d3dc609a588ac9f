//! Check that the images which a driver links agree on the types of their shared symbols. Not every driver
//! checks this.
//!
//! SPIR-V states its types. OpenCL C is translated for the comparison, by nodes that are kept and stored like
//! any other. A text that cannot be translated, for example because clang is missing, is left to the driver.

use std::sync::Arc;

use futures::future::join_all;

use super::graph::BuildGraph;
use super::input::Unit;
use super::link::describe;
use super::plan::Recipe;
use crate::compiler::spirv::{Input, Module, check_signatures};
use crate::device::ImageFormat;
use crate::error::Result;
use crate::source::image::Image;

/// SPIR-V of images, with their names in messages. Images without SPIR-V are missing.
pub(super) struct Signatures(Vec<(String, Image)>);

impl Signatures {
    /// Compares the types of the shared symbols.
    ///
    /// # Errors
    ///
    /// [`BuildFailed`](crate::ErrorKind::BuildFailed), naming both images, the symbol and both types.
    pub(super) fn check(&self) -> Result<()> {
        let parse = |(name, image): &(String, Image)| {
            // A module that cannot be parsed is left to the driver.
            Module::parse(image.code()).ok().map(|module| (name.clone(), module))
        };
        let modules: Vec<_> = self.0.iter().filter_map(parse).collect();
        let inputs: Vec<_> = modules.iter().map(|(name, module)| Input { name, module }).collect();
        check_signatures(&inputs)
    }
}

impl BuildGraph {
    /// Collects the SPIR-V of a recipe's images, to compare the types of shared symbols. Never blocks; the work
    /// starts at once.
    pub(super) fn signatures(
        self: &Arc<Self>,
        recipe: &Recipe,
    ) -> impl Future<Output = Signatures> + Send + use<> {
        // A device that runs no code accepts any text, so its texts need not be OpenCL C.
        let runs_code = self.device(recipe.device()).runs_code;
        let ask = |unit: &Unit| {
            let name = describe(unit.image());
            let is_code = runs_code || unit.image().format() == ImageFormat::SpirV;
            let translating = is_code.then(|| self.spirv_of(unit, recipe.device()));
            async {
                let translated = translating?.await.inspect_err(|error| {
                    tracing::debug!(%error, image = name, "its types are not compared");
                });
                Some((name, translated.ok()?))
            }
        };
        let images = join_all(recipe.units().iter().map(ask).collect::<Vec<_>>());
        async { Signatures(images.await.into_iter().flatten().collect()) }
    }
}
