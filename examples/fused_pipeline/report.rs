//! Printed output of the example.

use std::time::Duration;

use kiln::{FusionForm, FusionReport, PartReport, StepReport};

use crate::chart::{Bar, Panel};
use crate::frame::{CompletedFrame, Grouping};

/// Median over the frames of one grouping.
pub(crate) struct Row {
    grouping: Grouping,
    frames: usize,
    wall: Duration,
}

impl Row {
    pub(crate) fn of(grouping: Grouping, frames: &[CompletedFrame]) -> Option<Self> {
        let mut times: Vec<_> = frames.iter().map(|frame| frame.wall).collect();
        times.sort_unstable();
        let wall = times.get(times.len() / 2).copied()?;
        Some(Self { grouping, frames: frames.len(), wall })
    }
}

/// Returns whether the trials of all parts of a scope have ended.
pub(crate) fn is_decided(report: &FusionReport) -> bool {
    let is_decided = |part: &PartReport| part.ways.iter().any(|way| way.is_chosen);
    report.parts().iter().all(|part| part.launches.len() < 2 || is_decided(part))
}

/// Prints how the launches of a scope run, and which form won.
pub(crate) fn parts(report: &FusionReport) {
    let launches = report.launches();
    let name = |launch: &usize| launches.get(*launch).map_or("?", |launch| launch.kernel.as_str());
    let names = |all: &[usize]| all.iter().map(name).collect::<Vec<_>>().join(", ");
    for part in report.parts() {
        let chosen = part.ways.iter().find(|way| way.is_chosen);
        let Some(way) = chosen.filter(|_| part.launches.len() > 1) else {
            let how = if part.launches.len() > 1 { "not decided yet" } else { "alone" };
            println!("    {}: {how}", names(&part.launches));
            continue;
        };
        for StepReport { launches, repeated, form, kernel, .. } in &way.steps {
            let again = match repeated.is_empty() {
                true => String::new(),
                false => format!(", runs {} again", names(repeated)),
            };
            let how = match (kernel, form) {
                (Some(_), Some(form)) => format!("one kernel, {form}{again}"),
                _ => "alone".to_owned(),
            };
            println!("    {}: {how}", names(launches));
        }
        let mut times: Vec<_> = part.ways.iter().filter_map(|way| Some((way.time?, way))).collect();
        times.sort_by_key(|(time, _)| *time);
        let tried = times.iter().map(|(time, way)| {
            let forms = way.steps.iter().filter_map(|step| step.form.as_ref());
            let forms: Vec<_> = forms.map(FusionForm::to_string).collect();
            let what = if forms.is_empty() { "one by one".to_owned() } else { forms.join(" + ") };
            format!("{what} {}", milliseconds(*time))
        });
        println!("      tried: {}", tried.collect::<Vec<_>>().join(", "));
    }
}

pub(crate) fn table(title: &str, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    println!("  {title}: medians of {} frames each, in turns", first.frames);
    for row in rows {
        let gain = first.wall.as_secs_f64() / row.wall.as_secs_f64();
        println!("    {:<10}{:>12}{:>8.2} x", row.grouping.name(), milliseconds(row.wall), gain);
    }
}

/// Returns the rows as a bar chart.
pub(crate) fn panel(title: &str, rows: &[Row]) -> Panel {
    let bar = |row: &Row| Bar {
        label: row.grouping.name().to_owned(),
        value: row.wall.as_secs_f64() * 1e3,
    };
    Panel {
        title: format!("{title}: time of a frame"),
        unit: "ms",
        bars: rows.iter().map(bar).collect(),
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", 1e3 * time.as_secs_f64())
}
