//! Bounded worker threads for the driver calls of builds, and permits to begin them.

use std::sync::Arc;

use async_lock::Semaphore;

use crate::executor::Pool;

/// Threads for the driver calls of builds.
#[derive(Clone)]
pub(crate) struct CompilePool {
    threads: Pool,
    serial_thread: Pool,
    compiles: Arc<Semaphore>,
    shared_compiles: Arc<Semaphore>,
    single_compile: Arc<Semaphore>,
    links: Arc<Semaphore>,
}

impl CompilePool {
    /// Creates a pool that runs at most `limit` compiles at a time, and at least one. Its threads are named `name`
    /// followed by their number. There is one more of them, so that short calls need not wait for a compile to
    /// end. Beside the threads, there are up to `processes` compile processes.
    pub(crate) fn new(name: &'static str, limit: usize, processes: usize) -> Self {
        let permits = |number| Arc::new(Semaphore::new(number));
        let limit = limit.max(1);
        Self {
            threads: Pool::new(name, limit + 1),
            serial_thread: Pool::new("kiln-serial", 1),
            compiles: permits(limit),
            shared_compiles: permits(limit.max(processes)),
            single_compile: permits(1),
            links: permits(limit),
        }
    }

    /// Returns the threads.
    pub(crate) fn threads(&self) -> &Pool {
        &self.threads
    }

    /// Returns the thread for drivers whose calls for builds exclude each other. On several threads, such calls
    /// would wait for each other regardless of their priorities.
    pub(super) fn serial_thread(&self) -> &Pool {
        &self.serial_thread
    }

    /// Returns the permits to begin compiles. Whoever has one may take a build lock, and
    /// hold the inputs of a compile in memory.
    pub(super) fn compiles(&self) -> &Arc<Semaphore> {
        &self.compiles
    }

    /// Returns the permit to begin a compile by a driver that builds one program at a time.
    pub(super) fn single_compile(&self) -> &Arc<Semaphore> {
        &self.single_compile
    }

    /// Returns the permits to begin compiles that a compile process or a thread can do. A thread also needs
    /// one of the permits for compiles by threads.
    pub(super) fn shared_compiles(&self) -> &Arc<Semaphore> {
        &self.shared_compiles
    }

    /// Returns the permits to begin links. Links do not wait for compiles.
    pub(super) fn links(&self) -> &Arc<Semaphore> {
        &self.links
    }
}
