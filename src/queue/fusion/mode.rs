//! Policy for fusing launches, and the environment variables for this policy and for the form of fused kernels.

use std::time::Duration;

use kiln_compiler::fusion::FusionForm;

use crate::error::{Error, ErrorKind, Result};

/// Policy for fusing launches, for all scopes of a runtime.
///
/// # Examples
///
/// ```no_run
/// use kiln::{FusionMode, Runtime};
///
/// # async fn example() -> kiln::Result<()> {
/// let rt = Runtime::builder().fusion(FusionMode::Always).build().await?; // for a test of fusion
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusionMode {
    /// Fuses where that is faster. The first runs of the same launches are
    /// [timed](crate::guides::fusion#trials), in several ways that take turns, fused and unfused; later runs
    /// use the fastest way. Launches that differ only in the values of their scalar arguments count as the
    /// same, unless the fused kernel depends on these values.
    #[default]
    Auto,
    /// Like [`Auto`](Self::Auto), and also fuses launches whose programs let compilers compute other results than
    /// OpenCL requires: by build options, such as `-cl-fast-relaxed-math` and `-cl-mad-enable`, or by the fast-math
    /// modes of a SPIR-V module. The fused kernel is at least as accurate as the launches, but its bytes differ, also
    /// from run to run, as long as several ways take turns. The other modes do not fuse such launches.
    Relaxed,
    /// Fuses whenever that is legal, without timing, in the first [form](crate::fusion::FusionForm) that is legal. If
    /// there is no kernel for all launches, they run in the parts that are expected to be the fastest. For tests and
    /// measurements: scopes wait until their kernel is built, up to the whole
    /// [limit](crate::RuntimeBuilder::fusion_limit).
    Always,
    /// Runs the launches of a scope one by one, except for scopes that [require](crate::FusionScope::require)
    /// fusion.
    Never,
}

/// Time for which the launches of a scope wait for a fused kernel that is required, unless the runtime sets another.
/// Compilers take seconds for a large kernel on a slow machine with other work; some never end.
pub(crate) const FUSION_LIMIT: Duration = Duration::from_secs(120);

/// Maximum time for which a caller waits for a fused kernel where its launches may as well run one by one.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Environment variable that sets the mode.
const MODE_VARIABLE: &str = "KILN_FUSION";

/// Environment variable that gives all fused kernels one form.
const FORM_VARIABLE: &str = "KILN_FUSION_FORM";

/// Reads the form of all fused kernels from the environment. Returns `None` if the variable is not set.
///
/// # Errors
///
/// [`Configuration`](ErrorKind::Configuration) for a value that is not a form.
pub(crate) fn form_from_environment() -> Result<Option<FusionForm>> {
    let Some(text) = std::env::var_os(FORM_VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let form = text.to_string_lossy().parse();
    form.map(Some).map_err(|error: Error| {
        Error::new(ErrorKind::Configuration, format!("{FORM_VARIABLE}: {error}"))
    })
}

impl FusionMode {
    /// Whether the first runs of the same launches are timed.
    pub(crate) fn is_timed(self) -> bool {
        matches!(self, Self::Auto | Self::Relaxed)
    }

    /// Returns how long a caller waits for a fused kernel, if `limit` is set. `is_required` states whether the launches
    /// must run as one kernel.
    pub(crate) fn wait(self, limit: Duration, is_required: bool) -> Duration {
        if self.is_timed() && !is_required { limit.min(MAX_WAIT) } else { limit }
    }

    /// Reads the mode from the environment; the default is [`Auto`](Self::Auto).
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for any other value than a mode.
    pub(crate) fn from_environment() -> Result<Self> {
        let Some(text) = std::env::var_os(MODE_VARIABLE) else { return Ok(Self::Auto) };
        match text.to_str() {
            Some("auto" | "") => Ok(Self::Auto),
            Some("relaxed") => Ok(Self::Relaxed),
            Some("always") => Ok(Self::Always),
            Some("never") => Ok(Self::Never),
            _ => Err(Error::new(
                ErrorKind::Configuration,
                format!("{MODE_VARIABLE}: {text:?} is not `auto`, `relaxed`, `always` or `never`"),
            )),
        }
    }
}
