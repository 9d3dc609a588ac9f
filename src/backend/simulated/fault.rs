//! Faults that can be requested from a simulated device.

use super::codes::{code, driver_error, refused_error};
use crate::error::{Error, ErrorKind};

/// Failure that can be requested from a [`Simulator`](super::Simulator).
///
/// # Examples
///
/// ```
/// use kiln::simulated::{Fault, Simulator};
///
/// let simulator = Simulator::new();
/// simulator.fail_builds(1, Fault::OutOfResources);
/// simulator.fail_builds(1, Fault::Panic); // the build after it
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The device or the compiler has no memory left:
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    OutOfResources,
    /// The device is lost: [`DeviceLost`](crate::ErrorKind::DeviceLost). Only the operations that were
    /// requested to fail do so; the device continues to work.
    DeviceLost,
    /// A build fails with [`BuildFailed`](crate::ErrorKind::BuildFailed) and a build log, any other operation
    /// with [`Driver`](crate::ErrorKind::Driver).
    Refused,
    /// The compiler panics. Any operation but a build fails as for [`Refused`](Self::Refused).
    Panic,
}

impl Fault {
    /// Returns the error that a command fails with.
    pub(super) fn command_error(self) -> Error {
        match self {
            Self::OutOfResources => {
                Error::new(ErrorKind::OutOfResources, "the simulator was set to run out of memory")
                    .with_code(code(-5, "CL_OUT_OF_RESOURCES"))
            }
            Self::DeviceLost => {
                Error::new(ErrorKind::DeviceLost, "the simulator was set to lose the device")
            }
            Self::Refused | Self::Panic => driver_error(
                -59,
                "CL_INVALID_OPERATION",
                "the simulator was set to refuse the command",
            ),
        }
    }

    /// Returns the error that a build fails with. Panics for [`Panic`](Self::Panic).
    pub(super) fn build_error(self) -> Error {
        match self {
            Self::OutOfResources | Self::DeviceLost => self.command_error(),
            Self::Refused => refused_error("error: the simulator was set to refuse the build"),
            Self::Panic => panic!("the simulator's compiler was set to panic"),
        }
    }
}
