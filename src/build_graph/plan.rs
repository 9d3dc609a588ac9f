//! Inputs of a build: modules for a device, with their specialization constants and options, validated as far
//! as possible without a driver.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kiln_compiler::opencl_c;
use kiln_spirv::Parameter;
use smallvec::{SmallVec, smallvec};

use super::artifact::SignatureSource;
use super::capabilities;
use super::input::{BuildInput, Constants};
use super::key::{DeviceKey, InputFields, NodeKind, ProgramFields};
use super::link::{Libraries, LinkedSymbol, Resolution, describe, undefined_functions};
use super::options::SourcedOptions;
use super::strategy::{BuildStrategy, strategy_for};
use crate::backend::Source;
use crate::cache::store::{ObjectRecord, Storage};
use crate::device::{Device, ModuleFormat};
use crate::digest::{BuildKey, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::source::module::Module;
use crate::source::translate::{Translation, options_for_device};

/// The inputs of one build.
#[derive(Clone)]
pub(crate) struct BuildPlan {
    /// Modules with their inputs, sorted by digest, each module once. So the order in which libraries are
    /// registered makes no difference.
    pub(super) inputs: SmallVec<[BuildInput; 1]>,
    /// The device's position in the graph.
    pub(super) device: usize,
    pub(super) strategy: BuildStrategy,
    /// Options for linking, if the linker is called separately, or if that is not known yet.
    pub(super) link_options: SourcedOptions,
    /// Whether the device gets SPIR-V modules as OpenCL C. Other modules of the plan are passed as they are.
    pub(super) is_emitted: bool,
    /// Whether the modules are translations of a text, made for the check of its kernels' launches.
    pub(super) is_checked_text: bool,
    /// Translation of OpenCL C to SPIR-V, if the plan is for a translation.
    pub(super) translation: Option<Arc<Translation>>,
    /// Modules of the program and their symbols, if the requested module shares symbols.
    pub(super) resolution: Option<Arc<Resolution>>,
}

/// A module of a linked program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkedModule {
    pub(crate) module: Digest,
    /// Key of its object: covers the module with its constants, and the options that it is compiled with.
    pub(crate) object: BuildKey,
}

impl BuildPlan {
    /// Adapts the options to the strategy. If one call compiles and links, it also gets the options for
    /// linking. If the modules are merged, they are compiled with the options of the requested module.
    pub(super) fn assign_options(&mut self) {
        if self.strategy == BuildStrategy::Merge {
            for library in self.inputs.iter_mut().filter(|input| !input.is_requested) {
                library.options = SourcedOptions::default();
            }
        }
        if self.strategy.is_one_call() {
            let link_options = std::mem::take(&mut self.link_options);
            let requested = self.inputs.iter_mut().find(|input| input.is_requested);
            if let Some(requested) = requested {
                requested.link_options = link_options;
            }
        }
    }

    /// Whether the key depends on files that must be [read](Self::read_files) first.
    pub(crate) fn includes_files(&self) -> bool {
        self.inputs.iter().any(BuildInput::includes_files)
    }

    /// Reads the files that the texts include, as they are now, so that the key covers them. Blocks, like
    /// [`BuildInput::read_files`].
    pub(crate) fn read_files(&mut self, limit: Duration) -> Result<()> {
        for input in &mut self.inputs {
            input.included = input.read_files(limit)?;
        }
        Ok(())
    }

    /// Calls [`BuildInput::check_files`] for each module.
    pub(crate) fn check_files(&self, limit: Duration) -> Result<()> {
        self.inputs.iter().try_for_each(|input| input.check_files(limit))
    }

    /// Creates the plan of a translation of OpenCL C to SPIR-V. The text must not include files any more.
    pub(crate) fn of_translation(
        input: BuildInput,
        device: usize,
        translation: Translation,
    ) -> Self {
        let translation = Some(Arc::new(translation));
        Self {
            inputs: smallvec![input],
            device,
            strategy: BuildStrategy::Translate,
            link_options: SourcedOptions::default(),
            is_emitted: false,
            is_checked_text: false,
            translation,
            resolution: None,
        }
    }

