//! What is told of a fusion: what was judged and why, and the code that came of it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::Outcome;
use super::legality::{Judgement, Verdict};
use super::plan::{Internalization, Memory, Place, Plan, Slot};
use crate::compiler::nd_range::NdRange;
use crate::compiler::opencl_c;
use crate::compiler::spirv::Module;
use crate::error::{Error, ErrorKind, Result};

/// What is known of launches that were to run as one: the verdict on every buffer, and on every two
/// launches that share it, and the code of the kernel that they became. Cheap to clone; its display is
/// a text for people.
#[derive(Clone, Debug)]
pub struct FusionReport(Arc<Content>);

#[derive(Clone, Debug, Default)]
struct Content {
    launches: Vec<LaunchReport>,
    buffers: Vec<BufferReport>,
    /// The kernel's name and its module.
    kernel: Option<(String, Vec<u8>)>,
    /// Why there is none.
    refusal: Option<String>,
}

/// What is known of one launch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaunchReport {
    /// The kernel's name.
    pub kernel: String,
    /// The work-items of the launch itself.
    pub range: NdRange,
    /// The names of the kernel's parameters, as far as its module tells; none if it was not examined.
    pub parameters: Vec<Option<String>>,
    /// The positions of the scalars that the fused kernel has as constants. For other values of them it
    /// is another kernel.
    pub fixed: Vec<usize>,
    /// The positions of the scalars that are arguments still, but whose values the proof relies on:
    /// others are examined anew.
    pub presumed: Vec<usize>,
    /// Whether the work-items of each group wait for each other before it, in the fused kernel.
    pub has_barrier: bool,
    /// Whether its range has another shape than the fused kernel's: its work-items are found by their
    /// linear ids.
    pub is_remapped: bool,
    /// How many of the fused kernel's work-items do it, the first by their linear ids, if not all do.
    pub guard: Option<u64>,
}

impl LaunchReport {
    fn of(slot: &Slot) -> Self {
        Self {
            kernel: slot.kernel.clone(),
            range: slot.range,
            parameters: Vec::new(),
            fixed: Vec::new(),
            presumed: Vec::new(),
            has_barrier: false,
            is_remapped: false,
            guard: None,
        }
    }

    /// A parameter in words: its name, unless that is not known.
    fn parameter(&self, at: usize) -> String {
        match self.parameters.get(at) {
            Some(Some(name)) => format!("`{name}`"),
            _ => format!("parameter {at}"),
        }
    }
}

/// What is known of two launches that use the same buffer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PairReport {
    /// Their positions among the launches, the earlier one first.
    pub launches: (usize, usize),
    /// Whether they can run as one, as far as this buffer is concerned.
    pub verdict: Verdict,
    /// Whether they can only with a barrier between them.
    pub needs_barrier: bool,
}

/// What is known of one buffer that launches use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BufferReport {
    /// The launches' parameters that it was given for: their positions among the launches, and their
    /// positions among the kernel's parameters.
    pub parameters: Vec<(usize, usize)>,
    /// Whether sharing it lets the launches run as one: the worst verdict of the pairs.
    pub verdict: Verdict,
    /// Every two launches that use it.
    pub pairs: Vec<PairReport>,
    /// What it became, if the fused kernel does without it.
    pub internalized: Option<Internalization>,
    /// Why it was not made private to the work-items, if it was not, nor local to the work-groups.
    pub why_in_memory: Option<String>,
}

impl FusionReport {
    /// Of launches of which nothing is known.
    pub(crate) fn of_none() -> Self {
        Self(Arc::default())
    }

    /// Of a plan that could not be examined.
    pub(crate) fn refused(plan: &Plan, why: String) -> Self {
        let launches = plan.slots.iter().map(LaunchReport::of).collect();
        Self(Arc::new(Content { launches, refusal: Some(why), ..Content::default() }))
    }

    pub(crate) fn of(plan: &Plan, outcome: &Outcome) -> Self {
        let fused = outcome.fused.as_ref();
        let parameters = |memory: Memory| {
            plan.regions(memory).map(|(place, _)| (place.slot, place.argument)).collect()
        };
        let buffers = outcome.judgements.iter().map(|judgement| BufferReport {
            parameters: parameters(judgement.memory),
            verdict: judgement.verdict.clone(),
            pairs: pairs(judgement),
            internalized: fused.ok().and_then(|fused| fused.form(judgement.memory)),
            why_in_memory: judgement.why_in_memory(),
        });
        Self(Arc::new(Content {
            launches: launches(plan, outcome),
            buffers: buffers.collect(),
            kernel: fused.ok().map(|fused| (fused.kernel.clone(), fused.module.assemble())),
            refusal: fused.err().cloned(),
        }))
    }

    /// There is no kernel, for this reason.
    pub(crate) fn refuse(&mut self, why: String) {
        let content = Arc::make_mut(&mut self.0);
        content.refusal = Some(why);
        content.kernel = None;
        content.buffers.iter_mut().for_each(|buffer| buffer.internalized = None);
        content.launches.iter_mut().for_each(|launch| launch.has_barrier = false);
    }

    /// The launches, in order.
    #[must_use]
    pub fn launches(&self) -> &[LaunchReport] {
        &self.0.launches
    }

    /// The buffers that the launches use, in the order in which they are first named.
    #[must_use]
    pub fn buffers(&self) -> &[BufferReport] {
        &self.0.buffers
    }

