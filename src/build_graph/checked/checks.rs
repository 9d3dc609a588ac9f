//! Checks of one kernel's launches. The verdicts of recent launches are kept: most launches are like an earlier
//! one.

use std::sync::{Arc, Mutex, OnceLock, Weak};

use kiln_compiler::NdRange;
use kiln_compiler::bounds::{self, LaunchVerdict, check_quickly};
use kiln_spirv::Access;

use super::CheckMode;
use super::analysis::Analysis;
use super::ended::graph_of;
use super::shape::{ArgumentRegion, ArgumentShape, LaunchShape, overlap, regions};
use super::variant::Variant;
use crate::args::ArgumentList;
use crate::build_graph::built::ResolvedKernel;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::shared_outcome::SharedOutcome;
use crate::device::{DeviceKind, MAX_PRIVATE_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Priority;
use crate::sync::lock;

/// Maximum number of launches whose verdicts a kernel keeps.
const MAX_KNOWN: usize = 32;

/// Checks of a kernel's launches.
pub(crate) struct Checks {
    name: Box<str>,
    graph: Weak<BuildGraph>,
    needs_proof: bool,
    analysis: SharedOutcome<Result<Arc<Analysis>>>,
    /// Requirements on the memory that launches give, once the kernel is analysed.
    required: OnceLock<Required>,
    known: Mutex<Vec<Known>>,
    /// Variants for unchecked launches that need offsets.
    pub(super) with_offsets: Mutex<Vec<Arc<Variant>>>,
}

/// Requirements of a kernel on the memory that it is given.
struct Required {
    /// Positions of the parameters that are declared `restrict`.
    restricted: Box<[usize]>,
    /// Positions of the parameters that point to structs, and the sizes of these in bytes.
    structs: Box<[(usize, usize)]>,
}

impl Required {
    fn of(kernel: &bounds::Kernel) -> Self {
        Self { restricted: kernel.restricted().collect(), structs: kernel.structs().collect() }
    }

    /// Returns an argument whose elements have another size than the struct that the parameter points to, and the
    /// size of that.
    fn unfit<'r>(&self, regions: &'r [ArgumentRegion]) -> Option<(&'r ArgumentRegion, usize)> {
        regions.iter().find_map(|region| {
            let given = region.element.struct_size()?;
            let (_, expected) = self.structs.iter().find(|(at, _)| *at == region.at)?;
            (given != *expected).then_some((region, *expected))
        })
    }
}

/// Verdict on a launch, and on all launches like it.
struct Known {
    shape: LaunchShape,
    decision: Result<Decision>,
}

/// Way in which a checked launch runs.
#[derive(Clone)]
pub(crate) enum Decision {
    /// The kernel itself runs.
    Proven,
    /// A variant runs: the launch is not proven, or the device does not take its slices as arguments.
    Variant(Arc<Variant>),
}

impl Checks {
    pub(super) fn new(
        graph: &Arc<BuildGraph>,
        name: &str,
        analysis: SharedOutcome<Result<Arc<Analysis>>>,
    ) -> Self {
        Self {
            name: name.into(),
            graph: Arc::downgrade(graph),
            needs_proof: graph.checked() == CheckMode::Proven,
            analysis,
            required: OnceLock::new(),
            known: Mutex::default(),
            with_offsets: Mutex::default(),
        }
    }

    /// Returns the analysis of the kernel, as a future.
    pub(in crate::build_graph) fn analysis(&self) -> SharedOutcome<Result<Arc<Analysis>>> {
        self.analysis.clone()
    }

    /// Returns the analysis of the kernel, once it is known.
    pub(super) fn peek(&self) -> Option<Result<Arc<Analysis>>> {
        self.analysis.peek()
    }

