//! Fused programs in the build graph: plans of launches, the results of fusing them, and the programs built for
//! the plans that could be fused.
//!
//! A plan is [looked up](query) by its launches. The lookup ignores the identity of the buffers, and the values
//! of scalars on which no proof depends. An unknown plan is compiled on a worker: the worker reads the modules
//! of the programs, translated by the [front end](crate::source::translate) if necessary, and produces a SPIR-V
//! module. That is built like any other module. Plans that produce the same module, such as plans of different
//! sizes, share the program.

pub(super) mod known;
mod query;
mod source;
mod timing;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::graph::BuildGraph;
use super::kernel::Kernel;
use super::outcome::Outcome;
use super::spec::BuildSpec;
use crate::compiler::fusion::{self, Argument, FusionReport, Place, Plan, Trust, Width};
use crate::compiler::spirv;
use crate::device::{DeviceKind, Limits};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Priority;
use crate::source::module::Module;
use known::{FusedKernel, Fusion};
pub(crate) use query::Query;
use source::Source;
use timing::Timing;
use trial::Trials;
pub(crate) use trial::{Choice, Fastest, Run};

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
}

impl BuildGraph {
    /// Returns the known result for the launches. Does not block.
    pub(crate) fn known_fusion(&self, query: &Query) -> Option<Arc<Fusion>> {
        self.fusions().get(query)
    }

    /// Determines whether the launches can run as one kernel, and builds that kernel.
    ///
    /// # Errors
    ///
    /// Transient errors, for which a later attempt may succeed. Launches that cannot be fused are a result, not
    /// an error.
    pub(crate) async fn fuse(self: Arc<Self>, request: FusionRequest) -> Result<Arc<Fusion>> {
        if let Some(known) = self.fusions().get(&request.query) {
            return Ok(known);
        }
        let FusionRequest { query, device, kernels, plan, trust } = request;
        let fusion = match self.attempt(device, &kernels, &plan, trust).await {
            Err(error) if !is_permanent(&error) => return Err(error),
            Err(error) => Fusion {
                constants: scalar_values(&plan, plan.constants.iter()),
                equal: BTreeSet::new(),
                unequal: BTreeSet::new(),
                report: FusionReport::refused(&plan, error.to_string()),
                fused: None,
                trials: Trials::new(),
                timing: None,
            },
            Ok(fusion) => fusion,
        };
        Ok(self.fusions().keep(&query, fusion))
    }

