//! Devices reached through Level Zero, by the loader and the drivers that the system has.
//!
//! The [bindings] are those of the loader's headers; the [loader] itself is opened at run time. A
//! system without Level Zero has no devices of this backend, and nothing fails to link.
//!
//! What the API leaves to its caller, this backend does: it keeps events and what they wait for until
//! the commands have ended ([event]), copies host memory through the driver's own ([memory]), finds
//! out when commands end ([watcher](crate::backend::poller)), and keeps from the compiler what makes
//! it end the process ([program]). A list can call the host when a command ends, but by one more
//! command, which has to be submitted, too, and which the device waits for: on an imitated GPU that
//! took half as long again as to look at an event.

mod adapter;
mod bindings;
mod clock;
mod codes;
mod context;
mod device;
mod event;
mod extensions;
mod handle;
mod kernel;
mod loader;
mod memory;
mod native_queue;
mod objects;
mod program;
mod ze_info;

use std::ffi::c_char;
use std::sync::Arc;

use crate::backend::{Adapter, Backend};
use crate::error::{DriverCode, Result};

/// The name of this backend, as selectors and device infos say it.
pub(super) const NAME: &str = "level-zero";

/// All devices of all Level Zero drivers.
pub(crate) struct LevelZero;

impl Backend for LevelZero {
    fn name(&self) -> &'static str {
        NAME
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        let adapters = adapter::discover()?;
        Ok(adapters.into_iter().map(|adapter| Arc::new(adapter) as _).collect())
    }
}

/// A code with its name in Level Zero's headers.
pub(super) fn driver_code(code: i32) -> DriverCode {
    codes::Code(code.cast_unsigned()).driver_code()
}

/// A driver's text, up to its NUL and without blanks around it.
fn text(characters: &[c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(characters);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}
