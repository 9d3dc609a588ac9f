//! Time to analyse a launch for the first time: `cargo bench --bench analysis --all-features`. Launches of the
//! kernels of the example `pipeline`, and of kernels with the shapes of benchmarks for polyhedral compilers, are
//! checked without a device. The goal is 200 us for the first check. A launch with other scalars than the first one is
//! checked for a verdict on as few scalars as possible, which takes longer.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use kiln::NdRange;
use kiln::internal::bounds::{Argument, Kernel};
use kiln::internal::fusion::range;
use kiln::launch::NdSize;

const DENOISE: &[u8] = include_bytes!("../tests/data/bounds/denoise.spv");
const EDGES: &[u8] = include_bytes!("../tests/data/bounds/edges.spv");
const PIXELS: &[u8] = include_bytes!("../tests/data/bounds/pixels.spv");
const SHARPEN: &[u8] = include_bytes!("../tests/data/bounds/sharpen.spv");
const TONE: &[u8] = include_bytes!("../tests/data/bounds/tone.spv");
const POLYHEDRAL: &[u8] = include_bytes!("../tests/data/bounds/polyhedral.spv");

/// Number of checks of each launch, of which the median counts.
const ROUNDS: usize = 51;

/// Maximum time of a check in microseconds.
const GOAL: f64 = 200.0;

/// Side of pictures in pixels, and of matrices in elements.
const SIDE: usize = 2048;

/// Number of work-groups of `measure`, and their size.
const GROUPS: usize = 1024;
const GROUP_SIZE: usize = 64;

/// Launch: module, kernel, range and arguments.
type Launch = (&'static [u8], &'static str, NdRange, Vec<Argument>);

fn buffer(length: usize) -> Argument {
    Argument::Buffer { length, alignment: 128 }
}

fn scalar(value: impl bytemuck::NoUninit) -> Argument {
    Argument::Scalar(bytemuck::bytes_of(&value).to_vec())
}

/// Returns the launches for a picture.
fn pictures() -> kiln::Result<Vec<Launch>> {
    let plane = range(NdSize::from([SIDE, SIDE]), None, None)?;
    let groups = range((GROUPS * GROUP_SIZE).into(), None, Some(GROUP_SIZE.into()))?;
    let one = range(1.into(), None, None)?;
    let pixels = || buffer(SIDE * SIDE * 16);
    let floats = || buffer(SIDE * SIDE * 4);
    let sums = || buffer(GROUPS * 4);
    let (number, count) = (|| scalar(0.5_f32), || scalar((SIDE * SIDE) as u32));
    let local = Argument::Local(GROUP_SIZE * 4);
    Ok(vec![
        (PIXELS, "unpack", plane, vec![floats(), pixels()]),
        (DENOISE, "denoise", plane, vec![pixels(), number(), number(), pixels()]),
        (SHARPEN, "blur_rows", plane, vec![pixels(), pixels()]),
        (SHARPEN, "blur_columns", plane, vec![pixels(), pixels()]),
        (SHARPEN, "unsharp", plane, vec![pixels(), pixels(), number(), pixels()]),
        (TONE, "measure", groups, vec![pixels(), count(), local, sums()]),
        (TONE, "expose", one, vec![sums(), scalar(GROUPS as u32), count(), number(), buffer(4)]),
        (EDGES, "sobel", plane, vec![pixels(), number(), number(), floats()]),
        (PIXELS, "sketch", plane, vec![floats(), floats()]),
        (TONE, "filmic", plane, vec![pixels(), buffer(4), number(), pixels()]),
        (PIXELS, "overlay", plane, vec![pixels(), floats(), number(), floats()]),
    ])
}

/// Returns launches with nested loops over matrices.
fn matrices() -> kiln::Result<Vec<Launch>> {
    let side = SIDE as i32;
    let plane = range(NdSize::from([SIDE, SIDE]), None, Some(NdSize::from([32, 8])))?;
    let line = range(SIDE.into(), None, Some(256.into()))?;
    let square = || buffer(SIDE * SIDE * 4);
    let (n, x) = (|| scalar(side), || scalar(0.5_f32));
    Ok(vec![
        (POLYHEDRAL, "convolve_plane", plane, vec![square(), square(), n(), n()]),
        (POLYHEDRAL, "product_first", plane, vec![square(), square(), square(), n(), n(), n()]),
        (POLYHEDRAL, "correlations", line, vec![square(), square(), n(), n()]),
        (POLYHEDRAL, "covariances", line, vec![square(), square(), n(), n()]),
        (
            POLYHEDRAL,
            "symmetric_two",
            plane,
            vec![square(), square(), square(), x(), x(), n(), n()],
        ),
        (POLYHEDRAL, "rows_forward", line, vec![square(), square(), square(), n()]),
    ])
}

fn main() -> kiln::Result<()> {
    let columns = ["prepared, us", "first, us", "goal", "others, us"];
    println!(
        "{:24} {:>12} {:>12} {:>8} {:>12}",
        "", columns[0], columns[1], columns[2], columns[3]
    );
    for (module, name, range, arguments) in pictures()?.into_iter().chain(matrices()?) {
        let kernel = Kernel::new(module, name)?;
        let report = kernel.check(&range, &arguments, true, false)?;
        assert!(report.guarded.is_empty(), "{name}: {:?}", report.guarded);
        let prepared = median(|| drop(black_box(Kernel::new(module, name))));
        let check = |few_constants| kernel.check(&range, &arguments, true, few_constants);
        let first = median(|| drop(black_box(check(false))));
        let again = median(|| drop(black_box(check(true))));
        println!("{name:24} {prepared:>12.1} {first:>12.1} {GOAL:>8.0} {again:>12.1}");
    }
    Ok(())
}

/// Returns the median time of a call in microseconds.
fn median(mut call: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        call();
        start.elapsed()
    });
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[ROUNDS / 2].as_secs_f64() * 1e6
}
