//! Kernels of pictures: each work-item writes one element, and reads neighbours.

use fastrand::Rng;

use super::elements::Element;
use super::kernels::{
    COORDINATES, Content, Extent, Items, Kernel, Reads, SIZES, Scalar, Writer, by_row, full,
};

/// Treatment of neighbours outside of the picture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Border {
    Clamped,
    Mirrored,
    Wrapped,
    /// Neighbours outside count as zero.
    Zero,
    /// Elements with neighbours outside are copied.
    Copied,
}

const BORDERS: [Border; 6] = [
    Border::Clamped,
    Border::Clamped,
    Border::Mirrored,
    Border::Wrapped,
    Border::Zero,
    Border::Copied,
];

/// Largest distances of neighbours, of which one is chosen.
const REACHES: [[i32; 3]; 6] = [[3, 0, 0], [0, 3, 0], [1, 1, 1], [2, 1, 0], [0, 0, 2], [1, 2, 1]];

/// Returns a kernel of pictures.
pub(crate) fn kernel(
    random: &mut Rng,
    name: String,
    elements: [Element; 2],
    dimensions: usize,
) -> Kernel {
    if random.u8(..16) == 0 {
        return halving(random, name, elements, dimensions);
    }
    let output = full(random, elements);
    let mut writer = Writer::new(random, dimensions, output);
    let is_flat = dimensions > 1 && writer.random.u8(..5) == 0;
    let has_sizes = is_flat || writer.random.bool();
    if has_sizes {
        writer.size_arguments();
    }
    let has_guard = has_sizes && !is_flat && writer.random.u8(..3) > 0;
    let start = start(&mut writer, is_flat, has_sizes, has_guard);
    let mut reads = Reads::Own;
    let skips = has_sizes && writer.random.u8(..16) == 0;
    if skips {
        // Elements near the border are not written.
        let inner = inner(&writer, 1);
        writer.line(&format!("if (!({inner})) return;"));
    }
    let value = output.element.value();
    writer.line(&format!("{value} v = ({value})(0);"));
    let is_pointwise = writer.random.u8(..3) == 0;
    for at in 0..writer.random.usize(1..=3) {
        if (at == 0 && !is_pointwise) || writer.random.u8(..4) == 0 {
            reads = Reads::Others.max(reads);
            neighbours(&mut writer, elements);
        } else {
            own(&mut writer, elements, &mut reads);
        }
    }
    writer.finish();
    writer.line(&output.element.write("v", "out", "i"));
    let items = match (is_flat, has_guard) {
        (true, _) => Items::Flat,
        (false, true) => Items::Any,
        (false, false) => Items::Elements,
    };
    let kernel = writer.kernel(name, items, reads, &start);
    Kernel { is_plain: kernel.is_plain && !skips, ..kernel }
}

/// Returns the declarations of the coordinates, the sizes and the index of the work-item's element.
fn start(writer: &mut Writer<'_>, is_flat: bool, has_sizes: bool, has_guard: bool) -> String {
    let dimensions = writer.dimensions;
    let (names, sizes) = (&COORDINATES[..dimensions], &SIZES[..dimensions]);
    if is_flat {
        let above = if dimensions == 3 { "i / w % h" } else { "i / w" };
        let x = if writer.random.bool() { "i % w" } else { "i - i / w * w" };
        let mut text = format!("    int i = get_global_id(0), x = {x}, y = {above};\n");
        if dimensions == 3 {
            text += "    int z = i / (w * h);\n";
        }
        return text;
    }
    let ids = names.iter().enumerate().map(|(d, name)| format!("{name} = get_global_id({d})"));
    let ids = ids.collect::<Vec<_>>().join(", ");
    let mut text = format!("    int {ids};\n");
    if !has_sizes {
        let all = sizes.iter().enumerate();
        let all = all.map(|(d, size)| format!("{size} = get_global_size({d})"));
        text += &format!("    int {};\n", all.collect::<Vec<_>>().join(", "));
    }
    if has_guard {
        let tests = names.iter().zip(sizes).map(|(name, size)| format!("{name} >= {size}"));
        text += &format!("    if ({}) return;\n", tests.collect::<Vec<_>>().join(" || "));
    }
    let own: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let ty = ["int", "size_t", "uint"][writer.random.usize(..3)];
    text + &format!("    {ty} i = {};\n", writer.index(&own))
}

