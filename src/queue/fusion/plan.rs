//! Conversion of a scope's launches to a cache query and to a fusion plan, and of a fused kernel back
//! to a launch.

use std::collections::BTreeSet;
use std::sync::Arc;

use kiln_compiler::fusion::{
    self, Argument, Internalization, Memory, Place, Plan, Slot, Target, Trust,
};
use smallvec::SmallVec;

use crate::args::ArgumentKind;
use crate::args::region::Region;
use crate::build_graph::{FusedKernel, Kernel, Query};
use crate::device::{Device, DeviceInfo, Workarounds, spirv_versions};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::queue::launch_work::LaunchWork;

/// Settings of a scope that concern its launches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FusionOptions {
    /// Settings of allocations, sorted by the allocation's number.
    memories: SmallVec<[(u64, MemoryOptions); 8]>,
    /// Whether all scalars are fixed at their values.
    pub(super) fix_scalars: bool,
    /// Whether the launches must run as one kernel.
    pub(super) is_required: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MemoryOptions {
    /// Whether the contents are kept, because they are read later.
    is_kept: bool,
    /// Form of the memory in the fused kernel, if the contents are not read later.
    form: Option<Internalization>,
}

impl FusionOptions {
    pub(super) fn keep(&mut self, allocation: u64) {
        self.get_mut(allocation).is_kept = true;
    }

    pub(super) fn internalize(&mut self, allocation: u64, into: Internalization) {
        self.get_mut(allocation).form = Some(into);
    }

    /// Returns the settings of an allocation, and inserts default ones if there are none.
    fn get_mut(&mut self, allocation: u64) -> &mut MemoryOptions {
        let known = self.memories.binary_search_by_key(&allocation, |(number, _)| *number);
        let at = known.unwrap_or_else(|at| {
            self.memories.insert(at, (allocation, MemoryOptions::default()));
            at
        });
        &mut self.memories[at].1
    }

    fn get(&self, allocation: u64) -> MemoryOptions {
        let known = self.memories.binary_search_by_key(&allocation, |(number, _)| *number);
        known.map_or_else(|_| MemoryOptions::default(), |at| self.memories[at].1)
    }
}

/// Summary of the memory that the launches use.
pub(super) struct MemoryUsage {
    /// Distinct allocations, in the order in which the launches first name them.
    memories: SmallVec<[UsedMemory; 16]>,
    /// Index into `memories` for each buffer argument, in order.
    numbers: SmallVec<[usize; 32]>,
    fix_scalars: bool,
    is_required: bool,
}

/// Allocation that the launches use.
struct UsedMemory {
    allocation: u64,
    /// Number of the allocation's regions that have handles outside the launches.
    held: usize,
    /// Set if the contents are not read later; the inner option is the requested form.
    dead: Option<Option<Internalization>>,
}

impl UsedMemory {
    /// Returns whether only the launches hold the memory. No other handle can appear any more.
    fn is_unheld(&self) -> bool {
        self.held == 0
    }
}

impl MemoryUsage {
    /// Summarizes the memory of launches that are held by the DAG alone.
    pub(super) fn of(launches: &[&LaunchWork], options: &FusionOptions) -> Self {
        let mut usage = Self::counted(launches);
        for used in &mut usage.memories {
            let options = options.get(used.allocation);
            let is_dead = !options.is_kept && (used.is_unheld() || options.form.is_some());
            used.dead = is_dead.then_some(options.form);
        }
        let FusionOptions { fix_scalars, is_required, .. } = *options;
        Self { fix_scalars, is_required, ..usage }
    }

    /// Summarizes the memory of recorded launches. `is_dead` returns whether the contents of an allocation are not
    /// read after them.
    pub(super) fn of_recorded(launches: &[&LaunchWork], is_dead: impl Fn(u64) -> bool) -> Self {
        let mut usage = Self::counted(launches);
        for used in &mut usage.memories {
            used.dead = is_dead(used.allocation).then_some(None);
        }
        usage
    }