    /// Decides how a launch of the kernel runs. Analyses it if no earlier launch was like it. Returns `None`
    /// while the kernel itself is being analysed, and if analysing the launch would take long or must not be done on
    /// the caller's thread.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](ErrorKind::Unsupported) if the launch cannot be checked or guarded, or if it must be
    ///   proven and is not.
    /// * [`InvalidArgument`](ErrorKind::InvalidArgument) for arguments that contradict the kernel.
    pub(crate) fn decide(
        &self,
        kernel: &ResolvedKernel,
        (range, arguments): (&NdRange, &ArgumentList),
        needs_proof: bool,
    ) -> Option<Result<Decision>> {
        let find = || self.find(|known| known.fits(range, arguments));
        let prove = |decision: Decision| match needs_proof || self.needs_proof {
            true => self.proven(decision, || LaunchShape::of(range, arguments)),
            false => Ok(decision),
        };
        let are_met = |required: &Required| {
            let is_read_only = |at: usize| is_declared_read_only(kernel, at);
            let Required { restricted, structs } = required;
            let overlaps = || overlap(&regions(arguments), restricted, is_read_only).is_some();
            let is_unfit = || required.unfit(&regions(arguments)).is_some();
            (restricted.is_empty() || !overlaps()) && (structs.is_empty() || !is_unfit())
        };
        if self.required.get().is_some_and(are_met)
            && let Some(decision) = find()
        {
            return Some(decision.and_then(prove));
        }
        let analysis = match self.peek()? {
            Ok(analysis) => analysis,
            Err(error) => return Some(Err(error)),
        };
        if let Err(error) = self.check_memory(&analysis, kernel, &regions(arguments)) {
            return Some(Err(error));
        }
        let known = find();
        if known.is_none() && analysis.plan.has_untrusted() {
            return None;
        }
        let with_line = |error: Error| match error.kind() {
            ErrorKind::Unsupported => {
                let alignment = kernel.built.device().limits.slice_alignment;
                let shape = LaunchShape::of(range, arguments);
                refusal_with_known_line(&analysis, &shape, alignment).unwrap_or(error)
            }
            _ => error,
        };
        let decision = match known {
            Some(known) => known,
            None => {
                let run = |analysis: &Analysis, report: &_, with_offset: &_| {
                    self.run(analysis, report, with_offset)
                };
                let shape = LaunchShape::of(range, arguments);
                let report = self.report(&analysis, &shape, &check_quickly)?;
                self.decide_by(report, &analysis, kernel, shape, run)
            }
        };
        Some(decision.map_err(with_line).and_then(prove))
    }

    /// Decides like [`decide`](Self::decide), on a thread of the pool, and waits until the variant is built.
    ///
    /// # Errors
    ///
    /// As for [`decide`](Self::decide), and the errors of the analysis and of the build.
    pub(crate) async fn decided(
        self: &Arc<Self>,
        kernel: &Kernel,
        shape: LaunchShape,
        needs_proof: bool,
    ) -> Result<Decision> {
        let analysis = self.analysis.clone().await?;
        let (checks, kernel, is_untrusted) =
            (Arc::clone(self), kernel.clone(), analysis.plan.has_untrusted());
        let (shared, launch) = (Arc::clone(&analysis), shape.clone());
        let decide = move || {
            let resolved = kernel.built()?;
            checks.check_memory(&analysis, resolved, &shape.regions)?;
            checks.find(|known| known.covers(&shape)).unwrap_or_else(|| {
                let run = |analysis: &Analysis, report: &_, with_offset: &_| {
                    checks.run(analysis, report, with_offset)
                };
                checks.decide_anew(&analysis, resolved, shape, run)
            })
        };
        let decided = self.graph()?.pool_for(is_untrusted).threads().run(Priority::Short, decide);
        let decision = match decided.await? {
            Ok(decision) => decision,
            Err(error) => return Err(self.refusal_with_line(shared, launch, error).await),
        };
        if let Decision::Variant(variant) = &decision {
            if (needs_proof || self.needs_proof)
                && let Some(verdict) = variant.unproven()
            {
                let with_lines = self.verdict_with_lines(shared, launch).await;
                return Err(self.not_proven_error(with_lines.as_ref().unwrap_or(verdict), ""));
            }
            variant.kernel.resolve().await;
        }
        Ok(decision)
    }