    /// Returns the translation to SPIR-V, if the plan is for a translation.
    pub(crate) fn translation(&self) -> Option<&Translation> {
        self.translation.as_deref()
    }

    /// Whether the driver's compiler must not process the modules in this process. Translating OpenCL C uses no
    /// driver.
    pub(crate) fn is_untrusted(&self) -> bool {
        self.strategy != BuildStrategy::Translate && self.has_untrusted()
    }

    /// Whether one of the modules is untrusted.
    pub(crate) fn has_untrusted(&self) -> bool {
        self.inputs.iter().any(|input| input.module.is_untrusted())
    }

    /// Returns the first module, which is the only one of an object or a translation.
    pub(crate) fn module(&self) -> &Module {
        &self.inputs[0].module
    }

    pub(crate) fn strategy(&self) -> BuildStrategy {
        self.strategy
    }

    pub(crate) fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn format(&self) -> ModuleFormat {
        // Modules of one program differ in format only where native ones are linked with others.
        let formats = self.inputs.iter().map(|input| input.module.format());
        let mut portable = formats.filter(|format| *format != ModuleFormat::Native);
        portable.next().unwrap_or(ModuleFormat::Native)
    }

    /// Adds likely causes to an error of the compiler.
    pub(crate) fn explain(&self, error: Error, libraries: &Libraries, device: &Device) -> Error {
        let error = self.explain_refusal(error, libraries, device);
        let labels: Vec<_> = self
            .inputs
            .iter()
            .filter_map(|input| input.module.label())
            .filter(|label| !error.message().contains(label))
            .map(|label| format!("`{label}`"))
            .collect();
        if labels.is_empty() { error } else { error.within(labels.join(", ")) }
    }

    /// Returns the label of the module that contains a kernel, if both are known.
    pub(crate) fn label_of(&self, kernel: &str) -> Option<&str> {
        let contains_kernel =
            |input: &&BuildInput| input.module.kernels().iter().any(|known| known == kernel);
        match &self.inputs[..] {
            [input] => input.module.label(),
            inputs => inputs.iter().find(contains_kernel)?.module.label(),
        }
    }

    fn explain_refusal(&self, error: Error, libraries: &Libraries, device: &Device) -> Error {
        let is_refusal = matches!(error.kind(), ErrorKind::BuildFailed | ErrorKind::Unsupported);
        let error = if error.kind() == ErrorKind::BuildFailed && self.is_emitted {
            error.within(
                "the SPIR-V was translated to OpenCL C for the device, and the log refers to that \
                 text",
            )
        } else {
            error
        };
        if is_refusal && self.inputs.iter().any(|input| input.module.has_function_pointers()) {
            return error.within(
                "the program has function pointers (SPV_INTEL_function_pointers), which few \
                 drivers support",
            );
        }
        if let Some(log) = error.build_log()
            && self.format() == ModuleFormat::OpenClC
            && let Some(lacking) = capabilities::lacking_by_log(log, &self.describe(), device)
        {
            return error.within(lacking);
        }
        match self.unstated_names(&error, libraries) {
            Some(names) => error.within(format_args!(
                "the log names {names}, which a registered library exports; state the functions \
                 that a text imports with `Module::importing`"
            )),
            None => match self.undefined_names(&error) {
                Some((names, first)) => error.within(format_args!(
                    "according to the log, {names} is not defined; to call a function of another \
                     module, declare it in the text, state it with \
                     `Module::importing([\"{first}\"])`, and pass a library that exports it to \
                     `Runtime::register`"
                )),
                None => error,
            },
        }
    }

    /// Returns the undefined functions that a compiler's log names as a list, and the first of them, if there
    /// are any.
    fn undefined_names(&self, error: &Error) -> Option<(String, String)> {
        let log = error.build_log().filter(|_| self.format() == ModuleFormat::OpenClC)?;
        let texts =
            self.inputs.iter().map(|input| std::str::from_utf8(input.module.code()).unwrap_or(""));
        let texts: Vec<_> = texts.collect();
        let names = undefined_functions(log, &texts);
        let first = (*names.first()?).to_owned();
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        Some((names.join(", "), first))
    }

