//! Simulated device whose kernels are Rust closures and whose faults occur on request.
//!
//! The simulator is for tests, of applications and of Kiln itself, that must not depend on a driver or that
//! need rare behaviour of one: a compiler that fails, a device that hangs or runs out of memory, a completion
//! that is never reported.
//!
//! ```
//! use kiln::simulated::{Fault, Simulator};
//!
//! let simulator = Simulator::immediate();
//! simulator.kernel("scale", |call| {
//!     let factor: f32 = call.value(0);
//!     let scaled: Vec<f32> = call.read::<f32>(1).iter().map(|x| factor * x).collect();
//!     call.write(1, &scaled);
//! });
//! simulator.fail_launches("scale", 1, Fault::OutOfResources);
//! assert_eq!(simulator.counts().launches, 0);
//! ```
//!
//! The device takes OpenCL C, SPIR-V and its own binaries. It does not run their code: a launch calls the
//! closure that is registered under the kernel's name. The device reads only the information that the rest of
//! Kiln needs:
//!
//! * From OpenCL C: the kernels and their parameters. There is no preprocessor: `#error` fails the build and
//!   `#warning` goes to the build log wherever they appear, and kernels that a macro would define are not
//!   found. `#pragma binary_size N` makes the binary at least `N` bytes long. The build option `--refuse` fails
//!   the build; all others are ignored.
//! * From SPIR-V: the kernels and the module's description of their parameters. A module without kernels gets
//!   all kernels that are registered when it is built, and their arguments are not checked.
//!
//! New device memory contains no zeros, so that a test that relies on them fails.

mod command;
mod device;
mod event;
mod invocation;
mod memory;
mod native_queue;
mod program;
mod scan;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use invocation::Invocation;

use shared::Shared;

use super::Backend;
use crate::error::{Error, ErrorKind};

/// Handle of a simulated device and of the controls over it. Cheap to clone.
///
/// All clones, and all runtimes that were given one, share the kernels, faults and counts. Faults and delays
/// take effect at once. Faults of the same kind queue up behind each other.
#[derive(Clone)]
pub struct Simulator {
    shared: Arc<Shared>,
    name: Arc<str>,
    memory: u64,
}

impl Simulator {
    /// Creates a device that runs its commands as real ones do, asynchronously to the threads that submit them.
    #[must_use]
    pub fn new() -> Self {
        Self::with_threads(true)
    }

    /// Creates a device that runs every command at once, on the thread that submits it, and has no threads of
    /// its own.
    ///
    /// Commands that a [`Pause`] holds back run, in order, on the thread that drops it.
    #[must_use]
    pub fn immediate() -> Self {
        Self::with_threads(false)
    }

    fn with_threads(threads: bool) -> Self {
        Self {
            shared: Arc::new(Shared::new(threads)),
            name: "Simulated device".into(),
            memory: 1 << 30,
        }
    }

