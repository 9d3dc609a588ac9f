//! Input of fusion: launches, described by plain data. Plans of the same work are equal, whatever the buffers
//! are called.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kiln_spirv::{Error, Result};

use crate::{ImageShape, NdRange, Sampler};

/// Launches to run as one kernel, in the order in which they were submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Modules that contain the slots' kernels, each listed once. They import nothing.
    pub modules: Vec<[u8; 32]>,
    /// Launches, in order.
    pub slots: Vec<Slot>,
    /// Scalars to compile into the fused kernel as constants. The compiler adds those that addresses or the
    /// bounds of loops are calculated from. Launches that calculate estimates get no constants if
    /// [`Target::separate_functions`] is set.
    pub constants: BTreeSet<Place>,
    /// Memories whose contents are not read after the launches.
    pub dead: BTreeSet<Memory>,
    /// Requested forms of memories whose form the compiler does not choose.
    pub forms: BTreeMap<Memory, Internalization>,
    /// Device that the fused kernel is for.
    pub target: Target,
}

/// Properties of a device and its driver that fusion depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Latest version of SPIR-V that the device accepts, major and minor.
    pub version: (u8, u8),
    /// Local memory of a work-group, in bytes. The kernels' own local memory is a part of it.
    pub local_memory: usize,
    /// Whether launches stay functions of their own in a kernel with barriers, and where a compiler would find
    /// other values (`fusion::contraction`) for what they calculate.
    ///
    /// After a barrier, such a compiler may use for one launch a value that it calculated before the barrier
    /// for another. Intel's runtime for CPUs (2026.22) makes work-items the lanes of vectors. A negated number
    /// that is calculated before a barrier and used after it then has, in all lanes of a work-group, the value
    /// of the last lanes.
    pub separate_functions: bool,
    /// Whether barriers order a work-item's own memory accesses between launches, for a compiler that may
    /// reorder them.
    pub order_own_accesses: bool,
    /// Whether functions get vectors of three components as vectors of four, for a driver that passes the former
    /// wrongly.
    pub widen_vectors: bool,
}

/// Storage that takes the place of a buffer in a fused kernel.
///
/// # Examples
///
/// ```
/// # use kiln_compiler as kiln;
/// use kiln::fusion::Internalization;
///
/// // Each work-group reads what it wrote itself: `fusion.internalize(&squares, kept)`.
/// let kept = Internalization::Local;
/// # assert_ne!(kept, Internalization::Private);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Internalization {
    /// Variables of the work-items: each keeps its part of the contents for itself.
    Private,
    /// Local memory: each work-group keeps its part of the contents there.
    Local,
}

impl fmt::Display for Internalization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Private => "private",
            Self::Local => "local",
        })
    }
}

/// Launch of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Index into [`Plan::modules`].
    pub module: usize,
    /// Name of the kernel.
    pub kernel: String,
    /// Range of the launch.
    pub range: NdRange,
    /// Arguments, in the order of the parameters.
    pub arguments: Vec<Argument>,
    /// Specialization constants that the launch's program was built with, as ids and bytes. Constants that are
    /// not listed have their defaults.
    pub constants: Vec<(u32, Vec<u8>)>,
}

impl Slot {
    /// Returns whether one of the arguments is an image or a sampler.
    #[must_use]
    pub fn takes_objects(&self) -> bool {
        let is_object =
            |argument: &Argument| matches!(argument, Argument::Image(_) | Argument::Sampler(_));
        self.arguments.iter().any(is_object)
    }

    /// Returns whether another launch is equal up to the values of its scalars and the bytes of its buffers: it
    /// runs the same kernel over the same nd-range, with arguments of the same kinds and sizes.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let is_same_kind = |(one, other): (&Argument, &Argument)| match (one, other) {
            (Argument::Buffer(_), Argument::Buffer(_)) => true,
            (Argument::Scalar(one), Argument::Scalar(other)) => one.len() == other.len(),
            _ => one == other,
        };
        self.module == other.module
            && self.kernel == other.kernel
            && self.constants == other.constants
            && self.range == other.range
            && self.arguments.len() == other.arguments.len()
            && self.arguments.iter().zip(&other.arguments).all(is_same_kind)
    }
}

