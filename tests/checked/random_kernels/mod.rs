//! Random kernels of OpenCL C, each in two texts: a plain one, and a reference whose guards are written by hand.
//!
//! A kernel reads inputs of all types at random places, and writes elements that are its work-item's own, so
//! that its result does not depend on the order of work-items.

mod accesses;
pub(crate) mod compare;
pub(crate) mod launches;
mod prelude;
mod values;

use std::fmt::Write as _;

/// Types of elements, with their sizes in bytes.
const ELEMENTS: [(&str, usize); 9] = [
    ("char", 1),
    ("uchar", 1),
    ("short", 2),
    ("ushort", 2),
    ("int", 4),
    ("uint", 4),
    ("long", 8),
    ("ulong", 8),
    ("float", 4),
];

/// Numbers of components of vectors.
const WIDTHS: [usize; 5] = [2, 3, 4, 8, 16];

/// Size of the struct in bytes.
pub(crate) const PAIR: usize = 32;

/// Type of elements: its name and its size.
pub(crate) type Element = (&'static str, usize);

/// Random kernel.
#[derive(Clone, Debug)]
pub(crate) struct RandomKernel {
    pub(crate) name: String,
    /// Type of the first two inputs.
    pub(crate) input: Element,
    /// Component type and width of the input of vectors.
    pub(crate) vector: (Element, usize),
    /// Type of the output.
    pub(crate) own: Element,
    /// Component type and width of the output of vectors.
    pub(crate) own_vector: (Element, usize),
    /// Whether launches have to state the size of work-groups, because the results depend on it.
    pub(crate) needs_local: bool,
    /// Statements, in both texts.
    pub(crate) body: String,
}

impl RandomKernel {
    pub(crate) fn random(rng: &mut fastrand::Rng, name: String) -> Self {
        // Numbers that are not finite must not be converted to integers.
        let integer = |rng: &mut fastrand::Rng| ELEMENTS[rng.usize(..ELEMENTS.len() - 1)];
        let width = |rng: &mut fastrand::Rng| WIDTHS[rng.usize(..WIDTHS.len())];
        let mut kernel = Self {
            name,
            input: ELEMENTS[rng.usize(..ELEMENTS.len())],
            vector: (integer(rng), width(rng)),
            own: ELEMENTS[rng.usize(..ELEMENTS.len())],
            own_vector: (integer(rng), width(rng)),
            needs_local: rng.u8(..3) == 0,
            body: String::new(),
        };
        let mut writer = Writer::new(rng, &kernel);
        writer.kernel();
        kernel.body = writer.text;
        kernel
    }

    fn write(&self, text: &mut String) {
        let Self { name, input: (input, _), own: (own, _), body, .. } = self;
        let ((vector, _), (own_vector, _)) = (self.vector.0, self.own_vector.0);
        write!(
            text,
            "kernel void {name}(global const {input} *in0, ulong n0, global const {input} *in1, ulong n1,
                global const {vector} *vec, ulong nvec, global const Pair *pairs, ulong npairs,
                constant int *fixed, ulong nfixed, global {own} *own, ulong nown,
                global {own_vector} *outv, ulong noutv, global Pair *outp, ulong noutp,
                global int *counts, ulong ncounts, local int *loc, ulong nloc, int s0, int s1, long s2 FLAG) {{
                {body}
            }}\n"
        )
        .expect("strings take everything");
    }
}

/// Returns the plain text of kernels, or their reference.
pub(crate) fn text_of(kernels: &[RandomKernel], is_reference: bool) -> String {
    let mut text = prelude::prelude(is_reference);
    for (element, _) in ELEMENTS {
        if kernels.iter().any(|kernel| kernel.input.0 == element) {
            text += &prelude::helpers(element);
        }
    }
    kernels.iter().for_each(|kernel| kernel.write(&mut text));
    text
}

/// Writer of a kernel's statements. Each statement defines a variable, or changes `sum`.
struct Writer<'a> {
    rng: &'a mut fastrand::Rng,
    kernel: &'a RandomKernel,
    text: String,
    /// Names of values of type `int` that are in scope.
    ints: Vec<String>,
    /// Names of values of type `long` that are in scope.
    longs: Vec<String>,
    variables: usize,
    depth: usize,
    /// Whether loaded values may be part of indexes. If they are, `vload` of integers is refused.
    is_indirect: bool,
    /// Whether atomic operations leave the counters as they are, so that their results are known.
    only_reads_counts: bool,
    /// Whether all indexes are small, so that long buffers have their elements.
    is_tame: bool,
}

impl<'a> Writer<'a> {
    fn new(rng: &'a mut fastrand::Rng, kernel: &'a RandomKernel) -> Self {
        let [is_indirect, only_reads_counts, is_tame] = std::array::from_fn(|_| rng.bool());
        Self {
            rng,
            kernel,
            text: String::new(),
            ints: ["x", "y", "z", "id", "s0", "s1"].map(str::to_owned).to_vec(),
            longs: ["s2", "(long)get_global_id(0)", "(long)id"].map(str::to_owned).to_vec(),
            variables: 0,
            depth: 0,
            is_indirect,
            only_reads_counts,
            is_tame,
        }
    }

    /// Adds a line.
    fn line(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    /// Returns the name of a new variable.
    fn fresh(&mut self) -> String {
        self.variables += 1;
        format!("v{}", self.variables)
    }

    /// Writes the whole body.
    fn kernel(&mut self) {
        self.line(
            "uint sum = 0;
            int x = (int)get_global_id(0), y = (int)get_global_id(1), z = (int)get_global_id(2);
            int id = (int)(((get_global_id(2) - get_global_offset(2)) * get_global_size(1)
                + get_global_id(1) - get_global_offset(1)) * get_global_size(0)
                + get_global_id(0) - get_global_offset(0));",
        );
        if self.kernel.needs_local {
            self.line(
                "int lid = (int)((get_local_id(2) * get_local_size(1) + get_local_id(1)) * get_local_size(0)
                    + get_local_id(0));
                int items = (int)(get_local_size(0) * get_local_size(1) * get_local_size(2));
                int group = (int)get_group_id(0);",
            );
            self.ints.extend(["lid", "items", "group"].map(str::to_owned));
            self.local_memory();
        }
        for _ in 0..self.rng.usize(2..7) {
            self.statement();
        }
        if self.rng.u8(..6) == 0 {
            let condition = self.condition();
            self.line(&format!("if ({condition}) return;"));
        }
        self.outputs();
    }

    /// Writes a statement of any kind.
    fn statement(&mut self) {
        match self.rng.u8(..20) {
            0..4 => self.calculation(),
            4..6 => self.wide_calculation(),
            6..9 => self.load(),
            9 => self.guarded_load(),
            10 => self.vector_load(),
            11 => self.member_load(),
            12 => self.constant_load(),
            13 => self.private_array(),
            14 => self.helper(),
            15 => self.chosen_pointer(),
            16 => self.moving_pointer(),
            17 => self.atomic(),
            _ if self.depth >= 2 => self.load(),
            18 => self.branches(),
            _ => self.repetition(),
        }
    }

    /// Writes statements in braces, whose variables end with them.
    fn block(&mut self, statements: usize) {
        let (ints, longs) = (self.ints.len(), self.longs.len());
        self.depth += 1;
        for _ in 0..statements {
            self.statement();
        }
        self.depth -= 1;
        self.ints.truncate(ints);
        self.longs.truncate(longs);
    }
}
