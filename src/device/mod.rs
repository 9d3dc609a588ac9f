//! Devices as applications see them: what they are, what they can do, how one is selected, and what their
//! drivers need done otherwise.

#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod instructions;
mod selector;
mod workarounds;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

pub(crate) use selector::Selector;
#[cfg(feature = "opencl")]
pub(crate) use workarounds::FillStrategy;
pub(crate) use workarounds::Workarounds;

/// The kind of hardware behind a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A graphics processor.
    Gpu,
    /// The host's own processor.
    Cpu,
    /// Any other accelerator.
    Accelerator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Accelerator => "accelerator",
        })
    }
}

/// A format in which device code is handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ImageFormat {
    /// OpenCL C source text.
    OpenClC,
    /// A SPIR-V module.
    SpirV,
    /// A binary that a driver made for this very device.
    Native,
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenClC => "OpenCL C",
            Self::SpirV => "SPIR-V",
            Self::Native => "native binary",
        })
    }
}

/// What a device can hold and run. Sizes are in bytes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limits {
    /// Parallel compute units.
    pub compute_units: usize,
    /// The most work-items that a work-group can have.
    pub max_work_group_size: usize,
    /// The most work-items that a work-group can have in each dimension.
    pub max_work_item_sizes: [usize; 3],
    /// All of the device's memory.
    pub global_memory: u64,
    /// The largest allocation that the driver promises. Larger ones are tried.
    pub max_allocation: u64,
    /// Local memory of a work-group.
    pub local_memory: u64,
    /// All arguments of a kernel together.
    pub max_parameter_size: usize,
    /// Where in an allocation a slice that a kernel gets may start: at multiples of this.
    pub slice_alignment: usize,
    /// The width of a device address, in bits.
    pub address_bits: u32,
}

impl Limits {
    /// The largest global size that the device can number.
    pub(crate) fn largest_size(&self) -> usize {
        let most = usize::MAX >> 1;
        match self.address_bits {
            bits @ 1..usize::BITS => most.min(1 << bits),
            _ => most,
        }
    }
}

/// Everything Kiln knows about a device before it is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The API that reaches it: `opencl`, `level-zero`, `simulated`.
    pub backend: &'static str,
    /// The driver's name for its platform.
    pub platform: String,
    /// The version of the platform, in the driver's words; empty if there is none. PoCL's tells which
    /// LLVM it compiles with.
    pub platform_version: String,
    /// The device's own name.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// The kind of hardware.
    pub kind: DeviceKind,
    /// The optional instructions that the driver compiles for, as far as its other answers do not tell
    /// them: those of the host's processor for one that is it, else empty.
    pub instructions: String,
    /// The version that the driver gives of itself.
    pub driver_version: String,
    /// The version of the API that the device implements, in the driver's words.
    pub device_version: String,
    /// The intermediate languages that it takes, in the driver's words; empty if none.
    pub il_version: String,
    /// The extensions that it has, by name, as in `cl_khr_fp64`.
    pub extensions: Vec<String>,
    /// The optional features of OpenCL C 3.0 that it has, by name, as in `__opencl_c_fp64`.
    pub opencl_c_features: Vec<String>,
    /// Whether its kernels can use images, in the sense of textures.
    pub images: bool,
    /// Whether it can round a product and a sum once, as `fma` does, in single precision.
    pub fused_multiply_add: bool,
    /// Whether kernels do what their code says. Those of a simulated device do what it was taught.
    pub(crate) runs_code: bool,
    /// The image formats that its driver takes. For one that takes OpenCL C and no SPIR-V, Kiln
    /// translates SPIR-V to OpenCL C 1.2: modules build for it all the same.
    pub formats: Vec<ImageFormat>,
    /// The formats of which its driver itself links several images to one program. Kiln itself links
    /// SPIR-V where the driver does not, and on Level Zero unless
    /// [`RuntimeBuilder::link_objects`](crate::RuntimeBuilder::link_objects) is set.
    pub links: Vec<ImageFormat>,
    /// Whether what its driver links is worse than one module of the same images: functions of
    /// other objects are called where those of one module are inlined.
    pub(crate) links_by_calls: bool,
    /// The extensions of SPIR-V that its compiler takes, if it is known that it takes no other.
    pub(crate) spirv_extensions: Option<&'static [&'static str]>,
    /// What it can hold and run.
    pub limits: Limits,
}

