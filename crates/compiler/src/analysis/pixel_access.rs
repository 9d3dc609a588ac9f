//! Instructions that access one pixel of an image.

use kiln_spirv::edit::{Definitions, Instruction, View};
use rspirv::spirv::{ImageOperands, Op};

use crate::{ChannelOrder, ChannelType, ImageFormat};

/// Read or write of one pixel, as four numbers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PixelAccess {
    /// Id of the image.
    pub(crate) image: u32,
    pub(crate) coordinates: u32,
    /// Id of the sampler of a read; `None` without one.
    pub(crate) sampler: Option<u32>,
    /// Type of the four numbers.
    pub(crate) texel: u32,
    pub(crate) numbers: Numbers,
    /// Id of the numbers that are written; `None` for a read.
    pub(crate) stored: Option<u32>,
}

/// Kind of the numbers of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    Float,
    /// Integers, and whether they are signed if the instruction states it.
    Integer(Option<bool>),
}

impl PixelAccess {
    /// Returns the access that an instruction is; `None` for other instructions, for accesses to other levels
    /// than the first, and for pixels of other numbers.
    pub(crate) fn of(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Self> {
        let (image, coordinates, operands, sampler, stored) = match i.view() {
            View::ImageWrite { image, coordinate, texel, operands } => {
                (image, coordinate, operands, None, Some(texel))
            }
            View::ImageRead { image, coordinate, operands } => {
                (image, coordinate, operands, None, None)
            }
            View::ImageSample { image, coordinate, operands } => {
                let View::SampledImage { image, sampler } = definitions.get(image)?.view() else {
                    return None;
                };
                (image, coordinate, operands, Some(sampler), None)
            }
            _ => return None,
        };
        let mask = operands.mask.unwrap_or(0);
        let [signed, unsigned] =
            [ImageOperands::SIGN_EXTEND, ImageOperands::ZERO_EXTEND].map(|bit| bit.bits());
        let is_first_level = match mask & !(signed | unsigned) {
            0 => true,
            rest if rest == ImageOperands::LOD.bits() => definitions.is_zero(operands.ids.get(0)),
            _ => false,
        };
        let texel = match stored {
            Some(stored) => definitions.type_of(stored)?,
            None => definitions.get(i.result_type()?)?,
        };
        let (part, count) = texel.vector()?;
        let part = definitions.get(part).filter(|_| count == 4 && is_first_level)?;
        let numbers = match (part.op()?, part.width()?) {
            (Op::TypeFloat, 32) => Numbers::Float,
            (Op::TypeInt, 32) => {
                let is_stated = mask & (signed | unsigned) != 0;
                Numbers::Integer(is_stated.then_some(mask & signed != 0))
            }
            _ => return None,
        };
        Some(Self { image, coordinates, sampler, texel: texel.result()?, numbers, stored })
    }

    /// Returns whether the numbers are those of a format, so that they are not converted.
    pub(crate) fn fits(&self, format: ImageFormat) -> bool {
        match (format.channel, self.numbers) {
            (ChannelType::Float, Numbers::Float) => true,
            (ChannelType::Int32, Numbers::Integer(is_signed)) => is_signed != Some(false),
            (ChannelType::Uint32, Numbers::Integer(is_signed)) => is_signed != Some(true),
            _ => false,
        }
    }
}

/// Returns the number of channels that a format stores exactly as kernels write them; `None` if it stores them
/// in another form, or not as the first of the four numbers.
pub(crate) fn exact_channels(format: ImageFormat) -> Option<usize> {
    let is_exact =
        matches!(format.channel, ChannelType::Float | ChannelType::Int32 | ChannelType::Uint32);
    let channels = match format.order {
        ChannelOrder::R => 1,
        ChannelOrder::Rg => 2,
        ChannelOrder::Rgba => 4,
        ChannelOrder::A
        | ChannelOrder::Bgra
        | ChannelOrder::Argb
        | ChannelOrder::Intensity
        | ChannelOrder::Luminance => return None,
    };
    is_exact.then_some(channels)
}

/// Returns whether an instruction that asks for the size of an image asks for that of the first level.
pub(crate) fn is_first_level(definitions: &Definitions<'_>, i: &Instruction<'_>) -> bool {
    match i.view() {
        View::ImageQuery { .. } => i.op() == Some(Op::ImageQuerySize),
        View::ImageQueryLod { level, .. } => definitions.is_zero(Some(level)),
        _ => false,
    }
}
