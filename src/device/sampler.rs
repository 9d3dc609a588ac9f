//! Samplers as arguments of launches.

use kiln_compiler::{Addressing, Filter};

/// How a kernel reads an image: an argument for a parameter of type `sampler_t`.
///
/// # Examples
///
/// ```no_run
/// use kiln::Image;
/// use kiln::images::{Addressing, Filter, Rgba, Sampler};
///
/// # fn example(queue: kiln::Queue, warp: kiln::Kernel, source: Image<Rgba<f32>>,
/// #     target: Image<Rgba<f32>>) -> kiln::Result<()> {
/// let sampler = Sampler::new().addressing(Addressing::ClampToEdge).filter(Filter::Linear);
/// queue.submit(warp.launch([512, 512]).args((&source, &target, sampler)))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Sampler(pub(crate) kiln_compiler::Sampler);

impl Sampler {
    /// Creates a sampler of the nearest pixels at coordinates in pixels, without any addressing.
    pub const fn new() -> Self {
        Self(kiln_compiler::Sampler::new())
    }

    /// Sets whether coordinates are fractions of the image's sizes, from 0.0 to 1.0, instead of pixels.
    pub const fn normalized(self, is_normalized: bool) -> Self {
        Self(self.0.normalized(is_normalized))
    }

    /// Sets what is read outside of the image.
    pub const fn addressing(self, addressing: Addressing) -> Self {
        Self(self.0.addressing(addressing))
    }

    /// Sets what is read between pixels.
    pub const fn filter(self, filter: Filter) -> Self {
        Self(self.0.filter(filter))
    }
}
