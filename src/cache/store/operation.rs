//! Futures and streams of the operations on a store.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::Stream;

use super::info::{EntryCheck, EntryInfo};
use crate::future::{Guarded, GuardedStream};
use crate::process::{self, ForkedOutput};

/// An operation of a [`Store`](super::Store), which is a future. It does nothing until it is awaited.
///
/// # Cancel safety
///
/// If the future is dropped at any point, the store stays valid, and no entry is lost: each entry is stored or
/// removed as a whole, or not at all. A call to the system that is in progress is completed in the background.
///
/// # Panics
///
/// If the future is polled again after it has returned its output.
///
/// # Examples
///
/// ```no_run
/// use kiln::store::{Collected, Operation, Store};
///
/// fn plan(store: &Store) -> Operation<kiln::Result<Collected>> {
///     store.collect(true)
/// }
/// ```
#[must_use = "an operation does nothing until it is awaited"]
pub struct Operation<T> {
    future: Guarded<T>,
    /// Returns the output in a forked child.
    forked: fn(crate::Error) -> T,
}

impl<T> Operation<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self
    where
        T: ForkedOutput,
    {
        Self { future: Guarded::new(future), forked: T::from_error }
    }
}

impl<T> Future for Operation<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // In a forked child, the threads that would complete the future do not exist.
        match process::check() {
            Ok(()) => Pin::new(&mut self.future).poll(context),
            Err(error) => Poll::Ready((self.forked)(error)),
        }
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").finish_non_exhaustive()
    }
}

impl ForkedOutput for EntryCheck {
    fn from_error(error: crate::Error) -> Self {
        Self::Unreadable(std::io::Error::other(error))
    }
}

/// Nothing was done.
impl ForkedOutput for bool {
    fn from_error(_: crate::Error) -> Self {
        false
    }
}

/// Declares a public named stream of the given items.
macro_rules! named_stream {
    ($(#[$doc:meta])* $name:ident => $item:ty) => {
        $(#[$doc])*
        ///
        /// In a child process that was forked after the store was opened, the stream ends at once.
        ///
        /// # Cancel safety
        ///
        /// The stream changes nothing in the store, and can be dropped at any point.
        #[must_use = "a stream does nothing until it is polled"]
        pub struct $name(GuardedStream<$item>);

        impl $name {
            pub(super) fn new(stream: impl Stream<Item = $item> + Send + 'static) -> Self {
                Self(GuardedStream::new(stream))
            }
        }

        impl Stream for $name {
            type Item = $item;

            fn poll_next(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<Option<Self::Item>> {
                self.0.poll_next(context)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

named_stream! {
    /// Stream of the entries of a store; see [`Store::entries`](super::Store::entries).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use kiln::store::{Entries, Store};
    ///
    /// # async fn example(store: Store) {
    /// let entries: Entries = store.entries();
    /// println!("{} programs", entries.count().await);
    /// # }
    /// ```
    Entries => EntryInfo
}

named_stream! {
    /// Stream of the entries of a store with the results of verifying them; see
    /// [`Store::verify`](super::Store::verify).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use kiln::store::{Store, Verify};
    ///
    /// # async fn example(store: Store) {
    /// let mut results: Verify = store.verify();
    /// while let Some((entry, checked)) = results.next().await {
    ///     println!("{}: {checked:?}", entry.name());
    /// }
    /// # }
    /// ```
    Verify => (EntryInfo, EntryCheck)
}