    /// Fuses the launches. Errors include those that are [permanent](is_permanent).
    async fn attempt(
        self: &Arc<Self>,
        device: usize,
        kernels: &[Kernel],
        plan: &Plan,
        trust: Trust,
    ) -> Result<Fusion> {
        if !self.device(device).runs_code {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "kernels of a simulated device are closures, which cannot be fused",
            ));
        }
        let sources = self.fusion_sources(kernels, plan).await?;
        let options = source::common_options(&sources)?.to_owned();
        let is_untrusted = sources.iter().any(|source| source.is_untrusted);
        let is_text = sources.iter().all(|source| source.is_text);
        let outcome = self.compile_launches(device, plan, &sources, trust).await?;
        let mut fusion = Fusion {
            constants: scalar_values(plan, outcome.constants.iter()),
            report: FusionReport::of(plan, &outcome),
            equal: outcome.equal,
            unequal: outcome.unequal,
            fused: None,
            trials: Trials::new(),
            timing: None,
        };
        let Ok(fused) = outcome.fused else { return Ok(fusion) };
        if let Some(reason) = exceeded_limit(&fused, &self.device(device).limits) {
            fusion.report.refuse(reason);
            return Ok(fusion);
        }
        let module = Module::spirv(fused.module.assemble())?.untrusted_if(is_untrusted);
        let mut spec = BuildSpec::new(module, device);
        spec.set_all_options(&options);
        let built = match is_text {
            true => self.build_as_text(spec).await,
            false => self.request(spec).completed().await,
        };
        let built = built.and_then(|built| Ok((built.key(), Kernel::of(&built, &fused.kernel)?)));
        let (program, kernel) = match built {
            Err(error) if is_permanent(&error) => {
                fusion.report.refuse(format!("the fused kernel could not be built: {error}"));
                return Ok(fusion);
            }
            built => built?,
        };
        fusion.fused = Some(FusedKernel {
            kernel,
            range: fused.range,
            parameters: fused.parameters.iter().filter_map(|p| p.first().copied()).collect(),
            internalized: fused.internalized,
        });
        let plan = plan.without_values(&outcome.constants, &fusion.equal);
        let timing = Arc::new(Timing::new(self, device, program, &plan));
        fusion.timing = Some(Arc::clone(&timing));
        if let Some(times) = timing.load().await {
            fusion.trials.set_known(times);
        }
        Ok(fusion)
    }

    /// Returns the modules of a plan.
    async fn fusion_sources(
        self: &Arc<Self>,
        kernels: &[Kernel],
        plan: &Plan,
    ) -> Result<Vec<Arc<Source>>> {
        let mut sources = Vec::new();
        // Modules are numbered in the order in which slots first name them.
        for (slot, kernel) in plan.slots.iter().zip(kernels) {
            if slot.module == sources.len() {
                let own = plan.slots.iter().filter(|other| other.module == slot.module);
                let needed = own.map(|slot| slot.kernel.clone()).collect();
                let source = Source::of(self, kernel, needed).await;
                let source = source.map_err(|error| error.within(quoted_name(kernel)))?;
                sources.push(Arc::new(source));
            }
        }
        Ok(sources)
    }

    /// Compiles the launches to one kernel, on a worker.
    async fn compile_launches(
        self: &Arc<Self>,
        device: usize,
        plan: &Plan,
        sources: &[Arc<Source>],
        trust: Trust,
    ) -> Result<fusion::Outcome> {
        let is_untrusted = sources.iter().any(|source| source.is_untrusted);
        let is_gpu = self.device(device).kind == DeviceKind::Gpu;
        let width = if is_gpu { Width::GPU } else { Width::ONE };
        let (mut plan, sources) = (plan.clone(), sources.to_vec());
        for slot in &mut plan.slots {
            slot.constants.clone_from(&sources[slot.module].constants);
        }
        let compile = move || {
            let modules: Vec<&spirv::Module> =
                sources.iter().map(|source| &source.module).collect();
            fusion::fuse(&plan, &modules, trust, width)
        };
        self.pool_for(is_untrusted).threads().run(Priority::Short, compile).await?
    }

    /// Builds a fused module whose sources were OpenCL C as OpenCL C, if OpenCL C can express it. A driver may
    /// optimize one language better than another: from text, Intel's CPU runtime makes kernels with unrolled
    /// loops and vectorized accesses to neighbouring elements, which run up to four times as fast as those made
    /// from the same code in SPIR-V.
    async fn build_as_text(self: &Arc<Self>, spec: BuildSpec) -> Outcome {
        let mut text = spec.clone();
        text.prefer_text();
        match self.request(text).completed().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                tracing::debug!(%error, "a fused kernel is built as SPIR-V, not as OpenCL C");
                self.request(spec).completed().await
            }
            built => built,
        }
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

/// Describes the limit of the device that a fused kernel exceeds, if there is one.
fn exceeded_limit(fused: &fusion::Fused, limits: &Limits) -> Option<String> {
    let fusion::Fused { local_bytes, parameter_bytes, .. } = fused;
    if *local_bytes as u64 > limits.local_memory {
        let has = limits.local_memory;
        return Some(format!(
            "the launches together need {local_bytes} bytes of local memory; the device has {has} \
             for a work-group"
        ));
    }
    if *parameter_bytes > limits.max_parameter_size {
        let has = limits.max_parameter_size;
        return Some(format!(
            "the launches together have {parameter_bytes} bytes of arguments; the device allows \
             {has} for a kernel"
        ));
    }
    None
}

/// Describes a kernel for messages.
fn quoted_name(kernel: &Kernel) -> String {
    format!("`{}`", kernel.name())
}

/// Returns the values of the scalars at these places of a plan.
fn scalar_values<'a>(
    plan: &Plan,
    places: impl Iterator<Item = &'a Place>,
) -> BTreeMap<Place, Vec<u8>> {
    places
        .filter_map(|place| match &plan.slots.get(place.slot)?.arguments.get(place.argument)? {
            Argument::Scalar(bytes) => Some((*place, bytes.clone())),
            Argument::Buffer(_) | Argument::Local(_) => None,
        })
        .collect()
}