    /// Checks that a launch is proven, of a kernel that was not requested as a checked one: a fused kernel.
    /// Returns `None` while the kernel is being analysed.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), with the reason, if it is not proven, or if the kernel was not
    /// compiled as it was analysed.
    pub(crate) fn prove(
        &self,
        kernel: &ResolvedKernel,
        (range, arguments): (&NdRange, &ArgumentList),
    ) -> Option<Result<()>> {
        let analysis = match self.peek()? {
            Ok(analysis) => analysis,
            Err(error) => return Some(Err(error)),
        };
        let find = || self.find(|known| known.fits(range, arguments));
        let proven = |analysis: &Analysis, report: &bounds::Report, with_offset: &[usize]| {
            if !self.graph()?.runs_as_analysed(&kernel.built, analysis) {
                let reason = "its program was built with options that are not checked";
                return Err(Error::unsupported(reason));
            }
            if !report.is_proven() {
                return Err(self.not_proven_error(&report.verdict(&analysis.kernel), ""));
            }
            match with_offset {
                [] => Ok(Decision::Proven),
                _ => Err(Error::unsupported(
                    "a slice does not begin where the device takes it as an argument",
                )),
            }
        };
        let prove = || {
            self.check_memory(&analysis, kernel, &regions(arguments))?;
            let decision = find().unwrap_or_else(|| {
                let shape = LaunchShape::of(range, arguments);
                self.decide_anew(&analysis, kernel, shape, proven)
            });
            decision.map(drop)
        };
        Some(prove())
    }

