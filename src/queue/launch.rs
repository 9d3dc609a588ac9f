//! Launches as applications describe them, before they are submitted.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use kiln_compiler::IntoNdSize;
use smallvec::SmallVec;

use super::event::Event;
use super::host_task::{IntoOutcome, Precondition, ToOutcome};
use super::launch_memory;
use super::launch_work::LaunchWork;
use crate::args::{Argument, ArgumentList, Arguments, Seal};
use crate::build_graph::Kernel;
use crate::error::{Error, Result};

/// Launch under construction: a kernel, its range, its arguments, and the events and futures it comes
/// after. Nothing happens until it is [submitted](crate::Queue::submit).
///
/// # Examples
///
/// ```no_run
/// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, photo: &kiln::Buffer<f32>,
/// #     loaded: &kiln::Event) -> kiln::Result<()> {
/// let launch = blur.launch([1920, 1080]).local([16, 8]).args((photo, 0.5f32)).after(loaded);
/// queue.submit(launch)?; // returns at once
/// # Ok(())
/// # }
/// ```
#[must_use = "a launch does nothing until it is submitted to a queue"]
pub struct Launch {
    pub(crate) work: Box<LaunchWork>,
    /// Boxed, because most launches have none and launches are moved often.
    conditions: Option<Box<Conditions>>,
}

/// Settings of a launch besides its work.
#[derive(Default)]
pub(crate) struct Conditions {
    /// First error of the methods called so far, for `submit` to report.
    pub(crate) mistake: Option<Error>,
    pub(crate) after: SmallVec<[Event; 1]>,
    pub(crate) preconditions: Vec<Precondition>,
    /// Time limit of waits for the launch.
    pub(crate) timeout: Option<Duration>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchWork { kernel, range, arguments, .. } = &*self.work;
        f.debug_struct("Launch")
            .field("kernel", &kernel.name())
            .field("range", range)
            .field("arguments", arguments)
            .field("after", &self.conditions().map_or(&[][..], |conditions| &conditions.after))
            .field(
                "after_futures",
                &self.conditions().map_or(0, |conditions| conditions.preconditions.len()),
            )
            .finish()
    }
}

impl Kernel {
    /// Creates a launch of this kernel over `range` work-items: a `usize` or `[usize; 1..=3]`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, photo: &kiln::Buffer<f32>, width: usize,
    /// #     height: usize) -> kiln::Result<()> {
    /// queue.submit(blur.launch([width, height]).args((photo,)))?; // one work-item for each pixel
    /// # Ok(())
    /// # }
    /// ```
    pub fn launch(&self, range: impl IntoNdSize) -> Launch {
        let (kernel, range) = (self.clone(), range.into_nd_size().into());
        let work = LaunchWork::new(kernel, range, ArgumentList::new());
        Launch { work: launch_memory::boxed(work), conditions: None }
    }
}

impl Launch {
    /// Returns the work and the settings besides it.
    pub(super) fn into_parts(self) -> (Box<LaunchWork>, Conditions) {
        (self.work, self.conditions.map(|conditions| *conditions).unwrap_or_default())
    }

    /// Returns the settings besides the work, if there are any.
    pub(super) fn conditions(&self) -> Option<&Conditions> {
        self.conditions.as_deref()
    }

    fn conditions_mut(&mut self) -> &mut Conditions {
        self.conditions.get_or_insert_default()
    }

    /// Sets the number of work-items per work-group. Without it, the attribute `reqd_work_group_size` in
    /// the kernel's code applies; without that attribute, the driver chooses.
    ///
    /// Some drivers, PoCL among them, recompile a kernel for every work-group size that they choose. With
    /// many different global sizes, give a size that divides them all.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Local;
    ///
    /// # fn example(queue: &kiln::Queue, sum: &kiln::Kernel, x: &kiln::Buffer<f32>,
    /// #     sums: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let range = x.len().next_multiple_of(256); // `sum` ignores work-items beyond the length
    /// let arguments = (x, x.len(), Local::<f32>::new(256), sums);
    /// queue.submit(sum.launch(range).local(256).args(arguments))?; // one sum for each work-group
    /// # Ok(())
    /// # }
    /// ```
    pub fn local(mut self, size: impl IntoNdSize) -> Self {
        let changed = self.work.range.set_local(size.into_nd_size());
        self.with_mistake_of(changed)
    }

    /// Sets the global id of the first work-item. The default is zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let half = x.len() / 2;
    /// queue.submit(blur.launch(x.len() - half).offset(half).args((x,)))?; // the second half only
    /// # Ok(())
    /// # }
    /// ```
    pub fn offset(mut self, offset: impl IntoNdSize) -> Self {
        let changed = self.work.range.set_offset(offset.into_nd_size());
        self.with_mistake_of(changed)
    }

