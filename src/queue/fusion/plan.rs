//! From the launches of a scope to what is looked up and to a plan, and from a fused kernel back to
//! a launch.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::args::ArgumentKind;
use crate::args::buffer::Region;
use crate::build_graph::{FusedKernel, Kernel, Query};
use crate::compiler::fusion::{
    self, Argument, Internalization, Memory, Place, Plan, Slot, Target, Trust,
};
use crate::device::{Device, DeviceInfo, Workarounds, spirv_versions};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::queue::command::LaunchWork;

/// What a scope was told of its launches.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wishes {
    /// With the numbers of allocations.
    memories: SmallVec<[(u64, Wish); 8]>,
    /// Whether all scalars are fixed at their values.
    pub(super) fix_scalars: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Wish {
    /// The contents are read later.
    is_kept: bool,
    /// They are not, and this is what becomes of the memory if the fused kernel does without.
    form: Option<Internalization>,
}

impl Wishes {
    pub(super) fn keep(&mut self, allocation: u64) {
        self.of(allocation).is_kept = true;
    }

    pub(super) fn internalize(&mut self, allocation: u64, into: Internalization) {
        self.of(allocation).form = Some(into);
    }

    fn of(&mut self, allocation: u64) -> &mut Wish {
        let known = self.memories.binary_search_by_key(&allocation, |(of, _)| *of);
        let at = known.unwrap_or_else(|at| {
            self.memories.insert(at, (allocation, Wish::default()));
            at
        });
        &mut self.memories[at].1
    }

    fn get(&self, allocation: u64) -> Wish {
        let known = self.memories.binary_search_by_key(&allocation, |(of, _)| *of);
        known.map_or_else(|_| Wish::default(), |at| self.memories[at].1)
    }
}

/// What is to be known of the memory that launches use.
pub(super) struct Outline {
    /// Each once, in the order in which the launches first name it.
    memories: SmallVec<[Used; 16]>,
    /// That of each buffer among the arguments, in order.
    numbers: SmallVec<[usize; 32]>,
    fix_scalars: bool,
}

struct Used {
    allocation: u64,
    /// How many of its regions others hold than the launches.
    held: usize,
    /// Its contents are not read later, and what it is to become, if that was said.
    dead: Option<Option<Internalization>>,
}

impl Used {
    /// Only the launches hold it: nobody can come to hold it any more.
    fn is_unheld(&self) -> bool {
        self.held == 0
    }
}

