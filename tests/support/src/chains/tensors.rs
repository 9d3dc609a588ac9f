//! Further chains of transformers and of convolutional networks.

use super::{
    Buffer, Bytes, Chain, Counting, Factors, Float, Floats, Fuses, FusesExceptIntel, Int, Local,
    Long, Refused, Step, Uint, Value, chain, grouped, of_module, step,
};

const MODULE: &[u8] = include_bytes!("../../../data/chains/tensors.spv");
const COLUMNS: usize = 128;
const ROWS: usize = 24;
const PLANES: usize = 3;
/// Number of elements of a tensor.
const N: usize = COLUMNS * ROWS * PLANES;
const ALL_ROWS: usize = ROWS * PLANES;
const GROUP: usize = 32;
/// Number of rows and of columns of a board.
const BOARD: usize = 20;
const PLACES: usize = BOARD * BOARD;
const CHANNELS: usize = 6;
const BATCH: usize = 2;
/// Number of elements of all boards.
const BOARDS: usize = PLACES * CHANNELS * BATCH;

fn int(number: usize) -> Value {
    Int(number as i32)
}

fn bytes(number: usize) -> Value {
    Long(number as u64)
}

/// Launch with a work-item for each element.
fn flat(kernel: &'static str, arguments: &[Value]) -> Step {
    grouped(kernel, &[N], &[64], arguments)
}

/// Launch with a work-item for each element, in three dimensions.
fn tensor(kernel: &'static str, arguments: &[Value]) -> Step {
    step(kernel, &[COLUMNS, ROWS, PLANES], arguments)
}

fn boards(kernel: &'static str, arguments: &[Value]) -> Step {
    step(kernel, &[BOARD, BOARD, CHANNELS * BATCH], arguments)
}

/// Chain in which the buffers at `intermediates` are not read afterwards.
fn with(intermediates: &[usize], chain: Chain) -> Chain {
    Chain { intermediates: intermediates.to_vec(), ..chain }
}

pub(super) fn chains() -> Vec<Chain> {
    of_module(MODULE, [maps(), rows(), moves(), planes()].concat())
}

fn maps() -> Vec<Chain> {
    let full = Floats(N);
    vec![
        chain(
            "scale, soft cap, scale",
            vec![full; 4],
            vec![
                flat("scale_by", &[Buffer(0), Buffer(1), Float(0.5)]),
                flat("soft_cap", &[Buffer(1), Buffer(2), Float(3.0)]),
                flat("scale_by", &[Buffer(2), Buffer(3), Float(2.0)]),
            ],
            Fuses,
        ),
        chain(
            "squares in strides, leaky_relu",
            vec![full; 3],
            vec![
                grouped("square", &[N / 8], &[64], &[Buffer(0), Buffer(1), bytes(N)]),
                grouped(
                    "leaky_relu",
                    &[N],
                    &[64],
                    &[Buffer(1), Buffer(2), Float(0.1), Uint(N as u32)],
                ),
            ],
            Fuses,
        ),
        chain(
            "halves to rows of floats, add, to halves",
            vec![Counting(N / 2), full, full, full, Bytes(N / 2)],
            vec![
                grouped("from_half", &[GROUP * ROWS, PLANES], &[GROUP, 1], &half_rows(0, 1)),
                flat("add_flat", &[Buffer(1), Buffer(2), Buffer(3)]),
                grouped("to_half", &[N], &[128], &[Buffer(3), Buffer(4), int(N)]),
            ],
            Fuses,
        ),
        chain(
            "geglu, to halves",
            vec![full, full, full, Bytes(N / 2)],
            vec![
                grouped("geglu", &[N], &[256], &[Buffer(0), Buffer(1), Buffer(2), int(N)]),
                grouped("to_half", &[N], &[128], &[Buffer(2), Buffer(3), int(N)]),
            ],
            Fuses,
        ),
        chain(
            "dequantisation, soft cap",
            vec![Counting(34 * N / 32 / 4), full, full],
            vec![
                step("dequantise", &[N], &[Buffer(0), Buffer(1)]),
                flat("soft_cap", &[Buffer(1), Buffer(2), Float(30.0)]),
            ],
            Fuses,
        ),
        chain(
            "rotation of pairs, scale",
            vec![full, Counting(PLANES), full, full],
            vec![
                step(
                    "rope_pairs",
                    &[COLUMNS / 2, ROWS, PLANES],
                    &[Buffer(0), Buffer(1), Buffer(2), int(COLUMNS), int(ROWS), Float(10_000.0)],
                ),
                flat("scale_by", &[Buffer(2), Buffer(3), Float(0.125)]),
            ],
            Fuses,
        ),
        chain(
            "scale, mask of later positions by two vectors",
            vec![full; 3],
            vec![
                flat("scale_by", &[Buffer(0), Buffer(1), Float(0.125)]),
                step(
                    "mask_diagonal8",
                    &[N / 8],
                    &[Buffer(1), Buffer(2), int(COLUMNS), int(ROWS), int(3)],
                ),
            ],
            Fuses,
        ),
    ]
}

