//! Images: their formats, kinds, sizes and parts, as plain data.

use std::fmt;
use std::ops::Range;

/// Channels of a pixel, in the order in which they are stored.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as images; }
/// use kiln::images::{ChannelOrder, ChannelType, ImageFormat};
///
/// let format = ImageFormat { order: ChannelOrder::Rgba, channel: ChannelType::Uint8 };
/// assert_eq!(format.pixel_size(), 4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelOrder {
    /// Red.
    R,
    /// Alpha.
    A,
    /// Red and green.
    Rg,
    /// Red, green, blue and alpha.
    Rgba,
    /// Blue, green, red and alpha.
    Bgra,
    /// Alpha, red, green and blue.
    Argb,
    /// One value that kernels read as all four channels.
    Intensity,
    /// One value that kernels read as red, green and blue.
    Luminance,
}

/// Type in which a channel of a pixel is stored.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as images; }
/// use kiln::images::{ChannelOrder, ChannelType, ImageFormat};
///
/// let format = ImageFormat { order: ChannelOrder::R, channel: ChannelType::Unorm8 };
/// assert_eq!(format.pixel_size(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelType {
    /// 8 bits, which kernels read as -1.0 to 1.0.
    Snorm8,
    /// 16 bits, which kernels read as -1.0 to 1.0.
    Snorm16,
    /// 8 bits, which kernels read as 0.0 to 1.0.
    Unorm8,
    /// 16 bits, which kernels read as 0.0 to 1.0.
    Unorm16,
    /// Signed integer of 8 bits.
    Int8,
    /// Signed integer of 16 bits.
    Int16,
    /// Signed integer of 32 bits.
    Int32,
    /// Unsigned integer of 8 bits.
    Uint8,
    /// Unsigned integer of 16 bits.
    Uint16,
    /// Unsigned integer of 32 bits.
    Uint32,
    /// Number of half precision.
    Half,
    /// Number of single precision.
    Float,
}

/// Format of an image's pixels.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as images; }
/// use kiln::images::{ChannelOrder, ChannelType, ImageFormat};
///
/// let format = ImageFormat { order: ChannelOrder::Bgra, channel: ChannelType::Unorm8 };
/// assert_eq!(format.to_string(), "Bgra<Unorm8>");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageFormat {
    /// Channels of a pixel.
    pub order: ChannelOrder,
    /// Type of each channel.
    pub channel: ChannelType,
}

impl ImageFormat {
    /// Returns the size of a pixel, in bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod kiln { pub use kiln_compiler as images; }
    /// use kiln::images::{ChannelOrder, ChannelType, ImageFormat};
    ///
    /// let format = ImageFormat { order: ChannelOrder::Rgba, channel: ChannelType::Float };
    /// assert_eq!(format.pixel_size(), 16);
    /// ```
    #[must_use]
    pub const fn pixel_size(self) -> usize {
        let channels = match self.order {
            ChannelOrder::R | ChannelOrder::A => 1,
            ChannelOrder::Intensity | ChannelOrder::Luminance => 1,
            ChannelOrder::Rg => 2,
            ChannelOrder::Rgba | ChannelOrder::Bgra | ChannelOrder::Argb => 4,
        };
        let bytes = match self.channel {
            ChannelType::Snorm8 | ChannelType::Unorm8 | ChannelType::Int8 | ChannelType::Uint8 => 1,
            ChannelType::Snorm16 | ChannelType::Unorm16 => 2,
            ChannelType::Int16 | ChannelType::Uint16 | ChannelType::Half => 2,
            ChannelType::Int32 | ChannelType::Uint32 | ChannelType::Float => 4,
        };
        channels * bytes
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}<{:?}>", self.order, self.channel)
    }
}

/// Dimensions of an image.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as images; }
/// use kiln::images::ImageKind;
///
/// assert_eq!(ImageKind::D2.type_name(), "image2d_t");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// A row of pixels: `image1d_t`.
    D1,
    /// Several rows: `image1d_array_t`.
    D1Array,
    /// The elements of a buffer as a row of pixels: `image1d_buffer_t`.
    D1Buffer,
    /// A picture: `image2d_t`.
    D2,
    /// Several pictures: `image2d_array_t`.
    D2Array,
    /// A volume: `image3d_t`.
    D3,
}

impl ImageKind {
    /// Returns the type of a kernel's parameter for such images, as written in OpenCL C.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        match self {
            Self::D1 => "image1d_t",
            Self::D1Array => "image1d_array_t",
            Self::D1Buffer => "image1d_buffer_t",
            Self::D2 => "image2d_t",
            Self::D2Array => "image2d_array_t",
            Self::D3 => "image3d_t",
        }
    }

    /// Returns the name of the runtime's method that creates such images.
    #[doc(hidden)]
    #[must_use]
    pub fn constructor(self) -> &'static str {
        match self {
            Self::D1 => "image_1d",
            Self::D1Array => "image_1d_array",
            Self::D1Buffer => "image_buffer",
            Self::D2 => "image_2d",
            Self::D2Array => "image_2d_array",
            Self::D3 => "image_3d",
        }
    }

    /// Returns the kind that a kernel's parameter takes, from the name of its type in OpenCL C. `None` for other
    /// types, and for kinds that Kiln does not create.
    #[doc(hidden)]
    #[must_use]
    pub fn of_type(name: &str) -> Option<Self> {
        let kinds = [Self::D1, Self::D1Array, Self::D1Buffer, Self::D2, Self::D2Array, Self::D3];
        kinds.into_iter().find(|kind| kind.type_name() == name)
    }

    /// Returns the number of sizes and coordinates that matter, layers included.
    #[doc(hidden)]
    #[must_use]
    pub fn dimensions(self) -> usize {
        match self {
            Self::D1 | Self::D1Buffer => 1,
            Self::D1Array | Self::D2 => 2,
            Self::D2Array | Self::D3 => 3,
        }
    }
}

