//! Outcome of a fusion scope: how its launches run, and why.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::channel::oneshot;
use kiln_compiler::fusion::{FusionForm, StepReport, short_name};

use crate::error::{Error, ErrorKind, Result};

/// Outcome of a [`FusionScope`](crate::FusionScope): how its launches run this time. While the ways to run
/// them are [tried](crate::guides::fusion#trials), it differs from run to run; the results of the launches do
/// not.
///
/// It displays as one line, without the middle of long kernel names.
///
/// # Examples
///
/// ```no_run
/// use kiln::fusion::FusionOutcome;
///
/// # async fn example(fusion: kiln::FusionScope) -> kiln::Result<()> {
/// if let FusionOutcome::Fused { internalized, .. } = fusion.complete().await? {
///     println!("{internalized} buffers are not written");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FusionOutcome {
    /// One kernel does the work of all launches. If a command before it then fails, or the driver refuses it,
    /// they still run one by one, and each launch's event reports how that launch ended.
    #[non_exhaustive]
    Fused {
        /// Name of the fused kernel.
        kernel: String,
        /// Form of the fused kernel.
        form: FusionForm,
        /// Number of launches that the kernel replaces.
        launches: usize,
        /// Number of buffers that the kernel does without.
        internalized: usize,
    },
    /// The launches run in several parts, and a fused kernel runs at least one of them. If a command fails,
    /// only those launches fail that depend on it, or that run as one kernel with a launch that does.
    #[non_exhaustive]
    Parts {
        /// Parts in the order in which they run. Each launch is in one of them.
        parts: Vec<FusedPart>,
    },
    /// The launches run one by one.
    #[non_exhaustive]
    Unfused {
        /// Reason.
        why: Unfused,
    },
}

/// Part of a [`FusionScope`](crate::FusionScope): launches that run as one kernel, or one by one.
///
/// # Examples
///
/// ```no_run
/// use kiln::fusion::FusionOutcome;
///
/// # async fn example(fusion: kiln::FusionScope) -> kiln::Result<()> {
/// if let FusionOutcome::Parts { parts, .. } = fusion.complete().await? {
///     let kernels = parts.iter().filter_map(|part| part.kernel.as_ref());
///     println!("{} kernels are fused", kernels.count());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FusedPart {
    /// Positions of the launches in the scope, in order.
    pub launches: Vec<usize>,
    /// Positions of launches of other parts that the kernel runs again, instead of reading their results from
    /// memory.
    pub repeated: Vec<usize>,
    /// Name of the fused kernel; `None` if the launches run one by one.
    pub kernel: Option<String>,
    /// Form of the fused kernel; `None` if the launches run one by one.
    pub form: Option<FusionForm>,
    /// Number of buffers that the kernel does without.
    pub internalized: usize,
    /// Reason why the launches run one by one, if they do. For a launch that no part can take in, or for which
    /// that is not expected to be faster, it is the reason why the scope is not one kernel.
    pub why: Option<Unfused>,
}

impl FusedPart {
    /// Creates the part of launches that run one by one.
    pub(crate) fn alone(launches: Vec<usize>, why: Unfused) -> Self {
        let repeated = Vec::new();
        Self { launches, repeated, kernel: None, form: None, internalized: 0, why: Some(why) }
    }

    /// Returns the part with its launches at positions behind `before` others.
    pub(crate) fn behind(mut self, before: usize) -> Self {
        self.launches.iter_mut().chain(&mut self.repeated).for_each(|at| *at += before);
        self
    }
}

/// Reason why launches run one by one.
///
/// # Examples
///
/// ```no_run
/// use kiln::fusion::{FusionOutcome, Unfused};
///
/// # fn example(outcome: FusionOutcome) {
/// if let FusionOutcome::Unfused { why: Unfused::Slower { fused, unfused, .. }, .. } = outcome {
///     println!("the fused kernel takes {fused:?}, the launches {unfused:?}");
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Unfused {
    /// The scope had no launches.
    Empty,
    /// The scope had only one launch.
    Single,
    /// The scope had been canceled, or completed earlier.
    Canceled,
    /// The scope was aborted: a command or wait outside it needed one of its launches. The text names
    /// both.
    Aborted(String),
    /// The launches cannot run as one kernel, or it is not proven that the results would not change. The text
    /// gives the reason; the [report](crate::FusionScope::report) has all details.
    Refused(String),
    /// Running one by one is faster, measured by device time in the first runs.
    #[non_exhaustive]
    Slower {
        /// Shortest time of the fastest other way to run the launches: as one kernel, or in parts.
        fused: Duration,
        /// Shortest time of the launches one by one, including the gaps between them, but not the time spent
        /// waiting for other commands.
        unfused: Duration,
    },
    /// This run is timed, to find out whether fusing is faster. Later runs use the fastest way.
    Timing,
    /// The replays of a graph ran one by one, because buffers that were bound overlap, or overlap with fixed ones.
    Overlapping,
    /// The fused kernel was not built within one second or, if that is less, within the
    /// [limit](crate::RuntimeBuilder::fusion_limit). The build continues in the background. Until it ends,
    /// scopes with the same launches have this outcome at once; afterwards they use the kernel.
    #[non_exhaustive]
    Overdue {
        /// Name of the fused kernel that was being built.
        kernel: String,
        /// Time that the launches waited at most.
        limit: Duration,
    },
    /// Fusing is disabled: [`FusionMode::Never`](crate::FusionMode::Never).
    Disabled,
    /// The fused kernel could not be built because of a failure of circumstance, such as exhausted
    /// memory.
    Failed(Error),
}

