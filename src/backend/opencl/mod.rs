//! Devices reached through OpenCL, with the loader and the drivers of the system.
//!
//! Uses cl3's thin functions, which `opencl3` re-exports, rather than opencl3's own objects: those assert on
//! their arguments, and allocate for every launch. The loader is opened at run time. A system without OpenCL
//! has no devices of this backend, and nothing fails to link.
//!
//! Entry points of OpenCL 2.0 and later are called only on devices of that version: the dispatch table of an
//! older driver ends before them, and not every loader checks.

mod adapter;
mod adopt;
mod batch;
mod codes;
mod compute_cache;
mod context;
mod device;
mod event;
mod fill;
mod finish_worker;
mod gate;
pub(crate) mod given_context;
mod handle;
mod image_format;
mod kernel;
mod loader;
mod memory;
mod native_queue;
mod pixels;
mod program;
mod program_object;
mod queue;
mod rows;
mod sampler;
mod spare_memory;
#[cfg(test)]
mod tests;
mod variants;
mod watch;

use std::sync::Arc;

use crate::backend::{Adapter, Backend};
use crate::error::Result;

pub(super) use self::codes::driver_code;

/// Name of this backend in selectors and device infos.
pub(super) const NAME: &str = "opencl";

/// Backend with all devices of all OpenCL drivers.
pub(crate) struct OpenCl;

impl Backend for OpenCl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        let adapters = adapter::discover()?;
        Ok(adapters.into_iter().map(|adapter| Arc::new(adapter) as _).collect())
    }
}

/// Returns a driver's text without surrounding NULs and whitespace.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned()
}

/// Returns a driver's number. OpenCL's numbers, booleans and bit-fields have 4 or 8 bytes; `None` for an answer
/// of any other length.
fn integer(bytes: &[u8]) -> Option<u64> {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        return Some(u32::from_ne_bytes(bytes).into());
    }
    <[u8; 8]>::try_from(bytes).ok().map(u64::from_ne_bytes)
}
