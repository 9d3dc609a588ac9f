//! Shapes of launches: what a verdict may depend on.

use std::ops::Range;

use kiln_compiler::{NdRange, Sampler, bounds};
use kiln_spirv::Access;
use smallvec::SmallVec;

use crate::args::{ArgumentKind, ArgumentList, ArgumentValue, Element};
use crate::device::{ChannelType, ImageFormat, ImageShape};

/// Range and arguments of a launch, without its buffers.
#[derive(Clone)]
pub(crate) struct LaunchShape {
    pub(super) range: NdRange,
    pub(super) arguments: SmallVec<[ArgumentShape; 6]>,
    /// Regions of the buffers. They matter only where memory may not overlap.
    pub(super) regions: SmallVec<[ArgumentRegion; 8]>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum ArgumentShape {
    Buffer {
        length: usize,
        alignment: usize,
        stated: Option<Access>,
    },
    Value(SmallVec<[u8; 16]>),
    /// Value of which only the length in bytes matters.
    AnyValue(usize),
    Local(usize),
    Image(ImageShape),
    Sampler(Sampler),
}

impl LaunchShape {
    pub(crate) fn of(range: &NdRange, arguments: &ArgumentList) -> Self {
        let shape = |given: &ArgumentValue| match &given.kind {
            ArgumentKind::Value(bytes) if given.open.is_some() => {
                ArgumentShape::AnyValue(bytes.len())
            }
            ArgumentKind::Memory(region, stated) => match region.image() {
                Some(image) => ArgumentShape::Image(image.shape),
                None => ArgumentShape::Buffer {
                    length: region.bytes().len(),
                    alignment: region.alignment(),
                    stated: *stated,
                },
            },
            ArgumentKind::Value(bytes) => ArgumentShape::Value(bytes.clone()),
            ArgumentKind::Local(bytes) => ArgumentShape::Local(*bytes),
            ArgumentKind::Sampler(sampler) => ArgumentShape::Sampler(*sampler),
        };
        Self {
            range: *range,
            arguments: arguments.iter().map(shape).collect(),
            regions: regions(arguments),
        }
    }

    /// Returns the positions of the values that every replay of a graph sets, for the shape of a launch.
    pub(super) fn open_values(&self) -> impl Iterator<Item = usize> {
        let arguments = self.arguments.iter().enumerate();
        arguments
            .filter(|(_, argument)| matches!(argument, ArgumentShape::AnyValue(_)))
            .map(|(at, _)| at)
    }

    /// Returns the arguments in the form of the check.
    pub(super) fn to_check(&self) -> Vec<bounds::Argument> {
        let argument = |shape: &ArgumentShape| match shape {
            &ArgumentShape::Buffer { length, alignment, .. } => {
                bounds::Argument::Buffer { length, alignment }
            }
            ArgumentShape::Value(bytes) => bounds::Argument::Scalar(bytes.to_vec()),
            ArgumentShape::AnyValue(length) => bounds::Argument::Scalar(vec![0; *length]),
            ArgumentShape::Local(bytes) => bounds::Argument::Local(*bytes),
            ArgumentShape::Image(shape) => bounds::Argument::Image {
                type_name: shape.kind.type_name(),
                size: shape.size,
                channel: channel(shape.format),
            },
            ArgumentShape::Sampler(sampler) => bounds::Argument::Sampler(*sampler),
        };
        self.arguments.iter().map(argument).collect()
    }

    /// Returns the positions of the buffers whose addresses need not be multiples of `alignment`.
    pub(super) fn unaligned(&self, alignment: usize) -> SmallVec<[usize; 4]> {
        let is_unaligned = |argument: &ArgumentShape| match argument {
            ArgumentShape::Buffer { alignment: own, .. } => *own < alignment,
            _ => false,
        };
        let arguments = self.arguments.iter().enumerate();
        arguments.filter(|(_, argument)| is_unaligned(argument)).map(|(at, _)| at).collect()
    }

    /// Returns the shape as the key of a verdict that depends on the values of these scalars only.
    pub(super) fn depending_on(mut self, is_constant: impl Fn(usize) -> bool) -> Self {
        for (at, argument) in self.arguments.iter_mut().enumerate() {
            if let ArgumentShape::Value(bytes) = argument
                && !is_constant(at)
            {
                *argument = ArgumentShape::AnyValue(bytes.len());
            }
        }
        self.regions.clear();
        self
    }

    /// Returns whether a launch has this shape.
    pub(super) fn fits(&self, range: &NdRange, arguments: &ArgumentList) -> bool {
        self.range == *range
            && self.arguments.len() == arguments.len()
            && self.arguments.iter().zip(arguments).all(|(known, given)| known.fits(given))
    }

    /// Returns whether another shape is the same but for the values of scalars.
    pub(super) fn differs_in_scalars(&self, other: &Self) -> bool {
        let mut arguments = self.arguments.iter().zip(&other.arguments);
        self.range == other.range
            && self.arguments.len() == other.arguments.len()
            && arguments.all(|(own, other)| match (own.scalar_length(), other.scalar_length()) {
                (None, None) => own == other,
                (length, other_length) => length == other_length,
            })
    }

