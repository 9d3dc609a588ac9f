//! Chains of a network over boards.

use super::{Buffer, Chain, Floats, Fuses, Int, Step, Value, grouped, step};

const MODULE: &[u8] = include_bytes!("../../../data/chains/boards.spv");
const PLACES: usize = 19 * 19;
const CHANNELS: usize = 12;
const BATCH: usize = 3;
/// Number of elements.
const N: usize = PLACES * CHANNELS * BATCH;

/// Launch over places, channels and samples, in whole work-groups.
fn scaled(kernel: &'static str, from: usize, to: usize, first: usize) -> Step {
    let buffers = [from, to, first, first + 1, first + 2].map(Buffer);
    let sizes = [BATCH, CHANNELS, PLACES].map(|size| Int(size as i32));
    let global = [PLACES.next_multiple_of(32), CHANNELS.next_multiple_of(4), BATCH];
    grouped(kernel, &global, &[32, 4, 1], &[buffers.as_slice(), &sizes].concat())
}

/// Launch over all elements as one line, in whole work-groups.
fn line(kernel: &'static str, buffers: [usize; 2]) -> Step {
    let arguments: Vec<Value> = buffers.map(Buffer).into_iter().chain([Int(N as i32)]).collect();
    grouped(kernel, &[N.next_multiple_of(64)], &[64], &arguments)
}

pub(super) fn chains() -> Vec<Chain> {
    let chain = |name, launches, intermediates: &[usize]| Chain {
        name,
        module: MODULE,
        buffers: vec![Floats(N); 8],
        launches,
        intermediates: intermediates.to_vec(),
        expected: Fuses,
    };
    vec![
        chain(
            "sum of two tensors as a line, scale, bias, mask and activation by channels",
            vec![line("add_point_wise", [0, 1]), scaled("scale_bias_mask_relu", 0, 2, 3)],
            &[],
        ),
        chain(
            "biases of channels in planes, scale by channels, activation as a line",
            vec![
                grouped(
                    "add_channel_biases",
                    &[PLACES.next_multiple_of(64), CHANNELS * BATCH],
                    &[64, 1],
                    &[Buffer(0), Buffer(1), Int((CHANNELS * BATCH) as i32), Int(PLACES as i32)],
                ),
                scaled("scale_bias_mask", 0, 2, 3),
                step("mish", &[N], &[Buffer(2), Buffer(6), Int(N as i32)]),
            ],
            &[2],
        ),
    ]
}
