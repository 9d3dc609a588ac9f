//! Gain of fusing stencils: `cargo bench --bench stencils`. The end of the photograph of the examples, from the
//! first pass of its blur to the picture, runs one by one, with only the launches fused that read their own
//! pixels, and in each form in which the producers run again.
//!
//! Arguments after `--`: widths of the square pictures, in pixels.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use futures_lite::future::block_on;
use kiln::internal::fusion::{Argument, FusionOptions, Launch, fuse, range};
use kiln::internal::spirv::emit;
use kiln::{Buffer, CacheConfig, DeviceKind, FusionForm, Kernel, Module, NdRange, Queue, Result, Runtime};
use support::{interleave, time};

const PHOTOGRAPH: &[u8] = include_bytes!("gpu/photograph.spv");

const ROUNDS: usize = 15;

/// Numbers of the buffers, with the sizes of their elements in bytes; the exposure has only one element.
const BUFFERS: [usize; 8] = [16, 16, 16, 16, 16, 4, 4, 4];
const [DENOISED, HALF, BLURRED, SHARP, TONED, EDGES, RESULT, EXPOSURE]: [u32; 8] =
    [0, 1, 2, 3, 4, 5, 6, 7];

/// Kernel with its range and its arguments, ready to run.
struct Step {
    kernel: Kernel,
    range: NdRange,
    arguments: Vec<Argument>,
}

struct Photograph<'a> {
    rt: &'a Runtime,
    queue: Queue,
    width: usize,
    buffers: Vec<Buffer<u8>>,
}

impl<'a> Photograph<'a> {
    fn new(rt: &'a Runtime, width: usize) -> Result<Self> {
        let queue = rt.queue();
        let mut buffers = Vec::new();
        for (at, size) in BUFFERS.into_iter().enumerate() {
            let count = if at == EXPOSURE as usize { 1 } else { width * width };
            let numbers: Vec<_> = (0..count * size / 4)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 8 & 0xffff) as f32 / 65536.0)
                .collect();
            let bytes = bytemuck::allocation::cast_slice_box::<f32, u8>(numbers.into_boxed_slice());
            buffers.push(block_on(rt.buffer_from(bytes.into_vec()))?);
        }
        Ok(Self { rt, queue, width, buffers })
    }
}
