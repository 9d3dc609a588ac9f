//! Errors, and panics that become errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::FutureExt;

pub use kiln_spirv::{DriverCode, Error, ErrorKind, Result};

/// Returns the text of a caught panic if its payload is text.
///
/// Any other payload is leaked: it belongs to the application, and dropping it may panic again.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<String>() {
        Ok(text) => return *text,
        Err(other) => other,
    };
    match payload.downcast::<&'static str>() {
        Ok(text) => (*text).to_owned(),
        Err(other) => {
            std::mem::forget(other);
            "a panic without a message".to_owned()
        }
    }
}

/// Runs a call, and turns a panic into an error.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Partial changes left by a panic are dropped with the call: nothing is used afterwards.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| Err(panic_error(payload)))
}

/// Awaits a future, and turns a panic into an error.
pub(crate) fn catch_panics<T>(
    future: impl Future<Output = Result<T>>,
) -> impl Future<Output = Result<T>> {
    // As above. Not an `async fn`, which would hold the future twice.
    AssertUnwindSafe(future)
        .catch_unwind()
        .map(|caught| caught.unwrap_or_else(|payload| Err(panic_error(payload))))
}

fn panic_error(payload: Box<dyn Any + Send>) -> Error {
    Error::new(ErrorKind::Panicked, panic_message(payload))
}

/// Calls application code, and catches and logs its panic; `what` names the code in the log.
pub(crate) fn catch_and_log(what: &str, call: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(call)) else { return };
    let message = panic_message(payload);
    // A subscriber of `tracing` may panic, too.
    let logged = catch_unwind(|| tracing::error!(message, "{what} panicked"));
    logged.unwrap_or_else(std::mem::forget);
}
