//! The one error type, its kinds, and the driver's codes by name.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one word, for programs to match on.
///
/// The kinds also decide what the build graph keeps: see [`Error::is_deterministic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No driver or no device that fits was found.
    NoDevice,
    /// A setting, from the environment or a builder, has a value that cannot be used; or a program
    /// that compiles in a process of its own is not there, or of another version.
    Configuration,
    /// The image is not what its format requires: empty, truncated, malformed.
    InvalidImage,
    /// The device does not take what it was given, such as an image's format; a compiler is missing that
    /// translates it; or launches that were required to be fused cannot be.
    Unsupported,
    /// The driver's compiler or linker refused the program, or another compiler that took part did;
    /// [`Error::build_log`] says why. Or what it imports is exported by nobody, or by several.
    BuildFailed,
    /// The program has no kernel of that name.
    UnknownKernel,
    /// An argument, a range, a slice or a length does not fit what it is used with; or it comes too
    /// late, such as for a fusion scope that has ended.
    InvalidArgument,
    /// Memory or another resource of the device or the host is exhausted, for now: threads, processes,
    /// file descriptors, address space or disk.
    OutOfResources,
    /// The device stopped working; nothing that ran on it can be trusted.
    DeviceLost,
    /// A host future that takes part in the command DAG returned an error.
    HostTask,
    /// A host future awaits a command that waits for that future.
    Deadlock,
    /// A time limit that the application set has passed.
    TimedOut,
    /// A compiler or a host future panicked, or Kiln's own fusing compiler did.
    Panicked,
    /// A file or a remote cache could not be read or written, a process could not be started, files
    /// changed while they were used, or another process was collecting the cache.
    Io,
    /// Any other failure that the driver reported, and a compiler in a process of its own that did
    /// not end in time.
    Driver,
    /// The process is ending, and its drivers no longer take calls.
    ProcessEnding,
    /// This process is a forked child, in which neither the threads nor the drivers of its parent
    /// exist.
    Forked,
}

impl ErrorKind {
    const fn describe(self) -> &'static str {
        match self {
            Self::NoDevice => "no device",
            Self::Configuration => "bad configuration",
            Self::InvalidImage => "invalid image",
            Self::Unsupported => "unsupported",
            Self::BuildFailed => "build failed",
            Self::UnknownKernel => "unknown kernel",
            Self::InvalidArgument => "invalid argument",
            Self::OutOfResources => "out of resources",
            Self::DeviceLost => "device lost",
            Self::HostTask => "host task failed",
            Self::Deadlock => "deadlock",
            Self::TimedOut => "timed out",
            Self::Panicked => "panicked",
            Self::Io => "input/output failed",
            Self::Driver => "driver failed",
            Self::ProcessEnding => "process ending",
            Self::Forked => "forked process",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.describe())
    }
}

/// A driver's own code and its name in the driver's header, such as `CL_OUT_OF_RESOURCES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DriverCode {
    /// The number that the driver returned.
    pub code: i32,
    /// Its symbolic name.
    pub name: &'static str,
}

impl fmt::Display for DriverCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

