//! Creates build requests from files and settings.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use kiln::build::SpecializationConstant;
use kiln::devices::ModuleFormat;
use kiln::{BuildRequest, CacheConfig, Error, ErrorKind, Module, Runtime};

use crate::args::{DeclaredNames, Settings, Spec};
pub(crate) use crate::output::Problem;
use crate::output::{self, Failure};

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

fn invalid_argument(message: impl Display) -> Problem {
    let kind = format!("{:?}", ErrorKind::InvalidArgument);
    Problem { kind, message: message.to_string(), log: None }
}

/// A runtime with the device that the settings select, and its device libraries.
pub(crate) struct Setup<'a> {
    pub(crate) rt: Runtime,
    settings: &'a Settings,
    libraries: Vec<(&'a Path, Module)>,
}

impl<'a> Setup<'a> {
    /// Creates the runtime. `files` are all files that will be requested.
    pub(crate) async fn new(
        settings: &'a Settings,
        cache: CacheConfig,
        files: &[&Path],
    ) -> output::Result<Self> {
        check(settings, files)?;
        let mut builder = Runtime::builder().cache(cache);
        if let Some(device) = &settings.device {
            builder = builder.device(device);
        }
        let rt = builder.build().await?;
        let mut setup = Self { rt, settings, libraries: Vec::new() };
        for DeclaredNames { file, .. } in &settings.library {
            let library = setup.library(file).await.map_err(|problem| {
                Failure::failed(format_args!("library {}: {}", file.display(), problem.message))
            })?;
            setup.libraries.push((file, library));
        }
        Ok(setup)
    }

    async fn library(&self, file: &Path) -> Result<Module, Problem> {
        let module = self.module(file).await?;
        let format = module.format();
        if format != ModuleFormat::SpirV && module.exports().len() == 0 {
            return Err(invalid_argument(format_args!(
                "the file, {format}, does not declare its exports; name them: --library {}=NAME,..",
                file.display()
            )));
        }
        self.rt.register(&module)?;
        Ok(module)
    }

    /// Reads the module of a file, with the exports and imports that the settings name for it.
    async fn module(&self, file: &Path) -> Result<Module, Problem> {
        let module = Module::open(file).await?;
        let names = |all: &[DeclaredNames]| {
            let of_file = all.iter().filter(|declared| declared.file == file);
            of_file.flat_map(|declared| declared.names.clone()).collect::<Vec<_>>()
        };
        let Settings { library, export, import, .. } = self.settings;
        let exports = [names(library), names(export)].concat();
        let imports = names(import);
        let format = module.format();
        if format == ModuleFormat::SpirV && !(exports.is_empty() && imports.is_empty()) {
            return Err(invalid_argument(format_args!(
                "names of exports or imports are given, but the format is {format}, which declares \
                 them itself; only OpenCL C and native code need them"
            )));
        }
        let module = if exports.is_empty() { module } else { module.exporting(exports) };
        let module = if imports.is_empty() { module } else { module.importing(imports) };
        Ok(if self.settings.untrusted { module.untrusted() } else { module })
    }

    /// Creates the request that building the file would make.
    pub(crate) async fn request(&self, file: &Path) -> Result<(Module, BuildRequest), Problem> {
        let module = self.module(file).await?;
        let mut request = self.rt.build(&module);
        if let Some(options) = &self.settings.options {
            request = request.options(options);
        }
        if let Some(options) = &self.settings.link_options {
            request = request.link_options(options);
        }
        for spec in &self.settings.spec {
            request = match self.owner(&request, &module, spec)? {
                Some(owner) => specialize(request, owner, spec)?,
                // Any value will do: the library reports which constants exist.
                None => request.specialize(spec.id, 0u32),
            };
        }
        Ok((module, request))
    }

    /// Returns the module of a request that has a specialization constant, or `None` if no module or more than
    /// one library has it.
    fn owner<'b>(
        &'b self,
        request: &BuildRequest,
        module: &'b Module,
        spec: &Spec,
    ) -> Result<Option<&'b Module>, Problem> {
        let mut libraries = self.libraries.iter();
        if let Some(file) = &spec.library {
            let named = libraries.find(|(known, _)| known == file);
            return Ok(named.map(|(_, library)| library));
        }
        if constant(module, spec.id).is_some() {
            return Ok(Some(module));
        }
        let fields = request.key_fields()?;
        let is_linked = |library: &Module| {
            let digest = library.digest().to_string();
            fields.iter().any(|(name, value)| name == "module" && *value == digest)
        };
        let libraries = libraries.map(|(_, library)| library);
        let mut owners: Vec<_> = libraries
            .filter(|library| constant(library, spec.id).is_some() && is_linked(library))
            .collect();
        owners.dedup_by_key(|library| library.digest());
        Ok(if owners.len() == 1 { owners.pop() } else { None })
    }
}

