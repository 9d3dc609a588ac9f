//! Numbers of builds that wait, that compile and that have ended, for people who wait for them.

use std::sync::{Arc, Mutex};

use event_listener::Event;
use futures::stream::{self, Stream};

use crate::sync::lock;

/// Numbers of the builds of a runtime, from the stream [`Progress`](crate::build::Progress). Programs, objects, fused
/// kernels and translations of OpenCL C are builds. Requests for programs in memory are not.
///
/// # Examples
///
/// ```
/// fn describe(progress: &kiln::build::BuildProgress) -> String {
///     let all = progress.queued + progress.compiling + progress.done;
///     format!("{} of {all} built", progress.done)
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildProgress {
    /// Number of builds that have begun and do not compile now: they wait for a compiler, for other builds or for
    /// a cache.
    pub queued: u64,
    /// Number of builds that are compiled or linked now.
    pub compiling: u64,
    /// Number of builds that have ended since the runtime started, also those that failed.
    pub done: u64,
}

impl BuildProgress {
    /// Whether no build is in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(kiln::build::BuildProgress::default().is_idle());
    /// ```
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queued + self.compiling == 0
    }
}

/// Progress of a graph's builds. Dropping it ends the streams.
#[derive(Default)]
pub(crate) struct ProgressCounter(Arc<Counts>);

#[derive(Default)]
struct Counts {
    current: Mutex<Current>,
    changed: Event,
}

#[derive(Default)]
struct Current {
    in_flight: u64,
    compiling: u64,
    done: u64,
    /// Whether the graph does not exist any more.
    is_closed: bool,
}

/// Build in flight. Ends when it is dropped.
pub(super) struct Building(Arc<Counts>);

/// Build that is compiled. Dropping it means that the compiler is not running any more.
pub(super) struct Compiling(Arc<Counts>);

impl ProgressCounter {
    /// Counts a build.
    pub(super) fn begin(&self) -> Building {
        self.0.change(|current| current.in_flight += 1);
        Building(Arc::clone(&self.0))
    }

    /// Counts the compile of a build in flight.
    pub(super) fn begin_compile(&self) -> Compiling {
        self.0.change(|current| current.compiling += 1);
        Compiling(Arc::clone(&self.0))
    }

    /// Whether a build waits: for a compiler, or for what it needs before.
    pub(super) fn has_waiting(&self) -> bool {
        let current = lock(&self.0.current);
        current.in_flight > current.compiling
    }

    /// Returns a stream of the current numbers, and then of their changes. Changes while nobody asks for an item
    /// are one item.
    pub(crate) fn changes(&self) -> impl Stream<Item = BuildProgress> + Send + use<> {
        let start = (Arc::clone(&self.0), None);
        stream::unfold(start, |(counts, last)| async move {
            loop {
                let change = counts.changed.listen();
                let now = counts.progress()?;
                if last != Some(now) {
                    return Some((now, (counts, Some(now))));
                }
                change.await;
            }
        })
    }
}

impl Drop for ProgressCounter {
    fn drop(&mut self) {
        self.0.change(|current| current.is_closed = true);
    }
}

impl Counts {
    fn change(&self, change: impl FnOnce(&mut Current)) {
        change(&mut lock(&self.current));
        self.changed.notify(usize::MAX);
    }

    /// Returns the numbers, unless the graph does not exist any more.
    fn progress(&self) -> Option<BuildProgress> {
        let current = lock(&self.current);
        let Current { in_flight, compiling, done, is_closed } = *current;
        let queued = in_flight.saturating_sub(compiling);
        (!is_closed).then_some(BuildProgress { queued, compiling, done })
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        self.0.change(|current| {
            current.in_flight -= 1;
            current.done += 1;
        });
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.0.change(|current| current.compiling -= 1);
    }
}
