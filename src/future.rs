//! Named futures over boxed ones, for operations that are rare. A future of this crate that is stored has a
//! type that can be named.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};

use futures::stream::{BoxStream, Stream, StreamExt};

use crate::error::catch_and_log;
use crate::process;

/// A boxed future that passes only wakers that never panic to the inner future.
///
/// Channels of other crates wake several waiters in a row, on Kiln's threads. A waker that panics there would
/// leave the remaining waiters asleep.
pub(crate) struct Guarded<T> {
    future: Pin<Box<dyn Future<Output = T> + Send>>,
    waker: Option<(Arc<GuardedWaker>, Waker)>,
}

/// Catches and logs panics of the waker's functions. Only the waker's `clone` is called directly in `poll`, so
/// its panic reaches the poller.
struct GuardedWaker(Option<Waker>);

impl Wake for GuardedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(waker) = &self.0 {
            catch_and_log("a waker", || waker.wake_by_ref());
        }
    }
}

impl Drop for GuardedWaker {
    fn drop(&mut self) {
        let waker = self.0.take();
        catch_and_log("a waker that was dropped", || drop(waker));
    }
}

impl<T> Guarded<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Box::pin(future), waker: None }
    }
}

impl<T> Future for Guarded<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Self { future, waker } = &mut *self;
        let is_same = |guarded: &GuardedWaker| {
            guarded.0.as_ref().is_some_and(|known| known.will_wake(context.waker()))
        };
        let known = waker.take().filter(|(guarded, _)| is_same(guarded));
        let (_, guarded) = waker.insert(known.unwrap_or_else(|| {
            let guarded = Arc::new(GuardedWaker(Some(context.waker().clone())));
            (guarded.clone(), guarded.into())
        }));
        future.as_mut().poll(&mut Context::from_waker(guarded))
    }
}

impl<T> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

/// Stream that passes only wakers that never panic to the inner stream.
pub(crate) struct GuardedStream<T> {
    /// The next item, and the rest of the stream.
    next: Guarded<(Option<T>, BoxStream<'static, T>)>,
}

impl<T: Send + 'static> GuardedStream<T> {
    pub(crate) fn new(stream: impl Stream<Item = T> + Send + 'static) -> Self {
        Self { next: Guarded::new(stream.fuse().boxed().into_future()) }
    }

    /// Returns the next item. In a forked child process, the stream has ended.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if process::is_forked() {
            return Poll::Ready(None);
        }
        let (item, rest) = ready!(Pin::new(&mut self.next).poll(context));
        self.next = Guarded::new(rest.into_future());
        Poll::Ready(item)
    }
}

/// Declares a public named future with the given output.
macro_rules! named_future {
    ($(#[$doc:meta])* $name:ident => $output:ty) => {
        $(#[$doc])*
        ///
        /// # Panics
        ///
        /// If the future is polled again after it has returned its output.
        #[must_use = "nothing is known of the outcome unless it is awaited"]
        pub struct $name($crate::future::Guarded<$output>);

        impl $name {
            pub(crate) fn new(future: impl Future<Output = $output> + Send + 'static) -> Self {
                Self($crate::future::Guarded::new(future))
            }
        }

        impl Future for $name {
            type Output = $output;

            fn poll(
                mut self: std::pin::Pin<&mut Self>,
                context: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Self::Output> {
                // In a forked child, the threads that would complete the future do not exist.
                if let Err(error) = crate::process::check() {
                    return std::task::Poll::Ready(crate::process::ForkedOutput::from_error(error));
                }
                std::pin::Pin::new(&mut self.0).poll(context)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use named_future;