/// Anything that fails in this crate. Cheap to clone: every waiter of a build, and every dependent
/// of a failed command, gets the same error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    driver: Option<DriverCode>,
    build_log: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether it may be gone on the next try, whatever its kind says.
    passes: bool,
    /// The failure of another command, for which a command was not run.
    root: Option<Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            driver: None,
            build_log: None,
            source: None,
            passes: false,
            root: None,
        }))
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    pub(crate) fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// The failure of a call to the system: [`OutOfResources`](ErrorKind::OutOfResources) if the system
    /// has no more of something, else [`Io`](ErrorKind::Io).
    pub(crate) fn of_system(message: impl Into<Cow<'static, str>>, error: io::Error) -> Self {
        let kind = if is_exhaustion(&error) { ErrorKind::OutOfResources } else { ErrorKind::Io };
        Self::new(kind, message).with_source(error)
    }

    pub(crate) fn with_code(self, code: DriverCode) -> Self {
        self.map(|inner| inner.driver = Some(code))
    }

    pub(crate) fn with_log(self, log: impl Into<String>) -> Self {
        self.map(|inner| inner.build_log = Some(log.into()))
    }

    pub(crate) fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.map(|inner| inner.source = Some(source.into().into()))
    }

    /// The same error as one of circumstance, whatever its kind says.
    pub(crate) fn passing(self) -> Self {
        self.map(|inner| inner.passes = true)
    }

    /// The same error as one of another kind.
    pub(crate) fn of_kind(self, kind: ErrorKind) -> Self {
        self.map(|inner| inner.kind = kind)
    }

    /// The same error with `place` said before its message.
    pub(crate) fn within(self, place: impl fmt::Display) -> Self {
        self.map(|inner| inner.message = format!("{place}: {}", inner.message).into())
    }

    /// The failure of a command, `subject`, that was not run because of this one.
    pub(crate) fn spread_to(&self, subject: &str, reason: &str) -> Self {
        let root = self.0.root.as_ref().unwrap_or(self);
        let message = format!("{subject} was not run: {reason}: {}", root.message());
        root.clone().map(|inner| {
            inner.message = message.into();
            inner.root = Some(root.clone());
        })
    }

    /// What else was told of the error by then stays as it was.
    fn map(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// What went wrong, for programs to match on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What is said of it beside its kind, code and log.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// The driver's own code, where a driver reported the failure.
    #[must_use]
    pub fn driver_code(&self) -> Option<DriverCode> {
        self.0.driver
    }

    /// The compiler's messages, where a build failed and the driver told any.
    #[must_use]
    pub fn build_log(&self) -> Option<&str> {
        self.0.build_log.as_deref()
    }

    /// The error's text without the compiler's messages, which [`build_log`](Self::build_log) has in
    /// full.
    #[must_use]
    pub fn summary(&self) -> String {
        struct Summary<'a>(&'a Error);
        impl fmt::Display for Summary<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt_summary(f)
            }
        }
        Summary(self).to_string()
    }

    fn fmt_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        if let Some(code) = self.0.driver {
            write!(f, " [{code}]")?;
        }
        Ok(())
    }

    /// Whether the same request would fail the same way again.
    ///
    /// The build graph keeps such failures like results: whoever asks again gets the same error
    /// without another compile, except that the libraries are looked through again for what an image
    /// imports. Failures of circumstance, such as exhausted memory, a lost device,
    /// a panic, an I/O error or a [build child](crate::build_child) that is not there, are never
    /// kept.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        match self.0.kind {
            _ if self.0.passes => false,
            ErrorKind::Configuration
            | ErrorKind::InvalidImage
            | ErrorKind::Unsupported
            | ErrorKind::BuildFailed
            | ErrorKind::UnknownKernel
            | ErrorKind::InvalidArgument => true,
            ErrorKind::NoDevice
            | ErrorKind::OutOfResources
            | ErrorKind::DeviceLost
            | ErrorKind::HostTask
            | ErrorKind::Deadlock
            | ErrorKind::TimedOut
            | ErrorKind::Panicked
            | ErrorKind::Io
            | ErrorKind::Driver
            | ErrorKind::ProcessEnding
            | ErrorKind::Forked => false,
        }
    }

    /// Whether both are of one and the same failure: that of a command, and those of the commands that
    /// were not run because of it.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let root = |error: &Self| Arc::as_ptr(&error.0.root.as_ref().unwrap_or(error).0);
        root(self) == root(other)
    }
}

/// The summary, then the compiler's messages: only its errors where it told warnings and remarks, too.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_summary(f)?;
        if let Some(log) = self.build_log().map(str::trim).filter(|log| !log.is_empty()) {
            write!(f, "\n{}", errors_of(log))?;
        }
        Ok(())
    }
}

/// The kind of message that a line of a compiler's log begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heading {
    Error,
    /// A warning or a remark.
    Other,
    /// It belongs to what is before it.
    Note,
}

fn heading(line: &str) -> Option<Heading> {
    let begins = |word: &str| {
        // `file:1:2: error: ..`, `error: ..`, `ptxas error   : ..`, `error X1234 : ..`
        let at = line.find(word)?;
        let before = &line[..at];
        let after = line[at + word.len()..].trim_start();
        let is_heading = before.is_empty()
            || before.ends_with(": ")
            || matches!(before.trim_end(), "ptxas" | "nvlink" | "fatal" | "JIT session");
        (is_heading && after.starts_with(':')).then_some(at)
    };
    let error = ["fatal error", "error", "fatal"].iter().filter_map(|word| begins(word)).min();
    let other = ["warning", "remark", "info"].iter().filter_map(|word| begins(word)).min();
    let note = begins("note");
    let first = [(error, Heading::Error), (other, Heading::Other), (note, Heading::Note)];
    first
        .into_iter()
        .filter_map(|(at, kind)| Some((at?, kind)))
        .min_by_key(|(at, _)| *at)
        .map(|(_, kind)| kind)
}

