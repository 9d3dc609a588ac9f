//! Keys for looking up fusions. They are bytes, so that a lookup only hashes and compares them.

use kiln_compiler::fusion::{Internalization, Place, Trust};
use kiln_compiler::{NdRange, Sampler};
use smallvec::SmallVec;

use crate::device::ImageShape;
use crate::digest::BuildKey;

/// Launches for which a fusion is looked up. Equal launches have equal keys, regardless of the identity of
/// their buffers. The values of scalars are stored separately, because only few of them matter.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(super) key: Key,
    /// Scalars in the order of their places.
    scalars: Vec<(Place, Bytes)>,
    /// Whether all scalars are treated as constants, so that their values are part of the key.
    fix_scalars: bool,
    /// Number of launches added so far.
    launches: usize,
    /// Number of arguments of the last launch added so far.
    arguments: usize,
}

/// Encoding of everything in a query except the values of its scalars. The encoding is unambiguous: every value
/// of variable length is preceded by its length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(Vec<u8>);

type Bytes = SmallVec<[u8; 16]>;

/// Typical number of bytes that one launch takes in a key.
const TYPICAL_LAUNCH_BYTES: usize = 128;

impl Query {
    /// Creates a query without launches. `launches` is the expected number of launches, for the capacity.
    pub(crate) fn new(device: usize, trust: Trust, fix_scalars: bool, launches: usize) -> Self {
        let mut key = Key(Vec::with_capacity(32 + launches * TYPICAL_LAUNCH_BYTES));
        key.number(device);
        key.byte(match trust {
            Trust::ProofOnly => 0,
            Trust::Caller => 1,
        });
        key.byte(u8::from(fix_scalars));
        Self { key, scalars: Vec::new(), fix_scalars, launches: 0, arguments: 0 }
    }

    /// Asks for one kernel for all launches. To be called before launches are added.
    pub(crate) fn require_one_kernel(&mut self) {
        self.key.byte(b'r');
    }

    /// Adds a launch. Its arguments are to be added next.
    pub(crate) fn launch(&mut self, program: BuildKey, kernel: &str, range: &NdRange) {
        self.key.byte(b'k');
        self.key.0.extend_from_slice(program.as_bytes());
        self.key.bytes(kernel.as_bytes());
        self.key.numbers(range.global());
        self.key.numbers(range.offset());
        self.key.numbers(range.local().unwrap_or_default());
        self.launches += 1;
        self.arguments = 0;
    }

    /// Adds a buffer, by the number of its memory. `dead` is `None` if its contents are read later; otherwise
    /// it contains the internalization that was requested, if any.
    pub(crate) fn buffer(
        &mut self,
        memory: usize,
        bytes: &std::ops::Range<usize>,
        dead: Option<Option<Internalization>>,
    ) {
        self.key.byte(match dead {
            None => b'b',
            Some(None) => b'd',
            Some(Some(Internalization::Private)) => b'p',
            Some(Some(Internalization::Local)) => b'l',
        });
        self.key.number(memory);
        self.key.number(bytes.start);
        self.key.number(bytes.len());
        self.arguments += 1;
    }

    /// Adds an argument by value.
    pub(crate) fn scalar(&mut self, value: &[u8]) {
        self.key.byte(b's');
        if self.fix_scalars {
            self.key.bytes(value);
        } else {
            self.key.number(value.len());
        }
        let place = Place { slot: self.launches - 1, argument: self.arguments };
        self.scalars.push((place, value.into()));
        self.arguments += 1;
    }

    /// Adds the shape of the last buffer, which is an image.
    pub(crate) fn image(&mut self, shape: &ImageShape) {
        self.key.byte(b'i');
        self.key.bytes(format!("{shape:?}").as_bytes());
    }

    /// Adds a sampler.
    pub(crate) fn sampler(&mut self, sampler: Sampler) {
        self.key.byte(b'c');
        self.key.bytes(format!("{sampler:?}").as_bytes());
        self.arguments += 1;
    }

    /// Adds `bytes` bytes of local memory.
    pub(crate) fn local(&mut self, bytes: usize) {
        self.key.byte(b'm');
        self.key.number(bytes);
        self.arguments += 1;
    }

    /// Returns the bytes of a scalar.
    pub(super) fn value(&self, place: Place) -> Option<&[u8]> {
        let at = self.scalars.binary_search_by_key(&place, |(place, _)| *place).ok()?;
        Some(&self.scalars[at].1)
    }
}

