//! Keys of the build graph: a BLAKE3 digest over every input that can change a build's result.
//!
//! The digest is taken over a sequence of fields. Each field is written as its tag, the length of its value and
//! the value, so no two different inputs have the same encoding. The fields are defined once, in
//! [`ProgramFields::visit`] and [`DeviceFields::visit`]; both the digest and the listing by name and value are
//! derived from that definition.

use std::ffi::{OsStr, OsString};

use kiln_spirv::REMOVER;
use smallvec::SmallVec;

use super::options::{OptionKind, OptionSource, SourcedOptions};
use crate::digest::{BuildKey, Digest};
use crate::source::includes::IncludedFile;

/// Version of the encoding. Any change to the fields, or to how they are written, must raise it, which changes
/// every key.
const SCHEMA: u32 = 4;

/// A specialization constant's value as its module stores it, little-endian.
pub(crate) type ConstantBytes = SmallVec<[u8; 8]>;

/// Name of the field that marks a program as translated from SPIR-V to OpenCL C.
pub(crate) const EMITTER: &str = "emitter";

/// Environment variables that can change the output of a driver's compiler for the same input, in addition to
/// those with the [prefixes](ENVIRONMENT_PREFIXES).
const ENVIRONMENT: &[&str] = &[
    // Intel's runtime for CPUs
    "INTEL_ISA_DISABLE",
    "INTEL_JIT_BACKWARD_COMPATIBILITY",
    // Intel's runtime for GPUs
    "OverrideDefaultFP64Settings",
    // AMD
    "AMD_OCL_BUILD_OPTIONS",
    "AMD_OCL_BUILD_OPTIONS_APPEND",
    "AMD_OCL_LINK_OPTIONS",
    "AMD_OCL_LINK_OPTIONS_APPEND",
    // Mesa
    "LP_NATIVE_VECTOR_WIDTH",
    "RUSTICL_FEATURES",
    // Oclgrind
    "OCLGRIND_BUILD_OPTIONS",
    // Clang, if a driver starts it
    "CPATH",
];

/// Prefixes of environment variables of PoCL, of Intel's runtime for CPUs, and of the Intel Graphics Compiler.
/// All such variables are assumed to affect the compiler, except the [harmless](HARMLESS) ones, because new
/// versions add variables.
const ENVIRONMENT_PREFIXES: &[&str] = &["POCL_", "CL_CONFIG_", "IGC_"];

/// Variables with one of these prefixes that only move caches, write diagnostics, or control how kernels are
/// run. If keys covered them, they would cause needless rebuilds.
const HARMLESS: &[&str] = &[
    "POCL_AFFINITY",
    "POCL_CACHE_DIR",
    "POCL_DEBUG",
    "POCL_DEBUG_LLVM_PASSES",
    "POCL_KERNEL_CACHE",
    "POCL_LEAVE_KERNEL_COMPILER_TEMP_FILES",
    "POCL_MAX_PTHREAD_COUNT",
    "POCL_MEMORY_LIMIT",
    "POCL_SIGFPE_HANDLER",
    "POCL_SIGUSR2_HANDLER",
    "POCL_STARTUP_DELAY",
    "POCL_TRACING",
    "POCL_TRACING_FILTER",
    "POCL_TRACING_OPT",
    "POCL_VECTORIZER_REMARKS",
    "CL_CONFIG_CPU_FORCE_GLOBAL_MEM_SIZE",
    "CL_CONFIG_CPU_FORCE_MAX_MEM_ALLOC_SIZE",
    "CL_CONFIG_CPU_TBB_NUM_WORKERS",
    "CL_CONFIG_DUMP_ASM",
    "CL_CONFIG_DUMP_BIN",
    "CL_CONFIG_DUMP_DISASSEMBLY",
    "CL_CONFIG_DUMP_FILE_NAME_PREFIX",
    "CL_CONFIG_DUMP_IR_AFTER_OPTIMIZER",
    "CL_CONFIG_DUMP_IR_BEFORE_OPTIMIZER",
    "CL_CONFIG_ENABLE_PARALLEL_COPY",
    "CL_CONFIG_LOG_FILE",
    "CL_CONFIG_USER_LOGGER",
    "CL_CONFIG_USE_ITT_API",
    "CL_CONFIG_USE_VTUNE",
];

/// Whether an environment variable is read by a driver that compiles.
pub(super) fn is_of_compilers(name: &str) -> bool {
    let has_prefix = ENVIRONMENT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    ENVIRONMENT.contains(&name) || has_prefix
}

