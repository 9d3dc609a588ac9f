//! Chains of kernels over images run as one kernel, with the same bytes as one by one, or in parts with a
//! reason.

#![allow(clippy::print_stderr, reason = "the log shows what was covered")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use futures::executor::block_on;
use kiln::fusion::{FusionOutcome, FusionReport, Internalization};
use kiln::images::{Addressing, Filter, Pixel, R, Rg, Rgba, Sampler, Unorm};
use kiln::{FusionMode, Image, Kernel, Launch, Program, Runtime};
use support::tools::has_clang;

const KERNELS: &str = "
#pragma OPENCL FP_CONTRACT OFF
constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;

kernel void tone(read_only image2d_t photograph, write_only image2d_t toned, float gain)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 color = read_imagef(photograph, nearest, at);
    write_imagef(toned, at, color * gain / (color + 1.0f));
}

kernel void colour_key(read_only image2d_t picture, write_only image2d_t keyed, float4 key, float distance)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    if (at.x >= get_image_width(keyed) || at.y >= get_image_height(keyed))
        return;
    float4 color = read_imagef(picture, at);
    color.w = fabs(color.x - key.x) < distance ? 0.0f : 1.0f;
    write_imagef(keyed, at, color);
}

kernel void overlay(read_only image2d_t above, read_only image2d_t below, write_only image2d_t mixed)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 upper = read_imagef(above, nearest, at), lower = read_imagef(below, nearest, at);
    write_imagef(mixed, at, upper.w > 0.5f ? upper : lower);
}

kernel void gamma(read_only image2d_t linear, write_only image2d_t shown, global const float *exponents)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 color = read_imagef(linear, at);
    float exponent = exponents[at.y * get_image_width(linear) + at.x];
    write_imagef(shown, at, (float4)(sqrt(fabs(color.xyz)) * exponent, color.w));
}

kernel void smooth(read_only image2d_t sharp, sampler_t clamping, write_only image2d_t smoothed)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 sum = (float4)(0.0f);
    for (int y = -1; y <= 1; ++y)
        for (int x = -1; x <= 1; ++x)
            sum += read_imagef(sharp, clamping, at + (int2)(x, y));
    write_imagef(smoothed, at, sum / 9.0f);
}

kernel void scaled(read_only image2d_t source, sampler_t between, write_only image2d_t scaled)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float2 place = (convert_float2(at) + 0.5f) / convert_float2(get_image_dim(scaled));
    write_imagef(scaled, at, read_imagef(source, between, place));
}

kernel void count(read_only image2d_t numbers, write_only image2d_t counted, uint step)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imageui(counted, at, read_imageui(numbers, at) * 3u + step);
}

kernel void difference(read_only image2d_t numbers, write_only image2d_t changed, int step)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imagei(changed, at, read_imagei(numbers, nearest, at) - step);
}

kernel void lacking(read_only image2d_t numbers, write_only image2d_t changed, float step)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 number = read_imagef(numbers, at);
    write_imagef(changed, at, number.wxyz + number.zwxy + step);
}

kernel void copied(read_only image2d_t source, write_only image2d_t copy)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imagef(copy, at, read_imagef(source, at));
}

kernel void sampled(read_only image2d_t source, sampler_t sampler, write_only image2d_t copy)
{
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imagef(copy, at, read_imagef(source, sampler, at));
}";

const WIDTH: usize = 37;
const HEIGHT: usize = 22;

/// Returns a runtime for the same device that always fuses, or never.
async fn with_mode(rt: &Runtime, mode: FusionMode) -> Runtime {
    let builder = support::builder().fusion(mode);
    builder.device(rt.device().index().to_string()).build().await.unwrap()
}

/// Runs `test` on each device with images. Kernels are fused as SPIR-V, so they have to be translated.
async fn on_each_device(test: impl AsyncFn(Runtime)) {
    if has_clang() {
        support::on_each_device_with_images(test).await;
    }
}

/// Runs `test` on each device with images, with a runtime that always fuses and with one that never does. The
/// results are the same.
fn fused_and_one_by_one<T: PartialEq>(test: impl AsyncFn(&Bench) -> T) {
    block_on(on_each_device(async |rt| {
        let mut results = Vec::new();
        for mode in [FusionMode::Never, FusionMode::Always] {
            let rt = with_mode(&rt, mode).await;
            let program = support::program(&rt, KERNELS).await;
            results.push(test(&Bench { is_fusing: mode == FusionMode::Always, program, rt }).await);
        }
        assert!(results[0] == results[1], "{}: the results differ", rt.device());
    }));
}

/// Runtime with the kernels.
struct Bench {
    is_fusing: bool,
    program: Program,
    rt: Runtime,
}

