//! The error type of the crate, its kinds, and the driver's codes by name.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The result of a fallible operation of this crate.
///
/// # Examples
///
/// ```
/// # use kiln_spirv as kiln;
/// fn describe(result: &kiln::Result<u32>) -> String {
///     match result {
///         Ok(number) => number.to_string(),
///         Err(error) => error.summary(),
///     }
/// }
/// # assert_eq!(describe(&Ok(1)), "1");
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Class of an error, for programs to match on.
///
/// The kind also decides whether the build graph keeps the failure: see [`Error::is_deterministic`].
///
/// # Examples
///
/// ```
/// # use kiln_spirv::{self as kiln, ErrorKind};
/// # let error = kiln::Error::new(ErrorKind::InvalidArgument, "");
/// let status = match error.kind() {
///     ErrorKind::OutOfResources => 503, // the client tries again later
///     ErrorKind::InvalidArgument => 400,
///     _ => 500,
/// };
/// # assert_eq!(status, 400);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No driver was found, or no suitable device.
    NoDevice,
    /// A setting from the environment or a builder has an unusable value; or the program that compiles in a
    /// process of its own is missing or has another version.
    Configuration,
    /// The module does not match its format: it is empty, truncated or malformed.
    InvalidModule,
    /// The device does not support the input, such as the module's format; a compiler that would translate it
    /// is missing; or launches that were required to be fused cannot be fused.
    Unsupported,
    /// The driver's compiler or linker, or another compiler involved in the build, rejected the program;
    /// [`Error::build_log`] has the reason. Or no module exports a symbol that the program imports, or several
    /// do.
    BuildFailed,
    /// The program has no kernel with the requested name.
    UnknownKernel,
    /// An argument, a range, a slice or a length does not fit its use; or it comes too late, such as for a
    /// fusion scope that has ended.
    InvalidArgument,
    /// Memory or another resource of the device or the host is temporarily exhausted: threads, processes, file
    /// descriptors, address space or disk.
    OutOfResources,
    /// The device stopped working; no result of work that ran on it can be trusted.
    DeviceLost,
    /// A host future in the command DAG, or the closure of a native command, returned an error.
    HostTask,
    /// A host future awaits a command that itself waits for that future.
    Deadlock,
    /// A time limit set by the application has passed.
    TimedOut,
    /// The application canceled the command before the device was given it.
    Canceled,
    /// A compiler, a host future or Kiln's own fusing compiler panicked.
    Panicked,
    /// A file or a remote cache could not be read or written, a process could not be started, files changed
    /// during use, or another process was collecting the cache.
    Io,
    /// The driver reported any other failure, or a compiler in a process of its own did not finish in time.
    Driver,
    /// The process is exiting, and its drivers no longer accept calls.
    ProcessEnding,
    /// This process is a forked child. The threads and drivers of its parent do not exist in it.
    Forked,
}

impl ErrorKind {
    /// All kinds.
    #[doc(hidden)]
    pub const ALL: [Self; 18] = [
        Self::NoDevice,
        Self::Configuration,
        Self::InvalidModule,
        Self::Unsupported,
        Self::BuildFailed,
        Self::UnknownKernel,
        Self::InvalidArgument,
        Self::OutOfResources,
        Self::DeviceLost,
        Self::HostTask,
        Self::Deadlock,
        Self::TimedOut,
        Self::Canceled,
        Self::Panicked,
        Self::Io,
        Self::Driver,
        Self::ProcessEnding,
        Self::Forked,
    ];

    const fn describe(self) -> &'static str {
        match self {
            Self::NoDevice => "no device",
            Self::Configuration => "bad configuration",
            Self::InvalidModule => "invalid module",
            Self::Unsupported => "unsupported",
            Self::BuildFailed => "build failed",
            Self::UnknownKernel => "unknown kernel",
            Self::InvalidArgument => "invalid argument",
            Self::OutOfResources => "out of resources",
            Self::DeviceLost => "device lost",
            Self::HostTask => "host task failed",
            Self::Deadlock => "deadlock",
            Self::TimedOut => "timed out",
            Self::Canceled => "canceled",
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
///
/// # Examples
///
/// ```
/// # use kiln_spirv::DriverCode;
/// let code = DriverCode { code: -5, name: "CL_OUT_OF_RESOURCES" };
/// assert_eq!(code.to_string(), "CL_OUT_OF_RESOURCES (-5)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DriverCode {
    /// The number returned by the driver.
    pub code: i32,
    /// The code's symbolic name.
    pub name: &'static str,
}

impl fmt::Display for DriverCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.code)
    }
}

