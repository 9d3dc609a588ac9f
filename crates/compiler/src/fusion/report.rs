//! Report on a fusion: the verdicts, their reasons and the resulting code.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kiln_spirv::{Error, ErrorKind, Module, Result};

use super::legality::{FusionVerdict, Judgement};
use super::outcome::{Fused, Outcome};
use super::part_report::PartReport;
use crate::NdRange;
use crate::opencl_c;
use crate::plan::{Internalization, Memory, Place, Plan, Region, Slot};

/// Report on launches that were to run as one kernel: the verdict on every buffer and on every two launches
/// that share it, the code of the fused kernel, and the [parts](Self::parts) in which the launches run. Cheap
/// to clone; it displays as a text for people.
///
/// The verdicts are about a kernel of the form [`Direct`](super::FusionForm::Direct), in which each launch
/// runs once. If the launches are one kernel in another form, all verdicts are proven.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// match report.kernel() {
///     Some(kernel) => println!("would run as `{kernel}`"),
///     None => println!("{report}"), // all verdicts and the reasons for them
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FusionReport {
    content: Arc<Content>,
    parts: Arc<[PartReport]>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    launches: Vec<FusionLaunchReport>,
    buffers: Vec<BufferReport>,
    /// Name and module of the fused kernel.
    kernel: Option<(String, Vec<u8>)>,
    /// Reason why there is no fused kernel.
    refusal: Option<String>,
}

/// Report on one launch.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// for launch in report.launches().iter().filter(|launch| launch.has_barrier) {
///     println!("`{}` runs after a barrier", launch.kernel);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FusionLaunchReport {
    /// Name of the kernel.
    pub kernel: String,
    /// Nd-range of the launch itself.
    pub range: NdRange,
    /// Names of the kernel's parameters, where its module states them; empty if the kernel was not examined.
    pub parameters: Vec<Option<String>>,
    /// Positions of the scalars that are constants in the fused kernel. With other values, it is another
    /// kernel.
    pub fixed: Vec<usize>,
    /// Positions of the scalars that are still arguments, but whose values the proof relies on. Launches with
    /// other values are examined anew.
    pub presumed: Vec<usize>,
    /// Whether the work-items of each group wait for each other before the launch, in the fused kernel.
    pub has_barrier: bool,
    /// Whether the range of the launch has another shape than that of the fused kernel. The ids of its
    /// work-items then follow from their linear ids.
    pub is_remapped: bool,
    /// Number of work-items of the fused kernel that run the launch: those with the lowest linear ids. `None`
    /// if all do.
    pub guard: Option<u64>,
}

impl FusionLaunchReport {
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

    /// Returns a parameter in words: its name, or its position if the name is not known.
    fn parameter(&self, at: usize) -> String {
        match self.parameters.get(at) {
            Some(Some(name)) => format!("`{name}`"),
            _ => format!("parameter {at}"),
        }
    }
}

/// Report on two launches that use the same buffer.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// for pair in report.buffers().iter().flat_map(|buffer| &buffer.pairs) {
///     let (first, second) = pair.launches;
///     println!("launches {first} and {second}: {}", pair.verdict);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PairReport {
    /// Positions of the two launches, the earlier one first.
    pub launches: (usize, usize),
    /// Verdict on running the two launches as one kernel, as far as this buffer is concerned.
    pub verdict: FusionVerdict,
    /// Whether the kernel needs a barrier between the two launches.
    pub needs_barrier: bool,
}

/// Report on one buffer that launches use.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// for (index, buffer) in report.buffers().iter().enumerate() {
///     println!("buffer {index}: {}", buffer.verdict);
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BufferReport {
    /// Parameters that the buffer was passed for: the positions of the launches, and the positions among the
    /// kernels' parameters.
    pub parameters: Vec<(usize, usize)>,
    /// Verdict on running all launches that share the buffer as one kernel: the worst verdict of the pairs.
    pub verdict: FusionVerdict,
    /// Reports on every two launches that use the buffer.
    pub pairs: Vec<PairReport>,
    /// Storage that takes the place of the buffer; `None` if a fused kernel or a launch uses the buffer itself.
    pub internalized: Option<Internalization>,
    /// Reason why the buffer is neither private to the work-items nor local to the work-groups, if so.
    pub why_in_memory: Option<String>,
}

impl FusionReport {
    fn new(content: Content) -> Self {
        Self { content: Arc::new(content), parts: Arc::default() }
    }