    /// Numbers the memory of the launches, and counts the handles that others have.
    fn counted(launches: &[&LaunchWork]) -> Self {
        let (mut memories, mut numbers) = (SmallVec::<[UsedMemory; 16]>::new(), SmallVec::new());
        let mut handles: SmallVec<[Handles<'_>; 16]> = SmallVec::new();
        for region in regions(launches) {
            // Usually a recent argument names the same region.
            let known = handles.iter().rposition(|known| Arc::ptr_eq(known.region, region));
            let known = known.unwrap_or_else(|| {
                let allocation = region.allocation();
                let known = memories.iter().rposition(|known| known.allocation == allocation);
                let memory = known.unwrap_or_else(|| {
                    let held = region.regions_of_allocation();
                    memories.push(UsedMemory { allocation, held, dead: None });
                    memories.len() - 1
                });
                handles.push(Handles { region, memory, count: 0 });
                handles.len() - 1
            });
            handles[known].count += 1;
            numbers.push(handles[known].memory);
        }
        for handles in handles.iter().filter(|handles| handles.are_the_only_ones()) {
            memories[handles.memory].held -= 1;
        }
        Self { memories, numbers, fix_scalars: false, is_required: false }
    }

    /// Returns the key under which the fusion of the launches is cached; `None` if a program is not
    /// built yet.
    pub(super) fn query(
        &self,
        launches: &[&LaunchWork],
        device: usize,
        trust: Trust,
    ) -> Option<Query> {
        let mut query = Query::new(device, trust, self.fix_scalars, launches.len());
        if self.is_required {
            query.require_one_kernel();
        }
        let mut numbers = self.numbers.iter();
        for launch in launches {
            let kernel = launch.kernel.resolved()?.as_ref().ok()?;
            query.launch(kernel.built.key(), launch.kernel.name(), &launch.range);
            for argument in &launch.arguments {
                match &argument.kind {
                    ArgumentKind::Memory(region, _) => {
                        let &number = numbers.next()?;
                        query.buffer(number, region.bytes(), self.memories[number].dead);
                        if let Some(image) = region.image() {
                            query.image(&image.shape);
                        }
                    }
                    ArgumentKind::Value(bytes) => query.scalar(bytes),
                    ArgumentKind::Local(bytes) => query.local(*bytes),
                    ArgumentKind::Sampler(sampler) => query.sampler(*sampler),
                }
            }
        }
        Some(query)
    }

    /// Converts the launches to plain data. Fails if a program is not built.
    pub(super) fn plan(&self, launches: &[&LaunchWork], device: &Device) -> Result<Plan> {
        let mut modules: Vec<Digest> = Vec::new();
        let mut slots = Vec::new();
        let mut numbers = self.numbers.iter();
        for launch in launches {
            let kernel = match launch.kernel.resolved() {
                Some(Ok(kernel)) => kernel,
                Some(Err(error)) => return Err(error.clone()),
                None => return Err(Error::invalid("the program of a launch is not built yet")),
            };
            if regions(&[launch]).any(|region| region.lead() > 0) {
                return Err(Error::unsupported(format!(
                    "a slice that `{}` takes does not begin at a multiple of the device's alignment, and Kiln does \
                     not fuse such launches",
                    launch.kernel.name()
                )));
            }
            let program = Digest(*kernel.built.key().as_bytes());
            let known = modules.iter().position(|&known| known == program);
            let module = known.unwrap_or_else(|| {
                modules.push(program);
                modules.len() - 1
            });
            let argument = |kind: &ArgumentKind| match kind {
                ArgumentKind::Memory(given, _) => {
                    let region = fusion::Region {
                        memory: numbers.next().map_or(Memory(u32::MAX), |&n| Memory(n as u32)),
                        offset: given.bytes().start,
                        length: given.bytes().len(),
                    };
                    match given.image() {
                        Some(image) => {
                            Argument::Image(fusion::Image { region, shape: image.shape })
                        }
                        None => Argument::Buffer(region),
                    }
                }
                ArgumentKind::Sampler(sampler) => Argument::Sampler(*sampler),
                ArgumentKind::Value(bytes) => Argument::Scalar(bytes.to_vec()),
                ArgumentKind::Local(bytes) => Argument::Local(*bytes),
            };
            let arguments = launch.arguments.iter().map(|given| &given.kind).map(argument);
            slots.push(Slot {
                module,
                kernel: launch.kernel.name().to_owned(),
                range: launch.range,
                arguments: arguments.collect(),
                constants: Vec::new(),
            });
        }
        let memories = (0..).map(Memory).zip(&self.memories);
        let dead = memories.filter_map(|(memory, used)| Some((memory, used.dead?)));
        let mut plan = Plan {
            modules: modules.iter().map(|module| *module.as_bytes()).collect(),
            slots,
            constants: BTreeSet::new(),
            dead: dead.clone().map(|(memory, _)| memory).collect(),
            forms: dead.filter_map(|(memory, form)| Some((memory, form?))).collect(),
            target: target(device),
        };
        if self.fix_scalars {
            let scalars = plan.places().filter(|(_, a)| matches!(a, Argument::Scalar(_)));
            plan.constants = scalars.map(|(place, _)| place).collect();
        }
        Ok(plan)
    }

    /// Returns the allocations of these memories that still have handles outside the launches.
    pub(super) fn held(&self, memories: &[Memory]) -> impl Iterator<Item = u64> {
        let used = memories.iter().filter_map(|memory| self.memories.get(memory.0 as usize));
        used.filter(|used| !used.is_unheld()).map(|used| used.allocation)
    }

    /// Returns the allocations of these memories.
    pub(super) fn all(&self, memories: &[Memory]) -> impl Iterator<Item = u64> {
        let used = memories.iter().filter_map(|memory| self.memories.get(memory.0 as usize));
        used.map(|used| used.allocation)
    }

    /// Returns the allocations of all memories, in order.
    pub(super) fn allocations(&self) -> SmallVec<[u64; 16]> {
        self.memories.iter().map(|used| used.allocation).collect()
    }
}

/// Returns the regions among the launches' arguments, in order.
pub(super) fn regions<'a>(launches: &[&'a LaunchWork]) -> impl Iterator<Item = &'a Arc<Region>> {
    launches.iter().flat_map(|launch| launch.regions())
}