    /// Returns a list of the names that the texts seem to import from libraries without stating it.
    fn unstated_names(&self, error: &Error, libraries: &Libraries) -> Option<String> {
        let log = error.build_log().filter(|_| self.format() == ModuleFormat::OpenClC)?;
        let modules: Vec<_> = self.inputs.iter().map(|input| &input.module).collect();
        let names = libraries.unstated_names(&modules, log);
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Describes the first module for messages. It is the only module of an object.
    pub(crate) fn describe_module(&self) -> String {
        describe(&self.inputs[0].module)
    }

    /// Returns the modules with their options.
    pub(crate) fn inputs(&self) -> &[BuildInput] {
        &self.inputs
    }

    /// Returns a plan with `modules` in place of the modules of this plan, in the same order. If there are
    /// several, they are merged into one. Each is as trusted as the module that it replaces.
    pub(crate) fn with_modules(&self, modules: impl IntoIterator<Item = Module>) -> Self {
        let inputs = self.inputs.iter().zip(modules).map(|(input, module)| {
            let (is_untrusted, is_time_dependent) =
                (input.module.is_untrusted(), input.is_time_dependent());
            let module = module.labeled_like(&input.module);
            let text_files = input.files().cloned();
            BuildInput { module, included: None, text_files, is_time_dependent, ..input.clone() }
                .untrusted_if(is_untrusted)
        });
        let strategy =
            if self.inputs.len() == 1 { BuildStrategy::Build } else { BuildStrategy::Merge };
        Self {
            inputs: inputs.collect(),
            device: self.device,
            strategy,
            link_options: self.link_options.clone(),
            is_emitted: false,
            is_checked_text: false,
            translation: None,
            resolution: self.resolution.clone(),
        }
    }

    /// Returns a plan with one module in place of the modules of this plan, which Kiln made of them. `constants` are the
    /// specialization constants of the module.
    pub(super) fn with_merged(&self, module: Module, constants: Constants) -> Self {
        let requested = self.requested();
        let module = module.labeled_like(&requested.module).untrusted_if(self.has_untrusted());
        let constants = constants.into_iter().map(|(id, bytes)| (id, bytes.into()));
        let input = BuildInput {
            constants: constants.collect(),
            options: requested.options.clone(),
            link_options: requested.link_options.clone(),
            is_requested: true,
            is_time_dependent: self.is_time_dependent(),
            ..BuildInput::new(module)
        };
        Self {
            inputs: smallvec![input],
            strategy: BuildStrategy::Build,
            link_options: SourcedOptions::default(),
            translation: None,
            ..self.clone()
        }
    }

    /// Returns the names of the kernels that the modules state, each once.
    pub(super) fn kernel_names(&self) -> impl Iterator<Item = &str> {
        let all = self.inputs.iter().flat_map(|input| input.module.kernels());
        all.map(AsRef::as_ref).collect::<BTreeSet<&str>>().into_iter()
    }

    /// Returns the modules of the program and their symbols, if the requested module shares symbols.
    pub(crate) fn resolution(&self) -> Option<&Arc<Resolution>> {
        self.resolution.as_ref()
    }

    /// Returns the symbols that modules of the program take from other modules.
    pub(crate) fn linked_symbols(&self) -> Vec<LinkedSymbol> {
        self.resolution.iter().flat_map(|resolution| resolution.symbols()).collect()
    }

    /// Returns the requested module with its options, or the only module.
    pub(crate) fn requested(&self) -> &BuildInput {
        self.inputs.iter().find(|input| input.is_requested).unwrap_or(&self.inputs[0])
    }

    /// Returns the options of the linker, if it is called separately.
    pub(crate) fn link_options(&self) -> &SourcedOptions {
        &self.link_options
    }

    /// Returns the options for linking the program, whether or not the linker is called separately.
    pub(crate) fn program_link_options(&self) -> &str {
        let own = &self.requested().link_options;
        if own.is_empty() { self.link_options.text() } else { own.text() }
    }

    /// Returns the abbreviated digests and the labels of the modules.
    pub(crate) fn module_summary(&self) -> String {
        let each = self.inputs.iter().map(|BuildInput { module, .. }| {
            let label = module.label().map(|label| format!(" `{label}`")).unwrap_or_default();
            format!("{:.8}{label}", module.digest())
        });
        each.collect::<Vec<_>>().join(" ")
    }

    /// Returns the total size of the code of all modules, in bytes.
    pub(crate) fn code_len(&self) -> usize {
        self.inputs.iter().map(|input| input.module.code().len()).sum()
    }

    pub(crate) fn kind(&self) -> NodeKind {
        match self.strategy {
            BuildStrategy::Compile => NodeKind::Object,
            BuildStrategy::Translate => NodeKind::SpirV,
            BuildStrategy::Build
            | BuildStrategy::Link
            | BuildStrategy::LinkByCalls
            | BuildStrategy::Merge
            | BuildStrategy::TranslateFirst => NodeKind::Program,
        }
    }

    /// Returns a plan for each object that the linker takes.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Self> {
        self.inputs.iter().map(|input| Self {
            inputs: smallvec![input.clone()],
            device: self.device,
            strategy: BuildStrategy::Compile,
            link_options: SourcedOptions::default(),
            is_checked_text: false,
            is_emitted: self.is_emitted && input.module.format() == ModuleFormat::SpirV,
            translation: None,
            resolution: None,
        })
    }