fn half_rows(from: usize, to: usize) -> Vec<Value> {
    let mut arguments = vec![Buffer(from), Buffer(to), int(COLUMNS), int(ROWS)];
    let strides = |size: usize| [size, size * COLUMNS, size * COLUMNS * ROWS].map(bytes);
    arguments.extend(strides(2));
    arguments.extend(strides(4));
    arguments
}

fn sum_rows(from: usize, to: usize) -> Step {
    let mut arguments = vec![Buffer(from), Long(0), Buffer(to), Long(0)];
    arguments.extend([COLUMNS, ROWS, PLANES].map(int));
    arguments.extend([4 * COLUMNS, 4 * COLUMNS * ROWS, 4, 4 * ROWS].map(bytes));
    grouped("sum_rows", &[ROWS.next_multiple_of(16), PLANES], &[16, 1], &arguments)
}

fn rows() -> Vec<Chain> {
    let full = Floats(N);
    let group_norm = |from: usize, to: usize| {
        let arguments =
            [Buffer(from), Buffer(to), int(N), int(N / 8), Float(1e-5), Local(4 * GROUP)];
        grouped("group_norm", &[8 * GROUP], &[GROUP], &arguments)
    };
    let sums_by_groups = |from: usize, to: usize| {
        let arguments = [Buffer(from), Buffer(to), int(COLUMNS), Local(4 * GROUP)];
        grouped("sum_rows_by_groups", &[ALL_ROWS * GROUP], &[GROUP], &arguments)
    };
    vec![
        chain(
            "squares, sums of rows, scale",
            vec![full, full, Floats(ALL_ROWS), Floats(ALL_ROWS)],
            vec![
                grouped("square", &[N], &[64], &[Buffer(0), Buffer(1), bytes(N)]),
                sum_rows(1, 2),
                step("scale_by", &[ALL_ROWS], &[Buffer(2), Buffer(3), Float(0.5)]),
            ],
            FusesExceptIntel,
        ),
        chain(
            "sums of rows by work-groups, rows divided by them",
            vec![full, Floats(ALL_ROWS), full],
            vec![
                sums_by_groups(0, 1),
                flat("divide_rows", &[Buffer(0), Buffer(1), Buffer(2), int(COLUMNS)]),
            ],
            Refused("work-group size"),
        ),
        chain(
            "norm of groups, silu",
            vec![full; 3],
            vec![group_norm(0, 1), flat("silu_flat", &[Buffer(1), Buffer(2)])],
            Fuses,
        ),
        chain(
            "add, norm of groups, scale",
            vec![full; 5],
            vec![
                flat("add_flat", &[Buffer(0), Buffer(1), Buffer(2)]),
                group_norm(2, 3),
                flat("scale_by", &[Buffer(3), Buffer(4), Float(1.5)]),
            ],
            Fuses,
        ),
        chain(
            "swiglu of halves of rows, scale",
            vec![Floats(2 * N), full, full],
            vec![
                grouped(
                    "swiglu",
                    &[ALL_ROWS * GROUP],
                    &[GROUP],
                    &[
                        Buffer(0),
                        Buffer(1),
                        bytes(8 * COLUMNS),
                        int(COLUMNS),
                        bytes(4 * COLUMNS),
                        int(COLUMNS),
                    ],
                ),
                flat("scale_by", &[Buffer(1), Buffer(2), Float(0.5)]),
            ],
            Fuses,
        ),
        chain(
            "slopes, norm of rows by work-items, silu",
            vec![full; 4],
            vec![
                step(
                    "add_slope",
                    &[COLUMNS, ALL_ROWS],
                    &[Buffer(0), Buffer(1), Float(0.01), int(COLUMNS), int(ALL_ROWS)],
                ),
                grouped(
                    "norm_rows",
                    &[ALL_ROWS.next_multiple_of(32)],
                    &[32],
                    &[Buffer(1), Buffer(2), int(COLUMNS), int(ALL_ROWS)],
                ),
                flat("silu_flat", &[Buffer(2), Buffer(3)]),
            ],
            FusesExceptIntel,
        ),
    ]
}

