//! Whether a device can do what a module asks of it, before a compiler sees the module: some end
//! the process where they do not know an extension.

use rspirv::spirv::Capability;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::spirv;

/// Checks a module against what the device says of itself. What it does not tell is left to the
/// driver.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported), with what the device lacks.
pub(super) fn check(code: &[u8], device: &Device) -> Result<()> {
    let spirv::Demands { capabilities, extensions, address_bits } = spirv::demands(code);
    check_addresses(address_bits, device)?;
    for capability in capabilities {
        if let Some(what) = lacks(device, capability) {
            return Err(Error::unsupported(format!(
                "the SPIR-V module uses the capability {capability:?}, and {device} has no {what}"
            )));
        }
    }
    let Some(known) = device.spirv_extensions else { return Ok(()) };
    match extensions.into_iter().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => Err(Error::unsupported(format!(
            "the SPIR-V module declares the extension {name:.100}, which the compiler of {device} is not \
             known to take; make the module without it"
        ))),
    }
}

/// As [`check`], for a module of which the device's compiler gets a translation: that has all else the
/// module has, or there is none.
pub(super) fn check_translated(code: &[u8], device: &Device) -> Result<()> {
    check_addresses(spirv::demands(code).address_bits, device)
}

fn check_addresses(bits: Option<u32>, device: &Device) -> Result<()> {
    let has = device.limits.address_bits;
    match bits {
        Some(bits) if bits != has => Err(Error::unsupported(format!(
            "the SPIR-V module has addresses of {bits} bits, and {device} of {has}; make the module for \
             such devices, by the target `spir{}` or `spirv{has}`",
            if has == 64 { "64" } else { "" }
        ))),
        _ => Ok(()),
    }
}

/// What the device surely does not have.
fn lacks(device: &Device, capability: Capability) -> Option<&'static str> {
    let has = |name: &str| {
        let mut names = device.extensions.iter().chain(&device.opencl_c_features);
        // One that tells nothing may have anything.
        device.extensions.is_empty() || names.any(|known| known == name)
    };
    match capability {
        Capability::Float16 if !has("cl_khr_fp16") => Some("numbers of 16 bits (cl_khr_fp16)"),
        Capability::Float64 if !has("cl_khr_fp64") && !has("__opencl_c_fp64") => {
            Some("numbers of double precision (cl_khr_fp64)")
        }
        Capability::Int64Atomics
            if !has("cl_khr_int64_base_atomics") && !has("cl_khr_int64_extended_atomics") =>
        {
            Some("atomics of 64 bits (cl_khr_int64_base_atomics)")
        }
        Capability::ImageBasic if !device.images && !device.extensions.is_empty() => Some("images"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rspirv::binary::Assemble;
    use rspirv::dr::Builder;
    use rspirv::spirv::{AddressingModel, Dim, ImageFormat, MemoryModel};

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

    const EACH: [(Capability, &str); 4] = [
        (Capability::Float16, "cl_khr_fp16"),
        (Capability::Float64, "cl_khr_fp64"),
        (Capability::Int64Atomics, "cl_khr_int64_base_atomics"),
        (Capability::ImageBasic, "images"),
    ];

    #[test]
    fn what_the_device_lacks_is_told_with_its_name() {
        for (capability, needs) in EACH {
            let code = using(capability);
            let error = check(&code, &device(&["cl_other"], false)).expect_err(needs);
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let text = error.to_string();
            assert!(text.contains(&format!("{capability:?}")) && text.contains(needs), "{text}");
            assert!(text.contains("device (fake cpu)"), "{text}");
            check(&code, &device(&[needs], needs == "images")).expect("it has it");
        }
    }

    #[test]
    fn what_is_declared_and_not_used_or_not_told_is_left_to_the_driver() {
        for (capability, _) in EACH {
            let declared = module(|b| b.capability(capability));
            check(&declared, &device(&["cl_other"], false)).expect("it is not used");
            check(&using(capability), &device(&[], false)).expect("it tells nothing");
        }
        let loaded_only = module(|b| {
            b.capability(Capability::Float16Buffer);
            b.type_float(16, None);
        });
        check(&loaded_only, &device(&["cl_other"], false)).expect("every device loads them");
    }

    #[test]
    fn addresses_are_those_of_the_device() {
        let of = |model| module(|b| b.memory_model(model, MemoryModel::OpenCL));
        let check_both = |code: &[u8]| {
            let device = device(&[], false);
            [check(code, &device), check_translated(code, &device)]
        };
        for refused in check_both(&of(AddressingModel::Physical32)) {
            let error = refused.expect_err("the device has 64 bits");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("addresses of 32 bits"), "{error}");
        }
        for taken in check_both(&of(AddressingModel::Physical64)) {
            taken.expect("it has them");
        }
    }

    #[test]
    fn an_extension_that_the_compiler_may_not_know_is_named() {
        let declaring = |name: &str| module(|b| b.extension(name));
        let error = check(&declaring("SPV_KHR_new"), &device(&[], false)).expect_err("it is new");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("SPV_KHR_new"), "{error}");
        check(&declaring("SPV_KHR_known"), &device(&[], false)).expect("it is known");
        let untold = Device::new(0, Arc::new(DeviceInfo::fake()));
        check(&declaring("SPV_KHR_new"), &untold).expect("it tells none");
    }
}
