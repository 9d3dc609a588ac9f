//! One module of a program, with everything that its own compile depends on.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kiln_spirv::SpecializationConstant;

use super::formats::{is_emitted, is_translated};
use super::key::{ConstantBytes, InputFields};
use super::link::{LinkTarget, describe};
#[cfg(feature = "internal")]
use super::options::OptionSource;
use super::options::SourcedOptions;
use super::specialization::GivenConstant;
use crate::cache::store::ObjectRecord;
use crate::device::{Device, ModuleFormat};
use crate::error::{Error, ErrorKind, Result};
use crate::source::includes::{
    Included, IncludedFile, included_files, options_include_files, options_use_time,
};
use crate::source::module::Module;

/// A module of a program, with the other inputs of its compile.
#[derive(Clone)]
pub(crate) struct BuildInput {
    pub(super) module: Module,
    /// Digest of the files that the text includes, once they have been read.
    pub(super) included: Option<Included>,
    /// Files that the text included of which the module is a translation.
    pub(super) text_files: Option<Arc<[IncludedFile]>>,
    /// Specialization constants sorted by id, each id once.
    pub(super) constants: Vec<(u32, ConstantBytes)>,
    /// Rust types in which the constants were given, in the same order. They are not part of a key.
    pub(super) constant_types: Vec<&'static str>,
    /// Options for compiling the module.
    pub(super) options: SourcedOptions,
    /// Options for linking, if the call that compiles the module also links it.
    pub(super) link_options: SourcedOptions,
    /// Whether the module was requested, and not found as a library.
    pub(super) is_requested: bool,
    /// Exports whose definitions are removed, because other modules of the program define them; sorted.
    pub(super) replaced: Vec<String>,
    /// Whether the module was translated from a text that uses the time of its build.
    pub(super) is_time_dependent: bool,
}

/// Specialization constants in the form that a backend takes.
pub(super) type Constants = Vec<(u32, Vec<u8>)>;

impl BuildInput {
    pub(super) fn new(module: Module) -> Self {
        Self {
            module,
            included: None,
            text_files: None,
            constants: Vec::new(),
            constant_types: Vec::new(),
            options: SourcedOptions::default(),
            link_options: SourcedOptions::default(),
            is_requested: false,
            replaced: Vec::new(),
            is_time_dependent: false,
        }
    }

    /// Creates the input of a library, without the definitions of these names.
    pub(super) fn of_library(module: Module, mut replaced: Vec<String>) -> Self {
        replaced.sort_unstable();
        Self { replaced, ..Self::new(module) }
    }

    /// Creates an input with options, which need not be in canonical form.
    #[cfg(feature = "internal")]
    pub(crate) fn with_options(module: Module, options: &str) -> Self {
        let options = SourcedOptions::of(OptionSource::Call, options);
        Self { options, ..Self::new(module) }
    }

    /// Creates the input of a translation of this input's text, or of `module`, the text with its included
    /// files.
    pub(super) fn for_translation(&self, module: Module) -> Self {
        let text_files = self.files().cloned();
        Self { options: self.options.clone(), text_files, ..Self::new(module) }
    }

    /// Returns the files that the text includes, or included before it was translated.
    pub(super) fn files(&self) -> Option<&Arc<[IncludedFile]>> {
        let included = self.included.as_ref().map(|included| &included.files);
        included.or(self.text_files.as_ref())
    }

    /// Returns the input with its module marked as untrusted, if `mark` is set.
    pub(super) fn untrusted_if(self, mark: bool) -> Self {
        Self { module: self.module.untrusted_if(mark), ..self }
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }

    /// Returns the options for compiling, in canonical form.
    pub(crate) fn options(&self) -> &str {
        self.options.text()
    }

    pub(super) fn compile_options(&self) -> &SourcedOptions {
        &self.options
    }

    pub(super) fn link_options(&self) -> &SourcedOptions {
        &self.link_options
    }

