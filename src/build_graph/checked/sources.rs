//! Lines of the source for findings about kernels of OpenCL C.
//!
//! OpenCL C is translated without lines, so that a program does not depend on them. Once there are findings, the
//! text is translated again, with lines. If the code is otherwise the same, the findings are those of the second
//! translation. If it is not, or if the text cannot be translated again, they have no lines.

use std::sync::Arc;

use async_lock::OnceCell;
use futures::future::join_all;
use kiln_compiler::bounds;

use super::plan::{self, faithful, faithful_plan};
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::input::BuildInput;
use crate::build_graph::plan::BuildPlan;
use crate::device::{Device, ModuleFormat};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Priority;
use crate::source::module::Module;
use crate::source::translate::Names;

/// Sources of a kernel.
pub(super) struct Sources {
    kernel: String,
    device: Device,
    /// Plan of the program with the kernel, before its texts were translated.
    plan: BuildPlan,
    /// Modules of the plan as SPIR-V without lines, each with the text that it was translated from.
    modules: Vec<(Module, Option<BuildInput>)>,
    is_untrusted: bool,
    /// The kernel with lines, once it is known; the error if it is refused.
    with_lines: OnceCell<Option<Result<bounds::Kernel>>>,
}

impl Sources {
    /// Returns the sources of a kernel of a plan's program; `None` if none of its modules is known as OpenCL C.
    /// `modules` are those of the plan as SPIR-V, and `translated` is the text that the SPIR-V of the plan was made of.
    pub(super) fn of(
        plan: &BuildPlan,
        device: &Device,
        modules: &[Module],
        kernel: &str,
        translated: Option<&BuildInput>,
    ) -> Option<Self> {
        let text = |input: &BuildInput| match input.module().format() {
            ModuleFormat::OpenClC => Some(input.clone()),
            ModuleFormat::SpirV => translated.cloned(),
            ModuleFormat::Native => None,
        };
        let modules: Vec<_> = modules.iter().cloned().zip(plan.inputs().iter().map(text)).collect();
        modules.iter().any(|(_, text)| text.is_some()).then(|| Self {
            kernel: kernel.to_owned(),
            device: device.clone(),
            plan: plan.clone(),
            modules,
            is_untrusted: plan.has_untrusted(),
            with_lines: OnceCell::new(),
        })
    }

    /// Returns whether the lines of the sources are known, or known to be missing.
    pub(super) fn are_read(&self) -> bool {
        self.with_lines.is_initialized()
    }

    /// Returns the kernel with the lines of its source, if that is known.
    pub(super) fn kernel(&self) -> Option<&bounds::Kernel> {
        self.with_lines.get()?.as_ref()?.as_ref().ok()
    }

    /// Returns the reason why the kernel is refused, with a line of the source.
    pub(super) async fn refusal(&self, graph: &Arc<BuildGraph>) -> Option<Error> {
        self.read(graph).await;
        let refusal = self.with_lines.get()?.as_ref()?.as_ref().err();
        refusal.filter(|error| error.kind() == ErrorKind::Unsupported).cloned()
    }

    /// Translates the texts with lines, unless that was done before.
    pub(super) async fn read(&self, graph: &Arc<BuildGraph>) {
        self.with_lines
            .get_or_init(|| async {
                let prepared = self.prepare(graph).await;
                prepared.unwrap_or_else(|error| {
                    tracing::debug!(%error, kernel = %self.kernel, "the lines of the source are not known");
                    None
                })
            })
            .await;
    }

    /// Prepares the kernel with lines. Returns `None` if the code is another one than without lines.
    async fn prepare(&self, graph: &Arc<BuildGraph>) -> Result<Option<Result<bounds::Kernel>>> {
        let needed = Names::from_iter([self.kernel.clone()]);
        let translated = self.modules.iter().map(async |(_, text)| {
            let text = text.clone()?.untrusted_if(self.is_untrusted);
            Some((graph.spirv_with_lines(&text, self.plan.device(), needed.clone()).await, text))
        });
        let translated = join_all(translated).await;
        let (plan, device, kernel) = (self.plan.clone(), self.device.clone(), self.kernel.clone());
        let modules: Vec<_> = self.modules.iter().map(|(module, _)| module.clone()).collect();
        let prepare = move || {
            let mut found = modules;
            let mut has_lines = false;
            for (module, translated) in found.iter_mut().zip(translated) {
                let Some((with_lines, text)) = translated else { continue };
                if let Some(with_lines) = same_with_lines(module, &with_lines?, &text, &device)? {
                    (*module, has_lines) = (with_lines, true);
                }
            }
            if !has_lines {
                return Ok(None);
            }
            let plan = faithful_plan(&plan, &found, &device)?;
            Ok(Some(plan::prepare(&plan, &device, &kernel, false)))
        };
        let is_untrusted = self.is_untrusted || self.plan.has_untrusted();
        graph.pool_for(is_untrusted).threads().run(Priority::Short, prepare).await?
    }
}

/// Returns a translation with lines, in which the text has the name of its module, as a checked program has it.
/// Returns `None` if its code is not that of the translation without lines.
fn same_with_lines(
    plain: &Module,
    with_lines: &Module,
    text: &BuildInput,
    device: &Device,
) -> Result<Option<Module>> {
    let plain = kiln_spirv::Module::parse(faithful(plain, device)?.code())?;
    let mut found = kiln_spirv::Module::parse(faithful(with_lines, device)?.code())?;
    if !kiln_spirv::is_same_code(&plain, &found) {
        tracing::debug!("the compilers translate a text differently with lines");
        return Ok(None);
    }
    kiln_spirv::name_standard_input(&mut found, text.module().label().unwrap_or_default());
    Ok(Some(Module::spirv(found.assemble())?.untrusted_if(with_lines.is_untrusted())))
}
