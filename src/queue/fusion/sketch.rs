//! From the launches of a scope to what is looked up and to a plan, and from a fused kernel back to
//! a launch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::args::ArgumentKind;
use crate::buffer::Region;
use crate::build::{FusedKernel, Kernel, Query};
use crate::device::{Device, spirv_versions};
use crate::digest::Digest;
use crate::error::Result;
use crate::fusion::{self, Argument, Internalization, Memory, Place, Plan, Slot, Trust};
use crate::queue::command::LaunchWork;

/// What a scope was told of its launches.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// By the numbers of allocations.
    memories: BTreeMap<u64, Wish>,
    /// Whether all scalars are fixed at their values.
    pub(super) fix_scalars: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    /// The contents are read later.
    is_kept: bool,
    /// They are not, and this is what becomes of the memory if the fused kernel does without.
    form: Option<Internalization>,
}

impl Wishes {
    pub(super) fn keep(&mut self, allocation: u64) {
        self.memories.entry(allocation).or_default().is_kept = true;
    }

    pub(super) fn internalize(&mut self, allocation: u64, into: Internalization) {
        self.memories.entry(allocation).or_default().form = Some(into);
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
    /// Only the launches hold it: nobody can come to hold it any more.
    is_unheld: bool,
    /// Its contents are not read later, and what it is to become, if that was said.
    dead: Option<Option<Internalization>>,
}

impl Outline {
    /// Of launches that nobody but the DAG holds.
    pub(super) fn of(launches: &[&LaunchWork], wishes: &Wishes) -> Self {
        let unheld = unheld(launches);
        let mut outline = Self {
            memories: SmallVec::new(),
            numbers: SmallVec::new(),
            fix_scalars: wishes.fix_scalars,
        };
        for region in regions(launches) {
            let allocation = region.allocation();
            // Most often it was named a moment ago.
            let known = outline.memories.iter().rposition(|known| known.allocation == allocation);
            outline.numbers.push(known.unwrap_or(outline.memories.len()));
            if known.is_none() {
                let is_unheld = unheld.binary_search(&allocation).is_ok();
                let wish = wishes.memories.get(&allocation).copied().unwrap_or_default();
                let is_dead = !wish.is_kept && (is_unheld || wish.form.is_some());
                let dead = is_dead.then_some(wish.form);
                outline.memories.push(Used { allocation, is_unheld, dead });
            }
        }
        outline
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
                None => return Err(crate::Error::invalid("a program is not there yet")),
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
            // One that lists none gets no SPIR-V.
            version: spirv_versions(&device.il_version).max().unwrap_or((1, 6)),
            forms: dead.filter_map(|(memory, form)| Some((memory, form?))).collect(),
            local_limit: usize::try_from(device.limits.local_memory).unwrap_or(usize::MAX),
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
        used.filter(|used| !used.is_unheld).map(|used| used.allocation)
    }
}

fn regions<'a>(launches: &[&'a LaunchWork]) -> impl Iterator<Item = &'a Arc<Region>> {
    let arguments = launches.iter().flat_map(|launch| &launch.arguments);
    arguments.filter_map(|argument| match &argument.kind {
        ArgumentKind::Buffer(region, _) => Some(region),
        ArgumentKind::Value(_) | ArgumentKind::Local(_) => None,
    })
}

/// The allocations that only the launches hold, in order.
fn unheld(launches: &[&LaunchWork]) -> SmallVec<[u64; 16]> {
    let mut uses: SmallVec<[&Arc<Region>; 32]> = regions(launches).collect();
    uses.sort_unstable_by_key(|region| (region.allocation(), Arc::as_ptr(region).addr()));
    let of_allocations = uses.chunk_by(|a, b| a.allocation() == b.allocation());
    let unheld = of_allocations.filter(|uses| {
        let mut regions = 0;
        let all = uses.chunk_by(|a, b| Arc::ptr_eq(a, b)).all(|uses| {
            regions += 1;
            Arc::strong_count(uses[0]) == uses.len()
        });
        all && uses[0].regions_of_allocation() == regions
    });
    unheld.map(|uses| uses[0].allocation()).collect()
}

/// The launch of the kernel that does what these do.
pub(super) fn fused(launches: &[&LaunchWork], fused: &FusedKernel) -> LaunchWork {
    let argument = |place: &Place| launches[place.slot].arguments[place.argument].share();
    LaunchWork {
        kernel: fused.kernel.clone(),
        range: fused.range,
        arguments: fused.parameters.iter().map(argument).collect(),
    }
}

/// The launches of a scope once more, to be kept.
#[derive(Default)]
pub(super) struct Sketch(Vec<LaunchWork>);

impl Sketch {
    pub(super) fn of(launches: &[&LaunchWork]) -> Self {
        let share = |launch: &&LaunchWork| LaunchWork {
            kernel: launch.kernel.clone(),
            range: launch.range,
            arguments: launch.arguments.iter().map(|argument| argument.share()).collect(),
        };
        Self(launches.iter().map(share).collect())
    }

    pub(super) fn launches(&self) -> Vec<&LaunchWork> {
        self.0.iter().collect()
    }

    pub(super) fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.0.iter().map(|launch| &launch.kernel)
    }
}
