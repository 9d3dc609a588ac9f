//! Measured frames: the printed table, and the chart.

use std::time::Duration;

use kiln::fusion::{FusedPart, FusionForm, FusionOutcome};

use crate::chart::{Bar, Panel};
use crate::film::{Film, STEPS, UNFUSED};
use crate::ways::Way;

/// Number of buffers of a result.
const PLANES: usize = 3;

/// Measured frames of one way.
pub(crate) struct Row {
    pub(crate) way: Way,
    /// Median time of a frame.
    pub(crate) time: Duration,
    /// Kernels of a frame.
    pub(crate) kernels: Vec<KernelRun>,
}

/// Kernel of a frame, which does the work of one launch or of several.
pub(crate) struct KernelRun {
    /// Positions of the launches, in order.
    launches: Vec<usize>,
    /// Positions of launches that the kernel runs again, instead of reading their results.
    repeated: Vec<usize>,
    /// Form of the fused kernel; `None` for a launch by itself.
    form: Option<FusionForm>,
    /// Number of buffers that the kernel does without.
    internalized: usize,
}

impl KernelRun {
    fn alone(launch: usize) -> Self {
        Self { launches: vec![launch], repeated: Vec::new(), form: None, internalized: 0 }
    }

    /// Returns the kernels of a frame, in order. Without an outcome of fusion, each launch is a kernel.
    pub(crate) fn all(fusion: Option<&FusionOutcome>) -> Vec<Self> {
        let mut kernels: Vec<_> = match fusion {
            Some(FusionOutcome::Fused { form, internalized, .. }) => vec![Self {
                launches: (UNFUSED..STEPS.len()).collect(),
                repeated: Vec::new(),
                form: Some(*form),
                internalized: *internalized,
            }],
            Some(FusionOutcome::Parts { parts, .. }) => {
                parts.iter().flat_map(Self::of_part).collect()
            }
            _ => (UNFUSED..STEPS.len()).map(Self::alone).collect(),
        };
        kernels.extend((0..UNFUSED).map(Self::alone));
        kernels.sort_by_key(|kernel| kernel.launches.first().copied());
        kernels
    }

    fn of_part(part: &FusedPart) -> Vec<Self> {
        let FusedPart { launches, repeated, form, internalized, .. } = part;
        // Positions of the outcome begin after the launches that are not fused.
        let [launches, repeated] =
            [launches, repeated].map(|all| all.iter().map(|at| at + UNFUSED).collect::<Vec<_>>());
        if form.is_none() {
            return launches.into_iter().map(Self::alone).collect();
        }
        vec![Self { launches, repeated, form: *form, internalized: *internalized }]
    }

    /// Returns the number of bytes that the kernel moves: the sizes of the buffers that it reads and writes, each
    /// counted once, however often its elements are used.
    fn bytes(&self, film: &Film) -> usize {
        let runs =
            |launch: usize| self.launches.contains(&launch) || self.repeated.contains(&launch);
        let all = || self.launches.iter().chain(&self.repeated).copied();
        let read = all().filter(|launch| launch.checked_sub(1).is_none_or(|before| !runs(before)));
        let (passed_on, written): (Vec<_>, Vec<_>) =
            self.launches.iter().copied().partition(|launch| self.launches.contains(&(launch + 1)));
        // Results that are passed on inside the kernel are written if they could not be internalized.
        let passed_on = passed_on.into_iter().skip(self.internalized / PLANES);
        let written = written.into_iter().chain(passed_on);
        read.map(|launch| film.bytes_read(launch)).sum::<usize>()
            + written.map(|launch| film.bytes_written(launch)).sum::<usize>()
    }

    /// Returns a line about the kernel: the launches whose work it does, and its form.
    fn line(&self) -> String {
        let names = |launches: &[usize]| -> String {
            launches.iter().map(|&launch| STEPS[launch]).collect::<Vec<_>>().join(", ")
        };
        let Some(form) = self.form else {
            let is_left_out = self.launches.iter().all(|launch| *launch < UNFUSED);
            let how = if is_left_out { "by itself, not in the scope" } else { "kept one by one" };
            return format!("{}: {how}", names(&self.launches));
        };
        let again = match self.repeated.is_empty() {
            true => String::new(),
            false => format!(", runs {} again", names(&self.repeated)),
        };
        format!("{}: one kernel, {form}{again}", names(&self.launches))
    }
}

impl Row {
    /// Returns the number of bytes that the kernels of a frame move.
    fn bytes(&self, film: &Film) -> usize {
        self.kernels.iter().map(|kernel| kernel.bytes(film)).sum()
    }
}

/// Prints a line for each way, and the kernels of the ways that fuse. The ratios are to the first row.
pub(crate) fn table(film: &Film, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    println!("    {:<20}{:>12}{:>10}{:>10}{:>12}", "", "a frame", "ratio", "kernels", "moved");
    for row in rows {
        let ratio = first.time.as_secs_f64() / row.time.as_secs_f64();
        println!(
            "    {:<20}{:>9.1} ms{ratio:>8.2} x{:>10}{:>8} MiB",
            row.way.name(),
            milliseconds(row.time),
            row.kernels.len(),
            row.bytes(film) >> 20,
        );
    }
    for row in rows.iter().filter(|row| row.way.is_fused()) {
        println!("  {}", row.way.name());
        for kernel in &row.kernels {
            println!("    {}", kernel.line());
        }
    }
}

/// Returns the chart's panels: the time of a frame, and the bytes that it moves.
pub(crate) fn panels(film: &Film, rows: &[Row]) -> [Panel; 2] {
    let panel = |title: &str, unit, value: &dyn Fn(&Row) -> f64| Panel {
        title: title.to_owned(),
        unit,
        bars: rows.iter().map(|row| Bar { label: label(row), value: value(row) }).collect(),
    };
    [
        panel("time of a frame, median", "ms", &|row| milliseconds(row.time)),
        panel("bytes that the kernels of a frame read and write", "MiB", &|row| {
            row.bytes(film) as f64 / f64::from(1 << 20)
        }),
    ]
}

fn label(row: &Row) -> String {
    let kernels = row.kernels.len();
    format!("{}, {kernels} {}", row.way.name(), if kernels == 1 { "kernel" } else { "kernels" })
}

fn milliseconds(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}
