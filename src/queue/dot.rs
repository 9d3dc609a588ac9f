//! Drawing of the DAG in Graphviz's language.

use std::fmt::Write as _;
use std::sync::Arc;

use super::scheduler::Scheduler;

/// Returns the DAG of a device in Graphviz's language. Edges are dependencies; commands that have ended
/// are filled, failed ones red.
pub(crate) fn dot(scheduler: &Arc<Scheduler>) -> String {
    let device = scheduler.slot().handle();
    let mut nodes = Vec::new();
    for span in scheduler.shared().timeline.spans() {
        if span.device.index() == device.index() {
            let look = if span.failure.is_some() {
                "filled\", fillcolor=\"lightpink"
            } else {
                "filled\", fillcolor=\"lightgrey"
            };
            nodes.push((span.serial, span.label.clone(), look, span.after.clone()));
        }
    }
    scheduler.visit(|id, command, after| {
        let look = if command.record.is_dispatched() { "solid" } else { "dashed" };
        // Only a trace records edges to commands that have ended.
        let after = command.pending_span.as_ref().map_or(after, |span| &span.after);
        nodes.push((id.serial(), command.work.label(), look, after.to_vec()));
    });
    nodes.sort_by_key(|node| node.0);
    let mut text = String::from(
        "digraph kiln {\n    rankdir=TB;\n    node [shape=box, fontname=\"sans-serif\"];\n",
    );
    for (serial, label, look, _) in &nodes {
        let label = label.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(text, "    c{serial} [label=\"{label}\", style=\"{look}\"];");
    }
    let drawn = |serial: &u64| nodes.binary_search_by_key(serial, |node| node.0).is_ok();
    for (serial, _, _, after) in &nodes {
        for before in after.iter().filter(|before| drawn(before)) {
            let _ = writeln!(text, "    c{before} -> c{serial};");
        }
    }
    text.push_str("}\n");
    text
}