impl Key {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn numbers(&mut self, numbers: &[usize]) {
        self.byte(numbers.len() as u8);
        numbers.iter().for_each(|&number| self.number(number));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{ChannelOrder, ChannelType, ImageFormat, ImageKind};
    use kiln_compiler::NdSize;

    fn query(describe: impl FnOnce(&mut Query)) -> Query {
        let mut query = Query::new(0, Trust::ProofOnly, false, 1);
        query.launch(BuildKey([7; 32]), "scale", &NdSize::from(16).into());
        describe(&mut query);
        query
    }

    #[test]
    fn keys_contain_the_lengths_but_not_the_values_of_scalars() {
        let of = |value: &[u8]| query(|query| query.scalar(value));
        assert_eq!(of(&[1, 2]).key, of(&[3, 4]).key);
        assert_ne!(of(&[1, 2]).key, of(&[1, 2, 3]).key);
        let place = Place { slot: 0, argument: 0 };
        assert_eq!(of(&[1, 2]).value(place), Some(&[1, 2][..]));
        assert_eq!(of(&[1, 2]).value(Place { argument: 1, ..place }), None);
    }

    #[test]
    fn scalars_behind_images_and_samplers_are_found_at_their_places() {
        let shape = ImageShape {
            kind: ImageKind::D1,
            size: [8, 1, 1],
            format: ImageFormat { order: ChannelOrder::R, channel: ChannelType::Float },
        };
        let query = query(|query| {
            query.buffer(0, &(0..32), None);
            query.image(&shape);
            query.sampler(Sampler::default());
            query.scalar(&[7]);
        });
        assert_eq!(query.value(Place { slot: 0, argument: 2 }), Some(&[7][..]));
    }

    #[test]
    fn values_of_fixed_scalars_are_in_the_key() {
        let of = |value| {
            let mut query = Query::new(0, Trust::ProofOnly, true, 1);
            query.launch(BuildKey([7; 32]), "scale", &NdSize::from(16).into());
            query.scalar(value);
            query.key
        };
        assert_ne!(of(&[1, 2]), of(&[3, 4]));
    }

    #[test]
    fn every_other_difference_changes_the_key() {
        let launch = |device, trust, program, kernel, range: NdRange| {
            let mut query = Query::new(device, trust, false, 1);
            query.launch(BuildKey([program; 32]), kernel, &range);
            query.key
        };
        let size = |size: [usize; 2]| NdRange::from(NdSize::from(size));
        let (mut local, mut offset) = (size([8, 2]), size([8, 2]));
        local.set_local([4, 2].into()).unwrap();
        offset.set_offset([4, 2].into()).unwrap();
        let mut required = Query::new(0, Trust::ProofOnly, false, 1);
        required.require_one_kernel();
        required.launch(BuildKey([7; 32]), "scale", &NdSize::from(16).into());
        let buffer = |memory, bytes, dead| query(|query| query.buffer(memory, &bytes, dead)).key;
        let image = |kind, width| {
            let format = ImageFormat { order: ChannelOrder::Rgba, channel: ChannelType::Float };
            let shape = ImageShape { kind, size: [width, 1, 1], format };
            query(|query| {
                query.buffer(0, &(0..8), None);
                query.image(&shape);
            })
            .key
        };
        let keys = [
            image(ImageKind::D1, 8),
            image(ImageKind::D1, 9),
            image(ImageKind::D1Array, 8),
            query(|query| query.sampler(Sampler::default())).key,
            query(|query| query.sampler(Sampler { is_normalized: true, ..Sampler::default() })).key,
            launch(0, Trust::ProofOnly, 1, "k", size([8, 2])),
            launch(1, Trust::ProofOnly, 1, "k", size([8, 2])),
            launch(0, Trust::Caller, 1, "k", size([8, 2])),
            launch(0, Trust::ProofOnly, 2, "k", size([8, 2])),
            launch(0, Trust::ProofOnly, 1, "kk", size([8, 2])),
            launch(0, Trust::ProofOnly, 1, "k", size([8, 3])),
            launch(0, Trust::ProofOnly, 1, "k", local),
            launch(0, Trust::ProofOnly, 1, "k", offset),
            query(|_| ()).key,
            required.key,
            query(|query| query.local(8)).key,
            query(|query| query.local(16)).key,
            buffer(0, 0..8, None),
            buffer(1, 0..8, None),
            buffer(0, 0..16, None),
            buffer(0, 8..16, None),
            buffer(0, 0..8, Some(None)),
            buffer(0, 0..8, Some(Some(Internalization::Private))),
            buffer(0, 0..8, Some(Some(Internalization::Local))),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "the key {at} is not unique");
        }
    }
}
