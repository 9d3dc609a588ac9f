//! Kiln runs compute kernels from async Rust.

mod args;
mod backend;
mod buffer;
mod build;
mod device;
mod error;
mod future;
mod image;
mod nd_range;
mod queue;
mod runtime;
mod spirv;
mod stats;

pub use crate::args::{Argument, Arguments, Local};
pub use crate::backend::{Access, AddressSpace, Parameter, Profile};
#[cfg(feature = "simulated")]
pub use crate::backend::simulated;
pub use crate::buffer::{Buffer, BufferArgument};
pub use crate::build::{Build, BuildKey, BuildRequest, Kernel, Origin, Program, SpecializationValue};
pub use crate::device::{Device, DeviceInfo, DeviceKind, ImageFormat, Limits};
pub use crate::error::{DriverCode, Error, ErrorKind, Result};
pub use crate::image::{Digest, Image, SpecializationConstant};
pub use crate::nd_range::{NdRange, NdSize};
pub use crate::queue::{Event, IntoOutcome, Launch, Queue, Read, Status, Trace, Upload};
pub use crate::runtime::{Drain, Runtime, RuntimeBuilder, Starting};
pub use crate::stats::Stats;
