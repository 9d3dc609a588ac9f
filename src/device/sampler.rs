//! Samplers: how kernels read images.

/// Values that a sampler returns for coordinates outside of an image.
///
/// # Examples
///
/// ```
/// use kiln::{Addressing, Sampler};
///
/// let sampler = Sampler::new().addressing(Addressing::Clamp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Addressing {
    /// Not defined: the kernel has to stay inside.
    #[default]
    None,
    /// The pixel at the nearest edge.
    ClampToEdge,
    /// A border of zeros, or of opaque black if the format lacks alpha.
    Clamp,
    /// The image again and again. Only for normalized coordinates.
    Repeat,
    /// The image again and again, each time mirrored. Only for normalized coordinates.
    MirroredRepeat,
}

/// Values that a sampler returns between pixels.
///
/// # Examples
///
/// ```
/// use kiln::{Filter, Sampler};
///
/// let sampler = Sampler::new().filter(Filter::Linear);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Filter {
    /// The nearest pixel.
    #[default]
    Nearest,
    /// The mean of the nearest pixels, weighted by their distances. Not for integer formats.
    Linear,
}

/// How a kernel reads an image: an argument for a parameter of type `sampler_t`.
///
/// # Examples
///
/// ```no_run
/// use kiln::{Addressing, Filter, Image, Rgba, Sampler};
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
pub struct Sampler {
    pub(crate) is_normalized: bool,
    pub(crate) addressing: Addressing,
    pub(crate) filter: Filter,
}

impl Sampler {
    /// Creates a sampler of the nearest pixels at coordinates in pixels, without any addressing.
    pub const fn new() -> Self {
        Self { is_normalized: false, addressing: Addressing::None, filter: Filter::Nearest }
    }

    /// Sets whether coordinates are fractions of the image's sizes, from 0.0 to 1.0, instead of pixels.
    pub const fn normalized(mut self, is_normalized: bool) -> Self {
        self.is_normalized = is_normalized;
        self
    }

    /// Sets what is read outside of the image.
    pub const fn addressing(mut self, addressing: Addressing) -> Self {
        self.addressing = addressing;
        self
    }

    /// Sets what is read between pixels.
    pub const fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Returns whether an image repeats outside of its sizes.
    pub(crate) fn repeats(self) -> bool {
        matches!(self.addressing, Addressing::Repeat | Addressing::MirroredRepeat)
    }

    /// Returns whether the sampler reads the very pixel at integer coordinates inside of an image.
    pub(crate) fn is_exact(self) -> bool {
        !self.is_normalized && self.filter == Filter::Nearest && !self.repeats()
    }

    /// Returns what is wrong with the sampler, if something is.
    pub(crate) fn problem(self) -> Option<String> {
        (self.repeats() && !self.is_normalized).then(|| {
            format!(
                "a sampler with `Addressing::{:?}` needs normalized coordinates: add `.normalized(true)`",
                self.addressing
            )
        })
    }
}
