//! The library's own small executor, so that its own tasks make progress under any host executor,
//! and without one.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use async_executor::Executor;

/// Runs tasks on one thread, started with the first of them, ended with the last handle; the tasks
/// themselves hold handles.
pub(crate) struct HostExecutor {
    executor: Arc<Executor<'static>>,
    /// Closed when the last handle is gone, which ends the thread.
    running: OnceLock<async_channel::Sender<()>>,
}

impl HostExecutor {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { executor: Arc::new(Executor::new()), running: OnceLock::new() })
    }

    /// Runs a future to its end. It must not panic.
    pub(crate) fn spawn(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        self.running.get_or_init(|| {
            let (running, closed) = async_channel::bounded::<()>(1);
            let executor = self.executor.clone();
            let run = move || {
                // Ends with an error, the only thing that can come.
                let _ = futures_lite::future::block_on(executor.run(closed.recv()));
            };
            if let Err(error) = std::thread::Builder::new().name("kiln-host".into()).spawn(run) {
                tracing::error!(%error, "no thread for host futures could be started");
            }
            running
        });
        let handle = self.clone();
        self.executor
            .spawn(async move {
                future.await;
                drop(handle);
            })
            .detach();
    }
}
