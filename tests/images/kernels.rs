//! Kernels over images as public code has them, in words of our own: each gives what a reference on the host gives,
//! and exactly what the same driver gives when OpenCL is called directly, if it is a driver of OpenCL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::cast_precision_loss, reason = "the numbers are small")]

use super::objects as images;
use super::objects::{Case, Format, Given, Picture, Reading, direct};
use kiln::Module;
use kiln::internal::translate::spirv_of;
use support::tools::has_clang;

const WIDTH: usize = 37;
const HEIGHT: usize = 23;

/// Integer coordinates; outside, the pixel at the nearest edge.
const EDGE: Reading = Reading { normalized: false, clamps_to_edge: true, linear: false };

/// Values that look random, from 0 to `most`.
fn noise(len: usize, most: u32) -> Vec<u32> {
    let value = |i: u32| (i.wrapping_mul(0x9e37_79b9) ^ i << 7).rotate_left(i % 31) % (most + 1);
    (0..len as u32).map(value).collect()
}

fn bytes(len: usize) -> Vec<u8> {
    noise(len, 255).into_iter().map(|value| value as u8).collect()
}

fn shorts(len: usize) -> Vec<u16> {
    noise(len, 4095).into_iter().map(|value| value as u16).collect()
}

fn floats(len: usize) -> Vec<f32> {
    noise(len, 1 << 16).into_iter().map(|value| value as f32 / 65536.0).collect()
}

fn picture<T: bytemuck::Pod>(format: Format, channels: &[T]) -> Picture {
    Picture::of(format, &[WIDTH, HEIGHT], channels)
}

fn empty(format: Format, bytes: usize) -> Picture {
    picture(format, &vec![0u8; WIDTH * HEIGHT * bytes])
}

/// Returns the value at the nearest place inside.
fn at<T: Copy>(values: &[T], x: isize, y: isize) -> T {
    let x = x.clamp(0, WIDTH as isize - 1) as usize;
    values[y.clamp(0, HEIGHT as isize - 1) as usize * WIDTH + x]
}

/// Calls `pixel` for each place.
fn each<T>(mut pixel: impl FnMut(isize, isize) -> T) -> Vec<T> {
    let places = (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| (x as isize, y as isize)));
    places.map(|(x, y)| pixel(x, y)).collect()
}

/// Runs a case on each device that has images. On a device of OpenCL, the bytes are those of OpenCL. `is_right` of them
/// and of those of the kernels in SPIR-V, which Kiln translates for a device that does not take it.
fn check(case: &Case, is_right: impl Fn(&[u8])) {
    let has_clang = has_clang();
    futures::executor::block_on(support::on_each_device_with_images(async |rt| {
        let text = Module::opencl_c(case.source);
        let found = images::run(&rt, case, &text).await;
        is_right(&found);
        if rt.device().backend == "opencl" {
            assert!(found == direct::run(rt.device(), case), "OpenCL gives other bytes");
        }
        if has_clang {
            let spirv = spirv_of(&rt, &text, "").await.expect("the source is valid");
            is_right(&images::run(&rt, case, &spirv).await);
        }
    }));
}

fn check_equal<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(case: &Case, expected: &[T]) {
    check(case, |found| {
        let found: Vec<T> = images::values(found);
        let mut pairs = found.iter().zip(expected).enumerate();
        let difference = pairs.find(|(_, (found, expected))| found != expected);
        assert!(difference.is_none() && found.len() == expected.len(), "{difference:?}");
    });
}

fn check_close(case: &Case, expected: &[f32], tolerance: f32) {
    check(case, |found| {
        let found: Vec<f32> = images::values(found);
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!((found - expected).abs() <= tolerance, "{at}: {found}, not {expected}");
        }
    });
}

