//! Verdicts on launches as applications read them.

use std::fmt;

/// Verdict on a launch, from `Launch::verdict`: whether the launch is proven to stay
/// inside its memory, and otherwise what is guarded.
///
/// It displays as one line, or as one line for each finding after the first line.
///
/// # Examples
///
/// ```no_run
/// # fn example(verdict: kiln_compiler::bounds::LaunchVerdict) {
/// if !verdict.is_proven() {
///     eprintln!("{verdict}"); // names the parameter that is too short, and by how much
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchVerdict {
    pub(super) kernel: String,
    pub(super) accesses: usize,
    pub(super) findings: Vec<Finding>,
}

/// Reason why a launch is not proven: an access that is guarded, or other code that is mended.
///
/// # Examples
///
/// ```no_run
/// # fn example(verdict: kiln_compiler::bounds::LaunchVerdict) {
/// for finding in verdict.findings() {
///     let parameter = finding.parameter.as_deref().unwrap_or("none");
///     println!("parameter {parameter}: {}", finding.what);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Name of the parameter whose memory the kernel accesses; `None` for other memory and other code.
    pub parameter: Option<String>,
    /// Action of the kernel, in words that follow its name, such as "writes `y`".
    pub what: String,
    /// Reason why the access is not proven; `None` for other code.
    pub reason: Option<String>,
    /// File and line of the source, such as "blur.cl:12", if they are known; "line 12" for a text without a
    /// label (`Module::label`).
    pub line: Option<String>,
}

impl LaunchVerdict {
    /// Returns whether every access is proven to stay inside its memory, and nothing else has to be mended. The
    /// kernel of such a launch runs as it is.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(verdict: kiln_compiler::bounds::LaunchVerdict) {
    /// assert!(verdict.is_proven());
    /// # }
    /// ```
    #[must_use]
    pub fn is_proven(&self) -> bool {
        self.findings.is_empty()
    }

    /// Returns the reasons why the launch is not proven; empty for a proven launch.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(verdict: kiln_compiler::bounds::LaunchVerdict) {
    /// println!("{} accesses are guarded", verdict.findings().len());
    /// # }
    /// ```
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the name of the kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(verdict: kiln_compiler::bounds::LaunchVerdict) {
    /// println!("`{}` is proven: {}", verdict.kernel(), verdict.is_proven());
    /// # }
    /// ```
    #[must_use]
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Returns the number of instructions that access buffers, local memory, or variables of the kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(verdict: kiln_compiler::bounds::LaunchVerdict) {
    /// println!("{} of {} accesses are guarded", verdict.findings().len(), verdict.accesses());
    /// # }
    /// ```
    #[must_use]
    pub fn accesses(&self) -> usize {
        self.accesses
    }
}

impl fmt::Display for LaunchVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, accesses, findings } = self;
        if findings.is_empty() {
            return match accesses {
                0 => write!(f, "`{kernel}` is proven: it accesses no memory"),
                1 => write!(f, "`{kernel}` is proven: its access stays inside its memory"),
                _ => write!(
                    f,
                    "`{kernel}` is proven: all {accesses} accesses stay inside their memory"
                ),
            };
        }
        write!(f, "`{kernel}` is guarded:")?;
        findings.iter().try_for_each(|finding| write!(f, "\n  it {finding}"))
    }
}

/// Writes one line, which follows the name of the kernel.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        match &self.line {
            Some(line) => write!(f, " ({line})"),
            None => Ok(()),
        }
    }
}
