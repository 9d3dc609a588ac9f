//! Input of the fusing compiler for one scope: its plan, the modules of its kernels, and the device's
//! properties.

use std::cell::OnceCell;
use std::sync::Arc;

use super::source::Source;
use super::timing::Timing;
use super::values::Values;
use super::way::{Description, FusedKernel, PartDescription, Step, Way};
use super::{FusionRequest, is_permanent};
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::outcome::Outcome;
use crate::build_graph::spec::BuildSpec;
use crate::compiler::fusion::{
    Candidate, Examinations, Fused, FusionForm, FusionReport, Group, Launches, Part, Place, Plan,
    Trust, Width,
};
use crate::device::{DeviceKind, Limits};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Priority;
use crate::source::module::Module;

/// Input of the fusing compiler for one scope.
pub(super) struct Material {
    pub(super) plan: Plan,
    device: usize,
    /// Sources of the plan's modules; errors for those that cannot be translated.
    sources: Vec<Result<Arc<Source>>>,
    trust: Trust,
    is_gpu: bool,
    limits: Limits,
    forced_form: Option<FusionForm>,
    /// Whether several ways are tried, and the times of the ways are stored.
    pub(super) is_tried: bool,
}

/// Kernels found for a scope.
pub(super) struct Found {
    pub(super) report: FusionReport,
    pub(super) values: Values,
    /// Parts, each with the kernels that are still to be compiled. Empty if no launches can be fused.
    pub(super) parts: Vec<(Part, Vec<(Group, FusionForm)>)>,
}

/// Maximum number of kernels that are tried for a part at first.
const MAX_KERNELS: usize = 8;

/// Maximum number of bytes of private arrays that the work-items of a work-group on a CPU have together. CPU
/// drivers allocate them on the stack of a thread: PoCL crashes where they exceed it.
const MAX_PRIVATE_BYTES: usize = 2 << 20;

impl Material {
    /// Reads the modules of the request's kernels.
    ///
    /// # Errors
    ///
    /// A transient error, or the first error if no module can be translated.
    pub(super) async fn read(graph: &Arc<BuildGraph>, request: &FusionRequest) -> Result<Self> {
        let &FusionRequest { device, trust, forced_form, is_tried, .. } = request;
        let (kernels, mut plan) = (&request.kernels, request.plan.clone());
        let mut sources: Vec<Result<Arc<Source>>> = Vec::new();
        // Modules are numbered in the order in which slots first name them.
        for (slot, kernel) in plan.slots.iter().zip(kernels) {
            if slot.module == sources.len() {
                let own = plan.slots.iter().filter(|other| other.module == slot.module);
                let needed = own.map(|slot| slot.kernel.clone()).collect();
                let source = Source::of(graph, kernel, needed).await;
                match source.map_err(|error| error.within(format_args!("`{}`", kernel.name()))) {
                    Err(error) if !is_permanent(&error) => return Err(error),
                    source => sources.push(source.map(Arc::new)),
                }
            }
        }
        if let Some(Err(error)) = sources.first()
            && sources.iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        for slot in &mut plan.slots {
            if let Ok(source) = &sources[slot.module] {
                slot.constants.clone_from(&source.constants);
            }
        }
        let info = graph.device(device);
        let (is_gpu, limits) = (info.kind == DeviceKind::Gpu, info.limits.clone());
        Ok(Self { plan, device, sources, trust, is_gpu, limits, forced_form, is_tried })
    }

    /// Calls `run` with the launches, on a worker.
    pub(super) async fn compile<T: Send + 'static>(
        self: &Arc<Self>,
        graph: &Arc<BuildGraph>,
        run: impl FnOnce(&Launches<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let material = Arc::clone(self);
        let is_untrusted = self.available().any(|source| source.is_untrusted);
        let compile = move || {
            let exceeded_limit = |fused: &Fused| material.exceeded_limit(fused);
            run(&material.launches(&exceeded_limit))
        };
        graph.pool_for(is_untrusted).threads().run(Priority::Short, compile).await
    }

    fn available(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.sources.iter().filter_map(|source| source.as_ref().ok())
    }