    /// Names the device, for runtimes that are given this handle or a clone of it. Devices with
    /// different names do not share cached programs.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into().into();
        self
    }

    /// Sets the size of the device's memory in bytes (default: 1 GiB), for runtimes that are given this handle
    /// or a clone of it. An allocation beyond the remaining memory fails with
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the behaviour of kernels called `name`, in every program. A launch uses the closure that is set
    /// when it reaches the device, and calls it once for all work-items. Without a closure, a launch has no
    /// effect. If the closure panics, the command fails with [`Panicked`](crate::ErrorKind::Panicked). The
    /// closure must not use the runtime that it runs for.
    pub fn kernel(
        &self,
        name: impl AsRef<str>,
        behaviour: impl Fn(&mut Invocation<'_>) + Send + Sync + 'static,
    ) {
        let slot = self.shared.slot(name.as_ref());
        slot.set_behaviour(Arc::new(behaviour));
    }

    /// Fails the next `n` builds, whether they compile or load a binary.
    pub fn fail_builds(&self, n: usize, fault: Fault) {
        self.shared.build_faults.order(n, fault);
    }

    /// Fails the next `n` launches of kernels called `kernel` when they run: their events fail.
    pub fn fail_launches(&self, kernel: &str, n: usize, fault: Fault) {
        self.shared.slot(kernel).faults.order(n, fault);
    }

    /// Fails the next `n` commands when they are handed to the device, before they are queued.
    pub fn fail_enqueues(&self, n: usize, fault: Fault) {
        self.shared.enqueue_faults.order(n, fault);
    }

    /// Makes every build from now on take at least `delay`. Zero removes the delay.
    pub fn delay_builds(&self, delay: Duration) {
        self.shared.build_delay.set(delay);
    }

    /// Makes every compile from now on take at least `delay`, but no load of a binary. Zero removes the delay.
    pub fn delay_compiles(&self, delay: Duration) {
        self.shared.compile_delay.set(delay);
    }

    /// Makes every command from now on take at least `delay`. Zero removes the delay.
    pub fn delay_commands(&self, delay: Duration) {
        self.shared.command_delay.set(delay);
    }

    /// Limits the driver's memory for pending reads and writes to `bytes`. There is no limit by default.
    /// Submitting a transfer for which there is no room blocks until the transfer has ended, as on NVIDIA's
    /// driver. Has no effect on [immediate](Self::immediate) devices.
    pub fn limit_staging(&self, bytes: usize) {
        self.shared.staging.set_limit(bytes);
    }

    /// Hangs the device: until the guard is dropped, no command starts. A command that has started ends as
    /// usual. With several guards, the device hangs until the last is dropped.
    pub fn pause(&self) -> Pause {
        self.shared.commands.close();
        Pause { shared: self.shared.clone(), paused: Paused::Commands }
    }

    /// Hangs the compiler: until the guard is dropped, no build starts. A build that has started ends as usual.
    /// With several guards, the compiler hangs until the last is dropped.
    pub fn pause_builds(&self) -> Pause {
        self.shared.builds.close();
        Pause { shared: self.shared.clone(), paused: Paused::Builds }
    }

    /// Hangs the compiler like [`pause_builds`](Self::pause_builds), but lets binaries be loaded.
    pub fn pause_compiles(&self) -> Pause {
        self.shared.compiles.close();
        Pause { shared: self.shared.clone(), paused: Paused::Compiles }
    }

    /// Loses the next `n` completion callbacks that are requested from the device: the commands end, but the
    /// callbacks are not called.
    pub fn lose_notifications(&self, n: usize) {
        self.shared.lose_notifications(n);
    }

    /// Returns the numbers of requests to the device so far, and of objects that it holds at present.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// Returns the backend through which a runtime finds the device.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(device::Simulated::new(self.shared.clone(), &self.name, self.memory))
    }
}

impl Default for Simulator {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Simulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulator")
            .field("name", &self.name)
            .field("memory", &self.memory)
            .field("counts", &self.counts())
            .finish()
    }
}

/// Failure that can be ordered from a [`Simulator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The device or the compiler has no memory left:
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    OutOfResources,
    /// The device is lost: [`DeviceLost`](crate::ErrorKind::DeviceLost). Only the operations that were ordered
    /// to fail do so; the device continues to work.
    DeviceLost,
    /// A build fails with [`BuildFailed`](crate::ErrorKind::BuildFailed) and a build log, any other operation
    /// with [`Driver`](crate::ErrorKind::Driver).
    Refused,
    /// The compiler panics. Any operation but a build fails as for [`Refused`](Self::Refused).
    Panic,
}

impl Fault {
    /// Returns the error that a command fails with.
    fn of_command(self) -> Error {
        match self {
            Self::OutOfResources => {
                Error::new(ErrorKind::OutOfResources, "the simulator was told to run out of memory")
                    .with_code(shared::code(-5, "CL_OUT_OF_RESOURCES"))
            }
            Self::DeviceLost => {
                Error::new(ErrorKind::DeviceLost, "the simulator was told to lose the device")
            }
            Self::Refused | Self::Panic => shared::driver_error(
                -59,
                "CL_INVALID_OPERATION",
                "the simulator was told to refuse the command",
            ),
        }
    }

    /// Returns the error that a build fails with. Panics for [`Panic`](Self::Panic).
    fn of_build(self) -> Error {
        match self {
            Self::OutOfResources | Self::DeviceLost => self.of_command(),
            Self::Refused => program::refused("error: the simulator was told to refuse the build"),
            Self::Panic => panic!("the simulator's compiler was told to panic"),
        }
    }
}

/// Numbers of requests to a simulated device, and of objects that it holds.
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

/// Guard that holds back the commands or the builds of a [`Simulator`] until it is dropped.
#[must_use = "dropping the guard lets the device go on at once"]
pub struct Pause {
    shared: Arc<Shared>,
    paused: Paused,
}

#[derive(Clone, Copy, Debug)]
enum Paused {
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
