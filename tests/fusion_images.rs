//! Chains of kernels over images run as one kernel, with the same bytes as one by one, or in parts with a reason.

#![allow(clippy::print_stderr, reason = "the log shows what was covered")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

mod support;

use futures::executor::block_on;
use kiln::{
    Addressing, Filter, FusionMode, FusionOutcome, Image, Internalization, Kernel, Launch, Pixel,
    Program, R, Rg, Rgba, Runtime, Sampler, Unorm,
};

const KERNELS: &str = "
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
}";

const WIDTH: usize = 37;
const HEIGHT: usize = 22;

/// Returns a runtime for the same device that always fuses, or never.
async fn with_mode(rt: &Runtime, mode: FusionMode) -> Runtime {
    let builder = support::builder().fusion(mode);
    builder.device(rt.device().name.clone()).build().await.unwrap()
}

fn kernel(program: &Program, name: &str) -> Kernel {
    // SAFETY: the kernels access pixels of images, and elements of buffers with one element for each pixel.
    unsafe { program.kernel(name) }.unwrap()
}

fn photograph() -> Vec<Rgba<f32>> {
    let number = |at: usize| ((at * 2_654_435_761) % 1009) as f32 / 512.0 - 0.25;
    (0..WIDTH * HEIGHT).map(|at| Rgba([0, 1, 2, 3].map(|c| number(at * 4 + c)))).collect()
}

#[test]
fn a_tone_curve_and_a_colour_key_are_one_kernel() {
    block_on(support::on_each_device_with_images(async |rt| {
        let mut results = Vec::new();
        for mode in [FusionMode::Never, FusionMode::Always] {
            let rt = with_mode(&rt, mode).await;
            let program = support::program(&rt, KERNELS).await;
            let queue = rt.queue();
            let images = [(); 3].map(|()| rt.image_2d::<Rgba<f32>>(WIDTH, HEIGHT).unwrap());
            let [from, toned, keyed] = &images;
            queue.write(from, photograph()).unwrap();
            let scope = queue.start_fusion();
            scope.submit(kernel(&program, "tone").launch([WIDTH, HEIGHT]).args((from, toned, 1.5_f32))).unwrap();
            let key = [0.3_f32, 0.0, 0.0, 0.0];
            scope.submit(kernel(&program, "colour_key").launch([48, 32]).args((toned, keyed, key, 0.2_f32))).unwrap();
            let outcome = scope.complete().await.unwrap();
            eprintln!("{outcome}\n{}", scope.report());
            assert_eq!(outcome.is_fused(), mode == FusionMode::Always, "{outcome}\n{}", scope.report());
            results.push((queue.read(toned).await.unwrap(), queue.read(keyed).await.unwrap()));
        }
        assert!(results[0] == results[1]);
    }));
}