    /// Returns the options of the call that compiles the module, in canonical form.
    pub(super) fn call_options(&self) -> Cow<'_, str> {
        self.options.joined(&self.link_options)
    }

    /// Whether the compiler may read files for this module.
    pub(super) fn includes_files(&self) -> bool {
        self.module.includes_files()
            || (self.module.format() == ModuleFormat::OpenClC
                && options_include_files(&self.call_options()))
    }

    /// Whether programs differ from build to build because the text uses the time of the build. Such programs
    /// must not be kept.
    pub(super) fn is_time_dependent(&self) -> bool {
        let text_uses_time = || {
            self.module.uses_time()
                || self.included.as_ref().is_some_and(|included| included.uses_time)
                || options_use_time(&self.call_options())
        };
        self.is_time_dependent || self.module.format() == ModuleFormat::OpenClC && text_uses_time()
    }

    /// Reads the files that the text includes, as they are now. Blocks; for an untrusted module, for at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// As for [`included_files`], naming the module.
    pub(super) fn read_files(&self, limit: Duration) -> Result<Option<Included>> {
        if !self.includes_files() {
            return Ok(None);
        }
        let limit = self.module.is_untrusted().then_some(limit);
        let included = included_files(self.module.code(), &self.call_options(), limit);
        included.map(Some).map_err(|error| error.within(describe(&self.module)))
    }

    /// Fails if the included files are no longer those that the key covers. Blocks.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if the files have changed, and the errors of [`read_files`](Self::read_files).
    pub(crate) fn check_files(&self, limit: Duration) -> Result<()> {
        if self.included.is_none() || self.included == self.read_files(limit)? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "the files that {} includes have changed since its build was requested; build it \
                 again",
                describe(&self.module)
            ),
        ))
    }

    /// Returns the code for the compiler: SPIR-V without the definitions that are [replaced](Self::replaced),
    /// or text.
    ///
    /// Drivers with a cache of their own, such as NVIDIA's, may look up a program by its text alone. A comment is
    /// therefore appended: for a text with included files the digest of their contents, and for a text that uses
    /// the time of its build the current time in seconds.
    ///
    /// # Errors
    ///
    /// As for [`remove_definitions`](kiln_spirv::remove_definitions), naming the module.
    pub(super) fn code(&self) -> Result<Cow<'_, [u8]>> {
        if !self.replaced.is_empty() && self.module.format() == ModuleFormat::SpirV {
            let removed = || {
                let mut module = kiln_spirv::Module::parse(self.module.code())?;
                kiln_spirv::remove_definitions(&mut module, &self.replaced)?;
                Ok(module.assemble())
            };
            let code: Result<_> = removed();
            return Ok(code.map_err(|error| error.within(describe(&self.module)))?.into());
        }
        let mut code = Cow::from(self.module.code());
        if let Some(Included { digest, .. }) = &self.included {
            code.to_mut().extend_from_slice(format!("\n// {digest}\n").as_bytes());
        }
        if self.module.format() == ModuleFormat::OpenClC && self.is_time_dependent() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            code.to_mut().extend_from_slice(format!("\n// {now}\n").as_bytes());
        }
        Ok(code)
    }

    /// Sets a constant. The last value given for an id takes effect.
    pub(super) fn set_constant(&mut self, id: u32, value: GivenConstant) {
        let GivenConstant { bytes, type_name } = value;
        match self.constants.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => {
                self.constants[at].1 = bytes;
                self.constant_types[at] = type_name;
            }
            Err(at) => {
                self.constants.insert(at, (id, bytes));
                self.constant_types.insert(at, type_name);
            }
        }
    }

    pub(super) fn constants(&self) -> Constants {
        let owned = |(id, value): &(u32, ConstantBytes)| (*id, value.to_vec());
        self.constants.iter().map(owned).collect()
    }

    /// Whether the module exports or imports symbols, or is an object, which has to be linked even without any.
    pub(super) fn shares_symbols(&self) -> bool {
        self.module.imports().len() > 0
            || self.module.exports().len() > 0
            || self.module.made_for().is_some()
    }

    /// Returns the symbols that the module's object exports and imports. Exports whose definitions are replaced
    /// become imports.
    pub(super) fn object_record(&self, device: &[(String, String)]) -> ObjectRecord {
        // Objects of drivers whose compiler is not known are the same as those of earlier versions.
        let is_known = |(name, value): &&(String, String)| name != "compiler" || !value.is_empty();
        let device = device.iter().filter(is_known).cloned().collect();
        let mut record = ObjectRecord { device, ..ObjectRecord::default() };
        record.imports.extend(self.module.imports().map(str::to_owned));
        for (at, name) in self.module.exports().enumerate() {
            let is_replaced = self.replaced.iter().any(|replaced| replaced == name);
            let names = match self.module.is_mergeable(at) {
                _ if is_replaced => &mut record.imports,
                true => &mut record.mergeable,
                false => &mut record.exports,
            };
            names.push(name.to_owned());
        }
        record
    }

    pub(super) fn fields(&self) -> InputFields<'_> {
        InputFields {
            module: self.module.digest(),
            included: self.included.as_ref().map(|included| included.digest),
            files: self.files().map_or(&[], |files| files),
            constants: &self.constants,
            options: &self.options,
            link_options: &self.link_options,
            replaced: &self.replaced,
        }
    }

    pub(super) fn constant(&self, id: u32) -> Option<&SpecializationConstant> {
        self.module.specialization_constants().iter().find(|constant| constant.id == id)
    }

    /// Fails if the module cannot be built, as far as the module and the device's description show.
    pub(super) fn check(&self, device: &Device, target: &LinkTarget<'_>) -> Result<()> {
        let format = self.module.format();
        let is_accepted = device.formats.contains(&format);
        if !is_accepted && !is_emitted(device, format, false) && !is_translated(device, format) {
            return Err(Error::unsupported(format!(
                "{device} does not accept the format of this module, {format}; it accepts: {}",
                device.formats_in_words()
            )));
        }
        if let Some(flaw) = self.module.flaw() {
            return Err(flaw.clone());
        }
        if self.module.made_for().is_some()
            && let Some(refusal) = target.refusal(&self.module, ModuleFormat::Native)
        {
            return Err(Error::unsupported(refusal));
        }
        if format != ModuleFormat::SpirV && !self.constants.is_empty() {
            return Err(Error::invalid(format!(
                "specialization constants are set, but the module's format is {format}, and only \
                 SPIR-V has them; for OpenCL C, define macros in the build options: \
                 `-D NAME=VALUE`"
            )));
        }
        let mut constants = self.constants.iter().zip(&self.constant_types);
        constants
            .try_for_each(|((id, value), type_name)| self.check_constant(*id, value, type_name))
    }

    /// Fails if a constant is not declared, or if its value, of the Rust type `given`, does not have the
    /// declared type.
    fn check_constant(&self, id: u32, value: &[u8], given: &str) -> Result<()> {
        let declared = self.module.specialization_constants();
        let Some(constant) = self.constant(id) else {
            return Err(Error::invalid(format!(
                "the module has no specialization constant with id {id}; it has {}",
                describe_constants(declared)
            )));
        };
        let types = rust_types(&constant.type_name);
        let instead = types.map_or_else(String::new, |(types, example)| {
            let types: Vec<_> = types.iter().map(|name| format!("`{name}`")).collect();
            format!("; give {}, such as `{example}`", types.join(" or "))
        });
        if constant.default.len() != value.len() {
            return Err(Error::invalid(format!(
                "the value for specialization constant {id}, of type `{given}`, is {} bytes long, \
                 but the constant's type, {}, has {}{instead}; the module has {}",
                value.len(),
                constant.type_name,
                constant.default.len(),
                describe_constants(declared)
            )));
        }
        if types.is_some_and(|(types, _)| !types.contains(&given)) {
            return Err(Error::invalid(format!(
                "the value for specialization constant {id} is of type `{given}`, but the constant \
                 is of type {}{instead}; the module has {}",
                constant.type_name,
                describe_constants(declared)
            )));
        }
        Ok(())
    }
}

