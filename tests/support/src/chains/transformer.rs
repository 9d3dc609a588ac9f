//! Chains of transformers: activations, norms and attention, with rows of `COLUMNS` elements.

use super::{
    Buffer, Chain, Counting, Expected, Factors, Float, Floats, Fuses, Int, Local, Long, Step,
    Value, grouped, step,
};

pub(super) const MODULE: &[u8] = include_bytes!("../../../data/chains/transformer.spv");
const COLUMNS: usize = 384;
const ROWS: usize = 24;
const PLANES: usize = 3;
const TENSOR: Tensor = Tensor { columns: COLUMNS, rows: ROWS, planes: PLANES };
/// Number of elements of all tensors.
const N: usize = COLUMNS * ROWS * PLANES;
const GROUP: usize = 64;

/// Size of tensors.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub columns: usize,
    pub rows: usize,
    pub planes: usize,
}

/// Chain over `tensors` tensors, of which all but the first and the last are intermediates.
fn chain(name: &'static str, tensors: usize, launches: Vec<Step>, expected: Expected) -> Chain {
    Chain {
        name,
        module: MODULE,
        buffers: vec![Floats(N); tensors],
        launches,
        intermediates: (1..tensors - 1).collect(),
        expected,
    }
}

/// Pairs of a buffer and its offset of 0 bytes.
pub(super) fn at_start<const N: usize>(buffers: [usize; N]) -> Vec<Value> {
    buffers.into_iter().flat_map(|buffer| [Buffer(buffer), Long(0)]).collect()
}

/// Launch over elements, or over vectors of `width` elements.
fn flat(kernel: &'static str, width: usize, buffers: [usize; 2], rest: &[Value]) -> Step {
    let arguments = [at_start(buffers).as_slice(), rest].concat();
    grouped(kernel, &[N / width], &[GROUP], &arguments)
}

impl Tensor {
    pub(super) fn elements(self) -> usize {
        self.columns * self.rows * self.planes
    }

    fn sizes(self) -> [Value; 3] {
        [self.columns, self.rows, self.planes].map(|size| Int(size as i32))
    }

    /// Number of bytes from a row to the next, from a plane to the next, and of all planes.
    fn strides(self) -> [Value; 3] {
        let row = 4 * self.columns;
        [row, row * self.rows, 4 * self.elements()].map(|bytes| Long(bytes as u64))
    }

    /// Launch in a work-group of `group` for each row.
    fn rows(self, kernel: &'static str, group: usize, arguments: &[Value]) -> Step {
        grouped(kernel, &[group * self.rows, self.planes, 1], &[group, 1, 1], arguments)
    }

    /// Launch of a kernel with two tensors. The second tensor has `columns` columns and `rows` rows, which are
    /// repeated.
    pub(super) fn by_rows(
        self,
        kernel: &'static str,
        group: usize,
        buffers: [usize; 3],
        [columns, rows]: [usize; 2],
    ) -> Step {
        let mut arguments = at_start(buffers);
        arguments.push(Long(4));
        arguments.extend(self.strides());
        arguments.extend([Int(columns as i32), Int(rows as i32), Int(1), Int(1)]);
        let row = 4 * columns as u64;
        let plane = row * rows as u64;
        arguments.extend([Long(4), Long(row), Long(plane), Long(plane)]);
        arguments.extend([Int(self.columns as i32), Long(4)]);
        arguments.extend(self.strides());
        self.rows(kernel, group, &arguments)
    }

    /// Launch of a norm.
    pub(super) fn norm(self, kernel: &'static str, group: usize, buffers: [usize; 2]) -> Step {
        let mut arguments = at_start(buffers);
        arguments.extend(self.sizes());
        arguments.push(Int(1));
        arguments.extend(self.strides());
        arguments.extend([Float(1e-5), Local(4 * group)]);
        self.rows(kernel, group, &arguments)
    }

