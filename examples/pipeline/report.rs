//! Output of the example: printed text and drawings.

use std::time::Duration;

use kiln::{CheckedProgram, Event};
use layout::backends::svg::SVGWriter;
use layout::gv::{DotParser, GraphBuilder};

/// Prints the origin of each program, and when it was ready.
pub(crate) fn builds(programs: &[(&str, CheckedProgram, Duration)]) {
    println!("  programs, all asked for at once");
    for (name, program, after) in programs {
        let kernels = program.kernel_names().join(", ");
        println!(
            "    {name:<12} {}, ready after {:.1} ms: {kernels}",
            program.origin(),
            1e3 * after.as_secs_f64()
        );
    }
}

/// Prints the median device time of each kernel, over frames that have completed.
pub(crate) fn stages(frames: &[Vec<(String, Event)>]) {
    println!("  median time on the device");
    let Some(first) = frames.first() else { return };
    for (index, (name, _)) in first.iter().enumerate() {
        let events = frames.iter().filter_map(|launches| launches.get(index));
        let mut nanoseconds: Vec<u64> = events
            .filter_map(|(_, event)| event.profile())
            .map(|profile| profile.ended.saturating_sub(profile.started))
            .collect();
        nanoseconds.sort_unstable();
        match nanoseconds.get(nanoseconds.len() / 2) {
            Some(&median) => println!("    {name:<12} {:>8.3} ms", median as f64 / 1e6),
            None => println!("    {name:<12} not measured"),
        }
    }
}

/// Converts a graph in Graphviz's language to an SVG picture.
pub(crate) fn svg(dot: &str) -> Result<String, String> {
    let graph = DotParser::new(dot).process()?;
    let mut builder = GraphBuilder::new();
    builder.visit_graph(&graph);
    let mut picture = SVGWriter::new();
    builder.get().do_it(false, false, false, &mut picture);
    Ok(picture.finalize())
}