    /// Returns whether a verdict on this shape holds for another one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.range == other.range
            && self.arguments.len() == other.arguments.len()
            && self.arguments.iter().zip(&other.arguments).all(|(own, other)| own.covers(other))
    }
}

/// Returns the numbers that kernels write to an image of a format.
fn channel(format: ImageFormat) -> bounds::Channel {
    match format.channel {
        ChannelType::Int8 | ChannelType::Int16 | ChannelType::Int32 => bounds::Channel::Signed,
        ChannelType::Uint8 | ChannelType::Uint16 | ChannelType::Uint32 => bounds::Channel::Unsigned,
        ChannelType::Snorm8
        | ChannelType::Snorm16
        | ChannelType::Unorm8
        | ChannelType::Unorm16
        | ChannelType::Half
        | ChannelType::Float => bounds::Channel::Float,
    }
}

/// Region of a buffer or an image.
#[derive(Clone)]
pub(super) struct ArgumentRegion {
    allocation: u64,
    bytes: Range<usize>,
    /// Position of the argument.
    pub(super) at: usize,
    pub(super) element: &'static Element,
}

/// Returns the regions of the buffers among arguments.
pub(super) fn regions(arguments: &ArgumentList) -> SmallVec<[ArgumentRegion; 8]> {
    let regions = arguments.iter().enumerate().filter_map(|(at, given)| match &given.kind {
        ArgumentKind::Memory(region, _) => Some(ArgumentRegion {
            allocation: region.allocation(),
            bytes: region.bytes().clone(),
            at,
            element: given.element,
        }),
        ArgumentKind::Value(_) | ArgumentKind::Local(_) | ArgumentKind::Sampler(_) => None,
    });
    regions.collect()
}

/// Returns two arguments whose memory overlaps, if there are any: one at a position of `restricted`, and
/// another one, of which not both are only read.
pub(super) fn overlap(
    regions: &[ArgumentRegion],
    restricted: &[usize],
    is_read_only: impl Fn(usize) -> bool,
) -> Option<(usize, usize)> {
    regions.iter().filter(|one| restricted.contains(&one.at)).find_map(|one| {
        let other = regions.iter().find(|other| {
            one.at != other.at
                && one.allocation == other.allocation
                && one.bytes.start < other.bytes.end
                && other.bytes.start < one.bytes.end
                && !(is_read_only(one.at) && is_read_only(other.at))
        });
        other.map(|other| (one.at, other.at))
    })
}

impl ArgumentShape {
    /// Returns the length in bytes of a scalar.
    fn scalar_length(&self) -> Option<usize> {
        match self {
            Self::Value(bytes) => Some(bytes.len()),
            &Self::AnyValue(length) => Some(length),
            Self::Buffer { .. } | Self::Local(_) | Self::Image(_) | Self::Sampler(_) => None,
        }
    }

    /// Returns whether a verdict on this argument holds for another one.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::AnyValue(length), Self::Value(bytes)) => *length == bytes.len(),
            _ => self == other,
        }
    }

    fn fits(&self, given: &ArgumentValue) -> bool {
        match (self, &given.kind) {
            // A verdict on one value holds for no other.
            (Self::Value(_), _) if given.open.is_some() => false,
            (Self::Image(shape), ArgumentKind::Memory(region, _)) => {
                region.image().is_some_and(|image| image.shape == *shape)
            }
            (Self::Buffer { length, alignment, stated }, ArgumentKind::Memory(region, access)) => {
                region.image().is_none()
                    && *length == region.bytes().len()
                    && stated == access
                    && *alignment == region.alignment()
            }
            (Self::Value(known), ArgumentKind::Value(bytes)) => known == bytes,
            (Self::AnyValue(length), ArgumentKind::Value(bytes)) => *length == bytes.len(),
            (Self::Local(known), ArgumentKind::Local(bytes)) => known == bytes,
            (Self::Sampler(known), ArgumentKind::Sampler(sampler)) => known == sampler,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use kiln_compiler::NdSize;

    fn shape(length: usize, scalars: &[ArgumentShape]) -> LaunchShape {
        let range = NdRange::from(NdSize::from(64));
        let buffer = ArgumentShape::Buffer { length, alignment: 64, stated: None };
        let arguments = [buffer].into_iter().chain(scalars.iter().cloned()).collect();
        LaunchShape { range, arguments, regions: SmallVec::new() }
    }

    #[test]
    fn shapes_differ_in_scalars_if_everything_else_is_the_same() {
        let value = |byte: u8| ArgumentShape::Value(smallvec![byte; 4]);
        let one = shape(256, &[value(1)]);
        assert!(one.differs_in_scalars(&shape(256, &[value(2)])));
        assert!(one.differs_in_scalars(&shape(256, &[ArgumentShape::AnyValue(4)])));
        for other in [
            shape(128, &[value(2)]),
            shape(256, &[ArgumentShape::AnyValue(8)]),
            shape(256, &[ArgumentShape::Local(4)]),
            shape(256, &[value(2), value(2)]),
        ] {
            assert!(!one.differs_in_scalars(&other));
        }
    }
}
