//! Nodes that are SPIR-V: translations of OpenCL C.

use std::future::Future;
use std::sync::Arc;

use futures::channel::oneshot;
use futures::future::try_join_all;

use super::graph::BuildGraph;
use super::input::BuildInput;
use super::link::describe;
use super::outcome::Answer;
use super::plan::BuildPlan;
use super::pool::catch_panic;
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::process::threads::no_thread;
use crate::source::module::Module;
use crate::source::translate::{self, Tools, Translation};

impl BuildGraph {
    /// Returns the SPIR-V of a module, for a device and with the options of a build. A SPIR-V module is
    /// returned as it is. The translation of OpenCL C is kept, shared while in flight, and stored, like a
    /// program. Never blocks; the work starts at once and runs to its end even if the future is dropped.
    ///
    /// # Errors
    ///
    /// From the future:
    ///
    /// * [`Unsupported`](ErrorKind::Unsupported) for a native binary, for options that clang is not known to
    ///   interpret like drivers, and if there are no compilers, stating what to install.
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with the log, if the compilers refuse the text. The failure
    ///   is kept.
    /// * [`Configuration`](ErrorKind::Configuration) if the compilers that were set are not valid.
    /// * [`OutOfResources`](ErrorKind::OutOfResources), [`Io`](ErrorKind::Io) or [`Driver`](ErrorKind::Driver)
    ///   if the compilers cannot be run or do not end, and `Io` if the files that the text includes are no
    ///   longer those that its key covers. A new request tries again.
    pub(crate) fn spirv_of(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
    ) -> impl Future<Output = Result<Module>> + Send + use<> {
        let request = match self.front_end().known_tools() {
            _ if input.module().format() != ModuleFormat::OpenClC => {
                SpirvRequest::Made(unchanged_spirv(input.module()))
            }
            // A request that starts no process is made here, so that a kept translation is available at once.
            Some(tools) if !input.module().includes_files() => {
                SpirvRequest::Made(self.request_translation(input, device, &Arc::clone(tools)))
            }
            _ => {
                let (sender, receiver) = oneshot::channel();
                let (graph, input) = (Arc::clone(self), input.clone());
                let pool = self.pool_for(input.module().is_untrusted());
                pool.submit(move || {
                    let answer = catch_panic(|| {
                        let tools = Arc::clone(graph.front_end().tools()?);
                        graph.request_translation(&input, device, &tools)
                    });
                    // The caller may be gone.
                    let _ = sender.send(answer);
                });
                SpirvRequest::Queued(receiver)
            }
        };
        async move {
            let answer = match request {
                SpirvRequest::Made(answer) => answer?,
                SpirvRequest::Queued(receiver) => {
                    receiver.await.unwrap_or_else(|oneshot::Canceled| Err(no_thread()))?
                }
            };
            let node = match answer {
                SpirvAnswer::Unchanged(module) => return Ok(module),
                SpirvAnswer::Node(node) => node,
            };
            let built = node.completed().await?;
            built.spirv().cloned().ok_or_else(|| {
                Error::new(ErrorKind::Panicked, "the result of a translation is not SPIR-V")
            })
        }
    }

    /// Translates the texts of a plan for a device that takes no OpenCL C, and returns the plan of their
    /// SPIR-V. All texts are translated concurrently. Never blocks, like [`spirv_of`](Self::spirv_of).
    pub(super) fn plan_in_spirv(
        self: &Arc<Self>,
        texts: &BuildPlan,
    ) -> impl Future<Output = Result<BuildPlan>> + Send + use<> {
        let is_only = texts.inputs().len() == 1;
        let translate = |input: &BuildInput| {
            let name = (!is_only).then(|| describe(input.module()));
            let translated = self.spirv_of(input, texts.device());
            async {
                translated.await.map_err(|error| match name {
                    Some(name) => error.within(name),
                    None => error,
                })
            }
        };
        let modules: Vec<_> = texts.inputs().iter().map(translate).collect();
        let (graph, texts) = (Arc::clone(self), texts.clone());
        async move {
            let modules = try_join_all(modules).await;
            modules.and_then(|modules| graph.translated(&texts, modules)).map_err(|error| {
                let name = &graph.device(texts.device()).name;
                error.within(format!(
                    "`{name}` does not accept OpenCL C, and the translation to SPIR-V failed"
                ))
            })
        }
    }

    /// Requests the node of a translation. Blocks if the text includes files: clang then reads them.
    fn request_translation(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
        tools: &Arc<Tools>,
    ) -> Result<SpirvAnswer> {
        let module = input.module();
        if let Some(flaw) = module.flaw() {
            return Err(flaw.clone());
        }
        let limit = translate::LIMIT;
        let translation = Translation::new(tools, limit, input.options(), self.device(device))?;
        let module = if module.includes_files() {
            let expanded = translation.expand(module.code());
            input.check_files(self.children().limit())?;
            Module::opencl_c(expanded?).untrusted_if(module.is_untrusted())
        } else {
            module.clone()
        };
        let expanded = BuildInput::with_options(module, input.options());
        let plan = BuildPlan::of_translation(expanded, device, translation);
        Ok(SpirvAnswer::Node(self.request_uncounted(plan)))
    }
}

/// Returns a SPIR-V module as it is. Fails for native binaries.
fn unchanged_spirv(module: &Module) -> Result<SpirvAnswer> {
    if module.format() == ModuleFormat::SpirV {
        return Ok(SpirvAnswer::Unchanged(module.clone()));
    }
    Err(Error::unsupported(
        "a native binary has no SPIR-V; build the program from OpenCL C or SPIR-V",
    ))
}

/// Request for the SPIR-V of a module.
enum SpirvRequest {
    /// The request has been made.
    Made(Result<SpirvAnswer>),
    /// A worker makes the request and sends the answer.
    Queued(oneshot::Receiver<Result<SpirvAnswer>>),
}

/// Answer to a request for SPIR-V.
enum SpirvAnswer {
    /// The module is SPIR-V already.
    Unchanged(Module),
    /// Answer of the node that translates the module.
    Node(Answer),
}
