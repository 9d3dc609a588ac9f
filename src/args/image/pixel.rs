//! Types of pixels, which determine the formats of images.

use bytemuck::{Pod, Zeroable};

use crate::device::{ChannelOrder, ChannelType, ImageFormat};

/// Type in which a channel of a pixel is stored, such as `u8`, `f32` or [`Unorm<u8>`](Unorm). Kiln implements
/// the trait; applications cannot.
///
/// # Examples
///
/// ```
/// use kiln::images::{Channel, ChannelType};
///
/// assert_eq!(u16::TYPE, ChannelType::Uint16); // `read_imageui` in a kernel
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the type of an image's channel",
    label = "use `u8`, `u16`, `u32`, `i8`, `i16`, `i32`, `f32`, `Half`, `Unorm<u8>`, `Unorm<u16>`, `Snorm<i8>` or `Snorm<i16>`"
)]
pub trait Channel: Pod + Send + Sync + Sealed {
    /// Type of the channel.
    const TYPE: ChannelType;

    /// Returns the value as drivers take it in the color of a fill: the bits of an `f32`, `i32` or `u32`.
    #[doc(hidden)]
    fn color(self) -> u32;
}

/// Type of an image's pixels, such as [`Rgba<u8>`](Rgba). Kiln implements the trait; applications cannot.
///
/// # Examples
///
/// ```
/// use kiln::images::Pixel;
/// use kiln::{Image, Queue, Result};
///
/// /// Sets a picture of any format to zeros.
/// fn clear<P: Pixel>(queue: &Queue, picture: &Image<P>) -> Result<()> {
///     queue.fill(picture, P::zeroed())?;
///     Ok(())
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the type of an image's pixels",
    label = "use `R<T>`, `Rg<T>`, `Rgba<T>`, `Bgra<T>` or another type of pixels with a channel type `T`"
)]
pub trait Pixel: Pod + Send + Sync + Sealed {
    /// Format of images of these pixels.
    const FORMAT: ImageFormat;

    /// Returns red, green, blue and alpha as drivers take them in the color of a fill.
    #[doc(hidden)]
    fn color(self) -> [u32; 4];
}

mod sealed {
    pub trait Sealed {}
}

use sealed::Sealed;

/// Integer that kernels read as a number from 0.0, for 0, to 1.0, for the largest value.
///
/// # Examples
///
/// ```
/// use kiln::images::{Rgba, Unorm};
///
/// let orange = Rgba([255, 128, 0, 255].map(Unorm)); // `read_imagef` gives 1.0, 0.5, 0.0, 1.0
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Unorm<T>(pub T);

/// Integer that kernels read as a number from -1.0 to 1.0, for the largest value.
///
/// # Examples
///
/// ```
/// use kiln::images::{Rg, Snorm};
///
/// let slope = Rg([-127, 64].map(Snorm)); // `read_imagef` gives -1.0 and 0.5
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Snorm<T>(pub T);

/// Bits of a number of half precision (IEEE 754 binary16).
///
/// # Examples
///
/// ```
/// use kiln::images::{Half, R};
///
/// let one = R([Half(0x3c00)]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Half(pub u16);

/// Declares wrappers of plain data as plain data.
macro_rules! plain {
    ($(<$($parameter:ident),*> $name:ty),* $(,)?) => {$(
        // SAFETY: a transparent wrapper of a type whose zeros are valid.
        unsafe impl<$($parameter: Zeroable),*> Zeroable for $name {}
        // SAFETY: a transparent wrapper of a `Pod` type.
        unsafe impl<$($parameter: Pod),*> Pod for $name {}
        impl<$($parameter),*> Sealed for $name {}
    )*};
}

plain!(<T> Unorm<T>, <T> Snorm<T>, <> Half);

macro_rules! channels {
    ($($channel:ty => $ty:ident, |$value:ident| $color:expr;)*) => {$(
        impl Channel for $channel {
            const TYPE: ChannelType = ChannelType::$ty;

            fn color(self) -> u32 {
                let $value = self;
                $color
            }
        }
    )*};
}

macro_rules! sealed {
    ($($ty:ty)*) => { $(impl Sealed for $ty {})* };
}

sealed!(u8 u16 u32 i8 i16 i32 f32);