    /// Returns the plan of the first module's object.
    pub(crate) fn into_object(self) -> Self {
        Self { strategy: BuildStrategy::Compile, resolution: None, ..self }
    }

    /// Returns the device and the symbols of the plan's object; `None` if the plan is not one of an object.
    pub(crate) fn object_record(&self, device: &DeviceKey) -> Option<ObjectRecord> {
        let is_object = self.strategy == BuildStrategy::Compile;
        is_object.then(|| self.inputs[0].object_record(device.identity()))
    }

    /// Returns the modules that the program is linked from; empty if it is not linked.
    pub(crate) fn parts(&self, device: &DeviceKey) -> Box<[LinkedModule]> {
        self.parts_for(self.strategy, device)
    }

    /// Like [`parts`](Self::parts), for texts whose SPIR-V is built by `strategy`.
    pub(crate) fn parts_for(
        &self,
        strategy: BuildStrategy,
        device: &DeviceKey,
    ) -> Box<[LinkedModule]> {
        match self.strategy {
            BuildStrategy::Link | BuildStrategy::LinkByCalls | BuildStrategy::Merge => {}
            BuildStrategy::TranslateFirst if self.inputs.iter().any(BuildInput::shares_symbols) => {
            }
            _ => return Box::default(),
        }
        let part = |mut object: Self| {
            // Programs that are linked with other options differ, although their objects are the same.
            object.link_options.clone_from(&self.link_options);
            let input = &mut object.inputs[0];
            if !strategy.is_link() {
                // The modules are merged into one module, which is compiled with the options of one of them.
                input.options.clone_from(&self.requested().options);
                input.link_options.clone_from(&self.requested().link_options);
            }
            LinkedModule { module: input.module.digest(), object: object.key(device) }
        };
        self.objects().map(part).collect()
    }

    /// Whether the program is worth storing. A native module is stored by the application, unlike a program
    /// that is linked from it. A program that depends on the time of its build cannot be used later.
    pub(crate) fn is_stored(&self) -> bool {
        self.reason_not_to_store().is_none()
    }

    /// Returns the reason why the program is not worth storing, if there is one.
    pub(crate) fn reason_not_to_store(&self) -> Option<Storage> {
        if self.format() == ModuleFormat::Native && !self.strategy.is_link() {
            Some(Storage::Native)
        } else if self.is_time_dependent() {
            Some(Storage::UsesTime)
        } else {
            None
        }
    }

