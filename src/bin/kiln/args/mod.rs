//! The command line.

mod cache;
mod manifest;

use std::path::{PathBuf, is_separator};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use kiln::CacheConfig;

pub(crate) use self::cache::{CacheCommand, KeyPrefix, Operand, Sort};
pub(crate) use self::manifest::{Keep, ManifestCommand, Warm};
use crate::launch::{BufferSize, LaunchText};
use crate::memory::FormatText;

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  a requested operation failed: a program was not built or not stored, entries are damaged, a
     key was not found, two keys differ, or launches are not one kernel
  2  the command line or an environment variable is not valid, or there is no device

With --json, a command that fails ends its standard output with a line {\"error\": {\"kind\": ..,
\"message\": .., \"log\": ..}}.

Environment:
  KILN_CACHE           on, memory (no disk) or off
  KILN_CACHE_DIR       the cache directory; by default, kiln in $XDG_CACHE_HOME, else on Windows in
                       %LOCALAPPDATA%, else ~/.cache/kiln
  KILN_CACHE_MAX_SIZE  the maximum size of the cache, such as 512MiB; 0 for no limit. If it is not
                       set, only `cache gc` removes programs, down to 1GiB
  KILN_CACHE_MAX_AGE, KILN_CACHE_MIN_ENTRY_SIZE, KILN_CACHE_MAX_ENTRY_SIZE, KILN_CACHE_BUILD_WAIT
                       the time without a use after which programs are removed, such as 30d, the
                       sizes of those that are stored, and the longest wait for another process
  KILN_CACHE_REMOTE    the remote cache, such as redis://host:6379/kiln, if the tool was built with
                       the feature of its service. The documentation of the crate describes
                       KILN_CACHE_REMOTE_ACCESS, _BUDGET, _TIMEOUT, _SECRET and _SECRET_FILE
  KILN_CACHE_TRACE     a file, or stderr: one line of JSON for every requested program
  KILN_DEVICE          the device, as for --device
  KILN_MANIFEST        record:FILE: the manifest in which builds are recorded
  KILN_FUSION          auto, relaxed, always or never: whether launches that can be fused are fused
  KILN_FUSION_FORM     the form of all fused kernels: direct, inlined, tiles:16x16, strips:32,
                       windows:32 (with any numbers) or batched; by default, the one expected to
                       be fastest
  KILN_CLANG, KILN_LLVM_SPIRV
                       the compilers that translate OpenCL C to SPIR-V; by default, those in PATH
  KILN_COMPILE_OPTIONS, KILN_LINK_OPTIONS
                       options for the compiler and the linker, in place of those of the modules
  KILN_APPEND_COMPILE_OPTIONS, KILN_APPEND_LINK_OPTIONS
                       further options for the compiler and the linker
  KILN_BUILD_CHILD     the program that compiles --untrusted modules; by default, this tool

Applications that use Kiln run this tool as a child process to compile untrusted modules, if the
tool is in the directory of the application or in PATH, and the application does not set a program
of its own. The child is started with one request, and exits after its response.";

const MAX_SIZE: &str = "KILN_CACHE_MAX_SIZE";
const ENTRY_SIZES: [&str; 2] = ["KILN_CACHE_MIN_ENTRY_SIZE", "KILN_CACHE_MAX_ENTRY_SIZE"];

/// Maximum size of a program in bytes, for any device.
const MAX_ENTRY_BYTES: u64 = 4 << 30;

/// Explores the devices of this machine and the programs that Kiln keeps on disk
#[derive(Parser)]
#[command(version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Print JSON, for programs, instead of text and tables
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Use the cache in this directory, and ignore the one in the environment
    #[arg(long, global = true, value_name = "DIR")]
    cache_dir: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// Returns the configuration of the cache. The cache belongs to an application, whose limits are unknown
    /// here. Unless the environment sets limits, no entries are evicted, and entries of any size are read.
    pub(crate) fn cache_config(&self) -> CacheConfig {
        let config = self.cache_dir.as_ref().map_or_else(CacheConfig::new, CacheConfig::at);
        let is_set = |name| std::env::var_os(name).is_some_and(|size| !size.is_empty());
        let config = if ENTRY_SIZES.into_iter().any(is_set) {
            config
        } else {
            config.entry_bytes(1..=MAX_ENTRY_BYTES)
        };
        let has_limit = is_set(MAX_SIZE);
        let command = &self.command;
        let needs_limit = matches!(
            command,
            Command::Cache { command: CacheCommand::Gc { .. } | CacheCommand::Stats }
        );
        if has_limit || needs_limit { config } else { config.max_bytes(0) }
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the devices, and mark the default one
    Devices,
    /// Build programs, so that they are in the cache before they are needed
    ///
    /// The builds start together; results are printed in the order of the files. With --json, a line for each
    /// file: file, device, key, origin (compiled, memory, disk or remote), options (each with kind, compile or
    /// link, source and text), kernels, milliseconds since the builds started, bytes, for a linked program
    /// linked, and on failure error, with kind, message and log.
    /// Each element of linked has: symbol, importer and exporter (modules, by label or digest), source (where
    /// the library that defines the symbol comes from; null for the file itself) and replaces (whether the
    /// importer's own definition is replaced). For --object, one line: file, output, device, driver, key,
    /// origin, bytes, exports and imports.
    Build(Build),
    /// Build what a manifest recorded, so that it is in the caches before it is needed
    ///
    /// A manifest lists what processes really built and used. An application records one with
    /// KILN_MANIFEST=record:FILE in its environment. What is used most is built first. Programs that are in the
    /// cache on disk are not built again, and are copied to the remote cache if there is one that lacks them.
    /// Entries that do not apply here are skipped, with the reason: for a device that is not there, or whose
    /// included files have changed.
    ///
    /// With --json, a line for each entry, in the order in which they end: entry, kind (program, object, SPIR-V
    /// or choice), key, device, outcome (found, made, missing, skipped or failed), cache (where it was found),
    /// reason (why it was skipped) and error, with kind, message and log.
    #[command(
        after_help = "Exits with 1 if a program cannot be built, or with --check if one is missing."
    )]
    Warm(Warm),
    /// Inspect and edit manifests
    Manifest {
        #[command(subcommand)]
        command: ManifestCommand,
    },
    /// List the device libraries that programs are linked with, in the order in which symbols are searched
    ///
    /// These are the libraries that the tool is given, and those that crates linked into it embed. With
    /// --json, a list of objects: source, format, digest, exports and error (null if the library is valid).
    /// An application prints its own with `Runtime::libraries`.
    Libraries(Settings),
    /// Check whether launches can run as one kernel, explain the result, and show its code
    ///
    /// Nothing runs: the kernels and the fused kernels are only built. The verdict on each buffer states
    /// whether the launches can share it as one kernel: proven; needs trust, with the unknown fact; or
    /// refuted, with a case in which the result would change.
    ///
    /// If the launches cannot be one kernel, the parts in which they would run are listed instead of code: the
    /// kernels for some of them, each with its form, and the launches that run alone. KILN_FUSION_FORM asks for
    /// another form than the one that is expected to be the fastest.
    ///
    /// With --json, one object: device, launches, buffers, kernel, refusal (null if they are one kernel),
    /// steps, code, format (opencl-c or spirv) and output. Each launch has: kernel, file, arguments as given,
    /// parameters, global, offset, local, barrier (whether there is one before it), remapped, guard (number
    /// of work-items that run it, if not all), fixed and presumed (positions of the scalars that are
    /// constants of the fused kernel, or on whose values the proof relies). Each buffer has: name, bytes,
    /// kept, parameters (launch, index and name), verdict (proven, needs-trust or refuted), reason,
    /// internalized (private or local), in_memory (why it is not) and pairs, of launches that share it:
    /// launches, verdict, reason and barrier. Each step has: launches, repeated (launches of other steps that
    /// it runs again), kernel and form (both null for a launch by itself).
    #[command(
        after_help = "Exits with 1 if the launches are not one kernel, or its code cannot be shown."
    )]
    Fuse(Box<Fuse>),
    /// Check whether launches stay inside their buffers, and list what a guarded variant would guard
    ///
    /// Nothing runs, and no guarded variant is built. A launch is proven, or its accesses are listed that are
    /// not, each with the parameter, the reason and, if the file states it, the line of the source. SPIR-V
    /// states lines if it was compiled with -g. A kernel that cannot be checked is refused, with the reason.
    ///
    /// With --json, one object: device, launches and buffers. Each launch has: kernel, file, arguments as
    /// given, parameters, verdict (proven, guarded or refused), accesses (their number), findings (each with
    /// parameter, what, reason and line) and refusal. Each buffer has: name and bytes.
    #[command(after_help = "Exits with 1 if a launch is not proven.")]
    Check(Box<Check>),
    /// Inspect and maintain the cache on disk
    Cache {
        #[command(subcommand)]
        command: CacheCommand,
    },
}