    fn launches<'a>(
        &'a self,
        exceeded_limit: &'a dyn Fn(&Fused) -> Option<String>,
    ) -> Launches<'a> {
        let module = |source: &'a Result<Arc<Source>>| source.as_ref().ok().map(|s| &s.module);
        let options = |source: &Result<Arc<Source>>| {
            let options = source.as_ref().ok().map(|source| &source.options);
            let mut known =
                self.sources.iter().map(|known| known.as_ref().ok().map(|s| &s.options));
            known.position(|known| known == options).unwrap_or_default()
        };
        Launches {
            plan: &self.plan,
            modules: self.sources.iter().map(module).collect(),
            options: self.sources.iter().map(options).collect(),
            trust: self.trust,
            width: if self.is_gpu { Width::GPU } else { Width::ONE },
            is_gpu: self.is_gpu,
            forced_form: self.forced_form,
            exceeded_limit,
            effects: OnceCell::new(),
            examinations: Examinations::default(),
        }
    }

    /// Describes the limit of the device that a fused kernel exceeds, if there is one.
    fn exceeded_limit(&self, fused: &Fused) -> Option<String> {
        let Fused { local_bytes, parameter_bytes, private_bytes, range, .. } = fused;
        let Limits { local_memory, max_parameter_size, max_work_group_size, .. } = self.limits;
        if *local_bytes as u64 > local_memory {
            return Some(format!(
                "the launches together need {local_bytes} bytes of local memory; the device has \
                 {local_memory} for a work-group"
            ));
        }
        if *parameter_bytes > max_parameter_size {
            return Some(format!(
                "the launches together have {parameter_bytes} bytes of arguments; the device \
                 allows {max_parameter_size} for a kernel"
            ));
        }
        let items = match range.local() {
            Some(local) => local.iter().fold(1, |items: usize, &size| items.saturating_mul(size)),
            None => max_work_group_size,
        };
        if !self.is_gpu && private_bytes.saturating_mul(items) > MAX_PRIVATE_BYTES {
            return Some(format!(
                "the arrays of a work-item need {private_bytes} bytes of private memory; \
                 {MAX_PRIVATE_BYTES} are available for a work-group of {items} work-items"
            ));
        }
        None
    }

    /// Returns why the kernels cannot be compiled together at all.
    fn common_refusal(&self) -> Option<Error> {
        if let Some(error) = self.sources.iter().find_map(|source| source.as_ref().err()) {
            return Some(error.clone());
        }
        let first = self.available().next()?;
        let other = self.available().find(|source| source.options != first.options)?;
        Some(Error::unsupported(format!(
            "the programs are built with different options, `{}` and `{}`; build them with the \
             same options to fuse their kernels",
            first.options, other.options
        )))
    }

    /// Finds a kernel for all launches or, if there is none, kernels for some of them.
    pub(super) fn search(&self, launches: &Launches<'_>) -> Found {
        let mut found = self.search_whole(launches);
        if found.parts.is_empty() {
            let parts = launches.partition();
            found.values.extend(Values::at(&self.plan, launches.effect_constants()));
            for candidate in parts.iter().flat_map(|part| &part.candidates) {
                found.values.extend(self.values_of(candidate));
            }
            let firsts = || parts.iter().filter_map(|part| part.candidates.first());
            for candidate in firsts() {
                if let Ok(fused) = &candidate.outcome.fused {
                    found.report.add_kernel(&self.plan, fused, &candidate.group.members());
                }
            }
            if let ([_], Some(whole)) = (&*parts, firsts().next()) {
                found.report = FusionReport::of(&self.plan, &whole.outcome);
            }
            if parts.iter().any(|part| !part.candidates.is_empty()) {
                let with_further = |part: Part| {
                    let further = further_kernels(launches, &part);
                    (part, further)
                };
                found.parts = parts.into_iter().map(with_further).collect();
            }
        }
        found
    }

    /// Finds a kernel for all launches.
    fn search_whole(&self, launches: &Launches<'_>) -> Found {
        let plan = &self.plan;
        let refused = |error: &Error| Found {
            report: FusionReport::refused(plan, error.to_string()),
            values: Values::fixed_by(plan),
            parts: Vec::new(),
        };
        if let Some(error) = self.common_refusal() {
            return refused(&error);
        }
        let (whole, mut first) = (launches.whole(), None);
        let mut values = Values::fixed_by(plan);
        // If ways are tried, a kernel in which launches run again competes with parts: the partition decides
        // by cost.
        let is_sought = |form: &FusionForm| {
            *form == FusionForm::Direct || !self.is_tried || self.forced_form.is_some()
        };
        for form in launches.forms(&whole).into_iter().filter(is_sought) {
            let outcome = match launches.fuse(&whole, form) {
                Ok(outcome) => outcome,
                Err(error) => return refused(&error),
            };
            values.extend(Values::of(plan, &outcome, &whole.slots));
            let report = FusionReport::of(plan, &outcome);
            if outcome.fused.is_ok() {
                let candidates = vec![Candidate { group: whole.clone(), form, outcome }];
                let part = Part { slots: whole.slots, candidates };
                let further = further_kernels(launches, &part);
                return Found { report, values, parts: vec![(part, further)] };
            }
            first.get_or_insert(report);
        }
        let report = first.unwrap_or_else(FusionReport::of_none);
        Found { report, values, parts: Vec::new() }
    }

    /// Returns the conditions under which a kernel can be used.
    fn values_of(&self, candidate: &Candidate) -> Values {
        Values::of(&self.plan, &candidate.outcome, &candidate.group.members())
    }

    /// Returns the location of the times of the group whose first kernel is that of `first`.
    pub(super) fn timing(
        &self,
        graph: &Arc<BuildGraph>,
        slots: &[usize],
        first: &Candidate,
    ) -> Result<Timing> {
        let outcome = &first.outcome;
        let (plan, _) = self.launches(&|_| None).plan_of(&first.group);
        let plan = plan.without_values(&outcome.constants, &outcome.equal);
        let Ok(fused) = &outcome.fused else {
            return Err(Error::invalid("there is no fused kernel"));
        };
        let module = Module::spirv(fused.module.assemble())?.digest();
        Ok(Timing::new(graph, self.device, module, &plan, slots))
    }

    /// Returns the parts that `find` finds on a worker, if their kernels hold wherever a result with the
    /// conditions `values` does.
    pub(super) async fn find_parts(
        self: &Arc<Self>,
        graph: &Arc<BuildGraph>,
        values: &Values,
        find: impl FnOnce(&Launches<'_>) -> Option<Vec<Part>> + Send + 'static,
    ) -> Option<Vec<Part>> {
        let own = Arc::clone(self);
        let compile = move |launches: &Launches<'_>| {
            let parts = find(launches)?;
            let needed = own.values_of_parts(launches, &parts);
            Some((parts, needed))
        };
        let (parts, needed) = self.compile(graph, compile).await.ok()??;
        values.imply(&needed).then_some(parts)
    }

    /// Returns the conditions under which launches can run in these parts.
    fn values_of_parts(&self, launches: &Launches<'_>, parts: &[Part]) -> Values {
        let candidates = || parts.iter().flat_map(|part| &part.candidates);
        let mut values = Values::default();
        if parts.len() > 1 || candidates().any(|candidate| !candidate.group.repeated.is_empty()) {
            values.extend(Values::at(&self.plan, launches.effect_constants()));
        }
        for candidate in candidates() {
            values.extend(self.values_of(candidate));
        }
        values
    }

    /// Compiles the kernels of a description. Returns `None` if it does not fit the launches in `slots`.
    pub(super) fn rebuild(
        launches: &Launches<'_>,
        slots: &[usize],
        description: &Description,
    ) -> Option<Vec<Part>> {
        let count = launches.plan.slots.len();
        if !description.is_of(slots) || !launches.keeps_order(&description.steps()) {
            return None;
        }
        let part = |part: &PartDescription| match part {
            PartDescription::Launch(slot) => {
                Some(Part { slots: vec![*slot], candidates: Vec::new() })
            }
            PartDescription::Kernel { form, group } => {
                let is_known = group.repeated.iter().all(|&slot| slot < count);
                let candidate = is_known.then(|| launches.candidate(group, *form)).flatten()?;
                Some(Part { slots: group.slots.clone(), candidates: vec![candidate] })
            }
        };
        description.0.iter().map(part).collect()
    }
}