    /// Why there is no fused kernel; `None` if there is one.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.0.refusal.as_deref()
    }

    /// The name of the fused kernel.
    #[must_use]
    pub fn kernel(&self) -> Option<&str> {
        self.0.kernel.as_ref().map(|(name, _)| name.as_str())
    }

    /// The module of the fused kernel.
    #[must_use]
    pub fn spirv(&self) -> Option<&[u8]> {
        self.0.kernel.as_ref().map(|(_, module)| module.as_slice())
    }

    /// The fused kernel in OpenCL C, as a device gets it that takes no SPIR-V, and one that takes both
    /// if the kernels of all launches were given in OpenCL C.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if there is no fused kernel,
    /// [`Unsupported`](ErrorKind::Unsupported) for what OpenCL C cannot express.
    pub fn opencl_c(&self) -> Result<String> {
        match self.spirv() {
            Some(module) => opencl_c::opencl_c(&Module::parse(module)?),
            None => Err(Error::new(ErrorKind::InvalidArgument, "there is no fused kernel")),
        }
    }
}

fn launches(plan: &Plan, outcome: &Outcome) -> Vec<LaunchReport> {
    let barriers = outcome.fused.as_ref().map(|fused| &fused.barriers);
    let positions = |places: &BTreeSet<Place>, slot| {
        let own = places.iter().filter(|place| place.slot == slot);
        own.map(|place| place.argument).collect()
    };
    let presumed = &outcome.constants - &outcome.injected;
    let slots = plan.slots.iter().enumerate();
    let launches = slots.map(|(at, slot)| {
        let found = outcome.slots.get(at);
        LaunchReport {
            parameters: found.map(|found| found.parameters.clone()).unwrap_or_default(),
            fixed: positions(&outcome.injected, at),
            presumed: positions(&presumed, at),
            has_barrier: barriers.is_ok_and(|barriers| barriers.contains(&at)),
            is_remapped: found.is_some_and(|found| found.is_remapped),
            guard: found.and_then(|found| found.guard),
            ..LaunchReport::of(slot)
        }
    });
    launches.collect()
}

fn pairs(judgement: &Judgement) -> Vec<PairReport> {
    let pairs = judgement.pairs.iter().map(|(&launches, verdict)| PairReport {
        launches,
        verdict: verdict.clone(),
        needs_barrier: judgement.barriers.contains(&launches),
    });
    pairs.collect()
}

impl fmt::Display for FusionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { launches, buffers, kernel, refusal } = &*self.0;
        for (at, launch) in launches.iter().enumerate() {
            writeln!(f, "launch {at}: {launch}")?;
        }
        for (at, buffer) in buffers.iter().enumerate() {
            let names = buffer.parameters.iter().map(|&(launch, parameter)| {
                let name = launches.get(launch).map(|launch| launch.parameter(parameter));
                format!("{} of launch {launch}", name.unwrap_or_default())
            });
            writeln!(f, "buffer {at}: {}", names.collect::<Vec<_>>().join(", "))?;
            write!(f, "{buffer}")?;
        }
        match (refusal, kernel) {
            (Some(why), _) => write!(f, "not fused: {why}"),
            (None, Some((name, _))) => write!(f, "fused: `{name}`"),
            (None, None) => write!(f, "not examined"),
        }
    }
}

/// A line; what differs in the fused kernel follows on lines of their own.
impl fmt::Display for LaunchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, range, .. } = self;
        write!(f, "`{kernel}` over {:?}", range.global())?;
        if range.offset().iter().any(|&offset| offset != 0) {
            write!(f, " from {:?}", range.offset())?;
        }
        if let Some(local) = range.local() {
            write!(f, " in {local:?}")?;
        }
        self.notes().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

impl LaunchReport {
    /// What is different of it in the fused kernel, in words.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let names = |positions: &[usize]| {
            let names = positions.iter().map(|&at| self.parameter(at)).collect::<Vec<_>>();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let notes = [
            self.has_barrier.then(|| "a barrier before it".to_owned()),
            self.is_remapped.then(|| "remapped: by the linear ids of work-items".to_owned()),
            self.guard.map(|count| format!("only the first {count} work-items do it")),
            names(&self.fixed).map(|names| format!("constants: {names}")),
            names(&self.presumed).map(|names| format!("relies on the values of {names}")),
        ];
        notes.into_iter().flatten()
    }
}

/// Lines of their own: the verdict, or those on the pairs of launches that it comes of, and what becomes
/// of the buffer.
impl fmt::Display for BufferReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_told = |pair: &&PairReport| pair.needs_barrier || pair.verdict != Verdict::Proven;
        if self.pairs.iter().any(|pair| is_told(&pair)) {
            writeln!(f, "  {}", self.verdict.name())?;
        } else {
            writeln!(f, "  {}", self.verdict)?;
        }
        for PairReport { launches: (first, second), verdict, needs_barrier } in
            self.pairs.iter().filter(is_told)
        {
            let barrier = if *needs_barrier { ", with a barrier between" } else { "" };
            writeln!(f, "    launches {first} and {second}: {verdict}{barrier}")?;
        }
        match (&self.why_in_memory, self.internalized) {
            (_, Some(form)) => writeln!(f, "  internalized, {form}"),
            (Some(why), None) => writeln!(f, "  in memory: {why}"),
            (None, None) => Ok(()),
        }
    }
}