    /// Returns the verdict on a launch, in words.
    ///
    /// # Errors
    ///
    /// As for [`decided`](Self::decided), but a launch that must be proven is only described.
    pub(crate) async fn verdict(
        self: Arc<Self>,
        kernel: Kernel,
        shape: LaunchShape,
    ) -> Result<LaunchVerdict> {
        let analysis = self.analysis.clone().await?;
        let (graph, is_untrusted) = (self.graph()?, analysis.plan.has_untrusted());
        let (checks, shared, launch) = (Arc::clone(&self), Arc::clone(&analysis), shape.clone());
        let describe = move || {
            let resolved = kernel.built()?;
            let report = full_report(&analysis.kernel, &shape)?;
            checks.check_memory(&analysis, resolved, &shape.regions)?;
            checks.check_stated(&analysis, resolved, &shape, &report)?;
            checks.check_private(&analysis, resolved, &shape.range)?;
            let alignment = resolved.built.device().limits.slice_alignment;
            check_guards(&analysis.kernel, &report, &shape.unaligned(alignment))?;
            Ok(report.verdict(&analysis.kernel))
        };
        let described = graph.pool_for(is_untrusted).threads().run(Priority::Short, describe);
        let verdict: Result<LaunchVerdict> = described.await?;
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => return Err(self.refusal_with_line(shared, launch, error).await),
        };
        match verdict.is_proven() {
            true => Ok(verdict),
            false => Ok(self.verdict_with_lines(shared, launch).await.unwrap_or(verdict)),
        }
    }

    pub(super) fn graph(&self) -> Result<Arc<BuildGraph>> {
        graph_of(&self.graph, &self.name)
    }

    /// Returns the decision on an earlier launch like this one.
    fn find(&self, is_like: impl Fn(&LaunchShape) -> bool) -> Option<Result<Decision>> {
        let mut known = lock(&self.known);
        let at = known.iter().position(|known| is_like(&known.shape))?;
        if at > 0 {
            known.swap(0, at);
        }
        let is_failed = match &known[0].decision {
            // A build that failed for want of resources is tried again.
            Ok(Decision::Variant(variant)) => variant.may_be_tried_again(),
            _ => false,
        };
        if is_failed {
            known.swap_remove(0);
            return None;
        }
        Some(known[0].decision.clone())
    }

    /// Decides how a launch runs, given the report on it and the arguments that need offsets. Requests a variant if
    /// the kernel itself cannot run.
    fn run(
        &self,
        analysis: &Analysis,
        report: &bounds::Report,
        with_offset: &[usize],
    ) -> Result<Decision> {
        match report.is_proven() && with_offset.is_empty() {
            true => Ok(Decision::Proven),
            false => {
                self.graph()?.variant(analysis, Some(report), with_offset).map(Decision::Variant)
            }
        }
    }

    /// Analyses a launch, decides how it runs, and remembers the decision.
    fn decide_anew(
        &self,
        analysis: &Analysis,
        kernel: &ResolvedKernel,
        shape: LaunchShape,
        decide: impl FnOnce(&Analysis, &bounds::Report, &[usize]) -> Result<Decision>,
    ) -> Result<Decision> {
        let check = |kernel: &bounds::Kernel, launch: &bounds::Launch<'_>| {
            Some(bounds::check(kernel, launch))
        };
        let report = self.report(analysis, &shape, &check);
        let report = report.unwrap_or_else(|| Err(Error::unsupported("the launch is not checked")));
        self.decide_by(report, analysis, kernel, shape, decide)
    }

    /// Decides how a launch runs, given the report on it, and remembers the decision.
    fn decide_by(
        &self,
        report: Result<bounds::Report>,
        analysis: &Analysis,
        kernel: &ResolvedKernel,
        shape: LaunchShape,
        decide: impl FnOnce(&Analysis, &bounds::Report, &[usize]) -> Result<Decision>,
    ) -> Result<Decision> {
        let constants = report.as_ref().ok().map(|report| report.constants.clone());
        let decision = report.and_then(|report| {
            self.check_stated(analysis, kernel, &shape, &report)?;
            self.check_private(analysis, kernel, &shape.range)?;
            let alignment = kernel.built.device().limits.slice_alignment;
            decide(analysis, &report, &shape.unaligned(alignment))
        });
        if decision.as_ref().is_err_and(|error| !error.is_deterministic()) {
            return decision;
        }
        // Without a report, the decision may depend on any value.
        let depends_on = |at: usize| constants.as_ref().is_none_or(|all| all.contains(&at));
        let shape = shape.depending_on(depends_on);
        let mut known = lock(&self.known);
        known.truncate(MAX_KNOWN - 1);
        known.insert(0, Known { shape, decision: decision.clone() });
        decision
    }

    /// Checks a launch. Looks for a verdict that depends on few scalars if an earlier launch differed in scalars
    /// only, or if a guarded variant is needed. Most launches are repeated with the same scalars, and the search
    /// takes several times as long as one check.
    /// Returns `None` if `check` does.
    fn report(
        &self,
        analysis: &Analysis,
        shape: &LaunchShape,
        check: &dyn Fn(&bounds::Kernel, &bounds::Launch<'_>) -> Option<Result<bounds::Report>>,
    ) -> Option<Result<bounds::Report>> {
        if shape.open_values().next().is_some() {
            let report = match report(&analysis.kernel, shape, true, check)? {
                Ok(report) => report,
                Err(error) => return Some(Err(error)),
            };
            return Some(match shape.open_values().find(|at| report.constants.contains(at)) {
                Some(at) => Err(Error::unsupported(format!(
                    "kernel `{}`: the verdict on the launch depends on {}, which every replay sets; record \
                     the launch with a fixed value, or use `unsafe program.kernel(\"{0}\")`",
                    self.name,
                    analysis.kernel.parameter(at)
                ))),
                None => Ok(report),
            });
        }
        if !lock(&self.known).iter().any(|known| known.shape.differs_in_scalars(shape)) {
            let report = report(&analysis.kernel, shape, false, check)?;
            if report.as_ref().map_or(true, bounds::Report::is_proven) {
                return Some(report);
            }
        }
        report(&analysis.kernel, shape, true, check)
    }

    /// Fails for a launch that is not proven. The error names lines of OpenCL C only if these were read before,
    /// because the caller does not wait for compilers.
    fn proven(&self, decision: Decision, shape: impl FnOnce() -> LaunchShape) -> Result<Decision> {
        let Decision::Variant(variant) = &decision else { return Ok(decision) };
        let Some(verdict) = variant.unproven() else { return Ok(decision) };
        // Untrusted modules are not analysed on the caller's thread.
        let analysis = self.peek().and_then(Result::ok);
        let analysis = analysis.filter(|analysis| !analysis.plan.has_untrusted());
        let with_lines =
            analysis.as_ref().and_then(|analysis| verdict_with_known_lines(analysis, &shape()));
        let sources = analysis.as_ref().and_then(|analysis| analysis.sources.as_ref());
        let advice = match sources.is_some_and(|sources| !sources.are_read()) {
            true => "; `Launch::verdict` names the lines",
            false => "",
        };
        Err(self.not_proven_error(with_lines.as_ref().unwrap_or(verdict), advice))
    }

    /// Returns the verdict on a launch with the lines of its kernel's source, if these can be read.
    async fn verdict_with_lines(
        &self,
        analysis: Arc<Analysis>,
        shape: LaunchShape,
    ) -> Option<LaunchVerdict> {
        let graph = self.graph().ok()?;
        analysis.sources.as_ref()?.read(&graph).await;
        let pool = graph.pool_for(analysis.plan.has_untrusted());
        let describe = move || verdict_with_known_lines(&analysis, &shape);
        pool.threads().run(Priority::Short, describe).await.ok()?
    }

    /// Returns the refusal of a launch with a line of its kernel's source, if these can be read.
    async fn refusal_with_line(
        &self,
        analysis: Arc<Analysis>,
        shape: LaunchShape,
        error: Error,
    ) -> Error {
        let (Ok(graph), Some(sources)) = (self.graph(), &analysis.sources) else { return error };
        if error.kind() != ErrorKind::Unsupported {
            return error;
        }
        sources.read(&graph).await;
        let pool = graph.pool_for(analysis.plan.has_untrusted());
        let device = graph.device(analysis.plan.device()).clone();
        let refuse =
            move || refusal_with_known_line(&analysis, &shape, device.limits.slice_alignment);
        let refused = pool.threads().run(Priority::Short, refuse).await;
        refused.ok().flatten().unwrap_or(error)
    }

    /// Returns the error for a launch that must be proven, and is not. `advice` follows the findings.
    fn not_proven_error(&self, verdict: &LaunchVerdict, advice: &str) -> Error {
        let reasons: Vec<_> =
            verdict.findings().iter().map(|finding| format!("it {finding}")).collect();
        Error::unsupported(format!(
            "a launch of `{}` must be proven to stay inside its buffers, but is not: {}{advice}",
            self.name,
            reasons.join("; ")
        ))
    }

    /// Fails if the elements of an argument have another size than the struct that the parameter points to, or if the
    /// memory of an argument that is declared `restrict` overlaps with that of another one, and one of them may be
    /// written.
    fn check_memory(
        &self,
        analysis: &Analysis,
        kernel: &ResolvedKernel,
        regions: &[ArgumentRegion],
    ) -> Result<()> {
        let required = self.required.get_or_init(|| Required::of(&analysis.kernel));
        if let Some((region, expected)) = required.unfit(regions) {
            let given = region.element;
            return Err(Error::invalid(format!(
                "kernel `{}`: {} is given elements of `{given}`, {} bytes each, but points to structs of {expected} \
                 bytes; give elements of that size, or cast the buffer to its scalars, as with \
                 `&buffer.cast::<f32>()?`",
                self.name,
                analysis.kernel.parameter(region.at),
                given.struct_size().unwrap_or_default(),
            )));
        }
        let is_read_only = |at: usize| is_declared_read_only(kernel, at);
        match overlap(regions, &required.restricted, is_read_only) {
            Some((one, other)) => Err(Error::invalid(format!(
                "kernel `{}`: {} {}, but its memory overlaps with that of {}; give buffers or images that do \
                 not overlap",
                self.name,
                analysis.kernel.parameter(one),
                analysis.kernel.restriction(one),
                analysis.kernel.parameter(other)
            ))),
            None => Ok(()),
        }
    }

    /// Fails if the variables and values of the work-items of a work-group may exceed the stack of a CPU's thread,
    /// on which drivers allocate them.
    fn check_private(
        &self,
        analysis: &Analysis,
        kernel: &ResolvedKernel,
        range: &NdRange,
    ) -> Result<()> {
        let device = kernel.built.device();
        if device.kind == DeviceKind::Gpu {
            return Ok(());
        }
        let required = kernel.native.required_work_group();
        let product =
            |sizes: &[usize]| sizes.iter().fold(1, |all: usize, &size| all.saturating_mul(size));
        let items = match (range.local(), required) {
            (Some(local), _) => product(local),
            (None, Some(required)) => product(&required),
            (None, None) => {
                let most = kernel.native.max_work_group_size();
                most.unwrap_or(device.limits.max_work_group_size).min(product(range.global()))
            }
        };
        let bytes = analysis.private_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        if bytes.is_some_and(|bytes| bytes.saturating_mul(items) <= MAX_PRIVATE_BYTES) {
            return Ok(());
        }
        let bytes =
            bytes.map_or_else(|| "an unknown number of".to_owned(), |bytes| bytes.to_string());
        Err(Error::unsupported(format!(
            "the launches of `{0}` cannot be checked: each work-item has {bytes} bytes of variables and kept values, and a work-group \
             of {items} work-items may exceed the stack of {MAX_PRIVATE_BYTES} bytes on which a CPU's driver allocates \
             them; give a smaller local size, or use `unsafe program.kernel(\"{0}\")`",
            self.name
        )))
    }

    /// Fails if a buffer is given as one that is only read, but may be written: other commands would not wait.
    fn check_stated(
        &self,
        analysis: &Analysis,
        kernel: &ResolvedKernel,
        shape: &LaunchShape,
        report: &bounds::Report,
    ) -> Result<()> {
        let is_read = |at: usize| match shape.arguments.get(at) {
            Some(ArgumentShape::Image(_)) => is_declared_read_only(kernel, at),
            Some(ArgumentShape::Buffer { stated, .. }) => match stated {
                Some(access) => *access == Access::Read,
                None => is_declared_read_only(kernel, at),
            },
            _ => false,
        };
        match report.written().into_iter().find(|&at| is_read(at)) {
            Some(at) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "kernel `{}`: it writes to {}, which is given or declared as read-only; give the plain \
                     buffer, or `read_write()`",
                    self.name,
                    analysis.kernel.parameter(at)
                ),
            )),
            None => Ok(()),
        }
    }
}

