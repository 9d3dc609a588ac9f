//! Colors as pixels, for devices whose drivers do not convert them.

use super::{ChannelOrder, ChannelType, ImageFormat};

/// Returns the bytes of a pixel of a color: the bits of red, green, blue and alpha as `f32`, `i32` or `u32`.
pub(crate) fn pixel_of([red, green, blue, alpha]: [u32; 4], format: ImageFormat) -> Vec<u8> {
    let channels = match format.order {
        ChannelOrder::R | ChannelOrder::Intensity | ChannelOrder::Luminance => vec![red],
        ChannelOrder::A => vec![alpha],
        ChannelOrder::Rg => vec![red, green],
        ChannelOrder::Rgba => vec![red, green, blue, alpha],
        ChannelOrder::Bgra => vec![blue, green, red, alpha],
        ChannelOrder::Argb => vec![alpha, red, green, blue],
    };
    channels.into_iter().flat_map(|bits| channel_of(bits, format.channel)).collect()
}

/// Returns the bytes of a channel of a pixel.
fn channel_of(bits: u32, channel: ChannelType) -> Vec<u8> {
    let scaled = |most: f32| (f32::from_bits(bits).clamp(-1.0, 1.0) * most).round_ties_even();
    let integer = match channel {
        ChannelType::Unorm8 => scaled(f32::from(u8::MAX)) as u8 as u32,
        ChannelType::Unorm16 => scaled(f32::from(u16::MAX)) as u16 as u32,
        ChannelType::Snorm8 => scaled(f32::from(i8::MAX)) as i8 as u32,
        ChannelType::Snorm16 => scaled(f32::from(i16::MAX)) as i16 as u32,
        ChannelType::Half => half_of(f32::from_bits(bits)),
        _ => bits,
    };
    let size = ImageFormat { order: ChannelOrder::R, channel }.pixel_size();
    integer.to_le_bytes()[..size].to_vec()
}

/// Returns the bits of a number in half precision, which represents it exactly.
fn half_of(number: f32) -> u32 {
    let (bits, magnitude) = (number.to_bits(), number.abs());
    let sign = bits >> 16 & 0x8000;
    let normal = (bits & 0x7fff_ffff).wrapping_sub(112 << 23) >> 13;
    match magnitude {
        // The unit of subnormal numbers is 2 to the power of -24.
        _ if magnitude < 2f32.powi(-14) => sign | (magnitude * 2f32.powi(24)) as u32,
        _ if magnitude.is_finite() => sign | normal,
        _ => sign | 0x7c00 | bits >> 13 & 0x3ff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_in_the_order_and_in_the_type_of_the_format() {
        let floats = [1.0f32, 0.5, -1.0, 0.25].map(f32::to_bits);
        let pixel = |order, channel| pixel_of(floats, ImageFormat { order, channel });
        assert_eq!(pixel(ChannelOrder::Bgra, ChannelType::Snorm8), [129, 64, 127, 32]);
        assert_eq!(pixel(ChannelOrder::A, ChannelType::Float), 0.25f32.to_le_bytes());
        assert_eq!(pixel(ChannelOrder::Rg, ChannelType::Half), [0x00, 0x3c, 0x00, 0x38]);
        let integers = ImageFormat { order: ChannelOrder::Argb, channel: ChannelType::Uint8 };
        assert_eq!(pixel_of([1, 2, 3, 4], integers), [4, 1, 2, 3]);
    }
}