/// Whether an environment variable may affect a compiler's output.
fn affects_compiler(name: &str) -> bool {
    is_of_compilers(name) && !HARMLESS.contains(&name)
}

/// Tag of a field. The numbers are part of the encoding: a number is never reused for another field.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Tag {
    Schema = 1,
    Kind = 2,
    Module = 3,
    Constant = 4,
    Options = 5,
    Device = 6,
    Identity = 7,
    Environment = 8,
    Emitter = 9,
    FrontEnd = 10,
    Launches = 11,
    Program = 12,
    Linked = 13,
    Included = 14,
    Merger = 15,
    LinkOptions = 16,
    Remover = 17,
    Replaced = 18,
}

/// Value of a field, in a form that has exactly one encoding and one text.
enum Value<'a> {
    Number(u32),
    Text(&'a str),
    Digest(&'a Digest),
    Constant { id: u32, bytes: &'a [u8] },
    Named { name: &'a str, value: &'a OsStr },
    Device(&'a DeviceKey),
}

/// Receiver of the fields, in their order.
trait Sink {
    fn field(&mut self, tag: Tag, value: Value<'_>);

    /// Receives the source of a part of the options. Sources are listed, but are not part of a key: the same
    /// options from another source build the same program.
    fn source(&mut self, _kind: OptionKind, _source: OptionSource, _text: &str) {}

    /// Receives an included file. Files are listed; the key covers them by the digest of all.
    fn file(&mut self, _file: &IncludedFile) {}
}

/// Writes the encoding that is hashed.
struct Encoder(Vec<u8>);

impl Encoder {
    fn new() -> Self {
        // Capacity for everything except long options: keys are derived for every request, including cache
        // hits.
        Self(Vec::with_capacity(512))
    }

    fn length(&mut self, bytes: usize) {
        self.0.extend_from_slice(&(bytes as u64).to_le_bytes());
    }

    fn digest(&self) -> [u8; 32] {
        blake3::hash(&self.0).into()
    }
}

impl Sink for Encoder {
    fn field(&mut self, tag: Tag, value: Value<'_>) {
        self.0.push(tag as u8);
        match value {
            Value::Number(number) => {
                self.length(size_of::<u32>());
                self.0.extend_from_slice(&number.to_le_bytes());
            }
            Value::Text(text) => {
                self.length(text.len());
                self.0.extend_from_slice(text.as_bytes());
            }
            Value::Digest(Digest(bytes)) | Value::Device(DeviceKey { digest: bytes, .. }) => {
                self.length(bytes.len());
                self.0.extend_from_slice(bytes);
            }
            Value::Constant { id, bytes } => {
                self.length(size_of::<u32>() + bytes.len());
                self.0.extend_from_slice(&id.to_le_bytes());
                self.0.extend_from_slice(bytes);
            }
            Value::Named { name, value } => {
                let value = value.as_encoded_bytes();
                self.length(size_of::<u64>() + name.len() + value.len());
                self.length(name.len());
                self.0.extend_from_slice(name.as_bytes());
                self.0.extend_from_slice(value);
            }
        }
    }
}

/// Collects the fields as text.
#[derive(Default)]
struct Listing(Vec<(String, String)>);

impl Sink for Listing {
    fn field(&mut self, tag: Tag, value: Value<'_>) {
        let name = match tag {
            Tag::Schema => "schema",
            Tag::Kind => "kind",
            Tag::Module => "module",
            Tag::Constant => "constant",
            Tag::Options => "options",
            Tag::Device => "device key",
            Tag::Identity => "identity",
            Tag::Environment => "environment",
            Tag::Launches => "launches",
            Tag::Program => "fused program",
            Tag::Emitter => EMITTER,
            Tag::Merger => "merger",
            Tag::FrontEnd => "front end",
            Tag::Linked => "linked by",
            Tag::Included => "included files",
            Tag::LinkOptions => "link options",
            Tag::Remover => "remover",
            Tag::Replaced => "replaced",
        };
        let (name, text) = match value {
            Value::Number(number) => (name.to_owned(), number.to_string()),
            Value::Text(text) => (name.to_owned(), text.to_owned()),
            Value::Digest(digest) => (name.to_owned(), digest.to_string()),
            Value::Constant { id, bytes } => {
                // Most significant byte first, as numbers are read.
                let digits: String = bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect();
                (format!("{name} {id}"), format!("0x{digits}"))
            }
            Value::Named { name, value } => (name.to_owned(), value.to_string_lossy().into_owned()),
            Value::Device(device) => return self.0.extend_from_slice(&device.fields),
        };
        self.0.push((name, text));
    }

    fn source(&mut self, kind: OptionKind, source: OptionSource, text: &str) {
        let options = match kind {
            OptionKind::Compile => "options",
            OptionKind::Link => "link options",
        };
        self.0.push((format!("{options} from {source}"), text.to_owned()));
    }

    fn file(&mut self, IncludedFile { name, digest }: &IncludedFile) {
        self.0.push((format!("included file {name}"), digest.to_string()));
    }
}

/// Part of a key that depends only on a device and the environment. It is equal for all builds for the device,
/// so it is hashed once.
pub(crate) struct DeviceKey {
    digest: [u8; 32],
    fields: Vec<(String, String)>,
    /// Number of `fields` that identify the device. The others are variables of the environment.
    identity: usize,
}

impl DeviceKey {
    /// Creates the key of a device. `environment` is the environment of the process; variables that do not
    /// change a compiler are ignored.
    ///
    /// `identity` is [`DeviceInfo::identity`](crate::DeviceInfo::identity), or the identity that the
    /// application sets instead.
    pub(crate) fn new<'a>(
        identity: impl IntoIterator<Item = (&'a str, &'a str)>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let mut variables: Vec<_> = environment
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| affects_compiler(name))
            .collect();
        variables.sort_unstable();

        let identity: Vec<_> = identity.into_iter().collect();
        let fields = DeviceFields { identity: &identity, variables: &variables };
        let mut encoder = Encoder::new();
        fields.visit(&mut encoder);
        let mut listing = Listing::default();
        fields.visit(&mut listing);
        Self { digest: encoder.digest(), fields: listing.0, identity: identity.len() }
    }

    /// Returns the fields that identify the device, by name and value.
    pub(crate) fn identity(&self) -> &[(String, String)] {
        &self.fields[..self.identity]
    }

    /// Returns the name of the folder of the device's programs.
    pub(crate) fn id(&self) -> String {
        self.folder().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the variables of the environment that change a compiler, by name and value.
    pub(crate) fn environment(&self) -> &[(String, String)] {
        &self.fields[self.identity..]
    }

    /// Returns the first 8 bytes of the digest, which name the folder of the device's programs on disk.
    pub(crate) fn folder(&self) -> [u8; 8] {
        let mut folder = [0; 8];
        folder.copy_from_slice(&self.digest[..8]);
        folder
    }
}

struct DeviceFields<'a> {
    identity: &'a [(&'a str, &'a str)],
    variables: &'a [(String, OsString)],
}

impl DeviceFields<'_> {
    fn visit(&self, sink: &mut impl Sink) {
        for (name, value) in self.identity {
            sink.field(Tag::Identity, Value::Named { name, value: OsStr::new(value) });
        }
        for (name, value) in self.variables {
            sink.field(Tag::Environment, Value::Named { name, value });
        }
    }
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// A program with kernels.
    Program,
    /// An object, the input of a linker.
    Object,
    /// SPIR-V, translated from OpenCL C.
    SpirV,
}

/// Fields of a key for one module and the inputs of its compile.
pub(crate) struct InputFields<'a> {
    pub(crate) module: Digest,
    /// Digest of the files that the text includes, if it may include any.
    pub(crate) included: Option<Digest>,
    /// These files, which the digest covers.
    pub(crate) files: &'a [IncludedFile],
    /// Specialization constants, sorted by id.
    pub(crate) constants: &'a [(u32, ConstantBytes)],
    /// Options for compiling.
    pub(crate) options: &'a SourcedOptions,
    /// Options for linking, which the same call gets.
    pub(crate) link_options: &'a SourcedOptions,
    /// Names of the definitions that are removed from the module, sorted.
    pub(crate) replaced: &'a [String],
}