/// Returns the kernels to try for a part besides its first candidate.
fn further_kernels(launches: &Launches<'_>, part: &Part) -> Vec<(Group, FusionForm)> {
    let Some(first) = part.candidates.first() else { return Vec::new() };
    let kernels = part.candidates.iter().flat_map(|candidate| {
        let forms = match candidate.passes_values_on() {
            true => launches.forms(&candidate.group),
            false => vec![candidate.form],
        };
        forms.into_iter().map(|form| (candidate.group.clone(), form))
    });
    let is_further =
        |(group, form): &(Group, FusionForm)| (group, *form) != (&first.group, first.form);
    kernels.filter(is_further).take(MAX_KERNELS - 1).collect()
}

impl BuildGraph {
    /// Builds the kernels of parts that run one after another.
    pub(super) async fn build_parts(
        self: &Arc<Self>,
        material: &Material,
        parts: Vec<Part>,
    ) -> Result<Way> {
        let mut steps = Vec::new();
        for Part { slots, candidates } in parts {
            match candidates.into_iter().next() {
                Some(candidate) => {
                    let kernel = self.build_candidate(material, candidate).await?;
                    steps.push(Step::Kernel(Box::new(kernel)));
                }
                None => steps.extend(slots.into_iter().map(Step::Launch)),
            }
        }
        Ok(Way { steps })
    }

