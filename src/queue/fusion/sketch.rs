//! From the launches of a scope to a plan, and from a fused kernel to a launch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::args::{ArgumentKind, ArgumentList};
use crate::buffer::Region;
use crate::build::{FusedKernel, Kernel};
use crate::device::{Device, spirv_versions};
use crate::digest::Digest;
use crate::error::Result;
use crate::fusion::{self, Argument, Internalization, Memory, Place, Plan, Slot};
use crate::nd_range::NdRange;
use crate::queue::command::LaunchWork;

/// The launches of a scope as they were submitted.
#[derive(Default)]
pub(super) struct Sketch(Vec<LaunchWork>);

/// Numbers of allocations. A scope has few.
pub(crate) type Allocations = BTreeSet<u64>;

/// What a scope was told of the memory that its launches use.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// Allocations whose contents are read later.
    pub(super) kept: Allocations,
    /// Allocations whose contents are not.
    pub(super) unwanted: Allocations,
    /// What allocations are to become if the fused kernel does without them.
    pub(super) forms: BTreeMap<u64, Internalization>,
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
    pub(super) fn unheld(&self) -> Allocations {
        /// The launch's own handle, and the sketch's.
        const HANDLES_OF_A_USE: usize = 2;
        let mut uses: SmallVec<[&Arc<Region>; 16]> = self.regions().collect();
        uses.sort_unstable_by_key(|region| (region.allocation(), Arc::as_ptr(region).addr()));
        let same_allocation = |a: &&Arc<Region>, b: &&Arc<Region>| a.allocation() == b.allocation();
        let of_allocations = uses.chunk_by(same_allocation);
        let unheld = of_allocations.filter(|uses| {
            let mut regions = 0;
            let all = uses.chunk_by(|a, b| Arc::ptr_eq(a, b)).all(|uses| {
                regions += 1;
                Arc::strong_count(uses[0]) == HANDLES_OF_A_USE * uses.len()
            });
            all && uses[0].regions_of_allocation() == regions
        });
        unheld.map(|uses| uses[0].allocation()).collect()
    }

    /// The launches as plain data. The kernels' programs are there.
    pub(super) fn plan(
        &self,
        unheld: &Allocations,
        wishes: &Wishes,
        device: &Device,
    ) -> Result<Plan> {
        let local_limit = usize::try_from(device.limits.local_memory).unwrap_or(usize::MAX);
        // One that lists none gets no SPIR-V.
        let version = spirv_versions(&device.il_version).max().unwrap_or((1, 6));
        let mut modules: Vec<Digest> = Vec::new();
        let mut slots = Vec::new();
        let (mut memories, mut dead) = (Vec::new(), BTreeSet::new());
        let mut forms = BTreeMap::new();
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
                            let form = wishes.forms.get(&allocation);
                            form.map(|&form| forms.insert(memory, form));
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
        let constants = BTreeSet::new();
        let mut plan = Plan { modules, slots, constants, dead, version, forms, local_limit };
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
    pub(super) fn allocations(&self, memories: &[Memory]) -> Allocations {
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