#[test]
fn a_color_is_keyed_out() {
    let pixels = bytes(4 * WIDTH * HEIGHT);
    let expected: Vec<u8> = pixels
        .as_chunks::<4>()
        .0
        .iter()
        .flat_map(|&[r, g, b, a]| {
            let distance =
                [(r, 40u8), (g, 200), (b, 60)].map(|(c, key)| u32::from(c.abs_diff(key)));
            [r, g, b, if distance.iter().sum::<u32>() < 150 { 0 } else { a }]
        })
        .collect();
    let case = Case {
        source: "
            kernel void color_key(read_only image2d_t from, write_only image2d_t to, int limit) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                uint4 pixel = read_imageui(from, at);
                uint4 distance = abs_diff(pixel, (uint4)(40, 200, 60, pixel.w));
                if ((int)(distance.x + distance.y + distance.z) < limit) pixel.w = 0;
                write_imageui(to, at, pixel);
            }",
        pictures: vec![picture(Format::Rgba8, &pixels), empty(Format::Rgba8, 4)],
        numbers: 0,
        launches: vec![(
            "color_key",
            vec![WIDTH, HEIGHT],
            vec![Given::Picture(0), Given::Picture(1), Given::Int(150)],
        )],
    };
    check_equal(&case, &expected);
}

#[test]
fn a_logo_is_laid_over_a_photograph() {
    let (under, over) = (bytes(4 * WIDTH * HEIGHT), bytes(4 * WIDTH * HEIGHT + 9)[9..].to_vec());
    let expected: Vec<f32> = under
        .as_chunks::<4>()
        .0
        .iter()
        .zip(over.as_chunks::<4>().0)
        .flat_map(|(under, over)| {
            let alpha = f32::from(over[3]) / 255.0;
            [0, 1, 2, 3].map(|c| f32::from(under[c]) * (1.0 - alpha) + f32::from(over[c]) * alpha)
        })
        .collect();
    let case = Case {
        source: "
            kernel void overlay(read_only image2d_t under, read_only image2d_t over,
                                write_only image2d_t to) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                float4 a = read_imagef(under, at), b = read_imagef(over, at);
                write_imagef(to, at, mix(a, b, b.w));
            }",
        pictures: vec![
            picture(Format::Rgba8Unorm, &under),
            picture(Format::Rgba8Unorm, &over),
            empty(Format::Rgba8Unorm, 4),
        ],
        numbers: 0,
        launches: vec![(
            "overlay",
            vec![WIDTH, HEIGHT],
            vec![Given::Picture(0), Given::Picture(1), Given::Picture(2)],
        )],
    };
    check(&case, |found| {
        for (found, expected) in found.iter().zip(&expected) {
            assert!((f32::from(*found) - expected).abs() <= 1.0, "{found}, not {expected}");
        }
    });
}

#[test]
fn a_mask_is_eroded() {
    let mask = bytes(WIDTH * HEIGHT);
    let offsets = || (-1..=1isize).flat_map(|dy| (-1..=1isize).map(move |dx| (dx, dy)));
    let least = |x, y| offsets().map(|(dx, dy)| at(&mask, x + dx, y + dy)).min().unwrap();
    let case = Case {
        source: "
            kernel void erode(read_only image2d_t from, write_only image2d_t to, sampler_t edge) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                uint least = 255;
                for (int y = -1; y <= 1; ++y)
                    for (int x = -1; x <= 1; ++x)
                        least = min(least, read_imageui(from, edge, at + (int2)(x, y)).x);
                write_imageui(to, at, (uint4)(least, 0, 0, 0));
            }",
        pictures: vec![picture(Format::R8, &mask), empty(Format::R8, 1)],
        numbers: 0,
        launches: vec![(
            "erode",
            vec![WIDTH, HEIGHT],
            vec![Given::Picture(0), Given::Picture(1), Given::Sampler(EDGE)],
        )],
    };
    check_equal(&case, &each(least));
}

