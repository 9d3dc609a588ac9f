//! What is to be fused: plain data, the same for the same work whatever the buffers are called.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::compiler::nd_range::NdRange;
use crate::digest::Digest;
use crate::error::{Error, Result};

/// Launches to run as one kernel, in the order in which they were submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    /// The modules that the slots' kernels are in, each once. They import nothing.
    pub(crate) modules: Vec<Digest>,
    pub(crate) slots: Vec<Slot>,
    /// Scalars to be fixed at their values. Those on which a proof relies are fixed anyway.
    pub(crate) constants: BTreeSet<Place>,
    /// The memories whose contents nobody reads afterwards.
    pub(crate) dead: BTreeSet<Memory>,
    /// The forms that were asked for, of memories whose form is not left to the compiler.
    pub(crate) forms: BTreeMap<Memory, Internalization>,
    /// The device that the kernel is for.
    pub(crate) target: Target,
}

/// What the compiler has to know of a device and its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    /// The latest version of SPIR-V that the device takes, major and minor.
    pub(crate) version: (u8, u8),
    /// Local memory of a work-group in bytes, of which the kernels themselves may take a part.
    pub(crate) local_memory: usize,
    /// Whether launches stay functions of their own in a kernel with barriers, and where a compiler would
    /// find [other values](super::contraction) for what they calculate. In a kernel with barriers it may
    /// use after one what was calculated before it, for another launch: Intel's runtime for CPUs (2026.22)
    /// makes work-items the lanes of vectors, and a negated number that a barrier lies between is then,
    /// for all lanes of a work-group, that of the last ones.
    pub(crate) separate_functions: bool,
    /// Whether barriers order a work-item's own accesses of memory, from launch to launch, for a compiler
    /// that may reorder them.
    pub(crate) order_own_accesses: bool,
}

/// What becomes of a buffer that a fused kernel does without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Internalization {
    /// Each work-item keeps its part of the contents for itself.
    Private,
    /// Each work-group keeps its part of the contents in local memory.
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

/// One launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    /// An index of [`Plan::modules`].
    pub(crate) module: usize,
    pub(crate) kernel: String,
    pub(crate) range: NdRange,
    pub(crate) arguments: Vec<Argument>,
    /// The specialization constants that its program was built with, by their ids, as bytes. The
    /// others have their defaults.
    pub(crate) constants: Vec<(u32, Vec<u8>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Argument {
    Buffer(Region),
    /// Passed by value, with its bytes as the kernel gets them.
    Scalar(Vec<u8>),
    /// Local memory, and how many bytes of it.
    Local(usize),
}

/// A buffer or a slice of one. Regions of different memories do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub(crate) memory: Memory,
    /// In bytes.
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl Region {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.memory == other.memory
            && self.offset < other.offset.saturating_add(other.length)
            && other.offset < self.offset.saturating_add(self.length)
    }
}

/// Device memory, numbered in the order in which a plan first names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Memory(pub(crate) u32);

/// An argument of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) argument: usize,
}

impl Plan {
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, &Argument)> {
        let slots = self.slots.iter().enumerate();
        slots.flat_map(|(slot, launch)| {
            let arguments = launch.arguments.iter().enumerate();
            arguments.map(move |(argument, value)| (Place { slot, argument }, value))
        })
    }

    /// The slot's arguments that are regions of a memory.
    pub(crate) fn regions(&self, memory: Memory) -> impl Iterator<Item = (Place, Region)> {
        self.places().filter_map(move |(place, argument)| match argument {
            Argument::Buffer(region) if region.memory == memory => Some((place, *region)),
            _ => None,
        })
    }

    /// All memories, in order.
    pub(crate) fn memories(&self) -> BTreeSet<Memory> {
        let arguments = self.places().map(|(_, argument)| argument);
        arguments
            .filter_map(|argument| match argument {
                Argument::Buffer(region) => Some(region.memory),
                _ => None,
            })
            .collect()
    }

    /// The same plan with only those scalars' values that `constants` name, and with which ones are the
    /// same of those that `equal` does: what a program fused from it depends on. The others are
    /// arguments of the fused kernel.
    pub(crate) fn without_values(
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
                    // The number of its group stands for the value.
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

    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a plan that no scope makes.
    pub(crate) fn check(&self, modules: usize) -> Result<()> {
        if self.slots.is_empty() {
            return Err(Error::invalid("there are no launches to fuse"));
        }
        if self.modules.len() != modules {
            return Err(Error::invalid(format!(
                "the plan is of {} modules, but {modules} were given",
                self.modules.len()
            )));
        }
        match self.slots.iter().find(|slot| slot.module >= modules) {
            None => Ok(()),
            Some(slot) => Err(Error::invalid(format!(
                "the launch of `{}` is of module {}, but the plan has {modules}",
                slot.kernel, slot.module
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::nd_range::NdSize;

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
            modules: vec![Digest([7; 32])],
            slots: vec![slot(memory(0), memory(1)), slot(memory(1), memory(2))],
            constants: BTreeSet::new(),
            dead: BTreeSet::from([memory(1)]),
            forms: BTreeMap::new(),
            target: Target {
                version: (1, 2),
                local_memory: 0,
                separate_functions: false,
                order_own_accesses: false,
            },
        }
    }

    #[test]
    fn values_count_only_where_they_are_constants() {
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
    fn plans_that_fit_no_modules_are_refused() {
        assert!(plan(1.0, 0).check(1).is_ok());
        assert!(plan(1.0, 0).check(2).unwrap_err().to_string().contains("1 modules"));
        let empty = Plan { slots: Vec::new(), ..plan(1.0, 0) };
        assert!(empty.check(1).unwrap_err().to_string().contains("no launches"));
        let mut other = plan(1.0, 0);
        other.slots[1].module = 1;
        assert!(other.check(1).unwrap_err().to_string().contains("`scale` is of module 1"));
    }

    #[test]
    fn memories_are_found_by_their_regions() {
        let plan = plan(1.0, 0);
        assert_eq!(plan.memories(), BTreeSet::from([Memory(0), Memory(1), Memory(2)]));
        let places: Vec<_> = plan.regions(Memory(1)).map(|(place, _)| place).collect();
        assert_eq!(places, [Place { slot: 0, argument: 1 }, Place { slot: 1, argument: 0 }]);
    }
}
