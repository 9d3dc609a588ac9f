//! Analysis of a program's kernel: the kernel as the check needs it, and the program that runs.

use std::sync::Arc;

use super::plan::{faithful_plan, prepare};
use super::sources::Sources;
use crate::build_graph::built::Built;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::link::describe;
use crate::build_graph::outcome::{Answer, Outcome};
use crate::build_graph::plan::BuildPlan;
use crate::build_graph::shared_outcome::shared_outcome;
use crate::compiler::bounds;
use crate::device::{Device, ModuleFormat};
use crate::error::{Error, ErrorKind, Result, catch_panics};
use crate::executor::Priority;
use crate::source::module::Module;
use crate::source::translate::Names;

/// Kernel that is prepared for the check.
pub(crate) struct Analysis {
    pub(super) kernel: bounds::Kernel,
    /// Number of bytes of the variables of a work-item, if it is known.
    pub(super) private_bytes: Option<u64>,
    /// Plan of the program whose kernel runs.
    pub(super) plan: BuildPlan,
    /// Sources of the kernel, unless its SPIR-V was given.
    pub(super) sources: Option<Sources>,
}

impl Analysis {
    /// Prepares a kernel of a checked program, which was built from OpenCL C, or which fusion made.
    fn of(
        plan: BuildPlan,
        device: &Device,
        name: &str,
        is_fused: bool,
        sources: Option<Sources>,
    ) -> Result<Self> {
        let kernel = prepare(&plan, device, name, is_fused)?;
        let private_bytes = kernel.private_bytes();
        Ok(Self { kernel, private_bytes, plan, sources })
    }
}

impl BuildGraph {
    /// Requests the program that runs if only checked launches use its kernels. For a text that a driver would
    /// compile, this is the [checked program](super): the driver does not compile the text itself. If that
    /// cannot be translated or compiled, the answer is that for the text, whose checked kernels have the errors.
    /// For other plans it is the program itself, which may be the checked one.
    pub(in crate::build_graph) fn request_checked(self: &Arc<Self>, plan: BuildPlan) -> Answer {
        if !plan.is_plain_text() || !self.device(plan.device()).runs_code {
            return self.request_plan(plan);
        }
        let (shared, promise) = shared_outcome();
        let graph = Arc::clone(self);
        let request = async move {
            match graph.checked_answer(&plan).await {
                Ok(answer) => Ok(answer),
                Err(error) => {
                    tracing::debug!(%error, "a text is compiled as it is, and not for checked launches");
                    Ok(graph.request_plan(plan))
                }
            }
        };
        let spawned = self.builds().spawn(async move {
            promise.complete(catch_panics(request).await.unwrap_or_else(Answer::Refused));
        });
        spawned.map_or_else(Answer::Refused, |()| Answer::Reading(shared))
    }

    /// Requests the checked program of a text, and waits for it.
    async fn checked_answer(self: &Arc<Self>, text: &BuildPlan) -> Result<Answer> {
        let (input, device) = (text.requested(), self.device(text.device()).clone());
        let modules = [self.spirv_of(input, text.device()).await?];
        let (plan, is_untrusted) = (text.clone(), text.has_untrusted());
        let make = move || faithful_plan(&plan, &modules, &device);
        let plan = self.pool_for(is_untrusted).threads().run(Priority::Short, make).await??;
        let answer = self.request_plan(plan);
        answer.clone().completed().await?.set_text(input);
        Ok(answer)
    }

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
        let sources = Sources::of(built, plan, &modules, name);
        let checked = faithful_plan(plan, &modules, device);
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
        let sources = Sources::of(built, &plan, &modules, name);
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
        let refuse = |reason: &str| {
            Error::unsupported(format!(
                "the launches of `{name}` cannot be checked: {reason}; `unsafe program.kernel(\"{name}\")` \
                 gives the kernel unchecked"
            ))
        };
        if !built.device().runs_code {
            return Err(refuse("kernels of a simulated device are closures"));
        }
        let plan = built
            .plan()
            .ok_or_else(|| refuse("the modules that the program was built from are not known"))?;
        let is_native = |module: &Module| module.format() == ModuleFormat::Native;
        match plan.inputs().iter().find(|input| is_native(input.module())) {
            Some(input) => Err(refuse(&format!(
                "{} is a native binary, which has no SPIR-V",
                describe(input.module())
            ))),
            None => Ok(plan),
        }
    }

    /// Returns the program whose kernel runs: `built` itself if it was compiled as it was analysed.
    pub(super) async fn checked_program(
        self: &Arc<Self>,
        built: Arc<Built>,
        analysis: Arc<Analysis>,
    ) -> Outcome {
        if self.runs_as_analysed(&built, &analysis) {
            return Ok(built);
        }
        let plan = &analysis.plan;
        let program = self.request_plan(plan.clone()).completed().await;
        match program {
            // OpenCL C cannot express everything.
            Err(error) if error.kind() == ErrorKind::Unsupported && plan.is_emitted => {
                let spirv = BuildPlan { is_emitted: false, ..plan.clone() };
                let takes_spirv = built.device().formats.contains(&ModuleFormat::SpirV);
                if takes_spirv { self.request_plan(spirv).completed().await } else { Err(error) }
            }
            program => program,
        }
    }

    /// Returns whether a program was compiled from what was analysed.
    pub(super) fn runs_as_analysed(&self, built: &Built, analysis: &Analysis) -> bool {
        self.key(&analysis.plan) == built.key()
    }
}
