//! Host futures as commands of the DAG: their results and their panics.

use std::any::Any;
use std::error::Error as StdError;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures::FutureExt;

use crate::error::{Error, ErrorKind, Result, panic_message};

/// Precondition of a command: a future that the host polls. Boxed, because it outlives the caller.
pub(crate) type Precondition = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Result of a host future of the DAG: nothing, or a `Result` whose error fails the command.
///
/// # Examples
///
/// ```no_run
/// # async fn notify() {}
/// # async fn load() -> std::io::Result<usize> { Ok(0) }
/// # fn example(queue: &kiln::Queue) -> kiln::Result<()> {
/// queue.host_task(notify())?; // `()`: the command succeeds
/// queue.host_task(load())?; // `io::Result<usize>`: an error fails the command
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an outcome of a host future",
    label = "the future must return `()`, or a `Result` whose error implements `std::error::Error`",
    note = "the error must convert to `Box<dyn std::error::Error + Send + Sync>`"
)]
pub trait IntoOutcome: sealed::IntoOutcome {}

#[diagnostic::do_not_recommend]
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
        self.map(drop).map_err(|error| task_error("a host future", error.into()))
    }
}

pub(crate) use sealed::IntoOutcome as ToOutcome;

/// Converts an error of the application's code, which `what` names. An error of Kiln itself, such as another
/// command's, is returned unchanged.
pub(super) fn task_error(what: &str, error: Box<dyn StdError + Send + Sync>) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => {
            Error::new(ErrorKind::HostTask, format!("{what} failed: {error}")).with_source(error)
        }
    }
}

/// Runs a host future and converts a panic to an error.
pub(crate) async fn catch_panic(future: impl Future<Output = Result<()>>) -> Result<()> {
    #[expect(
        clippy::redundant_async_block,
        reason = "the block drops the future, which may also panic"
    )]
    let whole = async move { future.await };
    AssertUnwindSafe(whole).catch_unwind().await.unwrap_or_else(|payload: Box<dyn Any + Send>| {
        Err(Error::new(
            ErrorKind::Panicked,
            format!("a host future panicked: {}", panic_message(payload)),
        ))
    })
}
