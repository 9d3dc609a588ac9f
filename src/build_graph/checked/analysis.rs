//! Analysis of a program's kernel: the kernel as the check needs it, and the program that runs.

use std::sync::Arc;

use kiln_compiler::bounds;

use super::plan::{faithful_plan, fused_plan, plan_to_run, prepare, prepare_all};
use super::sources::Sources;
use crate::build_graph::built::Built;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::link::describe;
use crate::build_graph::plan::BuildPlan;
use crate::device::{Device, ModuleFormat};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Priority;
use crate::source::module::Module;
use crate::source::translate::Names;

/// Kernel that is prepared for the check.
pub(crate) struct Analysis {
    pub(super) kernel: bounds::Kernel,
    /// Number of bytes that a work-item needs on the stack of a CPU's thread, if it is known.
    pub(super) private_bytes: Option<u64>,
    /// Plan of the program whose kernel runs.
    pub(super) plan: BuildPlan,
    /// Sources of the kernel, unless its SPIR-V was given.
    pub(super) sources: Option<Sources>,
}

impl Analysis {
    /// Returns the analysis of a kernel that is prepared, whose program is that of a plan.
    pub(super) fn prepared(
        kernel: bounds::Kernel,
        plan: BuildPlan,
        sources: Option<Sources>,
    ) -> Self {
        let private_bytes = kernel.private_bytes();
        Self { kernel, private_bytes, plan, sources }
    }

    /// Prepares a kernel of a program that is not a checked one, or which fusion made.
    fn of(
        plan: BuildPlan,
        device: &Device,
        name: &str,
        is_fused: bool,
        sources: Option<Sources>,
    ) -> Result<Self> {
        let kernel = prepare(&plan, device, name, is_fused)?;
        Ok(Self::prepared(kernel, plan, sources))
    }
}

/// Kernels of the modules of a plan, as far as they can be checked.
pub(super) struct Analysed {
    /// Plan of the program of the kernels that can be checked.
    pub(super) plan_to_run: BuildPlan,
    /// Each kernel by name, or the reason why its launches cannot be checked.
    pub(super) kernels: Vec<(String, Result<bounds::Kernel>)>,
    /// Modules of the plan as SPIR-V.
    pub(super) modules: Vec<Module>,
}

impl Analysed {
    /// Analyses the kernels of a plan, given the SPIR-V of its modules.
    ///
    /// # Errors
    ///
    /// The reason for the first kernel, if none of them can be checked.
    pub(super) fn of(plan: &BuildPlan, modules: &[Module], device: &Device) -> Result<Self> {
        let checked = faithful_plan(plan, modules, device)?;
        checked.check_calls()?;
        let kernels = prepare_all(&checked, device)?;
        let is_fit = |name: &str| kernels.iter().any(|(own, kernel)| own == name && kernel.is_ok());
        if !kernels.iter().any(|(_, kernel)| kernel.is_ok()) {
            let first = kernels.into_iter().find_map(|(_, kernel)| kernel.err());
            return Err(first.unwrap_or_else(|| {
                Error::unsupported(format!("{} has no kernels to be launched", plan.describe()))
            }));
        }
        let plan_to_run = plan_to_run(&checked, device, is_fit)?;
        Ok(Self { plan_to_run, kernels, modules: modules.to_vec() })
    }
}

/// Fails if nothing can be known of the code of a plan.
pub(super) fn analysable(plan: &BuildPlan, device: &Device) -> Result<()> {
    let refuse = |reason: &str| {
        Error::unsupported(format!(
            "launches cannot be checked: {reason}; `unsafe program.kernel(..)` gives kernels unchecked"
        ))
    };
    if !device.runs_code {
        return Err(refuse("kernels of a simulated device are closures"));
    }
    let is_native = |module: &Module| module.format() == ModuleFormat::Native;
    match plan.inputs().iter().find(|input| is_native(input.module())) {
        Some(input) => Err(refuse(&format!(
            "{} is a native binary, which has no SPIR-V",
            describe(input.module())
        ))),
        None => Ok(()),
    }
}

