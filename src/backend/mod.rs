//! The only part of the crate that calls drivers.
//!
//! A backend is blocking, plain and small: it builds, allocates, enqueues on in-order native queues and reports
//! when a command has ended. It keeps nothing alive for its callers and orders nothing between native queues.
//! It caches and retries only where its driver requires that. The modules above do all this, once for every
//! backend.

#![cfg_attr(
    not(any(feature = "level-zero", feature = "opencl", feature = "simulated")),
    expect(dead_code, reason = "only backends read these items")
)]

#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod compiler_files;
pub(crate) mod discovery;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod exceptions;
#[cfg(any(feature = "level-zero", feature = "opencl"))]
mod handler_guard;
#[cfg(feature = "level-zero")]
pub(crate) mod level_zero;
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(feature = "level-zero", feature = "opencl")
))]
mod loaded;
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
mod slot;

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

use kiln_compiler::{NdRange, Sampler};
use kiln_spirv::Parameter;

use crate::device::{DeviceInfo, ImageBox, ImageShape, ModuleFormat, Rows};
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "simulated"))]
use crate::error::catch_and_log;
use crate::error::{DriverCode, Error, Result};

pub(crate) use slot::DeviceSlot;

/// Prepares for the end of the process, before drivers are used. Must be called on a thread of the application,
/// because that may be the thread that ends the process.
pub(crate) fn prepare_for_end() {
    #[cfg(any(feature = "level-zero", feature = "opencl"))]
    {
        shutdown::prepare();
        shutdown::prepare_when_thread_ends();
    }
}

/// Returns an error code that a driver of this backend reported in another process, with the code's name.
/// `None` if the backend has no driver or was not compiled in.
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

/// API through which devices are reached, such as OpenCL.
pub(crate) trait Backend: Send + Sync {
    /// Returns the name that selects this backend, such as `opencl`.
    fn name(&self) -> &'static str;

    /// Returns all devices of this backend. Fails with `NoDevice` if its driver is not installed; the message
    /// lists what was tried. Blocks while the driver is loaded.
    fn adapters(&self) -> Result<Vec<Arc<dyn Adapter>>>;
}

/// Device that is present but not opened.
pub(crate) trait Adapter: Send + Sync {
    fn info(&self) -> &Arc<DeviceInfo>;

    /// Opens the device by creating what the API calls a context. Blocks.
    fn open(&self) -> Result<Arc<dyn Device>>;
}

/// Opened device.
pub(crate) trait Device: Send + Sync {
    /// Builds a program with all its kernels. Blocks for as long as the compiler needs.
    ///
    /// The error's kind distinguishes a rejected program (`BuildFailed`, with the log) from a failure that has
    /// other causes (`OutOfResources`, `DeviceLost`).
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>>;

    /// Compiles a module, in a format that [`DeviceInfo::links`] lists, to an object: a program that has no
    /// kernels yet and that [`link`](Self::link) takes. For [`ModuleFormat::Native`], loads the binary of such
    /// an object. Blocks and fails like [`build`](Self::build).
    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>>;

    /// Links one or more objects of this device to a program with all their kernels. `options` are those of the
    /// linker, without a NUL; empty for a linker that takes none. Blocks and fails like [`build`](Self::build).
    fn link(&self, objects: &[&dyn Program], options: &str) -> Result<Arc<dyn Program>>;