    /// Returns the modules that have labels, by digest.
    pub(crate) fn labels(&self) -> Vec<(String, String)> {
        let labelled = self.inputs.iter().filter_map(|BuildInput { module, .. }| {
            Some((module.digest().to_string(), module.label()?.to_owned()))
        });
        labelled.collect()
    }

    /// Whether programs differ from build to build, so that they must not be kept.
    pub(crate) fn is_time_dependent(&self) -> bool {
        self.inputs.iter().any(BuildInput::is_time_dependent)
    }

    /// Returns the plan that replaces this one once its texts are translated. `modules` is their SPIR-V, in the
    /// same order. The key of the new plan covers all inputs of the translations.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), naming the option, for an option that is not known.
    pub(crate) fn translated(
        &self,
        modules: Vec<Module>,
        device: &Device,
        link_objects: bool,
    ) -> Result<Self> {
        let mut plan = self.with_modules(modules);
        if plan.inputs.iter().any(BuildInput::shares_symbols) {
            let modules: Vec<_> = plan.inputs.iter().map(|input| &input.module).collect();
            let link_objects = link_objects && plan.link_options.is_empty();
            plan.strategy = strategy_for(device, link_objects, &modules)?;
        }
        for input in &mut plan.inputs {
            input.options = input.options.converted(options_for_device)?;
        }
        plan.assign_options();
        plan.inputs.sort_unstable_by_key(|input| input.module.digest());
        Ok(plan)
    }

    pub(crate) fn key(&self, device: &DeviceKey) -> BuildKey {
        self.with_fields(device, |fields| fields.key())
    }

    /// Returns the key's fields by name and value.
    pub(crate) fn key_fields(&self, device: &DeviceKey) -> Vec<(String, String)> {
        self.with_fields(device, |fields| fields.fields())
    }

