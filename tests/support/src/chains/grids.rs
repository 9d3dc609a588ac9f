//! Chains of simulations on grids, and of linear algebra.

use super::{
    Buffer, Bytes, Chain, Contents, Expected, Factors, Float, Floats, Fuses, FusesExceptIntel, Int,
    Refused, Step, Uint, Value, grouped, step,
};

const MODULE: &[u8] = include_bytes!("../../../data/chains/grids.spv");
/// Number of rows and of columns.
const SIZE: usize = 100;
const N: Value = Int(SIZE as i32);
/// Number of rows, of columns and of planes.
const CUBE: usize = 20;
const CELLS: usize = CUBE * CUBE * CUBE;

fn plane(kernel: &'static str, arguments: &[Value]) -> Step {
    let global = [SIZE.next_multiple_of(32), SIZE.next_multiple_of(8)];
    grouped(kernel, &global, &[32, 8], arguments)
}

fn line(kernel: &'static str, arguments: &[Value]) -> Step {
    grouped(kernel, &[SIZE.next_multiple_of(128)], &[128], arguments)
}

fn cube(kernel: &'static str, arguments: &[Value]) -> Step {
    grouped(kernel, &[32, CUBE.next_multiple_of(8), CUBE], &[32, 8, 1], arguments)
}

fn chain(
    name: &'static str,
    buffers: Vec<Contents>,
    launches: Vec<Step>,
    intermediates: &[usize],
    expected: Expected,
) -> Chain {
    let intermediates = intermediates.to_vec();
    Chain { name, module: MODULE, buffers, launches, intermediates, expected }
}

pub(super) fn chains() -> Vec<Chain> {
    let mut all = simulations();
    all.extend(algebra());
    all
}

fn simulations() -> Vec<Chain> {
    let matrices = |count| vec![Floats(SIZE * SIZE); count];
    let cubes = |count| vec![Floats(CELLS); count];
    let c = Int(CUBE as i32);
    vec![
        chain(
            "two steps of heat in three dimensions, residual as a line",
            cubes(4),
            vec![
                cube("heat_3d", &[Buffer(0), Buffer(1), c]),
                cube("heat_3d", &[Buffer(1), Buffer(2), c]),
                step("residual", &[CELLS], &[Buffer(1), Buffer(2), Buffer(3), Int(CELLS as i32)]),
            ],
            &[1, 2],
            Fuses,
        ),
        chain(
            "two steps of a relaxation in one dimension",
            vec![Floats(SIZE); 3],
            vec![
                line("relax_1d", &[Buffer(0), Buffer(1), N]),
                line("relax_1d", &[Buffer(1), Buffer(2), N]),
            ],
            &[1],
            Fuses,
        ),
        chain(
            "three steps of a relaxation in two dimensions",
            matrices(4),
            vec![
                plane("relax_2d", &[Buffer(0), Buffer(1), N]),
                plane("relax_2d", &[Buffer(1), Buffer(2), N]),
                plane("relax_2d", &[Buffer(2), Buffer(3), N]),
            ],
            &[1, 2],
            Fuses,
        ),
        chain(
            "two steps of a relaxation, back and forth",
            matrices(2),
            vec![
                plane("relax_2d", &[Buffer(0), Buffer(1), N]),
                plane("relax_2d", &[Buffer(1), Buffer(0), N]),
            ],
            &[],
            Refused("`relax_2d` writes `b`"),
        ),
        chain(
            "two convolutions in three dimensions",
            cubes(3),
            vec![
                cube("convolution_3d", &[Buffer(0), Buffer(1), c, c, c]),
                cube("convolution_3d", &[Buffer(1), Buffer(2), c, c, c]),
            ],
            &[1],
            Fuses,
        ),
        chain(
            "two generations of cells on a torus",
            vec![Bytes(SIZE * SIZE / 4); 3],
            vec![
                plane("live", &[Buffer(0), Buffer(1), N, N]),
                plane("live", &[Buffer(1), Buffer(2), N, N]),
            ],
            &[1],
            Fuses,
        ),
        chain(
            "a step of waves, damping as a line, a step of waves",
            matrices(4),
            vec![
                plane("wave", &wave([0, 1, 2])),
                grouped(
                    "damp",
                    &[(SIZE * SIZE).next_multiple_of(64)],
                    &[64],
                    &[Buffer(2), Float(0.99), Uint((SIZE * SIZE) as u32)],
                ),
                plane("wave", &wave([1, 2, 3])),
            ],
            &[2],
            Fuses,
        ),
        chain(
            "divergence, two steps of the pressure",
            matrices(6),
            vec![
                plane("divergence", &[Buffer(0), Buffer(1), Buffer(2), N, N]),
                plane("pressure_step", &[Buffer(3), Buffer(2), Buffer(4), N, N]),
                plane("pressure_step", &[Buffer(4), Buffer(2), Buffer(5), N, N]),
            ],
            &[2, 4],
            Fuses,
        ),
        chain(
            "a step of the pressure, its gradient subtracted from the flow",
            matrices(5),
            vec![
                plane("pressure_step", &[Buffer(2), Buffer(3), Buffer(4), N, N]),
                plane("subtract_gradient", &[Buffer(0), Buffer(1), Buffer(4), N, N]),
            ],
            &[4],
            Fuses,
        ),
        chain(
            "densities that collide, and move on a torus",
            vec![Floats(5 * SIZE * SIZE); 3],
            vec![
                plane("collide", &[Buffer(0), Buffer(1), Float(0.6), N, N]),
                plane("stream", &[Buffer(1), Buffer(2), N, N]),
            ],
            &[1],
            Fuses,
        ),
        chain(
            "two steps of water",
            vec![Floats(2 * SIZE); 3],
            vec![
                line("flow", &[Buffer(0), Buffer(1), Float(0.1), N]),
                line("flow", &[Buffer(1), Buffer(2), Float(0.1), N]),
            ],
            &[1],
            Fuses,
        ),
    ]
}

