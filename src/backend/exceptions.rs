//! Exceptions that drivers throw out of their calls.
//!
//! PoCL throws `std::bad_alloc` out of `clBuildProgram` if its compiler finds no memory, and leaves locks of its own
//! held: to release the program would then block for ever. Rust cannot catch such an exception, which ends the process
//! in any case. Here it ends before anything is released.

use std::io::{self, Write};
use std::{process, thread};

/// Guard that ends the process if it is dropped by an exception.
struct EndOnException;

impl Drop for EndOnException {
    fn drop(&mut self) {
        // A panic is handled elsewhere.
        if thread::panicking() {
            return;
        }
        // There may be no memory for a formatted message.
        let message =
            b"kiln: a driver threw a C++ exception out of a call, probably for want of memory\n";
        let _ = io::stderr().write_all(message);
        process::abort();
    }
}

/// Runs a call of a driver that may compile. Ends the process if the driver throws an exception out of it.
pub(super) fn ending_on_exception<R>(call: impl FnOnce() -> R) -> R {
    let guard = EndOnException;
    let result = call();
    std::mem::forget(guard);
    result
}
