//! Devices that are reached through Level Zero, with the loader and the drivers of the system.
//!
//! The [bindings] come from the loader's headers; the [loader] itself is opened at run time. A system without
//! Level Zero has no devices of this backend, and nothing fails to link.
//!
//! This backend does the work that the API leaves to its caller. It keeps events and the events that they wait
//! for until the commands have ended ([event]), copies host memory through memory that the driver allocates
//! ([memory]), fills images by copies ([image]), detects when commands end ([poller](crate::backend::poller)),
//! and rejects code that makes the compiler end the process ([module]). A list can call the host when a command
//! ends, but only with one more command, which also has to be submitted, and for which the device waits. On an
//! emulated GPU, that took 1.5 times as long as querying an event.

mod adapter;
mod bindings;
mod clock;
mod codes;
mod command_list;
mod container;
mod context;
mod device;
mod event;
mod event_pool;
mod extensions;
pub(crate) mod given_context;
mod handle;
mod image;
mod image_bindings;
mod image_format;
mod kernel;
mod loader;
mod memory;
mod module;
mod native_queue;
mod operation;
mod program;
mod rows;
mod sampler;
mod sequence;
mod staging_pool;
mod ze_info;

use std::ffi::c_char;
use std::sync::Arc;

use crate::backend::{Adapter, Backend};
use crate::error::{DriverCode, Result};

/// Name of this backend in selectors and device infos.
pub(super) const NAME: &str = "level-zero";

/// Backend of all devices of all Level Zero drivers.
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

/// Returns a code with its name in Level Zero's headers.
pub(super) fn driver_code(code: i32) -> DriverCode {
    codes::Code(code.cast_unsigned()).driver_code()
}

/// Returns a driver's text, up to its NUL and without blanks around it.
fn text(characters: &[c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(characters);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}
