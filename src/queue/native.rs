//! Submission of native commands.

use std::error::Error as StdError;
use std::sync::Arc;

use smallvec::SmallVec;

use super::event::Event;
use super::handle::Queue;
use super::host_future::HostFuture;
use super::native_command::{DriverQueue, NativeWork, call_of};
use super::work::Work;
use crate::args::{ArgumentList, Arguments, Seal};
use crate::error::Result;
use crate::process;

impl Queue {
    /// Submits a command whose closure calls the driver itself: what it enqueues on the given
    /// [queue of the driver](DriverQueue::queue) runs as part of the DAG. So libraries such as CLBlast, and code that
    /// uses OpenCL directly, work beside launches, and nothing on the host waits for either.
    ///
    /// `label` names the command in errors, drawings and traces. `memory` is a tuple of buffers and images, as for a
    /// launch: `x.read_only()` for one that the closure's work only reads, `y.write_only()` for one that it overwrites
    /// completely, `&z` for one that it reads and writes. The closure gets the driver's objects of these.
    ///
    /// The closure is called once the commands before it have ended, on a thread for such commands, so that it may
    /// block. The command ends when everything has ended that the closure enqueued on the queue, also if it returns
    /// an error or panics. The error, or the panic as an error, then fails the command. If the driver fails something
    /// that the closure enqueued, the command fails if the driver reports that for the marker that Kiln enqueues
    /// behind it. Waiting for a command that waits for this one is an error, as in a [host task](Self::host_task).
    ///
    /// # Safety
    ///
    /// The commands that the closure enqueues access only memory that `native` was given, in the stated way, or that
    /// is not Kiln's. They are on the given queue, or have ended when the closure returns. The driver's objects are
    /// not released, and are not used after the command has ended.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for arguments other than buffers and images, and for
    /// memory of another device. [`Unsupported`](crate::ErrorKind::Unsupported) for a simulated device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::ffi::c_void;
    /// # #[allow(non_snake_case)] // a function of CLBlast
    /// # unsafe fn CLBlastSscal(n: usize, alpha: f32, x: *mut c_void, offset: usize, step: usize,
    /// #     queue: *mut *mut c_void, event: *mut *mut c_void) -> i32 { 0 }
    /// # async fn example(queue: &kiln::Queue, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let n = x.len();
    /// // SAFETY: the function multiplies `n` elements of `x`, on the given queue.
    /// let scaled = unsafe {
    ///     queue.native("scal", (x,), move |driver| {
    ///         let (x, mut queue) = (driver.memory()[0], driver.queue());
    ///         let first = x.offset / size_of::<f32>();
    ///         match CLBlastSscal(n, 2.0, x.object, first, 1, &mut queue, std::ptr::null_mut()) {
    ///             0 => Ok(()),
    ///             status => Err(format!("CLBlast returned {status}")),
    ///         }
    ///     })?
    /// };
    /// let doubled = queue.read(x).await?; // after the command
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn native<E>(
        &self,
        label: impl Into<String>,
        memory: impl Arguments,
        call: impl FnOnce(&DriverQueue<'_>) -> std::result::Result<(), E> + Send + 'static,
    ) -> Result<Event>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        process::check()?;
        let (label, mut arguments) = (label.into(), ArgumentList::new());
        memory.append_to(&mut arguments, Seal);
        let native = NativeWork::new(label, arguments, call_of(call))?;
        let what = || format!("the native command `{}`", native.label());
        for region in native.regions() {
            self.check_device(region, what)?;
        }
        self.scheduler.slot().open()?.handles().map_err(|error| error.within(what()))?;
        let mut command = self.scheduler.command(Work::Native(Arc::new(native)), self.number);
        let closure = Arc::<HostFuture>::default();
        closure.set_record(&command.record);
        command.extras_mut().closure = Some(closure);
        Ok(self.scheduler.submit(command, SmallVec::new(), Vec::new()))
    }
}