/// Argument of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Argument {
    /// Bytes of a buffer.
    Buffer(Region),
    /// Value, as the bytes that the kernel receives.
    Scalar(Vec<u8>),
    /// Local memory, by its size in bytes.
    Local(usize),
    /// Image.
    Image(Image),
    /// Sampler.
    Sampler(Sampler),
}

impl Argument {
    /// Returns the bytes of a buffer or an image in its memory.
    #[must_use]
    pub fn region(&self) -> Option<Region> {
        match self {
            Self::Buffer(region) | Self::Image(Image { region, .. }) => Some(*region),
            Self::Scalar(_) | Self::Local(_) | Self::Sampler(_) => None,
        }
    }

    /// Returns the memory of a buffer or an image.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        self.region().map(|region| region.memory)
    }
}

/// Image with all of its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Bytes of the image in its memory, without padding between rows.
    pub region: Region,
    /// Sizes and format.
    pub shape: ImageShape,
}

/// Number of bytes of a pixel in the analysis of accesses, whatever its format: four channels of 32 bits, as
/// kernels read and write it.
pub(crate) const PIXEL_BYTES: usize = 16;

/// Number of pixels between two rows of an image, and number of rows between two layers, in the analysis of
/// accesses. As no image and hardly any launch has rows as long as this, different coordinates have different
/// addresses, also those outside of the image.
pub(crate) const PIXEL_PITCH: usize = 1 << 20;

impl Image {
    /// Returns the region of the pixels in the analysis of accesses, which counts pixels as
    /// [`PIXEL_BYTES`] bytes and places them in rows of [`PIXEL_PITCH`] pixels.
    #[must_use]
    pub fn pixels(&self) -> Region {
        let [width, height, depth] = self.shape.size;
        let last = [width, height, depth].map(|size| size.saturating_sub(1) as u128);
        let pitch = PIXEL_PITCH as u128;
        let pixels = (last[2] * pitch + last[1]) * pitch + last[0] + 1;
        let length = usize::try_from(pixels * PIXEL_BYTES as u128).unwrap_or(usize::MAX);
        Region { memory: self.region.memory, offset: 0, length }
    }
}

/// A buffer or a slice of one. Regions of different memories do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Memory that the bytes are in.
    pub memory: Memory,
    /// Start within the memory, in bytes.
    pub offset: usize,
    /// Length, in bytes.
    pub length: usize,
}

impl Region {
    /// Returns whether two regions share bytes.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.memory == other.memory
            && self.offset < other.offset.saturating_add(other.length)
            && other.offset < self.offset.saturating_add(self.length)
    }
}

/// Identifier of device memory: its number in the order in which a plan first names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory(pub u32);

/// Position of an argument: its slot and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Position of the launch.
    pub slot: usize,
    /// Position of its argument.
    pub argument: usize,
}

impl Plan {
    /// Returns all arguments with their places.
    pub fn places(&self) -> impl Iterator<Item = (Place, &Argument)> {
        let slots = self.slots.iter().enumerate();
        slots.flat_map(|(slot, launch)| {
            let arguments = launch.arguments.iter().enumerate();
            arguments.map(move |(argument, value)| (Place { slot, argument }, value))
        })
    }

    /// Returns the arguments that are regions of a memory, with their places. The region of an image is that of
    /// its [pixels](Image::pixels).
    pub fn regions(&self, memory: Memory) -> impl Iterator<Item = (Place, Region)> {
        self.places().filter_map(move |(place, argument)| match argument {
            Argument::Buffer(region) if region.memory == memory => Some((place, *region)),
            Argument::Image(image) if image.region.memory == memory => {
                Some((place, image.pixels()))
            }
            _ => None,
        })
    }

    /// Returns all memories, in order.
    #[must_use]
    pub fn memories(&self) -> BTreeSet<Memory> {
        self.places().filter_map(|(_, argument)| argument.memory()).collect()
    }

    /// Returns the plan without the values of scalars, except those in `constants`, and with `constants` as its
    /// own. Of every other scalar, only the set of `equal` that it belongs to remains. A program fused from the
    /// plan depends on nothing else; the other scalars are arguments of the fused kernel.
    #[must_use]
    pub fn without_values(
        &self,
        constants: &BTreeSet<Place>,
        equal: &BTreeSet<BTreeSet<Place>>,
    ) -> Self {
        let mut plan = self.clone();
        for (slot, launch) in plan.slots.iter_mut().enumerate() {
            for (argument, value) in launch.arguments.iter_mut().enumerate() {
                let place = Place { slot, argument };
                if let Argument::Scalar(bytes) = value
                    && !constants.contains(&place)
                {
                    // The number of the scalar's set replaces the value; 0 stands for a scalar in no set.
                    let group = equal.iter().position(|equal| equal.contains(&place));
                    let number = group.map_or(0, |group| group as u64 + 1).to_le_bytes();
                    bytes.fill(0);
                    bytes.iter_mut().zip(number).for_each(|(byte, number)| *byte = number);
                }
            }
        }
        plan.constants.clone_from(constants);
        plan
    }