/// Returns the condition that all neighbours up to a distance are in the picture.
fn inner(writer: &Writer<'_>, margin: i32) -> String {
    let tests = COORDINATES.iter().zip(SIZES).take(writer.dimensions);
    let tests = tests.map(|(c, size)| format!("{c} >= {margin} && {c} < {size} - {margin}"));
    tests.collect::<Vec<_>>().join(" && ")
}

/// Adds an input of which the work-item's own element is read.
fn own(writer: &mut Writer<'_>, elements: [Element; 2], reads: &mut Reads) {
    let choice = writer.random.u8(..16);
    let all = SIZES[..writer.dimensions].join(" * ");
    let (content, index) = match choice {
        0 | 1 if writer.dimensions > 1 => {
            *reads = Reads::Others.max(*reads);
            (by_row(), "i / w".to_owned())
        }
        2 => {
            *reads = Reads::Others.max(*reads);
            let element = full(writer.random, elements).element;
            (Content { element, extent: Extent::Halved }, halved_index(writer))
        }
        3 => {
            *reads = Reads::Beyond;
            (full(writer.random, elements), format!("i + {all}"))
        }
        _ => (full(writer.random, elements), "i".to_owned()),
    };
    let input = writer.input(content);
    let value = content.element.read(&input, &index);
    let statement = writer.combined(content.element, &value);
    writer.line(&statement);
}

/// Returns the index of the element of a halved picture at the work-item's coordinates.
fn halved_index(writer: &Writer<'_>) -> String {
    let mut index = String::new();
    for (c, size) in COORDINATES.iter().zip(SIZES).take(writer.dimensions).rev() {
        index = match index.is_empty() {
            true => format!("{c} / 2"),
            false => format!("({index}) * (({size} + 1) / 2) + {c} / 2"),
        };
    }
    index
}

/// Adds an input of which neighbours are read.
fn neighbours(writer: &mut Writer<'_>, elements: [Element; 2]) {
    let content = full(writer.random, elements);
    let input = writer.input(content);
    let border = BORDERS[writer.random.usize(..BORDERS.len())];
    if border != Border::Copied && writer.random.u8(..3) == 0 {
        line_of_neighbours(writer, content.element, &input, border);
        return;
    }
    let reach = REACHES[writer.random.usize(..REACHES.len())];
    let offsets: Vec<[i32; 3]> = (0..writer.random.usize(1..=4))
        .map(|_| reach.map(|most| writer.random.i32(-most..=most)))
        .collect();
    let margin = offsets.iter().flatten().map(|offset| offset.abs()).max().unwrap_or(0);
    if border == Border::Copied {
        let inner = inner(writer, margin);
        writer.line(&format!("if ({inner}) {{"));
    }
    for offset in offsets {
        let moved: Vec<_> = COORDINATES
            .iter()
            .zip(offset)
            .take(writer.dimensions)
            .map(
                |(c, offset)| if offset == 0 { (*c).to_owned() } else { format!("{c} + {offset}") },
            )
            .collect();
        neighbour(writer, content.element, &input, border, &moved);
    }
    if border == Border::Copied {
        let value = content.element.read(&input, "i");
        let value = content.element.converted(writer.output.element, &value);
        writer.line(&format!("}} else v += {value};"));
    }
}

/// Adds the value of one neighbour to `v`.
fn neighbour(
    writer: &mut Writer<'_>,
    element: Element,
    input: &str,
    border: Border,
    coordinates: &[String],
) {
    let at: Vec<_> = coordinates
        .iter()
        .zip(SIZES)
        .map(|(c, size)| bordered(writer.random, border, c, size))
        .collect();
    let value = element.read(input, &writer.index(&at));
    let statement = writer.combined(element, &value);
    if border != Border::Zero {
        return writer.line(&statement);
    }
    let tests = coordinates.iter().zip(SIZES);
    let tests = tests.map(|(c, size)| match writer.random.u8(..3) {
        // One comparison, in which negative numbers are large.
        0 => format!("(uint)({c}) < (uint){size}"),
        _ => format!("{c} >= 0 && {c} < {size}"),
    });
    let tests = tests.collect::<Vec<_>>().join(" && ");
    writer.line(&format!("if ({tests}) {statement}"));
}

