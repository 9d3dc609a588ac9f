//! Chains of image filters with various borders, layouts and index arithmetic.

use super::{
    Buffer, Bytes, Chain, Contents, Float, Floats, Fuses, Int, Refused, Step, Uint, Value, chain,
    grouped, of_module, step,
};

const MODULE: &[u8] = include_bytes!("../../../data/chains/filters.spv");
const WIDTH: usize = 148;
const HEIGHT: usize = 94;
/// Number of pixels.
const COUNT: usize = WIDTH * HEIGHT;
const SIZES: [Value; 2] = [Int(WIDTH as i32), Int(HEIGHT as i32)];

/// Launch over `size` pixels, in whole work-groups.
fn over(kernel: &'static str, size: [usize; 2], arguments: &[Value]) -> Step {
    let global = [size[0].next_multiple_of(16), size[1].next_multiple_of(8)];
    grouped(kernel, &global, &[16, 8], arguments)
}

/// Launch over the pixels of an image.
fn plane(kernel: &'static str, arguments: &[Value]) -> Step {
    over(kernel, [WIDTH, HEIGHT], &[arguments, &SIZES].concat())
}

/// Launch over the pixels of an image, without work-items for other pixels.
fn exact(kernel: &'static str, arguments: &[Value]) -> Step {
    step(kernel, &[WIDTH, HEIGHT], &[arguments, &SIZES].concat())
}

/// Launch over all pixels as one line.
fn line(kernel: &'static str, arguments: &[Value]) -> Step {
    let count = [Int(COUNT as i32)];
    grouped(kernel, &[COUNT.next_multiple_of(64)], &[64], &[arguments, &count].concat())
}

fn floats(count: usize) -> Vec<Contents> {
    vec![Floats(COUNT); count]
}

pub(super) fn chains() -> Vec<Chain> {
    of_module(MODULE, [borders(), colours(), layouts(), changes()].concat())
}

