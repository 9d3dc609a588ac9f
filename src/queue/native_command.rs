//! Commands that call the driver themselves: closures of the application that enqueue on a queue of the driver.
//!
//! A closure may block, as when a library compiles its kernels at their first use, and it may call Kiln. It
//! therefore runs on a thread for such commands, without a lock, once the commands before it have ended. The
//! native queue that it gets is used by nothing else meanwhile.

use std::error::Error as StdError;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use kiln_spirv::Access;
use smallvec::SmallVec;

use super::hazard::{Use, Uses};
use super::host_task::task_error;
use crate::args::region::{MemoryHandle, Region};
use crate::args::{ArgumentKind, ArgumentList};
use crate::backend::{DriverHandles, NativeQueue};
use crate::error::{Error, Result, catch_panic};
use crate::sync::{ignore_poison, lock};

/// Closure of a native command.
pub(crate) type Call = Box<dyn FnOnce(&DriverQueue<'_>) -> Result<()> + Send>;

/// Queue of the driver, for the closure of a [native command](crate::Queue::native), and the objects that belong to
/// it.
///
/// # Examples
///
/// ```no_run
/// # fn example(queue: kiln::Queue, x: kiln::Buffer<f32>) -> kiln::Result<()> {
/// // SAFETY: nothing is enqueued.
/// unsafe {
///     queue.native("look", (x.read_only(),), |driver| -> kiln::Result<()> {
///         println!("`cl_command_queue` {:?}, `cl_mem` {:?}", driver.queue(), driver.memory()[0].object);
///         Ok(())
///     })?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DriverQueue<'a> {
    handles: DriverHandles,
    queue: *mut c_void,
    memory: &'a [MemoryHandle],
}

impl DriverQueue<'_> {
    /// Returns the `cl_command_queue`, or the `ze_command_list_handle_t` of an immediate list with Level Zero. It is
    /// in order, unless the driver of Level Zero is older than such lists. Only this closure uses it until the
    /// command has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn finish(_: *mut std::ffi::c_void) {}
    /// # fn example(driver: &kiln::interop::DriverQueue<'_>) {
    /// finish(driver.queue()); // a closure may block
    /// # }
    /// ```
    #[must_use]
    pub fn queue(&self) -> *mut c_void {
        self.queue
    }

    /// Returns the context and the device of the queue.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn build_kernels(_: *mut std::ffi::c_void, _: *mut std::ffi::c_void) {}
    /// # fn example(driver: &kiln::interop::DriverQueue<'_>) {
    /// let handles = driver.handles();
    /// build_kernels(handles.context, handles.device);
    /// # }
    /// ```
    #[must_use]
    pub fn handles(&self) -> DriverHandles {
        self.handles
    }

    /// Returns the driver's objects of the buffers and images that the command was given, in order.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(driver: &kiln::interop::DriverQueue<'_>) {
    /// let (x, y) = (driver.memory()[0], driver.memory()[1]);
    /// let first_of_x = x.offset / size_of::<f32>(); // where libraries count elements
    /// # }
    /// ```
    #[must_use]
    pub fn memory(&self) -> &[MemoryHandle] {
        self.memory
    }
}

/// Work of a native command.
pub(crate) struct NativeWork {
    label: String,
    memory: SmallVec<[(Arc<Region>, Access); 4]>,
    /// Closure, until it is called.
    call: Mutex<Option<Call>>,
}

impl NativeWork {
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for arguments other than buffers and images.
    pub(super) fn new(label: String, arguments: ArgumentList, call: Call) -> Result<Self> {
        let memory = arguments.into_iter().enumerate().map(|(index, argument)| match argument.kind {
            ArgumentKind::Memory(region, access) => {
                Ok((region, access.unwrap_or(Access::ReadWrite)))
            }
            _ => Err(Error::invalid(format!(
                "`{label}` was given {argument:?} as argument {index}; a native command is given buffers and \
                 images, and its closure owns all other values"
            ))),
        });
        let memory = memory.collect::<Result<_>>()?;
        Ok(Self { label, memory, call: Mutex::new(Some(call)) })
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    pub(crate) fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.memory.iter().map(|(region, _)| region)
    }

    pub(crate) fn uses(&self) -> Uses {
        self.memory.iter().map(|(region, access)| Use::of(region, *access)).collect()
    }

    /// Releases the memory. Returns the closure, if it was not called.
    pub(super) fn release(self) -> Option<Call> {
        self.memory.into_iter().for_each(|(region, _)| region.release());
        ignore_poison(self.call.into_inner())
    }

    /// Calls the closure with the native queue, which nothing else uses.
    pub(super) fn call(
        &self,
        handles: DriverHandles,
        native_queue: &mut dyn NativeQueue,
    ) -> Result<()> {
        let memory: SmallVec<[MemoryHandle; 4]> =
            self.regions().map(|region| region.handle()).collect::<Result<_>>()?;
        let mut call = lock(&self.call).take();
        let mut outcome = Ok(());
        native_queue.call(&mut |queue| {
            let Some(call) = call.take() else { return };
            let driver = DriverQueue { handles, queue, memory: &memory };
            outcome = catch_panic(|| call(&driver));
        })?;
        outcome.map_err(|error| error.within(format!("`{}`", self.label)))
    }
}

/// Returns a closure of the application in the form of a native command.
pub(super) fn call_of<E>(
    call: impl FnOnce(&DriverQueue<'_>) -> Result<(), E> + Send + 'static,
) -> Call
where
    E: Into<Box<dyn StdError + Send + Sync>>,
{
    Box::new(|driver| call(driver).map_err(|error| task_error("the native command", error.into())))
}
