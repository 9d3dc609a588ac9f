//! Bounded worker threads for the driver calls of builds, and permits to begin them.

use std::sync::Arc;

use async_lock::Semaphore;

use crate::executor::Pool;

/// Threads for the driver calls of builds.
#[derive(Clone)]
pub(crate) struct CompilePool {
    threads: Pool,
    compiles: Arc<Semaphore>,
    serial_compiles: Arc<Semaphore>,
    links: Arc<Semaphore>,
}

impl CompilePool {
    /// Creates a pool of at most `limit` threads, and at least one, named `name` followed by their number.
    pub(crate) fn new(name: &'static str, limit: usize) -> Self {
        let permits = |number| Arc::new(Semaphore::new(number));
        let (compiles, links) = (permits(limit.max(1)), permits(limit.max(1)));
        Self { threads: Pool::new(name, limit), compiles, serial_compiles: permits(1), links }
    }

    /// Returns the threads.
    pub(crate) fn threads(&self) -> &Pool {
        &self.threads
    }

    /// Returns the permits to begin compiles, one for each thread. Whoever has one may take a build lock, and
    /// hold the inputs of a compile in memory.
    pub(super) fn compiles(&self) -> &Arc<Semaphore> {
        &self.compiles
    }

    /// Returns the permit to begin compiles by drivers that build one program at a time. A second compile would
    /// keep a thread from short calls while it waits for the first.
    pub(super) fn serial_compiles(&self) -> &Arc<Semaphore> {
        &self.serial_compiles
    }

    /// Returns the permits to begin links, one for each thread. Links do not wait for compiles.
    pub(super) fn links(&self) -> &Arc<Semaphore> {
        &self.links
    }
}
