//! Report on the parts in which launches run, and on the ways to run each part.

use std::fmt;
use std::time::Duration;

use super::form::FusionForm;

/// Report on launches that run together: as one kernel, as several, or one by one.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln::FusionReport) {
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
    /// Ways to run the launches whose kernels are built. The first is to run them one by one.
    pub ways: Vec<WayReport>,
}

/// Report on one way to run the launches of a part.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln::FusionReport) {
/// let ways = report.parts().iter().flat_map(|part| &part.ways);
/// for way in ways.filter(|way| way.is_chosen) {
///     println!("{way}"); // such as "launches 0 and 1 as `scale_offset`, direct: 81.3 us"
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WayReport {
    /// Steps in the order in which they run.
    pub steps: Vec<StepReport>,
    /// Shortest time measured so far.
    pub time: Option<Duration>,
    /// Whether the trials have ended, and this way was the fastest.
    pub is_chosen: bool,
}

/// Report on one step of a way: a kernel that does the work of launches, or one launch by itself.
///
/// # Examples
///
/// ```no_run
/// # fn example(report: kiln::FusionReport) {
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
    /// Positions of the launches.
    pub launches: Vec<usize>,
    /// Positions of launches of other steps that the kernel runs again instead of reading their results.
    pub repeated: Vec<usize>,
    /// Name of the fused kernel; `None` for a launch by itself.
    pub kernel: Option<String>,
    /// Form of the fused kernel; `None` for a launch by itself.
    pub form: Option<FusionForm>,
}

impl StepReport {
    /// Creates the report on a launch by itself.
    pub(crate) fn of_launch(launch: usize) -> Self {
        Self { launches: vec![launch], repeated: Vec::new(), kernel: None, form: None }
    }

    /// Creates the report on a kernel.
    pub(crate) fn of_kernel(
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

/// Writes positions of launches, such as "launches 0, 1 and 2".
pub(super) fn write_launches(f: &mut fmt::Formatter<'_>, launches: &[usize]) -> fmt::Result {
    f.write_str(if launches.len() == 1 { "launch " } else { "launches " })?;
    for (at, launch) in launches.iter().enumerate() {
        let separator = match at {
            0 => "",
            at if at + 1 == launches.len() => " and ",
            _ => ", ",
        };
        write!(f, "{separator}{launch}")?;
    }
    Ok(())
}

impl fmt::Display for StepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_launches(f, &self.launches)?;
        match (&self.kernel, self.form) {
            (Some(kernel), Some(form)) => write!(f, " as `{kernel}`, {form}")?,
            _ => f.write_str(" alone")?,
        }
        if !self.repeated.is_empty() {
            f.write_str(", which repeats ")?;
            write_launches(f, &self.repeated)?;
        }
        Ok(())
    }
}

/// Writes the steps and the time in one line.
impl fmt::Display for WayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.steps.iter().all(|step| step.kernel.is_none()) {
            f.write_str("one by one")?;
        } else {
            for (at, step) in self.steps.iter().enumerate() {
                write!(f, "{}{step}", if at > 0 { "; " } else { "" })?;
            }
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
            return f.write_str(": alone");
        }
        self.ways.iter().try_for_each(|way| write!(f, "\n  {way}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_display_their_ways_and_times() {
        let kernel = |launches: &[usize], repeated: &[usize]| {
            StepReport::of_kernel(launches, repeated, ("both", FusionForm::Direct))
        };
        let way = |steps, micros: Option<u64>, is_chosen| WayReport {
            steps,
            time: micros.map(Duration::from_micros),
            is_chosen,
        };
        let alone = || [2, 3, 4].map(StepReport::of_launch).to_vec();
        let part = PartReport {
            launches: vec![2, 3, 4],
            ways: vec![
                way(alone(), Some(3), false),
                way(vec![kernel(&[2, 3, 4], &[])], None, false),
                way(vec![StepReport::of_launch(2), kernel(&[3, 4], &[0])], Some(2), true),
            ],
        };
        let expected = "launches 2, 3 and 4
  one by one: 3.0µs
  launches 2, 3 and 4 as `both`, direct
  launch 2 alone; launches 3 and 4 as `both`, direct, which repeats launch 0: 2.0µs, the fastest";
        assert_eq!(part.to_string(), expected);
        let single = PartReport { launches: vec![1], ways: vec![way(alone(), None, false)] };
        assert_eq!(single.to_string(), "launch 1: alone");
    }
}
