//! Nodes that are SPIR-V: translations of OpenCL C.

use std::sync::Arc;

use futures::future::try_join_all;

use super::graph::BuildGraph;
use super::input::BuildInput;
use super::link::describe;
use super::plan::BuildPlan;
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Priority;
use crate::source::module::Module;
use crate::source::translate::{self, Names, Translation};

impl BuildGraph {
    /// Returns the SPIR-V of a module, for a device and with the options of a build. A SPIR-V module is
    /// returned as it is. The translation of OpenCL C is kept, shared while in flight, and stored, like a
    /// program. Never blocks; a translation that has started runs to its end even if the future is dropped.
    ///
    /// # Errors
    ///
    /// * [`Unsupported`](ErrorKind::Unsupported) for a native binary, for options that clang is not known to
    ///   interpret like drivers, and if there are no compilers, stating what to install.
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with the log, if the compilers refuse the text. The failure
    ///   is kept.
    /// * [`Configuration`](ErrorKind::Configuration) if the compilers that were set are not valid.
    /// * [`OutOfResources`](ErrorKind::OutOfResources), [`Io`](ErrorKind::Io) or [`Driver`](ErrorKind::Driver)
    ///   if the compilers cannot be run or do not end, and `Io` if the files that the text includes are no
    ///   longer those that its key covers. A new request tries again.
    pub(crate) async fn spirv_of(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
    ) -> Result<Module> {
        match input.module().format() {
            ModuleFormat::SpirV => return Ok(input.module().clone()),
            ModuleFormat::Native => {
                return Err(Error::unsupported(
                    "a native binary has no SPIR-V; build the program from OpenCL C or SPIR-V",
                ));
            }
            ModuleFormat::OpenClC => {}
        }
        self.translate(input, device, |translation| translation).await
    }

    /// Like [`spirv_of`](Self::spirv_of), but if the text as a whole cannot be translated, returns the SPIR-V
    /// of these kernels alone. The error is that of the whole text.
    pub(super) async fn spirv_of_kernels(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
        kernels: Names,
    ) -> Result<Module> {
        match input.module().format() {
            ModuleFormat::OpenClC => {
                self.translate_kernels(input, device, kernels, |all| all).await
            }
            ModuleFormat::SpirV | ModuleFormat::Native => self.spirv_of(input, device).await,
        }
    }

    /// Returns the SPIR-V of a text with the lines of the source, for messages: of the whole text, or of these
    /// kernels if only they were translated. It is kept like the SPIR-V without lines, but not built.
    ///
    /// # Errors
    ///
    /// Same as [`spirv_of`](Self::spirv_of).
    pub(super) async fn spirv_with_lines(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
        kernels: Names,
    ) -> Result<Module> {
        self.translate_kernels(input, device, kernels, Translation::with_lines).await
    }

    /// Translates a text, or if that fails, these of its kernels alone. The error is that of the whole text.
    async fn translate_kernels(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
        kernels: Names,
        adapt: fn(Translation) -> Translation,
    ) -> Result<Module> {
        match self.translate(input, device, adapt).await {
            Err(error) if error.kind() == ErrorKind::BuildFailed => {
                let limited = |translation| adapt(translation).limited_to(kernels);
                let limited = self.translate(input, device, limited).await;
                limited.map_err(|other| match other.kind() {
                    ErrorKind::BuildFailed => error,
                    _ => other,
                })
            }
            whole => whole,
        }
    }

    /// Translates a text. `adapt` sets what differs from the translation of the whole text without lines.
    async fn translate(
        self: &Arc<Self>,
        input: &BuildInput,
        device: usize,
        adapt: impl FnOnce(Translation) -> Translation,
    ) -> Result<Module> {
        let plan = self.translation_of(input, device, adapt).await?;
        let answer = self.recorded(plan, |plan| self.request_uncounted(plan));
        let built = answer.completed().await?;
        built.spirv().cloned().ok_or_else(|| {
            Error::new(ErrorKind::Panicked, "the result of a translation is not SPIR-V")
        })
    }

    /// Translates the texts of a plan for a device that takes no OpenCL C, and returns the plan of their
    /// SPIR-V. All texts are translated concurrently. Never blocks, like [`spirv_of`](Self::spirv_of).
    pub(super) async fn plan_in_spirv(self: &Arc<Self>, texts: &BuildPlan) -> Result<BuildPlan> {
        let is_only = texts.inputs().len() == 1;
        let translate = async |input: &BuildInput| {
            if input.module().format() == ModuleFormat::Native {
                return Ok(input.module().clone());
            }
            let translated = self.spirv_of(input, texts.device()).await;
            translated.map_err(|error| match is_only {
                true => error,
                false => error.within(describe(input.module())),
            })
        };
        let modules = try_join_all(texts.inputs().iter().map(translate)).await;
        modules.and_then(|modules| self.translated(texts, modules)).map_err(|error| {
            let name = &self.device(texts.device()).name;
            error.within(format!(
                "`{name}` does not accept OpenCL C, and the translation to SPIR-V failed"
            ))
        })
    }

    /// Returns the plan of the translation of a text. If the text includes files, clang reads them.
    pub(super) async fn translation_of(
        &self,
        input: &BuildInput,
        device: usize,
        adapt: impl FnOnce(Translation) -> Translation,
    ) -> Result<BuildPlan> {
        let module = input.module();
        if let Some(flaw) = module.flaw() {
            return Err(flaw.clone());
        }
        let tools = self.front_end().tools().await?;
        let limit = translate::LIMIT;
        let translation = Translation::new(tools, limit, input.options(), self.device(device))?;
        let translation = adapt(translation);
        if !module.includes_files() {
            let input = input.for_translation(module.clone());
            return Ok(BuildPlan::of_translation(input, device, translation));
        }
        let (input, limit) = (input.clone(), self.children().limit());
        let expand = move || {
            let module = input.module();
            let expanded = translation.expand(module.code());
            input.check_files(limit)?;
            let module = Module::opencl_c(expanded?).untrusted_if(module.is_untrusted());
            let input = input.for_translation(module);
            Ok(BuildPlan::of_translation(input, device, translation))
        };
        self.pool_for(module.is_untrusted()).threads().run(Priority::Long, expand).await?
    }
}
