//! A way in for the test suites. No part of the public interface, and bound to no promise.

use std::future::Future;

use crate::build::Unit;
use crate::error::Result;
use crate::image::Image;
use crate::runtime::Runtime;

/// The SPIR-V of an image for the runtime's device, with the options of a build.
pub fn spirv_of(
    runtime: &Runtime,
    image: &Image,
    options: &str,
) -> impl Future<Output = Result<Image>> + Send + use<> {
    let (graph, device) = runtime.graph();
    graph.spirv_of(&Unit::with_options(image.clone(), options), device)
}

/// What of the options goes along with the SPIR-V.
///
/// # Errors
///
/// For options that cannot be taken apart.
pub fn options_for_device(options: &str) -> Result<String> {
    super::options_for_device(options)
}
