//! Device for which a program is linked, and the native modules that it takes.

use super::messages::describe;
use crate::build_graph::input::{is_emitted, is_translated};
use crate::build_graph::strategy::imports_its_own;
use crate::device::{DeviceInfo, ModuleFormat};
use crate::source::module::Module;

/// Device for which a program is linked.
pub(crate) struct LinkTarget<'a> {
    pub(crate) device: &'a DeviceInfo,
    /// Fields that identify the device in keys.
    pub(crate) identity: &'a [(String, String)],
}

impl LinkTarget<'_> {
    /// Whether the driver links native modules with the objects that it makes of modules of a format.
    pub(crate) fn links_native_with(&self, format: ModuleFormat) -> bool {
        let links = &self.device.links;
        match format {
            ModuleFormat::Native => !links.is_empty(),
            _ if links.contains(&format) => true,
            ModuleFormat::SpirV => {
                is_emitted(self.device, format, false) && links.contains(&ModuleFormat::OpenClC)
            }
            ModuleFormat::OpenClC => {
                is_translated(self.device, format) && links.contains(&ModuleFormat::SpirV)
            }
        }
    }

    /// Whether Kiln made the native module for another device or another version of its driver. The module then
    /// cannot be used. A module of which that is not known may be usable.
    pub(crate) fn is_foreign(&self, module: &Module) -> bool {
        module.made_for().is_some_and(|made_for| {
            let identity: Vec<_> = self.fields().collect();
            !made_for.is(&identity) && !made_for.is(&self.device.identity())
        })
    }

    /// Returns the reason why a native module cannot be part of a program with modules of a format, if there is
    /// one.
    pub(crate) fn refusal(&self, native: &Module, format: ModuleFormat) -> Option<String> {
        let name = &self.device.name;
        if let Some(made_for) = native.made_for()
            && self.is_foreign(native)
        {
            let identity: Vec<_> = self.fields().collect();
            return Some(format!(
                "{} was made for {made_for}, and cannot be used on `{name}`, because it states {}; \
                 make it again for this device with `kiln build --object`, or use the SPIR-V or \
                 OpenCL C that it was made from",
                describe(native),
                made_for.differences(&identity)
            ));
        }
        (!self.links_native_with(format)).then(|| {
            format!(
                "the driver of `{name}` does not link native code with {format}, such as {}; use \
                 the SPIR-V or OpenCL C that it was made from",
                describe(native)
            )
        })
    }

    /// Returns the reason why the driver cannot link a module with native code, if there is one.
    pub(super) fn obstacle(&self, module: &Module) -> Option<&'static str> {
        if module.format() == ModuleFormat::SpirV && imports_its_own(module) {
            Some("imports a symbol that it also exports")
        } else if self.device.links_by_calls && !module.can_be_called() {
            Some("has functions that other objects cannot call")
        } else {
            None
        }
    }

    fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.identity.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}
