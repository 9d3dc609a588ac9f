//! Faults that can be requested from a simulated device, its counts, and its pauses.

use std::fmt;
use std::sync::Arc;

use super::program;
use super::shared::{self, Shared};
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
    pub(super) fn of_command(self) -> Error {
        match self {
            Self::OutOfResources => {
                Error::new(ErrorKind::OutOfResources, "the simulator was set to run out of memory")
                    .with_code(shared::code(-5, "CL_OUT_OF_RESOURCES"))
            }
            Self::DeviceLost => {
                Error::new(ErrorKind::DeviceLost, "the simulator was set to lose the device")
            }
            Self::Refused | Self::Panic => shared::driver_error(
                -59,
                "CL_INVALID_OPERATION",
                "the simulator was set to refuse the command",
            ),
        }
    }

    /// Returns the error that a build fails with. Panics for [`Panic`](Self::Panic).
    pub(super) fn of_build(self) -> Error {
        match self {
            Self::OutOfResources | Self::DeviceLost => self.of_command(),
            Self::Refused => program::refused("error: the simulator was set to refuse the build"),
            Self::Panic => panic!("the simulator's compiler was set to panic"),
        }
    }
}

/// Numbers of requests to a simulated device, and of objects that it holds.
///
/// # Examples
///
/// ```
/// use kiln::simulated::{Counts, Simulator};
///
/// let counts = Simulator::new().counts();
/// assert_eq!(counts, Counts::default()); // nothing was requested, and nothing leaks
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Builds from OpenCL C or SPIR-V, failed ones included.
    pub builds: u64,
    /// Builds from native binaries, failed ones included.
    pub loads: u64,
    /// Programs linked from objects.
    pub links: u64,
    /// Commands queued.
    pub commands: u64,
    /// Kernel launches among these commands.
    pub launches: u64,
    /// Completion callbacks that were requested, lost ones included.
    pub notifications: u64,
    /// Requests to start queued commands.
    pub flushes: u64,
    /// Allocations that exist at present.
    pub live_allocations: u64,
    /// Size of these allocations in bytes.
    pub live_bytes: u64,
    /// Programs that exist at present. A program is kept by its kernels, and by launches that have not ended.
    pub live_programs: u64,
    /// Native events that exist at present. The device releases an event only just after it has reported its
    /// end.
    pub live_events: u64,
}

/// Guard that holds back the commands or the builds of a [`Simulator`](super::Simulator) until it is dropped.
///
/// # Examples
///
/// ```
/// # fn main() -> kiln::Result<()> {
/// # smol::block_on(async {
/// # let simulator = kiln::simulated::Simulator::new();
/// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
/// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
/// # let program = rt.build(&module).await?;
/// # // SAFETY: the kernel is a closure.
/// # let scale = unsafe { program.kernel("scale")? };
/// # let x = rt.buffer_from(vec![1.0f32; 64]).await?;
/// # let queue = rt.queue();
/// let pause = simulator.pause();
/// let read = queue.read(&x);
/// queue.fill(&x, 2.0)?; // both commands wait
/// drop(pause);
/// assert_eq!(read.await?, [1.0; 64]); // and run in order
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "dropping the guard resumes the device immediately"]
pub struct Pause {
    pub(super) shared: Arc<Shared>,
    pub(super) paused: Paused,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Paused {
    Builds,
    Compiles,
    Commands,
}

impl Drop for Pause {
    fn drop(&mut self) {
        match self.paused {
            Paused::Builds => self.shared.builds.open(),
            Paused::Compiles => self.shared.compiles.open(),
            Paused::Commands => {
                self.shared.commands.open();
                self.shared.backlog.run(&self.shared);
            }
        }
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").field("paused", &self.paused).finish_non_exhaustive()
    }
}