/// A log without its warnings and remarks, and the lines that belong to those; all of it if it has no
/// error.
fn errors_of(log: &str) -> Cow<'_, str> {
    let headings = || log.lines().filter_map(heading);
    if !headings().any(|heading| heading == Heading::Error)
        || !headings().any(|heading| heading == Heading::Other)
    {
        return log.into();
    }
    let mut is_kept = true;
    let kept = log.lines().filter(|line| {
        is_kept = match heading(line) {
            Some(Heading::Error) => true,
            Some(Heading::Other) => false,
            // Clang's last line counts both.
            None if line.ends_with(" generated.") => true,
            Some(Heading::Note) | None => is_kept,
        };
        is_kept
    });
    kept.collect::<Vec<_>>().join("\n").into()
}

/// What it says, with those of its causes that it does not quote, as a `main` that gives it shows;
/// in full with `{:#?}`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            let mut told = self.to_string();
            let mut source = self.source();
            while let Some(cause) = source {
                let text = cause.to_string();
                if !told.contains(&text) {
                    told.push_str("\ncaused by: ");
                    told.push_str(&text);
                }
                source = cause.source();
            }
            return f.write_str(&told);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("driver_code", &self.0.driver)
            .field("build_log", &self.0.build_log)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Whether the system has no more of something, such as memory, threads, file descriptors or disk.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    #[cfg(unix)]
    if let Some(code) = rustix::io::Errno::from_io_error(error) {
        use rustix::io::Errno;
        if [Errno::MFILE, Errno::NFILE, Errno::NOBUFS].contains(&code) {
            return true;
        }
    }
    // The system starts no thread and no process: it says to try again.
    matches!(error.kind(), FileTooLarge | OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
}

/// The text of a caught panic, as far as it was text. What else it was stays in memory: it is the
/// application's, and dropping it may panic again.
pub(crate) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<String>() {
        Ok(text) => return *text,
        Err(other) => other,
    };
    let text = payload.downcast_ref::<&str>().copied().unwrap_or("a panic without a message");
    std::mem::forget(payload);
    text.to_owned()
}

/// Calls what is the application's, and goes on should it panic; `what` names it.
pub(crate) fn outlast(what: &str, call: impl FnOnce()) {
    let Err(payload) = catch_unwind(AssertUnwindSafe(call)) else { return };
    let message = panic_message(payload);
    // Who listens may panic, too.
    let told = catch_unwind(|| tracing::error!(message, "{what} panicked"));
    told.unwrap_or_else(std::mem::forget);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_remarks_are_not_told_with_errors() {
        let log = "warning: <unknown>:0:0: loop not vectorized [-Wpass-failed]\n\
                   a.cl:1:2: warning: unused variable 'x'\n  int x;\n      ^\n\
                   a.cl:2:3: note: declared here\n\
                   a.cl:3:4: error: use of undeclared identifier 'y'\n  y = 1;\n  ^\n\
                   a.cl:4:5: note: did you mean 'z'?\n\
                   a.cl:9:1: remark: inlined\n\
                   ptxas error   : Unresolved extern function 'tone'\n\
                   2 warnings and 1 error generated.";
        let expected = "a.cl:3:4: error: use of undeclared identifier 'y'\n  y = 1;\n  ^\n\
                        a.cl:4:5: note: did you mean 'z'?\n\
                        ptxas error   : Unresolved extern function 'tone'\n\
                        2 warnings and 1 error generated.";
        let error = Error::new(ErrorKind::BuildFailed, "refused").with_log(log);
        assert_eq!(error.to_string(), format!("build failed: refused\n{expected}"));
        assert_eq!(error.build_log(), Some(log));
        assert_eq!(error.summary(), "build failed: refused");
        for whole in ["a.cl:1:2: warning: unused", "no heading at all", "a.cl:1:2: error: bad\n ^"]
        {
            assert_eq!(errors_of(whole), whole);
        }
    }
}
