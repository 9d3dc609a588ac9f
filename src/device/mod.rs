//! Devices as applications see them: their properties, their capabilities, their selection, and the workarounds
//! for their drivers.

#[cfg(any(feature = "level-zero", feature = "simulated"))]
mod color;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod instructions;
mod rows;
mod sampler;
mod selector;
mod workarounds;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

#[cfg(any(feature = "level-zero", feature = "simulated"))]
pub(crate) use color::pixel_of;
pub use kiln_compiler::{Addressing, ChannelOrder, ChannelType, Filter, ImageFormat, ImageKind};
pub(crate) use kiln_compiler::{ImageBox, ImageShape};
pub(crate) use rows::Rows;
pub use sampler::Sampler;
pub(crate) use selector::Selector;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
pub(crate) use workarounds::CompilerFiles;
#[cfg(feature = "opencl")]
pub(crate) use workarounds::FillStrategy;
#[cfg(feature = "level-zero")]
pub(crate) use workarounds::LEVEL_ZERO;
pub(crate) use workarounds::MAX_PRIVATE_BYTES;
pub(crate) use workarounds::Workarounds;

/// Kind of hardware behind a device.
///
/// # Examples
///
/// ```
/// # use kiln::Runtime;
/// # use kiln::devices::DeviceKind;
/// // The displayed text also selects a device of this kind.
/// let builder = Runtime::builder().device(DeviceKind::Gpu.to_string());
/// assert_eq!(DeviceKind::Gpu.to_string(), "gpu");
/// ```
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

/// Format of device code.
///
/// # Examples
///
/// ```
/// # use kiln::Module;
/// # use kiln::devices::ModuleFormat;
/// let module = Module::opencl_c("kernel void nothing() {}");
/// assert_eq!(module.format(), ModuleFormat::OpenClC);
/// assert_eq!(module.format().to_string(), "OpenCL C");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ModuleFormat {
    /// OpenCL C source text.
    OpenClC,
    /// A SPIR-V module.
    SpirV,
    /// Binary that a driver produced for this exact device.
    Native,
}

impl fmt::Display for ModuleFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenClC => "OpenCL C",
            Self::SpirV => "SPIR-V",
            Self::Native => "native binary",
        })
    }
}

/// Limits of a device. Sizes are in bytes unless stated otherwise.
///
/// # Examples
///
/// ```no_run
/// # fn example(device: &kiln::Device, picture_bytes: u64) {
/// // Each tile of the picture has a buffer of its own.
/// let tiles = picture_bytes.div_ceil(device.limits.max_allocation);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limits {
    /// Number of parallel compute units.
    pub compute_units: usize,
    /// Maximum number of work-items of a work-group.
    pub max_work_group_size: usize,
    /// Maximum number of work-items of a work-group in each dimension.
    pub max_work_item_sizes: [usize; 3],
    /// Size of the device's memory.
    pub global_memory: u64,
    /// Largest allocation that the driver guarantees. Kiln tries larger ones, too.
    pub max_allocation: u64,
    /// Size of the local memory of a work-group.
    pub local_memory: u64,
    /// Maximum size of all arguments of a kernel together.
    pub max_parameter_size: usize,
    /// Alignment in bytes of slices that the device takes as arguments of kernels. For other slices, Kiln builds
    /// [variants of kernels](crate::guides::memory).
    pub slice_alignment: usize,
    /// Width of a device address, in bits.
    pub address_bits: u32,
    /// Limits of images; all zeros for a device without images.
    pub images: ImageLimits,
}

/// Limits of a device's images. Sizes are in pixels.
///
/// # Examples
///
/// ```no_run
/// # fn example(device: &kiln::Device) {
/// let [width, height] = device.limits.images.d2;
/// println!("textures have up to {width} x {height} pixels");
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ImageLimits {
    /// Largest width and height of images with two dimensions, and largest width of those with one.
    pub d2: [usize; 2],
    /// Largest width, height and depth of images with three dimensions.
    pub d3: [usize; 3],
    /// Largest number of layers of an array of images.
    pub layers: usize,
    /// Largest number of pixels of an image over a buffer; 0 for a device without such images.
    pub buffer: usize,
}

