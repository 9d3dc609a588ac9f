//! Arguments for clang that describe a device as its own compiler would know it.

use std::env;
use std::ffi::OsString;

use super::find::Tools;
use crate::device::{DeviceInfo, DeviceKind, spirv_versions};

/// Newest SPIR-V version that is generated, also for devices that take no SPIR-V themselves. Later versions
/// only add features that OpenCL C does not use.
const MAX_VERSION: (u8, u8) = (1, 2);

/// Version of OpenCL C if the options do not state one. It is the default of `clBuildProgram`.
pub(super) const DEFAULT_STANDARD: &str = "CL1.2";

/// Target and SPIR-V version for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) triple: String,
    /// SPIR-V version, as in `1.2`.
    pub(super) version: String,
    /// Whether a product and a sum are contracted to one operation where the language allows it.
    pub(super) contracts: bool,
    /// Arguments for clang: macros and extensions.
    pub(super) predefined: Vec<String>,
}

impl Target {
    pub(super) fn of(device: &DeviceInfo, tools: &Tools, standard: &str) -> Self {
        let (major, minor) = spirv_version(&device.il_version);
        let bits = if device.limits.address_bits == 32 { "32" } else { "64" };
        let triple = match &tools.llvm_spirv {
            Some(_) if bits == "32" => "spir".to_owned(),
            Some(_) => "spir64".to_owned(),
            None => format!("spirv{bits}v{major}.{minor}"),
        };
        Self {
            triple,
            contracts: match device.kind {
                // Drivers report this wrongly for CPUs: Intel's driver denies it.
                DeviceKind::Cpu => {
                    host_has_fma()
                        && !is_set_to_compile_without_fma(device, |name| env::var_os(name))
                }
                _ => device.fused_multiply_add,
            },
            version: format!("{major}.{minor}"),
            predefined: predefined(device, standard),
        }
    }
}

/// Whether the host's processor has a fused multiply-add. A driver for a processor without it may emulate it in
/// software, but does not choose it for speed.
fn host_has_fma() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    true
}

/// Settings of drivers for CPUs that name a processor without a fused multiply-add: the driver's common name, the
/// variable and the processors. The code that a driver then compiles does not contract, on any processor.
const WITHOUT_FMA: [(&str, &str, &[&str]); 2] = [
    ("intel", "CL_CONFIG_CPU_TARGET_ARCH", &["corei7", "corei7-avx"]),
    ("pocl", "POCL_KERNELLIB_NAME", &["sse2", "ssse3", "sse41", "avx", "avx_f16c"]),
];

/// Whether the environment makes a driver compile for a processor without a fused multiply-add.
fn is_set_to_compile_without_fma(
    device: &DeviceInfo,
    variable: impl Fn(&str) -> Option<OsString>,
) -> bool {
    WITHOUT_FMA.iter().any(|(driver, name, targets)| {
        device.common_name() == Some(driver)
            && variable(name).is_some_and(|value| targets.iter().any(|target| value == *target))
    })
}

/// Returns the arguments for the macros and extensions that the device's compiler would define.
fn predefined(device: &DeviceInfo, standard: &str) -> Vec<String> {
    // The compilers of devices do not define the macros of GCC.
    let mut arguments = vec!["-fgnuc-version=0".to_owned()];
    if let Some(version) = opencl_version(&device.device_version) {
        arguments.push(format!("-D__OPENCL_VERSION__={version}"));
    }
    if !device.images {
        arguments.push("-U__IMAGE_SUPPORT__".to_owned());
    }
    // The extensions and features of this device are enabled, instead of all that clang supports. The macro of
    // an extension that clang does not know is still defined: a kernel that tests for it then takes the same
    // path as on the device, and the translation fails instead of computing something else. Features are part
    // of OpenCL C 3.0.
    let features = if standard == "CL3.0" { &*device.opencl_c_features } else { &[] };
    let is_word = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let names = || device.extensions.iter().chain(features).filter(is_word);
    let enabled: String = names().map(|name| format!(",+{name}")).collect();
    arguments.extend(["-Xclang".to_owned(), format!("-cl-ext=-all{enabled}")]);
    arguments.extend(names().map(|name| format!("-D{name}=1")));
    arguments
}

/// Returns the highest version that the device lists and that is not newer than `MAX_VERSION`.
fn spirv_version(il_version: &str) -> (u8, u8) {
    // Drivers that list only newer versions accept older ones as well, and older tools cannot write newer ones.
    spirv_versions(il_version)
        .filter(|version| *version <= MAX_VERSION)
        .max()
        .unwrap_or(MAX_VERSION)
}

/// Returns the value of `__OPENCL_VERSION__` for a device version such as `OpenCL 3.0 PoCL`.
fn opencl_version(device_version: &str) -> Option<u32> {
    let version = device_version.strip_prefix("OpenCL ")?.split_whitespace().next()?;
    let (major, minor) = version.split_once('.')?;
    Some(
        major.parse::<u32>().ok()?.checked_mul(100)?
            + minor.parse::<u32>().ok()?.checked_mul(10)?,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_gets_the_newest_spirv_that_is_needed() {
        assert_eq!(spirv_version(""), (1, 2));
        assert_eq!(spirv_version("SPIR-V_1.0"), (1, 0));
        assert_eq!(spirv_version("SPIR-V_1.0 SPIR-V_1.1 SPIR-V_1.4"), (1, 1));
        assert_eq!(spirv_version("SPIR-V_1.4 SPIR-V_1.2 SPIR_1.2"), (1, 2));
        assert_eq!(spirv_version("SPIR-V_1.6"), (1, 2));
    }

    #[test]
    fn drivers_that_target_a_processor_without_fma_do_not_contract() {
        let device = |platform: &str| DeviceInfo {
            platform: platform.to_owned(),
            kind: DeviceKind::Cpu,
            ..DeviceInfo::fake()
        };
        let [intel, pocl] = ["Intel(R) OpenCL", "Portable Computing Language"].map(device);
        let is_set = |device: &DeviceInfo, name: &str, value: &str| {
            is_set_to_compile_without_fma(device, |asked| (asked == name).then(|| value.into()))
        };
        let (arch, library) = ("CL_CONFIG_CPU_TARGET_ARCH", "POCL_KERNELLIB_NAME");
        assert!(is_set(&intel, arch, "corei7-avx") && is_set(&pocl, library, "avx"));
        assert!(!is_set(&intel, arch, "core-avx2") && !is_set(&pocl, library, "avx2"));
        assert!(!is_set(&intel, library, "avx") && !is_set(&pocl, arch, "corei7-avx"));
        assert!(!is_set(&intel, arch, ""), "the driver chooses this processor");
    }

    #[test]
    fn versions_of_opencl_are_numbers() {
        assert_eq!(opencl_version("OpenCL 3.1 (Build 0)"), Some(310));
        assert_eq!(opencl_version("OpenCL 1.2"), Some(120));
        assert_eq!(opencl_version("simulated 1.0"), None);
    }
}
