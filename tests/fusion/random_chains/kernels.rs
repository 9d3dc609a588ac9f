//! Kernels of a module, and the parts that all of them have.

use std::fmt::Write as _;

use fastrand::Rng;

use super::elements::{Element, FLOAT};
use super::{rows, stencils};

/// Size of the work-groups of kernels that need one.
pub(crate) const GROUP: usize = 8;

/// Names of the coordinates and of the sizes in each dimension.
pub(crate) const COORDINATES: [&str; 3] = ["x", "y", "z"];
pub(crate) const SIZES: [&str; 3] = ["w", "h", "d"];

/// Kernels that the cases of a batch launch.
pub(crate) struct Pool {
    pub(crate) kernels: Vec<Kernel>,
}

/// Kernel that reads buffers and writes one.
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) inputs: Vec<Content>,
    pub(crate) output: Content,
    /// Arguments after the inputs and the output.
    pub(crate) scalars: Vec<Scalar>,
    pub(crate) items: Items,
    pub(crate) reads: Reads,
    /// Whether each work-item writes one element of a full picture, and reads only such pictures.
    pub(crate) is_plain: bool,
}

/// Contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) element: Element,
    pub(crate) extent: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// A picture of the case's size.
    Full,
    /// A picture of half the size in each dimension, rounded up.
    Halved,
    /// One element for each row of a full picture.
    Rows,
}

/// Scalar argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    /// Size of the full picture in a dimension, with its type.
    Size(usize, &'static str),
    /// Distance of the farthest elements that are read.
    Radius,
    Factor,
    /// Local memory for elements of this size, one for each work-item of a work-group.
    Local(usize),
}

/// Work-items of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Items {
    /// One for each element of the output.
    Elements,
    /// Likewise, in one dimension.
    Flat,
    /// Like `Elements`, but a launch may have more work-items or fewer, since the kernel tests its id.
    Any,
    /// One for each row of a full picture.
    Rows,
    /// One work-group for each row of a full picture.
    Groups,
}

/// Elements of the inputs that a work-item reads. Each kind includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reads {
    /// Only those at the place of the one that it writes.
    Own,
    Others,
    /// Also elements of another picture, which follows the first one in its buffer.
    Beyond,
}

/// Functions that kernels call.
const HELPERS: &str = "
static int inside(int at, int n) { return clamp(at, 0, n - 1); }
static int mirror(int at, int n) {
    if (at < 0) return -at;
    if (at >= n) return 2 * n - 2 - at;
    return at;
}
";

const KERNELS: usize = 18;

impl Pool {
    pub(crate) fn new(random: &mut Rng, dimensions: usize) -> Self {
        let elements = [Element::any(random), Element::any(random)];
        let kernels = (0..KERNELS).map(|at| {
            let name = format!("kernel{at}");
            // Rows are of interest from two dimensions on.
            if dimensions > 1 && random.u8(..4) == 0 {
                rows::kernel(random, name, elements, dimensions)
            } else {
                stencils::kernel(random, name, elements, dimensions)
            }
        });
        Self { kernels: kernels.collect() }
    }

    pub(crate) fn text(&self) -> String {
        let kernels = self.kernels.iter().map(|kernel| kernel.text.as_str());
        [HELPERS].into_iter().chain(kernels).collect()
    }
}

