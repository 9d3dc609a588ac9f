//! Check that a device supports the features that a module needs, before a compiler gets the module: some
//! compilers end the process if they do not support an extension.

use kiln_spirv::Demand;

use crate::device::Device;
use crate::error::{Error, Result};

/// Checks that a device supports a module, as far as the device's description shows. `name` is the module's
/// name in messages.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported), naming the feature that the device lacks.
pub(super) fn check(code: &[u8], name: &str, device: &Device) -> Result<()> {
    let kiln_spirv::Demands { features, extensions, address_bits } = kiln_spirv::demands(code);
    check_addresses(address_bits, device)?;
    check_features(features, name, device)?;
    let Some(known) = device.spirv_extensions else { return Ok(()) };
    match extensions.into_iter().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::unsupported(format!(
            "the SPIR-V module declares the extension {name:.100}, which the compiler of {device} \
             is not known to support; compile the module without it"
        ))),
    }
}

/// Like [`check`], for a module that the device's compiler gets in translation. The translation needs
/// `features`.
pub(super) fn check_translated(
    code: &[u8],
    features: impl IntoIterator<Item = Demand>,
    name: &str,
    device: &Device,
) -> Result<()> {
    check_addresses(kiln_spirv::demands(code).address_bits, device)?;
    check_features(features, name, device)
}

fn check_features(
    features: impl IntoIterator<Item = Demand>,
    name: &str,
    device: &Device,
) -> Result<()> {
    match features.into_iter().find(|&feature| !has(device, feature)) {
        None => Ok(()),
        Some(feature) => Err(Error::unsupported(lacking(feature, name, device))),
    }
}

/// Describes a feature that the device lacks, if a compiler's log about refused OpenCL C names the types of the
/// feature.
pub(super) fn lacking_by_log(log: &str, name: &str, device: &Device) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_type = |word: &str, scalar: &str| {
        let word = word.strip_prefix("convert_").unwrap_or(word);
        word.strip_prefix(scalar).is_some_and(|count| count.chars().all(|c| c.is_ascii_digit()))
    };
    let named = [(Demand::Half, "half", "cl_khr_fp16"), (Demand::Double, "double", "cl_khr_fp64")];
    let mut lacked = named.into_iter().filter(|&(feature, ..)| !has(device, feature));
    let (feature, ..) = lacked.find(|(_, scalar, extension)| {
        log.split(|c| !is_part(c)).any(|word| is_type(word, scalar) || word == *extension)
    })?;
    Some(lacking(feature, name, device))
}

fn lacking(feature: Demand, name: &str, device: &Device) -> String {
    let Feature { capability, description, names } = Feature::of(feature);
    let missing = match names {
        [] => String::new(),
        names => format!(": it does not list {}", names.join(" or ")),
    };
    format!(
        "kernel module {name} needs `{capability}` ({description}), which {device} does not \
         support{missing}; run it on a device that supports it, or write the module without it"
    )
}

fn check_addresses(bits: Option<u32>, device: &Device) -> Result<()> {
    let device_bits = device.limits.address_bits;
    match bits {
        Some(bits) if bits != device_bits => Err(Error::unsupported(format!(
            "the SPIR-V module has {bits}-bit addresses, but {device} has {device_bits}-bit \
             addresses; compile the module for the target `spir{}` or `spirv{device_bits}`",
            if device_bits == 64 { "64" } else { "" }
        ))),
        _ => Ok(()),
    }
}

/// Names of a feature, in messages and in lists of devices.
struct Feature {
    /// Name of the SPIR-V capability.
    capability: &'static str,
    description: &'static str,
    /// Extensions and features of OpenCL C. Each of them implies that a device has the feature.
    names: &'static [&'static str],
}

impl Feature {
    fn of(feature: Demand) -> Self {
        let (capability, description, names): (_, _, &[_]) = match feature {
            Demand::Half => ("Float16", "half precision", &["cl_khr_fp16"]),
            Demand::Double => ("Float64", "double precision", &["cl_khr_fp64", "__opencl_c_fp64"]),
            Demand::Long => ("Int64", "64-bit integers", &["cles_khr_int64", "__opencl_c_int64"]),
            Demand::LongAtomics => (
                "Int64Atomics",
                "64-bit atomics",
                &["cl_khr_int64_base_atomics", "cl_khr_int64_extended_atomics"],
            ),
            Demand::ExtendedLongAtomics => (
                "Int64Atomics",
                "64-bit atomic minimum, maximum and bitwise operations",
                &["cl_khr_int64_extended_atomics"],
            ),
            Demand::Images => ("ImageBasic", "images", &[]),
            Demand::ReadWriteImages => {
                ("ImageReadWrite", "read-write images", &["__opencl_c_read_write_images"])
            }
            Demand::GenericPointers => (
                "GenericPointer",
                "the generic address space",
                &["__opencl_c_generic_address_space"],
            ),
            Demand::Subgroups => (
                "SubgroupDispatch",
                "subgroups",
                &["cl_khr_subgroups", "cl_intel_subgroups", "__opencl_c_subgroups"],
            ),
            Demand::GroupFunctions => {
                ("Groups", "work-group functions", &["__opencl_c_work_group_collective_functions"])
            }
            Demand::Pipes => ("Pipes", "pipes", &["__opencl_c_pipes"]),
            Demand::DeviceQueues => {
                ("DeviceEnqueue", "device-side enqueue", &["__opencl_c_device_enqueue"])
            }
        };
        Self { capability, description, names }
    }
}