    /// Launch that turns rows into probabilities. The mask is a buffer, or `from` if there is none.
    pub(super) fn soft_max(self, group: usize, [from, mask, to]: [usize; 3]) -> Step {
        let mut arguments = at_start([from, mask, to]);
        arguments.extend(self.sizes());
        arguments.extend([Float(0.125), Local(4 * group)]);
        self.rows("soft_max", group, &arguments)
    }

    /// Launch that hides the elements behind the diagonal.
    pub(super) fn diag_mask(self, [from, to]: [usize; 2]) -> Step {
        let [columns, rows, _] = self.sizes();
        let arguments = [at_start([from, to]).as_slice(), &[columns, rows, Int(3)]].concat();
        step("diag_mask_inf", &[self.columns, self.rows, self.planes], &arguments)
    }
}

/// Launch that copies rows to halves, of which `columns` make a row of the destination.
fn copy(group: usize, [from, to]: [usize; 2], columns: usize) -> Step {
    let mut arguments = at_start([from, to]);
    arguments.extend(TENSOR.sizes());
    arguments.extend([Int(1), Long(4)]);
    arguments.extend(TENSOR.strides());
    let rows = COLUMNS * ROWS / columns;
    arguments.extend([columns, rows, PLANES].map(|size| Int(size as i32)));
    let row = 2 * columns as u64;
    arguments.extend([2, row, row * rows as u64, 2 * N as u64].map(Long));
    TENSOR.rows("cpy_f32_f16", group, &arguments)
}

/// Launch that rotates the elements of heads (rows) at positions (planes).
fn rope(from: usize, pos: usize, factors: usize, to: usize) -> Step {
    let mut arguments =
        vec![Buffer(from), Long(0), Buffer(pos), Buffer(factors), Buffer(to), Long(0)];
    arguments.push(Int(COLUMNS as i32));
    let [row, plane, _] = TENSOR.strides();
    arguments.extend([Long(4), row, plane, Long(4), row, plane]);
    arguments.extend([Int(COLUMNS as i32 / 2), Float(0.95)]);
    grouped("rope_neox", &[GROUP * ROWS, PLANES], &[GROUP, 1], &arguments)
}

const SIZE: Value = Int(N as i32);

pub(super) fn chains() -> Vec<Chain> {
    let mut all = activations();
    all.extend(norms());
    all.extend(attention());
    all
}

fn activations() -> Vec<Chain> {
    let next = [Int(COLUMNS as i32 / 4)];
    let rounded = N.next_multiple_of(640);
    vec![
        chain(
            "scale, silu",
            3,
            vec![flat("scale4", 4, [0, 1], &[Float(0.5)]), flat("silu4", 4, [1, 2], &[])],
            Fuses,
        ),
        chain(
            "scale by vectors, gelu by elements",
            3,
            vec![flat("scale4", 4, [0, 1], &[Float(0.5)]), flat("gelu", 1, [1, 2], &[])],
            Fuses,
        ),
        chain(
            "gate: silu, mul",
            4,
            vec![
                flat("silu", 1, [0, 1], &[]),
                step("mul_flat", &[N], &[Buffer(1), Buffer(2), Buffer(3)]),
            ],
            Fuses,
        ),
        chain(
            "bias for each row, gelu",
            4,
            vec![
                grouped(
                    "add_row4",
                    &[N / 4],
                    &[GROUP],
                    &[at_start([0, 1, 2]).as_slice(), &next].concat(),
                ),
                flat("gelu4", 4, [2, 3], &[]),
            ],
            Fuses,
        ),
        chain(
            "add by rows, relu by elements",
            4,
            vec![
                TENSOR.by_rows("add", GROUP, [0, 1, 2], [COLUMNS, 1]),
                grouped("relu", &[N], &[128], &[Buffer(2), Buffer(3), SIZE]),
            ],
            Fuses,
        ),
        chain(
            "clamp, sub, div",
            5,
            vec![
                step("clamp_flat", &[N], &[Buffer(0), Buffer(1), Float(-1.0), Float(2.0)]),
                step("sub_flat", &[N], &[Buffer(1), Buffer(2), Buffer(3)]),
                step("div_flat", &[N], &[Buffer(3), Buffer(4), Float(3.0)]),
            ],
            Fuses,
        ),
        chain(
            "sigmoid, mul, tanh over rounded sizes",
            5,
            vec![
                grouped("sigmoid", &[rounded], &[GROUP], &[Buffer(0), Buffer(1), SIZE]),
                step("mul_flat", &[N], &[Buffer(1), Buffer(2), Buffer(3)]),
                grouped("tanh_flat", &[rounded], &[128], &[Buffer(3), Buffer(4), SIZE]),
            ],
            Fuses,
        ),
        chain(
            "repeat by rows, add by vectors",
            4,
            vec![
                grouped(
                    "repeat",
                    &[GROUP * ROWS * PLANES],
                    &[GROUP],
                    &[
                        Buffer(0),
                        Buffer(1),
                        Int(COLUMNS as i32 / 4),
                        Int(COLUMNS as i32),
                        TENSOR.strides()[0],
                        TENSOR.strides()[0],
                    ],
                ),
                grouped(
                    "add_row4",
                    &[N / 4],
                    &[GROUP],
                    &[at_start([1, 2, 3]).as_slice(), &next].concat(),
                ),
            ],
            Fuses,
        ),
    ]
}

