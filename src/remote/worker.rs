//! The one thread that speaks to the service. OpenDAL needs a runtime of tokio, and here is one, so
//! that no caller does.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use async_channel::{Receiver, Sender};

/// So many objects are written at the same time.
const WRITERS: usize = 4;

pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The thread's inboxes. It ends when this is dropped and all writes that are queued have ended.
#[derive(Debug)]
pub(super) struct Worker {
    asks: Sender<Task>,
    writes: Sender<Task>,
}

impl Worker {
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (asks, asked) = async_channel::unbounded();
        let (writes, written) = async_channel::unbounded();
        let work = move || {
            runtime.block_on(work(asked, written));
            // A name that is still being looked up may take its time.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("kiln-remote".into()).spawn(work)?;
        Ok(Arc::new(Self { asks, writes }))
    }

    /// Has it run as soon as it can.
    pub(super) fn ask(&self, task: Task) {
        // Open for as long as this is there.
        let _ = self.asks.try_send(task);
    }

    /// Has it run when there is a writer for it.
    pub(super) fn write(&self, task: Task) {
        let _ = self.writes.try_send(task);
    }
}

async fn work(asks: Receiver<Task>, writes: Receiver<Task>) {
    let write = |writes: Receiver<Task>| async move {
        while let Ok(task) = writes.recv().await {
            task.await;
        }
    };
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(write(writes.clone()))).collect();
    while let Ok(task) = asks.recv().await {
        tokio::spawn(task);
    }
    for writer in writers {
        // Tasks catch their own panics.
        let _ = writer.await;
    }
}