    /// Creates the report on launches that were not examined.
    #[doc(hidden)]
    #[must_use]
    pub fn of_none() -> Self {
        Self::new(Content::default())
    }

    /// Creates the report on a plan that could not be examined.
    #[doc(hidden)]
    pub fn refused(plan: &Plan, why: String) -> Self {
        let launches = plan.slots.iter().map(FusionLaunchReport::of).collect();
        Self::new(Content { launches, refusal: Some(why), ..Content::default() })
    }

    #[doc(hidden)]
    #[must_use]
    pub fn of(plan: &Plan, outcome: &Outcome) -> Self {
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
        Self::new(Content {
            launches: launches(plan, outcome),
            buffers: buffers.collect(),
            kernel: fused.ok().map(|fused| (fused.kernel.clone(), fused.module.assemble())),
            refusal: fused.err().cloned(),
        })
    }

    /// Records the reason why there is no fused kernel, and removes what describes the kernel.
    #[doc(hidden)]
    pub fn refuse(&mut self, why: String) {
        let content = Arc::make_mut(&mut self.content);
        content.refusal = Some(why);
        content.kernel = None;
        content.buffers.iter_mut().for_each(|buffer| buffer.internalized = None);
        content.launches.iter_mut().for_each(|launch| launch.has_barrier = false);
    }

    /// Records what a kernel for some of the launches makes of the buffers. `members` are the positions of its
    /// launches in `plan`, the plan of all launches.
    #[doc(hidden)]
    pub fn add_kernel(&mut self, plan: &Plan, fused: &Fused, members: &[usize]) {
        let is_inside = |(place, _): &(Place, Region)| members.contains(&place.slot);
        for &memory in &fused.internalized {
            let parameters: Vec<_> =
                plan.regions(memory).map(|(place, _)| (place.slot, place.argument)).collect();
            if !plan.regions(memory).all(|used| is_inside(&used)) {
                continue;
            }
            let content = Arc::make_mut(&mut self.content);
            let buffers = content.buffers.iter_mut();
            for buffer in buffers.filter(|buffer| buffer.parameters == parameters) {
                buffer.internalized = fused.form(memory);
                buffer.why_in_memory = None;
            }
        }
    }

    /// Adds the parts in which the launches run.
    #[doc(hidden)]
    #[must_use]
    pub fn with_parts(mut self, parts: Vec<PartReport>) -> Self {
        self.parts = parts.into();
        self
    }

    /// Returns the parts in which the launches run, in order, with the ways to run each and the times measured
    /// so far. There is one part if one kernel can do the work of all launches, and none if no launches can be
    /// fused.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// for part in report.parts() {
    ///     println!("{part}"); // the forms of its kernels, and the time of each
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn parts(&self) -> &[PartReport] {
        &self.parts
    }

    /// Returns the launches, in order.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// for launch in report.launches() {
    ///     println!("`{}` over {:?}", launch.kernel, launch.range.global());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn launches(&self) -> &[FusionLaunchReport] {
        &self.content.launches
    }

    /// Returns the buffers that the launches use, in the order in which they are first named.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// for buffer in report.buffers() {
    ///     if let Some(reason) = &buffer.why_in_memory {
    ///         println!("the fused kernel still uses the buffer: {reason}");
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn buffers(&self) -> &[BufferReport] {
        &self.content.buffers
    }

    /// Returns the reason why no kernel does the work of all launches; `None` if one does or nothing was
    /// examined. Some of the launches may still run as one: see [`parts`](Self::parts).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// if let Some(reason) = report.refusal() {
    ///     eprintln!("not fused: {reason}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.content.refusal.as_deref()
    }

    /// Returns the name of the fused kernel that does the work of all launches.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// if let Some(name) = report.kernel() {
    ///     println!("fused to `{name}`");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn kernel(&self) -> Option<&str> {
        self.content.kernel.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns the SPIR-V module of the fused kernel, in the form that was built first. Kernels of other
    /// forms, which are tried later, and those of [parts](Self::parts) are not included.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) -> std::io::Result<()> {
    /// if let Some(module) = report.spirv() {
    ///     std::fs::write("fused.spv", module)?; // for `spirv-dis`
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn spirv(&self) -> Option<&[u8]> {
        self.content.kernel.as_ref().map(|(_, module)| module.as_slice())
    }

    /// Returns the fused kernel of [`spirv`](Self::spirv) in OpenCL C. A device gets the kernel in this
    /// language if it accepts no SPIR-V. A device that accepts both gets OpenCL C if the kernels of all
    /// launches were given in OpenCL C.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if there is no fused kernel,
    /// [`Unsupported`](ErrorKind::Unsupported) for code that OpenCL C cannot express.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) -> kiln_spirv::Result<()> {
    /// println!("{}", report.opencl_c()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn opencl_c(&self) -> Result<String> {
        match self.spirv() {
            Some(module) => opencl_c::opencl_c(&Module::parse(module)?),
            None => Err(Error::new(ErrorKind::InvalidArgument, "there is no fused kernel")),
        }
    }
}

