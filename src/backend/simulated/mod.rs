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

mod codes;
mod command;
mod control;
mod counters;
mod device;
mod event;
mod fault;
mod host_memory;
mod invocation;
mod memory;
mod native_queue;
mod pixels;
mod program;
mod rows;
mod scan;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use control::Pause;
pub use counters::Counts;
pub use fault::Fault;
pub use invocation::Invocation;

use control::Paused;
use shared::Shared;

use super::Backend;

/// Handle of a simulated device and of the controls over it. Cheap to clone.
///
/// All clones, and all runtimes that were given one, share the kernels, faults and counts. Faults and delays
/// take effect at once. Faults of the same kind queue up behind each other.
///
/// # Examples
///
/// ```
/// use kiln::simulated::Simulator;
/// use kiln::{Module, Runtime};
///
/// # fn main() -> kiln::Result<()> {
/// # smol::block_on(async {
/// let simulator = Simulator::new();
/// simulator.kernel("twice", |call| {
///     let doubled: Vec<f32> = call.read::<f32>(0).iter().map(|x| 2.0 * x).collect();
///     call.write(0, &doubled);
/// });
/// let rt = Runtime::builder().simulator(&simulator).build().await?;
/// let program = rt.build(&Module::opencl_c("kernel void twice(global float *x) {}")).await?;
/// // SAFETY: the kernel is the closure above.
/// let twice = unsafe { program.kernel("twice")? };
/// let (queue, x) = (rt.queue(), rt.buffer_from(vec![1.0f32; 64]).await?);
/// queue.submit(twice.launch(64).args((&x,)))?;
/// assert_eq!(queue.read(&x).await?, [2.0; 64]);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Simulator {
    shared: Arc<Shared>,
    name: Arc<str>,
    memory: u64,
    fuses: bool,
    omits_events: bool,
}

