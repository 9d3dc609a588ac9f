//! The SPIR-V of programs, for fusing their kernels.

use std::fmt::Arguments;
use std::sync::Arc;

use kiln_compiler::options::{INEXACT, without_relaxed, words};
use kiln_spirv::Module;
use kiln_spirv::edit::{Section, View};
use rspirv::spirv::Decoration;

use super::attempts::KernelInBuild;
use super::fuser::Fuser;
use super::material::{FusionRequest, Material, Source, is_permanent};
use crate::build_graph::built::ResolvedKernel;
use crate::build_graph::kernel::Kernel;
use crate::device::{DeviceKind, ModuleFormat};
use crate::error::{Error, Result};
use crate::executor::Priority;
use crate::source::translate::{Names, options_for_device};

impl Fuser {
    /// Reads the modules of the request's kernels.
    ///
    /// # Errors
    ///
    /// A transient error, or the first error if no module can be translated.
    pub(super) async fn fusion_material(
        self: &Arc<Self>,
        request: &FusionRequest,
        in_build: &KernelInBuild,
    ) -> Result<Material> {
        let &FusionRequest { device, trust, forced_form, is_tried, .. } = request;
        let &FusionRequest { needs_one_kernel, is_awaited, .. } = request;
        let (kernels, mut plan) = (&request.kernels, request.plan.clone());
        let mut sources: Vec<Result<Arc<Source>>> = Vec::new();
        // Modules are numbered in the order in which slots first name them.
        for (slot, kernel) in plan.slots.iter().zip(kernels) {
            if slot.module == sources.len() {
                let own = plan.slots.iter().filter(|other| other.module == slot.module);
                let needed = own.map(|slot| slot.kernel.clone()).collect();
                let source = self.source_of(kernel, needed, request.may_relax).await;
                match source.map_err(|error| error.within(format_args!("`{}`", kernel.name()))) {
                    Err(error) if !is_permanent(&error) => return Err(error),
                    source => sources.push(source.map(Arc::new)),
                }
            }
        }
        if let Some(Err(error)) = sources.first()
            && sources.iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        for slot in &mut plan.slots {
            if let Ok(source) = &sources[slot.module] {
                slot.constants.clone_from(&source.constants);
            }
        }
        let info = self.graph.device(device);
        let (is_gpu, limits) = (info.kind == DeviceKind::Gpu, info.limits.clone());
        Ok(Material {
            plan,
            device,
            sources,
            trust,
            is_gpu,
            limits,
            forced_form,
            is_tried,
            needs_one_kernel,
            is_awaited,
            in_build: Arc::clone(in_build),
        })
    }

    /// Translates and merges the modules of a kernel's program. Where the program is one text that cannot be
    /// translated, translates only the kernels that are `needed`.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the program lets compilers compute other results than OpenCL requires, unless it `may_relax`.
    async fn source_of(
        self: &Arc<Self>,
        kernel: &Kernel,
        needed: Names,
        may_relax: bool,
    ) -> Result<Source> {
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
                [_] => self.graph.spirv_of_kernels(&input, plan.device(), needed.clone()).await?,
                _ => self.graph.spirv_of(&input, plan.device()).await?,
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
        if let Some(option) = words(&options).into_iter().find(|word| INEXACT.contains(word))
            && !may_relax
        {
            return Err(inexact_error(format_args!("its build option `{option}`")));
        }
        let options = without_relaxed(&options);
        let plan = plan.with_modules(modules);
        let device = self.graph.slot(&plan).handle().clone();
        let read = move || {
            plan.with_source(&device, |source| {
                let module = Module::parse(source.code)?;
                if !may_relax && has_fast_math(&module) {
                    return Err(inexact_error(format_args!(
                        "the fast-math mode of its instructions"
                    )));
                }
                Ok(Source {
                    module,
                    constants: source.constants.to_vec(),
                    options,
                    is_text,
                    is_untrusted,
                })
            })
        };
        self.graph.pool_for(is_untrusted).threads().run(Priority::Short, read).await?
    }
}

/// Returns whether a module lets compilers compute other results than OpenCL requires.
fn has_fast_math(module: &Module) -> bool {
    let is_mode = |decoration: u32| decoration == Decoration::FPFastMathMode as u32;
    module.section(Section::Annotations).iter().any(|i| match i.view() {
        View::Decorate { decoration, parameters, .. } => {
            is_mode(decoration) && parameters.get(0) != Some(0)
        }
        View::MemberDecorate { decoration, .. } => is_mode(decoration),
        _ => false,
    })
}

/// Returns the error for a program that lets compilers compute other results, by what it does so.
fn inexact_error(by: Arguments<'_>) -> Error {
    Error::unsupported(format!(
        "{by} lets compilers compute other results, which differ between fused and separate kernels; \
         `FusionMode::Relaxed` (`KILN_FUSION=relaxed`) fuses such launches"
    ))
}
