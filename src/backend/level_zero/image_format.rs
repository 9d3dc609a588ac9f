//! Kinds and formats of images in the form of the driver.
//!
//! Level Zero has no list of a device's formats. A layout and a type of channels determine the bytes of a pixel. The
//! swizzle of a format states the channels that a kernel reads, but not where a write stores them, so this backend has
//! only the orders in which the two agree: red, then green, then blue, then alpha. All types of channels exist in each
//! of these orders. The driver decides on each of them when an image is created.

use super::image_bindings::*;
use crate::device::{ChannelOrder, ChannelType, ImageFormat, ImageKind};

pub(super) fn type_of(kind: ImageKind) -> ze_image_type_t {
    match kind {
        ImageKind::D1 => ZE_IMAGE_TYPE_1D,
        ImageKind::D1Array => ZE_IMAGE_TYPE_1DARRAY,
        ImageKind::D1Buffer => ZE_IMAGE_TYPE_BUFFER,
        ImageKind::D2 => ZE_IMAGE_TYPE_2D,
        ImageKind::D2Array => ZE_IMAGE_TYPE_2DARRAY,
        ImageKind::D3 => ZE_IMAGE_TYPE_3D,
    }
}

/// Returns a format in the form of the driver. `None` for an order of channels that this backend does not have.
pub(super) fn format_of(format: ImageFormat) -> Option<ze_image_format_t> {
    let layouts = match format.order {
        ChannelOrder::R => {
            [ZE_IMAGE_FORMAT_LAYOUT_8, ZE_IMAGE_FORMAT_LAYOUT_16, ZE_IMAGE_FORMAT_LAYOUT_32]
        }
        ChannelOrder::Rg => {
            [ZE_IMAGE_FORMAT_LAYOUT_8_8, ZE_IMAGE_FORMAT_LAYOUT_16_16, ZE_IMAGE_FORMAT_LAYOUT_32_32]
        }
        ChannelOrder::Rgba => [
            ZE_IMAGE_FORMAT_LAYOUT_8_8_8_8,
            ZE_IMAGE_FORMAT_LAYOUT_16_16_16_16,
            ZE_IMAGE_FORMAT_LAYOUT_32_32_32_32,
        ],
        ChannelOrder::A
        | ChannelOrder::Bgra
        | ChannelOrder::Argb
        | ChannelOrder::Intensity
        | ChannelOrder::Luminance => return None,
    };
    let (type_, width) = match format.channel {
        ChannelType::Snorm8 => (ZE_IMAGE_FORMAT_TYPE_SNORM, 0),
        ChannelType::Snorm16 => (ZE_IMAGE_FORMAT_TYPE_SNORM, 1),
        ChannelType::Unorm8 => (ZE_IMAGE_FORMAT_TYPE_UNORM, 0),
        ChannelType::Unorm16 => (ZE_IMAGE_FORMAT_TYPE_UNORM, 1),
        ChannelType::Int8 => (ZE_IMAGE_FORMAT_TYPE_SINT, 0),
        ChannelType::Int16 => (ZE_IMAGE_FORMAT_TYPE_SINT, 1),
        ChannelType::Int32 => (ZE_IMAGE_FORMAT_TYPE_SINT, 2),
        ChannelType::Uint8 => (ZE_IMAGE_FORMAT_TYPE_UINT, 0),
        ChannelType::Uint16 => (ZE_IMAGE_FORMAT_TYPE_UINT, 1),
        ChannelType::Uint32 => (ZE_IMAGE_FORMAT_TYPE_UINT, 2),
        ChannelType::Half => (ZE_IMAGE_FORMAT_TYPE_FLOAT, 1),
        ChannelType::Float => (ZE_IMAGE_FORMAT_TYPE_FLOAT, 2),
    };
    // Channels that a format lacks are read as OpenCL C defines them: 0, and 1 for alpha.
    let (y, z, w) = match format.order {
        ChannelOrder::R => {
            (ZE_IMAGE_FORMAT_SWIZZLE_0, ZE_IMAGE_FORMAT_SWIZZLE_0, ZE_IMAGE_FORMAT_SWIZZLE_1)
        }
        ChannelOrder::Rg => {
            (ZE_IMAGE_FORMAT_SWIZZLE_G, ZE_IMAGE_FORMAT_SWIZZLE_0, ZE_IMAGE_FORMAT_SWIZZLE_1)
        }
        _ => (ZE_IMAGE_FORMAT_SWIZZLE_G, ZE_IMAGE_FORMAT_SWIZZLE_B, ZE_IMAGE_FORMAT_SWIZZLE_A),
    };
    let x = ZE_IMAGE_FORMAT_SWIZZLE_R;
    Some(ze_image_format_t { layout: layouts[width], type_, x, y, z, w })
}
