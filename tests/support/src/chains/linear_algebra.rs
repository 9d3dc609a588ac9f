//! Chains of linear algebra and of simulations.

use super::{
    Buffer, Chain, Expected, Float, Floats, Fuses, Int, Refused, Step, Value, grouped, step,
};

const MODULE: &[u8] = include_bytes!("../../../data/chains/linear_algebra.spv");
/// Number of rows and of columns.
const SIZE: usize = 100;
/// Global size of a plane, rounded up to whole work-groups of 32 columns and 8 rows.
const PLANE: [usize; 2] = [128, 104];
const GROUP: [usize; 2] = [32, 8];
const N: Value = Int(SIZE as i32);

fn plane(kernel: &'static str, arguments: &[Value]) -> Step {
    grouped(kernel, &PLANE, &GROUP, arguments)
}

fn line(kernel: &'static str, arguments: &[Value]) -> Step {
    grouped(kernel, &[SIZE.next_multiple_of(32)], &[32], arguments)
}

/// Chain over matrices.
fn chain(
    name: &'static str,
    buffers: usize,
    launches: Vec<Step>,
    intermediates: &[usize],
    expected: Expected,
) -> Chain {
    Chain {
        name,
        module: MODULE,
        buffers: vec![Floats(SIZE * SIZE); buffers],
        launches,
        intermediates: intermediates.to_vec(),
        expected,
    }
}

pub(super) fn chains() -> Vec<Chain> {
    vec![
        chain(
            "scale of a matrix, product added to it",
            3,
            vec![
                plane("times_beta", &[Buffer(2), Float(0.5), N, N]),
                plane("add_product", &[Buffer(0), Buffer(1), Buffer(2), N, N, N]),
            ],
            &[],
            Fuses,
        ),
        chain(
            "sum of two products with a vector",
            6,
            vec![
                line("times_vector", &[Buffer(0), Buffer(2), Buffer(3), N]),
                line("times_vector", &[Buffer(1), Buffer(2), Buffer(4), N]),
                line(
                    "weighted_sum",
                    &[Buffer(3), Buffer(4), Buffer(5), Float(1.5), Float(1.25), N],
                ),
            ],
            &[3, 4],
            Fuses,
        ),
        chain(
            "products with rows and columns, weighted sum",
            6,
            vec![
                line("times_vector_of_columns", &[Buffer(0), Buffer(1), Buffer(3), N]),
                line("times_vector", &[Buffer(0), Buffer(2), Buffer(4), N]),
                step(
                    "weighted_sum",
                    &[SIZE],
                    &[Buffer(3), Buffer(4), Buffer(5), Float(1.5), Float(1.25), N],
                ),
            ],
            &[3, 4],
            Fuses,
        ),
        chain(
            "step of a relaxation, distance to the last step",
            3,
            vec![
                plane("jacobi_2d", &[Buffer(0), Buffer(1), N]),
                plane("distance_of", &[Buffer(0), Buffer(1), Buffer(2), N]),
            ],
            &[],
            Fuses,
        ),
        chain(
            "scale, step of a relaxation in one dimension",
            4,
            vec![
                line("weighted_sum", &[Buffer(0), Buffer(1), Buffer(2), Float(1.5), Float(0.5), N]),
                line("jacobi_1d", &[Buffer(2), Buffer(3), N]),
            ],
            &[2],
            Fuses,
        ),
        chain(
            "fields, energy",
            5,
            vec![
                plane("field_y", &[Buffer(0), Buffer(1), Buffer(3), Int(7), N, N]),
                plane("field_x", &[Buffer(2), Buffer(3), N, N]),
                step("energy", &[SIZE, SIZE], &[Buffer(2), Buffer(1), Buffer(4), N, N]),
            ],
            &[],
            // The first row is written at another offset, of which it is not known that it is the same there.
            Refused("`field_y` writes `ey` at offsets that are not known before it runs"),
        ),
        chain(
            "convolution, rectification inside the border",
            3,
            vec![
                plane("convolution", &[Buffer(0), Buffer(1), N, N]),
                plane("rectify_inside", &[Buffer(1), Buffer(2), N, N]),
            ],
            &[1],
            Fuses,
        ),
    ]
}
