//! Meanings of the driver's codes.

use std::borrow::Cow;

use super::bindings::*;
use crate::error::{DriverCode, Error, ErrorKind};

/// Code of the driver other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) ze_result_t);

/// Converts the driver's code to a result.
pub(super) fn check(answer: ze_result_t) -> Result<(), Code> {
    if answer == ZE_RESULT_SUCCESS { Ok(()) } else { Err(Code(answer)) }
}

impl Code {
    /// Returns an error with the kind that the code has outside of builds.
    pub(super) fn error(self, message: impl Into<Cow<'static, str>>) -> Error {
        self.error_of(self.kind(), message)
    }

    /// Returns an error of a given kind, for a caller that has more context than the code.
    pub(super) fn error_of(self, kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(kind, message).with_code(self.driver_code())
    }

    /// Returns the code with its name in Level Zero's headers.
    pub(super) fn driver_code(self) -> DriverCode {
        // All codes are positive as signed numbers.
        DriverCode { code: self.0.cast_signed(), name: name(self.0).unwrap_or("UNKNOWN_ERROR") }
    }

    pub(super) fn is_loss(self) -> bool {
        self.kind() == ErrorKind::DeviceLost
    }

    /// Returns the kind of error that the code means in any context.
    pub(super) fn kind(self) -> ErrorKind {
        match self.0 {
            // The driver has no device that it may or can use.
            ZE_RESULT_ERROR_UNINITIALIZED
            | ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS
            | ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE => ErrorKind::NoDevice,

            ZE_RESULT_ERROR_UNSUPPORTED_VERSION
            | ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
            | ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION
            | ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT
            | ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT => ErrorKind::Unsupported,

            ZE_RESULT_ERROR_MODULE_BUILD_FAILURE
            | ZE_RESULT_ERROR_MODULE_LINK_FAILURE
            | ZE_RESULT_ERROR_INVALID_NATIVE_BINARY
            | ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED => ErrorKind::BuildFailed,

            ZE_RESULT_ERROR_INVALID_KERNEL_NAME | ZE_RESULT_ERROR_INVALID_FUNCTION_NAME => {
                ErrorKind::UnknownKernel
            }

            ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION
            | ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION
            | ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX
            | ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE
            | ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE
            | ZE_RESULT_ERROR_OVERLAPPING_REGIONS => ErrorKind::InvalidArgument,

            // A size that is passed to the driver is otherwise valid: an unsupported one exceeds the resources.
            ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
            | ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
            | ZE_RESULT_ERROR_UNSUPPORTED_SIZE
            | ZE_RESULT_ERROR_NOT_AVAILABLE
            | ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE => ErrorKind::OutOfResources,

            ZE_RESULT_ERROR_DEVICE_LOST
            | ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET
            | ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE
            | ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED => ErrorKind::DeviceLost,

            _ => ErrorKind::Driver,
        }
    }

    /// Returns the kind of error where a module is created or linked: only the input can be wrong there.
    pub(super) fn build_kind(self) -> ErrorKind {
        match self.0 {
            ZE_RESULT_ERROR_INVALID_ARGUMENT
            | ZE_RESULT_ERROR_INVALID_SIZE
            | ZE_RESULT_ERROR_INVALID_ENUMERATION
            | ZE_RESULT_ERROR_INVALID_GLOBAL_NAME
            | ZE_RESULT_ERROR_INVALID_KERNEL_NAME
            | ZE_RESULT_ERROR_UNKNOWN => ErrorKind::BuildFailed,
            _ => self.kind(),
        }
    }

    /// Returns the kind of error where an argument or the sizes of a launch are set.
    pub(super) fn argument_kind(self) -> ErrorKind {
        match self.kind() {
            circumstance @ (ErrorKind::OutOfResources | ErrorKind::DeviceLost) => circumstance,
            _ => ErrorKind::InvalidArgument,
        }
    }
}

