//! Report on the parts in which launches run, and on the ways to run each part.
//!
//! The texts stay short for scopes with many launches: positions that follow each other are written as a
//! range, and long names of kernels without their middle.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::form::FusionForm;

/// Report on a part: launches that run together, as one kernel, as several, or one by one. It lists the ways
/// to run them, with the times that the trials have measured.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// for part in report.parts() {
///     println!("launches {:?} can run in {} ways", part.launches, part.ways.len());
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartReport {
    /// Positions of the launches, in order.
    pub launches: Vec<usize>,
    /// Ways to run the launches, as far as their kernels are built. The first is to run them one by one.
    /// Kernels to be tried are built in the background, so the list grows during the first runs.
    pub ways: Vec<WayReport>,
}

/// Report on one way to run the launches of a part.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// let ways = report.parts().iter().flat_map(|part| &part.ways);
/// for way in ways.filter(|way| way.is_chosen) {
///     println!("{way}"); // such as "one kernel, strips of 32 rows: 81.3ms, the fastest"
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WayReport {
    /// Steps in the order in which they run.
    pub steps: Vec<StepReport>,
    /// Shortest time measured so far, on the device; from an earlier process if the trials ended there.
    pub time: Option<Duration>,
    /// Whether the trials have ended with this way as the fastest.
    pub is_chosen: bool,
}

/// Report on one step of a way: a kernel that does the work of several launches, or one launch by itself.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln_compiler::fusion::FusionReport) {
/// let ways = report.parts().iter().flat_map(|part| &part.ways);
/// for step in ways.flat_map(|way| &way.steps) {
///     if let (Some(kernel), Some(form)) = (&step.kernel, step.form) {
///         println!("`{kernel}` is {form}");
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StepReport {
    /// Positions of the launches, in order.
    pub launches: Vec<usize>,
    /// Positions of launches that the kernel runs again, instead of reading their results from memory. They
    /// run in another step or part, too.
    pub repeated: Vec<usize>,
    /// Name of the fused kernel; `None` for a launch by itself.
    pub kernel: Option<String>,
    /// Form of the fused kernel; `None` for a launch by itself.
    pub form: Option<FusionForm>,
}

impl PartReport {
    /// Creates a report.
    #[doc(hidden)]
    #[must_use]
    pub fn new(launches: Vec<usize>, ways: Vec<WayReport>) -> Self {
        Self { launches, ways }
    }
}

impl WayReport {
    /// Creates a report.
    #[doc(hidden)]
    #[must_use]
    pub fn new(steps: Vec<StepReport>, time: Option<Duration>, is_chosen: bool) -> Self {
        Self { steps, time, is_chosen }
    }
}

impl StepReport {
    /// Creates a report.
    #[doc(hidden)]
    #[must_use]
    pub fn new(
        launches: Vec<usize>,
        repeated: Vec<usize>,
        kernel: Option<String>,
        form: Option<FusionForm>,
    ) -> Self {
        Self { launches, repeated, kernel, form }
    }

    /// Creates the report on a launch by itself.
    #[doc(hidden)]
    #[must_use]
    pub fn of_launch(launch: usize) -> Self {
        Self { launches: vec![launch], repeated: Vec::new(), kernel: None, form: None }
    }

    /// Creates the report on a kernel.
    #[doc(hidden)]
    #[must_use]
    pub fn of_kernel(
        launches: &[usize],
        repeated: &[usize],
        (kernel, form): (&str, FusionForm),
    ) -> Self {
        Self {
            launches: launches.to_vec(),
            repeated: repeated.to_vec(),
            kernel: Some(kernel.to_owned()),
            form: Some(form),
        }
    }
}

/// Maximum length of a kernel's name in a text, in characters. Of a longer name, only the ends are written.
const MAX_NAME: usize = 48;
/// Maximum length of each end of a long name, in characters.
const MAX_END: usize = 24;

/// Returns the name of a kernel as texts contain it. The middle of a long name is left out, as in
/// `fused_unpack_denoise_.._filmic_overlay`.
#[must_use]
pub fn short_name(name: &str) -> Cow<'_, str> {
    let count = name.chars().count();
    if count <= MAX_NAME {
        return name.into();
    }
    let first: String = name.chars().take(MAX_END).collect();
    let last: String = name.chars().skip(count - MAX_END).collect();
    let first = first.rsplit_once('_').map_or(&*first, |(first, _)| first);
    let last = last.split_once('_').map_or(&*last, |(_, last)| last);
    format!("{first}_.._{last}").into()
}

/// Writes positions of launches, which are in order, such as "launches 0 to 4 and 7".
fn write_launches(f: &mut fmt::Formatter<'_>, launches: &[usize]) -> fmt::Result {
    f.write_str(if launches.len() == 1 { "launch " } else { "launches " })?;
    let mut texts = Vec::new();
    for run in launches.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        match run {
            [first, _, .., last] => texts.push(format!("{first} to {last}")),
            few => texts.extend(few.iter().map(usize::to_string)),
        }
    }
    for (at, text) in texts.iter().enumerate() {
        let separator = match at {
            0 => "",
            at if at + 1 == texts.len() => " and ",
            _ => ", ",
        };
        write!(f, "{separator}{text}")?;
    }
    Ok(())
}

