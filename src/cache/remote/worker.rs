//! The one thread that communicates with the service. It provides the tokio runtime that OpenDAL needs, so that
//! callers need none.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use tokio::runtime::{Builder, Handle};

use crate::process::threads;

/// Number of objects that are written at the same time.
const WRITERS: usize = 4;

pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handle of the thread. The thread ends once this is dropped and all queued writes have finished.
#[derive(Debug)]
pub(super) struct Worker {
    runtime: Handle,
    writes: Sender<Task>,
}

impl Worker {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (sender, receiver) = async_channel::unbounded();
        let work = move || {
            runtime.block_on(run_writers(receiver));
            // A host name lookup may still be running; do not wait for it.
            runtime.shutdown_background();
        };
        threads::start("kiln-remote", work)?;
        Ok(Arc::new(Self { runtime: handle, writes: sender }))
    }

    /// Spawns a task to run as soon as possible.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// Queues a task to run once a writer is free.
    pub(super) fn queue_write(&self, task: Task) {
        // The channel is open for as long as `self` exists.
        let _ = self.writes.try_send(task);
    }
}

/// Runs the queued writes, several at a time, until the queue is closed and empty.
async fn run_writers(tasks: Receiver<Task>) {
    let writer = |tasks: Receiver<Task>| async move {
        while let Ok(task) = tasks.recv().await {
            task.await;
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(writer(tasks.clone()))).collect();
    for writer in writers {
        // Tasks catch their own panics.
        let _ = writer.await;
    }
}