impl Simulator {
    /// Creates a device that runs its commands as real ones do, asynchronously to the threads that submit them.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Runtime;
    /// use kiln::simulated::Simulator;
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// let simulator = Simulator::new();
    /// let rt = Runtime::builder().simulator(&simulator).build().await?;
    /// assert_eq!(rt.devices().len(), 1); // real devices are left out
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self::with_threads(true)
    }

    /// Creates a device that runs every command at once, on the thread that submits it, and has no threads of
    /// its own.
    ///
    /// Commands that a [`Pause`] holds back run, in order, on the thread that drops it.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Runtime;
    /// use kiln::simulated::Simulator;
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// let simulator = Simulator::immediate();
    /// let rt = Runtime::builder().simulator(&simulator).build().await?;
    /// let x = rt.buffer::<u32>(64)?;
    /// rt.queue().fill(&x, 7)?.await?;
    /// assert_eq!(rt.queue().read(&x).await?, [7; 64]);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn immediate() -> Self {
        Self::with_threads(false)
    }

    fn with_threads(threads: bool) -> Self {
        Self {
            shared: Arc::new(Shared::new(threads)),
            name: "Simulated device".into(),
            memory: 1 << 30,
            fuses: false,
            omits_events: false,
        }
    }

    /// Names the device, for runtimes that are given this handle or a clone of it. Devices with different names
    /// do not share cached programs.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Runtime;
    /// use kiln::simulated::Simulator;
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// let (near, far) = (Simulator::new().named("near"), Simulator::new().named("far"));
    /// let rt = Runtime::builder().simulator(&near).simulator(&far).build().await?;
    /// assert_eq!(rt.devices()[1].name, "far");
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into().into();
        self
    }

    /// Sets the size of the device's memory in bytes (default: 1 GiB), for runtimes that are given this handle
    /// or a clone of it. An allocation beyond the remaining memory fails with
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources).
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::simulated::Simulator;
    /// use kiln::{ErrorKind, Runtime};
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// let simulator = Simulator::new().memory(1 << 20);
    /// let rt = Runtime::builder().simulator(&simulator).build().await?;
    /// let error = rt.buffer::<u8>(2 << 20).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::OutOfResources);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Makes runtimes that are given this handle or a clone of it fuse launches, as on a device that runs code.
    /// By default they run the launches of a scope one by one, because kernels are closures.
    ///
    /// The kernels must come from SPIR-V, whose code decides what is fused. The closure of a fused kernel is
    /// the one that is registered for its name, `fused_` and the names of its launches' kernels.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::simulated::Simulator;
    ///
    /// let simulator = Simulator::new().fusing();
    /// simulator.kernel("fused_scale_offset", |call| {
    ///     // does the work of a launch of `scale` and one of `offset`
    /// });
    /// ```
    #[must_use]
    pub fn fusing(mut self) -> Self {
        self.fuses = true;
        self
    }

    /// Makes the device give no events to launches whose ends nobody has to learn at once, as on NVIDIA's driver and
    /// Intel's runtime for CPUs, for runtimes that are given this handle or a clone of it. The next event of the same
    /// native queue reports the end of such a launch, and a failure of it: all launches whose ends that event reports
    /// have then failed.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::ErrorKind;
    /// use kiln::simulated::{Fault, Simulator};
    /// # use kiln::{Module, Runtime};
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// let simulator = Simulator::new().omitting_events();
    /// # let rt = Runtime::builder().simulator(&simulator).build().await?;
    /// # let program = rt.build(&Module::opencl_c("kernel void add(global uint *x) {}")).await?;
    /// # // SAFETY: the kernel does nothing.
    /// # let add = unsafe { program.kernel("add")? };
    /// # let (queue, x) = (rt.queue(), rt.buffer::<u32>(64)?);
    /// simulator.fail_launches("add", 1, Fault::OutOfResources);
    /// for _ in 0..100 {
    ///     queue.submit(add.launch(64).args((&x,)))?;
    /// }
    /// let error = queue.read(&x).await.unwrap_err(); // the failure is not lost
    /// assert_eq!(error.kind(), ErrorKind::OutOfResources);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn omitting_events(mut self) -> Self {
        self.omits_events = true;
        self
    }

    /// Sets the behaviour of kernels called `name`, in every program. A launch uses the closure that is set
    /// when it reaches the device, and calls it once for all work-items. Without a closure, a launch has no
    /// effect. If the closure panics, the command fails with [`Panicked`](crate::ErrorKind::Panicked). The
    /// closure must not use the runtime that it runs for.
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
    /// simulator.kernel("scale", |call| {
    ///     let factor: f32 = call.value(0);
    ///     let scaled: Vec<f32> = call.read::<f32>(1).iter().map(|x| factor * x).collect();
    ///     call.write(1, &scaled);
    /// });
    /// queue.submit(scale.launch(64).args((3.0f32, &x)))?;
    /// assert_eq!(queue.read(&x).await?, [3.0; 64]);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn kernel(
        &self,
        name: impl AsRef<str>,
        behaviour: impl Fn(&mut Invocation<'_>) + Send + Sync + 'static,
    ) {
        let slot = self.shared.slot(name.as_ref());
        slot.set_behaviour(Arc::new(behaviour));
    }

    /// Fails the next `n` builds, whether they compile or load a binary.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::ErrorKind;
    /// use kiln::simulated::Fault;
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
    /// simulator.fail_builds(1, Fault::Refused);
    /// let error = rt.build(&module).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::BuildFailed);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn fail_builds(&self, n: usize, fault: Fault) {
        self.shared.build_faults.request(n, fault);
    }

    /// Fails the next `n` launches of kernels called `kernel` when they run: their events fail.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::ErrorKind;
    /// use kiln::simulated::Fault;
    ///
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
    /// simulator.fail_launches("scale", 1, Fault::OutOfResources);
    /// let event = queue.submit(scale.launch(64).args((3.0f32, &x)))?;
    /// assert_eq!(event.await.unwrap_err().kind(), ErrorKind::OutOfResources);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn fail_launches(&self, kernel: &str, n: usize, fault: Fault) {
        self.shared.slot(kernel).faults.request(n, fault);
    }

    /// Fails the next `n` commands when they are handed to the device, before they are queued.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::ErrorKind;
    /// use kiln::simulated::Fault;
    ///
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
    /// simulator.fail_enqueues(1, Fault::DeviceLost);
    /// let event = queue.submit(scale.launch(64).args((3.0f32, &x)))?;
    /// assert_eq!(event.await.unwrap_err().kind(), ErrorKind::DeviceLost);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn fail_enqueues(&self, n: usize, fault: Fault) {
        self.shared.enqueue_faults.request(n, fault);
    }

    /// Fails commands like [`fail_enqueues`](Self::fail_enqueues), but not the next `after` commands.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::simulated::Fault;
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// let (queue, x) = (rt.queue(), rt.buffer_from(vec![1u32; 64]).await?);
    /// simulator.fail_enqueues_after(1, 1, Fault::OutOfResources);
    /// queue.fill(&x, 2)?.await?;
    /// assert!(queue.fill(&x, 3)?.await.is_err());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn fail_enqueues_after(&self, after: usize, n: usize, fault: Fault) {
        self.shared.enqueue_faults.request_after(after, n, fault);
    }

    /// Makes every build from now on take at least `delay`. Zero removes the delay.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
    /// let (delay, started) = (Duration::from_millis(50), Instant::now());
    /// simulator.delay_builds(delay);
    /// rt.build(&module).await?;
    /// assert!(started.elapsed() >= delay);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn delay_builds(&self, delay: Duration) {
        self.shared.build_delay.set(delay);
    }

    /// Makes every compile from now on take at least `delay`, but no load of a binary. Zero removes the delay.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
    /// let (delay, started) = (Duration::from_millis(50), Instant::now());
    /// simulator.delay_compiles(delay);
    /// rt.build(&module).await?;
    /// assert!(started.elapsed() >= delay);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn delay_compiles(&self, delay: Duration) {
        self.shared.compile_delay.set(delay);
    }

    /// Makes every command from now on take at least `delay`. Zero removes the delay.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
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
    /// let (delay, started) = (Duration::from_millis(50), Instant::now());
    /// simulator.delay_commands(delay);
    /// queue.submit(scale.launch(64).args((3.0f32, &x)))?.await?;
    /// assert!(started.elapsed() >= delay);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn delay_commands(&self, delay: Duration) {
        self.shared.command_delay.set(delay);
    }

    /// Limits the driver's memory for pending reads and writes to `bytes`. There is no limit by default.
    /// Submitting a transfer for which there is no room blocks until the transfer has ended, as on NVIDIA's
    /// driver. Has no effect on [immediate](Self::immediate) devices.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::simulated::Simulator;
    ///
    /// let simulator = Simulator::new();
    /// simulator.limit_staging(48 << 20); // about as much as NVIDIA's driver has
    /// ```
    pub fn limit_staging(&self, bytes: usize) {
        self.shared.staging.set_limit(bytes);
    }

    /// Limits the work-groups of all kernels with a name to `work_items`, at most the device's own limit of 1,024.
    /// Drivers have such limits for kernels that need many registers or much private memory. Kiln refuses a launch
    /// with a larger work-group.
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
    /// simulator.limit_work_groups("scale", 16);
    /// let launch = || scale.launch(64).args((3.0f32, &x));
    /// assert!(queue.submit(launch().local(32)).is_err());
    /// queue.submit(launch().local(16))?.await?;
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn limit_work_groups(&self, kernel: &str, work_items: usize) {
        self.shared.slot(kernel).limit_work_groups(work_items);
    }

    /// Hangs the device: until the guard is dropped, no command starts. A command that has started ends as
    /// usual. With several guards, the device hangs until the last is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::commands::Status;
    ///
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
    /// let event = queue.submit(scale.launch(64).args((3.0f32, &x)))?;
    /// assert!(!matches!(event.status(), Status::Complete));
    /// drop(pause);
    /// event.await?;
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn pause(&self) -> Pause {
        self.shared.commands.close();
        Pause { shared: self.shared.clone(), paused: Paused::Commands }
    }

    /// Hangs the compiler: until the guard is dropped, no build starts. A build that has started ends as usual.
    /// With several guards, the compiler hangs until the last is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
    /// let pause = simulator.pause_builds();
    /// let builds = [rt.build(&module).start(), rt.build(&module).start()];
    /// drop(pause);
    /// for build in builds {
    ///     build.await?;
    /// }
    /// assert_eq!(simulator.counts().builds, 1); // both requests shared it
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn pause_builds(&self) -> Pause {
        self.shared.builds.close();
        Pause { shared: self.shared.clone(), paused: Paused::Builds }
    }

    /// Hangs the compiler like [`pause_builds`](Self::pause_builds), but lets binaries be loaded.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
    /// let binary = rt.build(&module).await?.binary()?;
    /// let pause = simulator.pause_compiles();
    /// rt.build(&Module::native(binary)?).await?; // loaded, while compiles would wait
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn pause_compiles(&self) -> Pause {
        self.shared.compiles.close();
        Pause { shared: self.shared.clone(), paused: Paused::Compiles }
    }

    /// Loses the next `n` completion callbacks that are requested from the device: the commands end, but the
    /// callbacks are not called.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::simulated::Simulator;
    ///
    /// # async fn example(
    /// #     simulator: Simulator,
    /// #     rt: kiln::Runtime,
    /// #     x: kiln::Buffer<u32>,
    /// # ) -> kiln::Result<()> {
    /// simulator.lose_notifications(1);
    /// rt.queue().fill(&x, 7)?.await?; // Kiln detects the end without the callback
    /// # Ok(())
    /// # }
    /// ```
    pub fn lose_notifications(&self, n: usize) {
        self.shared.lose_notifications(n);
    }

    /// Returns the numbers of requests to the device so far, and of objects that it holds at present.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> kiln::Result<()> {
    /// # smol::block_on(async {
    /// # let simulator = kiln::simulated::Simulator::new();
    /// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
    /// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
    /// rt.build(&module).await?;
    /// rt.build(&module).await?; // found in memory
    /// assert_eq!(simulator.counts().builds, 1);
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.counters.snapshot()
    }

    /// Returns the backend through which a runtime finds the device.
    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        let Self { shared, name, memory, fuses, omits_events } = self;
        Arc::new(device::Simulated::new(shared.clone(), name, *memory, *fuses, *omits_events))
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