/// Returns a coordinate that is kept inside of the picture, in one of several ways.
fn bordered(random: &mut Rng, border: Border, coordinate: &str, size: &str) -> String {
    match (border, random.u8(..4)) {
        (Border::Clamped, 0) => format!("clamp({coordinate}, 0, {size} - 1)"),
        (Border::Clamped, 1) => format!("min(max({coordinate}, 0), {size} - 1)"),
        (Border::Clamped, 2) => format!("inside({coordinate}, {size})"),
        (Border::Clamped, _) => {
            format!("{coordinate} < 0 ? 0 : {coordinate} > {size} - 1 ? {size} - 1 : {coordinate}")
        }
        (Border::Mirrored, 0 | 1) => format!("mirror({coordinate}, {size})"),
        (Border::Mirrored, _) => {
            format!("{coordinate} < {size} ? abs({coordinate}) : 2 * {size} - 2 - ({coordinate})")
        }
        (Border::Wrapped, _) => format!("({coordinate} + {size}) % {size}"),
        (Border::Zero | Border::Copied, _) => coordinate.to_owned(),
    }
}

/// Adds a loop over the neighbours in one dimension, or in two.
fn line_of_neighbours(writer: &mut Writer<'_>, element: Element, input: &str, border: Border) {
    let radius = match writer.random.u8(..3) {
        0 => {
            if !writer.scalars.contains(&Scalar::Radius) {
                writer.scalars.push(Scalar::Radius);
            }
            "r".to_owned()
        }
        _ => writer.random.i32(1..=3).to_string(),
    };
    let mut moved: Vec<_> =
        COORDINATES[..writer.dimensions].iter().map(|c| (*c).to_owned()).collect();
    let first = writer.random.usize(..writer.dimensions);
    let second = Some(writer.random.usize(..writer.dimensions));
    let second = second.filter(|&second| second != first && writer.random.bool());
    writer.line(&format!("for (int k = -{radius}; k <= {radius}; ++k)"));
    moved[first] += " + k";
    if let Some(second) = second {
        writer.line("for (int l = -1; l <= 1; ++l)");
        moved[second] += " + l";
    }
    neighbour(writer, element, input, border, &moved);
}

/// Returns a kernel that halves a picture: each work-item reads several elements of the full picture.
fn halving(random: &mut Rng, name: String, elements: [Element; 2], dimensions: usize) -> Kernel {
    let output = Content { extent: Extent::Halved, ..full(random, elements) };
    let mut writer = Writer::new(random, dimensions, output);
    writer.size_arguments();
    let names = &COORDINATES[..dimensions];
    let ids = names.iter().enumerate().map(|(d, name)| format!("{name} = get_global_id({d})"));
    let start = format!("    int {};\n", ids.collect::<Vec<_>>().join(", "));
    let value = output.element.value();
    writer.line(&format!("{value} v = ({value})(0);"));
    let content = full(writer.random, elements);
    let input = writer.input(content);
    for _ in 0..writer.random.usize(1..=4) {
        let moved: Vec<_> = names
            .iter()
            .zip(SIZES)
            .map(|(c, size)| match writer.random.i32(-1..=1) {
                0 => format!("2 * {c}"),
                1 => format!("min(2 * {c} + 1, {size} - 1)"),
                _ => format!("max(2 * {c} - 1, 0)"),
            })
            .collect();
        let value = content.element.read(&input, &writer.index(&moved));
        let statement = writer.combined(content.element, &value);
        writer.line(&statement);
    }
    writer.finish();
    let mut index = String::new();
    for (c, size) in names.iter().zip(SIZES).rev() {
        index = match index.is_empty() {
            true => (*c).to_owned(),
            false => format!("({index}) * (({size} + 1) / 2) + {c}"),
        };
    }
    writer.line(&output.element.write("v", "out", &index));
    writer.kernel(name, Items::Elements, Reads::Others, &start)
}
