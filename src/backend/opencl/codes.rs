//! Meaning of a driver's error codes.

use std::borrow::Cow;

use opencl3::error_codes::*;

use crate::error::{DriverCode, Error, ErrorKind};

/// Unnamed code of NVIDIA's driver for a kernel that has touched memory that is not its own. From then on,
/// nearly every call on the context returns it.
const NVIDIA_FAULT: cl_int = -9999;

/// Returns an error with the kind that the code has outside of builds.
pub(super) fn error(code: cl_int, message: impl Into<Cow<'static, str>>) -> Error {
    error_of(kind(code), code, message)
}

/// Returns the error of a command on `bytes` at `offset` that was not enqueued. `what` names the command.
pub(super) fn refused_error(code: cl_int, what: &str, bytes: usize, offset: usize) -> Error {
    error(code, format!("the driver refused {what} of {bytes} bytes at {offset}"))
}

/// Returns an error of the given kind, for a caller that can determine it better than from the code alone.
pub(super) fn error_of(
    kind: ErrorKind,
    code: cl_int,
    message: impl Into<Cow<'static, str>>,
) -> Error {
    Error::new(kind, message).with_code(driver_code(code))
}

/// Returns the code with its name in OpenCL's headers, or in cl3 for the two codes that cl3 adds: library not
/// loaded, function not in the library.
pub(in crate::backend) fn driver_code(code: cl_int) -> DriverCode {
    DriverCode { code, name: error_text(code) }
}

/// Returns the kind of a code, whichever call it comes from.
pub(super) fn kind(code: cl_int) -> ErrorKind {
    match code {
        DLOPEN_RUNTIME_LOAD_FAILED | CL_PLATFORM_NOT_FOUND_KHR | CL_DEVICE_NOT_FOUND => {
            ErrorKind::NoDevice
        }

        DLOPEN_FUNCTION_NOT_AVAILABLE | CL_COMPILER_NOT_AVAILABLE | CL_LINKER_NOT_AVAILABLE => {
            ErrorKind::Unsupported
        }

        CL_BUILD_PROGRAM_FAILURE
        | CL_COMPILE_PROGRAM_FAILURE
        | CL_LINK_PROGRAM_FAILURE
        | CL_INVALID_BINARY
        | CL_INVALID_BUILD_OPTIONS
        | CL_INVALID_COMPILER_OPTIONS
        | CL_INVALID_LINKER_OPTIONS => ErrorKind::BuildFailed,

        CL_INVALID_KERNEL_NAME => ErrorKind::UnknownKernel,

        CL_INVALID_ARG_INDEX
        | CL_INVALID_ARG_VALUE
        | CL_INVALID_ARG_SIZE
        | CL_INVALID_KERNEL_ARGS
        | CL_INVALID_WORK_DIMENSION
        | CL_INVALID_WORK_GROUP_SIZE
        | CL_INVALID_WORK_ITEM_SIZE
        | CL_INVALID_GLOBAL_OFFSET
        | CL_INVALID_GLOBAL_WORK_SIZE
        | CL_INVALID_BUFFER_SIZE
        | CL_MISALIGNED_SUB_BUFFER_OFFSET
        | CL_MEM_COPY_OVERLAP
        | CL_INVALID_SPEC_ID
        | CL_MAX_SIZE_RESTRICTION_EXCEEDED => ErrorKind::InvalidArgument,

        CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY | CL_MEM_OBJECT_ALLOCATION_FAILURE => {
            ErrorKind::OutOfResources
        }

        // Only live queues are passed to the driver. A queue that the driver rejects was lost with its device.
        CL_DEVICE_NOT_AVAILABLE
        | CL_CONTEXT_TERMINATED_KHR
        | CL_INVALID_COMMAND_QUEUE
        | NVIDIA_FAULT => ErrorKind::DeviceLost,

        _ => ErrorKind::Driver,
    }
}

/// Returns the kind of a code from creating or building a program. There, drivers also reject a program's code
/// with several general codes.
pub(super) fn build_kind(code: cl_int) -> ErrorKind {
    match code {
        CL_INVALID_VALUE
        | CL_INVALID_PROGRAM
        | CL_INVALID_PROGRAM_EXECUTABLE
        | CL_INVALID_KERNEL_DEFINITION => ErrorKind::BuildFailed,
        // No device of the context has a compiler for the intermediate language.
        CL_INVALID_OPERATION => ErrorKind::Unsupported,
        _ => kind(code),
    }
}

