//! The library's own small executor, for host futures that take part in the DAG: they make
//! progress under any host executor, and without one.

use std::any::Any;
use std::error::Error as StdError;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use async_executor::Executor;
use futures::FutureExt;

use crate::error::{Error, ErrorKind, Result, panic_message};

/// What a host future of the DAG may give: nothing, or a `Result` whose error fails the command.
pub trait IntoOutcome: sealed::IntoOutcome {}

impl<T: sealed::IntoOutcome> IntoOutcome for T {}

mod sealed {
    pub trait IntoOutcome {
        #[doc(hidden)]
        fn into_outcome(self) -> crate::error::Result<()>;
    }
}

impl sealed::IntoOutcome for () {
    fn into_outcome(self) -> Result<()> {
        Ok(())
    }
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> sealed::IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<()> {
        self.map(drop).map_err(|error| host_error(error.into()))
    }
}

pub(crate) use sealed::IntoOutcome as ToOutcome;

/// An error of Kiln itself, such as another command's, stays what it is.
fn host_error(error: Box<dyn StdError + Send + Sync>) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::new(ErrorKind::HostTask, format!("a host future failed: {error}"))
            .with_source(error),
    }
}

/// The result of a host future, its panic included.
pub(crate) async fn catch_panic(future: impl Future<Output = Result<()>>) -> Result<()> {
    #[expect(clippy::redundant_async_block, reason = "it drops the future, which may panic, too")]
    let whole = async move { future.await };
    AssertUnwindSafe(whole).catch_unwind().await.unwrap_or_else(|payload: Box<dyn Any + Send>| {
        Err(Error::new(
            ErrorKind::Panicked,
            format!("a host future panicked: {}", panic_message(&*payload)),
        ))
    })
}

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