impl Bench {
    fn kernel(&self, name: &str) -> Kernel {
        // SAFETY: the kernels access pixels of images, and buffers with an element for each pixel.
        unsafe { self.program.kernel(name) }.unwrap()
    }

    fn launch(&self, name: &str) -> Launch {
        self.kernel(name).launch([WIDTH, HEIGHT])
    }

    fn image<P: Pixel>(&self) -> Image<P> {
        self.rt.image_2d(WIDTH, HEIGHT).unwrap()
    }

    fn photograph(&self) -> Image<Rgba<f32>> {
        let number = |at: usize| ((at * 2_654_435_761) % 1009) as f32 / 512.0 - 0.25;
        let pixel = |at: usize| Rgba([0, 1, 2, 3].map(|channel| number(at * 4 + channel)));
        let image = self.image();
        let pixels: Vec<_> = (0..WIDTH * HEIGHT).map(pixel).collect();
        self.rt.queue().write(&image, pixels).unwrap();
        image
    }

    async fn pixels<P: Pixel>(&self, image: &Image<P>) -> Vec<u8> {
        bytemuck::cast_slice(&self.rt.queue().read(image).await.unwrap()).to_vec()
    }

    /// Runs launches in a scope.
    async fn run(
        &self,
        launches: impl IntoIterator<Item = Launch>,
    ) -> (FusionOutcome, FusionReport) {
        let scope = self.rt.queue().start_fusion();
        for launch in launches {
            scope.submit(launch).unwrap();
        }
        (scope.complete().await.unwrap(), scope.report())
    }

    /// Runs launches in a scope. They run as one kernel, unless fusion is disabled.
    async fn run_fused(&self, launches: impl IntoIterator<Item = Launch>) -> FusionReport {
        let before = self.rt.stats().fusion.fused;
        let (outcome, report) = self.run(launches).await;
        assert_eq!(outcome.is_fused(), self.is_fusing, "{outcome}\n{report}");
        assert_eq!(self.rt.stats().fusion.fused - before, u64::from(self.is_fusing));
        report
    }

    /// Runs launches in a scope. They run one by one, with this reason.
    async fn run_refused(&self, launches: impl IntoIterator<Item = Launch>, why: &str) {
        let (outcome, report) = self.run(launches).await;
        let is_reason = !self.is_fusing || report.refusal() == Some(why);
        assert!(is_reason && !outcome.is_fused(), "{outcome}\n{report}");
    }
}

#[test]
fn a_tone_curve_and_a_colour_key_are_one_kernel() {
    fused_and_one_by_one(async |bench| {
        let (from, toned, keyed) = (bench.photograph(), bench.image(), bench.image());
        let key = ([0.3_f32, 0.0, 0.0, 0.0], 0.2_f32);
        let launches = [
            bench.launch("tone").args((&from, &toned, 1.5_f32)),
            // Work-items outside of the image do nothing.
            bench.kernel("colour_key").launch([48, 32]).args((&toned, &keyed, key.0, key.1)),
        ];
        bench.run_fused(launches).await;
        (bench.pixels::<Rgba<f32>>(&toned).await, bench.pixels::<Rgba<f32>>(&keyed).await)
    });
}

#[test]
fn four_launches_over_images_and_a_buffer_need_no_image_in_between() {
    fused_and_one_by_one(async |bench| {
        let (from, shown) = (bench.photograph(), bench.image::<Rgba<f32>>());
        let [toned, keyed, mixed] = [(); 3].map(|()| bench.image::<Rgba<f32>>());
        let exponents: Vec<_> = (0..WIDTH * HEIGHT).map(|at| (at % 11) as f32 * 0.25).collect();
        let exponents = bench.rt.buffer_from(exponents).await.unwrap();
        let launches = [
            bench.launch("tone").args((&from, &toned, 1.5_f32)),
            bench.launch("colour_key").args((&toned, &keyed, [0.3_f32, 0.0, 0.0, 0.0], 0.2_f32)),
            bench.launch("overlay").args((&keyed, &from, &mixed)),
            bench.launch("gamma").args((&mixed, &shown, &exponents)),
        ];
        drop([toned, keyed, mixed]);
        let report = bench.run_fused(launches).await;
        let private = report.buffers().iter();
        let private = private.filter(|known| known.internalized == Some(Internalization::Private));
        assert_eq!(private.count(), if bench.is_fusing { 3 } else { 0 }, "{report}");
        bench.pixels(&shown).await
    });
}

