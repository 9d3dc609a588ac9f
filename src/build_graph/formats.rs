//! Formats in which a device gets modules, and what their symbols mean for that.

use std::collections::HashSet;

use crate::device::{DeviceInfo, ModuleFormat};
use crate::source::module::Module;

/// Whether modules of `format` are translated to OpenCL C for a device. That applies to SPIR-V if the device
/// takes only OpenCL C, or if it takes both and `as_text` is set.
pub(super) fn is_emitted(device: &DeviceInfo, format: ModuleFormat, as_text: bool) -> bool {
    format == ModuleFormat::SpirV
        && (as_text || !device.formats.contains(&format))
        && device.formats.contains(&ModuleFormat::OpenClC)
}

/// Whether modules of `format` are translated to SPIR-V for a device.
pub(super) fn is_translated(device: &DeviceInfo, format: ModuleFormat) -> bool {
    format == ModuleFormat::OpenClC
        && !device.formats.contains(&format)
        && device.formats.contains(&ModuleFormat::SpirV)
}

/// Whether a module imports a symbol that it also exports. Drivers report a duplicate definition for such
/// SPIR-V.
pub(super) fn imports_its_own(module: &Module) -> bool {
    let own: HashSet<_> = module.exports().collect();
    module.imports().any(|name| own.contains(name))
}
