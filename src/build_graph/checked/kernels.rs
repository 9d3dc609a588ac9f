//! Builds of checked programs, and checks of single kernels.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::analysis::{Analysed, Analysis, analysable};
use super::checks::Checks;
use super::program::CheckedKernels;
use super::sources::Sources;
use crate::build_graph::built::Built;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::link::describe;
use crate::build_graph::outcome::Outcome;
use crate::build_graph::plan::BuildPlan;
use crate::build_graph::program::Program;
use crate::build_graph::requested::{DeliveredProgram, RequestedProgram};
use crate::build_graph::shared_outcome::{SharedOutcome, completed, shared_outcome};
use crate::device::{Device, ModuleFormat};
use crate::error::{Error, ErrorKind, Result, catch_panics};
use crate::executor::Priority;
use crate::source::module::Module;

impl BuildGraph {
    /// Builds the checked program of a plan.
    pub(super) fn request_checked(
        self: &Arc<Self>,
        plan: BuildPlan,
    ) -> SharedOutcome<Result<Arc<CheckedKernels>>> {
        let graph = Arc::clone(self);
        self.share(async move { graph.checked_kernels(plan).await })
    }

    /// Returns a kernel of a checked program that is being built.
    pub(super) fn checked_kernel_of(
        self: &Arc<Self>,
        kernels: SharedOutcome<Result<Arc<CheckedKernels>>>,
        name: &str,
    ) -> Kernel {
        let (all, own) = (kernels.clone(), name.to_owned());
        let analysis = self.share(async move {
            let kernel = all.await?.kernel(&own)?;
            let analysis = kernel.checks()?.analysis();
            analysis.await
        });
        let own = name.to_owned();
        let program = RequestedProgram::spawned(self, async move {
            let kernel = kernels.await?.kernel(&own)?;
            Ok(Arc::clone(&kernel.built()?.built))
        });
        let checks = Arc::new(Checks::new(self, name, analysis));
        Kernel::checked(name, Err(program), self, checks)
    }

    /// Translates the modules of a plan, analyses their kernels, and builds the program of those that can be checked.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](ErrorKind::Unsupported), with the reason for the first kernel, if none can be checked, and with
    ///   what to install if OpenCL C cannot be translated.
    /// * The errors of [`spirv_of`](Self::spirv_of) and of the build.
    async fn checked_kernels(self: Arc<Self>, mut plan: BuildPlan) -> Result<Arc<CheckedKernels>> {
        let device = self.device(plan.device()).clone();
        analysable(&plan, &device)?;
        let is_untrusted = plan.has_untrusted();
        if plan.includes_files() {
            let limit = self.children().limit();
            let read = move || plan.read_files(limit).map(|()| plan);
            plan = self.read_files(is_untrusted, read).await?;
        }
        let key = (plan.device(), self.key(&plan), is_untrusted);
        if let Some(known) = self.known_checked(&key) {
            return Ok(known);
        }
        let mut modules = Vec::new();
        for input in plan.inputs() {
            let module = self.spirv_of(input, plan.device()).await.map_err(|error| {
                let text = describe(input.module());
                error.within(format_args!(
                    "{text} is not translated to SPIR-V, which launches are checked by"
                ))
            })?;
            modules.push(module);
        }
        let (own, threads) = (Arc::clone(&self), self.pool_for(is_untrusted).threads());
        let analyse = {
            let (plan, device) = (plan.clone(), device.clone());
            move || Analysed::of(&plan, &modules, &device)
        };
        let Analysed { mut plan_to_run, kernels, modules } =
            threads.run(Priority::Short, analyse).await??;
        let mut outcome = own.request_plan(plan_to_run.clone()).completed().await;
        // Text that Kiln made may be what a compiler refuses.
        let is_refusal =
            |error: &Error| matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::BuildFailed);
        if outcome.as_ref().is_err_and(is_refusal)
            && plan_to_run.is_emitted
            && device.formats.contains(&ModuleFormat::SpirV)
        {
            plan_to_run.is_emitted = false;
            outcome = own.request_plan(plan_to_run.clone()).completed().await;
        }
        let built = outcome?;
        let origin = built.origin();
        let mut found = BTreeMap::new();
        for (name, prepared) in kernels {
            let kernel = match prepared {
                Ok(prepared) => {
                    let sources = Sources::of(&plan, &device, &modules, &name, None);
                    let analysis = Analysis::prepared(prepared, plan_to_run.clone(), sources);
                    let analysis = completed(Ok(Arc::new(analysis)));
                    let checks = Arc::new(Checks::new(&own, &name, analysis));
                    Ok(Kernel::checked(&name, Ok(built.resolve(&name)?), &own, checks))
                }
                Err(error) => Err(own.with_lines(&plan, &device, (&modules, &name), error).await),
            };
            found.insert(name.into(), kernel);
        }
        let resolution = plan.resolution().cloned();
        let graph = Arc::downgrade(&own);
        let program = Program::of(DeliveredProgram { built, origin, resolution, graph });
        let kernels = Arc::new(CheckedKernels { program, kernels: found });
        own.keep_checked(key, &kernels);
        Ok(kernels)
    }

    /// Returns the refusal of a kernel with the line of its source, if that can be found.
    async fn with_lines(
        self: &Arc<Self>,
        plan: &BuildPlan,
        device: &Device,
        (modules, name): (&[Module], &str),
        error: Error,
    ) -> Error {
        match Sources::of(plan, device, modules, name, None) {
            Some(sources) if error.kind() == ErrorKind::Unsupported => {
                sources.refusal(self).await.unwrap_or(error)
            }
            _ => error,
        }
    }

    /// Returns the checks of a program's kernel, which fusion may have made. The analysis is done at once if that
    /// takes little time, and started otherwise.
    ///
    /// # Errors
    ///
    /// The errors of an analysis that is done at once.
    pub(in crate::build_graph) fn checks_of(
        self: &Arc<Self>,
        built: &Arc<Built>,
        name: &str,
        is_fused: bool,
    ) -> Result<Arc<Checks>> {
        let analysis = match self.analysis_at_once(built, name, is_fused) {
            Some(analysis) => completed(Ok(analysis?)),
            None => {
                let (graph, built, name) = (Arc::clone(self), Arc::clone(built), name.to_owned());
                self.share(async move { graph.analysis(&built, &name).await })
            }
        };
        Ok(Arc::new(Checks::new(self, name, analysis)))
    }

    /// Starts work, and shares its outcome.
    fn share<T: Clone + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> SharedOutcome<Result<T>> {
        let (shared, promise) = shared_outcome();
        let spawned = self.builds().spawn(async move {
            promise.complete(catch_panics(work).await);
        });
        match spawned {
            Ok(()) => shared,
            Err(error) => completed(Err(error)),
        }
    }
}

impl RequestedProgram {
    /// Creates the request for a program that a future builds. The future runs at once.
    pub(super) fn spawned(
        graph: &BuildGraph,
        build: impl Future<Output = Outcome> + Send + 'static,
    ) -> Self {
        let (shared, promise) = shared_outcome();
        let spawned = graph.builds().spawn(async move {
            promise.complete(catch_panics(build).await);
        });
        match spawned {
            Ok(()) => Self::building(shared),
            Err(error) => Self::failed(error),
        }
    }
}