    fn with_fields<T>(&self, device: &DeviceKey, read: impl FnOnce(&ProgramFields<'_>) -> T) -> T {
        let inputs: SmallVec<[InputFields<'_>; 1]> =
            self.inputs.iter().map(BuildInput::fields).collect();
        let emitter = self.is_emitted.then_some(opencl_c::VERSION);
        let front_end = self.translation().map(Translation::fields).unwrap_or_default();
        read(&ProgramFields {
            kind: self.kind(),
            emitter,
            merger: (self.strategy == BuildStrategy::Merge).then_some(kiln_spirv::MERGER),
            is_linked_by_calls: self.strategy == BuildStrategy::LinkByCalls,
            inputs: &inputs,
            link_options: &self.link_options,
            front_end: &front_end,
            device,
        })
    }

    /// Returns the parameters that the modules state for a kernel.
    pub(crate) fn parameters(&self, kernel: &str) -> Option<&[Parameter]> {
        self.inputs.iter().find_map(|input| input.module.parameters(kernel))
    }

    /// Returns the preferred source of the parameters. If SPIR-V is passed as OpenCL C, the driver reports
    /// names and types that differ from those in the module.
    pub(crate) fn signature_source(&self) -> SignatureSource {
        if self.is_emitted { SignatureSource::Module } else { SignatureSource::Driver }
    }

    /// Checks that no function of SPIR-V calls itself, before a driver's compiler gets it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), naming the function.
    pub(super) fn check_calls(&self) -> Result<()> {
        let is_spirv = |input: &&BuildInput| input.module.format() == ModuleFormat::SpirV;
        let modules = self.inputs.iter().filter(is_spirv);
        let modules = modules.map(|input| kiln_spirv::Module::parse(&*input.code()?));
        let modules = modules.collect::<Result<Vec<_>>>()?;
        match kiln_spirv::recursive_function(&modules.iter().collect::<Vec<_>>()) {
            Some(function) => Err(Error::unsupported(format!(
                "{}: {function} calls itself, directly or through other functions, which OpenCL forbids",
                self.describe()
            ))),
            None => Ok(()),
        }
    }

    /// Calls `build` with the input of the device's compiler: the single module, or the module merged from
    /// several.
    pub(crate) fn with_source<T>(
        &self,
        device: &Device,
        build: impl FnOnce(&Source<'_>) -> Result<T>,
    ) -> Result<T> {
        build(&self.source(device)?.borrowed())
    }

    /// Returns the input of the device's compiler for the single or merged module.
    fn source(&self, device: &Device) -> Result<OwnedSource<'_>> {
        let (code, constants) = match &self.inputs[..] {
            [input] if self.strategy != BuildStrategy::Merge => (input.code()?, input.constants()),
            inputs => {
                let (merged, constants) = merge(inputs)?;
                (merged.into(), constants)
            }
        };
        let (format, options) = (self.format(), self.requested().call_options());
        if !self.is_emitted {
            return Ok(OwnedSource { format, code, options, constants });
        }
        let module = kiln_spirv::Module::parse(&*code)?;
        let text = match self.strategy {
            BuildStrategy::Compile => opencl_c::object(&module, &constants)?,
            _ => opencl_c::specialized(&module, &constants)?,
        };
        let is_version_3 = !device.opencl_c_features.is_empty();
        let options = opencl_c::options(&options, &text.demands, is_version_3);
        capabilities::check_translated(&code, text.demands, &self.describe(), device)?;
        tracing::trace!(text = text.code, "translated to OpenCL C");
        Ok(OwnedSource {
            format: ModuleFormat::OpenClC,
            code: text.code.into_bytes().into(),
            options: options.into(),
            constants: Constants::new(),
        })
    }

    /// Describes all modules for messages.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<_> = self.inputs.iter().map(|input| describe(&input.module)).collect();
        names.join(" with ")
    }

    /// Calls `link` with the inputs of the device's compiler, one for each linked module.
    pub(crate) fn with_sources<T>(
        &self,
        device: &Device,
        link: impl FnOnce(&[Source<'_>]) -> Result<T>,
    ) -> Result<T> {
        let objects: Vec<_> = self.objects().collect();
        let sources: Vec<_> =
            objects.iter().map(|object| object.source(device)).collect::<Result<_>>()?;
        link(&sources.iter().map(OwnedSource::borrowed).collect::<Vec<_>>())
    }
}

/// Input of a device's compiler.
struct OwnedSource<'a> {
    format: ModuleFormat,
    code: Cow<'a, [u8]>,
    options: Cow<'a, str>,
    constants: Constants,
}

impl OwnedSource<'_> {
    fn borrowed(&self) -> Source<'_> {
        let Self { format, code, options, constants } = self;
        Source { format: *format, code, options, constants }
    }
}

/// Merges SPIR-V modules. Returns the merged module, and the constants under their ids in it.
fn merge(inputs: &[BuildInput]) -> Result<(Vec<u8>, Constants)> {
    let names: Vec<_> = inputs.iter().map(|input| describe(&input.module)).collect();
    let mut modules = Vec::with_capacity(inputs.len());
    for (input, name) in inputs.iter().zip(&names) {
        let module =
            kiln_spirv::Module::parse(&*input.code()?).map_err(|error| error.within(name))?;
        modules.push(module);
    }
    let named: Vec<_> = names
        .iter()
        .zip(&modules)
        .map(|(name, module)| kiln_spirv::Input { name, module })
        .collect();
    let kiln_spirv::Merged { module, spec_ids } =
        kiln_spirv::merge(&named, kiln_spirv::Options::default())?;
    let (code, reflection) = kiln_spirv::read(module.assemble())?;
    let mut constants = Vec::new();
    for (input, ids) in inputs.iter().zip(&spec_ids) {
        for (id, value) in &input.constants {
            let merged_id = ids.iter().find(|(before, _)| before == id).map(|(_, after)| *after);
            // A constant that no kernel reaches is not in the merged module.
            let declared = &reflection.specialization_constants;
            let found = declared.iter().find(|constant| Some(constant.id) == merged_id);
            constants.extend(found.map(|constant| (constant.id, value.to_vec())));
        }
    }
    constants.sort_unstable_by_key(|(id, _)| *id);
    Ok((code, constants))
}