/// Returns the Rust types in which a constant of this type can be given, and an example value. Returns `None`
/// for an unknown type.
fn rust_types(type_name: &str) -> Option<(&'static [&'static str], &'static str)> {
    Some(match type_name {
        "bool" => (&["bool"], "true"),
        "char" => (&["i8", "u8"], "5i8"),
        "uchar" => (&["u8", "i8"], "5u8"),
        "short" => (&["i16", "u16"], "5i16"),
        "ushort" => (&["u16", "i16"], "5u16"),
        // The example is the bits of 1.0.
        "half" => (&["u16", "i16"], "0x3c00u16"),
        "int" => (&["i32", "u32"], "5i32"),
        "uint" => (&["u32", "i32"], "5u32"),
        "long" => (&["i64", "u64"], "5i64"),
        "ulong" => (&["u64", "i64"], "5u64"),
        "float" => (&["f32"], "3.0f32"),
        "double" => (&["f64"], "3.0f64"),
        _ => return None,
    })
}

/// Describes constants for messages.
pub(super) fn describe_constants(constants: &[SpecializationConstant]) -> String {
    if constants.is_empty() {
        return "none".to_owned();
    }
    let each = constants.iter().map(|constant| {
        let name = constant.name.as_deref().map(|name| format!(" `{name}`")).unwrap_or_default();
        format!("{}{name} ({}, {} bytes)", constant.id, constant.type_name, constant.default.len())
    });
    each.collect::<Vec<_>>().join(", ")
}