#[test]
fn a_filter_of_neighbours_runs_apart_and_the_reason_names_what_it_reads() {
    fused_and_one_by_one(async |bench| {
        let from = bench.photograph();
        let [toned, mixed, smoothed] = [(); 3].map(|()| bench.image::<Rgba<f32>>());
        let clamping = Sampler::new().addressing(Addressing::ClampToEdge);
        let launches = [
            bench.launch("tone").args((&from, &toned, 0.5_f32)),
            bench.launch("overlay").args((&toned, &from, &mixed)),
            bench.launch("smooth").args((&mixed, clamping, &smoothed)),
        ];
        let (outcome, report) = bench.run(launches).await;
        if bench.is_fusing {
            let FusionOutcome::Parts { parts, .. } = &outcome else {
                panic!("{outcome}\n{report}")
            };
            let parts: Vec<_> =
                parts.iter().map(|part| (&part.launches[..], part.kernel.is_some())).collect();
            assert_eq!(parts, [(&[0, 1][..], true), (&[2][..], false)], "{outcome}");
            let why = "`smooth` reads `sharp` at coordinates that may be outside of the image; `overlay` may \
                       have written the same pixels in another work-item";
            assert_eq!(report.refusal(), Some(why));
        }
        bench.pixels(&smoothed).await
    });
}

/// Runs a launch twice, over three images of a format, and returns the pixels. Returns no pixels if the device
/// lacks the format.
async fn twice<P: Pixel>(
    bench: &Bench,
    kernel: &str,
    step: impl kiln::Argument + Copy,
    first: P,
) -> Vec<Vec<u8>> {
    if bench.rt.image_2d::<P>(WIDTH, HEIGHT).is_err() {
        eprintln!("skipped {}: {} has no such images", P::FORMAT, bench.rt.device());
        return Vec::new();
    }
    let images: [Image<P>; 3] = [(); 3].map(|()| bench.image());
    bench.rt.queue().fill(&images[0], first).unwrap();
    let [a, b, c] = &images;
    let launches = [(a, b), (b, c)].map(|(from, to)| bench.launch(kernel).args((from, to, step)));
    bench.run_fused(launches).await;
    let mut all = Vec::new();
    for image in &images {
        all.push(bench.pixels(image).await);
    }
    all
}

#[test]
fn pixels_of_32_bits_are_passed_on_with_the_channels_that_the_format_lacks() {
    fused_and_one_by_one(async |bench| {
        [
            twice(bench, "lacking", 0.25_f32, R([0.5_f32])).await,
            twice(bench, "lacking", 0.25_f32, Rg([0.5_f32, -3.0])).await,
            twice(bench, "lacking", 0.25_f32, Rgba([0.5_f32, -3.0, 7.5, 0.0])).await,
            twice(bench, "count", 77_u32, R([u32::MAX])).await,
            twice(bench, "count", 78_u32, Rg([1_u32 << 31, 5])).await,
            twice(bench, "count", 79_u32, Rgba([u32::MAX, 0, 1, 2])).await,
            twice(bench, "difference", 7_i32, R([i32::MIN])).await,
            twice(bench, "difference", 8_i32, Rgba([-5_i32, 0, 1, 2])).await,
        ]
    });
}

#[test]
fn numbers_that_are_no_numbers_are_passed_on_bit_by_bit() {
    let special = [f32::NAN, f32::INFINITY, -0.0, f32::from_bits(0x7fc1_2345)];
    fused_and_one_by_one(async |bench| {
        let [from, copied, again] = [(); 3].map(|()| bench.image::<Rgba<f32>>());
        bench.rt.queue().fill(&from, Rgba(special)).unwrap();
        let launches = [(&from, &copied), (&copied, &again)]
            .map(|(from, to)| bench.launch("copied").args((from, to)));
        bench.run_fused(launches).await;
        bench.pixels(&again).await
    });
}

#[test]
fn formats_that_convert_pixels_are_not_passed_on() {
    fused_and_one_by_one(async |bench| {
        let (from, to) = (bench.photograph(), bench.image::<Rgba<f32>>());
        let bytes = bench.image::<Rgba<Unorm<u8>>>();
        let launches = [
            bench.launch("copied").args((&from, &bytes)),
            bench.launch("copied").args((&bytes, &to)),
        ];
        let why = "`copied` reads `source`, which an earlier launch writes, and images of the format \
                   `Rgba<Unorm8>` do not store pixels exactly as kernels write them";
        bench.run_refused(launches, why).await;
        // Images that the launches only read or only write may have any format.
        let others = [bench.image::<Rgba<Unorm<u8>>>(), bench.image()];
        let launches = [
            bench.launch("copied").args((&bytes, &others[0])),
            bench.launch("copied").args((&bytes, &others[1])),
        ];
        bench.run_fused(launches).await;
        (bench.pixels(&to).await, bench.pixels(&others[0]).await, bench.pixels(&others[1]).await)
    });
}

