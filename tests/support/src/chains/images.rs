//! Chains of image filters.

use super::{
    Buffer, Bytes, Chain, Float, Floats, Fuses, Int, Step, Value, chain, grouped, of_module, step,
};

const MODULE: &[u8] = include_bytes!("../../../data/chains/images.spv");
const WIDTH: usize = 150;
const HEIGHT: usize = 94;
/// Number of pixels.
const COUNT: usize = WIDTH * HEIGHT;
const SIZES: [Value; 2] = [Int(WIDTH as i32), Int(HEIGHT as i32)];

/// Launch over the pixels of an image that is `by` times as narrow and low, in whole work-groups.
fn plane(kernel: &'static str, by: usize, arguments: &[Value]) -> Step {
    let global = [(WIDTH / by).next_multiple_of(16), (HEIGHT / by).next_multiple_of(8)];
    grouped(kernel, &global, &[16, 8], &[arguments, &SIZES].concat())
}

/// Launch over `count` elements as one line, `each` for each work-item.
fn line(kernel: &'static str, count: usize, each: usize, arguments: &[Value]) -> Step {
    let global = count.div_ceil(each).next_multiple_of(256);
    grouped(kernel, &[global], &[256], &[arguments, &[Int(count as i32)]].concat())
}

pub(super) fn chains() -> Vec<Chain> {
    of_module(MODULE, [neighbourhoods(), points()].concat())
}

fn neighbourhoods() -> Vec<Chain> {
    vec![
        chain(
            "blur of rows, blur of columns",
            vec![Floats(COUNT); 3],
            vec![
                plane("blur_rows", 1, &[Buffer(0), Buffer(1)]),
                plane("blur_columns", 1, &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "grey, edges",
            vec![Bytes(COUNT), Floats(COUNT), Floats(COUNT)],
            vec![
                plane("grey", 1, &[Buffer(0), Buffer(1)]),
                plane("sobel", 1, &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
        chain(
            "edges, threshold, inversion",
            vec![Floats(COUNT), Floats(COUNT), Bytes(COUNT / 4), Bytes(COUNT / 4)],
            vec![
                plane("sobel", 1, &[Buffer(0), Buffer(1)]),
                plane("threshold", 1, &[Buffer(1), Buffer(2), Float(3.0)]),
                line("invert", COUNT, 1, &[Buffer(2), Buffer(3)]),
            ],
            Fuses,
        ),
        chain(
            "blur of columns, unsharp mask, gamma",
            vec![Floats(COUNT); 4],
            vec![
                plane("blur_columns", 1, &[Buffer(0), Buffer(1)]),
                line("unsharp", COUNT, 1, &[Buffer(0), Buffer(1), Buffer(2), Float(0.75)]),
                plane("gamma_of", 1, &[Buffer(2), Buffer(3), Float(0.45)]),
            ],
            Fuses,
        ),
        chain(
            "dilation, erosion, difference by vectors",
            vec![Floats(COUNT); 4],
            vec![
                plane("dilate", 1, &[Buffer(0), Buffer(1)]),
                plane("erode", 1, &[Buffer(0), Buffer(2)]),
                line("difference4", COUNT, 4, &[Buffer(1), Buffer(2), Buffer(3)]),
            ],
            Fuses,
        ),
    ]
}

fn points() -> Vec<Chain> {
    let planes = COUNT / 4;
    vec![
        chain(
            "grey, threshold",
            vec![Bytes(COUNT), Floats(COUNT), Bytes(planes)],
            vec![
                plane("grey", 1, &[Buffer(0), Buffer(1)]),
                plane("threshold", 1, &[Buffer(1), Buffer(2), Float(100.0)]),
            ],
            Fuses,
        ),
        Chain {
            intermediates: vec![],
            ..chain(
                "planes of brightness and colour, contrast",
                vec![Bytes(3 * planes), Bytes(planes), Bytes(planes), Bytes(planes)],
                vec![
                    plane("luma", 1, &[Buffer(0), Buffer(1)]),
                    plane("chroma", 2, &[Buffer(0), Buffer(2), Buffer(3)]),
                    step(
                        "stretch_luma",
                        &[COUNT],
                        &[Buffer(1), Int(16), Int(235), Int(COUNT as i32)],
                    ),
                ],
                Fuses,
            )
        },
        Chain {
            intermediates: vec![2, 3],
            ..chain(
                "blend, exposure, bytes",
                vec![
                    Floats(4 * COUNT),
                    Floats(4 * COUNT),
                    Floats(4 * COUNT),
                    Floats(4 * COUNT),
                    Bytes(COUNT),
                ],
                vec![
                    plane("blend", 1, &[Buffer(0), Buffer(1), Buffer(2)]),
                    line("expose", COUNT, 1, &[Buffer(2), Buffer(3), Float(1.25)]),
                    plane("pack", 1, &[Buffer(3), Buffer(4)]),
                ],
                Fuses,
            )
        },
        chain(
            "half the size, tone",
            vec![Floats(COUNT), Floats(planes), Floats(planes)],
            vec![
                plane("halve", 2, &[Buffer(0), Buffer(1)]),
                line("tone", COUNT / 4, 1, &[Buffer(1), Buffer(2)]),
            ],
            Fuses,
        ),
    ]
}
