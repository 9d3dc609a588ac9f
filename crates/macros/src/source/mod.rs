//! Device code: where it is, what it includes, and the kernels in it.

pub(crate) mod clang;
mod devices;
mod includes;
mod options;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{env, fs};

use self::clang::Preprocessed;
use self::devices::{Device, Refusal, Signatures};
use self::options::Options;
use crate::parse::predefined::DEVICE_VERSION;
use crate::parse::preprocess::{FOLDER_ADVICE, follow_line_markers, preprocess};
use crate::parse::token::Token;
use crate::signature::{Kernel, Parameter};
use crate::{parse, spirv};

/// Device code with its kernels.
#[derive(Debug)]
pub(crate) struct DeviceCode {
    pub(crate) code: Code,
    /// Name for messages.
    pub(crate) name: String,
    /// Files that the code was read from, for the compiler to watch.
    pub(crate) files: Vec<PathBuf>,
    /// Options for the device's compiler.
    pub(crate) options: Option<String>,
    pub(crate) kernels: Vec<Kernel>,
    /// Reasons why parts of the code cannot be used.
    pub(crate) problems: Vec<String>,
    /// Whether clang can read the code, so that the path of clang matters.
    pub(crate) depends_on_clang: bool,
}

#[derive(Debug)]
pub(crate) enum Code {
    /// Text as it is in the first of the files.
    TextFile,
    /// Text with the contents of included files.
    Text(String),
    /// SPIR-V in the first of the files.
    SpirV,
    /// Nothing, if the file cannot be read.
    Missing,
}

impl DeviceCode {
    fn missing(name: &str, problem: String) -> Self {
        Self {
            code: Code::Missing,
            name: name.to_owned(),
            files: Vec::new(),
            options: None,
            kernels: Vec::new(),
            problems: vec![problem],
            depends_on_clang: false,
        }
    }
}

/// Place where the macro runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    /// Folder of the source file with the macro, if the compiler says it.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) clang: Option<PathBuf>,
    /// Whether the environment names the path of clang.
    pub(crate) clang_is_chosen: bool,
}

