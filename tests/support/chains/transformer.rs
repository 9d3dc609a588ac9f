//! Chains of transformers: activations, norms and attention, with rows of `COLUMNS` elements.

use super::{
    Buffer, Chain, Counting, Expected, Factors, Float, Floats, Fuses, Int, Local, Long, Step,
    Value, grouped, step,
};

const MODULE: &[u8] = include_bytes!("../../data/chains/transformer.spv");
const COLUMNS: usize = 384;
const ROWS: usize = 24;
const PLANES: usize = 3;
/// Number of elements of all tensors.
const N: usize = COLUMNS * ROWS * PLANES;
const GROUP: usize = 64;

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
fn at_start<const N: usize>(buffers: [usize; N]) -> Vec<Value> {
    buffers.into_iter().flat_map(|buffer| [Buffer(buffer), Long(0)]).collect()
}

/// Launch over elements, or over vectors of `width` elements.
fn flat(kernel: &'static str, width: usize, buffers: [usize; 2], rest: &[Value]) -> Step {
    let arguments = [at_start(buffers).as_slice(), rest].concat();
    grouped(kernel, &[N / width], &[GROUP], &arguments)
}

/// Number of bytes from a row to the next, from a plane to the next, and of all planes.
const STRIDES: [u64; 3] = [4 * COLUMNS as u64, 4 * (COLUMNS * ROWS) as u64, 4 * N as u64];

/// Launch of a kernel with two tensors, in work-groups of `group` for each row. The second tensor has
/// `columns` columns and `rows` rows, which are repeated.
fn by_rows(
    kernel: &'static str,
    group: usize,
    buffers: [usize; 3],
    [columns, rows]: [usize; 2],
) -> Step {
    let mut arguments = at_start(buffers);
    arguments.extend([Long(4), Long(STRIDES[0]), Long(STRIDES[1]), Long(STRIDES[2])]);
    arguments.extend([Int(columns as i32), Int(rows as i32), Int(1), Int(1)]);
    let row = 4 * columns as u64;
    let plane = row * rows as u64;
    arguments.extend([Long(4), Long(row), Long(plane), Long(plane)]);
    arguments.push(Int(COLUMNS as i32));
    arguments.extend([Long(4), Long(STRIDES[0]), Long(STRIDES[1]), Long(STRIDES[2])]);
    grouped(kernel, &[group * ROWS, PLANES, 1], &[group, 1, 1], &arguments)
}

/// Launch of a norm, in a work-group for each row.
fn norm(kernel: &'static str, group: usize, buffers: [usize; 2]) -> Step {
    let mut arguments = at_start(buffers);
    arguments.extend([COLUMNS, ROWS, PLANES, 1].map(|size| Int(size as i32)));
    arguments.extend(STRIDES.map(Long));
    arguments.extend([Float(1e-5), Local(4 * group)]);
    grouped(kernel, &[group * ROWS, PLANES, 1], &[group, 1, 1], &arguments)
}

/// Launch that turns rows into probabilities. The mask is a buffer, or `from` if there is none.
fn soft_max(group: usize, [from, mask, to]: [usize; 3]) -> Step {
    let mut arguments = at_start([from, mask, to]);
    arguments.extend([COLUMNS, ROWS, PLANES].map(|size| Int(size as i32)));
    arguments.extend([Float(0.125), Local(4 * group)]);
    grouped("soft_max", &[group * ROWS, PLANES, 1], &[group, 1, 1], &arguments)
}

/// Launch that copies rows to halves, of which `columns` make a row of the destination.
fn copy(group: usize, [from, to]: [usize; 2], columns: usize) -> Step {
    let mut arguments = at_start([from, to]);
    arguments.extend([COLUMNS, ROWS, PLANES, 1].map(|size| Int(size as i32)));
    arguments.extend([Long(4), Long(STRIDES[0]), Long(STRIDES[1]), Long(STRIDES[2])]);
    let rows = COLUMNS * ROWS / columns;
    arguments.extend([columns, rows, PLANES].map(|size| Int(size as i32)));
    let row = 2 * columns as u64;
    arguments.extend([2, row, row * rows as u64, 2 * N as u64].map(Long));
    grouped("cpy_f32_f16", &[group * ROWS, PLANES, 1], &[group, 1, 1], &arguments)
}

/// Launch that rotates the elements of heads (rows) at positions (planes).
fn rope(from: usize, pos: usize, factors: usize, to: usize) -> Step {
    let mut arguments =
        vec![Buffer(from), Long(0), Buffer(pos), Buffer(factors), Buffer(to), Long(0)];
    arguments.push(Int(COLUMNS as i32));
    arguments.extend([4, STRIDES[0], STRIDES[1], 4, STRIDES[0], STRIDES[1]].map(Long));
    arguments.extend([Int(COLUMNS as i32 / 2), Float(0.95)]);
    grouped("rope_neox", &[GROUP * ROWS, PLANES], &[GROUP, 1], &arguments)
}

const SIZE: Value = Int(N as i32);

pub fn chains() -> Vec<Chain> {
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
                by_rows("add", GROUP, [0, 1, 2], [COLUMNS, 1]),
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
                        Long(STRIDES[0]),
                        Long(STRIDES[0]),
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
            vec![norm("rms_norm", GROUP, [0, 1]), by_rows("mul", GROUP, [1, 2, 3], [COLUMNS, 1])],
            Fuses,
        ),
        chain(
            "rms_norm, mul by vectors",
            4,
            vec![
                norm("rms_norm", GROUP, [0, 1]),
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
                norm("norm", GROUP, [0, 1]),
                by_rows("mul", GROUP, [1, 2, 3], [COLUMNS, 1]),
                by_rows("add", GROUP, [3, 4, 5], [COLUMNS, 1]),
            ],
            Fuses,
        ),
        Chain {
            intermediates: vec![],
            ..chain(
                "residual: add, rms_norm",
                4,
                vec![
                    by_rows("add", 32, [0, 1, 2], [COLUMNS, ROWS]),
                    norm("rms_norm", GROUP, [2, 3]),
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
            vec![flat("scale4", 4, [0, 1], &[Float(0.5)]), soft_max(32, [1, 2, 3])],
            Fuses,
        ),
        chain(
            "soft_max without mask, copy to halves",
            3,
            vec![soft_max(32, [0, 0, 1]), copy(GROUP, [1, 2], COLUMNS * ROWS)],
            Fuses,
        ),
        chain(
            "mask of later positions, soft_max",
            3,
            vec![
                step(
                    "diag_mask_inf",
                    &[COLUMNS, ROWS, PLANES],
                    &[
                        at_start([0, 1]).as_slice(),
                        &[Int(COLUMNS as i32), Int(ROWS as i32), Int(3)],
                    ]
                    .concat(),
                ),
                soft_max(GROUP, [1, 1, 2]),
            ],
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