impl Limits {
    /// Returns the largest global size that the device can number.
    pub(crate) fn largest_size(&self) -> usize {
        let max = usize::MAX >> 1;
        match self.address_bits {
            bits @ 1..usize::BITS => max.min(1 << bits),
            _ => max,
        }
    }
}

impl ImageLimits {
    /// Returns a size of an image that the device does not support, and the largest one. Sizes of an image over a
    /// buffer are not checked.
    pub(crate) fn exceeded(&self, shape: &ImageShape) -> Option<(usize, usize)> {
        let [width, height] = self.d2;
        let most = match shape.kind {
            ImageKind::D1 => [width, 1, 1],
            ImageKind::D1Array => [width, self.layers, 1],
            ImageKind::D2 => [width, height, 1],
            ImageKind::D2Array => [width, height, self.layers],
            ImageKind::D3 => self.d3,
            ImageKind::D1Buffer => return None,
        };
        shape.size.into_iter().zip(most).find(|(size, most)| size > most)
    }
}

/// Description of a device, available before the device is opened.
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let has_doubles = rt.device().extensions.iter().any(|name| name == "cl_khr_fp64");
/// let options = if has_doubles { "-D REAL=double" } else { "-D REAL=float" };
/// let program = rt.build(&module).options(options).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// API that reaches the device: `opencl`, `level-zero`, `simulated`.
    pub backend: &'static str,
    /// Name of the platform, as the driver reports it.
    pub platform: String,
    /// Version of the platform, as the driver reports it; empty if there is none. PoCL's version includes that
    /// of the LLVM that it compiles with.
    pub platform_version: String,
    /// Name of the device.
    pub name: String,
    /// Vendor of the device.
    pub vendor: String,
    /// Kind of hardware.
    pub kind: DeviceKind,
    /// Optional instructions that the driver compiles for, as far as its other properties do not determine
    /// them: those of the host's processor if the device is that processor, else empty.
    pub instructions: String,
    /// Version of the driver, as the driver reports it.
    pub driver_version: String,
    /// Files with which the driver compiles, by name and build id or, where a file has none, by size in bytes and
    /// time of its last change in seconds since 1970. Packages may update them without the driver. Empty if they
    /// are not known, as on other systems than Linux.
    pub compiler: String,
    /// Version of the API that the device implements, as the driver reports it.
    pub device_version: String,
    /// Intermediate languages that the device accepts, as the driver reports them; empty if there are none.
    pub il_version: String,
    /// Names of the extensions that the device has, such as `cl_khr_fp64`.
    pub extensions: Vec<String>,
    /// Names of the optional features of OpenCL C 3.0 that the device has, such as `__opencl_c_fp64`.
    pub opencl_c_features: Vec<String>,
    /// Whether the device's kernels can use images, in the sense of textures.
    pub images: bool,
    /// Whether the device can round a product and a sum once, as `fma` does, in single precision.
    pub fused_multiply_add: bool,
    /// Whether kernels do what their code says. Kernels of a simulated device run the closures that are
    /// registered for them instead.
    pub(crate) runs_code: bool,
    /// Whether launches of the device's kernels can be fused.
    pub(crate) fuses: bool,
    /// Module formats that the driver accepts. If a driver accepts OpenCL C and no SPIR-V, Kiln translates
    /// SPIR-V to OpenCL C 1.2, so that modules build for it all the same.
    pub formats: Vec<ModuleFormat>,
    /// Formats of which the driver itself links several modules to one program. If there are any, it also links
    /// native objects with them. Kiln links SPIR-V where the driver does not, and on Level Zero unless
    /// [`RuntimeBuilder::link_objects`](crate::RuntimeBuilder::link_objects) is set.
    pub links: Vec<ModuleFormat>,
    /// Whether programs that the driver links are worse than one module merged from the same sources:
    /// functions of other objects are called, while those of one module are inlined.
    pub(crate) links_by_calls: bool,
    /// SPIR-V extensions that the driver's compiler accepts, if it is known to accept no others.
    pub(crate) spirv_extensions: Option<&'static [&'static str]>,
    /// Limits of the device.
    pub limits: Limits,
}

