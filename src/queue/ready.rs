//! Awaitable back-pressure for the producers of commands.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::handle::Queue;
use super::host_future::is_polling_host_future;
use super::scheduler::{Scheduler, Ticket};
use crate::process;

/// Future that completes once the device has room for another command, from
/// [`Queue::ready`](crate::Queue::ready). Its output is `()`.
///
/// # Cancel safety
///
/// Dropping it gives up its turn and nothing else: a free place that was meant for it passes to the next
/// producer. Polling again after completion waits for another place.
///
/// # Examples
///
/// ```no_run
/// use futures::future::{Either, select};
///
/// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>,
/// #     shutdown: impl Future<Output = ()> + Unpin) -> kiln::Result<()> {
/// match select(queue.ready(), shutdown).await {
///     Either::Left(((), _)) => drop(queue.submit(blur.launch(x.len()).args((&x,)))?),
///     Either::Right(_) => println!("shutting down"), // another producer gets the place
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Ready {
    scheduler: Arc<Scheduler>,
    /// Ticket of the producer, while it waits or until it learns that it has been granted a place.
    ticket: Option<Ticket>,
}

impl Queue {
    /// Completes as soon as the queue's device has fewer unfinished commands than its limit,
    /// [`RuntimeBuilder::max_in_flight`](crate::RuntimeBuilder::max_in_flight): back-pressure for
    /// producers that are faster than the device.
    ///
    /// The unit is one command of any kind: a launch, read, write, fill, copy, marker or host task, and
    /// the zeroing of a [new buffer](crate::Runtime::buffer). A command counts from its submission until
    /// its end, on all queues of the device, whether or not the device has it already. If every submission
    /// of one command follows a `ready().await`, at most limit + producers commands are unfinished, where
    /// a producer is a task that submits.
    ///
    /// Producers are let through in the order in which they began to wait, one for each free place.
    /// `ready` is advice and reserves nothing: [`submit`](Self::submit) accepts commands with or without it. If
    /// a producer that was let through submits nothing, its place is offered to the next within 2 ms or so.
    ///
    /// * If the device is idle, `ready` completes at once.
    /// * Failed commands have ended, too. If the device is lost, `ready` completes and the
    ///   submission reports the error. The same applies in a forked child.
    /// * Launches of an open [`FusionScope`](crate::FusionScope) count. If nothing else is unfinished, waiting
    ///   could not end: producers are then let through one by one, although the limit is reached.
    /// * In a [host task](Self::host_task) or any other host future of a command, `ready` completes at once,
    ///   because its own command is unfinished until it returns.
    /// * [`Runtime::drain`](crate::Runtime::drain) does not affect producers; stop them first.
    ///
    /// Do not await `ready` where the unfinished commands wait for the awaiting task itself, such as for
    /// the sender of a channel that their host futures receive from.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its turn; a place that was meant for it passes to the next producer.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, step: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// for number in 0..1_000_000u32 {
    ///     queue.ready().await; // memory stays bounded, however fast this loop is
    ///     queue.submit(step.launch(x.len()).args((number, &x)))?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn ready(&self) -> Ready {
        Ready { scheduler: self.scheduler.clone(), ticket: None }
    }
}

impl Future for Ready {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if process::is_forked() {
            return Poll::Ready(());
        }
        let Self { scheduler, ticket } = &mut *self;
        *ticket = match *ticket {
            None if scheduler.has_capacity() || is_polling_host_future() => None,
            None => scheduler.wait_for_capacity(context.waker().clone()),
            Some(known) => scheduler.backlog().renew(known, context.waker()).then_some(known),
        };
        if ticket.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // In a forked child, the lock may be held by a thread that exists only in the parent.
        if let Some(ticket) = self.ticket
            && !process::is_forked()
        {
            self.scheduler.backlog().leave(ticket);
        }
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("is_waiting", &self.ticket.is_some()).finish_non_exhaustive()
    }
}