fn norms() -> Vec<Chain> {
    let next = [Int(COLUMNS as i32 / 4)];
    vec![
        chain(
            "rms_norm, mul by rows",
            4,
            vec![
                TENSOR.norm("rms_norm", GROUP, [0, 1]),
                TENSOR.by_rows("mul", GROUP, [1, 2, 3], [COLUMNS, 1]),
            ],
            Fuses,
        ),
        chain(
            "rms_norm, mul by vectors",
            4,
            vec![
                TENSOR.norm("rms_norm", GROUP, [0, 1]),
                grouped(
                    "mul_row4",
                    &[N / 4],
                    &[GROUP],
                    &[at_start([1, 2, 3]).as_slice(), &next].concat(),
                ),
            ],
            Fuses,
        ),
        chain(
            "norm, mul, add by rows",
            6,
            vec![
                TENSOR.norm("norm", GROUP, [0, 1]),
                TENSOR.by_rows("mul", GROUP, [1, 2, 3], [COLUMNS, 1]),
                TENSOR.by_rows("add", GROUP, [3, 4, 5], [COLUMNS, 1]),
            ],
            Fuses,
        ),
        Chain {
            intermediates: vec![],
            ..chain(
                "residual: add, rms_norm",
                4,
                vec![
                    TENSOR.by_rows("add", 32, [0, 1, 2], [COLUMNS, ROWS]),
                    TENSOR.norm("rms_norm", GROUP, [2, 3]),
                ],
                Fuses,
            )
        },
    ]
}

fn attention() -> Vec<Chain> {
    let mut rotated = chain(
        "rope, copy to halves",
        5,
        vec![rope(0, 1, 2, 3), copy(GROUP, [3, 4], COLUMNS)],
        Fuses,
    );
    rotated.buffers = vec![Floats(N), Counting(PLANES), Factors(COLUMNS), Floats(N), Floats(N / 2)];
    vec![
        chain(
            "scale, soft_max with mask",
            4,
            vec![flat("scale4", 4, [0, 1], &[Float(0.5)]), TENSOR.soft_max(32, [1, 2, 3])],
            Fuses,
        ),
        chain(
            "soft_max without mask, copy to halves",
            3,
            vec![TENSOR.soft_max(32, [0, 0, 1]), copy(GROUP, [1, 2], COLUMNS * ROWS)],
            Fuses,
        ),
        chain(
            "mask of later positions, soft_max",
            3,
            vec![TENSOR.diag_mask([0, 1]), TENSOR.soft_max(GROUP, [1, 1, 2])],
            Fuses,
        ),
        chain(
            "gelu_quick, copy to halves",
            3,
            vec![
                flat("gelu_quick", 1, [0, 1], &[]),
                grouped("cpy_f32_f16_flat", &[N], &[128], &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        rotated,
    ]
}