/// The error of every fallible operation in this crate.
///
/// Cloning is cheap: every waiter of a build, and every dependent of a failed command, gets the same error.
///
/// # Examples
///
/// ```
/// # use kiln_spirv::{self as kiln, ErrorKind};
/// # fn release_memory() {}
/// fn report(error: &kiln::Error) {
///     eprintln!("{error}"); // the summary, and the errors of the compiler
///     if error.kind() == ErrorKind::OutOfResources {
///         release_memory();
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    driver: Option<DriverCode>,
    build_log: Option<String>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether the failure is transient even if its kind is deterministic.
    is_transient: bool,
    /// The original failure, if this error is of a command that was not run because another command failed.
    root: Option<Error>,
    /// The failure as all of its receivers have it, if this error explains it further.
    unexplained: Option<Error>,
}

impl Error {
    #[doc(hidden)]
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            driver: None,
            build_log: None,
            source: None,
            is_transient: false,
            root: None,
            unexplained: None,
        }))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Returns the error of a failed system call: [`OutOfResources`](ErrorKind::OutOfResources) if a system
    /// resource is exhausted, else [`Io`](ErrorKind::Io).
    #[doc(hidden)]
    #[must_use]
    pub fn of_system(message: impl Into<Cow<'static, str>>, error: io::Error) -> Self {
        let kind = if is_exhaustion(&error) { ErrorKind::OutOfResources } else { ErrorKind::Io };
        Self::new(kind, message).with_source(error)
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_code(self, code: DriverCode) -> Self {
        self.map(|inner| inner.driver = Some(code))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_log(self, log: impl Into<String>) -> Self {
        self.map(|inner| inner.build_log = Some(log.into()))
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.map(|inner| inner.source = Some(source.into().into()))
    }

    /// Marks the error as transient, whatever its kind.
    #[doc(hidden)]
    #[must_use]
    pub fn transient(self) -> Self {
        self.map(|inner| inner.is_transient = true)
    }

    /// Replaces the error's kind.
    #[doc(hidden)]
    #[must_use]
    pub fn of_kind(self, kind: ErrorKind) -> Self {
        self.map(|inner| inner.kind = kind)
    }

    /// Prefixes the message with `place`.
    #[doc(hidden)]
    #[must_use]
    pub fn within(self, place: impl fmt::Display) -> Self {
        self.map(|inner| inner.message = format!("{place}: {}", inner.message).into())
    }

    /// Adds an explanation that not every receiver of the error has. It stays the [same](Self::same) failure.
    #[doc(hidden)]
    #[must_use]
    pub fn explained(self, explanation: impl fmt::Display) -> Self {
        let unexplained = self.0.unexplained.clone().unwrap_or_else(|| self.clone());
        self.within(explanation).map(|inner| inner.unexplained = Some(unexplained))
    }

    /// Returns the error of a command, `subject`, that was not run because of this failure.
    #[doc(hidden)]
    #[must_use]
    pub fn spread_to(&self, subject: &str, reason: &str) -> Self {
        let root = self.0.root.as_ref().unwrap_or(self);
        let message = format!("{subject} was not run: {reason}: {}", root.message());
        root.clone().map(|inner| {
            inner.message = message.into();
            inner.root = Some(root.clone());
        })
    }

    /// Applies `change` to the error. Clones of the error made earlier stay unchanged.
    fn map(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Returns the class of the error, for programs to match on.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln_spirv::{self as kiln, ErrorKind};
    /// # let error = kiln::Error::new(ErrorKind::InvalidArgument, "`main` is not 64 hexadecimal digits");
    /// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the message, without kind, driver code and build log.
    #[doc(hidden)]
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the driver's own code, if a driver reported the failure.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(error: &kiln_spirv::Error) {
    /// if let Some(code) = error.driver_code() {
    ///     eprintln!("the driver reported {code}"); // such as `CL_OUT_OF_RESOURCES (-5)`
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn driver_code(&self) -> Option<DriverCode> {
        self.0.driver
    }

    /// Returns the compiler's messages, if a build failed and the driver returned any.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(error: &kiln_spirv::Error) {
    /// let log = error.build_log().unwrap_or("the compiler gave no reason");
    /// eprintln!("{}\n{log}", error.summary()); // with all warnings
    /// # }
    /// ```
    #[must_use]
    pub fn build_log(&self) -> Option<&str> {
        self.0.build_log.as_deref()
    }

    /// Returns the error's text without the compiler's messages, which [`build_log`](Self::build_log) returns
    /// in full.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln_spirv::{self as kiln, ErrorKind};
    /// # let error = kiln::Error::new(ErrorKind::InvalidArgument, "`main` is not 64 hexadecimal digits");
    /// assert_eq!(error.summary(), "invalid argument: `main` is not 64 hexadecimal digits");
    /// ```
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

    /// Returns whether the same request would fail in the same way again.
    ///
    /// The build graph caches such failures like results: another request for the same build gets the same
    /// error without another compile. The exception is an unresolved import of a module: the libraries are
    /// searched again. Transient failures are never cached: exhausted memory, a lost device, a panic, an I/O
    /// error or a missing build child.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln_spirv as kiln;
    /// fn retried<T>(build: impl Fn() -> kiln::Result<T>) -> kiln::Result<T> {
    ///     match build() {
    ///         Err(error) if !error.is_deterministic() => build(), // the second attempt can succeed
    ///         built => built,
    ///     }
    /// }
    /// # assert!(retried(|| Ok(())).is_ok());
    /// ```
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        match self.0.kind {
            _ if self.0.is_transient => false,
            ErrorKind::Configuration
            | ErrorKind::InvalidModule
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
            | ErrorKind::Canceled
            | ErrorKind::Panicked
            | ErrorKind::Io
            | ErrorKind::Driver
            | ErrorKind::ProcessEnding
            | ErrorKind::Forked => false,
        }
    }

    /// Returns whether both errors stem from the same failure: either the failed command itself, or a command
    /// that was not run because of it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln_spirv as kiln;
    /// fn report(cause: &kiln::Error, effect: &kiln::Error) {
    ///     println!("{cause}");
    ///     if !effect.same(cause) {
    ///         println!("{effect}"); // a second failure
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let failure = |error: &Self| {
            let root = error.0.root.as_ref().unwrap_or(error);
            Arc::as_ptr(&root.0.unexplained.as_ref().unwrap_or(root).0)
        };
        failure(self) == failure(other)
    }
}

