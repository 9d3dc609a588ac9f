//! What a device's own compiler would know of its device, for clang.

use super::find::Tools;
use crate::device::{DeviceInfo, DeviceKind, spirv_versions};

/// The SPIR-V that is made for devices that take none themselves, and the newest that is made: later
/// versions only add what OpenCL C has no use for.
const NEWEST: (u8, u8) = (1, 2);

/// The version of OpenCL C unless the options tell another, as `clBuildProgram` has it.
pub(super) const STANDARD: &str = "CL1.2";

/// The target and the SPIR-V version of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) triple: String,
    /// As in `1.2`.
    pub(super) version: String,
    /// Whether it makes one operation of a product and a sum where it may.
    pub(super) fuses: bool,
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
            fuses: match device.kind {
                // What drivers say of processors is not what they do: Intel's denies it.
                DeviceKind::Cpu => host_fuses(),
                _ => device.fused_multiply_add,
            },
            version: format!("{major}.{minor}"),
            predefined: predefined(device, standard),
        }
    }
}

/// Whether the host's processor has the operation. A driver for one without may have it by software,
/// but does not choose it for speed.
fn host_fuses() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
    true
}

fn predefined(device: &DeviceInfo, standard: &str) -> Vec<String> {
    // Devices' compilers do not pass for GCC.
    let mut arguments = vec!["-fgnuc-version=0".to_owned()];
    if let Some(version) = opencl_version(&device.device_version) {
        arguments.push(format!("-D__OPENCL_VERSION__={version}"));
    }
    if !device.images {
        arguments.push("-U__IMAGE_SUPPORT__".to_owned());
    }
    // What this device has, and nothing else that clang knows. An extension that it does not know is
    // still defined: a kernel that asks for it then takes the same way as on the device, and fails
    // here rather than to compute something else.
    // Features are OpenCL C 3.0.
    let features = if standard == "CL3.0" { &*device.opencl_c_features } else { &[] };
    let is_word = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let names = || device.extensions.iter().chain(features).filter(is_word);
    let enabled: String = names().map(|name| format!(",+{name}")).collect();
    arguments.extend(["-Xclang".to_owned(), format!("-cl-ext=-all{enabled}")]);
    arguments.extend(names().map(|name| format!("-D{name}=1")));
    arguments
}

/// The highest that the device lists and that is not newer than needed.
fn spirv_version(il_version: &str) -> (u8, u8) {
    // Drivers that list newer ones alone take older ones as well, and older tools write no newer.
    spirv_versions(il_version).filter(|version| *version <= NEWEST).max().unwrap_or(NEWEST)
}

/// As in `OpenCL 3.0 PoCL`: what `__OPENCL_VERSION__` is there.
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
    fn versions_of_opencl_are_numbers() {
        assert_eq!(opencl_version("OpenCL 3.1 (Build 0)"), Some(310));
        assert_eq!(opencl_version("OpenCL 1.2"), Some(120));
        assert_eq!(opencl_version("simulated 1.0"), None);
    }
}