impl InputFields<'_> {
    fn visit(&self, sink: &mut impl Sink) {
        sink.field(Tag::Module, Value::Digest(&self.module));
        if let Some(included) = &self.included {
            sink.field(Tag::Included, Value::Digest(included));
        }
        self.files.iter().for_each(|file| sink.file(file));
        for (id, bytes) in self.constants {
            sink.field(Tag::Constant, Value::Constant { id: *id, bytes });
        }
        let Self { options, link_options, .. } = self;
        if !(options.is_empty() && link_options.is_empty()) {
            sink.field(Tag::Options, Value::Text(&options.joined(link_options)));
            // Options that have no source named come from the call.
            let is_call = |(source, _)| source == OptionSource::Call;
            if !link_options.is_empty() || !options.parts().all(is_call) {
                visit_sources(sink, OptionKind::Compile, options);
                visit_sources(sink, OptionKind::Link, link_options);
            }
        }
        if !self.replaced.is_empty() {
            sink.field(Tag::Remover, Value::Number(REMOVER));
        }
        for name in self.replaced {
            sink.field(Tag::Replaced, Value::Text(name));
        }
    }
}

fn visit_sources(sink: &mut impl Sink, kind: OptionKind, options: &SourcedOptions) {
    options.parts().for_each(|(source, text)| sink.source(kind, source, text));
}