impl DeviceInfo {
    /// Returns the fields, by name, that determine whether a program built for one device runs on another.
    /// Every key includes them; an update of the driver or of its compiler changes them.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(device: &kiln::DeviceInfo) {
    /// for (field, value) in device.identity() {
    ///     println!("{field}: {value}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn identity(&self) -> [(&'static str, &str); 10] {
        [
            ("backend", self.backend),
            ("platform", &self.platform),
            ("platform version", &self.platform_version),
            ("vendor", &self.vendor),
            ("device", &self.name),
            ("instructions", &self.instructions),
            ("device version", &self.device_version),
            ("driver version", &self.driver_version),
            ("compiler", &self.compiler),
            ("il version", &self.il_version),
        ]
    }

    /// Returns the [`DeviceInfo::instructions`] of a device of this kind.
    #[cfg(any(feature = "level-zero", feature = "opencl"))]
    pub(crate) fn instructions_of(kind: DeviceKind) -> String {
        if kind == DeviceKind::Cpu { instructions::of_host().to_owned() } else { String::new() }
    }

    /// Returns the common name of the driver, by which the device can be selected: `pocl`, `nvidia`, `amd`,
    /// `intel`, `apple`, `mali`, `adreno`, `powervr` or `oclgrind`. The name follows from the platform's name
    /// or, if that matches none of these, from the vendor's.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(device: &kiln::DeviceInfo) {
    /// // PoCL runs a work-group on one thread of the processor.
    /// let group_size = if device.common_name() == Some("pocl") { 8 } else { 64 };
    /// # }
    /// ```
    #[must_use]
    pub fn common_name(&self) -> Option<&'static str> {
        [&self.platform, &self.vendor].into_iter().find_map(|text| {
            let text = text.to_lowercase();
            let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
            let occurs = |&pattern: &&str| {
                if pattern.contains(' ') {
                    text.contains(pattern)
                } else {
                    words.contains(&pattern)
                }
            };
            let found = COMMON_NAMES.iter().find(|(_, patterns)| patterns.iter().any(&occurs));
            found.map(|(name, _)| *name)
        })
    }

    /// Returns the formats in words, for a sentence.
    pub(crate) fn formats_in_words(&self) -> String {
        let names: Vec<_> = self.formats.iter().map(ToString::to_string).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

#[cfg(test)]
impl DeviceInfo {
    /// Returns the description of a device that does not exist. Golden keys hold its identity.
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
            compiler: "libfake.so 0123456789abcdef".to_owned(),
            device_version: "2.0".to_owned(),
            il_version: "SPIR-V_1.2".to_owned(),
            extensions: Vec::new(),
            opencl_c_features: Vec::new(),
            images: false,
            fused_multiply_add: false,
            runs_code: false,
            fuses: false,
            formats: vec![ModuleFormat::OpenClC, ModuleFormat::SpirV, ModuleFormat::Native],
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
                images: ImageLimits::default(),
            },
        }
    }
}

/// Returns the versions of SPIR-V, major and minor, in the intermediate languages that a driver reports, such
/// as `SPIR-V_1.0 SPIR-V_1.2`.
pub(crate) fn spirv_versions(il_version: &str) -> impl Iterator<Item = (u8, u8)> {
    il_version.split_whitespace().filter_map(|word| {
        let (major, minor) = word.strip_prefix("SPIR-V_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// Device of a runtime: a handle, cheap to clone, that dereferences to its [`DeviceInfo`].
///
/// # Examples
///
/// ```no_run
/// # use kiln::devices::DeviceKind;
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let gpu = rt.devices().iter().find(|device| device.kind == DeviceKind::Gpu);
/// if let Some(gpu) = gpu {
///     let program = rt.build(&module).device(gpu).await?;
///     println!("built for {gpu}, which has {} bytes of memory", gpu.limits.global_memory);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Device {
    index: usize,
    info: Arc<DeviceInfo>,
}

impl Device {
    pub(crate) fn new(index: usize, info: Arc<DeviceInfo>) -> Self {
        Self { index, info }
    }

    /// Returns the position in [`Runtime::devices`](crate::Runtime::devices), which is also the number that
    /// selects the device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// for device in rt.devices() {
    ///     println!("KILN_DEVICE={} selects {device}", device.index());
    /// }
    /// # }
    /// ```
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

/// Common names of drivers, with patterns that their platforms' or vendors' names contain, in lower case. PoCL
/// comes first, because its vendor is that of the processor.
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