impl BuildGraph {
    /// Analyses a kernel whose program consists of trusted SPIR-V, at once. Returns `None` for other programs.
    ///
    /// # Errors
    ///
    /// Fails like [`analysis`](Self::analysis).
    pub(super) fn analysis_at_once(
        &self,
        built: &Built,
        name: &str,
        is_fused: bool,
    ) -> Option<Result<Arc<Analysis>>> {
        let plan = match self.analysable(built, name) {
            Ok(plan) => plan,
            Err(error) => return Some(Err(error)),
        };
        let inputs = plan.inputs().iter();
        let modules = inputs.map(|input| input.module()).collect::<Vec<_>>();
        let is_simple =
            |module: &&Module| module.format() == ModuleFormat::SpirV && !module.is_untrusted();
        if built.is_untrusted() || plan.is_checked_text || !modules.iter().all(is_simple) {
            return None;
        }
        let device = built.device();
        let modules: Vec<_> = modules.into_iter().cloned().collect();
        let sources = Sources::of(plan, built.device(), &modules, name, built.text());
        let checked = match is_fused {
            true => fused_plan(plan, &modules, device),
            false => faithful_plan(plan, &modules, device),
        };
        let analysed = checked.and_then(|plan| Analysis::of(plan, device, name, is_fused, sources));
        Some(analysed.map(Arc::new))
    }

    /// Analyses a kernel of a program. Translates OpenCL C first, and does the work on a thread of the pool.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](ErrorKind::Unsupported), naming the kernel and the reason, if its launches cannot be
    ///   checked, and with what to install if OpenCL C cannot be translated.
    /// * [`BuildFailed`](ErrorKind::BuildFailed) if the front end refuses the text, and the transient errors of
    ///   [`spirv_of`](Self::spirv_of).
    pub(super) async fn analysis(
        self: &Arc<Self>,
        built: &Arc<Built>,
        name: &str,
    ) -> Result<Arc<Analysis>> {
        let plan = self.analysable(built, name)?.clone();
        let is_untrusted = built.is_untrusted();
        let (mut modules, needed) = (Vec::new(), Names::from_iter([name.to_owned()]));
        for input in plan.inputs() {
            let input = input.clone().untrusted_if(is_untrusted);
            let module = match plan.inputs() {
                [_] => self.spirv_of_kernels(&input, plan.device(), needed.clone()).await,
                _ => self.spirv_of(&input, plan.device()).await,
            };
            modules.push(module.map_err(|error| {
                let text = describe(input.module());
                error.within(format_args!(
                    "the launches of `{name}` cannot be checked: {text} is not translated to SPIR-V"
                ))
            })?);
        }
        let sources = Sources::of(&plan, built.device(), &modules, name, built.text());
        let (device, kernel) = (built.device().clone(), name.to_owned());
        let analyse = move || {
            let plan = faithful_plan(&plan, &modules, &device)?;
            Ok(Analysis::of(plan, &device, &kernel, false, None))
        };
        let pool = self.pool_for(is_untrusted);
        let analysed: Result<_> = pool.threads().run(Priority::Short, analyse).await?;
        match (analysed?, &sources) {
            (Ok(analysis), _) => Ok(Arc::new(Analysis { sources, ..analysis })),
            (Err(error), Some(sources)) if error.kind() == ErrorKind::Unsupported => {
                Err(sources.refusal(self).await.unwrap_or(error))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Returns the plan of a program, unless nothing can be known of its code.
    fn analysable<'a>(&self, built: &'a Built, name: &str) -> Result<&'a BuildPlan> {
        let plan = built.plan().ok_or_else(|| {
            Error::unsupported(format!(
                "the launches of `{name}` cannot be checked: the modules that the program was built from are not known"
            ))
        })?;
        analysable(plan, built.device()).map_err(|error| error.within(format_args!("`{name}`")))?;
        Ok(plan)
    }

    /// Returns whether a program was compiled from what was analysed.
    pub(super) fn runs_as_analysed(&self, built: &Built, analysis: &Analysis) -> bool {
        self.key(&analysis.plan) == built.key()
    }
}