    /// Builds the kernel of a candidate.
    pub(super) async fn build_candidate(
        self: &Arc<Self>,
        material: &Material,
        candidate: Candidate,
    ) -> Result<FusedKernel> {
        let Candidate { group, form, outcome } = candidate;
        let fused = outcome.fused.map_err(Error::unsupported)?;
        let members = group.members();
        let sources = members.iter().map(|&member| material.plan.slots[member].module);
        let sources: Vec<_> =
            sources.filter_map(|module| material.sources[module].as_ref().ok()).collect();
        let is_untrusted = sources.iter().any(|source| source.is_untrusted);
        let is_text = sources.iter().all(|source| source.is_text);
        let module = Module::spirv(fused.module.assemble())?.untrusted_if(is_untrusted);
        let mut spec = BuildSpec::new(module, material.device);
        spec.set_all_options(sources.first().map_or("", |source| source.options.as_str()));
        let built = match is_text {
            true => self.build_as_text(spec).await,
            false => self.request(spec).completed().await,
        };
        let kernel = Kernel::of(&built?, &fused.kernel)?;
        let place = |places: &Vec<Place>| {
            let &Place { slot, argument } = places.first()?;
            Some(Place { slot: *members.get(slot)?, argument })
        };
        let recomputed = material.launches(&|_| None).written_by(&group.repeated);
        let mut internalized = fused.internalized;
        internalized.retain(|memory| !recomputed.contains(memory));
        Ok(FusedKernel {
            slots: group.slots,
            repeated: group.repeated,
            form,
            kernel,
            range: fused.range,
            parameters: fused.parameters.iter().filter_map(place).collect(),
            internalized,
            recomputed,
        })
    }

    /// Builds a fused module whose sources were OpenCL C as OpenCL C, if OpenCL C can express it. A driver may
    /// optimize one language better than another: from text, Intel's CPU runtime makes kernels with unrolled
    /// loops and vectorized accesses to neighbouring elements, which run up to four times as fast as those made
    /// from the same code in SPIR-V.
    async fn build_as_text(self: &Arc<Self>, spec: BuildSpec) -> Outcome {
        let mut text = spec.clone();
        text.prefer_text();
        match self.request(text).completed().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!(%error, "a fused kernel is built as SPIR-V, not as OpenCL C");
                self.request(spec).completed().await
            }
            built => built,
        }
    }
}
