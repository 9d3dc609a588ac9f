//! Inspection of the causes below the errors of service clients.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::sync::Arc;

/// Shared cause of an error, as some clients keep it. As an `Error`, an `Arc` skips the error that it holds:
/// its `source` is the source of that error.
type Shared = Arc<dyn Error + Send + Sync>;

/// Returns an error and its causes, outermost first.
pub(super) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| {
        if let Some(shared) = error.downcast_ref::<Shared>() {
            return Some(&**shared);
        }
        // `io::Error::source` also skips the error that it was made of.
        let made_of = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        made_of.map(|error| -> &'a (dyn Error + 'static) { error }).or_else(|| error.source())
    })
}

/// Joins the messages of an error and its causes, each once: HTTP clients report only their own part.
pub(super) fn full_message(error: &(dyn Error + 'static)) -> String {
    let mut words = String::new();
    for text in chain(error).map(ToString::to_string) {
        if words.is_empty() {
            words = text;
        } else if !words.contains(&text) {
            words = format!("{words}: {text}");
        }
    }
    words
}

fn has_kind(error: &(dyn Error + 'static), kind: io::ErrorKind) -> bool {
    let mut system = chain(error).filter_map(|error| error.downcast_ref::<io::Error>());
    system.any(|error| error.kind() == kind)
}

/// Returns whether an error is a time-out of the client or of the operating system.
pub(super) fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    has_kind(error, io::ErrorKind::TimedOut)
}

/// Returns whether a connection failed because of its contents, such as an untrusted certificate.
pub(super) fn is_distrust(error: &(dyn Error + 'static)) -> bool {
    has_kind(error, io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    #[derive(Debug)]
    struct TestError(&'static str, Option<Shared>);

    impl fmt::Display for TestError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for TestError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_ref().map(|shared| shared as _)
        }
    }

    fn test_error(text: &'static str, cause: impl Error + Send + Sync + 'static) -> TestError {
        TestError(text, Some(Arc::new(cause)))
    }

    #[test]
    fn causes_are_found_at_any_depth_and_inside_io_errors() {
        let late = || test_error("it failed", io::Error::from(io::ErrorKind::TimedOut));
        for late in [late(), test_error("it failed", io::Error::other(late()))] {
            assert!(is_timeout(&late) && !is_distrust(&late));
        }
        let bad = io::Error::new(io::ErrorKind::InvalidData, "no such authority");
        let untrusted = test_error("it cannot be reached", test_error("no connection", bad));
        assert!(is_distrust(&untrusted) && !is_timeout(&untrusted));
        let refused = test_error("it failed", io::Error::from(io::ErrorKind::ConnectionRefused));
        for other in [TestError("it failed", None), refused] {
            assert!(!is_timeout(&other) && !is_distrust(&other));
        }
    }

    #[test]
    fn each_cause_is_reported_once() {
        let bad = io::Error::new(io::ErrorKind::InvalidData, "no such authority");
        let error = test_error("it failed: no connection", test_error("no connection", bad));
        assert_eq!(full_message(&error), "it failed: no connection: no such authority");
    }
}
