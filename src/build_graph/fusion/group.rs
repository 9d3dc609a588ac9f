//! Groups of launches that run together: the ways to run each, and their trials.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kiln_compiler::fusion::{FusionForm, Group, PartReport, StepReport, WayReport};

use super::material::Material;
use super::timing::{Times, Timing};
use super::trial::{Choice, ONE_BY_ONE, Trials};
use super::way::{Step, Way};
use crate::sync::lock;

/// Smallest number of launches that can be split in two parts of which one is a kernel of several launches.
const MIN_TO_SPLIT: usize = 3;

/// Launches that run together.
pub(crate) struct LaunchGroup {
    /// Positions of the launches in the scope, in order.
    pub(crate) slots: Vec<usize>,
    pub(super) trials: Trials,
    /// Ways by the index that they have in the trials, as far as they are built.
    ways: Mutex<Vec<Option<BuiltWay>>>,
    /// Location where times are stored; `None` if they are not stored.
    pub(super) timing: Option<Arc<Timing>>,
    /// Input for trying the launches as two parts, until the trials have ended.
    material: Mutex<Option<Arc<Material>>>,
    /// Kernels that are still to be compiled.
    pub(super) further: Mutex<Vec<Further>>,
}

/// Way whose kernels were built.
struct BuiltWay {
    /// Report of each step, in the order in which they run.
    steps: Vec<StepReport>,
    /// The way with its kernels; `None` once the trials have ended without choosing it.
    way: Option<Arc<Way>>,
}

impl BuiltWay {
    fn new(way: Way) -> Self {
        Self { steps: way.steps.iter().map(Step::report).collect(), way: Some(Arc::new(way)) }
    }
}

/// Way in which one group runs this time.
pub(crate) struct SelectedWay {
    pub(crate) choice: Choice,
    pub(crate) way: Arc<Way>,
}

/// Policy for selecting ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Try the ways, and use the fastest.
    Fastest,
    /// Use kernels, without timing.
    Kernels,
}

/// Kernel that is still to be compiled, as a way of its own.
pub(super) struct Further {
    /// Index of the way in the trials.
    pub(super) way: usize,
    pub(super) group: Group,
    pub(super) form: FusionForm,
}

impl LaunchGroup {
    /// Creates a group whose launches run one by one.
    pub(super) fn new(slots: Vec<usize>) -> Self {
        let one_by_one = BuiltWay::new(Way::one_by_one(&slots));
        Self {
            slots,
            trials: Trials::new(),
            ways: Mutex::new(vec![Some(one_by_one)]),
            timing: None,
            material: Mutex::default(),
            further: Mutex::default(),
        }
    }

    /// Returns the way to run the group this time.
    pub(super) fn select(&self, policy: Policy) -> SelectedWay {
        let choice = match policy {
            Policy::Fastest => self.trials.choose(),
            Policy::Kernels => Self::untimed(self.trials.best_kernel()),
        };
        if let Some(way) = self.way(choice.way) {
            return SelectedWay { choice, way };
        }
        let way = Arc::new(Way::one_by_one(&self.slots));
        SelectedWay { choice: Self::untimed(None), way }
    }

    fn untimed(way: Option<usize>) -> Choice {
        Choice { way: way.unwrap_or(ONE_BY_ONE), is_timed: false }
    }

    fn way(&self, index: usize) -> Option<Arc<Way>> {
        lock(&self.ways).get(index)?.as_ref()?.way.clone()
    }

    pub(super) fn set_way(&self, index: usize, way: Way) {
        let mut ways = lock(&self.ways);
        if ways.len() <= index {
            ways.resize_with(index + 1, || None);
        }
        ways[index] = Some(BuiltWay::new(way));
        drop(ways);
        self.trials.set_ready(index);
    }

    /// Returns the shortest times of the launches one by one and of the other ways.
    pub(crate) fn times(&self) -> (Option<Duration>, Option<Duration>) {
        let times = self.trials.times();
        let kernels = times.iter().skip(1).flatten().min().copied();
        (times.first().copied().flatten(), kernels)
    }

    /// Reports the ways and the times measured so far.
    pub(super) fn report(&self) -> PartReport {
        let (times, chosen) = (self.trials.times(), self.trials.fastest());
        let ways = lock(&self.ways);
        let ways = ways.iter().enumerate().filter_map(|(at, way)| {
            let time = times.get(at).copied().flatten();
            Some(WayReport::new(way.as_ref()?.steps.clone(), time, chosen == Some(at)))
        });
        PartReport::new(self.slots.clone(), ways.collect())
    }

    /// Keeps the input for trying the launches as two parts, if they are enough for two parts of which one is a kernel
    /// of several launches.
    pub(super) fn keep_material(&self, material: &Arc<Material>) {
        if self.slots.len() >= MIN_TO_SPLIT {
            *lock(&self.material) = Some(Arc::clone(material));
        }
    }

    pub(super) fn has_material(&self) -> bool {
        lock(&self.material).is_some()
    }

    pub(super) fn material(&self) -> Option<Arc<Material>> {
        lock(&self.material).clone()
    }

    /// Lets go of the input for trying the launches as two parts.
    pub(super) fn release_material(&self) {
        *lock(&self.material) = None;
    }

    /// Lets go of the input for two parts and of the kernels that no longer run, because the trials have ended. Returns
    /// the times of the ways.
    pub(super) fn end_trials(&self) -> Times {
        self.release_material();
        let times = self.trials.times();
        let mut ways = lock(&self.ways);
        let described = ways.iter().zip(times).filter_map(|(way, time)| {
            let way = way.as_ref()?.way.as_ref()?;
            Some((way.description(), time?))
        });
        let described = described.collect();
        let retired = self.trials.retire().into_iter();
        let kernels: Vec<_> =
            retired.filter_map(|at| ways.get_mut(at)?.as_mut()?.way.take()).collect();
        // Freeing kernels may call the driver.
        drop(ways);
        drop(kernels);
        described
    }
}