    /// Allocates `bytes` of device memory with unspecified contents. `bytes` is not zero.
    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Allocates `bytes` of memory that host and device share, with unspecified contents. `bytes` is not zero.
    fn allocate_on_host(&self, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Creates an image with unspecified contents, whose sizes the device supports.
    ///
    /// Fails with `Unsupported` if the device has no images, or none of this format; the message lists the formats.
    fn create_image(&self, shape: &ImageShape) -> Result<Arc<dyn Memory>>;

    /// Creates an in-order native queue. With `profiling`, its events report their times.
    fn create_native_queue(&self, profiling: bool) -> Result<Box<dyn NativeQueue>>;

    /// Returns the driver's objects of the device.
    fn handles(&self) -> Result<DriverHandles> {
        Err(no_driver_objects_error())
    }

    /// Returns a buffer of the driver of which `bytes` bytes are used, or the buffer that it is a part of. The memory
    /// keeps a reference of its own, if the driver counts references.
    ///
    /// # Safety
    ///
    /// `handle` is an object of this backend's driver that is alive, if it is not null.
    unsafe fn adopt_buffer(&self, handle: *mut c_void, bytes: usize) -> Result<GivenMemory> {
        let _ = (handle, bytes);
        Err(no_driver_objects_error())
    }

    /// Returns an image of the driver, with its shape. The image keeps a reference of its own.
    ///
    /// # Safety
    ///
    /// As for [`adopt_buffer`](Self::adopt_buffer).
    unsafe fn adopt_image(&self, handle: *mut c_void) -> Result<(Arc<dyn Memory>, ImageShape)> {
        let _ = handle;
        Err(no_driver_objects_error())
    }

    /// Returns an image of a driver that does not describe images, as one of this shape.
    ///
    /// # Safety
    ///
    /// As for [`adopt_buffer`](Self::adopt_buffer); the image has this shape, and lives as long as it is used.
    unsafe fn adopt_image_of(
        &self,
        handle: *mut c_void,
        shape: &ImageShape,
    ) -> Result<Arc<dyn Memory>> {
        let _ = (handle, shape);
        Err(no_driver_objects_error())
    }

    /// Returns a program of the driver that was built for this device. It keeps a reference of its own, if the driver
    /// counts references.
    ///
    /// # Safety
    ///
    /// As for [`adopt_buffer`](Self::adopt_buffer).
    unsafe fn adopt_program(&self, handle: *mut c_void) -> Result<Arc<dyn Program>> {
        let _ = handle;
        Err(no_driver_objects_error())
    }
}

/// Memory of other code.
pub(crate) struct GivenMemory {
    /// The whole of the memory that is known.
    pub(crate) memory: Arc<dyn Memory>,
    /// Number of bytes of the whole.
    pub(crate) bytes: usize,
    /// Offset of the given object in the whole, in bytes.
    pub(crate) start: usize,
}

/// Driver's objects of an open device, from [`Runtime::driver_handles`](crate::Runtime::driver_handles), for code
/// that calls the driver itself.
///
/// # Examples
///
/// ```no_run
/// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
/// let handles = rt.driver_handles()?;
/// let context = handles.context; // a `cl_context`, for a library that builds its own programs
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverHandles {
    /// `cl_context`, or `ze_context_handle_t` with Level Zero. Alive as long as the runtime, or memory or a program
    /// of its device.
    pub context: *mut c_void,
    /// `cl_device_id` or `ze_device_handle_t`.
    pub device: *mut c_void,
}

/// Returns the error for an object of a driver that a backend cannot give or take.
fn no_driver_objects_error() -> Error {
    Error::unsupported("the device has no such object of a driver that other code could use")
}

/// Module to build, in a format that the device is known to accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) format: ModuleFormat,
    pub(crate) code: &'a [u8],
    /// Build options, without a NUL.
    pub(crate) options: &'a str,
    /// Specialization constants as `SpecId` and value bytes, sorted by id. Only for SPIR-V.
    pub(crate) constants: &'a [(u32, Vec<u8>)],
}

/// Program built for one device, or an object to link into one. Passed only to the device that created it.
pub(crate) trait Program: Any + Send + Sync {
    /// Returns the kernels, which are created with the program. An object has none.
    fn kernels(&self) -> &[Arc<dyn Kernel>];

    /// Returns the compiler's messages; empty if there are none.
    fn build_log(&self) -> &str;

    /// Returns the size of [`binary`](Self::binary) in bytes. `None` if the driver does not report it, or could
    /// only do so after another compile.
    fn binary_size(&self) -> Option<usize>;

