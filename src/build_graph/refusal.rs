//! Classification of compiler failures: those caused by the program are kept.

use crate::device::Device;
use crate::error::{Error, ErrorKind};
use crate::process::log::{Cause, cause, resource};
use crate::process::resources;

/// Classifies a driver's error by its build log.
///
/// * If the log names a place in the text or a symbol of the program, the error is a refusal, which is kept.
/// * If the log states that a resource is exhausted, or shows no cause while a resource is exhausted, the error
///   is a transient failure of the kind [`OutOfResources`](ErrorKind::OutOfResources).
/// * Any other error is a refusal that is not kept: the next request compiles again.
///
/// Errors of other kinds, errors created by Kiln itself, and errors of simulated devices, whose compiler is
/// part of Kiln, are returned unchanged.
pub(super) fn classify(error: Error, device: &Device) -> Error {
    if device.runs_code { classify_by_log(error, || resources::check().is_err()) } else { error }
}

fn classify_by_log(error: Error, is_exhausted: impl FnOnce() -> bool) -> Error {
    if error.kind() != ErrorKind::BuildFailed || error.driver_code().is_none() {
        return error;
    }
    match cause(error.build_log().unwrap_or_default()) {
        Cause::Program => error,
        Cause::Exhaustion => exhausted_error(error),
        Cause::Unknown if is_exhausted() => exhausted_error(error),
        Cause::Unknown => error.transient(),
    }
}

fn exhausted_error(error: Error) -> Error {
    let resource = resource(error.build_log().unwrap_or_default()).unwrap_or("a system resource");
    error
        .of_kind(ErrorKind::OutOfResources)
        .within(format_args!("the driver's compiler ran out of {resource}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DriverCode;

    fn refused(log: &str) -> Error {
        let code = DriverCode { code: -11, name: "CL_BUILD_PROGRAM_FAILURE" };
        Error::new(ErrorKind::BuildFailed, "refused").with_code(code).with_log(log)
    }

    #[test]
    fn only_refusals_of_the_program_are_deterministic() {
        let classified = |log: &str, is_exhausted| {
            let error = classify_by_log(refused(log), || is_exhausted);
            (error.kind(), error.is_deterministic())
        };
        let of_program = "1:1:5: error: use of undeclared identifier 'y'\n";
        for is_exhausted in [false, true] {
            assert_eq!(classified(of_program, is_exhausted), (ErrorKind::BuildFailed, true));
            let exhausted = "LLVM ERROR: out of memory\n";
            assert_eq!(classified(exhausted, is_exhausted), (ErrorKind::OutOfResources, false));
        }
        let other = "Failed to load the builtins rtl library\n";
        assert_eq!(classified(other, true), (ErrorKind::OutOfResources, false));
        assert_eq!(classified(other, false), (ErrorKind::BuildFailed, false));
        assert_eq!(classified("", false), (ErrorKind::BuildFailed, false));
    }

    #[test]
    fn errors_of_kiln_itself_are_unchanged() {
        let own = Error::new(ErrorKind::BuildFailed, "nobody exports `f`");
        assert!(classify_by_log(own.clone(), || true).same(&own));
        let other = Error::new(ErrorKind::Unsupported, "no SPIR-V").with_log("out of memory");
        assert!(classify_by_log(other.clone(), || true).same(&other));
    }
}
