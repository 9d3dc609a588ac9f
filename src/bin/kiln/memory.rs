//! Buffers and images that launches in text form name.

use std::str::FromStr;

use kiln::images::{Addressing, Bgra, Filter, Half, Pixel, R, Rg, Rgba, Sampler, Unorm};
use kiln::{Buffer, FusionScope, Image, Launch, Runtime};

/// Element type that passes the checks of arguments for any parameter.
pub(crate) type Byte = [u8; 1];

/// Memory that the launches name.
pub(crate) trait Memory {
    /// Adds the memory to the arguments of a launch.
    fn bind(&self, launch: Launch) -> Launch;

    /// Makes a scope keep the contents of the memory.
    fn keep(&self, scope: &FusionScope);
}

impl Memory for Buffer<Byte> {
    fn bind(&self, launch: Launch) -> Launch {
        launch.arg(self)
    }

    fn keep(&self, scope: &FusionScope) {
        scope.keep(self);
    }
}

impl<P: Pixel> Memory for Image<P> {
    fn bind(&self, launch: Launch) -> Launch {
        launch.arg(self)
    }

    fn keep(&self, scope: &FusionScope) {
        scope.keep(self);
    }
}

/// Image, before it is allocated.
pub(crate) struct NamedImage {
    /// Type of the parameter in OpenCL C, such as `image2d_t`.
    pub(crate) type_name: String,
    pub(crate) size: [usize; 3],
    pub(crate) format: String,
}

/// Format of an image that an option states: `tmp=Rgba<Unorm8>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormatText {
    pub(crate) image: String,
    pub(crate) format: String,
}

/// Format of images for which none is stated.
pub(crate) const USUAL_FORMAT: &str = "Rgba<Float>";

/// Calls a macro with the types of pixels that an image can have.
macro_rules! with_pixels {
    ($with:ident) => {
        $with!(
            Rgba<f32> Rgba<u32> Rgba<i32> Rgba<Half> Rgba<Unorm<u8>> Rgba<Unorm<u16>> Rgba<u8> Rgba<u16>
            Bgra<Unorm<u8>> Rg<f32> Rg<u32> Rg<i32> R<f32> R<u32> R<i32> R<Half> R<Unorm<u8>>
            R<Unorm<u16>> R<u8> R<u16>
        )
    };
}

impl FromStr for FormatText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        macro_rules! names {
            ($($pixel:ty)*) => { [$(<$pixel>::FORMAT.to_string(),)*] };
        }
        let formats = with_pixels!(names);
        let parts =
            text.split_once('=').filter(|(_, format)| formats.iter().any(|known| known == format));
        let (image, format) = parts.ok_or_else(|| {
            format!("expected NAME=FORMAT, with one of these formats: {}", formats.join(", "))
        })?;
        Ok(Self { image: image.to_owned(), format: format.to_owned() })
    }
}

impl NamedImage {
    /// Returns the type's name if a parameter of the type is an image.
    pub(crate) fn type_of(type_name: &str) -> Option<&str> {
        let name = type_name.split_whitespace().last()?;
        (name.starts_with("image") && name.ends_with("_t")).then_some(name)
    }

    /// Returns the sizes that images of this type have.
    pub(crate) fn sizes(&self) -> &[usize] {
        match self.type_name.as_str() {
            "image1d_t" | "image1d_buffer_t" => &self.size[..1],
            "image2d_t" | "image1d_array_t" => &self.size[..2],
            _ => &self.size,
        }
    }

    /// Returns the number of bytes of all pixels.
    pub(crate) fn bytes(&self) -> Option<usize> {
        macro_rules! bytes {
            ($($pixel:ty)*) => { [$((<$pixel>::FORMAT.to_string(), size_of::<$pixel>()),)*] };
        }
        let formats = with_pixels!(bytes);
        let pixel = formats.iter().find(|(format, _)| *format == self.format)?.1;
        self.sizes().iter().try_fold(pixel, |bytes, &size| bytes.checked_mul(size))
    }

    pub(crate) fn allocate(&self, rt: &Runtime) -> kiln::Result<Box<dyn Memory>> {
        macro_rules! allocate {
            ($($pixel:ty)*) => {
                match self.format.as_str() {
                    $(format if format == <$pixel>::FORMAT.to_string() => self.of::<$pixel>(rt),)*
                    _ => self.of::<Rgba<f32>>(rt),
                }
            };
        }
        with_pixels!(allocate)
    }

    fn of<P: Pixel>(&self, rt: &Runtime) -> kiln::Result<Box<dyn Memory>> {
        let [x, y, z] = self.size;
        let image: Image<P> = match self.type_name.as_str() {
            "image1d_t" => rt.image_1d(x),
            "image1d_array_t" => rt.image_1d_array(x, y),
            "image2d_array_t" => rt.image_2d_array(x, y, z),
            "image3d_t" => rt.image_3d(x, y, z),
            _ => rt.image_2d(x, y),
        }?;
        Ok(Box::new(image))
    }
}

/// Returns the sampler of a name: `nearest`, for coordinates in pixels, or `linear`, for normalized coordinates.
pub(crate) fn sampler(name: &str) -> Option<Sampler> {
    let clamping = Sampler::new().addressing(Addressing::ClampToEdge);
    match name {
        "nearest" => Some(clamping),
        "linear" => Some(clamping.filter(Filter::Linear).normalized(true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_read_by_name() {
        let format: FormatText = "tmp=Rgba<Unorm8>".parse().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((format.image.as_str(), format.format.as_str()), ("tmp", "Rgba<Unorm8>"));
        let why = "tmp=RGBA8".parse::<FormatText>().err().unwrap_or_default();
        assert!(why.contains("Rgba<Unorm8>, Rgba<Unorm16>"), "{why}");
    }
}