fn moves() -> Vec<Chain> {
    let full = Floats(N);
    let padded = [COLUMNS + 8, ROWS + 3];
    vec![
        with(
            &[1, 2],
            chain(
                "silu, concatenation, soft cap",
                vec![full, full, Floats(2 * N), Floats(2 * N), Floats(N)],
                vec![
                    flat("silu_flat", &[Buffer(0), Buffer(1)]),
                    step(
                        "concat",
                        &[2 * COLUMNS, ROWS, PLANES],
                        &[
                            Buffer(1),
                            Buffer(4),
                            Buffer(2),
                            int(COLUMNS),
                            int(ROWS),
                            int(2 * COLUMNS),
                        ],
                    ),
                    step("soft_cap", &[2 * N], &[Buffer(2), Buffer(3), Float(2.0)]),
                ],
                Refused("through a pointer that is chosen while it runs"),
            ),
        ),
        chain(
            "scale, permutation, silu",
            vec![full; 4],
            vec![
                flat("scale_by", &[Buffer(0), Buffer(1), Float(0.5)]),
                tensor("permute", &[Buffer(1), Buffer(2), int(COLUMNS), int(ROWS), int(PLANES)]),
                flat("silu_flat", &[Buffer(2), Buffer(3)]),
            ],
            Refused("some of which may be written by `permute`"),
        ),
        chain(
            "silu, zeros around planes",
            vec![full, full, Floats(padded[0] * padded[1] * PLANES)],
            vec![
                flat("silu_flat", &[Buffer(0), Buffer(1)]),
                step(
                    "pad",
                    &[padded[0].next_multiple_of(16), padded[1], PLANES],
                    &[
                        Buffer(1),
                        Buffer(2),
                        int(COLUMNS),
                        int(ROWS),
                        int(padded[0]),
                        int(padded[1]),
                    ],
                ),
            ],
            Fuses,
        ),
        chain(
            "leaky_relu, patches as rows",
            vec![Floats(PLACES), Floats(PLACES), Floats(9 * PLACES)],
            vec![
                grouped(
                    "leaky_relu",
                    &[PLACES.next_multiple_of(64)],
                    &[64],
                    &[Buffer(0), Buffer(1), Float(0.1), Uint(PLACES as u32)],
                ),
                step(
                    "im2col",
                    &[9, PLACES],
                    &[
                        Buffer(1),
                        Buffer(2),
                        int(BOARD),
                        int(BOARD),
                        int(BOARD),
                        int(3),
                        int(3),
                        int(1),
                        int(1),
                    ],
                ),
            ],
            Fuses,
        ),
        chain(
            "silu, planes twice as wide and high",
            vec![full, full, Floats(4 * N)],
            vec![
                flat("silu_flat", &[Buffer(0), Buffer(1)]),
                step(
                    "upscale",
                    &[4 * N],
                    &[
                        Buffer(1),
                        Buffer(2),
                        int(COLUMNS),
                        int(ROWS),
                        int(2 * COLUMNS),
                        int(2 * ROWS),
                        int(2),
                    ],
                ),
            ],
            Fuses,
        ),
        chain(
            "scale, a larger plane by factors that are no integers",
            vec![Floats(COLUMNS * ROWS), Floats(COLUMNS * ROWS), Floats(160 * 36)],
            vec![
                step("scale_by", &[COLUMNS * ROWS], &[Buffer(0), Buffer(1), Float(0.5)]),
                step(
                    "upscale_by_floats",
                    &[160, 36],
                    &[
                        Buffer(1),
                        Buffer(2),
                        int(COLUMNS),
                        int(ROWS),
                        int(160),
                        int(36),
                        Float(1.25),
                        Float(1.5),
                    ],
                ),
            ],
            Fuses,
        ),
    ]
}

