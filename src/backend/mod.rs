//! The only room that speaks to drivers.
//!
//! A backend is blocking, plain and small: it builds, allocates, enqueues on in-order lanes and
//! tells when a command ended. It keeps nothing alive for its callers, orders nothing between
//! lanes, and caches and retries nothing but what its driver demands; the rooms above do all that, for
//! every backend alike.

#![cfg_attr(
    not(any(feature = "level-zero", feature = "opencl", feature = "simulated")),
    expect(dead_code, reason = "only a backend reads what it is handed")
)]

#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod arranging;
#[cfg(feature = "level-zero")]
pub(crate) mod level_zero;
#[cfg(feature = "opencl")]
pub(crate) mod opencl;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod poller;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod set_argument;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod shutdown;
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(feature = "level-zero", feature = "opencl")
))]
mod signals;
#[cfg(feature = "simulated")]
pub mod simulated;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use crate::compiler::nd_range::NdRange;
use crate::compiler::signature::Parameter;
use crate::device::{DeviceInfo, ImageFormat};
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "simulated"))]
use crate::error::outlast;
use crate::error::{DriverCode, Error, ErrorKind, Result};
use crate::process::resources;
use crate::sync::lock;

/// The backends that speak to drivers, with one that has no device for each that is left out.
pub(crate) fn drivers() -> Vec<Arc<dyn Backend>> {
    vec![
        #[cfg(feature = "opencl")]
        Arc::new(opencl::OpenCl),
        #[cfg(not(feature = "opencl"))]
        Arc::new(LeftOut("opencl")),
        #[cfg(feature = "level-zero")]
        Arc::new(level_zero::LevelZero),
        #[cfg(not(feature = "level-zero"))]
        Arc::new(LeftOut("level-zero")),
    ]
}

/// A backend that was not compiled in, by its feature's name, which is also the backend's.
#[cfg(not(all(feature = "opencl", feature = "level-zero")))]
struct LeftOut(&'static str);

#[cfg(not(all(feature = "opencl", feature = "level-zero")))]
impl Backend for LeftOut {
    fn name(&self) -> &'static str {
        self.0
    }

    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>> {
        let Self(feature) = self;
        let problem = format!("this build of Kiln leaves it out; enable the feature `{feature}`");
        Err(Error::new(ErrorKind::NoDevice, problem))
    }
}

/// The devices that were found, and for each backend without a device the reason.
pub(crate) struct Discovered {
    pub(crate) adapters: Vec<Arc<dyn Adapter>>,
    pub(crate) unavailable: Vec<(&'static str, Error)>,
}

/// Finds the devices of all backends.
///
/// # Errors
///
/// [`NoDevice`](ErrorKind::NoDevice) with the reason of each backend if there is no device at all. A setting
/// that cannot be used, or a process in which drivers take no calls any more, is an error in any case.
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
                    ErrorKind::Configuration | ErrorKind::ProcessEnding | ErrorKind::Forked
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

/// Prepares the end of the process, before drivers are used. To be called on a thread of the
/// application's, which may be the one that ends the process.
pub(crate) fn prepare_for_end() {
    #[cfg(any(feature = "level-zero", feature = "opencl"))]
    {
        shutdown::prepare();
        shutdown::prepare_when_thread_ends();
    }
}

/// A code that a driver of this backend gave in another process, with its name.
pub(crate) fn driver_code(backend: &str, code: i32) -> Option<DriverCode> {
    match backend {
        #[cfg(feature = "opencl")]
        opencl::NAME => Some(opencl::driver_code(code)),
        #[cfg(feature = "level-zero")]
        level_zero::NAME => Some(level_zero::driver_code(code)),
        _ => {
            let _ = code;
            None
        }
    }
}

/// One API through which devices are reached.
pub(crate) trait Backend: Send + Sync {
    /// The word that selects it, such as `opencl`.
    fn name(&self) -> &'static str;

    /// All its devices. `NoDevice` if its driver is not installed, with a message that says what
    /// was tried. Blocks: loads the driver.
    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>>;
}

/// A device that is there but not opened.
pub(crate) trait Adapter: Send + Sync {
    fn info(&self) -> &Arc<DeviceInfo>;