    /// Returns the program in the device's own format, which is loaded as [`ModuleFormat::Native`].
    fn binary(&self) -> Result<Vec<u8>>;
}

/// Entry point of a program. Passed only to native queues of the device that built it.
pub(crate) trait Kernel: Any + Send + Sync {
    fn name(&self) -> &str;

    /// Returns the name that users know the kernel by, for messages.
    #[cfg(any(feature = "level-zero", feature = "opencl"))]
    fn user_name(&self) -> &str {
        kiln_spirv::user_name(self.name())
    }

    fn parameters(&self) -> &[Parameter];

    /// Returns the maximum number of work-items in a work-group of this kernel, if the driver reports it.
    fn max_work_group_size(&self) -> Option<usize>;

    /// Returns the work-group size that the kernel's own code requires, in three dimensions.
    fn required_work_group(&self) -> Option<[usize; 3]> {
        None
    }

    /// Returns the size of the local memory that the kernel's own code declares, in bytes.
    fn local_memory(&self) -> u64;

    /// Returns the number of which the size of a work-group should be a multiple, if the driver reports it. May
    /// call the driver.
    fn preferred_multiple(&self) -> Option<usize> {
        None
    }

    /// Returns the size of the private memory of a work-item in bytes, if the driver reports it. May call the
    /// driver.
    fn private_memory(&self) -> Option<u64> {
        None
    }

    /// Returns another object of the driver for the same kernel, if there can be one. It keeps arguments of its own, so
    /// that those of a repeated launch need not be set again.
    fn duplicate(&self) -> Option<Arc<dyn Kernel>> {
        None
    }

    /// Fails if the driver rejects the argument. Called where the signature alone does not decide that.
    fn accepts(&self, _index: u32, _argument: &Argument<'_>) -> Result<()> {
        Ok(())
    }
}

/// Range of a device's memory.
pub(crate) trait Memory: Any + Send + Sync {
    /// Returns a kernel argument that covers `bytes` from `offset` on. `offset` is a multiple of the device's
    /// `slice_alignment`. The view keeps the whole memory alive.
    fn view(&self, offset: usize, bytes: usize) -> Result<Arc<dyn Memory>>;

    /// Returns whether this is an image.
    fn is_image(&self) -> bool {
        false
    }

    /// Returns the driver's object. Offsets of commands count from its start.
    fn handle(&self) -> Result<*mut c_void> {
        Err(no_driver_objects_error())
    }

    /// Returns the part of the driver's objects that the memory is, as a whole of `bytes` bytes. Two parts with bytes in
    /// common share these bytes.
    fn place(&self, bytes: usize) -> Result<Place> {
        Ok(Place { object: self.handle()?.addr(), bytes: 0..bytes })
    }

    /// Returns a kernel argument that is an image of one dimension over the memory from `offset` on. `offset` is as
    /// for [`view`](Self::view). Fails like [`Device::create_image`].
    fn image(&self, offset: usize, shape: &ImageShape) -> Result<Arc<dyn Memory>> {
        let _ = (offset, shape);
        Err(image_over_buffer_error())
    }
}

/// Part of the driver's objects that memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Address of the object; 0 for memory that has an address on the device.
    pub(crate) object: usize,
    /// Range of bytes in the object, or of addresses.
    pub(crate) bytes: Range<usize>,
}

/// Returns a backend's own object behind a trait object. `what` names it for the message.
///
/// # Errors
///
/// [`InvalidArgument`](ErrorKind::InvalidArgument) if it belongs to another backend.
#[cfg(any(feature = "level-zero", feature = "opencl"))]
pub(crate) fn own_object<'o, T: Any>(object: &'o dyn Any, what: &str) -> Result<&'o T> {
    object
        .downcast_ref()
        .ok_or_else(|| Error::invalid(format!("{what} belongs to a device of another backend")))
}

/// Returns the error for a part of an image as a kernel's argument.
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "simulated"))]
fn image_part_error() -> Error {
    Error::invalid("a part of an image cannot be a kernel's argument; give the whole image")
}

