//! Kernels of rows: a work-item, or a work-group, reads a whole row.

use fastrand::Rng;

use super::elements::Element;
use super::kernels::{GROUP, Items, Kernel, Reads, Scalar, Writer, by_row, full};

/// Returns a kernel of rows.
pub(crate) fn kernel(
    random: &mut Rng,
    name: String,
    elements: [Element; 2],
    dimensions: usize,
) -> Kernel {
    match random.u8(..7) {
        0 | 1 => mapped(random, name, elements, dimensions),
        2 => summed(random, name, elements, dimensions),
        3 => mapped_by_group(random, name, elements, dimensions),
        _ => reduced_by_group(random, name, elements, dimensions),
    }
}

/// Returns a kernel whose work-items each calculate a row from a row, with or without neighbours, or with what
/// they calculated before.
fn mapped(random: &mut Rng, name: String, elements: [Element; 2], dimensions: usize) -> Kernel {
    let output = full(random, elements);
    let mut writer = Writer::new(random, dimensions, output);
    writer.size_arguments();
    let (content, value) = (full(writer.random, elements), output.element.value());
    let input = writer.input(content);
    let read = |index: &str| content.element.read(&input, index);
    let is_scan = writer.random.u8(..3) == 0;
    if is_scan {
        writer.line(&format!("{value} v = ({value})(0);"));
    }
    writer.line("for (int c = 0; c < w; ++c) {");
    if !is_scan {
        writer.line(&format!("{value} v = ({value})(0);"));
    }
    let statement = writer.combined(content.element, &read("row * w + c"));
    writer.line(&statement);
    if writer.random.bool() {
        let statement =
            writer.combined(content.element, &read("row * w + (c + 1 < w ? c + 1 : w - 1)"));
        writer.line(&statement);
    }
    if is_scan && output.element.is_float() {
        writer.line("v = clamp(v, -50.0f, 50.0f);");
    }
    writer.line(&output.element.write("v", "out", "row * w + c"));
    writer.line("}");
    writer.kernel(name, Items::Rows, Reads::Others, "    int row = get_global_id(0);\n")
}

/// Returns a kernel whose work-items each add up a row.
fn summed(random: &mut Rng, name: String, elements: [Element; 2], dimensions: usize) -> Kernel {
    let mut writer = Writer::new(random, dimensions, by_row());
    writer.size_arguments();
    let content = full(writer.random, elements);
    let input = writer.input(content);
    writer.line("float v = 0.0f;");
    writer.line("for (int c = 0; c < w; ++c)");
    let read = content.element.read(&input, "row * w + c");
    let statement = writer.combined(content.element, &read);
    writer.line(&statement);
    writer.line("out[row] = clamp(v, -50.0f, 50.0f);");
    writer.kernel(name, Items::Rows, Reads::Others, "    int row = get_global_id(0);\n")
}

/// Declarations of a kernel with a work-group for each row.
const BY_GROUP: &str = "    int row = get_group_id(0), l = get_local_id(0);\n";

/// Loop of a work-item over the elements of its work-group's row.
const LOOP: &str = "for (int c = l; c < w; c += get_local_size(0))";

/// Returns a kernel whose work-groups each calculate a row, element by element.
fn mapped_by_group(
    random: &mut Rng,
    name: String,
    elements: [Element; 2],
    dimensions: usize,
) -> Kernel {
    let output = full(random, elements);
    let mut writer = Writer::new(random, dimensions, output);
    writer.size_arguments();
    let value = output.element.value();
    writer.line(&format!("{LOOP} {{"));
    writer.line(&format!("{value} v = ({value})(0);"));
    for _ in 0..writer.random.usize(1..=2) {
        let is_by_row = writer.random.u8(..4) == 0;
        let content = if is_by_row { by_row() } else { full(writer.random, elements) };
        let input = writer.input(content);
        let index = if is_by_row { "row" } else { "row * w + c" };
        let statement = writer.combined(content.element, &content.element.read(&input, index));
        writer.line(&statement);
    }
    writer.finish();
    writer.line(&output.element.write("v", "out", "row * w + c"));
    writer.line("}");
    writer.kernel(name, Items::Groups, Reads::Others, BY_GROUP)
}

/// Returns a kernel whose work-groups each add up a row, and write the sum, or the row scaled by it.
fn reduced_by_group(
    random: &mut Rng,
    name: String,
    elements: [Element; 2],
    dimensions: usize,
) -> Kernel {
    let picture = full(random, elements);
    let is_sum = random.u8(..3) == 0;
    let output = if is_sum { by_row() } else { picture };
    let element = output.element;
    let mut writer = Writer::new(random, dimensions, output);
    writer.size_arguments();
    writer.scalars.push(Scalar::Local(GROUP * element.value_size()));
    let content = full(writer.random, elements);
    let input = writer.input(content);
    let read = content.element.read(&input, "row * w + c");
    let value = element.value();
    writer.line(&format!("{value} v = ({value})(0);"));
    writer.line(LOOP);
    let statement = writer.combined(content.element, &read);
    writer.line(&statement);
    writer.line("scratch[l] = v;");
    writer.line("barrier(CLK_LOCAL_MEM_FENCE);");
    writer.line("for (int s = get_local_size(0) / 2; s > 0; s /= 2) {");
    let joined = match (writer.random.bool(), element.is_float()) {
        (true, true) => "scratch[l] = fmax(scratch[l], scratch[l + s]);",
        _ => "scratch[l] += scratch[l + s];",
    };
    writer.line(&format!("if (l < s) {joined}"));
    writer.line("barrier(CLK_LOCAL_MEM_FENCE);");
    writer.line("}");
    if is_sum {
        writer.line("if (l == 0) out[row] = clamp(scratch[0], -50.0f, 50.0f);");
        return writer.kernel(name, Items::Groups, Reads::Others, BY_GROUP);
    }
    let by = match element.is_float() {
        true => "1.0f / sqrt(fabs(scratch[0]) + 1.0f)",
        false => "scratch[0]",
    };
    writer.line(&format!("{value} by = {by};"));
    writer.line(LOOP);
    let own = content.element.converted(element, &read);
    writer.line(&element.write(&format!("{own} * by"), "out", "row * w + c"));
    writer.kernel(name, Items::Groups, Reads::Others, BY_GROUP)
}
