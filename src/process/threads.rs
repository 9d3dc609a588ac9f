//! Starts threads, in one place, with stacks large enough for compilers, and reports an error if the system
//! cannot start one.

use std::io;
use std::thread::{self, Builder};

use futures::channel::oneshot;

use crate::error::{Error, ErrorKind, Result};

/// Size of each thread's stack in bytes.
///
/// Compilers, and drivers with a compiler, recurse over the code that they are given. The size is twice that of
/// a main thread on Linux, so that whatever compiles on a program's main thread compiles in Kiln, too. The
/// system provides only the part of the stack that is used.
const STACK_SIZE: usize = 16 << 20;

/// Size in bytes of the stack of a thread that calls no compiler. It starts where there is little memory, too.
const SMALL_STACK_SIZE: usize = 1 << 20;

fn builder(name: impl Into<String>) -> Builder {
    Builder::new().name(name.into()).stack_size(STACK_SIZE)
}

/// Starts a thread that ends by itself.
///
/// # Errors
///
/// The system's, if it cannot start a thread. The closure has then been dropped.
pub(crate) fn start(
    name: impl Into<String>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    builder(name).spawn(run).map(drop)
}

/// Starts a thread like [`start`], for work that calls no compiler.
///
/// # Errors
///
/// As for [`start`].
pub(crate) fn start_small(
    name: impl Into<String>,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    builder(name).stack_size(SMALL_STACK_SIZE).spawn(run).map(drop)
}

/// Runs a blocking call on a thread of its own. The call starts before the future is first polled, and runs to
/// its end even if the future is dropped.
///
/// # Errors
///
/// From the future: [`OutOfResources`](ErrorKind::OutOfResources) if the system cannot start a thread, and
/// [`Panicked`](ErrorKind::Panicked) if the call panics.
pub(crate) fn run<T, F>(name: &str, call: F) -> impl Future<Output = Result<T>> + Send + use<T, F>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (sender, receiver) = oneshot::channel();
    let started = start(name, move || {
        // The receiver may have been dropped.
        let _ = sender.send(call());
    });
    async move {
        started.map_err(thread_error)?;
        receiver.await.map_err(|oneshot::Canceled| {
            Error::new(ErrorKind::Panicked, "an internal thread of Kiln panicked")
        })
    }
}

/// Runs a call on a thread with a stack of [`STACK_SIZE`] bytes, and waits for it to end. A panic of the call
/// continues in the caller.
///
/// # Errors
///
/// [`OutOfResources`](ErrorKind::OutOfResources) if the system cannot start a thread.
pub(crate) fn call<T: Send>(name: &str, call: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = builder(name).spawn_scoped(scope, call).map_err(thread_error)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Returns the error for a thread that the system could not start, with the system's error as its source.
fn thread_error(error: io::Error) -> Error {
    no_thread_error().with_source(error)
}

/// Returns the error for a thread that the system could not start.
pub(crate) fn no_thread_error() -> Error {
    Error::new(ErrorKind::OutOfResources, "the system could not start a thread; try again later")
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use futures::executor::block_on;

    use super::*;

    /// Bytes of stack that the tests use: more than a main thread has, and most of [`STACK_SIZE`].
    const USED_STACK: usize = 14 << 20;

    /// Recurses until [`USED_STACK`] bytes of the stack below `top` are used.
    fn use_stack(top: usize) -> usize {
        let frame = black_box([1u8; 4096]);
        let is_used = top.abs_diff(frame.as_ptr().addr()) >= USED_STACK;
        if is_used { 0 } else { use_stack(top) + usize::from(frame[0]) }
    }

    fn has_enough_stack() -> bool {
        let top = 0u8;
        use_stack((&raw const top).addr()) > USED_STACK / 4096 / 8
    }

    #[test]
    fn every_thread_has_a_stack_large_enough_for_a_compiler() {
        assert!(call("test", has_enough_stack).expect("there is a thread"));
        assert!(block_on(run("test", has_enough_stack)).expect("there is a thread"));
        let (sender, receiver) = std::sync::mpsc::channel();
        start("test", move || sender.send(has_enough_stack()).expect("the test waits"))
            .expect("it starts");
        assert_eq!(receiver.recv(), Ok(true));
    }

    #[test]
    fn a_panic_is_returned_as_an_error() {
        let error = block_on(run("test", || panic!("in the call"))).expect_err("it panics");
        assert_eq!(error.kind(), ErrorKind::Panicked);
    }
}