/// Writer of a kernel.
pub(crate) struct Writer<'a> {
    pub(crate) random: &'a mut Rng,
    pub(crate) dimensions: usize,
    pub(crate) inputs: Vec<Content>,
    pub(crate) output: Content,
    pub(crate) scalars: Vec<Scalar>,
    /// Statements after the declarations of coordinates and sizes.
    pub(crate) body: String,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(random: &'a mut Rng, dimensions: usize, output: Content) -> Self {
        let (inputs, scalars) = (Vec::new(), Vec::new());
        Self { random, dimensions, inputs, output, scalars, body: String::new() }
    }

    pub(crate) fn line(&mut self, statement: &str) {
        let _ = writeln!(self.body, "    {statement}");
    }

    /// Adds an input. Returns its name.
    pub(crate) fn input(&mut self, content: Content) -> String {
        self.inputs.push(content);
        format!("in{}", self.inputs.len() - 1)
    }

    /// Adds arguments for the sizes, as `w`, `h` and `d`.
    pub(crate) fn size_arguments(&mut self) {
        let ty = ["int", "int", "uint", "ulong"][self.random.usize(..4)];
        self.scalars.extend((0..self.dimensions).map(|d| Scalar::Size(d, ty)));
    }

    /// Returns the index of an element of a full picture.
    pub(crate) fn index(&self, coordinates: &[String]) -> String {
        let (last, others) = coordinates.split_last().expect("there is a dimension");
        let mut index = format!("({last})");
        for (coordinate, size) in others.iter().zip(SIZES).rev() {
            index = format!("({index} * {size} + ({coordinate}))");
        }
        index
    }

    /// Returns a constant, or an argument, by which values are multiplied.
    pub(crate) fn factor(&mut self) -> String {
        let element = self.output.element;
        if element.is_float() && self.random.u8(..5) == 0 {
            if !self.scalars.contains(&Scalar::Factor) {
                self.scalars.push(Scalar::Factor);
            }
            return "f".to_owned();
        }
        element.constant(self.random)
    }

    /// Returns the statement that adds a value of an element to `v`, in some way.
    pub(crate) fn combined(&mut self, element: Element, value: &str) -> String {
        let value = element.converted(self.output.element, value);
        let factor = self.factor();
        match (self.random.u8(..8), self.output.element.is_float()) {
            (0, true) => format!("v = fmax(v, {value});"),
            (0, false) => format!("v = max(v, {value});"),
            (1, true) => format!("v = v * 0.5f + {value};"),
            (1, false) => format!("v ^= {value};"),
            (2, _) => format!("v -= {value};"),
            _ => format!("v += {value} * {factor};"),
        }
    }

    /// Adds a last step to the calculation of `v`, or none.
    pub(crate) fn finish(&mut self) {
        let one = format!("({})(1)", self.output.element.value());
        let step = match (self.random.u8(..12), self.output.element.is_float()) {
            (0, true) => "v = v / (fabs(v) + 1.0f);".to_owned(),
            (1, true) => "v = sqrt(fabs(v));".to_owned(),
            (2, true) => "v = clamp(v, -50.0f, 50.0f);".to_owned(),
            (3, true) => {
                let value = self.output.element.value();
                format!("v = fma(v, ({value})(0.01f), ({value})(1.0f));")
            }
            (0 | 1, false) => format!("v = v >> {one};"),
            (2 | 3, false) => format!("v = ~v + {one};"),
            _ => return,
        };
        self.line(&step);
    }

    /// Returns the kernel with `start` as its first statements.
    pub(crate) fn kernel(self, name: String, items: Items, reads: Reads, start: &str) -> Kernel {
        let Self { inputs, output, scalars, body, .. } = self;
        let mut arguments = Vec::new();
        for (at, content) in inputs.iter().enumerate() {
            arguments.push(format!("global const {} *in{at}", content.element.pointee()));
        }
        arguments.push(format!("global {} *out", output.element.pointee()));
        let mut declared = String::new();
        for scalar in &scalars {
            arguments.push(match scalar {
                Scalar::Size(d, "int") => format!("int {}", SIZES[*d]),
                Scalar::Size(d, ty) => {
                    let _ = writeln!(declared, "    int {0} = {0}0;", SIZES[*d]);
                    format!("{ty} {}0", SIZES[*d])
                }
                Scalar::Radius => "int r".to_owned(),
                Scalar::Factor => "float f".to_owned(),
                Scalar::Local(_) => format!("local {} *scratch", output.element.value()),
            });
        }
        let arguments = arguments.join(", ");
        let text = format!("kernel void {name}({arguments}) {{\n{declared}{start}{body}}}\n");
        let is_full = |content: &Content| content.extent == Extent::Full;
        let is_plain = matches!(items, Items::Elements | Items::Any)
            && reads != Reads::Beyond
            && is_full(&output)
            && inputs.iter().all(is_full);
        Kernel { name, text, inputs, output, scalars, items, reads, is_plain }
    }
}

/// Returns the contents of a full picture of one of the elements, mostly of the first.
pub(crate) fn full(random: &mut Rng, elements: [Element; 2]) -> Content {
    let element = elements[usize::from(random.u8(..4) == 0)];
    Content { element, extent: Extent::Full }
}

/// Returns the contents of one number for each row.
pub(crate) const fn by_row() -> Content {
    Content { element: FLOAT, extent: Extent::Rows }
}
