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
    /// * [`Unsupported`](ErrorKind::Unsupported) for a native binary, for options that are not known to mean
    ///   the same to clang, and if there are no compilers, stating what to install.
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
        let asked = match self.front_end().known_tools() {
            _ if input.module().format() != ModuleFormat::OpenClC => {
                Asked::Now(as_it_is(input.module()))
            }
            // A request that starts no process is made here, so that a kept translation is available at once.
            Some(tools) if !input.module().includes_files() => {
                Asked::Now(self.translate(input, device, &Arc::clone(tools)))
            }
            _ => {
                let (sender, receiver) = oneshot::channel();
                let (graph, input) = (Arc::clone(self), input.clone());
                let pool = self.pool_for(input.module().is_untrusted());
                pool.submit(move || {
                    let answer = catch_panic(|| {
                        let tools = Arc::clone(graph.front_end().tools()?);
                        graph.translate(&input, device, &tools)
                    });
                    // The caller may be gone.
                    let _ = sender.send(answer);
                });
                Asked::Soon(receiver)
            }
        };
        async move {
            let translating = match asked {
                Asked::Now(translating) => translating?,
                Asked::Soon(receiver) => {
                    receiver.await.unwrap_or_else(|oneshot::Canceled| Err(no_thread()))?
                }
            };
            let answer = match translating {
                Translating::Done(module) => return Ok(module),
                Translating::Asked(answer) => answer,
            };
            let built = answer.completed().await?;
            built.spirv().cloned().ok_or_else(|| {
                Error::new(ErrorKind::Panicked, "the result of a translation is not SPIR-V")
            })
        }
    }

    /// Returns the plan that replaces that of texts once they are SPIR-V, for a device that takes no OpenCL
    /// C. All texts are translated concurrently. Never blocks, like [`spirv_of`](Self::spirv_of).
    pub(super) fn in_spirv(
        self: &Arc<Self>,
        texts: &BuildPlan,
    ) -> impl Future<Output = Result<BuildPlan>> + Send + use<> {
        let is_only = texts.inputs().len() == 1;
        let ask = |input: &BuildInput| {
            let name = (!is_only).then(|| describe(input.module()));
            let translated = self.spirv_of(input, texts.device());
            async {
                translated.await.map_err(|error| match name {
                    Some(name) => error.within(name),
                    None => error,
                })
            }
        };
        let modules: Vec<_> = texts.inputs().iter().map(ask).collect();
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

    /// Requests the node. Blocks if the text includes files: clang then reads them.
    fn translate(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
        tools: &Arc<Tools>,
    ) -> Result<Translating> {
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
        Ok(Translating::Asked(self.ask_uncounted(plan)))
    }
}

/// Returns a module that is not OpenCL C, if it is SPIR-V, and fails for native binaries.
fn as_it_is(module: &Module) -> Result<Translating> {
    if module.format() == ModuleFormat::SpirV {
        return Ok(Translating::Done(module.clone()));
    }
    Err(Error::unsupported(
        "a native binary has no SPIR-V; build the program from OpenCL C or SPIR-V",
    ))
}

/// State of the request for the node: made already, or to be made by a worker.
enum Asked {
    Now(Result<Translating>),
    Soon(oneshot::Receiver<Result<Translating>>),
}

enum Translating {
    Done(Module),
    Asked(Answer),
}