/// Returns the kind of a code that is the status of a command.
pub(super) fn command_kind(code: cl_int) -> ErrorKind {
    match code {
        // PoCL's status for "failed", whatever the reason.
        CL_DEVICE_NOT_FOUND => ErrorKind::Driver,
        _ => kind(code),
    }
}

/// Returns the kind of a code from setting one argument of a kernel.
pub(super) fn argument_kind(code: cl_int) -> ErrorKind {
    match kind(code) {
        circumstance @ (ErrorKind::OutOfResources | ErrorKind::DeviceLost) => circumstance,
        _ => ErrorKind::InvalidArgument,
    }
}

/// Returns the kind of a code from allocating memory.
pub(super) fn allocation_kind(code: cl_int) -> ErrorKind {
    match code {
        // The size exceeds the device's limit of one allocation. No otherwise invalid size reaches the driver.
        CL_INVALID_BUFFER_SIZE => ErrorKind::OutOfResources,
        _ => kind(code),
    }
}

/// Returns the kind of a code from setting a specialization constant.
pub(super) fn constant_kind(code: cl_int) -> ErrorKind {
    match code {
        // The driver builds SPIR-V, but without specialization.
        CL_INVALID_OPERATION | DLOPEN_FUNCTION_NOT_AVAILABLE => ErrorKind::Unsupported,
        _ => argument_kind(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_kinds() {
        let table = [
            (-5, "CL_OUT_OF_RESOURCES", ErrorKind::OutOfResources),
            (-2, "CL_DEVICE_NOT_AVAILABLE", ErrorKind::DeviceLost),
            (-3, "CL_COMPILER_NOT_AVAILABLE", ErrorKind::Unsupported),
            (-11, "CL_BUILD_PROGRAM_FAILURE", ErrorKind::BuildFailed),
            (-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", ErrorKind::Driver),
            (-51, "CL_INVALID_ARG_SIZE", ErrorKind::InvalidArgument),
            (-1001, "CL_PLATFORM_NOT_FOUND_KHR", ErrorKind::NoDevice),
            (-2000, "DLOPEN_RUNTIME_LOAD_FAILED", ErrorKind::NoDevice),
            (-2001, "DLOPEN_FUNCTION_NOT_AVAILABLE", ErrorKind::Unsupported),
            (-12345, "UNKNOWN_ERROR", ErrorKind::Driver),
        ];
        for (code, name, expected) in table {
            let error = error(code, "it failed");
            assert_eq!(error.kind(), expected, "{name}");
            assert_eq!(error.driver_code(), Some(DriverCode { code, name }));
        }
    }

    #[test]
    fn the_failed_call_refines_the_error_kind() {
        assert_eq!(kind(CL_INVALID_VALUE), ErrorKind::Driver);
        assert_eq!(build_kind(CL_INVALID_VALUE), ErrorKind::BuildFailed);
        assert_eq!(build_kind(CL_OUT_OF_HOST_MEMORY), ErrorKind::OutOfResources);
        assert_eq!(build_kind(CL_DEVICE_NOT_AVAILABLE), ErrorKind::DeviceLost);
        assert_eq!(kind(CL_DEVICE_NOT_FOUND), ErrorKind::NoDevice);
        assert_eq!(command_kind(CL_DEVICE_NOT_FOUND), ErrorKind::Driver);
        assert_eq!(argument_kind(CL_INVALID_MEM_OBJECT), ErrorKind::InvalidArgument);
        assert_eq!(argument_kind(CL_OUT_OF_RESOURCES), ErrorKind::OutOfResources);
        assert_eq!(allocation_kind(CL_INVALID_BUFFER_SIZE), ErrorKind::OutOfResources);
        assert_eq!(constant_kind(CL_INVALID_SPEC_ID), ErrorKind::InvalidArgument);
        assert_eq!(constant_kind(CL_INVALID_OPERATION), ErrorKind::Unsupported);
    }
}
