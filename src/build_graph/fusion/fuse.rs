//! Fusion of launches: from the known results, or by compiling and building the kernels.

use std::sync::Arc;

use kiln_compiler::fusion::FusionReport;

use super::attempts::KernelInBuild;
use super::fuser::Fuser;
use super::group::LaunchGroup;
use super::known::Fusion;
use super::material::{Found, FusionRequest, Material, is_permanent, reason_of};
use super::query::Query;
use super::values::Values;
use crate::error::{Error, ErrorKind, Result};

impl Fuser {
    /// Returns the known result for the launches. Does not block.
    pub(crate) fn known_fusion(&self, query: &Query) -> Option<Arc<Fusion>> {
        self.known.get(query)
    }

    /// Determines whether the launches can run as one kernel or as several, and builds the kernels.
    ///
    /// # Errors
    ///
    /// Transient errors, for which a later attempt may succeed. Launches that cannot be fused are a result, not
    /// an error.
    pub(crate) async fn fuse(self: Arc<Self>, request: FusionRequest) -> Result<Arc<Fusion>> {
        match self.known.get(&request.query) {
            Some(known) => Ok(known),
            None => self.new_fusion(&request, &KernelInBuild::default()).await,
        }
    }

    /// Fuses launches whose result is not known. Sets `in_build` to the name of each kernel before it is built.
    pub(super) async fn new_fusion(
        self: &Arc<Self>,
        request: &FusionRequest,
        in_build: &KernelInBuild,
    ) -> Result<Arc<Fusion>> {
        let FusionRequest { query, plan, .. } = request;
        match self.attempt(request, in_build).await {
            Ok((fusion, material)) => {
                let fusion = self.known.keep(query, fusion);
                self.try_further(&material, &fusion);
                Ok(fusion)
            }
            Err(error) if is_permanent(&error) => {
                let report = FusionReport::refused(plan, reason_of(&error));
                let fusion = Fusion::refused(Values::fixed_by(plan), report);
                Ok(self.known.keep(query, fusion))
            }
            Err(error) => Err(error),
        }
    }

    /// Fuses the launches. Errors include those that are [permanent](is_permanent).
    async fn attempt(
        self: &Arc<Self>,
        request: &FusionRequest,
        in_build: &KernelInBuild,
    ) -> Result<(Fusion, Arc<Material>)> {
        if !self.graph.device(request.device).fuses {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "kernels of a simulated device are closures, which are fused only if \
                 `Simulator::fusing` was called",
            ));
        }
        let material = Arc::new(self.fusion_material(request, in_build).await?);
        let own = Arc::clone(&material);
        let found = self.with_launches(&material, move |launches| own.search(launches)).await?;
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
                    groups.push(LaunchGroup::new(slots));
                }
                group => groups.push(group?),
            }
        }
        Ok((Fusion { values, report, groups }, material))
    }
}