macro_rules! names {
    ($($name:ident)*) => {
        fn name(code: ze_result_t) -> Option<&'static str> {
            match code {
                $($name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

names! {
    ZE_RESULT_NOT_READY
    ZE_RESULT_ERROR_DEVICE_LOST
    ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
    ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
    ZE_RESULT_ERROR_MODULE_BUILD_FAILURE
    ZE_RESULT_ERROR_MODULE_LINK_FAILURE
    ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET
    ZE_RESULT_ERROR_DEVICE_IN_LOW_POWER_STATE
    ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS
    ZE_RESULT_ERROR_NOT_AVAILABLE
    ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE
    ZE_RESULT_WARNING_DROPPED_DATA
    ZE_RESULT_ERROR_UNINITIALIZED
    ZE_RESULT_ERROR_UNSUPPORTED_VERSION
    ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
    ZE_RESULT_ERROR_INVALID_ARGUMENT
    ZE_RESULT_ERROR_INVALID_NULL_HANDLE
    ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE
    ZE_RESULT_ERROR_INVALID_NULL_POINTER
    ZE_RESULT_ERROR_INVALID_SIZE
    ZE_RESULT_ERROR_UNSUPPORTED_SIZE
    ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT
    ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT
    ZE_RESULT_ERROR_INVALID_ENUMERATION
    ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION
    ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT
    ZE_RESULT_ERROR_INVALID_NATIVE_BINARY
    ZE_RESULT_ERROR_INVALID_GLOBAL_NAME
    ZE_RESULT_ERROR_INVALID_KERNEL_NAME
    ZE_RESULT_ERROR_INVALID_FUNCTION_NAME
    ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION
    ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION
    ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX
    ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE
    ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE
    ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED
    ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE
    ZE_RESULT_ERROR_OVERLAPPING_REGIONS
    ZE_RESULT_WARNING_ACTION_REQUIRED
    ZE_RESULT_ERROR_INVALID_KERNEL_HANDLE
    ZE_RESULT_ERROR_SURVIVABILITY_MODE_DETECTED
    ZE_RESULT_ERROR_ADDRESS_NOT_FOUND
    ZE_RESULT_ERROR_UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_kinds() {
        let table = [
            (0x7000_0001, "ZE_RESULT_ERROR_DEVICE_LOST", ErrorKind::DeviceLost),
            (0x7000_0003, "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", ErrorKind::OutOfResources),
            (0x7000_0004, "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE", ErrorKind::BuildFailed),
            (0x7000_0005, "ZE_RESULT_ERROR_MODULE_LINK_FAILURE", ErrorKind::BuildFailed),
            (0x7800_0001, "ZE_RESULT_ERROR_UNINITIALIZED", ErrorKind::NoDevice),
            (0x7800_0009, "ZE_RESULT_ERROR_UNSUPPORTED_SIZE", ErrorKind::OutOfResources),
            (0x7800_0018, "ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED", ErrorKind::BuildFailed),
            (0x7fff_fffe, "ZE_RESULT_ERROR_UNKNOWN", ErrorKind::Driver),
            (0x7abc_def0, "UNKNOWN_ERROR", ErrorKind::Driver),
        ];
        for (code, name, expected) in table {
            let error = Code(code).error("it failed");
            assert_eq!(error.kind(), expected, "{name}");
            let code = code.cast_signed();
            assert_eq!(error.driver_code(), Some(DriverCode { code, name }));
        }
    }

    #[test]
    fn the_failed_call_refines_the_error_kind() {
        let invalid = Code(ZE_RESULT_ERROR_INVALID_ARGUMENT);
        assert_eq!(invalid.kind(), ErrorKind::Driver);
        assert_eq!(invalid.build_kind(), ErrorKind::BuildFailed);
        assert_eq!(invalid.argument_kind(), ErrorKind::InvalidArgument);
        let lost = Code(ZE_RESULT_ERROR_DEVICE_LOST);
        assert_eq!(lost.build_kind(), ErrorKind::DeviceLost);
        assert_eq!(lost.argument_kind(), ErrorKind::DeviceLost);
        assert!(lost.is_loss() && !invalid.is_loss());
    }
}
