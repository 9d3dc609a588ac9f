//! Progress of a runtime's builds.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::stream::Stream;

use super::Runtime;
use crate::build_graph::BuildProgress;
use crate::future::GuardedStream;

/// Stream of the numbers of builds in flight. From [`Runtime::progress`].
///
/// # Cancel safety
///
/// The stream can be dropped at any point.
///
/// # Examples
///
/// ```no_run
/// use futures::StreamExt;
/// use kiln::build::Progress;
///
/// # async fn example(rt: kiln::Runtime) {
/// let mut changes: Progress = rt.progress();
/// if let Some(now) = changes.next().await {
///     println!("{} programs wait for a compiler", now.queued);
/// }
/// # }
/// ```
#[must_use = "a stream does nothing until it is polled"]
pub struct Progress(GuardedStream<BuildProgress>);

impl Stream for Progress {
    type Item = BuildProgress;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(context)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Returns a stream of the numbers of builds that wait, that compile and that have ended, on all devices of the
    /// runtime: first the current numbers, then each change. Changes while nobody asks for an item are one item. The
    /// stream ends when the runtime has been dropped and its last build has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(rt: kiln::Runtime) {
    /// let mut changes = rt.progress();
    /// while let Some(now) = changes.next().await {
    ///     let all = now.queued + now.compiling + now.done;
    ///     eprint!("\r{} of {all} programs built ", now.done);
    /// }
    /// # }
    /// ```
    pub fn progress(&self) -> Progress {
        Progress(GuardedStream::new(self.inner.graph.progress().changes()))
    }
}
