//! Awaitable handles of commands.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, ready};

use bytemuck::Pod;
use futures::stream::{FusedStream, Stream};

use super::completion::{Phase, WaiterSlot};
use super::host_memory::ReadSlot;
use super::record::Record;
use super::scheduler::Scheduler;
use super::time_limit::{TimeLimit, Timeout};
use super::waits::{self, Waiting};
use crate::args::buffer::Buffer;
use crate::backend::Profile;
use crate::error::{Error, Result, catch_and_log};
use crate::executor::wait_for;
use crate::process;
use crate::process::threads::no_thread_error;
use crate::sync::lock;

/// Progress of a command.
///
/// # Examples
///
/// ```no_run
/// use kiln::commands::Status;
///
/// # fn example(upload: &kiln::Event) {
/// match upload.status() {
///     Status::Complete => println!("the upload is complete"),
///     Status::Failed(error) => println!("the upload failed: {error}"),
///     _ => println!("the upload is in progress"),
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Status {
    /// The command waits for something outside the device: a build, a host future, another device, or a
    /// free place among the commands in flight.
    Waiting,
    /// The command was given to the device and waits or runs there.
    Enqueued,
    /// The command has completed successfully.
    Complete,
    /// The command has failed.
    Failed(Error),
}

/// Awaitable handle of a command, cheap to clone; every clone is an independent future. It owns nothing
/// that the device uses. Dropping or forgetting it does not affect the command, which runs whether or
/// not it is awaited. A failure that is not awaited is returned by the commands that use the results.
///
/// # Cancel safety
///
/// Dropping an `Event` loses nothing; another clone, or one polled later, still completes. Polling
/// again after completion returns the same result, except after an error of a
/// [time limit](crate::Launch::timeout): once the command has ended, polling returns how.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel, x: &kiln::Buffer<f32>,
/// #     pixels: Vec<f32>) -> kiln::Result<()> {
/// let written = queue.write(x, pixels)?;
/// let blurred = queue.submit(blur.launch(x.len()).args((x,)))?;
/// drop(written); // the write runs all the same
/// blurred.await?; // fails if either command fails
/// # Ok(())
/// # }
/// ```
pub struct Event {
    record: Arc<Record>,
    slot: WaiterSlot,
    /// Registration of the wait; set while a host future waits for the command.
    waiting: Option<Box<Waiting>>,
    /// Time limit of waits, if the launch has one. Boxed: most have none.
    timeout: Option<Box<Timeout>>,
}

impl Event {
    pub(crate) fn new(record: Arc<Record>) -> Self {
        Self { record, slot: WaiterSlot::None, waiting: None, timeout: None }
    }

    /// Limits the waits through this handle and its clones.
    pub(super) fn with_limit(mut self, limit: Arc<TimeLimit>) -> Self {
        self.timeout = Some(Box::new(Timeout::new(limit)));
        self
    }

    /// Returns a handle without a time limit, for commands that come after this one.
    pub(super) fn unlimited(&self) -> Self {
        Self::new(self.record.clone())
    }

    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Returns whether the command was submitted to that scheduler.
    pub(crate) fn belongs_to(&self, scheduler: &Scheduler) -> bool {
        std::ptr::addr_eq(self.record.owner().as_ptr(), scheduler)
    }

    /// Runs the launches of the fusion scope if the command is a launch of one that still collects.
    /// `cause` names the command or wait that needs it, for messages.
    pub(crate) fn release_group(&self, cause: &str) {
        if !self.record.is_dispatched()
            && let Some(scheduler) = Scheduler::of_command(&self.record)
        {
            scheduler.release_group_of(&self.record, cause);
        }
    }

