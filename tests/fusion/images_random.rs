//! Random chains of launches over images and buffers give the same bytes as one by one, whether they run as one
//! kernel, in parts, or are refused.
//!
//! `KILN_FUSION_CASES` is the number of chains, and `KILN_FUSION_SEED` the seed of the first one; the seeds of
//! the others follow. A failure states the seed of its chain.

#![allow(clippy::print_stderr, reason = "the log shows what was covered")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fastrand::Rng;
use kiln::images::{Addressing, Pixel, R, Rgba, Sampler, Unorm};
use kiln::{Buffer, FusionMode, Image, Launch, Program, Runtime};
use support::tier;
use support::tools::has_clang;

const WIDTH: usize = 13;
const HEIGHT: usize = 9;

/// Kernels that take two images to read, one to write, a sampler, a buffer and a number.
const KERNELS: [(&str, &str); 12] = [
    ("halved", "WRITE(HERE, READ(first, HERE) * 0.5f + by);"),
    ("sampled", "WRITE(HERE, read_imagef(first, sampler, HERE) - by);"),
    ("nearest", "WRITE(HERE, read_imagef(first, NEAREST, HERE) * READ(second, HERE));"),
    ("mixed", "float4 a = READ(first, HERE); WRITE(HERE, a.x > by ? a : READ(second, HERE));"),
    ("scaled", "WRITE(HERE, READ(first, HERE) * buffer[AT]);"),
    ("to_buffer", "float4 a = READ(first, HERE); buffer[AT] = a.y + by; WRITE(HERE, a.wzyx);"),
    (
        "guarded",
        "if (X < get_image_width(to) && Y < get_image_height(to)) WRITE(HERE, READ(first, HERE) + by);",
    ),
    ("masked", "if (buffer[AT] > 0.25f) WRITE(HERE, READ(first, HERE) + by);"),
    ("next", "WRITE(HERE, read_imagef(first, NEAREST, HERE + (int2)(1, 0)) + by);"),
    ("first_column", "WRITE(HERE, READ(second, (int2)(0, Y)) - READ(first, HERE));"),
    ("by_size", "WRITE(HERE, READ(first, HERE) * (float)get_image_width(first));"),
    (
        "twice",
        "WRITE(HERE, READ(first, HERE)); WRITE(HERE, READ(second, HERE) + READ(first, HERE));",
    ),
];

/// Kernel whose global size is that of whole work-groups.
const GUARDED: usize = 6;

fn source() -> String {
    let mut text = "
        #pragma OPENCL FP_CONTRACT OFF
        constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
        #define X (int)get_global_id(0)
        #define Y (int)get_global_id(1)
        #define HERE (int2)(X, Y)
        #define AT (Y * (int)get_global_size(0) + X)
        #define READ(image, at) read_imagef(image, at)
        #define WRITE(at, color) write_imagef(to, at, color)\n"
        .to_owned();
    for (name, code) in KERNELS {
        _ = writeln!(
            text,
            "kernel void {name}(read_only image2d_t first, read_only image2d_t second, write_only image2d_t to,
                 sampler_t sampler, global float *buffer, float by) {{ {code} }}"
        );
    }
    text
}

/// Images of three formats, which take turns.
enum Picture {
    Rgba(Image<Rgba<f32>>),
    R(Image<R<f32>>),
    Bytes(Image<Rgba<Unorm<u8>>>),
}

impl Picture {
    fn new(rt: &Runtime, at: usize, random: &mut Rng) -> Self {
        let queue = rt.queue();
        let mut number = || random.i32(-16..=16) as f32 / 8.0;
        let count = WIDTH * HEIGHT;
        match at % 5 {
            3 => {
                let image = rt.image_2d(WIDTH, HEIGHT).unwrap();
                queue.write(&image, (0..count).map(|_| R([number()])).collect::<Vec<_>>()).unwrap();
                Self::R(image)
            }
            4 => {
                let image = rt.image_2d(WIDTH, HEIGHT).unwrap();
                queue.fill(&image, bytemuck::cast([at as u8 * 40, 7, 200, 255])).unwrap();
                Self::Bytes(image)
            }
            _ => {
                let image = rt.image_2d(WIDTH, HEIGHT).unwrap();
                let pixels: Vec<_> = (0..count).map(|_| Rgba([(); 4].map(|()| number()))).collect();
                queue.write(&image, pixels).unwrap();
                Self::Rgba(image)
            }
        }
    }

    async fn bytes(&self, rt: &Runtime) -> Vec<u8> {
        async fn bytes<P: Pixel>(rt: &Runtime, image: &Image<P>) -> Vec<u8> {
            bytemuck::cast_slice(&rt.queue().read(image).await.unwrap()).to_vec()
        }
        match self {
            Self::Rgba(image) => bytes(rt, image).await,
            Self::R(image) => bytes(rt, image).await,
            Self::Bytes(image) => bytes(rt, image).await,
        }
    }

    /// Adds the image to the arguments of a launch.
    fn add_to(&self, launch: Launch) -> Launch {
        match self {
            Self::Rgba(image) => launch.arg(image),
            Self::R(image) => launch.arg(image),
            Self::Bytes(image) => launch.arg(image),
        }
    }
}

/// Launch of a chain.
#[derive(Clone, Debug)]
struct Step {
    kernel: usize,
    /// Images that are read, the image that is written, and the buffer, by their positions.
    images: [usize; 3],
    buffer: usize,
    by: f32,
    is_clamping: bool,
}