    /// Stores the error of `changed` for `submit`, unless an earlier one is stored.
    fn with_mistake_of(mut self, changed: Result<()>) -> Self {
        if let Err(error) = changed {
            let error = error.within(format_args!("kernel `{}`", self.work.kernel.name()));
            self.conditions_mut().mistake.get_or_insert(error);
        }
        self
    }

    /// Sets all arguments at once: a tuple in the order of the parameters. Replaces arguments given
    /// before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, saxpy: &kiln::Kernel, x: &kiln::Buffer<f32>,
    /// #     y: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// // kernel void saxpy(float a, global const float *x, global float *y)
    /// queue.submit(saxpy.launch(x.len()).args((3.0f32, x, y)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn args(mut self, arguments: impl Arguments) -> Self {
        self.work.arguments.clear();
        arguments.append_to(&mut self.work.arguments, Seal);
        self
    }

    /// Appends one argument to those given before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, average: &kiln::Kernel, frames: &[kiln::Buffer<f32>],
    /// #     result: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut launch = average.launch(result.len()).arg(result);
    /// for frame in frames {
    ///     launch = launch.arg(frame); // one parameter of `average`
    /// }
    /// queue.submit(launch)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn arg(mut self, argument: impl Argument) -> Self {
        self.work.arguments.push(argument.into_value(Seal));
        self
    }

    /// Starts the launch after the command of `event` has ended, in addition to the order that its data
    /// requires. If that command fails, so does this launch.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, prepare: &kiln::Kernel, apply: &kiln::Kernel,
    /// #     settings: &kiln::Buffer<f32>, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// // `prepare` writes a variable at program scope, which `apply` reads.
    /// let prepared = queue.submit(prepare.launch(256).args((settings,)))?;
    /// queue.submit(apply.launch(x.len()).args((x,)).after(&prepared))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn after(mut self, event: &Event) -> Self {
        self.conditions_mut().after.push(event.clone());
        self
    }

    /// Starts the launch after `future` has completed. Kiln polls the future on a thread of its own, as
    /// it does the futures of [`Queue::host_task`](crate::Queue::host_task), even if nothing awaits the
    /// launch. If the future returns an error or panics, the launch fails.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::channel::oneshot;
    ///
    /// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel,
    /// #     x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let (approve, approved) = oneshot::channel::<()>();
    /// let launch = blur.launch(x.len()).args((x,)).after_future(approved);
    /// let blurred = queue.submit(launch)?; // does not start yet
    /// let _ = approve.send(()); // if `approve` were dropped instead, the launch would fail
    /// blurred.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn after_future<F>(mut self, future: F) -> Self
    where
        F: IntoFuture<IntoFuture: Send + 'static, Output: IntoOutcome>,
    {
        let future = future.into_future();
        let precondition: Precondition = Box::pin(async move { future.await.into_outcome() });
        self.conditions_mut().preconditions.push(precondition);
        self
    }

    /// Limits how long the launch's event can be awaited. `limit` is measured from the submission, by the
    /// monotonic clock of the host ([`Instant`](std::time::Instant)), which may stand still while the system is
    /// suspended. It includes the time for which the launch waits for other commands, builds and host futures.
    ///
    /// If the launch has not ended when the limit has passed, its [`Event`] and all clones return an error of
    /// the kind [`TimedOut`](crate::ErrorKind::TimedOut), which names the kernel, the limit, and what the
    /// launch waits for. This applies to every task that awaits them, to [`Event::wait`], and to host futures.
    ///
    /// The limit ends waits, nothing else:
    ///
    /// * The launch goes on, and keeps its buffers and everything else it uses alive until it ends.
    ///   [`Event::status`] returns its progress, and [`Event::cancel`] cancels it if the device was not given
    ///   it.
    /// * Commands that depend on the launch see nothing of the limit: they wait until it ends, and run if it
    ///   succeeds. The same applies to reads of its results, to markers, and to
    ///   [`Runtime::drain`](crate::Runtime::drain).
    /// * If an event is polled after the launch has ended, it returns how the launch ended, even if that was
    ///   after the limit, and even if it returned `TimedOut` before.
    ///
    /// A limit takes a timer while the event is awaited, but no thread.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use kiln::ErrorKind;
    ///
    /// # async fn example(queue: &kiln::Queue, render: &kiln::Kernel,
    /// #     frame: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let launch = render.launch(frame.len()).args((frame,)).timeout(Duration::from_secs(2));
    /// let rendered = queue.submit(launch)?;
    /// match rendered.clone().await {
    ///     Err(error) if error.kind() == ErrorKind::TimedOut => {
    ///         let never_runs = rendered.cancel(); // otherwise the device has it
    ///         eprintln!("{error}, canceled: {never_runs}");
    ///     }
    ///     outcome => outcome?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.conditions_mut().timeout = Some(limit);
        self
    }
}
