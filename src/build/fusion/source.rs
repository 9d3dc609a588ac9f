//! The SPIR-V of programs, for fusing their kernels.

use std::sync::Arc;

use crate::build::graph::BuildGraph;
use crate::build::program::{Kernel, ResolvedKernel};
use crate::device::ImageFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::image::Image;
use crate::spirv::Module;

/// A program as one module.
pub(super) struct Source {
    pub(super) module: Module,
    /// By the ids of the module.
    pub(super) constants: Vec<(u32, Vec<u8>)>,
    /// For the driver's compiler.
    options: String,
}

impl Source {
    pub(super) async fn of(graph: &Arc<BuildGraph>, kernel: &Kernel) -> Result<Self> {
        let resolved = match kernel.resolved() {
            Some(Ok(resolved)) => resolved,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(Error::invalid("its program is not there yet")),
        };
        let ResolvedKernel { built, .. } = resolved;
        let recipe =
            built.recipe().ok_or_else(|| unsupported("what it was built from is not known"))?;
        let mut images = Vec::new();
        for (image, _) in recipe.images() {
            images.push(spirv_of(image)?);
        }
        let (recipe, options) = (recipe.with_images(images), recipe.options().to_owned());
        let read = move || {
            recipe.with_source(|source| {
                let module = Module::parse(source.code)?;
                Ok(Self { module, constants: source.constants.to_vec(), options })
            })
        };
        graph.pool().run(read).await?
    }
}

fn spirv_of(image: &Image) -> Result<Image> {
    match image.format() {
        ImageFormat::SpirV => Ok(image.clone()),
        ImageFormat::Native => Err(unsupported(
            "its program is a native binary; build it from SPIR-V or OpenCL C to fuse it",
        )),
        ImageFormat::OpenClC => Err(unsupported("kernels given as OpenCL C are not fused yet")),
    }
}

/// The options of all, which have to be the same: one kernel is built with one set.
pub(super) fn common_options(sources: &[Arc<Source>]) -> Result<&str> {
    let Some(first) = sources.first() else { return Ok("") };
    match sources.iter().find(|source| source.options != first.options) {
        None => Ok(&first.options),
        Some(other) => Err(unsupported(format!(
            "the programs are built with different options, `{}` and `{}`; build them alike to fuse \
             their kernels",
            first.options, other.options
        ))),
    }
}

fn unsupported(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}