/// Fails if the settings refer to a file that is not given.
fn check(settings: &Settings, files: &[&Path]) -> output::Result<()> {
    let is_library = |file: &PathBuf| settings.library.iter().any(|known| known.file == *file);
    let mut libraries = settings.spec.iter().filter_map(|spec| spec.library.as_ref());
    if let Some(file) = libraries.find(|file| !is_library(file)) {
        return Err(Failure::usage(format_args!(
            "--spec names {0}, which is not a library; also give --library {0}",
            file.display()
        )));
    }
    for (option, declared) in [("--import", &settings.import), ("--export", &settings.export)] {
        let mut named = declared.iter().map(|declared| &declared.file);
        if let Some(file) = named.find(|file| !is_library(file) && !files.contains(&&***file)) {
            return Err(Failure::usage(format_args!(
                "{option} names {}, which is neither among the files nor a library",
                file.display()
            )));
        }
    }
    Ok(())
}

fn constant(module: &Module, id: u32) -> Option<&SpecializationConstant> {
    module.specialization_constants().iter().find(|constant| constant.id == id)
}

/// Sets a constant of one of the modules of a request to a value of its type.
fn specialize(request: BuildRequest, owner: &Module, spec: &Spec) -> Result<BuildRequest, Problem> {
    let id = spec.id;
    let Some(constant) = constant(owner, id) else {
        // Any value will do: the library reports which constants exist.
        return Ok(request.specialize_in(owner, id, 0u32));
    };
    let text = spec.value.as_str();
    Ok(match constant.type_name.as_str() {
        "bool" => request.specialize_in(owner, id, boolean(constant, text)?),
        "float" => request.specialize_in(owner, id, parsed::<f32>(constant, text)?),
        "double" => request.specialize_in(owner, id, parsed::<f64>(constant, text)?),
        "char" => request.specialize_in(owner, id, integer::<i8>(constant, text)?),
        "uchar" => request.specialize_in(owner, id, integer::<u8>(constant, text)?),
        "short" => request.specialize_in(owner, id, integer::<i16>(constant, text)?),
        // The bits of a half are given: Rust has no such type.
        "ushort" | "half" => request.specialize_in(owner, id, integer::<u16>(constant, text)?),
        "int" => request.specialize_in(owner, id, integer::<i32>(constant, text)?),
        "uint" => request.specialize_in(owner, id, integer::<u32>(constant, text)?),
        "long" => request.specialize_in(owner, id, integer::<i64>(constant, text)?),
        "ulong" => request.specialize_in(owner, id, integer::<u64>(constant, text)?),
        other => return Err(invalid_argument(format_args!("constant {id} has the type {other}"))),
    })
}

fn boolean(constant: &SpecializationConstant, text: &str) -> Result<bool, Problem> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(invalid_value(constant, text)),
    }
}

fn parsed<T: std::str::FromStr>(
    constant: &SpecializationConstant,
    text: &str,
) -> Result<T, Problem> {
    text.parse().map_err(|_| invalid_value(constant, text))
}

fn integer<T: TryFrom<i128>>(constant: &SpecializationConstant, text: &str) -> Result<T, Problem> {
    whole_number(text).ok_or_else(|| invalid_value(constant, text))
}

/// Parses a decimal number, or a hexadecimal one with `0x`.
pub(crate) fn whole_number<T: TryFrom<i128>>(text: &str) -> Option<T> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.ok()?.try_into().ok()
}

fn invalid_value(constant: &SpecializationConstant, text: &str) -> Problem {
    let SpecializationConstant { id, type_name, .. } = constant;
    let hint = match type_name.as_str() {
        "half" => "; give the bits of a half, such as 0x3c00 for 1.0",
        "bool" => "; write true or false",
        _ => "",
    };
    invalid_argument(format_args!(
        "`{text}` is not a valid value for the constant {id}, which has the type {type_name}{hint}"
    ))
}