/// Chain of launches over images and buffers.
#[derive(Clone, Debug)]
struct Chain {
    seed: u64,
    steps: Vec<Step>,
    images: usize,
    /// Images and buffers that are dropped before the chain is completed, by their positions.
    dropped: Vec<usize>,
}

const BUFFERS: usize = 2;

impl Chain {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let images = random.usize(3..=6);
        let mut last = 0;
        let steps = (0..random.usize(2..=4)).map(|_| {
            // Mostly, a launch reads what the last one wrote.
            let mut read = || if random.u8(..3) > 0 { last } else { random.usize(..images) };
            let (first, second) = (read(), read());
            let free: Vec<_> = (0..images).filter(|at| ![first, second].contains(at)).collect();
            last = free[random.usize(..free.len())];
            Step {
                kernel: random.usize(..KERNELS.len()),
                images: [first, second, last],
                buffer: random.usize(..BUFFERS),
                by: random.i32(-4..=4) as f32 / 4.0,
                is_clamping: random.bool(),
            }
        });
        let steps = steps.collect();
        let dropped = (0..images + BUFFERS).filter(|_| random.u8(..3) == 0).collect();
        Self { seed, steps, images, dropped }
    }

    /// Runs the launches in a scope. Returns the bytes of what was not dropped, the number of fused kernels,
    /// and the report.
    async fn run(&self, rt: &Runtime, program: &Program) -> (Vec<Vec<u8>>, usize, String) {
        let mut random = Rng::with_seed(self.seed);
        let images: Vec<_> = (0..self.images).map(|at| Picture::new(rt, at, &mut random)).collect();
        let mut buffers: Vec<Buffer<f32>> = Vec::new();
        for _ in 0..BUFFERS {
            let numbers: Vec<_> =
                (0..WIDTH * HEIGHT).map(|_| random.i32(-8..=8) as f32 / 8.0).collect();
            buffers.push(rt.buffer_from(numbers).await.unwrap());
        }
        let scope = rt.queue().start_fusion();
        for step in &self.steps {
            // SAFETY: work-items outside of the images do nothing, and the others stay inside of the buffers.
            let kernel = unsafe { program.kernel(KERNELS[step.kernel].0) }.unwrap();
            let size = if step.kernel == GUARDED { [16, 16] } else { [WIDTH, HEIGHT] };
            let addressing =
                if step.is_clamping { Addressing::ClampToEdge } else { Addressing::None };
            let mut launch = kernel.launch(size);
            for &image in &step.images {
                launch = images[image].add_to(launch);
            }
            let sampler = Sampler::new().addressing(addressing);
            let launch = launch.arg(sampler).arg(&buffers[step.buffer]).arg(step.by);
            scope.submit(launch).unwrap();
        }
        let is_kept = |at: &usize| !self.dropped.contains(at);
        let images = images.into_iter().enumerate().filter(|(at, _)| is_kept(at));
        let images: Vec<_> = images.map(|(_, image)| image).collect();
        let buffers = buffers.into_iter().enumerate();
        let buffers: Vec<_> =
            buffers.filter(|(at, _)| is_kept(&(at + self.images))).map(|(_, b)| b).collect();
        scope.complete().await.unwrap();
        let report = scope.report();
        let mut kernels = usize::from(report.kernel().is_some());
        if report.parts().len() > 1 {
            kernels = report.parts().iter().filter(|part| part.launches.len() > 1).count();
        }
        let mut bytes = Vec::new();
        for image in &images {
            bytes.push(image.bytes(rt).await);
        }
        for buffer in &buffers {
            bytes.push(bytemuck::cast_slice(&rt.queue().read(buffer).await.unwrap()).to_vec());
        }
        (bytes, kernels, report.to_string())
    }
}

async fn with_mode(rt: &Runtime, mode: FusionMode) -> (Runtime, Program) {
    let builder = support::builder().fusion(mode);
    let rt = builder.device(rt.device().index().to_string()).build().await.unwrap();
    let program = support::program(&rt, &source()).await;
    (rt, program)
}

#[test]
fn random_chains_over_images_give_the_same_bytes_fused_as_one_by_one() {
    if !has_clang() {
        return;
    }
    let cases = tier::cases("KILN_FUSION_CASES", 300, 60) as u64;
    let first = std::env::var("KILN_FUSION_SEED").map_or(1, |text| text.parse().unwrap());
    let devices = AtomicUsize::new(0);
    support::on_all_devices_at_once(async |rt: Runtime| {
        if rt.device().limits.images.d2 == [0, 0] {
            return eprintln!("skipped {}: it has no images", rt.device());
        }
        let (one_by_one, program) = with_mode(&rt, FusionMode::Never).await;
        let (fusing, other) = with_mode(&rt, FusionMode::Always).await;
        let (mut fused, mut private) = (0, 0);
        for seed in first..first + cases {
            let chain = Chain::new(seed);
            let (expected, _, _) = chain.run(&one_by_one, &program).await;
            let (found, kernels, report) = chain.run(&fusing, &other).await;
            assert!(
                expected == found,
                "{}: KILN_FUSION_SEED={seed} KILN_FUSION_CASES=1\n{chain:?}\n{report}",
                rt.device()
            );
            fused += usize::from(kernels > 0);
            private += usize::from(report.contains("internalized, private"));
        }
        eprintln!(
            "{}: {fused} of {cases} chains are fused, {private} without an image",
            rt.device()
        );
        let cases = cases as usize;
        assert!(cases < 100 || fused > cases / 4 && private > cases / 20, "{fused}, {private}");
        devices.fetch_add(1, Relaxed);
    });
    eprintln!("{} devices", devices.into_inner());
}
