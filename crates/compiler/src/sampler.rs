//! Samplers: how kernels read images.

/// Values that a sampler returns for coordinates outside of an image.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as images; }
/// use kiln::images::{Addressing, Sampler};
///
/// let sampler = Sampler::new().addressing(Addressing::Clamp);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
/// # mod kiln { pub use kiln_compiler as images; }
/// use kiln::images::{Filter, Sampler};
///
/// let sampler = Sampler::new().filter(Filter::Linear);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Filter {
    /// The nearest pixel.
    #[default]
    Nearest,
    /// The mean of the nearest pixels, weighted by their distances. Not for integer formats.
    Linear,
}

/// How a kernel reads an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sampler {
    /// Whether coordinates are fractions of the image's sizes, from 0.0 to 1.0, instead of pixels.
    pub is_normalized: bool,
    /// Values outside of the image.
    pub addressing: Addressing,
    /// Values between pixels.
    pub filter: Filter,
}

impl Sampler {
    /// Creates a sampler of the nearest pixels at coordinates in pixels, without any addressing.
    #[must_use]
    pub const fn new() -> Self {
        Self { is_normalized: false, addressing: Addressing::None, filter: Filter::Nearest }
    }

    /// Sets whether coordinates are fractions of the image's sizes, from 0.0 to 1.0, instead of pixels.
    #[must_use]
    pub const fn normalized(self, is_normalized: bool) -> Self {
        Self { is_normalized, ..self }
    }

    /// Sets what is read outside of the image.
    #[must_use]
    pub const fn addressing(self, addressing: Addressing) -> Self {
        Self { addressing, ..self }
    }

    /// Sets what is read between pixels.
    #[must_use]
    pub const fn filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    /// Returns whether an image repeats outside of its sizes.
    #[must_use]
    pub fn repeats(self) -> bool {
        matches!(self.addressing, Addressing::Repeat | Addressing::MirroredRepeat)
    }

    /// Returns whether the sampler reads the very pixel at integer coordinates inside of an image.
    #[must_use]
    pub fn is_exact(self) -> bool {
        !self.is_normalized && self.filter == Filter::Nearest && !self.repeats()
    }

    /// Returns what is wrong with the sampler, if something is.
    #[must_use]
    pub fn problem(self) -> Option<String> {
        (self.repeats() && !self.is_normalized).then(|| {
            format!(
                "a sampler with `Addressing::{:?}` needs normalized coordinates: add `.normalized(true)`",
                self.addressing
            )
        })
    }
}
