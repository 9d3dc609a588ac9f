//! Checked kernels, as programs and builds return them.

use std::sync::{Arc, Weak};

use super::analysis::Analysis;
use super::checks::Checks;
use crate::build_graph::built::Built;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::outcome::Outcome;
use crate::build_graph::requested::RequestedProgram;
use crate::build_graph::shared_outcome::{SharedOutcome, completed, shared_outcome};
use crate::error::{Error, Result, catch_panics};

impl BuildGraph {
    /// Returns a kernel of a program whose launches are checked.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](crate::ErrorKind::UnknownKernel), and the errors of the analysis as far as they are
    /// known at once.
    pub(in crate::build_graph) fn checked_kernel(
        self: &Arc<Self>,
        built: &Arc<Built>,
        name: &str,
    ) -> Result<Kernel> {
        let own = built.resolve(name)?;
        let checks = self.checks_of(built, name, false)?;
        if let Some(Ok(analysis)) = checks.peek()
            && self.runs_as_analysed(built, &analysis)
        {
            return Ok(Kernel::checked(name, Ok(own), self, checks));
        }
        let program = self.program_to_run(Arc::clone(built), &checks);
        Ok(Kernel::checked(name, Err(program), self, checks))
    }

    /// Returns a kernel, whose launches are checked, of a program that may still be building.
    pub(in crate::build_graph) fn checked_kernel_of(
        self: &Arc<Self>,
        requested: &RequestedProgram,
        name: &str,
    ) -> Kernel {
        let (graph, program, kernel) = (Arc::clone(self), requested.clone(), name.to_owned());
        let analysis = self.share(async move {
            let built = program.await?.built;
            built.resolve(&kernel)?;
            graph.analysis(&built, &kernel).await
        });
        let checks = Arc::new(Checks::new(self, name, analysis));
        let (graph, requested, own) = (Arc::clone(self), requested.clone(), Arc::clone(&checks));
        let program = RequestedProgram::spawned(self, async move {
            let built = requested.await?.built;
            graph.checked_program(built, own.analysis().await?).await
        });
        Kernel::checked(name, Err(program), self, checks)
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

    /// Requests the program that runs as it was analysed.
    fn program_to_run(
        self: &Arc<Self>,
        built: Arc<Built>,
        checks: &Arc<Checks>,
    ) -> RequestedProgram {
        let (graph, checks) = (Arc::clone(self), Arc::clone(checks));
        RequestedProgram::spawned(self, async move {
            let analysis = checks.analysis().await?;
            graph.checked_program(built, analysis).await
        })
    }

    /// Starts an analysis, and shares its outcome.
    fn share(
        &self,
        analysis: impl Future<Output = Result<Arc<Analysis>>> + Send + 'static,
    ) -> SharedOutcome<Result<Arc<Analysis>>> {
        let (shared, promise) = shared_outcome();
        let spawned = self.builds().spawn(async move {
            promise.complete(catch_panics(analysis).await);
        });
        match spawned {
            Ok(()) => shared,
            Err(error) => completed(Err(error)),
        }
    }
}

/// Returns the graph of a program's runtime.
///
/// # Errors
///
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the runtime has ended.
pub(in crate::build_graph) fn graph_of(
    graph: &Weak<BuildGraph>,
    kernel: &str,
) -> Result<Arc<BuildGraph>> {
    graph.upgrade().ok_or_else(|| runtime_ended(kernel))
}

/// Returns the error for a kernel whose runtime has ended.
pub(in crate::build_graph) fn runtime_ended(kernel: &str) -> Error {
    Error::invalid(format!("`{kernel}` cannot be checked: the runtime of its program has ended"))
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