#[derive(Args)]
pub(crate) struct Build {
    /// OpenCL C, SPIR-V or native binaries: the format is detected from the content
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Compile the one file to an object for the device, without linking it, and write it to the file of
    /// --output
    ///
    /// The object can be a library (--library) or the file of a later build, for the same device and the same
    /// version of its driver. It states both, and the symbols that it exports and imports.
    #[arg(long, requires = "output")]
    pub(crate) object: bool,

    /// The file for the object
    #[arg(short, long, value_name = "FILE", requires = "object")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args)]
pub(crate) struct Fuse {
    /// OpenCL C or SPIR-V with the kernels
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// A launch, two or more in their order, such as 'scale(src, tmp, 3.0) over 1024x768 in 16x16'
    ///
    /// The form is [FILE:]KERNEL(ARGUMENT, ..) over SIZE [from OFFSET] [in GROUP]. An argument is NAME, a
    /// buffer or an image, which is the same for the same name; nearest or linear, a sampler; 3 or 1.5, a
    /// number of the parameter's type, for all elements of a vector; 8u32 or 1.5f32, a number where the type is
    /// not known; local:256, local memory of 256 bytes; or zeros:12, a structure of 12 zero bytes.
    #[arg(long = "launch", required = true, value_name = "LAUNCH")]
    pub(crate) launches: Vec<LaunchText>,

