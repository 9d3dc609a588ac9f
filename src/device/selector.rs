//! Selection of a device by text.

use super::{COMMON_NAMES, Device, DeviceInfo, DeviceKind};
use crate::error::{Error, ErrorKind, Result};

/// Selector of devices, parsed from text. A part of the text is one of:
///
/// * an API (`opencl`, `level-zero`),
/// * a kind (`gpu`, `cpu`, `accelerator`),
/// * the number of a device (`0`),
/// * the common name of a driver (`pocl`, `nvidia`),
/// * a part of the device's, the platform's or the vendor's name.
///
/// Several parts are joined by colons (`opencl:cpu`), and all of them must match. Case does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    parts: Vec<String>,
}

impl Selector {
    /// Returns whether the selector has no parts, and so matches every device.
    pub(crate) fn is_any(&self) -> bool {
        self.parts.is_empty()
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let parts: Vec<_> = text.split(':').map(|part| part.trim().to_lowercase()).collect();
        if parts.iter().any(String::is_empty) {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!(
                    "the device selector {text:?} has an empty part; write for example `opencl`, \
                     `gpu`, `opencl:cpu`, `0`, or a part of the device's name"
                ),
            ));
        }
        Ok(Self { parts })
    }

    fn matches(&self, index: usize, count: usize, info: &DeviceInfo) -> bool {
        let kind = info.kind.to_string();
        self.parts.iter().all(|part| match part.parse::<usize>() {
            // A number of one or two digits is always the number of a device, since nearly every name contains
            // such digits. A longer number that is not the number of a device may be a part of a name, such as
            // `RTX 4090`.
            Ok(number) if number < count || part.len() < 3 => number == index,
            _ => {
                *part == kind
                    || part == info.backend
                    || info.common_name() == Some(part)
                    || info.name.to_lowercase().contains(part)
                    || info.platform.to_lowercase().contains(part)
                    || info.vendor.to_lowercase().contains(part)
            }
        })
    }

    /// Returns whether a part is the common name of the device's driver.
    fn is_common_name_of(&self, info: &DeviceInfo) -> bool {
        info.common_name().is_some_and(|name| self.parts.iter().any(|part| part == name))
    }

    /// Returns the best matching device, or an error that lists the devices. A GPU ranks before any other
    /// accelerator, and that before a CPU; then devices that accept more module formats, then the order of
    /// discovery.
    ///
    /// A match of a driver's common name ranks before all of that: PoCL on an Intel processor has `intel` in
    /// its device's name, but `intel` stands for Intel's own driver. `unavailable` gives the reasons why other
    /// APIs are absent.
    pub(crate) fn select<'a>(
        &self,
        devices: &'a [Device],
        unavailable: &[(&'static str, Error)],
    ) -> Result<&'a Device> {
        devices
            .iter()
            .filter(|device| self.matches(device.index, devices.len(), device))
            .min_by_key(|device| {
                let kind = match device.kind {
                    DeviceKind::Gpu => 0,
                    DeviceKind::Accelerator => 1,
                    DeviceKind::Cpu => 2,
                };
                (
                    !self.is_common_name_of(device),
                    kind,
                    usize::MAX - device.formats.len(),
                    device.index,
                )
            })
            .ok_or_else(|| {
                let available: Vec<_> =
                    devices.iter().map(|device| format!("{device:?}")).collect();
                let absent: Vec<_> = unavailable
                    .iter()
                    .map(|(api, error)| format!("; {api} is not available: {}", error.message()))
                    .collect();
                Error::new(
                    ErrorKind::NoDevice,
                    format!(
                        "no device matches the selector `{}`; available devices: {}{}; select one \
                         by its number, its API (`opencl`, `level-zero`), its kind (`gpu`, `cpu`), \
                         a common name of its driver (such as {}), or a part of the name of the \
                         device, its platform or its vendor",
                        self.parts.join(":"),
                        available.join("; "),
                        absent.concat(),
                        COMMON_NAMES.map(|(name, _)| format!("`{name}`")).join(", ")
                    ),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn device(index: usize, platform: &str, vendor: &str, name: &str) -> Device {
        let texts = [platform, vendor, name].map(str::to_owned);
        let [platform, vendor, name] = texts;
        let info = DeviceInfo { platform, vendor, name, ..DeviceInfo::fake() };
        Device::new(index, Arc::new(info))
    }

    fn devices() -> Vec<Device> {
        vec![
            device(0, "Portable Computing Language", "GenuineIntel", "cpu-Intel(R) Xeon(R)"),
            device(1, "Intel(R) OpenCL", "Intel(R) Corporation", "Intel(R) Xeon(R)"),
            device(2, "NVIDIA CUDA", "NVIDIA Corporation", "H100"),
            device(3, "rusticl", "AMD", "Radeon"),
            device(4, "ARM Platform", "ARM", "Mali-G710"),
            device(5, "Swarm", "Charmed", "unheard of"),
            device(6, "Apple", "Apple", "M4"),
        ]
    }

    #[test]
    fn drivers_have_common_names_that_select_them() {
        let devices = devices();
        let names: Vec<_> = devices.iter().map(|device| device.common_name()).collect();
        let expected = ["pocl", "intel", "nvidia", "amd", "mali", "", "apple"];
        assert_eq!(names, expected.map(|name| Some(name).filter(|name| !name.is_empty())));
        for (index, name) in expected.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let selected = Selector::parse(&name.to_uppercase()).expect("a name");
            assert_eq!(selected.select(&devices, &[]).expect("it exists").index(), index, "{name}");
        }
        // Parts of names select devices. A driver's name selects another driver's device if the driver itself
        // is absent.
        for (text, index) in [("portable", 0), ("h100", 2), ("radeon", 3), ("genuineintel", 0)] {
            let selected = Selector::parse(text).expect("a name");
            assert_eq!(selected.select(&devices, &[]).expect("it exists").index(), index, "{text}");
        }
        let intel = Selector::parse("intel").expect("a name");
        assert_eq!(intel.select(&devices[..1], &[]).expect("it exists").index(), 0);
    }

    #[test]
    fn selectors_without_a_match_list_available_and_missing_backends() {
        let absent = [("level-zero", Error::new(ErrorKind::NoDevice, "no loader"))];
        let selector = Selector::parse("toaster").expect("a name");
        let error = selector.select(&devices(), &absent).expect_err("there is none");
        let text = error.to_string();
        for words in ["`toaster`", "`pocl`", "`nvidia`", "level-zero is not available: no loader"] {
            assert!(text.contains(words), "{words} is not in: {text}");
        }
    }
}
