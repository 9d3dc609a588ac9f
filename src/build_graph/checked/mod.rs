//! Kernels whose launches are checked before they run.
//!
//! The check is about SPIR-V, so the kernel that runs must be compiled from the SPIR-V that was analysed, or
//! from text that Kiln made of it. A [checked program](plan) holds this: for a program of SPIR-V modules that
//! Kiln builds or merges itself, it is the program itself. For OpenCL C, the device's own compiler would read
//! the text in its own way; for objects that the driver links, its linker would choose the definitions. So the
//! checked program is built from the translated, merged modules instead, as a node of its own. Its kernels and functions
//! have [names](kiln_spirv::own_names) that Kiln made.
//!
//! * [`program`]: checked programs as applications request and use them.
//! * [`analysis`]: a program's kernel, prepared for the check.
//! * [`plan`]: the plan of the checked program.
//! * [`checks`]: verdicts of one kernel, with those of recent launches.
//! * [`ended`]: the error for kernels whose runtime has ended.
//! * [`shape`]: the part of a launch that its verdict depends on.
//! * [`sources`]: the lines of the source that findings about OpenCL C name.
//! * [`variant`]: variants with guards and offsets, as nodes of the graph.
//! * [`offsets`]: variants for unchecked launches with slices that the device does not take as arguments.
//! * [`kernels`]: builds of checked programs, and checks of single kernels.

mod analysis;
mod checks;
mod ended;
mod kernels;
mod offsets;
mod plan;
mod program;
mod shape;
mod sources;
mod variant;

pub(crate) use checks::{Checks, Decision};
pub(super) use ended::graph_of;
pub use program::{CheckedBuild, CheckedBuildRequest, CheckedProgram};
pub(crate) use shape::LaunchShape;
pub(crate) use variant::Variant;

/// Treatment of checked launches that are not proven, for all of a runtime:
/// [`RuntimeBuilder::checked`](crate::RuntimeBuilder::checked).
///
/// # Examples
///
/// ```no_run
/// use kiln::Runtime;
/// use kiln::launch::CheckMode;
///
/// # async fn example() -> kiln::Result<()> {
/// // In tests, a launch that would need a guard fails.
/// let rt = Runtime::builder().checked(CheckMode::Proven).build().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CheckMode {
    /// A guarded variant of the kernel runs. This is the default.
    #[default]
    Guarded,
    /// The launch is an error, as with [`Launch::require_proof`](crate::Launch::require_proof).
    Proven,
}