/// Handles of one region that the launches hold.
struct Handles<'a> {
    region: &'a Arc<Region>,
    /// Index of its allocation in [`MemoryUsage::memories`].
    memory: usize,
    count: usize,
}

impl Handles<'_> {
    /// Returns whether the region has no other handles.
    fn are_the_only_ones(&self) -> bool {
        Arc::strong_count(self.region) == self.count
    }
}

/// Returns a launch of the fused kernel in place of these launches.
///
/// It states no accesses: a parameter stands for arguments of several launches, some of which may only read the memory
/// while others write it.
pub(crate) fn fused(launches: &[&LaunchWork], fused: &FusedKernel) -> LaunchWork {
    let argument = |place: &Place| {
        let mut given = launches[place.slot].arguments[place.argument].clone();
        if let ArgumentKind::Memory(_, stated) = &mut given.kind {
            *stated = None;
        }
        given
    };
    let arguments = fused.parameters.iter().map(argument).collect();
    LaunchWork::new(fused.kernel.clone(), fused.range, arguments)
}

/// Checks that the launch of a fused kernel is proven, if one of the launches that it replaces is checked.
pub(crate) fn prove(
    launches: &[&LaunchWork],
    launch: &LaunchWork,
    kernel: &FusedKernel,
) -> Result<()> {
    let mut members = kernel.slots.iter().chain(&kernel.repeated);
    match members.any(|&slot| launches[slot].is_checked()) {
        true => launch.prove(),
        false => Ok(()),
    }
}

/// Copies of a scope's launches. They hold handles of the buffers.
pub(crate) struct LaunchSnapshot(Vec<LaunchWork>);

impl LaunchSnapshot {
    pub(crate) fn of(launches: &[&LaunchWork]) -> Self {
        Self(launches.iter().map(|&launch| launch.clone()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn launches(&self) -> Vec<&LaunchWork> {
        self.0.iter().collect()
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.0.iter().map(|launch| &launch.kernel)
    }

    /// Returns the error of the first launch that cannot run, because its program is not built or its kernel cannot
    /// be checked. Waits for both.
    pub(super) async fn failure(&self) -> Option<Error> {
        for launch in &self.0 {
            if let Err(error) = launch.kernel.fitness().await {
                return Some(error);
            }
        }
        None
    }
}

/// Returns the device properties that the compiler needs.
fn target(device: &DeviceInfo) -> Target {
    let Workarounds { separate_functions, order_own_accesses, widen_vectors, .. } =
        Workarounds::of(device);
    Target {
        // The fallback is not used: a device that lists no version is given no SPIR-V.
        version: spirv_versions(&device.il_version).max().unwrap_or((1, 6)),
        local_memory: usize::try_from(device.limits.local_memory).unwrap_or(usize::MAX),
        separate_functions,
        order_own_accesses,
        widen_vectors,
    }
}
