//! Drawings of DAGs in Graphviz's language.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::scheduler::Scheduler;
use super::work::Work;

/// Command in a drawing.
struct Node {
    serial: u64,
    label: String,
    look: &'static str,
    after: Vec<u64>,
    /// Address of the state that it shares with the other command of a copy between devices.
    copy: Option<usize>,
}

/// Returns the DAG of a device in Graphviz's language. Edges are dependencies; commands that have ended
/// are filled, failed ones red.
pub(crate) fn dot(scheduler: &Arc<Scheduler>) -> String {
    let mut text = start();
    draw_nodes(&mut text, "", &nodes(scheduler));
    text.push_str("}\n");
    text
}

/// Returns the DAGs of several devices as one drawing, with a frame around each. Dashed lines join the two commands
/// of a copy between devices.
pub(crate) fn dot_of_all<'s>(schedulers: impl Iterator<Item = &'s Arc<Scheduler>>) -> String {
    let mut text = start();
    let mut copies = HashMap::new();
    let mut joins = String::new();
    for scheduler in schedulers {
        let device = scheduler.slot().handle();
        let prefix = format!("d{}", device.index());
        let label = quoted(&device.to_string());
        let _ = writeln!(text, "    subgraph cluster_{prefix} {{\n    label={label};");
        let nodes = nodes(scheduler);
        draw_nodes(&mut text, &prefix, &nodes);
        text.push_str("    }\n");
        for node in nodes {
            let name = format!("{prefix}c{}", node.serial);
            let Some(copy) = node.copy else { continue };
            if let Some(other) = copies.remove(&copy) {
                let _ = writeln!(
                    joins,
                    "    {other} -> {name} [dir=none, style=dashed, constraint=false];"
                );
            } else {
                copies.insert(copy, name);
            }
        }
    }
    text + &joins + "}\n"
}

fn start() -> String {
    "digraph kiln {\n    rankdir=TB;\n    node [shape=box, fontname=\"sans-serif\"];\n".to_owned()
}

/// Returns the commands of a device, in order.
fn nodes(scheduler: &Arc<Scheduler>) -> Vec<Node> {
    let device = scheduler.slot().handle();
    let mut nodes = Vec::new();
    for span in scheduler.shared().timeline.spans() {
        if span.device.index() == device.index() {
            let look = if span.failure.is_some() {
                "filled\", fillcolor=\"lightpink"
            } else {
                "filled\", fillcolor=\"lightgrey"
            };
            let (label, after) = (span.label.clone(), span.after.clone());
            nodes.push(Node { serial: span.serial, label, look, after, copy: None });
        }
    }
    scheduler.visit(|id, command, after| {
        let look = if command.record.is_dispatched() { "solid" } else { "dashed" };
        // Only a trace records edges to commands that have ended.
        let after = command.pending_span().map_or(after, |span| &span.after).to_vec();
        let copy = match &command.work {
            Work::DeviceCopy(work) => Some(Arc::as_ptr(work.copy()).addr()),
            _ => None,
        };
        nodes.push(Node { serial: id.serial(), label: command.work.label(), look, after, copy });
    });
    nodes.sort_by_key(|node| node.serial);
    nodes
}

/// Adds the commands of a device, whose names begin with `prefix`, and the edges between them.
fn draw_nodes(text: &mut String, prefix: &str, nodes: &[Node]) {
    for Node { serial, label, look, .. } in nodes {
        let label = quoted(label);
        let _ = writeln!(text, "    {prefix}c{serial} [label={label}, style=\"{look}\"];");
    }
    let is_drawn = |serial: &u64| nodes.binary_search_by_key(serial, |node| node.serial).is_ok();
    for node in nodes {
        for before in node.after.iter().filter(|before| is_drawn(before)) {
            let _ = writeln!(text, "    {prefix}c{before} -> {prefix}c{};", node.serial);
        }
    }
}

fn quoted(label: &str) -> String {
    format!("\"{}\"", label.replace('\\', "\\\\").replace('"', "\\\""))
}
