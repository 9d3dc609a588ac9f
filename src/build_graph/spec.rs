//! Requests for programs, before their imports are resolved and their options are combined.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::constants::set_constants;
use super::formats::{is_emitted, is_translated};
use super::input::BuildInput;
use super::link::{LinkTarget, Member, Resolution};
use super::options::{EnvironmentOptions, OptionKind, OptionSource, SourcedOptions, check_call};
use super::plan::BuildPlan;
use super::specialization::GivenConstant;
use super::strategy::{BuildStrategy, strategy_for};
use crate::device::Device;
use crate::error::Result;
use crate::source::module::Module;

/// A request before the imports of its module are resolved.
#[derive(Clone)]
pub(crate) struct BuildSpec {
    input: BuildInput,
    /// Whether SPIR-V is handed to the driver as OpenCL C, even where the driver takes SPIR-V.
    as_text: bool,
    /// The device's position in the graph.
    device: usize,
    /// Specialization constants of libraries: the library, the id and the value.
    library_constants: Vec<(Module, u32, GivenConstant)>,
    options: RequestedOptions,
}

/// Options of a request.
#[derive(Clone)]
enum RequestedOptions {
    /// Options in addition to those of the module and of the environment.
    Added { compile: String, link: String },
    /// All options, for a module that Kiln made of others, whose options these are.
    All(SourcedOptions),
}

impl BuildSpec {
    pub(crate) fn new(module: Module, device: usize) -> Self {
        Self {
            input: BuildInput::new(module),
            as_text: false,
            device,
            library_constants: Vec::new(),
            options: RequestedOptions::Added { compile: String::new(), link: String::new() },
        }
    }

    pub(crate) fn set_device(&mut self, device: usize) {
        self.device = device;
    }

    /// Passes SPIR-V to the device as OpenCL C even if the device takes both.
    pub(crate) fn prefer_text(&mut self) {
        self.as_text = true;
    }

    pub(crate) fn set_constant(&mut self, id: u32, value: GivenConstant) {
        self.input.set_constant(id, value);
    }

    pub(crate) fn set_constant_of(&mut self, library: &Module, id: u32, value: GivenConstant) {
        self.library_constants.push((library.clone(), id, value));
    }

    /// Sets the options for compiling that are added to those of the module and of the environment.
    pub(crate) fn set_options(&mut self, options: &str) -> Result<()> {
        check_call("build options", options)?;
        if let RequestedOptions::Added { compile, .. } = &mut self.options {
            options.clone_into(compile);
        }
        Ok(())
    }

    /// Sets the options for linking that are added to those of the module and of the environment.
    pub(crate) fn set_link_options(&mut self, options: &str) -> Result<()> {
        check_call("link options", options)?;
        if let RequestedOptions::Added { link, .. } = &mut self.options {
            options.clone_into(link);
        }
        Ok(())
    }

    /// Sets all options, so that none of the module or of the environment are added.
    pub(crate) fn set_all_options(&mut self, options: &str) {
        self.options = RequestedOptions::All(SourcedOptions::of(OptionSource::Call, options));
    }

    pub(crate) fn module(&self) -> &Module {
        &self.input.module
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// Determines how the program is built from the modules. `find_libraries` returns the libraries that a
    /// module needs; it is called only for a module that shares symbols. With `link_objects`, the driver links
    /// wherever it can.
    pub(crate) fn resolve(
        self,
        device: &Device,
        target: &LinkTarget<'_>,
        link_objects: bool,
        environment: &EnvironmentOptions,
        find_libraries: impl FnOnce(&Module) -> Result<Resolution>,
    ) -> Result<BuildPlan> {
        let Self { mut input, as_text, device: position, library_constants, options } = self;
        let link_options;
        (input.options, link_options) = options.combined(&input.module, environment)?;
        let module = &input.module;
        let resolution =
            if input.shares_symbols() { Some(Arc::new(find_libraries(module)?)) } else { None };
        let libraries = resolution.as_ref().map_or(&[][..], |found| found.libraries());
        if let Some(resolution) = &resolution {
            resolution.check_removals()?;
        }
        let modules = || [module].into_iter().chain(libraries.iter().map(|it| &it.module));
        let strategy = if modules().any(|module| is_translated(device, module.format())) {
            BuildStrategy::TranslateFirst
        } else if resolution.is_some() {
            let link_objects = link_objects && link_options.is_empty();
            strategy_for(device, link_objects, &modules().collect::<Vec<_>>())?
        } else {
            BuildStrategy::Build
        };
        input.is_requested = true;
        let mut inputs: SmallVec<[BuildInput; 1]> = smallvec![input];
        for Member { module, replaced, .. } in libraries {
            let options = environment.combine(OptionKind::Compile, module, "")?;
            inputs.push(BuildInput {
                options,
                ..BuildInput::of_library(module.clone(), replaced.clone())
            });
        }
        set_constants(&mut inputs, library_constants)?;
        inputs.iter().try_for_each(|input| input.check(device, target))?;
        let is_emitted =
            inputs.iter().any(|input| is_emitted(device, input.module.format(), as_text));
        let mut plan = BuildPlan {
            inputs,
            device: position,
            strategy,
            link_options,
            is_emitted,
            is_checked_text: false,
            translation: None,
            resolution,
        };
        plan.assign_options();
        plan.inputs.sort_unstable_by_key(|input| input.module.digest());
        Ok(plan)
    }

    /// Returns the plan of the module alone, without libraries, as a step to its object.
    pub(crate) fn alone(
        self,
        device: &Device,
        target: &LinkTarget<'_>,
        environment: &EnvironmentOptions,
    ) -> Result<BuildPlan> {
        let Self { mut input, as_text, device: position, library_constants, options } = self;
        // An object is not linked.
        (input.options, _) = options.combined(&input.module, environment)?;
        input.is_requested = true;
        let format = input.module.format();
        let strategy = match is_translated(device, format) {
            true => BuildStrategy::TranslateFirst,
            false => BuildStrategy::Build,
        };
        let mut inputs: SmallVec<[BuildInput; 1]> = smallvec![input];
        set_constants(&mut inputs, library_constants)?;
        inputs[0].check(device, target)?;
        Ok(BuildPlan {
            inputs,
            device: position,
            strategy,
            link_options: SourcedOptions::default(),
            is_emitted: is_emitted(device, format, as_text),
            is_checked_text: false,
            translation: None,
            resolution: None,
        })
    }
}

impl RequestedOptions {
    /// Returns the options for compiling and for linking the requested module.
    fn combined(
        self,
        module: &Module,
        environment: &EnvironmentOptions,
    ) -> Result<(SourcedOptions, SourcedOptions)> {
        match self {
            Self::All(options) => Ok((options, SourcedOptions::default())),
            Self::Added { compile, link } => Ok((
                environment.combine(OptionKind::Compile, module, &compile)?,
                environment.combine(OptionKind::Link, module, &link)?,
            )),
        }
    }
}
