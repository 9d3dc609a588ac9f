//! Printed output of the example.

use std::time::Duration;

use kiln::FusionOutcome;

use crate::chart::{Bar, Panel};
use crate::frame::{CompletedFrame, Grouping, Scope};
use crate::picture::Picture;

/// Medians over the frames of one grouping.
pub(crate) struct Row {
    grouping: Grouping,
    frames: usize,
    launches: usize,
    device: Option<Duration>,
    /// Device time of the launches that at least one grouping fuses.
    part: Option<Duration>,
    wall: Duration,
    traffic: usize,
    traffic_in_memory: usize,
}

impl Row {
    pub(crate) fn of(grouping: Grouping, frames: &[CompletedFrame]) -> Option<Self> {
        let last = frames.last()?;
        Some(Self {
            grouping,
            frames: frames.len(),
            launches: last.launches,
            device: median(frames.iter().filter_map(|frame| frame.device)),
            part: median(frames.iter().filter_map(|frame| frame.part)),
            wall: median(frames.iter().map(|frame| frame.wall))?,
            traffic: last.traffic,
            traffic_in_memory: last.traffic_in_memory,
        })
    }
}

fn median(times: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Prints the outcomes of scopes.
pub(crate) fn scopes(title: &str, scopes: &[Scope]) {
    for scope in scopes {
        let kernels: Vec<_> = scope.launches.iter().map(|launch| launch.kernel.as_str()).collect();
        println!("  {title}: {}", kernels.join(", "));
        match &scope.outcome {
            FusionOutcome::Fused { kernel, .. } => {
                let internalized = scope.internalized();
                let without = match internalized.len() {
                    0 => "with all in memory".to_owned(),
                    _ => format!("without {}", internalized.join(", ")),
                };
                println!("    run as `{kernel}`, {without}");
            }
            other => println!("    {other}"),
        }
    }
}

/// Prints the decisions for the scopes of a picture.
pub(crate) fn decisions(picture: &Picture, frames: usize, scopes: &[Scope]) {
    let Picture { width, height, .. } = picture;
    for Scope { launches, outcome, .. } in scopes {
        let kernels: Vec<_> = launches.iter().map(|launch| launch.kernel.as_str()).collect();
        println!("    {}", kernels.join(", "));
        println!("      {width} x {height} pixels, from frame {frames} on: {outcome}");
    }
}

pub(crate) fn table(title: &str, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    println!(
        "  {title}: medians of {} frames for each grouping, in turns, FusionMode::Always",
        first.frames
    );
    println!(
        "    {:<12}{:>9}{:>14}{:>14}{:>14}{:>14}{:>16}",
        "", "launches", "frame", "on device", "fusable part", "traffic", "all in memory"
    );
    for row in rows {
        let on_device = |time: Option<Duration>| time.map_or_else(|| "-".into(), milliseconds);
        println!(
            "    {:<12}{:>9}{:>14}{:>14}{:>14}{:>14}{:>16}",
            row.grouping.name(),
            row.launches,
            milliseconds(row.wall),
            on_device(row.device),
            on_device(row.part),
            format!("{:.1} MiB", mebibytes(row.traffic)),
            format!("{:.1} MiB", mebibytes(row.traffic_in_memory)),
        );
    }
}

/// Returns the rows as bar charts.
pub(crate) fn panels(title: &str, rows: &[Row]) -> [Panel; 2] {
    let time = |row: &Row| row.part.unwrap_or(row.wall).as_secs_f64() * 1e3;
    let bars = |value: &dyn Fn(&Row) -> (f64, f64)| {
        let bar = |row: &Row| {
            let (value, spared) = value(row);
            Bar { label: row.grouping.name().to_owned(), value, spared }
        };
        rows.iter().map(bar).collect()
    };
    let spared = |row: &Row| mebibytes(row.traffic_in_memory - row.traffic);
    [
        Panel {
            title: format!("{title}: time of the launches that can be fused"),
            unit: "ms",
            bars: bars(&|row| (time(row), 0.0)),
        },
        Panel {
            title: format!("{title}: memory traffic of a frame (pale: spared by internalizing)"),
            unit: "MiB",
            bars: bars(&|row| (mebibytes(row.traffic), spared(row))),
        },
    ]
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", 1e3 * time.as_secs_f64())
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
