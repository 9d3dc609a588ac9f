//! Strategies for building a program from its modules.

use super::formats::imports_its_own;
use super::link::describe;
use crate::device::{Device, ModuleFormat};
use crate::error::{Error, Result};
use crate::source::module::Module;

/// Strategy for building the requested node from the modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildStrategy {
    /// The module is built directly.
    Build,
    /// The module is compiled to an object.
    Compile,
    /// The objects of the modules, which are nodes of their own, are linked.
    Link,
    /// Like `Link`, on a driver whose kernels then call functions that would be inlined in a merged module.
    LinkByCalls,
    /// The SPIR-V modules are merged into one, which is then built.
    Merge,
    /// The OpenCL C module is translated to SPIR-V.
    Translate,
    /// The OpenCL C modules, for a device that takes only SPIR-V, are first translated by nodes of their own.
    /// Their SPIR-V is then [built](Self::Build), [merged](Self::Merge) or [linked](Self::LinkByCalls).
    TranslateFirst,
}

impl BuildStrategy {
    /// Whether the driver links objects.
    pub(crate) fn is_link(self) -> bool {
        matches!(self, Self::Link | Self::LinkByCalls)
    }

    /// Whether one call of the driver compiles and links the program.
    pub(super) fn is_one_call(self) -> bool {
        matches!(self, Self::Build | Self::Merge)
    }
}

/// Returns the strategy for a program of modules that share symbols. The first one is the requested module.
pub(super) fn strategy_for(
    device: &Device,
    link_objects: bool,
    modules: &[&Module],
) -> Result<BuildStrategy> {
    if modules.iter().any(|module| module.format() == ModuleFormat::Native) {
        return Ok(strategy_with_native(device, modules));
    }
    let module = modules[0];
    let format = module.format();
    let links = device.links.contains(&format);
    Ok(match format {
        ModuleFormat::SpirV if modules.iter().any(|module| imports_its_own(module)) => {
            BuildStrategy::Merge
        }
        _ if links && !device.links_by_calls => BuildStrategy::Link,
        _ if links && link_objects && modules.iter().all(|module| module.can_be_called()) => {
            BuildStrategy::LinkByCalls
        }
        _ if module.imports().len() == 0 && modules.len() == 1 => BuildStrategy::Build,
        ModuleFormat::SpirV => BuildStrategy::Merge,
        _ => {
            return Err(Error::unsupported(format!(
                "{} imports `{}`, but {device} does not link {format}",
                describe(module),
                module.imports().next().unwrap_or_default()
            )));
        }
    })
}

/// Returns the strategy for a program with native modules, which only the driver can link.
fn strategy_with_native(device: &Device, modules: &[&Module]) -> BuildStrategy {
    match modules {
        // It may be a whole program, whose exports are of no use to itself.
        [module] if module.made_for().is_none() && module.imports().len() == 0 => {
            BuildStrategy::Build
        }
        _ if device.links_by_calls => BuildStrategy::LinkByCalls,
        _ => BuildStrategy::Link,
    }
}