/// Kind, sizes and format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageShape {
    /// Dimensions.
    pub kind: ImageKind,
    /// Width, height and depth in pixels. Layers count as the last dimension; sizes that the kind lacks are 1.
    pub size: [usize; 3],
    /// Format of the pixels.
    pub format: ImageFormat,
}

impl ImageShape {
    /// Returns the number of bytes of all pixels without padding, or `None` if there are more than can be counted.
    pub fn bytes(&self) -> Option<usize> {
        self.size.into_iter().try_fold(self.format.pixel_size(), usize::checked_mul)
    }
}

impl fmt::Display for ImageShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = &self.size[..self.kind.dimensions()];
        let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
        write!(f, "{} pixels of `{}` (`{}`)", sizes.join(" x "), self.format, self.kind.type_name())
    }
}

/// Box of an image's pixels: its first pixel and its sizes. The box is not empty and lies inside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageBox {
    /// Image that the box is in.
    pub shape: ImageShape,
    /// First pixel in each dimension.
    pub origin: [usize; 3],
    /// Number of pixels in each dimension.
    pub size: [usize; 3],
}

impl ImageBox {
    /// Returns the box of all pixels.
    #[must_use]
    pub fn whole(shape: ImageShape) -> Self {
        Self { shape, origin: [0; 3], size: shape.size }
    }

    /// Returns the number of pixels.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.size.into_iter().product()
    }

    /// Returns the bytes from the first pixel to the last one, in an image whose rows follow each other without
    /// padding. Other pixels lie in between unless the box [is contiguous](Self::is_contiguous).
    #[must_use]
    pub fn bytes(&self) -> Range<usize> {
        let [width, height, _] = self.shape.size;
        let at = |[x, y, z]: [usize; 3]| (z * height + y) * width + x;
        let pixel = self.shape.format.pixel_size();
        let last: [usize; 3] = std::array::from_fn(|i| self.origin[i] + self.size[i] - 1);
        at(self.origin) * pixel..(at(last) + 1) * pixel
    }

    /// Returns whether no other pixels lie between the first pixel of the box and the last one.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.bytes().len() == self.pixels() * self.shape.format.pixel_size()
    }

    /// Returns whether two boxes of one image have a pixel in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        (0..3).all(|i| {
            self.origin[i] < other.origin[i] + other.size[i]
                && other.origin[i] < self.origin[i] + self.size[i]
        })
    }

    /// Returns the bytes of each row of the box, as the box lies in memory, in an image whose rows follow each
    /// other without padding.
    pub fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        let ([x, y, z], [width, height, depth]) = (self.origin, self.size);
        let [row, column, _] = self.shape.size;
        let pixel = self.shape.format.pixel_size();
        let starts = (z..z + depth).flat_map(move |z| (y..y + height).map(move |y| (z, y)));
        starts.map(move |(z, y)| {
            let start = ((z * column + y) * row + x) * pixel;
            start..start + width * pixel
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(kind: ImageKind, size: [usize; 3]) -> ImageShape {
        let format = ImageFormat { order: ChannelOrder::Rg, channel: ChannelType::Uint16 };
        ImageShape { kind, size, format }
    }

    #[test]
    fn boxes_of_whole_rows_and_of_parts_of_one_row_are_contiguous() {
        let shape = image(ImageKind::D3, [4, 3, 2]);
        let part = |origin, size| ImageBox { shape, origin, size };
        for (part, bytes, is_contiguous) in [
            (ImageBox::whole(shape), 0..96, true),
            (part([1, 0, 0], [2, 1, 1]), 4..12, true),
            (part([0, 1, 0], [4, 2, 1]), 16..48, true),
            (part([0, 0, 1], [4, 3, 1]), 48..96, true),
            (part([0, 0, 0], [3, 2, 1]), 0..28, false),
            (part([0, 0, 0], [4, 2, 2]), 0..80, false),
        ] {
            assert_eq!((part.bytes(), part.is_contiguous()), (bytes, is_contiguous), "{part:?}");
        }
    }

    #[test]
    fn boxes_overlap_where_they_share_a_pixel() {
        let shape = image(ImageKind::D2, [4, 4, 1]);
        let part = |x, y| ImageBox { shape, origin: [x, y, 0], size: [2, 2, 1] };
        assert!(part(0, 0).overlaps(&part(1, 1)));
        assert!(!part(0, 0).overlaps(&part(2, 0)) && !part(0, 0).overlaps(&part(0, 2)));
    }

    #[test]
    fn images_are_described_by_their_sizes_and_their_format() {
        let text = image(ImageKind::D2, [640, 480, 1]).to_string();
        assert_eq!(text, "640 x 480 pixels of `Rg<Uint16>` (`image2d_t`)");
    }

    #[test]
    fn kinds_follow_from_the_types_of_parameters() {
        assert_eq!(ImageKind::of_type("image1d_buffer_t"), Some(ImageKind::D1Buffer));
        assert_eq!(ImageKind::of_type("image2d_depth_t"), None);
    }
}