    /// A buffer that is read later; by default, all buffers that the last launch to use them may write
    #[arg(long, value_name = "NAME")]
    pub(crate) keep: Vec<String>,

    /// The size of a buffer, such as tmp=64MiB; by default, it has room for an element of the parameter's type
    /// (16 bytes if the type is not known) for each work-item of any of its launches
    #[arg(long, value_name = "NAME=SIZE")]
    pub(crate) bytes: Vec<BufferSize>,

    /// The format of an image's pixels, such as tmp=Rgba<Unorm8>; by default, Rgba<Float>
    ///
    /// An image has a pixel for each work-item of any of its launches.
    #[arg(long, value_name = "NAME=FORMAT")]
    pub(crate) format: Vec<FormatText>,

    /// Fix the scalars at their values
    #[arg(long)]
    pub(crate) fix_scalars: bool,

    /// Show the result for launches that are not proven to be legal, unless that is refuted
    #[arg(long)]
    pub(crate) assume_legal: bool,

    /// The language of the code; SPIR-V is written to the file of --output
    #[arg(long, value_enum, default_value_t)]
    pub(crate) code: Code,

    /// The file for the code; by default, it is printed
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Args)]
pub(crate) struct Check {
    /// OpenCL C or SPIR-V with the kernels
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// A launch, such as 'scale(src, tmp, 3.0) over 1024x768 in 16x16'
    ///
    /// The form is that of `kiln fuse`: [FILE:]KERNEL(ARGUMENT, ..) over SIZE [from OFFSET] [in GROUP].
    #[arg(long = "launch", required = true, value_name = "LAUNCH")]
    pub(crate) launches: Vec<LaunchText>,

    /// The size of a buffer, such as tmp=64MiB; by default, it has room for an element of the parameter's type
    /// (16 bytes if the type is not known) for each work-item of any of its launches
    #[arg(long, value_name = "NAME=SIZE")]
    pub(crate) bytes: Vec<BufferSize>,

    /// The format of an image's pixels, such as tmp=Rgba<Unorm8>; by default, Rgba<Float>
    ///
    /// An image has a pixel for each work-item of any of its launches.
    #[arg(long, value_name = "NAME=FORMAT")]
    pub(crate) format: Vec<FormatText>,

    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Code {
    /// OpenCL C, as for a device that does not accept SPIR-V, or if all launches are in OpenCL C
    #[default]
    C,
    /// SPIR-V
    Spirv,
}

/// Inputs of a program other than its module.
#[derive(Args)]
pub(crate) struct Settings {
    /// The device: an API, a kind (gpu, cpu, accelerator), a number from `kiln devices`, a part of its name or
    /// of its platform's, or several of these joined by colons
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) device: Option<String>,