/// Writes the summary, then the compiler's messages. If the log has errors besides warnings or remarks, only
/// its errors are written.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_summary(f)?;
        if let Some(log) = self.build_log().map(str::trim).filter(|log| !log.is_empty()) {
            write!(f, "\n{}", errors_of(log))?;
        }
        Ok(())
    }
}

/// Kind of the compiler message that a log line begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heading {
    Error,
    /// A warning or a remark.
    Other,
    /// A note, which belongs to the message before it.
    Note,
}

/// Returns the kind of message that a log line begins, or `None` if it begins none.
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
    let candidates = [(error, Heading::Error), (other, Heading::Other), (note, Heading::Note)];
    candidates
        .into_iter()
        .filter_map(|(at, kind)| Some((at?, kind)))
        .min_by_key(|(at, _)| *at)
        .map(|(_, kind)| kind)
}

/// Returns a log without its warnings and remarks and the lines that belong to them. A log without an error is
/// returned whole.
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
            // Clang's last line counts both warnings and errors.
            None if line.ends_with(" generated.") => true,
            Some(Heading::Note) | None => is_kept,
        };
        is_kept
    });
    kept.collect::<Vec<_>>().join("\n").into()
}

/// Writes the message and each cause whose text the message does not already contain, because a `main` that
/// returns an error prints it this way. `{:#?}` writes all fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            let mut message = self.to_string();
            let mut source = self.source();
            while let Some(cause) = source {
                let text = cause.to_string();
                if !message.contains(&text) {
                    message.push_str("\ncaused by: ");
                    message.push_str(&text);
                }
                source = cause.source();
            }
            return f.write_str(&message);
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

/// Returns whether a system resource is exhausted, such as memory, threads, file descriptors or disk.
fn is_exhaustion(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    #[cfg(unix)]
    if let Some(code) = rustix::io::Errno::from_io_error(error) {
        use rustix::io::Errno;
        if [Errno::MFILE, Errno::NFILE, Errno::NOBUFS].contains(&code) {
            return true;
        }
    }
    // The system reports `WouldBlock` when it cannot start a thread or a process.
    matches!(error.kind(), FileTooLarge | OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_omit_warnings_and_remarks_if_there_are_errors() {
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