impl Outline {
    /// Of launches that nobody but the DAG holds.
    pub(super) fn of(launches: &[&LaunchWork], wishes: &Wishes) -> Self {
        let (mut memories, mut numbers) = (SmallVec::<[Used; 16]>::new(), SmallVec::new());
        let mut handles: SmallVec<[Handles<'_>; 16]> = SmallVec::new();
        for region in regions(launches) {
            // Most often it was named a moment ago.
            let known = handles.iter().rposition(|known| Arc::ptr_eq(known.region, region));
            let known = known.unwrap_or_else(|| {
                let allocation = region.allocation();
                let known = memories.iter().rposition(|known| known.allocation == allocation);
                let memory = known.unwrap_or_else(|| {
                    let held = region.regions_of_allocation();
                    memories.push(Used { allocation, held, dead: None });
                    memories.len() - 1
                });
                handles.push(Handles { region, memory, count: 0 });
                handles.len() - 1
            });
            handles[known].count += 1;
            numbers.push(handles[known].memory);
        }
        for handles in handles.iter().filter(|handles| handles.are_all()) {
            memories[handles.memory].held -= 1;
        }
        for used in &mut memories {
            let wish = wishes.get(used.allocation);
            let is_dead = !wish.is_kept && (used.is_unheld() || wish.form.is_some());
            used.dead = is_dead.then_some(wish.form);
        }
        Self { memories, numbers, fix_scalars: wishes.fix_scalars }
    }

    /// What the launches are looked up by; nothing if a program is not there.
    pub(super) fn query(
        &self,
        launches: &[&LaunchWork],
        device: usize,
        trust: Trust,
    ) -> Option<Query> {
        let mut query = Query::new(device, trust, self.fix_scalars, launches.len());
        let mut numbers = self.numbers.iter();
        for launch in launches {
            let kernel = launch.kernel.resolved()?.as_ref().ok()?;
            query.launch(kernel.built.key(), launch.kernel.name(), &launch.range);
            for argument in &launch.arguments {
                match &argument.kind {
                    ArgumentKind::Buffer(region, _) => {
                        let &number = numbers.next()?;
                        query.buffer(number, region.bytes(), self.memories[number].dead);
                    }
                    ArgumentKind::Value(bytes) => query.scalar(bytes),
                    ArgumentKind::Local(bytes) => query.local(*bytes),
                }
            }
        }
        Some(query)
    }

    /// The launches as plain data. Their programs are there.
    pub(super) fn plan(&self, launches: &[&LaunchWork], device: &Device) -> Result<Plan> {
        let mut modules: Vec<Digest> = Vec::new();
        let mut slots = Vec::new();
        let mut numbers = self.numbers.iter();
        for launch in launches {
            let kernel = match launch.kernel.resolved() {
                Some(Ok(kernel)) => kernel,
                Some(Err(error)) => return Err(error.clone()),
                None => return Err(Error::invalid("a program is not there yet")),
            };
            let program = Digest(*kernel.built.key().as_bytes());
            let known = modules.iter().position(|&known| known == program);
            let module = known.unwrap_or_else(|| {
                modules.push(program);
                modules.len() - 1
            });
            let argument = |kind: &ArgumentKind| match kind {
                ArgumentKind::Buffer(region, _) => Argument::Buffer(fusion::Region {
                    memory: numbers.next().map_or(Memory(u32::MAX), |&n| Memory(n as u32)),
                    offset: region.bytes().start,
                    length: region.bytes().len(),
                }),
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
            modules,
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

    /// The allocations of these memories that somebody can still read.
    pub(super) fn held(&self, memories: &[Memory]) -> impl Iterator<Item = u64> {
        let used = memories.iter().filter_map(|memory| self.memories.get(memory.0 as usize));
        used.filter(|used| !used.is_unheld()).map(|used| used.allocation)
    }
}

/// The regions among the launches' arguments, in order.
pub(super) fn regions<'a>(launches: &[&'a LaunchWork]) -> impl Iterator<Item = &'a Arc<Region>> {
    let arguments = launches.iter().flat_map(|launch| &launch.arguments);
    arguments.filter_map(|argument| match &argument.kind {
        ArgumentKind::Buffer(region, _) => Some(region),
        ArgumentKind::Value(_) | ArgumentKind::Local(_) => None,
    })
}

/// The handles that launches have of one region.
struct Handles<'a> {
    region: &'a Arc<Region>,
    /// The number of its memory.
    memory: usize,
    count: usize,
}

impl Handles<'_> {
    /// Whether there are no others.
    fn are_all(&self) -> bool {
        Arc::strong_count(self.region) == self.count
    }
}

/// The launch of the kernel that does what these do.
pub(super) fn fused(launches: &[&LaunchWork], fused: &FusedKernel) -> LaunchWork {
    let argument = |place: &Place| launches[place.slot].arguments[place.argument].clone();
    LaunchWork {
        kernel: fused.kernel.clone(),
        range: fused.range,
        arguments: fused.parameters.iter().map(argument).collect(),
    }
}

/// The launches of a scope once more, to be kept.
pub(super) struct Sketch(Vec<LaunchWork>);

impl Sketch {
    pub(super) fn of(launches: &[&LaunchWork]) -> Self {
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
}

/// What the compiler has to know of a device.
fn target(device: &DeviceInfo) -> Target {
    let Workarounds { separate_functions, order_own_accesses, .. } = Workarounds::of(device);
    Target {
        // A device that lists no version gets no SPIR-V.
        version: spirv_versions(&device.il_version).max().unwrap_or((1, 6)),
        local_memory: usize::try_from(device.limits.local_memory).unwrap_or(usize::MAX),
        separate_functions,
        order_own_accesses,
    }
}