    /// Checks that the plan has launches and fits the number of modules.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](kiln_spirv::ErrorKind::InvalidArgument) for a plan that no fusion scope makes.
    pub fn check(&self, modules: usize) -> Result<()> {
        if self.slots.is_empty() {
            return Err(Error::invalid("there are no launches to fuse"));
        }
        if self.modules.len() != modules {
            return Err(Error::invalid(format!(
                "the plan expects {} modules, but {modules} were given",
                self.modules.len()
            )));
        }
        match self.slots.iter().find(|slot| slot.module >= modules) {
            None => Ok(()),
            Some(slot) => Err(Error::invalid(format!(
                "the launch of `{}` uses module {}, but the plan has {modules} modules",
                slot.kernel, slot.module
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NdSize;

    fn plan(factor: f32, first: u32) -> Plan {
        let region = |memory| Argument::Buffer(Region { memory, offset: 0, length: 64 });
        let slot = |from, to| Slot {
            module: 0,
            kernel: "scale".into(),
            range: NdRange::from(NdSize::from(16)),
            arguments: vec![
                region(from),
                region(to),
                Argument::Scalar(factor.to_le_bytes().into()),
            ],
            constants: Vec::new(),
        };
        let memory = |n| Memory(first + n);
        Plan {
            modules: vec![[7; 32]],
            slots: vec![slot(memory(0), memory(1)), slot(memory(1), memory(2))],
            constants: BTreeSet::new(),
            dead: BTreeSet::from([memory(1)]),
            forms: BTreeMap::new(),
            target: Target {
                version: (1, 2),
                local_memory: 0,
                separate_functions: false,
                order_own_accesses: false,
                widen_vectors: false,
            },
        }
    }

    #[test]
    fn values_are_compared_only_where_they_are_constants() {
        let constants = BTreeSet::from([Place { slot: 1, argument: 2 }]);
        let none = BTreeSet::new();
        let without =
            |factor, constants| plan(factor, 0).without_values(constants, &BTreeSet::new());
        assert_ne!(plan(1.0, 0), plan(2.0, 0));
        assert_eq!(without(1.0, &none), without(2.0, &none));
        assert_ne!(without(1.0, &constants), without(2.0, &constants));
    }

    #[test]
    fn slices_overlap_where_they_have_bytes_in_common() {
        let region = |memory, offset, length| Region { memory: Memory(memory), offset, length };
        assert!(region(0, 0, 8).overlaps(&region(0, 4, 8)));
        assert!(region(0, 4, 1).overlaps(&region(0, 0, 8)));
        assert!(!region(0, 0, 8).overlaps(&region(0, 8, 8)));
        assert!(!region(0, 0, 8).overlaps(&region(1, 0, 8)));
    }

    #[test]
    fn plans_that_do_not_match_their_modules_are_refused() {
        assert!(plan(1.0, 0).check(1).is_ok());
        assert!(plan(1.0, 0).check(2).unwrap_err().to_string().contains("1 modules"));
        let empty = Plan { slots: Vec::new(), ..plan(1.0, 0) };
        assert!(empty.check(1).unwrap_err().to_string().contains("no launches"));
        let mut other = plan(1.0, 0);
        other.slots[1].module = 1;
        assert!(other.check(1).unwrap_err().to_string().contains("`scale` uses module 1"));
    }

    #[test]
    fn memories_are_found_by_their_regions() {
        let plan = plan(1.0, 0);
        assert_eq!(plan.memories(), BTreeSet::from([Memory(0), Memory(1), Memory(2)]));
        let places: Vec<_> = plan.regions(Memory(1)).map(|(place, _)| place).collect();
        assert_eq!(places, [Place { slot: 0, argument: 1 }, Place { slot: 1, argument: 0 }]);
    }
}