fn is_declared_read_only(kernel: &ResolvedKernel, at: usize) -> bool {
    kernel.parameters().get(at).and_then(|parameter| parameter.access) == Some(Access::Read)
}

/// Returns the verdict on a launch with the lines of its kernel's source, if these are known.
fn verdict_with_known_lines(analysis: &Analysis, shape: &LaunchShape) -> Option<LaunchVerdict> {
    let kernel = analysis.sources.as_ref()?.kernel()?;
    let verdict = full_report(kernel, shape).ok()?.verdict(kernel);
    (!verdict.is_proven()).then_some(verdict)
}

/// Returns the refusal of a launch with a line of its kernel's source, if these are known.
fn refusal_with_known_line(
    analysis: &Analysis,
    shape: &LaunchShape,
    alignment: usize,
) -> Option<Error> {
    let kernel = analysis.sources.as_ref()?.kernel()?;
    let checked = full_report(kernel, shape)
        .and_then(|report| check_guards(kernel, &report, &shape.unaligned(alignment)));
    checked.err().filter(|error| error.kind() == ErrorKind::Unsupported)
}

/// Fails if what a report does not prove cannot be guarded: the launch is refused then.
fn check_guards(
    kernel: &bounds::Kernel,
    report: &bounds::Report,
    with_offset: &[usize],
) -> Result<()> {
    match report.is_proven() && with_offset.is_empty() {
        true => Ok(()),
        false => {
            let unproven = Some(report).filter(|report| !report.is_proven());
            bounds::variant(kernel, unproven, with_offset).map(drop)
        }
    }
}

/// Checks a launch of a kernel, with a verdict that depends on few scalars.
fn full_report(kernel: &bounds::Kernel, shape: &LaunchShape) -> Result<bounds::Report> {
    report(kernel, shape, true, bounds::check)
}

/// Checks a launch of a kernel by a function.
fn report<R>(
    kernel: &bounds::Kernel,
    shape: &LaunchShape,
    few_constants: bool,
    check: impl FnOnce(&bounds::Kernel, &bounds::Launch<'_>) -> R,
) -> R {
    let arguments = shape.to_check();
    let launch = bounds::Launch {
        range: &shape.range,
        arguments: &arguments,
        // A driver may choose work-groups that do not divide the global size.
        uniform_groups: false,
        few_constants,
    };
    check(kernel, &launch)
}