fn wave(buffers: [usize; 3]) -> Vec<Value> {
    let mut arguments = buffers.map(Buffer).to_vec();
    arguments.extend([Float(0.2), Uint(SIZE as u32), Uint(SIZE as u32)]);
    arguments
}

fn algebra() -> Vec<Chain> {
    let (matrix, vector) = (Floats(SIZE * SIZE), Floats(SIZE));
    let count = Float(SIZE as f32);
    vec![
        chain(
            "means of columns, subtracted in place",
            vec![matrix, vector],
            vec![
                line("mean_of_columns", &[Buffer(1), Buffer(0), count, N, N]),
                plane("center", &[Buffer(1), Buffer(0), N, N]),
            ],
            &[1],
            Refused("work-group size"),
        ),
        chain(
            "means and deviations of columns, standardised in place",
            vec![matrix, vector, vector],
            vec![
                line("mean_of_columns", &[Buffer(1), Buffer(0), count, N, N]),
                line(
                    "deviation_of_columns",
                    &[Buffer(1), Buffer(2), Buffer(0), count, Float(0.005), N, N],
                ),
                plane("standardise", &[Buffer(1), Buffer(2), Buffer(0), Float(9.8), N, N]),
            ],
            &[1, 2],
            Refused("work-group size"),
        ),
        chain(
            "outer products added, product with the transposed matrix",
            vec![matrix, vector, vector, vector, vector, vector, vector, vector],
            vec![
                plane(
                    "add_outer_products",
                    &[Buffer(0), Buffer(1), Buffer(2), Buffer(3), Buffer(4), N],
                ),
                line(
                    "add_transposed_product",
                    &[Buffer(0), Buffer(5), Buffer(6), Buffer(7), Float(1.25), N],
                ),
            ],
            &[],
            FusesExceptIntel,
        ),
        chain(
            "product with rows, its bias and activation in place, as planes",
            vec![matrix, matrix, matrix, Factors(SIZE)],
            vec![
                plane("product", &[Buffer(0), Buffer(1), Buffer(2), N, N, N, Float(1.5)]),
                plane("add_bias_relu", &[Buffer(2), Buffer(3), N, N]),
                grouped(
                    "damp",
                    &[(SIZE * SIZE).next_multiple_of(64)],
                    &[64],
                    &[Buffer(2), Float(0.5), Uint((SIZE * SIZE) as u32)],
                ),
            ],
            &[],
            FusesExceptIntel,
        ),
        chain(
            "product with rows, as rows, with a step of a relaxation",
            vec![matrix, vector, vector, vector],
            vec![
                line("row_products", &[Buffer(0), Buffer(1), Buffer(2), N, N]),
                line("relax_1d", &[Buffer(2), Buffer(3), N]),
            ],
            &[2],
            Fuses,
        ),
    ]
}