    /// Blocks: creates what the API calls a context.
    fn open(&self) -> Result<Arc<dyn Device>>;
}

/// An opened device.
pub(crate) trait Device: Send + Sync {
    /// Builds a program with all its kernels. Blocks for as long as the compiler needs.
    ///
    /// The error's kind tells a refusal (`BuildFailed`, with the log) from circumstance
    /// (`OutOfResources`, `DeviceLost`).
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>>;

    /// Compiles an image, in a format that [`DeviceInfo::links`] lists, to an object: a program that
    /// has no kernels yet and that [`link`](Self::link) takes. Of [`ImageFormat::Native`], takes the
    /// binary of such an object. Blocks and fails as [`build`](Self::build).
    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>>;

    /// Links objects of this device, at least one, to a program with all their kernels. Blocks and
    /// fails as [`build`](Self::build).
    fn link(&self, objects: &[&dyn Program]) -> Result<Arc<dyn Program>>;

    /// Allocates `bytes`, more than zero, of device memory with unspecified contents.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// A new in-order native queue. With `profiling`, its events tell their times.
    fn create_lane(&self, profiling: bool) -> Result<Box<dyn Lane>>;
}

/// What to build: the image, already known to be in a format that the device takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) format: ImageFormat,
    pub(crate) code: &'a [u8],
    /// Holds no NUL.
    pub(crate) options: &'a str,
    /// `SpecId` and value bytes, sorted by id; only for SPIR-V.
    pub(crate) constants: &'a [(u32, Vec<u8>)],
}

/// A program built for one device, or an object to link into one. Passed back to the device that
/// made it, only.
pub(crate) trait Program: Any + Send + Sync {
    /// Its kernels, created with it; an object has none.
    fn kernels(&self) -> &[Arc<dyn Kernel>];

    /// The compiler's messages; empty if none.
    fn build_log(&self) -> &str;

    /// The size of [`binary`](Self::binary) in bytes; `None` if the driver does not tell, or could
    /// only tell after a further compile.
    fn binary_size(&self) -> Option<usize>;

    /// The device's own form of the program, which it takes as [`ImageFormat::Native`].
    fn binary(&self) -> Result<Vec<u8>>;
}

/// An entry point of a program. Passed back to the lanes of the device that built it, only.
pub(crate) trait Kernel: Any + Send + Sync {
    fn name(&self) -> &str;

    fn parameters(&self) -> &[Parameter];

    /// The most work-items that a work-group of this kernel can have, where the driver tells.
    fn max_work_group_size(&self) -> Option<usize>;

    /// The work-group that the kernel's own code asks for, in three dimensions.
    fn required_work_group(&self) -> Option<[usize; 3]> {
        None
    }

    /// Local memory in bytes that the kernel's own code declares.
    fn local_memory(&self) -> u64;

    /// Whether the driver takes the argument. Asked where the signature does not say enough to know.
    fn accepts(&self, _index: u32, _argument: &Argument<'_>) -> Result<()> {
        Ok(())
    }
}

/// A part of a device's memory.
pub(crate) trait Memory: Any + Send + Sync {
    /// A kernel argument that covers `bytes` from `offset` on, a multiple of the device's
    /// `slice_alignment`. Keeps the whole alive.
    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>>;
}

/// Checks what is asked of [`Memory::view`], of a memory of so many bytes: some drivers take any region.
#[cfg(any(feature = "level-zero", feature = "opencl"))]
fn check_view(info: &DeviceInfo, whole: usize, offset: usize, bytes: usize) -> Result<()> {
    let align = info.limits.slice_alignment;
    let end = offset.checked_add(bytes);
    if end.is_none_or(|end| end > whole) || !offset.is_multiple_of(align) {
        return Err(Error::invalid(format!(
            "a kernel cannot be given {bytes} bytes at {offset} of a buffer of {whole} bytes: they \
             must lie inside it and start at a multiple of {align}"
        )));
    }
    Ok(())
}

/// A kernel argument in the form that the driver gets.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    Memory(&'a dyn Memory),
    Value(&'a [u8]),
    /// Bytes of local memory.
    Local(usize),
}

impl fmt::Display for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(_) => write!(f, "a buffer"),
            Self::Value(bytes) => write!(f, "a value of {} bytes", bytes.len()),
            Self::Local(bytes) => write!(f, "{bytes} bytes of local memory"),
        }
    }
}

