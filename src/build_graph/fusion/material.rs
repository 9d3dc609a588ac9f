//! Input of the fusing compiler for one scope: its plan, the modules of its kernels, and the device's
//! properties.

use std::cell::OnceCell;
use std::sync::Arc;

use kiln_compiler::fusion::{
    Budget, Candidate, Examinations, Fused, FusionForm, FusionReport, Group, Launches, Part, Plan,
    Trust, Width,
};

use super::attempts::KernelInBuild;
use super::query::Query;
use super::timing::Timing;
use super::values::Values;
use super::way::{Description, PartDescription};
use crate::build_graph::kernel::Kernel;
use crate::build_graph::key::DeviceKey;
use crate::device::{Limits, MAX_PRIVATE_BYTES};
use crate::error::{Error, ErrorKind, Result};
use crate::source::module::Module;

/// Launches to fuse.
pub(crate) struct FusionRequest {
    pub(crate) query: Query,
    /// The device's position in the graph.
    pub(crate) device: usize,
    /// Kernels of the slots, one for each. Their programs exist already.
    pub(crate) kernels: Vec<Kernel>,
    /// Plan of the launches. Its modules are the keys of the kernels' programs.
    pub(crate) plan: Plan,
    pub(crate) trust: Trust,
    /// Form that all fused kernels get; if `None`, all forms are tried.
    pub(crate) forced_form: Option<FusionForm>,
    /// Whether several ways are tried, and the times of the ways are stored.
    pub(crate) is_tried: bool,
    /// Whether the launches run as one kernel or not at all as kernels of several launches.
    pub(crate) needs_one_kernel: bool,
    /// Whether a caller waits for the kernels, however long their compile takes.
    pub(crate) is_awaited: bool,
    /// Whether programs are fused that let compilers compute other results than OpenCL requires.
    pub(crate) may_relax: bool,
}

/// A program as one SPIR-V module.
pub(super) struct Source {
    pub(super) module: kiln_spirv::Module,
    /// Specialization constants by their ids in the module.
    pub(super) constants: Vec<(u32, Vec<u8>)>,
    /// Build options of the fused kernel for the driver's compiler, without those that allow less accurate
    /// results.
    ///
    /// The effect of such an option depends on the language version and on all of the code that the compiler
    /// sees. With `-cl-fast-relaxed-math`, Intel's CPU runtime uses an `exp` with an error of a few thousand
    /// ULP in OpenCL C 1.2, the language of fused kernels, and of a few ULP in OpenCL C 2.0. Compilers also
    /// rearrange the operations of several launches together. Without the option, a fused kernel has the
    /// accuracy that OpenCL requires, which is that of the launches or better.
    pub(super) options: String,
    /// Whether the driver's compiler built the program from modules in OpenCL C.
    pub(super) is_text: bool,
    /// Whether programs with code of the module must not be compiled in this process.
    pub(super) is_untrusted: bool,
}

/// Input of the fusing compiler for one scope.
pub(super) struct Material {
    pub(super) plan: Plan,
    pub(super) device: usize,
    /// Sources of the plan's modules; errors for those that cannot be translated.
    pub(super) sources: Vec<Result<Arc<Source>>>,
    pub(super) trust: Trust,
    pub(super) is_gpu: bool,
    pub(super) limits: Limits,
    pub(super) forced_form: Option<FusionForm>,
    /// Whether several ways are tried, and the times of the ways are stored.
    pub(super) is_tried: bool,
    /// Whether the launches run as one kernel or not at all as kernels of several launches.
    pub(super) needs_one_kernel: bool,
    /// Whether a caller waits for the kernels, however long their compile takes. The others are built one at a time.
    pub(super) is_awaited: bool,
    pub(super) in_build: KernelInBuild,
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

impl Material {
    pub(super) fn available(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.sources.iter().filter_map(|source| source.as_ref().ok())
    }

    /// Returns the launches, for the fusing compiler.
    pub(super) fn launches<'a>(
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
            budget: Budget::default(),
        }
    }

    /// Describes the limit of the device that a fused kernel exceeds, if there is one.
    pub(super) fn exceeded_limit(&self, fused: &Fused) -> Option<String> {
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
        if items > max_work_group_size {
            return Some(format!(
                "the work-groups have {items} work-items; the device allows {max_work_group_size}"
            ));
        }
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
        if found.parts.is_empty() && !self.needs_one_kernel {
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
            report: FusionReport::refused(plan, reason_of(error)),
            values: Values::fixed_by(plan),
            parts: Vec::new(),
        };
        if let Some(error) = self.common_refusal() {
            return refused(&error);
        }
        let (whole, mut refused_forms) = (launches.whole(), Vec::new());
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
            refused_forms.push((form, report));
        }
        Found { report: refusal_of(&refused_forms), values, parts: Vec::new() }
    }

    /// Returns the conditions under which a kernel can be used.
    fn values_of(&self, candidate: &Candidate) -> Values {
        Values::of(&self.plan, &candidate.outcome, &candidate.group.members())
    }

    /// Returns the location of the times of the group whose first kernel is that of `first`, for a device with
    /// this key.
    pub(super) fn timing(
        &self,
        device: &DeviceKey,
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
        Ok(Timing::new(device, module, &plan, slots))
    }

    /// Returns the conditions under which launches can run in these parts.
    pub(super) fn values_of_parts(&self, launches: &Launches<'_>, parts: &[Part]) -> Values {
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

/// Returns the report on the first form that was refused. If others were refused for another reason, it states the
/// first of these, too.
fn refusal_of(refused_forms: &[(FusionForm, FusionReport)]) -> FusionReport {
    let Some(((_, first), others)) = refused_forms.split_first() else {
        return FusionReport::of_none();
    };
    let mut report = first.clone();
    let other = others.iter().find(|(_, other)| other.refusal() != first.refusal());
    if let (Some(reason), Some((form, other))) = (first.refusal(), other)
        && let Some(other_reason) = other.refusal()
    {
        report.refuse(format!("{reason}; in the form `{form}`: {other_reason}"));
    }
    report
}

/// Returns the kernels to try for a part besides its first candidate.
fn further_kernels(launches: &Launches<'_>, part: &Part) -> Vec<(Group, FusionForm)> {
    let Some(first) = part.candidates.first() else { return Vec::new() };
    let kernels = part.candidates.iter().flat_map(|candidate| {
        let passes_values_on = candidate.passes_values_on();
        let is_tried = move |form: &FusionForm| {
            passes_values_on || matches!(form, FusionForm::Direct | FusionForm::Batched)
        };
        let forms = launches.forms(&candidate.group).into_iter().filter(is_tried);
        forms.map(|form| (candidate.group.clone(), form))
    });
    let is_further =
        |(group, form): &(Group, FusionForm)| (group, *form) != (&first.group, first.form);
    kernels.filter(is_further).take(MAX_KERNELS - 1).collect()
}

/// Returns the reason why launches are not fused, which an error states.
pub(super) fn reason_of(error: &Error) -> String {
    match error.kind() {
        // The words of the kind, "unsupported", would say again that the launches are not fused.
        ErrorKind::Unsupported if error.driver_code().is_none() => error.message().to_owned(),
        _ => error.to_string(),
    }
}

/// Whether an error would recur on another attempt, so that the result is that the launches are not fused.
pub(super) fn is_permanent(error: &Error) -> bool {
    error.is_deterministic()
        && matches!(
            error.kind(),
            ErrorKind::Unsupported | ErrorKind::BuildFailed | ErrorKind::InvalidModule
        )
}