/// Reads a file of device code.
pub(crate) fn read_file(path: &str, host: &Host, options: &str) -> DeviceCode {
    let file = match resolve(path, host.folder.as_deref()) {
        Ok(file) => file,
        Err(problem) => return DeviceCode::missing(path, problem),
    };
    let name = file.file_name().map_or(path.into(), |name| name.to_string_lossy());
    match fs::read(&file) {
        Err(error) => {
            let relative =
                if Path::new(path).is_absolute() { "" } else { ", relative to this file" };
            DeviceCode::missing(&name, format!("cannot read `{path}`{relative}: {error}"))
        }
        Ok(bytes) if kiln_spirv::has_magic(&bytes) || has_extension(&file, "spv") => {
            read_spirv(&bytes, file.clone(), &name, options)
        }
        Ok(_) => match includes::read(&file) {
            Err(why) => DeviceCode::missing(&name, format!("`{path}` {why}")),
            Ok(text) => {
                let folder = file.parent().unwrap_or(Path::new("")).to_owned();
                let mut code = read_text(&text, &name, &folder, host, options);
                code.files.insert(0, file);
                if matches!(&code.code, Code::Text(spliced) if *spliced == text) {
                    code.code = Code::TextFile;
                }
                code
            }
        },
    }
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Returns the file that a path names. If the compiler does not say which file contains the macro, as some
/// editors do not, a relative path is tried from the package's folders.
fn resolve(path: &str, folder: Option<&Path>) -> Result<PathBuf, String> {
    let path = Path::new(path);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    if let Some(folder) = folder {
        return Ok(folder.join(path));
    }
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let mut candidates = ["src", ""].map(|folder| package.join(folder).join(path)).into_iter();
    candidates.find(|file| file.is_file()).ok_or_else(|| {
        format!(
            "cannot find `{}`: the compiler does not say which file contains the macro; write \
             `concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{}\")` with the path from the package's folder",
            path.display(),
            path.display()
        )
    })
}

fn read_spirv(bytes: &[u8], file: PathBuf, name: &str, options: &str) -> DeviceCode {
    let (kernels, problems) = match spirv::kernels(bytes) {
        Ok(kernels) => (kernels, Vec::new()),
        Err(why) => (Vec::new(), vec![format!("`{name}`: {why}")]),
    };
    DeviceCode {
        code: Code::SpirV,
        name: name.to_owned(),
        files: vec![file],
        options: Some(options.trim().to_owned()).filter(|options| !options.is_empty()),
        kernels,
        problems,
        depends_on_clang: false,
    }
}

/// Reads OpenCL C. `folder` is where included files are searched for first.
pub(crate) fn read_text(
    text: &str,
    name: &str,
    folder: &Path,
    host: &Host,
    options: &str,
) -> DeviceCode {
    let options = match Options::parse(options) {
        Ok(options) => options,
        Err(problem) => return DeviceCode::missing(name, problem),
    };
    let folders: Vec<_> = options.folders.iter().map(|it| folder.join(it)).collect();
    let spliced = match includes::splice(text, name, folder, &folders) {
        Ok(spliced) => spliced,
        Err(problem) => return DeviceCode::missing(name, problem),
    };
    let depends_on_version = spliced.text.contains(DEVICE_VERSION);
    let signatures = devices::for_all(depends_on_version, |device| {
        kernels_of(&spliced.text, &name.into(), device, host, &options)
    });
    let (kernels, problems) = match signatures {
        Ok(Signatures { kernels, problems }) => (kernels, problems),
        Err(problem) => (Vec::new(), vec![problem]),
    };
    DeviceCode {
        code: Code::Text(spliced.text),
        name: name.to_owned(),
        files: spliced.files,
        options: Some(options.for_device).filter(|options| !options.is_empty()),
        kernels,
        problems,
        depends_on_clang: true,
    }
}

/// Returns the kernels that a text has for a kind of device.
fn kernels_of(
    text: &str,
    file: &Rc<str>,
    device: &Device,
    host: &Host,
    options: &Options,
) -> Result<Signatures, Refusal> {
    let Expanded { tokens, by_clang } = expanded(text, file, device, host, options)?;
    let (mut kernels, problems) = parse::read(&tokens);
    if let (Some(clang), Some(text)) = (&host.clang, by_clang) {
        take_sizes(&mut kernels, |types| clang::sizes(clang, &text, options.standard(), types));
    }
    refuse_unknown_layouts(&mut kernels);
    Ok(Signatures { kernels, problems: problems.iter().map(ToString::to_string).collect() })
}

/// Gives the types of parameters the sizes that clang states, where the source names the types.
fn take_sizes(kernels: &mut [Kernel], sizes: impl FnOnce(&[String]) -> Vec<Option<u64>>) {
    let mut types: Vec<String> = Vec::new();
    for parameter in kernels.iter().flat_map(|kernel| kernel.parameters.iter().flatten()) {
        parameter.element.add_spellings(&mut types);
    }
    if types.is_empty() {
        return;
    }
    let sizes: HashMap<_, _> = types.iter().cloned().zip(sizes(&types)).collect();
    for parameter in kernels.iter_mut().flat_map(|kernel| kernel.parameters.iter_mut().flatten()) {
        parameter.element.take_sizes(&|ty| sizes.get(ty).copied().flatten());
    }
}

/// Refuses the parameters whose types have a size that is not known.
fn refuse_unknown_layouts(kernels: &mut [Kernel]) {
    for kernel in kernels {
        let place = kernel.place.clone();
        for parameter in &mut kernel.parameters {
            let Ok(Parameter { declaration, element, .. }) = parameter else { continue };
            let Some(name) = element.of_unknown_size() else { continue };
            let place = place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
            *parameter = Err(format!(
                "{place}parameter `{declaration}`: only clang knows the size of `{name}`, because of an attribute, a \
                 pragma, a bit-field or a value; install clang, or name it with `{}`",
                clang::CLANG
            ));
        }
    }
}

/// Device code without macros.
struct Expanded {
    tokens: Vec<Token>,
    /// Text as clang has preprocessed it.
    by_clang: Option<String>,
}

/// Preprocesses a text: by clang if it is installed, and otherwise here.
fn expanded(
    text: &str,
    file: &Rc<str>,
    device: &Device,
    host: &Host,
    options: &Options,
) -> Result<Expanded, Refusal> {
    let by_clang = host.clang.as_ref().map(|clang| by_clang(clang, text, file, device, options));
    match by_clang {
        Some(Preprocessed::Text(text)) => {
            let tokens = follow_line_markers(&text, file)?;
            let tokens = tokens.into_iter().filter(|token| !is_compilers(&token.file)).collect();
            Ok(Expanded { tokens, by_clang: Some(text) })
        }
        Some(Preprocessed::Refused(problem)) if problem.ends_with("file not found") => {
            Err(format!("{problem}; {FOLDER_ADVICE}").into())
        }
        Some(Preprocessed::Refused(problem)) => Err(problem.into()),
        // A chosen clang that cannot be used is a mistake; others may be of no interest to the application.
        Some(Preprocessed::Unusable(problem)) if host.clang_is_chosen => {
            Err(format!("{}: {problem}", clang::CLANG).into())
        }
        Some(Preprocessed::Unusable(_)) | None => {
            let definitions = definitions_without_clang(device, options)?;
            let tokens = preprocess(text, file, device.version, &definitions)?;
            Ok(Expanded { tokens, by_clang: None })
        }
    }
}

fn by_clang(
    clang: &Path,
    text: &str,
    file: &Rc<str>,
    device: &Device,
    options: &Options,
) -> Preprocessed {
    let marker = format!("#line 1 \"{}\"\n", file.replace('\\', "\\\\").replace('"', "\\\""));
    let text = format!("{marker}{text}");
    clang::preprocess(clang, &text, device.version, options.standard(), &options.for_clang())
}

/// Returns the definitions of a device and of the build options, in the order in which they take effect.
fn definitions_without_clang(
    device: &Device,
    options: &Options,
) -> Result<Vec<(String, bool)>, String> {
    let language = options.version().ok_or_else(|| {
        let standard = options.standard();
        format!("only clang reads `{standard}`; install clang, or name it with `{}`", clang::CLANG)
    })?;
    let mut definitions = vec![(format!("__OPENCL_C_VERSION__={language}"), true)];
    definitions.extend(device.optional.iter().cloned());
    definitions.extend(options.definitions.iter().cloned());
    Ok(definitions)
}

/// Whether a file is one that clang includes by itself.
fn is_compilers(file: &str) -> bool {
    file.starts_with('<') || file.ends_with("/opencl-c-base.h") || file.ends_with("/opencl-c.h")
}

#[cfg(test)]
mod tests;