/// Returns the error for an image over a buffer on a device of a backend that has none.
fn image_over_buffer_error() -> Error {
    Error::unsupported("the device has no images over buffers; copy the elements to an image")
}

/// Checks the arguments of [`Memory::view`] for a memory of `whole` bytes, because some drivers accept any
/// region.
#[cfg(any(feature = "level-zero", feature = "opencl"))]
fn check_view(info: &DeviceInfo, whole: usize, offset: usize, bytes: usize) -> Result<()> {
    let align = info.limits.slice_alignment;
    let end = offset.checked_add(bytes);
    if end.is_none_or(|end| end > whole) || !offset.is_multiple_of(align) {
        return Err(Error::invalid(format!(
            "{bytes} bytes at offset {offset} of a buffer of {whole} bytes are not a valid kernel \
             argument: the slice must be within the buffer, and its offset a multiple of {align}"
        )));
    }
    Ok(())
}

/// Kernel argument in the form that the driver takes.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    Memory(&'a dyn Memory),
    Value(&'a [u8]),
    /// Size of the local memory in bytes.
    Local(usize),
    Sampler(
        #[cfg_attr(
            not(any(feature = "level-zero", feature = "opencl")),
            expect(dead_code, reason = "other backends take no samplers")
        )]
        Sampler,
    ),
}

impl fmt::Display for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(memory) if memory.is_image() => write!(f, "an image"),
            Self::Memory(_) => write!(f, "a buffer"),
            Self::Sampler(_) => write!(f, "a sampler"),
            Self::Value(bytes) => write!(f, "a value of {} bytes", bytes.len()),
            Self::Local(bytes) => write!(f, "{bytes} bytes of local memory"),
        }
    }
}

/// Access of the host to mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostAccess {
    Read,
    ReadWrite,
    /// The host needs none of the bytes that the memory had before. They are unspecified when it is mapped.
    Overwrite,
}

/// Operation of a native queue. Ranges are in bytes and lie inside their memory.
#[derive(Clone, Copy)]
pub(crate) enum Operation<'a> {
    Launch {
        kernel: &'a dyn Kernel,
        arguments: &'a [Argument<'a>],
        range: &'a NdRange,
    },
    /// Copies host memory to device memory.
    Write {
        to: &'a dyn Memory,
        offset: usize,
        from: *const u8,
        bytes: usize,
    },
    /// Copies device memory to host memory.
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
    /// Copies device memory. The two ranges do not overlap.
    Copy {
        from: &'a dyn Memory,
        from_offset: usize,
        to: &'a dyn Memory,
        to_offset: usize,
        bytes: usize,
    },
    /// Copies rows of bytes.
    Rows(RowsOperation<'a>),
    /// Makes memory of [`Device::allocate_on_host`] accessible to the host. The address is stored in `start`
    /// before the call returns, and is valid from the end of the operation on.
    #[cfg_attr(
        not(feature = "opencl"),
        allow(dead_code, reason = "other backends map for reading and writing")
    )]
    Map {
        memory: &'a dyn Memory,
        offset: usize,
        bytes: usize,
        access: HostAccess,
        start: &'a AtomicPtr<u8>,
    },
    /// Ends the access through the address `start` of a map of the same range with the same `access`.
    #[cfg_attr(
        not(feature = "simulated"),
        allow(dead_code, reason = "other backends need only the address")
    )]
    Unmap {
        memory: &'a dyn Memory,
        offset: usize,
        bytes: usize,
        access: HostAccess,
        start: *mut u8,
    },
    /// Works on pixels of images.
    Image(ImageOperation<'a>),
    /// Has no effect. Ends after all earlier operations of its native queue and all events in its wait list.
    Marker,
}