/// What a lane can run. Ranges are in bytes and lie inside their memory.
#[derive(Clone, Copy)]
pub(crate) enum Operation<'a> {
    Launch {
        kernel: &'a dyn Kernel,
        arguments: &'a [Argument<'a>],
        range: &'a NdRange,
    },
    /// Device memory from host memory.
    Write {
        to: &'a dyn Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    },
    /// Host memory from device memory.
    Read {
        from: &'a dyn Memory,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    },
    /// Repeats `pattern`, whose length is a power of two up to 128 and divides `offset` and `bytes`.
    Fill {
        memory: &'a dyn Memory,
        offset: usize,
        bytes: usize,
        pattern: &'a [u8],
    },
    /// The two ranges do not overlap.
    Copy {
        from: &'a dyn Memory,
        from_offset: usize,
        to: &'a dyn Memory,
        to_offset: usize,
        bytes: usize,
    },
    /// Does nothing, after all that came before on its lane and all that it waits for.
    Marker,
}

/// An in-order native queue: what is enqueued later starts after what was enqueued before ended.
pub(crate) trait Lane: Send {
    /// Enqueues an operation behind all earlier ones and behind `wait`, events of other lanes of
    /// the same device. Does not wait for any of them. An error means that nothing was enqueued.
    ///
    /// # Safety
    ///
    /// Until the returned event has ended, the caller keeps alive and unmoved everything that the
    /// operation names, host memory included, and nobody else touches host memory that it writes.
    /// The kernel stays inside the memory that it is given.
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>>;

    /// Sees to it that everything enqueued so far starts without another call.
    fn flush(&mut self) -> Result<()>;
}

/// How far a native command has come.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    Pending,
    Complete,
    Failed(Error),
    /// The driver does not tell, and never may: perhaps it still runs. It counts as failed.
    #[cfg_attr(not(feature = "opencl"), expect(dead_code, reason = "others tell, or are lost"))]
    Unknown(Error),
}

/// Called once when a native command has ended, on any thread, perhaps before
/// [`NativeEvent::notify`] returns.
pub(crate) type Notify = Box<dyn FnOnce() + Send>;

/// Tells of an end. What wakes a task is the application's: should it panic, neither a driver's thread
/// nor whoever found the end goes with it.
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "simulated"))]
fn tell(notify: Notify) {
    outlast("a waker", notify);
}

/// The end of an enqueued operation.
pub(crate) trait NativeEvent: Any + Send + Sync {
    /// Asks the driver; does not block.
    fn progress(&self) -> Progress;

    /// Whether it has ended, where looking costs little more than reading memory; `None` where a
    /// driver's locks are in the way.
    fn is_seen_ended(&self) -> Option<bool> {
        None
    }

    /// When it was queued, submitted, started and ended; `None` before its end and without profiling.
    fn profile(&self) -> Option<Profile>;

    /// Has `notify` called when the operation has ended, well or not. `notify` calls no driver
    /// function and takes no lock. An error means that it will not be called.
    fn notify(&self, notify: Notify) -> Result<()>;
}

/// The stations of a command, in nanoseconds of the device's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Profile {
    /// When the host handed it to the driver.
    pub queued: u64,
    /// When the driver handed it to the device.
    pub submitted: u64,
    /// When it began to run.
    pub started: u64,
    /// When it ended.
    pub ended: u64,
}

/// A device of a runtime, opened when it is first needed.
pub(crate) struct DeviceSlot {
    handle: crate::device::Device,
    adapter: Arc<dyn Adapter>,
    opened: OnceLock<Arc<dyn Device>>,
    opening: Mutex<()>,
}

impl DeviceSlot {
    pub(crate) fn new(handle: crate::device::Device, adapter: Arc<dyn Adapter>) -> Self {
        Self { handle, adapter, opened: OnceLock::new(), opening: Mutex::default() }
    }

    pub(crate) fn handle(&self) -> &crate::device::Device {
        &self.handle
    }

    /// The opened device. Blocks the first time, and again after a failure, which is not kept: it
    /// may be one of circumstance.
    pub(crate) fn open(&self) -> Result<&Arc<dyn Device>> {
        if let Some(device) = self.opened.get() {
            return Ok(device);
        }
        let _one_at_a_time = lock(&self.opening);
        if let Some(device) = self.opened.get() {
            return Ok(device);
        }
        if self.handle.runs_code {
            resources::check_for_driver()?;
        }
        let device = self.adapter.open()?;
        Ok(self.opened.get_or_init(|| device))
    }
}