fn borders() -> Vec<Chain> {
    vec![
        chain(
            "brightness of three bytes, mean of the neighbours that exist",
            vec![Bytes(COUNT), Floats(COUNT), Floats(COUNT)],
            vec![
                over(
                    "luma_of_bytes",
                    [WIDTH, HEIGHT],
                    &[
                        Buffer(0),
                        Buffer(1),
                        Uint(3 * WIDTH as u32 + 8),
                        Uint(WIDTH as u32),
                        Uint(HEIGHT as u32),
                    ],
                ),
                plane("box_blur", &[Buffer(1), Buffer(2), Int(1)]),
            ],
            Fuses,
        ),
        chain(
            "mirrored blur of rows and of columns, difference",
            floats(4),
            vec![
                plane("gauss_rows", &[Buffer(0), Buffer(1)]),
                plane("gauss_columns", &[Buffer(1), Buffer(2)]),
                step("subtract", &[COUNT], &[Buffer(0), Buffer(2), Buffer(3), Uint(COUNT as u32)]),
            ],
            Fuses,
        ),
        chain(
            "curvature on a torus, diffusion on a torus",
            floats(3),
            vec![
                plane("laplacian_wrapped", &[Buffer(0), Buffer(1)]),
                plane("diffuse_wrapped", &[Buffer(0), Buffer(1), Buffer(2), Float(0.1)]),
            ],
            Fuses,
        ),
        chain(
            "curvature on a torus, twice",
            floats(3),
            vec![
                exact("laplacian_wrapped", &[Buffer(0), Buffer(1)]),
                exact("laplacian_wrapped", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "median, sharper pixels, with copied borders",
            floats(3),
            vec![
                plane("median_cross", &[Buffer(0), Buffer(1)]),
                plane("sharpen_inside", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "sharper pixels, median, curvature, with copied borders",
            floats(4),
            vec![
                exact("sharpen_inside", &[Buffer(0), Buffer(1)]),
                exact("median_cross", &[Buffer(1), Buffer(2)]),
                exact("laplacian_wrapped", &[Buffer(2), Buffer(3)]),
            ],
            Fuses,
        ),
        chain(
            "gradients inside, thin edges inside",
            vec![Floats(COUNT), Floats(COUNT), Bytes(COUNT / 4), Floats(COUNT)],
            vec![
                plane("gradient_inside", &[Buffer(0), Buffer(1), Buffer(2)]),
                plane("thin_inside", &[Buffer(1), Buffer(2), Buffer(3)]),
            ],
            Fuses,
        ),
        chain(
            "emboss with 64-bit indices, bilateral filter, detail",
            floats(4),
            vec![
                over(
                    "emboss",
                    [WIDTH, HEIGHT],
                    &[Buffer(0), Buffer(1), Uint(WIDTH as u32), Uint(HEIGHT as u32)],
                ),
                plane("bilateral", &[Buffer(1), Buffer(2), Float(0.2), Float(0.5)]),
                plane("add_detail", &[Buffer(1), Buffer(2), Buffer(3), Float(1.5)]),
            ],
            Fuses,
        ),
    ]
}

fn colours() -> Vec<Chain> {
    let quarter = (WIDTH / 2) * (HEIGHT / 2);
    vec![
        chain(
            "black level, mosaic, colours",
            vec![Bytes(COUNT / 2), Floats(COUNT), Floats(4 * COUNT), Floats(4 * COUNT)],
            vec![
                plane("black_level", &[Buffer(0), Buffer(1), Uint(64), Float(0.001)]),
                plane("demosaic", &[Buffer(1), Buffer(2)]),
                plane("colour_matrix", &[Buffer(2), Buffer(3)]),
            ],
            Fuses,
        ),
        chain(
            "hue, saturation in place, colours",
            vec![Floats(4 * COUNT), Floats(4 * COUNT), Floats(4 * COUNT)],
            vec![
                plane("to_hsv", &[Buffer(0), Buffer(1)]),
                line("saturate", &[Buffer(1), Float(1.25)]),
                plane("from_hsv", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "bytes to planes, contrast of planes",
            vec![Bytes(COUNT), Floats(3 * COUNT), Floats(3 * COUNT)],
            vec![
                plane("to_planes", &[Buffer(0), Buffer(1)]),
                grouped(
                    "contrast_of_planes",
                    &[WIDTH.next_multiple_of(16), HEIGHT.next_multiple_of(8), 3],
                    &[16, 8, 1],
                    &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]],
                ),
            ],
            Fuses,
        ),
        chain(
            "blur of rows, smaller by half with a blur of columns",
            vec![Floats(COUNT), Floats(COUNT), Floats(quarter)],
            vec![
                plane("gauss_rows", &[Buffer(0), Buffer(1)]),
                over(
                    "pyramid_down",
                    [WIDTH / 2, HEIGHT / 2],
                    &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]],
                ),
            ],
            Fuses,
        ),
    ]
}

fn layouts() -> Vec<Chain> {
    let count = [Int(COUNT as i32)];
    let doubled = [2 * WIDTH, 2 * HEIGHT];
    let vectors = [(WIDTH / 4).next_multiple_of(16), HEIGHT.next_multiple_of(8)];
    let part = [Int(64), Int(48)];
    vec![
        chain(
            "blur of columns, enlarged",
            vec![Floats(COUNT), Floats(COUNT), Floats(4 * COUNT)],
            vec![
                plane("gauss_columns", &[Buffer(0), Buffer(1)]),
                over("enlarge", doubled, &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]]),
            ],
            Fuses,
        ),
        chain(
            "inversion, smoothing twice, as lines",
            floats(4),
            vec![
                line("invert_line", &[Buffer(0), Buffer(1)]),
                grouped(
                    "smooth_line",
                    &[COUNT.next_multiple_of(64)],
                    &[64],
                    &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]],
                ),
                grouped(
                    "smooth_line",
                    &[COUNT.next_multiple_of(64)],
                    &[64],
                    &[Buffer(2), Buffer(3), SIZES[0], SIZES[1]],
                ),
            ],
            // Compilers add the truth of `x > 0` as a number to the index.
            Fuses,
        ),
        chain(
            "brightness and blur by vectors",
            floats(3),
            vec![
                step("brighten4", &[COUNT / 4], &[Buffer(0), Buffer(1), Float(1.5), count[0]]),
                grouped("blur4", &vectors, &[16, 8], &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]]),
            ],
            Fuses,
        ),
        chain(
            "brightness by elements, blur by vectors at other places",
            floats(3),
            vec![
                exact("gauss_columns", &[Buffer(0), Buffer(1)]),
                grouped(
                    "blur4_inside",
                    &vectors,
                    &[16, 8],
                    &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]],
                ),
            ],
            Fuses,
        ),
        chain(
            "brightness by vectors, blur by elements",
            floats(3),
            vec![
                step("brighten4", &[COUNT / 4], &[Buffer(0), Buffer(1), Float(1.5), count[0]]),
                plane("gauss_rows", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "blur of columns, mean by a pointer that moves",
            floats(3),
            vec![
                plane("gauss_columns", &[Buffer(0), Buffer(1)]),
                plane("slide", &[Buffer(1), Buffer(2), Int(3)]),
            ],
            Fuses,
        ),
        chain(
            "gain, blur of a tile in local memory",
            floats(3),
            vec![
                step("invert_line", &[COUNT], &[Buffer(0), Buffer(1), count[0]]),
                plane("blur_tile", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "gain to halves, blur of halves",
            vec![Floats(COUNT), Bytes(COUNT / 2), Bytes(COUNT / 2)],
            vec![
                plane("to_halves", &[Buffer(0), Buffer(1), Float(0.75)]),
                plane("blur_halves", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "colours by single bytes, edges of one colour",
            vec![Bytes(COUNT), Bytes(COUNT), Bytes(COUNT / 4)],
            vec![
                plane("tint", &[Buffer(0), Buffer(1)]),
                plane("edges_of_green", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "blur of rows, turned",
            floats(3),
            vec![
                plane("gauss_rows", &[Buffer(0), Buffer(1)]),
                over("turn", [HEIGHT, WIDTH], &[Buffer(1), Buffer(2), SIZES[0], SIZES[1]]),
            ],
            Fuses,
        ),
        chain(
            "blur of rows, sum with an image behind it in the same buffer",
            vec![Floats(COUNT), Floats(2 * COUNT), Floats(COUNT)],
            vec![
                exact("gauss_rows", &[Buffer(0), Buffer(1)]),
                exact("add_below", &[Buffer(1), Buffer(2)]),
            ],
            Refused("`add_below` reads `src`"),
        ),
        chain(
            "part of an image, mirrored blur",
            vec![Floats(COUNT), Floats(64 * 48), Floats(64 * 48)],
            vec![
                over(
                    "crop",
                    [64, 48],
                    &[Buffer(0), Buffer(1), Int(10), Int(7), SIZES[0], part[0], part[1]],
                ),
                over("gauss_rows", [64, 48], &[Buffer(1), Buffer(2), part[0], part[1]]),
            ],
            Fuses,
        ),
    ]
}

fn changes() -> Vec<Chain> {
    vec![
        chain(
            "blur, gain in place as a line, curvature",
            floats(3),
            vec![
                plane("gauss_rows", &[Buffer(0), Buffer(1)]),
                line("scale_in_place", &[Buffer(1), Float(1.5)]),
                plane("laplacian_wrapped", &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "blur, gamma in place, mean of the neighbours",
            floats(3),
            vec![
                plane("gauss_columns", &[Buffer(0), Buffer(1)]),
                plane("gamma_in_place", &[Buffer(1), Float(0.5)]),
                plane("box_blur", &[Buffer(1), Buffer(2), Int(1)]),
            ],
            Fuses,
        ),
        chain(
            "blur, mean of the neighbours, gain of the blur in place, detail",
            floats(4),
            vec![
                plane("gauss_columns", &[Buffer(0), Buffer(1)]),
                plane("box_blur", &[Buffer(1), Buffer(2), Int(1)]),
                line("scale_in_place", &[Buffer(1), Float(0.75)]),
                plane("add_detail", &[Buffer(1), Buffer(2), Buffer(3), Float(1.5)]),
            ],
            Fuses,
        ),
    ]
}