/// Returns how launches run that are not fused.
fn unfused(launches: &[usize]) -> &'static str {
    if launches.len() == 1 { "alone" } else { "one by one" }
}

impl StepReport {
    fn write_repeated(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.repeated.is_empty() {
            return Ok(());
        }
        f.write_str(", which repeats ")?;
        write_launches(f, &self.repeated)
    }
}

/// Writes the launches, and the kernel with its form. The middle of a long name is left out.
impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_launches(f, &self.launches)?;
        match (&self.kernel, self.form) {
            (Some(kernel), Some(form)) => write!(f, " as `{}`, {form}", short_name(kernel))?,
            _ => write!(f, " {}", unfused(&self.launches))?,
        }
        self.write_repeated(f)
    }
}

/// Writes the steps and the time in one line, without the names of the kernels.
impl fmt::Display for WayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.steps {
            steps if steps.iter().all(|step| step.form.is_none()) => f.write_str("one by one")?,
            [StepReport { form: Some(form), .. }] => write!(f, "one kernel, {form}")?,
            steps => {
                for (at, step) in steps.iter().enumerate() {
                    f.write_str(if at > 0 { "; " } else { "" })?;
                    write_launches(f, &step.launches)?;
                    match step.form {
                        Some(form) => write!(f, " as one kernel, {form}")?,
                        None => write!(f, " {}", unfused(&step.launches))?,
                    }
                    step.write_repeated(f)?;
                }
            }
        }
        if let [step] = &*self.steps {
            step.write_repeated(f)?;
        }
        if let Some(time) = self.time {
            write!(f, ": {time:.1?}")?;
        }
        f.write_str(if self.is_chosen { ", the fastest" } else { "" })
    }
}

/// Writes a line for the part, then a line for each way.
impl fmt::Display for PartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_launches(f, &self.launches)?;
        if self.ways.len() < 2 {
            return write!(f, ": {}", unfused(&self.launches));
        }
        self.ways.iter().try_for_each(|way| write!(f, "\n  {way}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(launches: &[usize], repeated: &[usize], form: FusionForm) -> StepReport {
        StepReport::of_kernel(launches, repeated, ("both", form))
    }

    fn way(steps: Vec<StepReport>, micros: Option<u64>, is_chosen: bool) -> WayReport {
        WayReport { steps, time: micros.map(Duration::from_micros), is_chosen }
    }

    #[test]
    fn parts_display_their_ways_and_times() {
        let alone = || [2, 3, 4].map(StepReport::of_launch).to_vec();
        let form = FusionForm::Strips { rows: 32 };
        let part = PartReport {
            launches: vec![2, 3, 4],
            ways: vec![
                way(alone(), Some(3), false),
                way(vec![kernel(&[2, 3, 4], &[], FusionForm::Direct)], None, false),
                way(vec![kernel(&[2, 3, 4], &[0], form)], Some(4), false),
                way(
                    vec![StepReport::of_launch(2), kernel(&[3, 4], &[0], FusionForm::Direct)],
                    Some(2),
                    true,
                ),
            ],
        };
        let expected = "launches 2 to 4
  one by one: 3.0µs
  one kernel, direct
  one kernel, strips of 32 rows, which repeats launch 0: 4.0µs
  launch 2 alone; launches 3 and 4 as one kernel, direct, which repeats launch 0: 2.0µs, the fastest";
        assert_eq!(part.to_string(), expected);
        let single = PartReport { launches: vec![1], ways: vec![way(alone(), None, false)] };
        assert_eq!(single.to_string(), "launch 1: alone");
        let unbuilt = PartReport { launches: vec![1, 2], ways: vec![way(alone(), None, false)] };
        assert_eq!(unbuilt.to_string(), "launches 1 and 2: one by one");
    }

    #[test]
    fn positions_that_follow_each_other_display_as_ranges() {
        let text = |launches: &[usize]| kernel(launches, &[], FusionForm::Inlined).to_string();
        assert_eq!(text(&[0, 1]), "launches 0 and 1 as `both`, inlined");
        assert_eq!(
            text(&[0, 1, 2, 5, 7, 8, 9]),
            "launches 0 to 2, 5 and 7 to 9 as `both`, inlined"
        );
        assert_eq!(text(&[0, 1, 3, 4]), "launches 0, 1, 3 and 4 as `both`, inlined");
    }

    #[test]
    fn long_names_of_kernels_display_without_their_middle() {
        assert_eq!(short_name("fused_scale_offset"), "fused_scale_offset");
        let long = "fused_unpack_denoise_blur_rows_measure_expose_sobel_sketch_filmic_overlay";
        assert_eq!(short_name(long), "fused_unpack_denoise_.._sketch_filmic_overlay");
        let without_words = "\u{e9}".repeat(60);
        assert_eq!(short_name(&without_words).chars().count(), 2 * MAX_END + 4);
        let step = StepReport::of_kernel(&[0, 1, 2], &[], (long, FusionForm::Direct));
        assert_eq!(
            step.to_string(),
            "launches 0 to 2 as `fused_unpack_denoise_.._sketch_filmic_overlay`, direct"
        );
    }
}