/// All fields of a program's key.
pub(crate) struct ProgramFields<'a> {
    pub(crate) kind: NodeKind,
    /// Version of the translation from SPIR-V to OpenCL C, if it is used.
    pub(crate) emitter: Option<u32>,
    /// Version of the module merger, if it is used.
    pub(crate) merger: Option<u32>,
    /// Whether the driver links objects although it could have been given one merged module.
    pub(crate) is_linked_by_calls: bool,
    /// Fields of the modules that the program consists of, in order.
    pub(crate) inputs: &'a [InputFields<'a>],
    /// Options of the linker, if it is called separately.
    pub(crate) link_options: &'a SourcedOptions,
    /// Fields of the translation to SPIR-V; empty for other builds.
    pub(crate) front_end: &'a [(&'static str, String)],
    pub(crate) device: &'a DeviceKey,
}

impl ProgramFields<'_> {
    fn visit(&self, sink: &mut impl Sink) {
        sink.field(Tag::Schema, Value::Number(SCHEMA));
        let kind = match self.kind {
            NodeKind::Program => "program",
            NodeKind::Object => "object",
            NodeKind::SpirV => "spirv",
        };
        sink.field(Tag::Kind, Value::Text(kind));
        if let Some(version) = self.emitter {
            sink.field(Tag::Emitter, Value::Number(version));
        }
        if let Some(version) = self.merger {
            sink.field(Tag::Merger, Value::Number(version));
        }
        if self.is_linked_by_calls {
            sink.field(Tag::Linked, Value::Text("driver"));
        }
        self.inputs.iter().for_each(|input| input.visit(sink));
        if !self.link_options.is_empty() {
            sink.field(Tag::LinkOptions, Value::Text(self.link_options.text()));
            visit_sources(sink, OptionKind::Link, self.link_options);
        }
        for (name, value) in self.front_end {
            sink.field(Tag::FrontEnd, Value::Named { name, value: OsStr::new(value) });
        }
        sink.field(Tag::Device, Value::Device(self.device));
    }

    pub(crate) fn key(&self) -> BuildKey {
        key_of(|encoder| self.visit(encoder))
    }

    /// Returns every field by name and value, including those of the device. Equal listings have equal keys,
    /// and the differences between two listings show why their keys differ.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        fields_of(|listing| self.visit(listing))
    }
}

/// All fields of the key of a fused kernel's timings.
pub(crate) struct TimingFields<'a> {
    /// Description of the launches, including their nd-ranges and the memory that they share.
    pub(crate) launches: &'a str,
    /// Digest of the module of the first fused kernel.
    pub(crate) module: Digest,
    pub(crate) device: &'a DeviceKey,
}

impl TimingFields<'_> {
    fn visit(&self, sink: &mut impl Sink) {
        sink.field(Tag::Schema, Value::Number(SCHEMA));
        sink.field(Tag::Kind, Value::Text("timing"));
        sink.field(Tag::Launches, Value::Text(self.launches));
        sink.field(Tag::Program, Value::Digest(&self.module));
        sink.field(Tag::Device, Value::Device(self.device));
    }

    pub(crate) fn key(&self) -> BuildKey {
        key_of(|encoder| self.visit(encoder))
    }

    /// Returns every field, like [`ProgramFields::fields`].
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        fields_of(|listing| self.visit(listing))
    }
}

fn key_of(visit: impl FnOnce(&mut Encoder)) -> BuildKey {
    let mut encoder = Encoder::new();
    visit(&mut encoder);
    BuildKey(encoder.digest())
}

fn fields_of(visit: impl FnOnce(&mut Listing)) -> Vec<(String, String)> {
    let mut listing = Listing::default();
    visit(&mut listing);
    listing.0
}