/// Copy of rows of bytes, which lie inside their memory. In host memory, they follow each other without
/// padding.
#[derive(Clone, Copy)]
pub(crate) enum RowsOperation<'a> {
    Write {
        to: &'a dyn Memory,
        rows: Rows,
        from: *const u8,
    },
    Read {
        from: &'a dyn Memory,
        rows: Rows,
        to: *mut u8,
    },
    /// Both have the same number of bytes, rows and slices, and no bytes in common. Within one memory, they
    /// have the same distances.
    Copy {
        from: &'a dyn Memory,
        source: Rows,
        to: &'a dyn Memory,
        target: Rows,
    },
}

/// Operation on pixels of images. Boxes lie inside their images, and host memory and buffers hold as many pixels.
#[derive(Clone, Copy)]
pub(crate) enum ImageOperation<'a> {
    /// Copies pixels from host memory, where the rows of the box follow each other without padding.
    Write { to: &'a dyn Memory, pixels: &'a ImageBox, from: *const u8 },
    /// Copies pixels to host memory, where the rows of the box follow each other without padding.
    Read { from: &'a dyn Memory, pixels: &'a ImageBox, to: *mut u8 },
    /// Sets pixels to a color: the bits of red, green, blue and alpha as `f32`, `i32` or `u32`, by the format.
    Fill { image: &'a dyn Memory, pixels: &'a ImageBox, color: [u32; 4] },
    /// Copies pixels between images of one format. The boxes have the same size, and do not overlap.
    Copy { from: &'a dyn Memory, source: &'a ImageBox, to: &'a dyn Memory, target: &'a ImageBox },
    /// Copies pixels from a buffer, where the rows of the box follow each other without padding.
    CopyFromBuffer { from: &'a dyn Memory, offset: usize, to: &'a dyn Memory, pixels: &'a ImageBox },
    /// Copies pixels to a buffer, where the rows of the box follow each other without padding.
    CopyToBuffer { from: &'a dyn Memory, pixels: &'a ImageBox, to: &'a dyn Memory, offset: usize },
}

/// Operations that were recorded to be executed many times, one after another. Holds the arguments that its launches
/// had when they were recorded. Passed only to native queues of the device that recorded it.
pub(crate) trait CommandList: Any + Send + Sync {}

/// Function that calls its argument with each of several operations, in order, and stops at the first error.
pub(crate) type OperationSource<'a> =
    &'a mut dyn FnMut(&mut dyn FnMut(&Operation<'_>) -> Result<()>) -> Result<()>;

/// Returns the error for a command list of a backend that has none.
fn no_command_lists_error() -> Error {
    Error::unsupported("the device has no command lists that are executed many times")
}

/// In-order native queue: an operation starts after all operations enqueued before it have ended.
pub(crate) trait NativeQueue: Send {
    /// Enqueues an operation behind all earlier ones and behind the events in `wait`, which belong to other
    /// native queues of the same device. Does not block until they end. An error means that nothing was
    /// enqueued.
    ///
    /// # Safety
    ///
    /// Until the returned event has ended, the caller keeps everything that the operation names alive and
    /// unmoved, host memory included, and no other code accesses host memory that the operation writes. The
    /// kernel stays inside the memory that it is given.
    unsafe fn enqueue(
        &mut self,
        operation: &Operation<'_>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>>;

    /// Like [`enqueue`](Self::enqueue) behind no events, for an operation whose end nobody has to learn at once: the
    /// event of a later operation of the native queue reports its end, and a failure of it too. Returns an event
    /// where the backend could lose a failure otherwise, or saves nothing by leaving the event out.
    ///
    /// # Safety
    ///
    /// As for [`enqueue`](Self::enqueue). Without an event, the operation has ended once a later operation of the
    /// native queue has.
    unsafe fn enqueue_without_event(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Option<Arc<dyn NativeEvent>>> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.enqueue(operation, &[]) }.map(Some)
    }

    /// Returns whether the native queue [executes](Self::execute) command lists.
    fn has_command_lists(&self) -> bool {
        false
    }