channels! {
    u8 => Uint8, |value| value.into();
    u16 => Uint16, |value| value.into();
    u32 => Uint32, |value| value;
    i8 => Int8, |value| i32::from(value).cast_unsigned();
    i16 => Int16, |value| i32::from(value).cast_unsigned();
    i32 => Int32, |value| value.cast_unsigned();
    f32 => Float, |value| value.to_bits();
    Half => Half, |value| from_half(value.0).to_bits();
    Unorm<u8> => Unorm8, |value| (f32::from(value.0) / f32::from(u8::MAX)).to_bits();
    Unorm<u16> => Unorm16, |value| (f32::from(value.0) / f32::from(u16::MAX)).to_bits();
    Snorm<i8> => Snorm8, |value| (f32::from(value.0) / f32::from(i8::MAX)).to_bits();
    Snorm<i16> => Snorm16, |value| (f32::from(value.0) / f32::from(i16::MAX)).to_bits();
}

/// Converts the bits of a number of half precision to single precision, which represents all of them.
fn from_half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15) << 31, bits >> 10 & 31, bits & 0x3ff);
    let magnitude = match exponent {
        // The unit of subnormal numbers is 2 to the power of -24.
        0 => return f32::from_bits(f32::from(fraction).to_bits()) * 2f32.powi(-24) * sign_of(sign),
        31 => 255 << 23 | u32::from(fraction) << 13,
        _ => (u32::from(exponent) + 112) << 23 | u32::from(fraction) << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// Returns -1.0 if a sign bit is set, and else 1.0.
fn sign_of(sign: u32) -> f32 {
    f32::from_bits(1f32.to_bits() | sign)
}

macro_rules! pixels {
    ($($(#[$doc:meta])* $name:ident $count:literal |$c:ident| $color:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name<T>(pub [T; $count]);

        plain!(<T> $name<T>);

        impl<T: Channel> Pixel for $name<T> {
            const FORMAT: ImageFormat =
                ImageFormat { order: ChannelOrder::$name, channel: T::TYPE };

            fn color(self) -> [u32; 4] {
                let $c = self.0.map(T::color);
                $color
            }
        }
    )*};
}

pixels! {
    /// Pixel of one channel, red. Kernels read 0 for green and blue.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let depth = rt.image_2d::<kiln::images::R<f32>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    R 1 |c| [c[0], 0, 0, 0];
    /// Pixel of one channel, alpha.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::images::{A, Unorm};
    ///
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let mask = rt.image_2d::<A<Unorm<u8>>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    A 1 |c| [0, 0, 0, c[0]];
    /// Pixel of two channels, red and green.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let motion = rt.image_2d::<kiln::images::Rg<i16>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    Rg 2 |c| [c[0], c[1], 0, 0];
    /// Pixel of four channels: red, green, blue and alpha.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let photograph = rt.image_2d::<kiln::images::Rgba<u8>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    Rgba 4 |c| c;
    /// Pixel of four channels: blue, green, red and alpha.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::images::{Bgra, Unorm};
    ///
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let frame = rt.image_2d::<Bgra<Unorm<u8>>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    Bgra 4 |c| [c[2], c[1], c[0], c[3]];
    /// Pixel of four channels: alpha, red, green and blue.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let frame = rt.image_2d::<kiln::images::Argb<u8>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    Argb 4 |c| [c[1], c[2], c[3], c[0]];
    /// Pixel of one value, which kernels read as all four channels.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let glow = rt.image_2d::<kiln::images::Intensity<f32>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    Intensity 1 |c| [c[0], 0, 0, 0];
    /// Pixel of one value, which kernels read as red, green and blue.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::images::{Luminance, Unorm};
    ///
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let grey = rt.image_2d::<Luminance<Unorm<u8>>>(640, 480)?;
    /// # Ok(())
    /// # }
    /// ```
    Luminance 1 |c| [c[0], 0, 0, 0];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_in_the_order_of_drivers() {
        assert_eq!(Pixel::color(Rgba([1u8, 2, 3, 4])), [1, 2, 3, 4]);
        assert_eq!(Pixel::color(Bgra([1u8, 2, 3, 4])), [3, 2, 1, 4]);
        assert_eq!(Pixel::color(Argb([1u8, 2, 3, 4])), [2, 3, 4, 1]);
        assert_eq!(Pixel::color(A([7u16])), [0, 0, 0, 7]);
        assert_eq!(Pixel::color(Rg([-1i8, 1])), [u32::MAX, 1, 0, 0]);
        assert_eq!(Pixel::color(R([Unorm(255u8)])), [1f32.to_bits(), 0, 0, 0]);
    }

    #[test]
    fn halves_become_the_same_numbers() {
        let known = [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 2f32.powi(-24))];
        for (bits, number) in known {
            assert_eq!(from_half(bits), number, "{bits:#x}");
        }
        assert_eq!(from_half(0x8000).to_bits(), (-0f32).to_bits());
        assert_eq!(from_half(0xfc00), f32::NEG_INFINITY);
        assert!(from_half(0x7e00).is_nan());
    }
}