#[test]
fn a_known_scope_is_decided_anew_for_another_sampler_and_another_format() {
    fused_and_one_by_one(async |bench| {
        let from = bench.photograph();
        let [toned, to] = [(); 2].map(|()| bench.image::<Rgba<f32>>());
        let launches = |sampler: Sampler| {
            [
                bench.launch("tone").args((&from, &toned, 0.5_f32)),
                bench.launch("sampled").args((&toned, sampler, &to)),
            ]
        };
        let clamping = Sampler::new().addressing(Addressing::Clamp);
        for _ in 0..3 {
            bench.run_fused(launches(clamping)).await;
        }
        let expected = bench.pixels::<Rgba<f32>>(&to).await;
        let why = "`sampled` reads `source` through a sampler that does not select single pixels; `tone` may \
                   have written the same pixels in another work-item";
        for _ in 0..3 {
            let (outcome, report) = bench.run(launches(clamping.normalized(true))).await;
            let is_refused = report.refusal() == Some(why) || !bench.is_fusing;
            assert!(!outcome.is_fused() && is_refused, "{outcome}\n{report}");
        }
        let bytes = bench.image::<Rgba<Unorm<u8>>>();
        let launches = [
            bench.launch("tone").args((&from, &bytes, 0.5_f32)),
            bench.launch("sampled").args((&bytes, clamping, &to)),
        ];
        let (outcome, _) = bench.run(launches).await;
        assert!(!outcome.is_fused(), "{outcome}");
        (expected, bench.pixels(&to).await)
    });
}

#[test]
fn images_of_other_launches_are_read_through_any_sampler() {
    fused_and_one_by_one(async |bench| {
        let (from, mixed) = (bench.photograph(), bench.image::<Rgba<f32>>());
        let halves = bench.rt.image_2d::<Rgba<f32>>(WIDTH / 2, HEIGHT / 2).unwrap();
        let linear = Sampler::new().normalized(true).filter(Filter::Linear);
        let linear = linear.addressing(Addressing::ClampToEdge);
        let launches = [
            bench.kernel("scaled").launch([WIDTH / 2, HEIGHT / 2]).args((&from, linear, &halves)),
            bench.launch("copied").args((&from, &mixed)),
        ];
        bench.run_fused(launches).await;
        (bench.pixels(&halves).await, bench.pixels(&mixed).await)
    });
}

#[test]
fn an_image_that_is_not_needed_later_is_lost() {
    block_on(on_each_device(async |rt| {
        let rt = with_mode(&rt, FusionMode::Always).await;
        let program = support::program(&rt, KERNELS).await;
        let bench = Bench { is_fusing: true, program, rt };
        let from = bench.photograph();
        let [toned, to] = [(); 2].map(|()| bench.image::<Rgba<f32>>());
        let queue = bench.rt.queue();
        for keeps in [false, true] {
            let scope = queue.start_fusion();
            scope.submit(bench.launch("tone").args((&from, &toned, 0.5_f32))).unwrap();
            scope.submit(bench.launch("copied").args((&toned, &to))).unwrap();
            scope.internalize(&toned, Internalization::Private);
            if keeps {
                scope.keep(&toned);
            }
            let outcome = scope.complete().await.unwrap();
            assert!(outcome.is_fused(), "{outcome}");
            let read: kiln::Result<Vec<Rgba<f32>>> = queue.read(&toned).await;
            match (keeps, read) {
                (true, read) => assert!(read.unwrap() == queue.read(&to).await.unwrap()),
                (false, read) => {
                    let error = read.unwrap_err().to_string();
                    assert!(error.contains("internalize"), "{error}");
                }
            }
        }
    }));
}

#[test]
fn checked_launches_over_images_are_checked_as_one_kernel() {
    block_on(on_each_device(async |rt| {
        let rt = with_mode(&rt, FusionMode::Always).await;
        let program = support::program(&rt, KERNELS).await;
        let checked = support::checked_program(&rt, KERNELS).await;
        let bench = Bench { is_fusing: true, program, rt };
        let from = bench.photograph();
        let [toned, to] = [(); 2].map(|()| bench.image::<Rgba<f32>>());
        let kernel = |name: &str| checked.kernel(name).unwrap();
        let launches = [
            kernel("tone").launch([WIDTH, HEIGHT]).args((&from, &toned, 0.5_f32)),
            kernel("copied").launch([WIDTH, HEIGHT]).args((&toned, &to)),
        ];
        bench.run_fused(launches).await;
        assert!(bench.pixels::<Rgba<f32>>(&toned).await == bench.pixels(&to).await);
    }));
}