    /// Records operations to a command list. Nothing runs.
    ///
    /// Fails with `Unsupported` for operations that a list cannot hold.
    ///
    /// # Safety
    ///
    /// The safety of [`enqueue`](Self::enqueue) applies to each execution of the list. The kernels of its launches
    /// live longer than the list.
    unsafe fn record(&mut self, operations: OperationSource<'_>) -> Result<Arc<dyn CommandList>> {
        let _ = operations;
        Err(no_command_lists_error())
    }

    /// Enqueues a command list as one operation, like [`enqueue`](Self::enqueue).
    ///
    /// # Safety
    ///
    /// As for [`enqueue`](Self::enqueue), for each recorded operation. The event of the last execution of the list, on
    /// any native queue, has ended.
    unsafe fn execute(
        &mut self,
        list: &Arc<dyn CommandList>,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<Arc<dyn NativeEvent>> {
        let _ = (list, wait);
        Err(no_command_lists_error())
    }

    /// Ensures that everything enqueued so far starts without another call.
    fn flush(&mut self) -> Result<()>;

    /// Calls `run` with the driver's queue. What `run` enqueues there comes behind everything enqueued so far, and
    /// before everything enqueued later. Fails without calling `run` if the driver cannot be called.
    fn call(&mut self, run: &mut dyn FnMut(*mut c_void)) -> Result<()> {
        let _ = run;
        Err(no_driver_objects_error())
    }
}

/// Progress of a native command.
#[derive(Clone, Debug)]
pub(crate) enum Progress {
    Pending,
    Complete,
    Failed(Error),
    /// The driver does not report the status, and may never do so. The command may still run. Counts as failed.
    Unknown(Error),
}

/// Returns whether a driver failed a command only because a command that it waited for had failed.
pub(crate) fn is_consequence(error: &Error) -> bool {
    error.driver_code().is_some_and(|code| code.name == FAILED_DEPENDENCY)
}

/// Code with which OpenCL's drivers fail a command that waited for a failed one. Level Zero has none.
const FAILED_DEPENDENCY: &str = "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST";

/// Callback that is called once when a native command has ended, on any thread, perhaps before
/// [`NativeEvent::notify`] returns.
pub(crate) type Notify = Box<dyn FnOnce() + Send>;

/// Calls `notify` and catches a panic. The callback may run the application's wakers; if one panics, neither a
/// driver's thread nor the thread that found the end is affected.
#[cfg(any(feature = "level-zero", feature = "opencl", feature = "simulated"))]
fn run_notify(notify: Notify) {
    catch_and_log("a waker", notify);
}

/// Event of an enqueued operation.
pub(crate) trait NativeEvent: Any + Send + Sync {
    /// Queries the driver for the operation's progress. Does not block.
    fn progress(&self) -> Progress;

    /// Returns whether the operation has ended, if that check costs little more than reading memory. `None` if
    /// it would take a driver's locks.
    fn poll_ended(&self) -> Option<bool> {
        None
    }

    /// Returns when the operation was queued, submitted, started and ended. `None` before its end and without
    /// profiling.
    fn profile(&self) -> Option<Profile>;

    /// Registers `notify` to be called when the operation has ended, successfully or not. `notify` calls no
    /// driver function and takes no lock. An error means that it will not be called.
    fn notify(&self, notify: Notify) -> Result<()>;
}

/// Timestamps of a command, in nanoseconds of the device's own clock.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     rt: kiln::Runtime,
/// #     blur: kiln::Kernel,
/// #     src: kiln::Buffer<f32>,
/// #     dst: kiln::Buffer<f32>,
/// # ) -> kiln::Result<()> {
/// // The runtime was built with `profiling(true)`.
/// let blurred = rt.queue().submit(blur.launch(src.len()).args((&src, &dst)))?;
/// blurred.clone().await?;
/// if let Some(profile) = blurred.profile() {
///     println!("the launch took {} ns", profile.ended - profile.started);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Profile {
    /// Time at which the host handed the command to the driver.
    pub queued: u64,
    /// Time at which the driver handed the command to the device.
    pub submitted: u64,
    /// Time at which the command began to run.
    pub started: u64,
    /// Time at which the command ended.
    pub ended: u64,
}