impl fmt::Display for Unfused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the scope has no launches"),
            Self::Single => f.write_str("the scope has only one launch"),
            Self::Canceled => f.write_str("the scope was already canceled or completed"),
            Self::Aborted(why) => write!(f, "aborted: {why}"),
            Self::Refused(why) => f.write_str(why),
            Self::Slower { fused, unfused } => write!(
                f,
                "the launches are faster one by one: they take {unfused:.1?}, and the fused kernel \
                 takes {fused:.1?}"
            ),
            Self::Timing => f.write_str("this run is timed, to decide whether fusion is faster"),
            Self::Overlapping => {
                f.write_str("buffers of the replays overlap; bind buffers that do not overlap")
            }
            Self::Overdue { kernel, limit } => write!(
                f,
                "`{}` was not built within {limit:?}; the build continues, and later scopes use the \
                 kernel once it is built; `RuntimeBuilder::fusion_limit` sets the limit",
                short_name(kernel)
            ),
            Self::Disabled => f.write_str("fusion is disabled"),
            Self::Failed(error) => write!(f, "the fused kernel could not be built: {error}"),
        }
    }
}

impl FusionOutcome {
    /// Returns the outcome for launches that run in these parts.
    ///
    /// # Errors
    ///
    /// Returns the reason if no launches run as one.
    pub(crate) fn of(mut parts: Vec<FusedPart>) -> Result<Self, Unfused> {
        if parts.iter().all(|part| part.kernel.is_none()) {
            let mut reasons = parts.into_iter().filter_map(|part| part.why);
            return Err(reasons.next().unwrap_or(Unfused::Empty));
        }
        if let [part] = &mut *parts
            && let (Some(kernel), Some(form)) = (part.kernel.take(), part.form)
        {
            let (launches, internalized) = (part.launches.len(), part.internalized);
            return Ok(Self::Fused { kernel, form, launches, internalized });
        }
        Ok(Self::Parts { parts })
    }

    /// Returns whether all launches run as one kernel. It is false for launches that run in
    /// [parts](Self::Parts).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(fusion: kiln::FusionScope) -> kiln::Result<()> {
    /// let outcome = fusion.complete().await?;
    /// if !outcome.is_fused() {
    ///     eprintln!("{outcome}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_fused(&self) -> bool {
        matches!(self, Self::Fused { .. })
    }
}

/// Writes one line, which stays short for scopes with many launches: launches that run one by one are written
/// together, each reason once, and long names of kernels without their middle.
impl fmt::Display for FusionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fused { kernel, form, launches, internalized } => {
                write!(f, "{launches} launches run as `{}`", short_name(kernel))?;
                if *form != FusionForm::Direct {
                    write!(f, ", {form}")?;
                }
                write_internalized(f, *internalized)
            }
            Self::Parts { parts } => {
                let launches = parts.iter().map(|part| part.launches.len()).sum::<usize>();
                write!(f, "{launches} launches run in {} parts", parts.len())?;
                let fused = parts.iter().filter(|part| part.kernel.is_some()).cloned();
                for (at, part) in fused.chain(unfused_by_reason(parts)).enumerate() {
                    write!(f, "{} {part}", if at == 0 { ":" } else { ";" })?;
                }
                Ok(())
            }
            Self::Unfused { why } => write!(f, "not fused: {why}"),
        }
    }
}

/// Returns the launches that run one by one, those with the same reason as one part.
fn unfused_by_reason(parts: &[FusedPart]) -> Vec<FusedPart> {
    let reason = |part: &FusedPart| part.why.as_ref().map(Unfused::to_string);
    let mut all: Vec<FusedPart> = Vec::new();
    for part in parts.iter().filter(|part| part.kernel.is_none()) {
        match all.iter_mut().find(|known| reason(known) == reason(part)) {
            Some(known) => known.launches.extend(&part.launches),
            None => all.push(part.clone()),
        }
    }
    all.iter_mut().for_each(|part| part.launches.sort_unstable());
    all
}

/// Writes the launches, and their kernel with its form or the reason why there is none.
impl fmt::Display for FusedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (launches, repeated) = (self.launches.clone(), self.repeated.clone());
        let step = StepReport::new(launches, repeated, self.kernel.clone(), self.form);
        write!(f, "{step}")?;
        match &self.why {
            Some(why) => write!(f, " ({why})"),
            None => write_internalized(f, self.internalized),
        }
    }
}