#[test]
fn tones_come_from_a_curve() {
    let (pixels, curve) = (bytes(4 * WIDTH * HEIGHT), bytes(256));
    let expected: Vec<u8> = (pixels.iter().enumerate())
        .map(|(at, &value)| if at % 4 == 3 { value } else { curve[usize::from(value)] })
        .collect();
    let case = Case {
        source: "
            kernel void tone(read_only image2d_t from, read_only image1d_t curve,
                             write_only image2d_t to) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                uint4 pixel = read_imageui(from, at);
                pixel.x = read_imageui(curve, (int)pixel.x).x;
                pixel.y = read_imageui(curve, (int)pixel.y).x;
                pixel.z = read_imageui(curve, (int)pixel.z).x;
                write_imageui(to, at, pixel);
            }",
        pictures: vec![
            picture(Format::Rgba8, &pixels),
            Picture::of(Format::R8, &[256], &curve),
            empty(Format::Rgba8, 4),
        ],
        numbers: 0,
        launches: vec![(
            "tone",
            vec![WIDTH, HEIGHT],
            vec![Given::Picture(0), Given::Picture(1), Given::Picture(2)],
        )],
    };
    check_equal(&case, &expected);
}

#[test]
fn noise_is_filtered_and_edges_stay() {
    let values = floats(WIDTH * HEIGHT);
    let expected = each(|x, y| {
        let center = at(&values, x, y);
        let (mut sum, mut weights) = (0.0f32, 0.0f32);
        for dy in -2..=2isize {
            for dx in -2..=2isize {
                let value = at(&values, x + dx, y + dy);
                let far = (dx * dx + dy * dy) as f32 / 8.0 + (value - center).powi(2) * 20.0;
                let weight = (-far).exp();
                (sum, weights) = (sum + weight * value, weights + weight);
            }
        }
        sum / weights
    });
    let case = Case {
        source: "
            kernel void bilateral(read_only image2d_t from, write_only image2d_t to, sampler_t edge,
                                  float spread) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                float center = read_imagef(from, edge, at).x, sum = 0, weights = 0;
                for (int y = -2; y <= 2; ++y)
                    for (int x = -2; x <= 2; ++x) {
                        float value = read_imagef(from, edge, at + (int2)(x, y)).x;
                        float difference = value - center;
                        float far = (x * x + y * y) / 8.0f + difference * difference * spread;
                        float weight = exp(-far);
                        sum += weight * value;
                        weights += weight;
                    }
                write_imagef(to, at, (float4)(sum / weights));
            }",
        pictures: vec![picture(Format::R32F, &values), empty(Format::R32F, 4)],
        numbers: 0,
        launches: vec![(
            "bilateral",
            vec![WIDTH, HEIGHT],
            vec![Given::Picture(0), Given::Picture(1), Given::Sampler(EDGE), Given::Float(20.0)],
        )],
    };
    check_close(&case, &expected, 1e-4);
}

#[test]
fn a_blur_runs_along_rows_and_then_along_columns() {
    let values = floats(WIDTH * HEIGHT);
    let weights = [0.1f32, 0.2, 0.4, 0.2, 0.1];
    let blur = |values: &[f32], dx: isize, dy: isize| {
        each(|x, y| {
            let terms = (-2..=2isize).zip(weights);
            terms.map(|(d, weight)| weight * at(values, x + d * dx, y + d * dy)).sum::<f32>()
        })
    };
    let arguments = |from, to, x, y| {
        let sampler = Given::Sampler(EDGE);
        vec![Given::Picture(from), Given::Picture(to), sampler, Given::Int(x), Given::Int(y)]
    };
    let case = Case {
        source: "
            kernel void blur(read_only image2d_t from, write_only image2d_t to, sampler_t edge,
                             int dx, int dy) {
                const float weights[5] = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                float sum = 0;
                for (int d = -2; d <= 2; ++d)
                    sum += weights[d + 2] * read_imagef(from, edge, at + d * (int2)(dx, dy)).x;
                write_imagef(to, at, (float4)(sum));
            }",
        pictures: vec![
            picture(Format::R32F, &values),
            empty(Format::R32F, 4),
            empty(Format::R32F, 4),
        ],
        numbers: 0,
        launches: vec![
            ("blur", vec![WIDTH, HEIGHT], arguments(0, 1, 1, 0)),
            ("blur", vec![WIDTH, HEIGHT], arguments(1, 2, 0, 1)),
        ],
    };
    check_close(&case, &blur(&blur(&values, 1, 0), 0, 1), 1e-5);
}

