//! From the launches of a scope to a plan, and from a fused kernel to a launch.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crate::args::{ArgumentKind, ArgumentList};
use crate::buffer::Region;
use crate::build::{FusedKernel, Kernel};
use crate::digest::Digest;
use crate::error::Result;
use crate::fusion::{self, Argument, Memory, Place, Plan, Slot};
use crate::nd_range::NdRange;
use crate::queue::command::LaunchWork;

/// The launches of a scope as they were submitted.
#[derive(Default)]
pub(super) struct Sketch(Vec<LaunchWork>);

/// What a scope was told of the memory that its launches use.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// Allocations whose contents are read later.
    pub(super) kept: HashSet<u64>,
    /// Allocations whose contents are not.
    pub(super) unwanted: HashSet<u64>,
    /// Whether all scalars are fixed at their values.
    pub(super) fix_scalars: bool,
}

impl Sketch {
    pub(super) fn add(&mut self, launch: &LaunchWork) {
        self.0.push(launch.share());
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.0.iter().map(|launch| &launch.kernel)
    }

    fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        let arguments = self.0.iter().flat_map(|launch| &launch.arguments);
        arguments.filter_map(|argument| match &argument.kind {
            ArgumentKind::Buffer(region, _) => Some(region),
            ArgumentKind::Value(_) | ArgumentKind::Local(_) => None,
        })
    }

    /// The allocations that only the launches hold: nobody can come to hold them any more.
    pub(super) fn unheld(&self) -> HashSet<u64> {
        /// The launch's own handle, and the sketch's.
        const HANDLES_OF_A_USE: usize = 2;
        let mut uses: BTreeMap<(u64, usize), (usize, &Arc<Region>)> = BTreeMap::new();
        for region in self.regions() {
            let name = (region.allocation(), Arc::as_ptr(region).addr());
            uses.entry(name).or_insert((0, region)).0 += 1;
        }
        let mut regions: BTreeMap<u64, (usize, bool)> = BTreeMap::new();
        for ((allocation, _), (count, region)) in &uses {
            let (known, is_held) = regions.entry(*allocation).or_default();
            *known += 1;
            *is_held |= Arc::strong_count(region) > HANDLES_OF_A_USE * count;
        }
        let is_unheld = |(allocation, region): (u64, &Arc<Region>)| {
            let (known, is_held) = regions[&allocation];
            !is_held && region.regions_of_allocation() == known
        };
        uses.iter()
            .map(|((allocation, _), (_, region))| (*allocation, *region))
            .filter(|&used| is_unheld(used))
            .map(|(allocation, _)| allocation)
            .collect()
    }

    /// The launches as plain data. The kernels' programs are there.
    pub(super) fn plan(&self, unheld: &HashSet<u64>, wishes: &Wishes) -> Result<Plan> {
        let mut modules: Vec<Digest> = Vec::new();
        let mut slots = Vec::new();
        let (mut memories, mut dead) = (Vec::new(), BTreeSet::new());
        for launch in &self.0 {
            let kernel = match launch.kernel.resolved() {
                Some(Ok(kernel)) => kernel,
                Some(Err(error)) => return Err(error.clone()),
                None => return Err(crate::Error::invalid("a program is not there yet")),
            };
            let program = Digest(*kernel.built.key().as_bytes());
            let known = modules.iter().position(|&known| known == program);
            let module = known.unwrap_or_else(|| {
                modules.push(program);
                modules.len() - 1
            });
            let mut arguments = Vec::new();
            for argument in &launch.arguments {
                arguments.push(match &argument.kind {
                    ArgumentKind::Buffer(region, _) => {
                        let allocation = region.allocation();
                        let known = memories.iter().position(|&known| known == allocation);
                        let number = known.unwrap_or_else(|| {
                            memories.push(allocation);
                            memories.len() - 1
                        });
                        let memory = Memory(number as u32);
                        let is_dead =
                            unheld.contains(&allocation) || wishes.unwanted.contains(&allocation);
                        if is_dead && !wishes.kept.contains(&allocation) {
                            dead.insert(memory);
                        }
                        let bytes = region.bytes();
                        Argument::Buffer(fusion::Region {
                            memory,
                            offset: bytes.start,
                            length: bytes.len(),
                        })
                    }
                    ArgumentKind::Value(bytes) => Argument::Scalar(bytes.to_vec()),
                    ArgumentKind::Local(bytes) => Argument::Local(*bytes),
                });
            }
            let kernel = launch.kernel.name().to_owned();
            let (range, constants) = (launch.range, Vec::new());
            slots.push(Slot { module, kernel, range, arguments, constants });
        }
        let (constants, version) = (BTreeSet::new(), (1, 6));
        let mut plan = Plan { modules, slots, constants, dead, version };
        if wishes.fix_scalars {
            let scalars = plan.places().filter(|(_, a)| matches!(a, Argument::Scalar(_)));
            plan.constants = scalars.map(|(place, _)| place).collect();
        }
        Ok(plan)
    }

    /// The launch of the kernel that does what these do.
    pub(super) fn fused(&self, fused: &FusedKernel) -> LaunchWork {
        let argument = |place: &Place| self.0[place.slot].arguments[place.argument].share();
        LaunchWork {
            kernel: fused.kernel.clone(),
            range: fused.range,
            arguments: fused.parameters.iter().map(argument).collect(),
        }
    }

    /// The allocations that a fused kernel does without.
    pub(super) fn allocations(&self, memories: &[Memory]) -> HashSet<u64> {
        let mut order = Vec::new();
        for region in self.regions() {
            if !order.contains(&region.allocation()) {
                order.push(region.allocation());
            }
        }
        memories.iter().filter_map(|memory| order.get(memory.0 as usize).copied()).collect()
    }
}

impl LaunchWork {
    /// The same launch, once more.
    fn share(&self) -> Self {
        let Self { kernel, range, arguments } = self;
        let arguments: ArgumentList = arguments.iter().map(|argument| argument.share()).collect();
        let range: NdRange = *range;
        Self { kernel: kernel.clone(), range, arguments }
    }
}