/// Whether the device has a feature, or its description does not cover it.
fn has(device: &Device, feature: Demand) -> bool {
    let lists_extensions = !device.extensions.is_empty();
    // Only OpenCL 3.0 devices list their optional features. Level Zero devices list only some of them.
    let lists_features = device.backend == "opencl" && !device.opencl_c_features.is_empty();
    let is_covered = match feature {
        Demand::Images | Demand::ReadWriteImages if !device.images => return !lists_extensions,
        Demand::Images => return true,
        Demand::Half | Demand::Double | Demand::LongAtomics | Demand::ExtendedLongAtomics => {
            lists_extensions
        }
        Demand::Long
        | Demand::ReadWriteImages
        | Demand::GenericPointers
        | Demand::Subgroups
        | Demand::GroupFunctions
        | Demand::Pipes
        | Demand::DeviceQueues => lists_features,
    };
    let mut listed = device.extensions.iter().chain(&device.opencl_c_features);
    !is_covered || listed.any(|name| Feature::of(feature).names.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rspirv::binary::Assemble;
    use rspirv::dr::Builder;
    use rspirv::spirv::{AddressingModel, Capability, Dim, ImageFormat, MemoryModel};

    use super::*;
    use crate::device::DeviceInfo;
    use crate::error::ErrorKind;

    fn device(extensions: &[&str], images: bool) -> Device {
        let extensions = extensions.iter().map(|&name| name.to_owned()).collect();
        let spirv_extensions = Some(&["SPV_KHR_known"][..]);
        let info = DeviceInfo { extensions, images, spirv_extensions, ..DeviceInfo::fake() };
        Device::new(0, Arc::new(info))
    }

    fn module(fill: impl FnOnce(&mut Builder)) -> Vec<u8> {
        let mut builder = Builder::new();
        builder.set_version(1, 2);
        fill(&mut builder);
        builder.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn using(capability: Capability) -> Vec<u8> {
        module(|b| {
            b.capability(capability);
            match capability {
                Capability::Float16 => _ = b.type_float(16, None),
                Capability::Float64 => _ = b.type_float(64, None),
                Capability::ImageBasic => {
                    let void = b.type_void();
                    b.type_image(void, Dim::Dim2D, 0, 0, 0, 0, ImageFormat::Unknown, None);
                }
                _ => {
                    let (long, void) = (b.type_int(64, 0), b.type_void());
                    let function = b.type_function(void, []);
                    b.begin_function(void, None, rspirv::spirv::FunctionControl::NONE, function)
                        .expect("none is open");
                    b.begin_block(None).expect("a function is open");
                    b.atomic_i_increment(long, None, 1, 2, 3).expect("a block is open");
                    b.ret().expect("a block is open");
                    b.end_function().expect("it was begun");
                }
            }
        })
    }

    const CAPABILITIES: [(Capability, &str); 4] = [
        (Capability::Float16, "cl_khr_fp16"),
        (Capability::Float64, "cl_khr_fp64"),
        (Capability::Int64Atomics, "cl_khr_int64_base_atomics"),
        (Capability::ImageBasic, "images"),
    ];

    #[test]
    fn capabilities_that_the_device_lacks_are_named() {
        for (capability, needs) in CAPABILITIES {
            let code = using(capability);
            let error = check(&code, "m", &device(&["cl_other"], false)).expect_err(needs);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = error.to_string();
            assert!(text.contains(&format!("m needs `{capability:?}`")), "{text}");
            assert!(text.contains(needs) && text.contains("device (fake cpu)"), "{text}");
            check(&code, "m", &device(&[needs], needs == "images"))
                .expect("the device supports it");
        }
    }

    #[test]
    fn half_precision_is_required_by_values_not_by_declarations() {
        let code = module(|b| {
            b.capability(Capability::Float16Buffer);
            let half = b.type_float(16, None);
            let halves = b.type_vector(half, 4);
            let function = b.type_function(half, [halves]);
            b.begin_function(half, None, rspirv::spirv::FunctionControl::NONE, function)
                .expect("none is open");
            b.function_parameter(halves).expect("a function is open");
            b.end_function().expect("it was begun");
        });
        let error = check(&code, "m", &device(&["cl_other"], false)).expect_err("it lacks it");
        assert!(error.to_string().contains("m needs `Float16` (half precision)"), "{error}");
        check(&code, "m", &device(&["cl_khr_fp16"], false)).expect("the device supports it");
    }

    #[test]
    fn compilers_name_the_types_that_a_device_lacks() {
        let lacking = |log| lacking_by_log(log, "m", &device(&["cl_other"], false));
        for log in [
            "1:39: error: declaring variable of type '__private half' is not allowed",
            "error: use of undeclared identifier 'half4'",
            "error: half precision constant requires cl_khr_fp16",
        ] {
            assert!(lacking(log).expect(log).contains("m needs `Float16`"), "{log}");
        }
        assert!(lacking("use of type 'double'").expect("named").contains("m needs `Float64`"));
        assert_eq!(lacking("error: half_exp, halfway and doubled are not declared"), None);
        assert_eq!(lacking_by_log("'half'", "m", &device(&["cl_khr_fp16"], false)), None);
    }

    /// Returns an OpenCL 3.0 device that has these optional features.
    fn listing(features: &[&str]) -> Device {
        let opencl_c_features = features.iter().map(|&name| name.to_owned()).collect();
        let extensions = vec!["cl_khr_int64_base_atomics".to_owned()];
        let backend = "opencl";
        let info = DeviceInfo {
            extensions,
            opencl_c_features,
            backend,
            images: true,
            ..DeviceInfo::fake()
        };
        Device::new(0, Arc::new(info))
    }

    #[test]
    fn features_missing_from_the_list_of_the_device_are_unsupported() {
        let each = [
            (Demand::Long, "Int64", "__opencl_c_int64"),
            (Demand::ExtendedLongAtomics, "Int64Atomics", "cl_khr_int64_extended_atomics"),
            (Demand::ReadWriteImages, "ImageReadWrite", "__opencl_c_read_write_images"),
            (Demand::GenericPointers, "GenericPointer", "__opencl_c_generic_address_space"),
            (Demand::Subgroups, "SubgroupDispatch", "__opencl_c_subgroups"),
            (Demand::GroupFunctions, "Groups", "__opencl_c_work_group_collective_functions"),
            (Demand::Pipes, "Pipes", "__opencl_c_pipes"),
            (Demand::DeviceQueues, "DeviceEnqueue", "__opencl_c_device_enqueue"),
        ];
        for (demand, capability, feature) in each {
            let error = check_features([demand], "m", &listing(&["__opencl_c_other"]));
            let text = error.expect_err(feature).to_string();
            assert!(text.contains(&format!("m needs `{capability}`")), "{text}");
            assert!(text.contains(feature), "{text}");
            check_features([demand], "m", &listing(&[feature])).expect("the device supports it");
            check_features([demand], "m", &device(&[], true)).expect("the device reports nothing");
        }
        check_features([Demand::LongAtomics], "m", &listing(&["__opencl_c_other"]))
            .expect("it has the base ones");
    }

    #[test]
    fn unused_capabilities_and_unknown_support_are_left_to_the_driver() {
        for (capability, _) in CAPABILITIES {
            let declared = module(|b| b.capability(capability));
            check(&declared, "m", &device(&["cl_other"], false)).expect("it is not used");
            check(&using(capability), "m", &device(&[], false))
                .expect("the device reports nothing");
        }
        let loaded_only = module(|b| {
            b.capability(Capability::Float16Buffer);
            b.type_float(16, None);
        });
        check(&loaded_only, "m", &device(&["cl_other"], false)).expect("every device loads them");
    }

    #[test]
    fn the_address_width_must_match_the_device() {
        let of = |model| module(|b| b.memory_model(model, MemoryModel::OpenCL));
        let check_both = |code: &[u8]| {
            let device = device(&[], false);
            [check(code, "m", &device), check_translated(code, [], "m", &device)]
        };
        for refused in check_both(&of(AddressingModel::Physical32)) {
            let error = refused.expect_err("the device has 64 bits");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("32-bit addresses"), "{error}");
        }
        for taken in check_both(&of(AddressingModel::Physical64)) {
            taken.expect("it has them");
        }
    }

    #[test]
    fn unsupported_extensions_are_named() {
        let declaring = |name: &str| module(|b| b.extension(name));
        let error =
            check(&declaring("SPV_KHR_new"), "m", &device(&[], false)).expect_err("it is new");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("SPV_KHR_new"), "{error}");
        check(&declaring("SPV_KHR_known"), "m", &device(&[], false)).expect("it is known");
        let unspecified = Device::new(0, Arc::new(DeviceInfo::fake()));
        check(&declaring("SPV_KHR_new"), "m", &unspecified).expect("the device reports none");
    }
}