fn planes() -> Vec<Chain> {
    let full = Floats(BOARDS);
    let norm = |from: usize, to: usize| {
        let buffers = [Buffer(from), Buffer(2), Buffer(3), Buffer(to)];
        let arguments = [&buffers[..], &[int(CHANNELS), int(PLACES)]].concat();
        let global = [PLACES.next_multiple_of(64), CHANNELS, BATCH];
        grouped("batch_norm_relu", &global, &[64, 1, 1], &arguments)
    };
    let channels = Factors(CHANNELS);
    let chain = |name, buffers, launches| with(&[1], chain(name, buffers, launches, Fuses));
    vec![
        chain(
            "norm of channels, largest of four",
            vec![full, full, channels, channels, Floats(BOARDS / 4)],
            vec![
                norm(0, 1),
                step(
                    "max_pool",
                    &[BOARD / 2, BOARD / 2, CHANNELS * BATCH],
                    &[Buffer(1), Buffer(4), int(BOARD), int(BOARD)],
                ),
            ],
        ),
        chain(
            "norm of channels, convolution of each channel",
            vec![full, full, channels, channels, Factors(9 * CHANNELS * BATCH), full],
            vec![
                norm(0, 1),
                boards("depthwise", &[Buffer(1), Buffer(4), Buffer(5), int(BOARD), int(BOARD)]),
            ],
        ),
        Chain {
            expected: FusesExceptIntel,
            ..chain(
                "norm of channels, sums and maxima of channels",
                vec![full, full, channels, channels, Floats(2 * CHANNELS * BATCH)],
                vec![
                    norm(0, 1),
                    step(
                        "pool_places",
                        &[CHANNELS * BATCH],
                        &[Buffer(1), Buffer(4), int(CHANNELS * BATCH), int(PLACES)],
                    ),
                ],
            )
        },
        chain(
            "norm of channels, mirrored boards",
            vec![full, full, channels, channels, full],
            vec![
                norm(0, 1),
                boards("mirror_board", &[Buffer(1), Buffer(4), int(BOARD), int(CHANNELS * BATCH)]),
            ],
        ),
        chain(
            "bias of channels that come last, silu",
            vec![full, full, channels, full],
            vec![
                grouped(
                    "add_bias_last",
                    &[BOARDS.next_multiple_of(64)],
                    &[64],
                    &[Buffer(0), Buffer(2), Buffer(1), int(CHANNELS), int(BOARDS)],
                ),
                step("silu_flat", &[BOARDS], &[Buffer(1), Buffer(3)]),
            ],
        ),
    ]
}
