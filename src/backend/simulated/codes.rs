//! Errors as a driver reports them.

use crate::error::{DriverCode, Error, ErrorKind};

pub(super) fn code(code: i32, name: &'static str) -> DriverCode {
    DriverCode { code, name }
}

/// Returns an error as a driver reports it: Kiln has misused the device, or a fault was requested.
pub(super) fn driver_error(number: i32, name: &'static str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Driver, message.into()).with_code(code(number, name))
}

/// Returns the error for an object that another device created.
pub(super) fn foreign_error(what: &str) -> Error {
    driver_error(-34, "CL_INVALID_CONTEXT", format!("the {what} belongs to another device"))
}

/// Returns the error of a compiler that rejects a program.
pub(super) fn refused_error(log: impl Into<String>) -> Error {
    Error::new(ErrorKind::BuildFailed, "the simulator's compiler refused the program")
        .with_code(code(-11, "CL_BUILD_PROGRAM_FAILURE"))
        .with_log(log)
}