#[test]
fn the_largest_neighbour_is_found_in_a_volume() {
    let size = [11, 7, 5];
    let values = shorts(size.iter().product());
    let value = |[x, y, z]: [isize; 3]| {
        let inside = [0, 1, 2].map(|i| [x, y, z][i].clamp(0, size[i] as isize - 1) as usize);
        values[(inside[2] * size[1] + inside[1]) * size[0] + inside[0]]
    };
    let mut expected = Vec::new();
    for z in 0..size[2] as isize {
        for y in 0..size[1] as isize {
            for x in 0..size[0] as isize {
                let offsets = (-1..=1isize).flat_map(|dz| {
                    (-1..=1isize).flat_map(move |dy| (-1..=1isize).map(move |dx| [dx, dy, dz]))
                });
                let neighbours = offsets.map(|[dx, dy, dz]| value([x + dx, y + dy, z + dz]));
                expected.push(neighbours.max().unwrap());
            }
        }
    }
    let case = Case {
        // Without `write_imageui` for volumes, which is optional, a buffer takes the result.
        source: "
            kernel void largest(read_only image3d_t from, global uint *to, sampler_t edge) {
                int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
                uint most = 0;
                for (int z = -1; z <= 1; ++z)
                    for (int y = -1; y <= 1; ++y)
                        for (int x = -1; x <= 1; ++x)
                            most = max(most, read_imageui(from, edge, at + (int4)(x, y, z, 0)).x);
                to[(at.z * get_global_size(1) + at.y) * get_global_size(0) + at.x] = most;
            }",
        pictures: vec![Picture::of(Format::R16, &size, &values)],
        numbers: values.len(),
        launches: vec![(
            "largest",
            size.to_vec(),
            vec![Given::Picture(0), Given::Numbers, Given::Sampler(EDGE)],
        )],
    };
    let expected: Vec<u32> = expected.into_iter().map(u32::from).collect();
    check_equal(&case, &expected);
}

#[test]
fn a_histogram_counts_the_greens() {
    let pixels = bytes(4 * WIDTH * HEIGHT);
    let mut expected = vec![0u32; 16];
    for pixel in pixels.as_chunks::<4>().0 {
        expected[usize::from(pixel[1] / 16)] += 1;
    }
    let case = Case {
        source: "
            kernel void histogram(read_only image2d_t from, global uint *counts) {
                uint4 pixel = read_imageui(from, (int2)(get_global_id(0), get_global_id(1)));
                atomic_inc(&counts[pixel.y / 16]);
            }",
        pictures: vec![picture(Format::Rgba8, &pixels)],
        numbers: 16,
        launches: vec![("histogram", vec![WIDTH, HEIGHT], vec![Given::Picture(0), Given::Numbers])],
    };
    check_equal(&case, &expected);
}

