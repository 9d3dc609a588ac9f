//! A device in software, whose kernels are Rust closures and whose faults come on request.
//!
//! It is for tests, of applications and of Kiln itself, that must not depend on a driver or that
//! need what a driver does rarely: a compiler that fails, a device that hangs or runs out of
//! memory, a completion that is never told.
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
//! The device takes OpenCL C, SPIR-V and its own binaries. It runs none of their code: a launch
//! calls the closure that is registered under the kernel's name. What it reads is what the rest of
//! Kiln needs to know.
//!
//! * Of OpenCL C: the kernels and their parameters. There is no preprocessor: `#error` fails the
//!   build and `#warning` goes to the build log wherever they stand, and kernels that a macro
//!   would make are not seen. `#pragma binary_size N` makes the binary at least `N` bytes long. The
//!   build option `--refuse` fails the build; all others are ignored.
//! * Of SPIR-V: the kernels and what the module tells of their parameters. A module without kernels
//!   has all that are registered when it is built, and their arguments are not checked.
//!
//! Fresh device memory holds no zeros, so that a test that counts on them fails.

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

/// A simulated device and the controls over it: a handle, cheap to clone.
///
/// All clones, and all runtimes that were given one, share the kernels, faults and counts. Faults
/// and delays take effect at once; faults of the same sort queue up behind each other.
#[derive(Clone)]
pub struct Simulator {
    shared: Arc<Shared>,
    name: Arc<str>,
    memory: u64,
}

impl Simulator {
    /// A device that runs its commands as real ones do, beside the threads that submit them.
    #[must_use]
    pub fn new() -> Self {
        Self::with_threads(true)
    }

    /// A device that runs every command at once, on the thread that submits it, and has no threads
    /// of its own.
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

    /// Sets the device's memory, one GiB unless set, for runtimes that are given this handle or a
    /// clone of it. An allocation beyond what is left fails with
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets what kernels called `name` do, in every program. The closure is called once a launch,
    /// for all its work-items, as it is when the launch reaches the device; without one, a launch
    /// has no effect. If it panics, the command fails with
    /// [`Panicked`](crate::ErrorKind::Panicked). It must not use the runtime that it runs for.
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

    /// Makes every build from now on take at least so long; zero ends that.
    pub fn delay_builds(&self, delay: Duration) {
        self.shared.build_delay.set(delay);
    }

    /// Makes every compile from now on take at least so long, and no load of a binary; zero ends that.
    pub fn delay_compiles(&self, delay: Duration) {
        self.shared.compile_delay.set(delay);
    }

    /// Makes every command from now on take at least so long; zero ends that.
    pub fn delay_commands(&self, delay: Duration) {
        self.shared.command_delay.set(delay);
    }

    /// Gives the driver so many bytes for reads and writes that wait, where it has no limit unless one
    /// is set: whoever hands over one for which there is no room waits for its end, as on NVIDIA's
    /// driver. Not on [immediate](Self::immediate) devices.
    pub fn limit_staging(&self, bytes: usize) {
        self.shared.staging.set_limit(bytes);
    }

    /// Hangs the device: until the guard is dropped, no command starts. One that has started ends
    /// as usual. Several guards hold until the last is dropped.
    pub fn pause(&self) -> Pause {
        self.shared.commands.close();
        Pause { shared: self.shared.clone(), paused: Paused::Commands }
    }

    /// Hangs the compiler: until the guard is dropped, no build starts. One that has started ends
    /// as usual. Several guards hold until the last is dropped.
    pub fn pause_builds(&self) -> Pause {
        self.shared.builds.close();
        Pause { shared: self.shared.clone(), paused: Paused::Builds }
    }

    /// Hangs the compiler alone, as [`pause_builds`](Self::pause_builds) does: binaries are loaded.
    pub fn pause_compiles(&self) -> Pause {
        self.shared.compiles.close();
        Pause { shared: self.shared.clone(), paused: Paused::Compiles }
    }

    /// Makes the device forget the next `n` completions that it is asked to tell: the commands end,
    /// but nobody is called.
    pub fn lose_notifications(&self, n: usize) {
        self.shared.lose_notifications(n);
    }

    /// What the device has been asked to do so far, and what it holds at present.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// The API through which a runtime finds the device.
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

/// A failure to order from a [`Simulator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The device or the compiler has no memory left:
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    OutOfResources,
    /// The device is gone: [`DeviceLost`](crate::ErrorKind::DeviceLost). Only what was ordered to
    /// fail does; the device works on.
    DeviceLost,
    /// A build ends with [`BuildFailed`](crate::ErrorKind::BuildFailed) and a build log, anything
    /// else with [`Driver`](crate::ErrorKind::Driver).
    Refused,
    /// The compiler panics; anything but a build is [`Refused`](Self::Refused).
    Panic,
}

impl Fault {
    /// What a command fails with.
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

    /// What a build fails with; panics where the compiler shall.
    fn of_build(self) -> Error {
        match self {
            Self::OutOfResources | Self::DeviceLost => self.of_command(),
            Self::Refused => program::refused("error: the simulator was told to refuse the build"),
            Self::Panic => panic!("the simulator's compiler was told to panic"),
        }
    }
}

/// What a simulated device was asked to do, and what it holds.
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
    /// Kernel launches among them.
    pub launches: u64,
    /// Completions that the device was asked to tell, lost ones included.
    pub notifications: u64,
    /// Times that queued commands were told to start.
    pub flushes: u64,
    /// Allocations that exist at present.
    pub live_allocations: u64,
    /// The bytes of these allocations.
    pub live_bytes: u64,
    /// Programs that exist at present: their kernels and launches that have not ended keep them.
    pub live_programs: u64,
    /// Native events that exist at present. The device itself lets go of an event only just after
    /// it has told its end.
    pub live_events: u64,
}

/// Holds the commands or the builds of a [`Simulator`] back until it is dropped.
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
