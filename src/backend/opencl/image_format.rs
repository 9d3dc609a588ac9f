//! Kinds and formats of images in the form of the driver.

use opencl3::memory::*;

use crate::device::{ChannelOrder, ChannelType, ImageFormat, ImageKind};

pub(super) fn type_of(kind: ImageKind) -> cl_mem_object_type {
    match kind {
        ImageKind::D1 => CL_MEM_OBJECT_IMAGE1D,
        ImageKind::D1Array => CL_MEM_OBJECT_IMAGE1D_ARRAY,
        ImageKind::D1Buffer => CL_MEM_OBJECT_IMAGE1D_BUFFER,
        ImageKind::D2 => CL_MEM_OBJECT_IMAGE2D,
        ImageKind::D2Array => CL_MEM_OBJECT_IMAGE2D_ARRAY,
        ImageKind::D3 => CL_MEM_OBJECT_IMAGE3D,
    }
}

/// Orders of channels in the form of the driver.
const ORDERS: [(ChannelOrder, cl_uint); 8] = [
    (ChannelOrder::R, CL_R),
    (ChannelOrder::A, CL_A),
    (ChannelOrder::Rg, CL_RG),
    (ChannelOrder::Rgba, CL_RGBA),
    (ChannelOrder::Bgra, CL_BGRA),
    (ChannelOrder::Argb, CL_ARGB),
    (ChannelOrder::Intensity, CL_INTENSITY),
    (ChannelOrder::Luminance, CL_LUMINANCE),
];

/// Types of channels in the form of the driver.
const TYPES: [(ChannelType, cl_uint); 12] = [
    (ChannelType::Snorm8, CL_SNORM_INT8),
    (ChannelType::Snorm16, CL_SNORM_INT16),
    (ChannelType::Unorm8, CL_UNORM_INT8),
    (ChannelType::Unorm16, CL_UNORM_INT16),
    (ChannelType::Int8, CL_SIGNED_INT8),
    (ChannelType::Int16, CL_SIGNED_INT16),
    (ChannelType::Int32, CL_SIGNED_INT32),
    (ChannelType::Uint8, CL_UNSIGNED_INT8),
    (ChannelType::Uint16, CL_UNSIGNED_INT16),
    (ChannelType::Uint32, CL_UNSIGNED_INT32),
    (ChannelType::Half, CL_HALF_FLOAT),
    (ChannelType::Float, CL_FLOAT),
];

/// Returns a format in the form of the driver.
pub(super) fn format_of(format: ImageFormat) -> cl_image_format {
    // The tables have all values; a test shows that.
    let order = ORDERS.iter().find(|(order, _)| *order == format.order);
    let channel = TYPES.iter().find(|(channel, _)| *channel == format.channel);
    cl_image_format {
        image_channel_order: order.map_or(0, |(_, code)| *code),
        image_channel_data_type: channel.map_or(0, |(_, code)| *code),
    }
}

/// Returns a format of the driver, if Kiln has it.
pub(super) fn known_format(format: cl_image_format) -> Option<ImageFormat> {
    let order = ORDERS.iter().find(|(_, code)| *code == format.image_channel_order)?.0;
    let channel = TYPES.iter().find(|(_, code)| *code == format.image_channel_data_type)?.0;
    Some(ImageFormat { order, channel })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_of_kiln_has_a_format_of_the_driver() {
        for (order, _) in ORDERS {
            for (channel, _) in TYPES {
                let format = ImageFormat { order, channel };
                assert_eq!(known_format(format_of(format)), Some(format));
            }
        }
    }
}