#[test]
fn a_mosaic_of_colors_becomes_a_picture() {
    let mosaic = shorts(WIDTH * HEIGHT);
    let mean = |x: isize, y: isize, offsets: &[(isize, isize)]| {
        let sum: u32 = offsets.iter().map(|(dx, dy)| u32::from(at(&mosaic, x + dx, y + dy))).sum();
        (sum / offsets.len() as u32) as u16
    };
    let (own, row, column) = ([(0, 0)], [(-1, 0), (1, 0)], [(0, -1), (0, 1)]);
    let cross = [row, column].concat();
    let corners = [(-1, -1), (1, -1), (-1, 1), (1, 1)];
    // Red where both coordinates are even, blue where both are odd.
    let expected = each(|x, y| {
        let color = |offsets: &[(isize, isize)]| mean(x, y, offsets);
        let [red, green, blue] = match (x % 2, y % 2) {
            (0, 0) => [color(&own), color(&cross), color(&corners)],
            (1, 1) => [color(&corners), color(&cross), color(&own)],
            (1, _) => [color(&row), color(&own), color(&column)],
            _ => [color(&column), color(&own), color(&row)],
        };
        [red, green, blue, u16::MAX]
    });
    let case = Case {
        source: "
            kernel void demosaic(read_only image2d_t from, write_only image2d_t to, sampler_t edge) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                #define RAW(dx, dy) read_imageui(from, edge, at + (int2)(dx, dy)).x
                uint own = RAW(0, 0), row = (RAW(-1, 0) + RAW(1, 0)) / 2;
                uint column = (RAW(0, -1) + RAW(0, 1)) / 2;
                uint cross4 = (RAW(-1, 0) + RAW(1, 0) + RAW(0, -1) + RAW(0, 1)) / 4;
                uint corners = (RAW(-1, -1) + RAW(1, -1) + RAW(-1, 1) + RAW(1, 1)) / 4;
                int odd_x = at.x & 1, odd_y = at.y & 1;
                uint4 pixel = (uint4)(column, own, row, 65535);
                if (odd_x && !odd_y) pixel = (uint4)(row, own, column, 65535);
                if (!odd_x && !odd_y) pixel = (uint4)(own, cross4, corners, 65535);
                if (odd_x && odd_y) pixel = (uint4)(corners, cross4, own, 65535);
                write_imageui(to, at, pixel);
            }",
        pictures: vec![picture(Format::R16, &mosaic), empty(Format::Rgba16, 8)],
        numbers: 0,
        launches: vec![(
            "demosaic",
            vec![WIDTH, HEIGHT],
            vec![Given::Picture(0), Given::Picture(1), Given::Sampler(EDGE)],
        )],
    };
    check_equal(&case, &expected.concat());
}

#[test]
fn a_picture_is_turned_with_values_between_its_pixels() {
    let values = floats(WIDTH * HEIGHT);
    let (cos, sin) = (0.8f32, 0.6f32);
    let (width, height) = (WIDTH as f32, HEIGHT as f32);
    let expected = each(|x, y| {
        let (x, y) = (x as f32 - width / 2.0, y as f32 - height / 2.0);
        // Centers of pixels lie at halves.
        let (x, y) =
            (cos * x - sin * y + width / 2.0 - 0.5, sin * x + cos * y + height / 2.0 - 0.5);
        let (left, top) = (x.floor(), y.floor());
        let (fx, fy) = (x - left, y - top);
        let value = |dx, dy| at(&values, left as isize + dx, top as isize + dy);
        (1.0 - fy) * ((1.0 - fx) * value(0, 0) + fx * value(1, 0))
            + fy * ((1.0 - fx) * value(0, 1) + fx * value(1, 1))
    });
    let linear = Reading { normalized: true, clamps_to_edge: true, linear: true };
    let case = Case {
        source: "
            kernel void turn(read_only image2d_t from, write_only image2d_t to, sampler_t between,
                             float cosine, float sine) {
                int2 at = (int2)(get_global_id(0), get_global_id(1));
                float2 size = convert_float2(get_image_dim(from));
                float2 p = convert_float2(at) - size / 2;
                float2 turned = (float2)(cosine * p.x - sine * p.y, sine * p.x + cosine * p.y);
                float4 value = read_imagef(from, between, (turned + size / 2) / size);
                write_imagef(to, at, (float4)(value.x));
            }",
        pictures: vec![picture(Format::R32F, &values), empty(Format::R32F, 4)],
        numbers: 0,
        launches: vec![(
            "turn",
            vec![WIDTH, HEIGHT],
            vec![
                Given::Picture(0),
                Given::Picture(1),
                Given::Sampler(linear),
                Given::Float(cos),
                Given::Float(sin),
            ],
        )],
    };
    // Devices may calculate the position between pixels in steps of a 256th.
    check_close(&case, &expected, 2.0 / 256.0);
}