    /// Returns the progress of the command, as far as it is known without asking the driver.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::commands::Status;
    ///
    /// # fn example(frames: &[kiln::Event]) {
    /// let done = frames.iter().filter(|frame| matches!(frame.status(), Status::Complete)).count();
    /// println!("{done} of {} frames are rendered", frames.len());
    /// # }
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        match self.record.outcome() {
            Some(Ok(())) => Status::Complete,
            Some(Err(error)) => Status::Failed(error),
            None if self.record.is_dispatched() => Status::Enqueued,
            None => Status::Waiting,
        }
    }

    /// Cancels the command unless the device was given it already. Returns whether this call canceled it.
    ///
    /// A command can be canceled while its [status](Self::status) is [`Status::Waiting`]: it waits for other
    /// commands, a build, a host future, the end of its fusion scope, or a free place on the device. A command
    /// of which `false` is returned is not affected: the device has it, it has ended, it is certain to fail
    /// because another command failed, or it is a [host task](crate::Queue::host_task) that has started.
    ///
    /// The canceled command fails with [`Canceled`](crate::ErrorKind::Canceled):
    ///
    /// * All tasks that await it, through any clone of the event, get the error at once.
    /// * It counts as a [failed command](crate::Queue#failures). Commands that need its results, or that were
    ///   ordered after it, are not run and fail with [the same](crate::Error::same) failure, once everything
    ///   before them has ended.
    /// * Its host futures are dropped, on Kiln's host thread, whether or not they have started. A host task is
    ///   canceled, and its future dropped, only if the future was not polled yet.
    /// * Its buffers and host memory are freed when the commands before it have ended.
    /// * If it is a launch of a [`FusionScope`](crate::FusionScope), the other launches of the scope that do
    ///   not need it run one by one.
    ///
    /// Any holder of a clone of the event can cancel the command, and thereby affects all others. Give clones
    /// only to code that may; other code can await a [marker](crate::Queue::marker) or a future of its own.
    ///
    /// # Cancel safety
    ///
    /// Dropping an event never cancels its command; only this method does.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::channel::oneshot;
    /// use kiln::ErrorKind;
    ///
    /// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel,
    /// #     x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let (approve, approved) = oneshot::channel::<()>();
    /// let blurred = queue.submit(blur.launch(x.len()).args((x,)).after_future(approved))?;
    /// if blurred.cancel() { // the request that needed it has disconnected
    ///     assert_eq!(blurred.await.unwrap_err().kind(), ErrorKind::Canceled);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::must_use_candidate, reason = "most callers need not know")]
    pub fn cancel(&self) -> bool {
        if process::is_forked() {
            return false;
        }
        Scheduler::of_command(&self.record).is_some_and(|scheduler| scheduler.cancel(&self.record))
    }

    /// Returns when the command was queued, submitted, started and ended. `None` if the command has not
    /// finished, if it never ran on the device, or if the runtime was built without
    /// [`profiling`](crate::RuntimeBuilder::profiling).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel,
    /// #     x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let blurred = queue.submit(blur.launch(x.len()).args((x,)))?;
    /// blurred.clone().await?;
    /// if let Some(profile) = blurred.profile() {
    ///     println!("`blur` ran for {} ns", profile.ended - profile.started);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        self.record.profile()
    }

    /// Blocks the thread until the command has finished. This is for hosts that are not asynchronous. A
    /// [host task](crate::Queue::host_task) should await the event instead, because each blocking wait
    /// takes a thread.
    ///
    /// # Errors
    ///
    /// The failure of the command, or of the command that made it fail.
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if the launch has a [time limit](crate::Launch::timeout) that
    /// has passed. In a host task also [`OutOfResources`](crate::ErrorKind::OutOfResources) if the system
    /// cannot start a thread, and [`Deadlock`](crate::ErrorKind::Deadlock) if the command waits for that host
    /// task.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let blurred = queue.submit(blur.launch(x.len()).args((x,)))?;
    /// blurred.wait()?; // in a program without async code
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self) -> Result<()> {
        let _blocked = waits::register_blocking(&self.record)?;
        let (mut event, mut registration) = (self.clone(), None);
        let settled = poll_fn(|context| {
            let settled = event.poll_settled(context);
            if settled.is_pending()
                && registration.is_none()
                && let Some(scheduler) = Scheduler::of_command(&event.record)
            {
                let waits = &scheduler.shared().waits;
                registration = Some(waits.register("`Event::wait`", &event.record));
            }
            settled
        });
        wait_for(settled).unwrap_or_else(|_refused| Err(no_thread_error()))
    }

    /// Frees the waiter slot, if the handle has one.
    fn leave(&mut self) {
        if self.slot != WaiterSlot::None
            && let Some(waker) = self.record.signal.leave(&mut self.slot)
        {
            // A panic here while another unwinds would abort the process.
            catch_and_log("a waker that was dropped", || drop(waker));
        }
    }

    fn poll_settled(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Err(error) = process::check() {
            return Poll::Ready(self.record.outcome().unwrap_or(Err(error)));
        }
        let mut deadline = None;
        if self.slot == WaiterSlot::None
            && !self.record.awaited.load(SeqCst)
            && let Some(scheduler) = Scheduler::of_command(&self.record)
        {
            deadline = scheduler.end_of_spin();
            scheduler.settle_if_ended(&self.record, deadline);
        }
        let mut phase = self.record.signal.register(&mut self.slot, context.waker());
        if phase == Phase::Pending
            && !self.record.awaited.swap(true, SeqCst)
            && let Some(scheduler) = Scheduler::of_command(&self.record)
        {
            scheduler.watch(&self.record);
            // A command that is not on the device may wait for this very thread.
            let deadline = deadline.filter(|_| self.record.is_dispatched());
            phase = self.record.signal.spin_until(deadline);
        }
        if phase == Phase::Fired
            && let Some(scheduler) = Scheduler::of_command(&self.record)
        {
            scheduler.settle_soon(&self.record);
            phase = self.record.signal.phase();
        }
        if phase != Phase::Settled {
            if let Some(timeout) = &mut self.timeout
                && let Poll::Ready(error) = timeout.poll(&self.record, context)
            {
                // The task waits no longer.
                self.waiting = None;
                self.leave();
                return Poll::Ready(Err(error));
            }
            let registered = waits::register(&mut self.waiting, &self.record, context.waker());
            return registered.map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending);
        }
        self.waiting = None;
        if let Some(timeout) = &mut self.timeout {
            timeout.stop();
        }
        self.record.outcome().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Future for Event {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_settled(context)
    }
}