    /// Register a device library; SPIR-V and objects that Kiln made declare their exports, and for OpenCL C and
    /// other native code they are named, such as lib.cl=scale,bump
    #[arg(long, value_name = "FILE[=NAME,..]")]
    pub(crate) library: Vec<DeclaredNames>,

    /// Name the imports of a file or a library in OpenCL C or native code, such as app.cl=scale,bump
    #[arg(long, value_name = "FILE=NAME,..", value_parser = DeclaredNames::with_names)]
    pub(crate) import: Vec<DeclaredNames>,

    /// Name the exports of a file in OpenCL C or native code, such as lib.cl=scale,bump
    #[arg(long, value_name = "FILE=NAME,..", value_parser = DeclaredNames::with_names)]
    pub(crate) export: Vec<DeclaredNames>,

    /// Set a specialization constant of SPIR-V modules, such as 0=16, 1=1.5 or 2=true, or the constant of one
    /// library if several have the id, such as lib.spv:0=16; the value is parsed as the constant's type
    #[arg(long, value_name = "[FILE:]ID=VALUE")]
    pub(crate) spec: Vec<Spec>,

    /// Compile the files and the libraries in child processes, so that a crash or a hang of the compiler is an
    /// error
    #[arg(long)]
    pub(crate) untrusted: bool,

    /// Options for the compiler, such as "-D N=16 -cl-fast-relaxed-math"; they follow those of
    /// KILN_COMPILE_OPTIONS and KILN_APPEND_COMPILE_OPTIONS
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) options: Option<String>,

    /// Options for the linker, such as "-cl-denorms-are-zero"; they follow those of KILN_LINK_OPTIONS and
    /// KILN_APPEND_LINK_OPTIONS
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) link_options: Option<String>,
}

/// A file, and the names of functions and variables that it exports or imports but does not declare as such.
#[derive(Clone)]
pub(crate) struct DeclaredNames {
    pub(crate) file: PathBuf,
    pub(crate) names: Vec<String>,
}

impl DeclaredNames {
    fn with_names(text: &str) -> Result<Self, String> {
        let declared: Self = text.parse()?;
        if declared.names.is_empty() {
            return Err("write FILE=NAME,.., such as app.cl=scale,bump".to_owned());
        }
        Ok(declared)
    }
}

impl FromStr for DeclaredNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Names of directories may contain the equals sign.
        let named = text.rsplit_once('=').filter(|(_, names)| !names.contains(is_separator));
        let Some((file, names)) = named else {
            return Ok(Self { file: text.into(), names: Vec::new() });
        };
        let name = |name: &str| {
            let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if name.is_empty() || !is_word || name.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(format!("`{name}` is not the name of a function or a variable"));
            }
            Ok(name.to_owned())
        };
        let names = names.split(',').map(|text| name(text.trim())).collect::<Result<_, _>>()?;
        Ok(Self { file: file.into(), names })
    }
}

/// Id of a specialization constant, and its value as text.
#[derive(Clone)]
pub(crate) struct Spec {
    /// Library that has the constant, if it is given.
    pub(crate) library: Option<PathBuf>,
    pub(crate) id: u32,
    pub(crate) value: String,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (constant, value) = text.rsplit_once('=').ok_or("write ID=VALUE, such as 0=16")?;
        let (library, id) = match constant.rsplit_once(':') {
            Some((library, id)) => (Some(library.into()), id),
            None => (None, constant),
        };
        let id = id.trim().parse().map_err(|_| format!("`{id}` is not the id of a constant"))?;
        match value.trim() {
            "" => Err(format!("constant {id} has no value")),
            value => Ok(Self { library, id, value: value.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn exported_names_follow_the_last_component_of_the_path() {
        for (text, file, names) in [
            ("lib.spv", "lib.spv", Vec::new()),
            ("lib.cl=scale", "lib.cl", vec!["scale"]),
            ("N=16/lib.cl=scale, _bump2", "N=16/lib.cl", vec!["scale", "_bump2"]),
            ("N=16/lib.spv", "N=16/lib.spv", Vec::new()),
        ] {
            let declared: DeclaredNames = text.parse().expect(text);
            assert_eq!(
                (declared.file, declared.names),
                (PathBuf::from(file), names.into_iter().map(str::to_owned).collect()),
                "{text}"
            );
        }
        for text in ["lib.cl=", "lib.cl=a,", "lib.cl=a,,b", "lib.cl=2a", "lib.cl=a b"] {
            assert!(text.parse::<DeclaredNames>().is_err(), "{text}");
        }
    }
}
