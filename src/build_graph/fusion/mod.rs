//! Fused programs in the build graph: plans of launches, the results of fusing them, and the programs built for
//! the plans that could be fused.
//!
//! A plan is [looked up](query) by its launches. The lookup ignores the identity of the buffers, and the
//! values of scalars on which no proof depends. An unknown plan is compiled on a worker: the worker reads the
//! modules of the programs, translated by the [front end](crate::source::translate) if necessary, and
//! produces a SPIR-V module for each [group] of launches that run together. These modules are built
//! like any other. Plans that produce the same module, such as plans of different sizes, share the program.
//!
//! There are several [ways](way) to run a group: one by one, and as kernels in different forms.
//! [Trials](trial) on the application's own runs find the fastest, and its [times](timing) are stored on
//! disk.

mod group;
pub(super) mod known;
mod material;
mod query;
mod source;
mod timing;
mod trial;
mod values;
mod way;

use std::sync::Arc;

use super::graph::BuildGraph;
use super::kernel::Kernel;
use crate::compiler::fusion::{FusionForm, FusionReport, Plan, Trust};
use crate::error::{Error, ErrorKind, Result};
use group::LaunchGroup;
use known::Fusion;
use material::{Found, Material};
pub(crate) use query::Query;
pub(crate) use trial::ONE_BY_ONE;
use values::Values;
pub(crate) use way::{FusedKernel, Step};

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
    /// Whether one kernel for all launches is needed, even if other ways are known to be faster.
    pub(crate) needs_one_kernel: bool,
}

impl BuildGraph {
    /// Returns the known result for the launches. Does not block.
    pub(crate) fn known_fusion(&self, query: &Query) -> Option<Arc<Fusion>> {
        self.fusions().get(query)
    }

    /// Determines whether the launches can run as one kernel or as several, and builds the kernels.
    ///
    /// # Errors
    ///
    /// Transient errors, for which a later attempt may succeed. Launches that cannot be fused are a result, not
    /// an error.
    pub(crate) async fn fuse(self: Arc<Self>, request: FusionRequest) -> Result<Arc<Fusion>> {
        let fusion = match self.fusions().get(&request.query) {
            Some(known) => known,
            None => self.new_fusion(&request).await?,
        };
        if request.needs_one_kernel && fusion.can_be_one_kernel() && !fusion.has_one_kernel() {
            // Another way is known to be faster, so the kernel was not built.
            let request = FusionRequest { is_tried: false, ..request };
            match self.attempt(&request).await {
                Ok((fresh, _)) => fusion.adopt(&fresh),
                Err(error) if is_permanent(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(fusion)
    }

    /// Fuses launches whose result is not known.
    async fn new_fusion(self: &Arc<Self>, request: &FusionRequest) -> Result<Arc<Fusion>> {
        let FusionRequest { query, plan, .. } = request;
        match self.attempt(request).await {
            Ok((fusion, material)) => {
                let fusion = self.fusions().keep(query, fusion);
                self.try_further(&material, &fusion);
                Ok(fusion)
            }
            Err(error) if is_permanent(&error) => {
                let report = FusionReport::refused(plan, error.to_string());
                let fusion = Fusion::refused(Values::fixed_by(plan), report);
                Ok(self.fusions().keep(query, fusion))
            }
            Err(error) => Err(error),
        }
    }

    /// Fuses the launches. Errors include those that are [permanent](is_permanent).
    async fn attempt(self: &Arc<Self>, request: &FusionRequest) -> Result<(Fusion, Arc<Material>)> {
        if !self.device(request.device).runs_code {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "kernels of a simulated device are closures, which cannot be fused",
            ));
        }
        let material = Arc::new(Material::read(self, request).await?);
        let own = Arc::clone(&material);
        let found = material.compile(self, move |launches| own.search(launches)).await?;
        let Found { mut report, values, parts } = found;
        let mut groups = Vec::new();
        let is_whole = parts.len() == 1;
        for (part, further) in parts {
            let slots = part.slots.clone();
            match self.launch_group(&material, &values, part, further).await {
                Err(error) if is_permanent(&error) && is_whole => {
                    report.refuse(format!("the fused kernel could not be built: {error}"));
                }
                Err(error) if is_permanent(&error) => {
                    tracing::debug!(%error, ?slots, "a fused kernel could not be built");
                    groups.push(LaunchGroup::new(self, slots));
                }
                group => groups.push(group?),
            }
        }
        Ok((Fusion { values, report, groups }, material))
    }
}

/// Whether an error would recur on another attempt, so that the result is that the launches are not fused.
fn is_permanent(error: &Error) -> bool {
    error.is_deterministic()
        && matches!(
            error.kind(),
            ErrorKind::Unsupported | ErrorKind::BuildFailed | ErrorKind::InvalidModule
        )
}
