//! Cache of the scopes of a queue whose launches recently ran as fused kernels. The next scope usually has the same
//! launches, over the same buffers. It can then be decided without examining its launches.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use kiln_compiler::fusion::{Memory, Trust};
use kiln_compiler::{NdRange, Sampler};
use kiln_spirv::Access;
use smallvec::SmallVec;

use super::parts::Prepared;
use super::plan::{FusionOptions, regions};
use crate::args::ArgumentKind;
use crate::args::region::Region;
use crate::build_graph::{Fusion, WeakKernel};
use crate::device::ImageShape;
use crate::queue::launch_work::LaunchWork;
use crate::sync::lock;

/// Maximum number of scopes that a queue remembers.
const MAX_SCOPES: usize = 8;

/// Interval at which an unknown scope replaces a remembered one, once the cache is full. If more scopes
/// take turns than the cache holds, replacing one each time would never give a hit.
const LEARN_EVERY: usize = 8;

/// Recent scopes of a queue.
#[derive(Default)]
pub(crate) struct Recents {
    scopes: Vec<Arc<Recent>>,
    /// Number of scopes that were not in the cache.
    unknown: usize,
}

/// Scope with fused kernels, and everything needed to run an equal scope.
pub(super) struct Recent {
    launches: Vec<LaunchKey>,
    options: FusionOptions,
    trust: Trust,
    fusion: Weak<Fusion>,
    /// Allocations of the launches' memories. All have handles besides those of the launches.
    allocations: SmallVec<[u64; 16]>,
    /// Kernels that ran for the launches.
    prepared: Mutex<Vec<Prepared>>,
}

/// Key of a launch, to recognize equal ones.
struct LaunchKey {
    kernel: WeakKernel,
    range: NdRange,
    arguments: SmallVec<[ArgumentKey; 4]>,
}

/// Key of an argument, to recognize equal ones.
enum ArgumentKey {
    Buffer {
        allocation: u64,
        bytes: Range<usize>,
        stated: Option<Access>,
        /// Set for an image.
        image: Option<ImageShape>,
        /// Number of handles of the region that the launches hold. Other code held further handles, and
        /// must still hold some.
        handles: usize,
    },
    /// Value of which only the length in bytes matters.
    AnyValue(usize),
    Value(SmallVec<[u8; 16]>),
    Local(usize),
    Sampler(Sampler),
}

impl Recents {
    /// Returns the fusion of these launches and their recent scope, if it is in the cache.
    pub(super) fn find(
        &self,
        launches: &[&LaunchWork],
        options: &FusionOptions,
        trust: Trust,
    ) -> Option<(Arc<Fusion>, Arc<Recent>)> {
        let found = self.scopes.iter().find(|recent| recent.matches(launches, options, trust))?;
        Some((found.fusion.upgrade()?, Arc::clone(found)))
    }

    /// Adds launches that were not in the cache, with the `allocations` of their memories and with the kernels
    /// that they run as.
    pub(super) fn learn(
        &mut self,
        launches: &[&LaunchWork],
        (options, trust): (&FusionOptions, Trust),
        fusion: &Arc<Fusion>,
        (allocations, prepared): (SmallVec<[u64; 16]>, Vec<Prepared>),
    ) {
        self.scopes.retain(|recent| recent.fusion.strong_count() > 0);
        self.unknown += 1;
        let is_full = self.scopes.len() == MAX_SCOPES;
        if is_full && !self.unknown.is_multiple_of(LEARN_EVERY) {
            return;
        }
        let all_values = options.fix_scalars || fusion.depends_on_values();
        let keys = launches.iter().map(|launch| LaunchKey::of(launch, launches, all_values));
        let Some(keys) = keys.collect() else { return };
        if is_full {
            self.scopes.remove(0);
        }
        self.scopes.push(Arc::new(Recent {
            launches: keys,
            options: options.clone(),
            trust,
            fusion: Arc::downgrade(fusion),
            allocations,
            prepared: Mutex::new(prepared),
        }));
    }
}

impl Recent {
    /// Returns a kernel that ran for the launches before.
    pub(super) fn prepared(&self, key: [usize; 3]) -> Option<Prepared> {
        lock(&self.prepared).iter().find(|prepared| prepared.key == key).cloned()
    }

    /// Adds kernels that ran for the launches.
    pub(super) fn add(&self, prepared: Vec<Prepared>) {
        lock(&self.prepared).extend(prepared);
    }

    /// Returns the allocations of these memories.
    pub(super) fn allocations(&self, memories: &[Memory]) -> impl Iterator<Item = u64> {
        memories.iter().filter_map(|memory| self.allocations.get(memory.0 as usize)).copied()
    }

    fn matches(&self, launches: &[&LaunchWork], options: &FusionOptions, trust: Trust) -> bool {
        self.launches.len() == launches.len()
            && self.trust == trust
            && self.launches.iter().zip(launches).all(|(known, launch)| known.matches(launch))
            && self.options == *options
    }
}

impl LaunchKey {
    /// Returns `None` if one of the buffers has no handles besides those of the launches. The fused
    /// kernel may then rely on the buffer not being read later.
    fn of(launch: &LaunchWork, launches: &[&LaunchWork], all_values: bool) -> Option<Self> {
        let argument = |kind: &ArgumentKind| match kind {
            ArgumentKind::Memory(region, stated) => {
                let is_same = |other: &&Arc<Region>| Arc::ptr_eq(other, region);
                let handles = regions(launches).filter(is_same).count();
                (Arc::strong_count(region) > handles).then(|| ArgumentKey::Buffer {
                    allocation: region.allocation(),
                    bytes: region.bytes().clone(),
                    stated: *stated,
                    image: region.image().map(|image| image.shape),
                    handles,
                })
            }
            ArgumentKind::Value(bytes) if all_values => Some(ArgumentKey::Value(bytes.clone())),
            ArgumentKind::Value(bytes) => Some(ArgumentKey::AnyValue(bytes.len())),
            ArgumentKind::Local(bytes) => Some(ArgumentKey::Local(*bytes)),
            ArgumentKind::Sampler(sampler) => Some(ArgumentKey::Sampler(*sampler)),
        };
        let arguments = launch.arguments.iter().map(|given| argument(&given.kind));
        Some(Self {
            kernel: launch.kernel.resolved()?.as_ref().ok()?.downgrade(),
            range: launch.range,
            arguments: arguments.collect::<Option<_>>()?,
        })
    }

    fn matches(&self, launch: &LaunchWork) -> bool {
        let Some(Ok(kernel)) = launch.kernel.resolved() else { return false };
        self.kernel.is(kernel)
            && self.range == launch.range
            && self.arguments.len() == launch.arguments.len()
            && (self.arguments.iter().zip(&launch.arguments))
                .all(|(known, given)| known.matches(&given.kind))
    }
}

impl ArgumentKey {
    fn matches(&self, given: &ArgumentKind) -> bool {
        match (self, given) {
            (
                Self::Buffer { allocation, bytes, stated, image, handles },
                ArgumentKind::Memory(region, access),
            ) => {
                *allocation == region.allocation()
                    && bytes == region.bytes()
                    && stated == access
                    && *image == region.image().map(|image| image.shape)
                    && Arc::strong_count(region) > *handles
            }
            (Self::AnyValue(length), ArgumentKind::Value(bytes)) => *length == bytes.len(),
            (Self::Value(known), ArgumentKind::Value(bytes)) => known == bytes,
            (Self::Local(known), ArgumentKind::Local(bytes)) => known == bytes,
            (Self::Sampler(known), ArgumentKind::Sampler(sampler)) => known == sampler,
            _ => false,
        }
    }
}