impl Clone for Event {
    fn clone(&self) -> Self {
        let mut event = self.unlimited();
        event.timeout.clone_from(&self.timeout);
        event
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // In a forked child, the lock may be held by a thread that exists only in the parent.
        if !process::is_forked() {
            self.leave();
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("status", &self.status()).finish()
    }
}

/// Future of the elements of a buffer, as a `Vec<T>`, from [`Queue::read`](crate::Queue::read).
///
/// # Cancel safety
///
/// Dropping it loses the elements, nothing else.
///
/// # Panics
///
/// If polled again after it was ready.
///
/// # Examples
///
/// ```no_run
/// use futures::future::try_join;
///
/// # async fn example(queue: &kiln::Queue, means: &kiln::Buffer<f32>,
/// #     counts: &kiln::Buffer<u32>) -> kiln::Result<()> {
/// let (means, counts) = try_join(queue.read(means), queue.read(counts)).await?;
/// println!("{} means, {} counts", means.len(), counts.len());
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Read<T> {
    state: Result<(Event, ReadSlot<T>), Option<Error>>,
}

impl<T: Pod> Read<T> {
    pub(crate) fn new(read: Result<(Event, ReadSlot<T>)>) -> Self {
        Self { state: read.map_err(Some) }
    }
}

impl<T: Pod> Future for Read<T> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            Err(error) => Poll::Ready(Err(error.take().expect("polled after it was ready"))),
            Ok((event, slot)) => event.poll_settled(context).map_ok(|()| {
                let mut slot = lock(slot);
                slot.take().expect("polled after it was ready")
            }),
        }
    }
}

impl<T> fmt::Debug for Read<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.as_ref().map(|(event, _)| event);
        f.debug_tuple("Read").field(&state).finish()
    }
}

/// Stream of the elements of a buffer, piece by piece, from [`Queue::read_pieces`](crate::Queue::read_pieces).
///
/// # Cancel safety
///
/// Dropping it discards the pieces that it has not returned.
///
/// # Examples
///
/// ```no_run
/// use futures::{StreamExt, TryStreamExt};
///
/// # async fn example(queue: &kiln::Queue, samples: &kiln::Buffer<f32>) -> kiln::Result<()> {
/// let peaks = queue.read_pieces(samples, 4096).map_ok(|piece| piece.into_iter().fold(0.0, f32::max));
/// let peaks: Vec<f32> = peaks.try_collect().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "streams do nothing unless polled"]
pub struct ReadPieces<T> {
    /// Pieces that are not returned yet, in order.
    pieces: VecDeque<Read<T>>,
}

impl<T: Pod> ReadPieces<T> {
    pub(crate) fn new(pieces: impl IntoIterator<Item = Read<T>>) -> Self {
        Self { pieces: pieces.into_iter().collect() }
    }
}

impl<T: Pod> Stream for ReadPieces<T> {
    type Item = Result<Vec<T>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(first) = self.pieces.front_mut() else { return Poll::Ready(None) };
        let piece = ready!(Pin::new(first).poll(context));
        match &piece {
            Ok(_) => drop(self.pieces.pop_front()),
            Err(_) => self.pieces.clear(),
        }
        Poll::Ready(Some(piece))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(!self.pieces.is_empty()), Some(self.pieces.len()))
    }
}

impl<T: Pod> FusedStream for ReadPieces<T> {
    fn is_terminated(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl<T> fmt::Debug for ReadPieces<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadPieces").field("pieces", &self.pieces).finish()
    }
}

/// Future of a new buffer whose elements are being copied to the device, from
/// [`Runtime::buffer_from`](crate::Runtime::buffer_from).
///
/// # Cancel safety
///
/// Dropping it loses the buffer, nothing else.
///
/// # Panics
///
/// If polled again after it was ready.
///
/// # Examples
///
/// ```no_run
/// use futures::future::try_join;
///
/// # async fn example(rt: &kiln::Runtime, dot: &kiln::Kernel, left: Vec<f32>, right: Vec<f32>,
/// #     product: &kiln::Buffer<f32>) -> kiln::Result<()> {
/// let (left, right) = try_join(rt.buffer_from(left), rt.buffer_from(right)).await?;
/// rt.queue().submit(dot.launch(left.len()).args((&left, &right, product)))?;
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Upload<T> {
    state: Result<(Event, Option<Buffer<T>>), Option<Error>>,
}

impl<T> Upload<T> {
    pub(crate) fn new(upload: Result<(Buffer<T>, Event)>) -> Self {
        Self { state: upload.map(|(buffer, event)| (event, Some(buffer))).map_err(Some) }
    }
}

impl<T> Future for Upload<T> {
    type Output = Result<Buffer<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            Err(error) => Poll::Ready(Err(error.take().expect("polled after it was ready"))),
            Ok((event, buffer)) => event
                .poll_settled(context)
                .map_ok(|()| buffer.take().expect("polled after it was ready")),
        }
    }
}

impl<T> fmt::Debug for Upload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("state", &self.state).finish()
    }
}