fn launches(plan: &Plan, outcome: &Outcome) -> Vec<FusionLaunchReport> {
    let barriers = outcome.fused.as_ref().map(|fused| &fused.barriers);
    let positions = |places: &BTreeSet<Place>, slot| {
        let own = places.iter().filter(|place| place.slot == slot);
        own.map(|place| place.argument).collect()
    };
    let presumed = &outcome.constants - &outcome.injected;
    let slots = plan.slots.iter().enumerate();
    let launches = slots.map(|(at, slot)| {
        let found = outcome.slots.get(at);
        FusionLaunchReport {
            parameters: found.map(|found| found.parameters.clone()).unwrap_or_default(),
            fixed: positions(&outcome.injected, at),
            presumed: positions(&presumed, at),
            has_barrier: barriers.is_ok_and(|barriers| barriers.contains(&at)),
            is_remapped: found.is_some_and(|found| found.is_remapped),
            guard: found.and_then(|found| found.guard),
            ..FusionLaunchReport::of(slot)
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
        let Content { launches, buffers, kernel, refusal } = &*self.content;
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
        for (at, part) in self.parts.iter().enumerate() {
            writeln!(f, "part {at}: {part}")?;
        }
        match (refusal, kernel) {
            (Some(why), _) if self.parts.len() > 1 => write!(f, "fused in parts: {why}"),
            (Some(why), _) => write!(f, "not fused: {why}"),
            (None, Some((name, _))) => write!(f, "fused: `{name}`"),
            (None, None) => write!(f, "not examined"),
        }
    }
}

/// Writes a line for the launch, then a line for each of its [`notes`](FusionLaunchReport::notes).
impl fmt::Display for FusionLaunchReport {
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

impl FusionLaunchReport {
    /// Returns the differences of the launch in the fused kernel, in words.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// for launch in report.launches() {
    ///     for note in launch.notes() {
    ///         println!("`{}`: {note}", launch.kernel); // such as "a barrier before it"
    ///     }
    /// }
    /// # }
    /// ```
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let names = |positions: &[usize]| {
            let names = positions.iter().map(|&at| self.parameter(at)).collect::<Vec<_>>();
            (!names.is_empty()).then(|| names.join(", "))
        };
        let notes = [
            self.has_barrier.then(|| "a barrier before it".to_owned()),
            self.is_remapped.then(|| "remapped: by the linear ids of work-items".to_owned()),
            self.guard.map(|count| format!("only the first {count} work-items run it")),
            names(&self.fixed).map(|names| format!("constants: {names}")),
            names(&self.presumed).map(|names| format!("relies on the values of {names}")),
        ];
        notes.into_iter().flatten()
    }
}

/// Writes lines: the verdict, or the verdicts on the pairs of launches that it results from, and what becomes
/// of the buffer.
impl fmt::Display for BufferReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_listed =
            |pair: &&PairReport| pair.needs_barrier || pair.verdict != FusionVerdict::Proven;
        if self.pairs.iter().any(|pair| is_listed(&pair)) {
            writeln!(f, "  {}", self.verdict.name())?;
        } else {
            writeln!(f, "  {}", self.verdict)?;
        }
        for PairReport { launches: (first, second), verdict, needs_barrier } in
            self.pairs.iter().filter(is_listed)
        {
            let barrier = if *needs_barrier { ", with a barrier between them" } else { "" };
            writeln!(f, "    launches {first} and {second}: {verdict}{barrier}")?;
        }
        match (&self.why_in_memory, self.internalized) {
            (_, Some(form)) => writeln!(f, "  internalized, {form}"),
            (Some(why), None) => writeln!(f, "  in memory: {why}"),
            (None, None) => Ok(()),
        }
    }
}