impl DeviceInfo {
    /// The fields, by name, that tell whether a program built for one device runs on another. They
    /// go into every key; a driver update changes them.
    #[must_use]
    pub fn identity(&self) -> [(&'static str, &str); 9] {
        [
            ("backend", self.backend),
            ("platform", &self.platform),
            ("platform version", &self.platform_version),
            ("vendor", &self.vendor),
            ("device", &self.name),
            ("instructions", &self.instructions),
            ("device version", &self.device_version),
            ("driver version", &self.driver_version),
            ("il version", &self.il_version),
        ]
    }

    /// The instructions of a device of this kind, as [`DeviceInfo::instructions`] tells them.
    #[cfg(any(feature = "level-zero", feature = "opencl"))]
    pub(crate) fn instructions_of(kind: DeviceKind) -> String {
        if kind == DeviceKind::Cpu { instructions::of_host().to_owned() } else { String::new() }
    }

    /// The common name of its driver, which selects it: `pocl`, `nvidia`, `amd`, `intel`, `apple`, `mali`,
    /// `adreno`, `powervr` or `oclgrind`. By the platform's name; where that is of none of these, by the
    /// vendor's.
    #[must_use]
    pub fn common_name(&self) -> Option<&'static str> {
        [&self.platform, &self.vendor].into_iter().find_map(|text| {
            let text = text.to_lowercase();
            let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
            let is_in = |&pattern: &&str| {
                if pattern.contains(' ') {
                    text.contains(pattern)
                } else {
                    words.contains(&pattern)
                }
            };
            let found = COMMON_NAMES.iter().find(|(_, patterns)| patterns.iter().any(&is_in));
            found.map(|(name, _)| *name)
        })
    }

    /// The formats as a sentence says them.
    pub(crate) fn formats_in_words(&self) -> String {
        let names: Vec<_> = self.formats.iter().map(ToString::to_string).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

#[cfg(test)]
impl DeviceInfo {
    /// That of no device. Golden keys hold its identity.
    pub(crate) fn fake() -> Self {
        Self {
            backend: "fake",
            platform: "platform".to_owned(),
            platform_version: "3.0".to_owned(),
            instructions: "avx2".to_owned(),
            name: "device".to_owned(),
            vendor: "vendor".to_owned(),
            kind: DeviceKind::Cpu,
            driver_version: "1.0".to_owned(),
            device_version: "2.0".to_owned(),
            il_version: "SPIR-V_1.2".to_owned(),
            extensions: Vec::new(),
            opencl_c_features: Vec::new(),
            images: false,
            fused_multiply_add: false,
            runs_code: false,
            formats: vec![ImageFormat::OpenClC, ImageFormat::SpirV, ImageFormat::Native],
            links: Vec::new(),
            links_by_calls: false,
            spirv_extensions: None,
            limits: Limits {
                compute_units: 1,
                max_work_group_size: 1,
                max_work_item_sizes: [1; 3],
                global_memory: 1,
                max_allocation: 1,
                local_memory: 1,
                max_parameter_size: 1,
                slice_alignment: 1,
                address_bits: 64,
            },
        }
    }
}

/// The versions of SPIR-V in what a driver tells, such as `SPIR-V_1.0 SPIR-V_1.2`: major and minor.
pub(crate) fn spirv_versions(il_version: &str) -> impl Iterator<Item = (u8, u8)> {
    il_version.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("SPIR-V_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// A device of a runtime: a handle, cheap to clone, that dereferences to its [`DeviceInfo`].
#[derive(Clone)]
pub struct Device {
    index: usize,
    info: Arc<DeviceInfo>,
}

impl Device {
    pub(crate) fn new(index: usize, info: Arc<DeviceInfo>) -> Self {
        Self { index, info }
    }

    /// Its position in [`Runtime::devices`](crate::Runtime::devices), which is also the number that
    /// selects it.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    pub(crate) fn info(&self) -> &Arc<DeviceInfo> {
        &self.info
    }
}

impl Deref for Device {
    type Target = DeviceInfo;

    fn deref(&self) -> &DeviceInfo {
        &self.info
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, .. } = self;
        write!(f, "{index}: {} ({}, {}, {}", self.name, self.backend, self.kind, self.platform)?;
        match self.common_name() {
            Some(name) => write!(f, ", `{name}`)"),
            None => f.write_str(")"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.backend, self.kind)
    }
}

/// Common names of drivers, with what their platforms' or vendors' names contain, in lower case. PoCL
/// comes first: its vendor is that of the processor.
const COMMON_NAMES: [(&str, &[&str]); 9] = [
    ("pocl", &["portable computing language", "pocl"]),
    ("oclgrind", &["oclgrind"]),
    ("nvidia", &["nvidia"]),
    ("amd", &["amd", "advanced micro devices", "rocm"]),
    ("intel", &["intel"]),
    ("apple", &["apple"]),
    ("mali", &["arm", "mali"]),
    ("adreno", &["qualcomm", "adreno"]),
    ("powervr", &["imagination", "powervr"]),
];
