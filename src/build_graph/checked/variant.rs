//! Variants of kernels, as programs of the graph: with a check before each access that is not proven, and with
//! offsets for slices that the device does not take as arguments.

use std::sync::Arc;

use kiln_compiler::bounds::{self, LaunchVerdict, Offset};

use super::analysis::Analysis;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::build_graph::requested::RequestedProgram;
use crate::build_graph::spec::BuildSpec;
use crate::device::Workarounds;
use crate::error::Result;
use crate::source::module::Module;

/// Variant of a kernel. Its program may still be building.
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    /// Positions of the arguments whose lengths in bytes follow the arguments of the launch.
    pub(crate) lengths: Box<[usize]>,
    /// Arguments whose offsets in bytes follow the lengths.
    pub(crate) offsets: Box<[Offset]>,
    /// Verdict on the checked launches for which the variant was built.
    pub(super) verdict: Option<LaunchVerdict>,
}

impl Variant {
    /// Whether the variant has guards.
    pub(crate) fn is_guarded(&self) -> bool {
        self.unproven().is_some()
    }

    /// Returns the verdict on launches that are not proven.
    pub(super) fn unproven(&self) -> Option<&LaunchVerdict> {
        self.verdict.as_ref().filter(|verdict| !verdict.is_proven())
    }

    /// Whether the variant runs in place of a checked kernel.
    pub(crate) fn is_checked(&self) -> bool {
        self.verdict.is_some()
    }

    /// Whether the variant's build has failed, and may succeed later.
    pub(super) fn may_be_tried_again(&self) -> bool {
        matches!(self.kernel.resolved(), Some(Err(error)) if !error.is_deterministic())
    }
}

impl BuildGraph {
    /// Requests a variant that guards what the report does not prove, if there is a report, and that takes offsets
    /// for the arguments at the positions of `with_offset`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for an access that cannot be guarded.
    pub(super) fn variant(
        self: &Arc<Self>,
        analysis: &Analysis,
        report: Option<&bounds::Report>,
        with_offset: &[usize],
    ) -> Result<Arc<Variant>> {
        let unproven = report.filter(|report| !report.is_proven());
        let mut new = bounds::variant(&analysis.kernel, unproven, with_offset)?;
        let device = self.device(analysis.plan.device());
        if Workarounds::of(device).split_volatile_loads {
            kiln_spirv::split_volatile_loads(&mut new.module)?;
        }
        kiln_spirv::own_names(&mut new.module, |_| true)?;
        let requested = analysis.plan.requested();
        let is_untrusted = analysis.plan.has_untrusted();
        let module = Module::spirv(new.module.assemble())?.untrusted_if(is_untrusted);
        let mut spec =
            BuildSpec::new(module.labeled_like(requested.module()), analysis.plan.device());
        spec.set_all_options(&requested.call_options());
        let verdict = report.map(|report| report.verdict(&analysis.kernel));
        let name = analysis.kernel.name();
        if let (Some(verdict), Some(_)) = (&verdict, unproven) {
            self.counters().launches.guarded_variants.add_one();
            let reasons: Vec<_> = verdict.findings().iter().map(ToString::to_string).collect();
            tracing::info!(kernel = %name, ?reasons, "a launch is not proven, so that a guarded variant of its kernel is built");
        }
        if !with_offset.is_empty() {
            tracing::info!(kernel = %name, arguments = ?with_offset, "the device does not take slices at their offsets, so that a variant of the kernel is built that adds the offsets");
        }
        let plan = &analysis.plan;
        let (graph, is_text) = (Arc::clone(self), plan.is_checked_text || plan.is_emitted);
        let build = async move {
            match is_text {
                true => graph.build_as_text(spec).await,
                false => graph.request(spec).completed().await,
            }
        };
        let program = RequestedProgram::spawned(self, build);
        let kernel = Kernel::of_build(&program, name);
        let (lengths, offsets) = (new.lengths.into(), new.offsets.into());
        Ok(Arc::new(Variant { kernel, lengths, offsets, verdict }))
    }
}
