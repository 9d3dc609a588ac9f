//! Guarded variants of kernels: programs of the graph, compiled from SPIR-V with a check before each access
//! that is not proven.

use std::sync::Arc;

use super::analysis::Analysis;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::requested::RequestedProgram;
use crate::build_graph::spec::BuildSpec;
use crate::compiler::bounds::{self, LaunchVerdict};
use crate::compiler::spirv;
use crate::device::Workarounds;
use crate::error::Result;
use crate::source::module::Module;

/// Guarded variant of a kernel. Its program may still be building.
pub(crate) struct Guard {
    pub(crate) kernel: Kernel,
    /// Positions of the arguments whose lengths in bytes follow the arguments of the launch.
    pub(crate) lengths: Box<[usize]>,
    /// Verdict on the launches for which the variant was built.
    pub(super) verdict: LaunchVerdict,
}

impl BuildGraph {
    /// Requests the guarded variant for a report.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an access that cannot be guarded.
    pub(super) fn guard(
        self: &Arc<Self>,
        analysis: &Analysis,
        report: &bounds::Report,
    ) -> Result<Arc<Guard>> {
        let mut guarded = bounds::guard(&analysis.kernel, report)?;
        let device = self.device(analysis.plan.device());
        if Workarounds::of(device).split_volatile_loads {
            spirv::split_volatile_loads(&mut guarded.module)?;
        }
        let requested = analysis.plan.requested();
        let is_untrusted = analysis.plan.has_untrusted();
        let module = Module::spirv(guarded.module.assemble())?.untrusted_if(is_untrusted);
        let mut spec =
            BuildSpec::new(module.labeled_like(requested.module()), analysis.plan.device());
        spec.set_all_options(&requested.call_options());
        self.counters().guarded_variants.add_one();
        let verdict = report.verdict(&analysis.kernel);
        let name = verdict.kernel().to_owned();
        let reasons: Vec<_> = verdict.findings().iter().map(ToString::to_string).collect();
        tracing::info!(kernel = %name, ?reasons, "a launch is not proven, so that a guarded variant of its kernel is built");
        let plan = &analysis.plan;
        let (graph, is_text) = (Arc::clone(self), plan.is_checked_text || plan.is_emitted);
        let build = async move {
            match is_text {
                true => graph.build_as_text(spec).await,
                false => graph.request(spec).completed().await,
            }
        };
        let program = RequestedProgram::spawned(self, build);
        let kernel = Kernel::of_build(&program, &name);
        Ok(Arc::new(Guard { kernel, lengths: guarded.lengths.into(), verdict }))
    }
}
