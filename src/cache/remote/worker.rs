//! The one thread that speaks to the service. OpenDAL needs a runtime of tokio, and here is one, so
//! that no caller does.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use tokio::runtime::{Builder, Handle};

use crate::process::threads;

/// So many objects are written at the same time.
const WRITERS: usize = 4;

pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The thread's inboxes. It ends when this is dropped and all writes that are queued have ended.
#[derive(Debug)]
pub(super) struct Worker {
    runtime: Handle,
    writes: Sender<Task>,
}

impl Worker {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (writes, written) = async_channel::unbounded();
        let work = move || {
            runtime.block_on(write(written));
            // A name that is still being looked up may take its time.
            runtime.shutdown_background();
        };
        threads::start("kiln-remote", work)?;
        Ok(Arc::new(Self { runtime: handle, writes }))
    }

    /// Has it run as soon as it can.
    pub(super) fn ask(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }

    /// Has it run when there is a writer for it.
    pub(super) fn write(&self, task: Task) {
        // Open for as long as this is there.
        let _ = self.writes.try_send(task);
    }
}

async fn write(tasks: Receiver<Task>) {
    let write = |tasks: Receiver<Task>| async move {
        while let Ok(task) = tasks.recv().await {
            task.await;
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(write(tasks.clone()))).collect();
    for writer in writers {
        // Tasks catch their own panics.
        let _ = writer.await;
    }
}
