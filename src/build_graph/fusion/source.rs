//! The SPIR-V of programs, for fusing their kernels.

use std::sync::Arc;

use crate::build_graph::built::ResolvedKernel;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::kernel::Kernel;
use crate::compiler::options::without_relaxed;
use crate::compiler::spirv::Module;
use crate::device::ModuleFormat;
use crate::error::{Error, Result};
use crate::executor::Priority;
use crate::source::translate::{Names, options_for_device};

/// A program as one SPIR-V module.
pub(super) struct Source {
    pub(super) module: Module,
    /// Specialization constants by their ids in the module.
    pub(super) constants: Vec<(u32, Vec<u8>)>,
    /// Build options of the fused kernel for the driver's compiler, without those that allow less accurate
    /// results.
    ///
    /// The effect of such an option depends on the language version and on all of the code that the compiler
    /// sees. With `-cl-fast-relaxed-math`, Intel's CPU runtime uses an `exp` with an error of a few thousand
    /// ULP in OpenCL C 1.2, the language of fused kernels, and of a few ULP in OpenCL C 2.0. Compilers also
    /// rearrange the operations of several launches together. Without the option, a fused kernel has the
    /// accuracy that OpenCL requires, which is that of the launches or better.
    pub(super) options: String,
    /// Whether the driver's compiler built the program from modules in OpenCL C.
    pub(super) is_text: bool,
    /// Whether programs with code of the module must not be compiled in this process.
    pub(super) is_untrusted: bool,
}

impl Source {
    /// Translates and merges the modules of a kernel's program. Where the program is one text that cannot be
    /// translated, translates only the kernels that are `needed`.
    pub(super) async fn of(
        graph: &Arc<BuildGraph>,
        kernel: &Kernel,
        needed: Names,
    ) -> Result<Self> {
        let resolved = match kernel.resolved() {
            Some(Ok(resolved)) => resolved,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(Error::invalid("its program is not built yet")),
        };
        let ResolvedKernel { built, .. } = resolved;
        let plan = built.plan().ok_or_else(|| {
            Error::unsupported("the modules that it was built from are not known")
        })?;
        let is_untrusted = built.is_untrusted();
        let mut modules = Vec::new();
        for input in plan.inputs() {
            let input = input.clone().untrusted_if(is_untrusted);
            modules.push(match plan.inputs() {
                [_] => graph.spirv_of_kernels(&input, plan.device(), needed.clone()).await?,
                _ => graph.spirv_of(&input, plan.device()).await?,
            });
        }
        let is_text = plan.format() == ModuleFormat::OpenClC;
        let mut options = match is_text {
            true => options_for_device(plan.requested().options())?,
            false => plan.requested().options().to_owned(),
        };
        // The fused kernel is compiled and linked by one call.
        options.push(' ');
        options.push_str(plan.program_link_options());
        let options = without_relaxed(&options);
        let plan = plan.with_modules(modules);
        let device = graph.slot(&plan).handle().clone();
        let read = move || {
            plan.with_source(&device, |source| {
                let module = Module::parse(source.code)?;
                Ok(Self {
                    module,
                    constants: source.constants.to_vec(),
                    options,
                    is_text,
                    is_untrusted,
                })
            })
        };
        graph.pool_for(is_untrusted).threads().run(Priority::Short, read).await?
    }
}
