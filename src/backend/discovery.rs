//! The backends of this build, and the devices that they find.

use std::sync::Arc;

use super::{Adapter, Backend};
use crate::error::{Error, ErrorKind, Result};

/// Returns the backends of real drivers. A backend that was not compiled in is replaced by a `LeftOut`, which
/// has no devices.
pub(crate) fn drivers() -> Vec<Arc<dyn Backend>> {
    vec![
        #[cfg(feature = "opencl")]
        Arc::new(super::opencl::OpenCl),
        #[cfg(not(feature = "opencl"))]
        Arc::new(LeftOut("opencl")),
        #[cfg(feature = "level-zero")]
        Arc::new(super::level_zero::LevelZero),
        #[cfg(not(feature = "level-zero"))]
        Arc::new(LeftOut("level-zero")),
    ]
}

/// Stand-in for a backend that was not compiled in. Holds the name of its feature, which is also the backend's
/// name.
#[cfg(not(all(feature = "opencl", feature = "level-zero")))]
struct LeftOut(&'static str);

#[cfg(not(all(feature = "opencl", feature = "level-zero")))]
impl Backend for LeftOut {
    fn name(&self) -> &'static str {
        self.0
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        let Self(feature) = self;
        let problem =
            format!("this build of Kiln does not include it; enable the feature `{feature}`");
        Err(Error::new(ErrorKind::NoDevice, problem))
    }
}

/// Devices that were found, and the reason for each backend that has none.
pub(crate) struct Discovered {
    pub(crate) adapters: Vec<Arc<dyn Adapter>>,
    pub(crate) unavailable: Vec<(&'static str, Error)>,
}

/// Finds the devices of all backends.
///
/// # Errors
///
/// [`NoDevice`](ErrorKind::NoDevice), with the reason of each backend, if there is no device at all. An invalid
/// setting or a given context that cannot be used is an error even if another backend has devices. So is a
/// process that is ending or was forked, in which drivers cannot be called.
pub(crate) fn discover(backends: &[Arc<dyn Backend>]) -> Result<Discovered> {
    let mut adapters = Vec::new();
    let mut unavailable = Vec::new();
    for backend in backends {
        match backend.adapters() {
            Ok(found) if found.is_empty() => {
                let none = Error::new(ErrorKind::NoDevice, "its driver has no device");
                unavailable.push((backend.name(), none));
            }
            Ok(found) => adapters.extend(found),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Configuration
                        | ErrorKind::InvalidArgument
                        | ErrorKind::ProcessEnding
                        | ErrorKind::Forked
                ) =>
            {
                return Err(error);
            }
            Err(error) => unavailable.push((backend.name(), error)),
        }
    }
    if !adapters.is_empty() {
        return Ok(Discovered { adapters, unavailable });
    }
    let each = unavailable.iter().map(|(name, error)| format!("{name}: {error}"));
    let tried = each.collect::<Vec<_>>().join("; ");
    Err(Error::new(ErrorKind::NoDevice, format!("tried {tried}")))
}
