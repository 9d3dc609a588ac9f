//! Check that the modules which a driver links agree on the types of their shared symbols. Not every driver
//! checks this.
//!
//! SPIR-V states its types. OpenCL C is translated for the comparison, by nodes that are kept and stored like
//! any other. A text that cannot be translated, for example because clang is missing, is left to the driver.

use std::sync::Arc;

use futures::future::join_all;
use kiln_spirv::{Input, check_signatures};

use super::graph::BuildGraph;
use super::input::BuildInput;
use super::link::describe;
use super::plan::BuildPlan;
use crate::device::ModuleFormat;
use crate::error::Result;
use crate::source::module::Module;

/// SPIR-V of linked modules. Modules that cannot be translated are left out.
pub(super) struct Signatures(Vec<Signed>);

struct Signed {
    /// Name for messages.
    name: String,
    module: Module,
    /// Names of the definitions that are removed.
    replaced: Vec<String>,
}

impl Signatures {
    /// Compares the types of the shared symbols.
    ///
    /// # Errors
    ///
    /// [`BuildFailed`](crate::ErrorKind::BuildFailed), naming both modules, the symbol and both types.
    pub(super) fn check(&self) -> Result<()> {
        let parse = |Signed { name, module, replaced }: &Signed| {
            // A module that cannot be parsed is left to the driver.
            let mut module = kiln_spirv::Module::parse(module.code()).ok()?;
            kiln_spirv::remove_definitions(&mut module, replaced).ok()?;
            Some((name.clone(), module))
        };
        let modules: Vec<_> = self.0.iter().filter_map(parse).collect();
        let inputs: Vec<_> = modules.iter().map(|(name, module)| Input { name, module }).collect();
        check_signatures(&inputs)
    }
}

impl BuildGraph {
    /// Collects the SPIR-V of a plan's modules, to compare the types of shared symbols. Never blocks.
    pub(super) async fn signatures(self: &Arc<Self>, plan: &BuildPlan) -> Signatures {
        // A device that runs no code accepts any text, so its texts need not be OpenCL C.
        let runs_code = self.device(plan.device()).runs_code;
        let translate = async |input: &BuildInput| {
            if !runs_code && input.module().format() != ModuleFormat::SpirV {
                return None;
            }
            let name = describe(input.module());
            let translated = self.spirv_of(input, plan.device()).await.inspect_err(|error| {
                tracing::debug!(%error, module = name, "parameter types are not compared");
            });
            Some(Signed { name, module: translated.ok()?, replaced: input.replaced.clone() })
        };
        let modules = join_all(plan.inputs().iter().map(translate)).await;
        Signatures(modules.into_iter().flatten().collect())
    }
}