/// Writes the number of buffers that a kernel does without.
fn write_internalized(f: &mut fmt::Formatter<'_>, count: usize) -> fmt::Result {
    match count {
        0 => Ok(()),
        1 => f.write_str(", 1 buffer internalized"),
        _ => write!(f, ", {count} buffers internalized"),
    }
}

/// Future of a [`FusionOutcome`], from [`FusionScope::complete`](crate::FusionScope::complete).
///
/// # Cancel safety
///
/// Dropping it changes nothing: the launches run all the same. Polling again after completion returns
/// the same result.
///
/// # Examples
///
/// ```no_run
/// use kiln::FusionScope;
/// use kiln::fusion::CompleteFusion;
///
/// # async fn example(tiles: Vec<FusionScope>) -> kiln::Result<()> {
/// let completions: Vec<CompleteFusion> = tiles.iter().map(FusionScope::complete).collect();
/// for completion in completions {
///     println!("{}", completion.await?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the launches run, but the outcome of the fusion is lost"]
pub struct CompleteFusion(State);

#[derive(Debug)]
enum State {
    Known(Result<FusionOutcome>),
    Awaited(oneshot::Receiver<Result<FusionOutcome>>),
}

impl CompleteFusion {
    pub(super) fn known(outcome: Result<FusionOutcome>) -> Self {
        Self(State::Known(outcome))
    }

    pub(super) fn awaited(outcome: oneshot::Receiver<Result<FusionOutcome>>) -> Self {
        Self(State::Awaited(outcome))
    }
}

impl Future for CompleteFusion {
    type Output = Result<FusionOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.0 {
            State::Known(outcome) => return Poll::Ready(outcome.clone()),
            State::Awaited(receiver) => ready!(Pin::new(receiver).poll(context)),
        };
        let outcome = outcome.unwrap_or_else(|oneshot::Canceled| {
            Err(Error::new(
                ErrorKind::Panicked,
                "the fusing compiler panicked; the launches run one by one",
            ))
        });
        self.0 = State::Known(outcome.clone());
        Poll::Ready(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fused(launches: &[usize], repeated: &[usize], kernel: &str, form: FusionForm) -> FusedPart {
        FusedPart {
            launches: launches.to_vec(),
            repeated: repeated.to_vec(),
            kernel: Some(kernel.to_owned()),
            form: Some(form),
            internalized: launches.len() / 2,
            why: None,
        }
    }

    #[test]
    fn outcomes_of_many_launches_display_in_one_short_line() {
        let why = || Unfused::Refused("`denoise` reads `in` at gid-1".into());
        let strips = FusionForm::Strips { rows: 32 };
        let parts = vec![
            fused(&[0, 3, 5], &[], "fused_unpack_measure_sobel", FusionForm::Direct),
            FusedPart::alone(vec![1], why()),
            FusedPart::alone(vec![4], why()),
            fused(
                &[2, 7, 8, 9, 10],
                &[1],
                "fused_denoise_blur_rows_blur_columns_unsharp_filmic_overlay",
                strips,
            ),
            FusedPart::alone(vec![6], Unfused::Timing),
        ];
        let expected = "11 launches run in 5 parts: \
            launches 0, 3 and 5 as `fused_unpack_measure_sobel`, direct, 1 buffer internalized; \
            launches 2 and 7 to 10 as `fused_denoise_blur_rows_.._unsharp_filmic_overlay`, strips of \
            32 rows, which repeats launch 1, 2 buffers internalized; \
            launches 1 and 4 one by one (`denoise` reads `in` at gid-1); \
            launch 6 alone (this run is timed, to decide whether fusion is faster)";
        assert_eq!(FusionOutcome::Parts { parts }.to_string(), expected);
    }

    #[test]
    fn the_outcome_of_one_kernel_names_it_and_its_form() {
        let outcome = |kernel: &str, form, internalized| {
            let kernel = kernel.to_owned();
            FusionOutcome::Fused { kernel, form, launches: 11, internalized }.to_string()
        };
        let long = "fused_unpack_denoise_blur_rows_measure_expose_sobel_sketch_filmic_overlay";
        assert_eq!(
            outcome(long, FusionForm::Inlined, 4),
            "11 launches run as `fused_unpack_denoise_.._sketch_filmic_overlay`, inlined, 4 buffers \
             internalized"
        );
        assert_eq!(outcome("fused", FusionForm::Direct, 0), "11 launches run as `fused`");
    }

    #[test]
    fn launches_of_a_part_that_run_one_by_one_display_their_reason_once() {
        let part = FusedPart::alone(vec![3, 4, 5], Unfused::Disabled);
        assert_eq!(part.to_string(), "launches 3 to 5 one by one (fusion is disabled)");
    }
}
