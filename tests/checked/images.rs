//! Checked launches over images: a read outside of an image gives zeros, a write outside is dropped, and what is not
//! defined for a sampler is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::print_stderr, reason = "the log reports skipped checks")]

use kiln::images::{Addressing, Filter, R, Rgba, Sampler, Unorm};
use kiln::internal::translate::spirv_of;
use kiln::{ErrorKind, Image, Kernel, Launch, Module, Runtime};
use support::tools::has_clang;

type Pixel = Rgba<u8>;

/// Kind of image: the type in OpenCL C, the sizes of an image, and the coordinate of a pixel.
const KINDS: [(&str, &[usize], &str); 5] = [
    ("image1d_t", &[9], "x"),
    ("image1d_array_t", &[7, 3], "(int2)(x, y)"),
    ("image2d_t", &[6, 5], "(int2)(x, y)"),
    ("image2d_array_t", &[5, 4, 3], "(int4)(x, y, z, 0)"),
    ("image3d_t", &[4, 3, 5], "(int4)(x, y, z, 0)"),
];

/// Calls a test on each device that has images, if there are compilers for the check.
fn on_each(test: impl AsyncFn(Runtime)) {
    if has_clang() {
        futures::executor::block_on(support::on_each_device_with_images(test));
    }
}

/// Returns a kernel that moves each pixel from one place to another.
fn moving(ty: &str, place: &str) -> String {
    format!(
        "#pragma OPENCL EXTENSION cl_khr_3d_image_writes : enable
        kernel void move(read_only {ty} from, write_only {ty} to, int fx, int fy, int fz, int tx, int ty, int tz) {{
            int x = get_global_id(0) + fx, y = get_global_id(1) + fy, z = get_global_id(2) + fz;
            uint4 pixel = read_imageui(from, {place});
            x += tx - fx, y += ty - fy, z += tz - fz;
            write_imageui(to, {place}, pixel);
        }}"
    )
}

/// Returns a text as OpenCL C and as SPIR-V.
async fn modules(rt: &Runtime, text: &str) -> Vec<Module> {
    let text = Module::opencl_c(text);
    let spirv = spirv_of(rt, &text, "").await.expect("the front end is installed");
    vec![text, spirv]
}

async fn checked(rt: &Runtime, module: &Module, name: &str) -> Kernel {
    rt.build(module).checked().await.expect("it builds").kernel(name).expect("it can be checked")
}

fn image(rt: &Runtime, ty: &str, size: &[usize]) -> Image<Pixel> {
    match (ty, size) {
        ("image1d_t", &[width]) => rt.image_1d(width),
        ("image1d_array_t", &[width, layers]) => rt.image_1d_array(width, layers),
        ("image2d_t", &[width, height]) => rt.image_2d(width, height),
        ("image2d_array_t", &[width, height, layers]) => rt.image_2d_array(width, height, layers),
        ("image3d_t", &[width, height, depth]) => rt.image_3d(width, height, depth),
        other => panic!("{other:?} is not a kind of image"),
    }
    .expect("the device has such images")
}

/// Returns pixels of which no two are the same, and none is zero.
fn pixels(len: usize) -> Vec<Pixel> {
    (0..len).map(|i| Rgba([i as u8 + 1, 2, (i >> 4) as u8, 255 - i as u8])).collect()
}

const UNTOUCHED: Pixel = Rgba([7, 7, 7, 7]);

/// Returns the position of the pixel that is a number of pixels away, if it is inside of the image.
fn place(size: &[usize], at: usize, by: [i32; 3]) -> Option<usize> {
    let (mut rest, mut stride, mut found) = (at, 1, 0);
    for (&size, by) in size.iter().zip(by) {
        let moved = usize::try_from((rest % size) as i64 + i64::from(by)).ok()?;
        if moved >= size {
            return None;
        }
        (found, rest, stride) = (found + moved * stride, rest / size, stride * size);
    }
    Some(found)
}

fn moved(size: &[usize], from: &[Pixel], read: [i32; 3], write: [i32; 3]) -> Vec<Pixel> {
    let mut to = vec![UNTOUCHED; from.len()];
    for at in 0..from.len() {
        let pixel = place(size, at, read).map_or(Rgba([0; 4]), |from_at| from[from_at]);
        if let Some(target) = place(size, at, write) {
            to[target] = pixel;
        }
    }
    to
}

fn launch(
    kernel: &Kernel,
    size: &[usize],
    (from, to): (&Image<Pixel>, &Image<Pixel>),
    [fx, fy, fz]: [i32; 3],
    [tx, ty, tz]: [i32; 3],
) -> Launch {
    let arguments = (from, to, fx, fy, fz, tx, ty, tz);
    match *size {
        [x] => kernel.launch(x).args(arguments),
        [x, y] => kernel.launch([x, y]).args(arguments),
        [x, y, z] => kernel.launch([x, y, z]).args(arguments),
        _ => panic!("an image has one to three sizes"),
    }
}

#[test]
fn pixels_outside_are_zero_or_dropped() {
    on_each(async |rt| {
        for (ty, size, coordinate) in KINDS {
            for module in modules(&rt, &moving(ty, coordinate)).await {
                let kernel = checked(&rt, &module, "move").await;
                let (from, to) = (image(&rt, ty, size), image(&rt, ty, size));
                let contents = pixels(from.len());
                rt.queue().write(&from, contents.clone()).unwrap();
                let mut moves = vec![([0; 3], [0; 3])];
                for dimension in 0..size.len() {
                    for by in [-1, 1, 1000, i32::MIN, i32::MAX] {
                        let mut away = [0; 3];
                        away[dimension] = by;
                        moves.extend([(away, [0; 3]), ([0; 3], away), (away, away)]);
                    }
                }
                for (read, write) in moves {
                    let launch = launch(&kernel, size, (&from, &to), read, write);
                    let verdict = launch.verdict().await.expect("it is checked");
                    assert_eq!(verdict.is_proven(), (read, write) == ([0; 3], [0; 3]), "{verdict}");
                    rt.queue().fill(&to, UNTOUCHED).unwrap();
                    rt.queue().submit(launch).expect("it fits").await.expect("it runs");
                    let found = rt.queue().read(&to).await.unwrap();
                    let expected = moved(size, &contents, read, write);
                    assert_eq!(found, expected, "{ty} {read:?} {write:?} on {}", rt.device());
                }
            }
        }
    });
}

#[test]
fn verdicts_depend_on_the_sizes_of_the_images() {
    on_each(async |rt| {
        for (ty, size, coordinate) in KINDS {
            for module in modules(&rt, &moving(ty, coordinate)).await {
                let kernel = checked(&rt, &module, "move").await;
                let larger: Vec<_> = size.iter().map(|size| size + 1).collect();
                let (small, other) = (image(&rt, ty, size), image(&rt, ty, size));
                let (large, largest) = (image(&rt, ty, &larger), image(&rt, ty, &larger));
                let by: [i32; 3] = std::array::from_fn(|at| i32::from(at < size.len()));
                let verdict = async |from, to, read, write| {
                    let launch = || launch(&kernel, size, (from, to), read, write);
                    rt.queue().submit(launch()).expect("it fits").await.expect("it runs");
                    launch().verdict().await.expect("it is checked")
                };
                for _ in 0..2 {
                    assert!(verdict(&small, &large, [0; 3], by).await.is_proven());
                    assert!(verdict(&large, &small, by, [0; 3]).await.is_proven());
                    assert!(verdict(&large, &largest, by, by).await.is_proven());
                    let guarded = verdict(&small, &other, by, [0; 3]).await;
                    let [found] = guarded.findings() else { panic!("{guarded}") };
                    let width = size[0];
                    let reason =
                        format!("its coordinate x may be any number, but the image has {width}");
                    assert_eq!(found.parameter.as_deref(), Some("from"));
                    assert_eq!(
                        (&*found.what, found.reason.as_deref()),
                        ("reads `from`", Some(&*reason))
                    );
                }
            }
        }
    });
}

#[test]
fn images_over_buffers_are_guarded() {
    let text = "kernel void shift(read_only image1d_buffer_t from, global uint *to, int by) {
        int i = get_global_id(0);
        to[i] = read_imageui(from, i + by).x;
    }";
    on_each(async |rt| {
        let elements: kiln::Buffer<R<u32>> =
            rt.buffer_from((1..=8).map(|i| R([i as u32])).collect::<Vec<_>>()).await.unwrap();
        let Ok(from) = rt.image_buffer(&elements) else {
            return eprintln!("skipped {}: it has no images over buffers", rt.device());
        };
        for module in modules(&rt, text).await {
            let shift = checked(&rt, &module, "shift").await;
            let to = rt.buffer::<u32>(8).unwrap();
            for by in [0, 3, -3, i32::MIN] {
                let launch = shift.launch(8).args((&from, &to, by));
                assert_eq!(launch.verdict().await.unwrap().is_proven(), by == 0);
                rt.queue().submit(launch).unwrap().await.expect("it runs");
                let expected: Vec<_> = (0..8_i64)
                    .map(|i| i + i64::from(by))
                    .map(|at| if (0..8).contains(&at) { at as u32 + 1 } else { 0 })
                    .collect();
                assert_eq!(rt.queue().read(&to).await.unwrap(), expected, "{by}");
            }
        }
    });
}

const KERNELS: &str = "
    constant sampler_t EDGE = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
    uint4 at_edge(read_only image2d_t from, int2 at) { return read_imageui(from, EDGE, at); }
    uint4 plain(read_only image2d_t from, int2 at) { return read_imageui(from, at); }
    kernel void edges(read_only image2d_t from, global uint *to, int by) {
        int x = get_global_id(0);
        to[x] = at_edge(from, (int2)(x + by, by)).x;
    }
    kernel void helped(read_only image2d_t from, read_only image2d_t other, global uint *to, int by) {
        int x = get_global_id(0);
        to[x] = plain(from, (int2)(x, by)).x + plain(other, (int2)(x, 0)).x;
    }
    kernel void sampled(read_only image2d_t from, sampler_t sampler, global uint *to, int by) {
        int x = get_global_id(0);
        uint4 one = read_imageui(from, sampler, (int2)(x + by, 0));
        uint4 other = read_imageui(from, sampler, (int2)(x, by));
        to[x] = one.x + 256 * other.x;
    }
    kernel void between(read_only image2d_t from, sampler_t sampler, global float *to) {
        int x = get_global_id(0);
        to[x] = read_imagef(from, sampler, (float2)(x + 0.5f, 100.0f)).x;
    }
    kernel void numbers(read_only image2d_t from, sampler_t sampler, global uint *to) {
        int x = get_global_id(0);
        to[x] = read_imageui(from, sampler, (float2)(x + 0.5f, 0.5f)).x;
    }
    kernel void gather(read_only image2d_t from, global const int2 *at, global uint *to) {
        int x = get_global_id(0);
        to[x] = read_imageui(from, at[x]).x;
    }
    kernel void limited(read_only image2d_t from, write_only image2d_t to) {
        int x = get_global_id(0), y = get_global_id(1);
        if (x >= get_image_width(from) || y >= get_image_height(from)) return;
        write_imageui(to, (int2)(x, y), read_imageui(from, (int2)(x, y)) + 1);
    }
    kernel void written(write_only image2d_t to) { write_imagef(to, (int2)(0, 0), (float4)(1.0f)); }
";

/// Runs a test with the kernels in both forms, and an image of 4 x 3 pixels that hold 1 to 12.
fn with_kernels(test: impl AsyncFn(&Runtime, &Module, &Image<Pixel>)) {
    on_each(async |rt| {
        for module in modules(&rt, KERNELS).await {
            let from = rt.image_2d::<Pixel>(4, 3).unwrap();
            rt.queue()
                .write(&from, (1..=12).map(|i| Rgba([i, 0, 0, 0])).collect::<Vec<_>>())
                .unwrap();
            test(&rt, &module, &from).await;
        }
    });
}

#[test]
fn samplers_with_an_addressing_mode_need_no_guard() {
    with_kernels(async |rt, module, from| {
        let (edges, to) = (checked(rt, module, "edges").await, rt.buffer::<u32>(4).unwrap());
        for (by, expected) in [(0, [1, 2, 3, 4]), (2, [11, 12, 12, 12]), (-2, [1, 1, 1, 2])] {
            let launch = edges.launch(4).args((from, &to, by));
            assert!(launch.verdict().await.unwrap().is_proven());
            rt.queue().submit(launch).unwrap().await.expect("it runs");
            assert_eq!(rt.queue().read(&to).await.unwrap(), expected);
        }
    });
}

/// OpenCL leaves such reads undefined. No driver that the tests run on leaves the image.
#[test]
fn coordinates_that_are_not_finite_give_pixels_or_the_border() {
    const KERNELS: &str = "
        kernel void points(read_only image2d_t from, sampler_t sampler, global const float2 *at, global uint *to) {
            int i = get_global_id(0);
            to[i] = read_imageui(from, sampler, at[i]).x;
        }
        kernel void known(read_only image2d_t from, sampler_t sampler, global uint *to) {
            to[0] = read_imageui(from, sampler, (float2)(NAN, 0.5f)).x;
            to[1] = read_imageui(from, sampler, (float2)(0.5f, INFINITY)).x;
            to[2] = read_imageui(from, sampler, (float2)(-INFINITY, -NAN)).x;
        }";
    let numbers = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 2_147_483_648.0, -1e10];
    let points = numbers.iter().flat_map(|&x| [[x, 0.5], [0.5, x], [x, x]]);
    let points: Vec<_> = points.flatten().collect();
    let count = points.len() / 2;
    on_each(async |rt| {
        let (at, to) =
            (rt.buffer_from(points.clone()).await.unwrap(), rt.buffer::<u32>(count).unwrap());
        let from = rt.image_2d::<Pixel>(4, 3).unwrap();
        let pixels: Vec<_> = (1..=12).map(|i| Rgba([i, 0, 0, 0])).collect();
        rt.queue().write(&from, pixels).unwrap();
        for module in modules(&rt, KERNELS).await {
            let points = checked(&rt, &module, "points").await;
            let known = checked(&rt, &module, "known").await;
            for sampler in [
                Sampler::new().addressing(Addressing::ClampToEdge),
                Sampler::new().addressing(Addressing::Clamp),
                Sampler::new().normalized(true).addressing(Addressing::Repeat),
                Sampler::new().normalized(true).addressing(Addressing::MirroredRepeat),
            ] {
                let launches = [
                    points.launch(count).args((&from, sampler, &at, &to)),
                    known.launch(1).args((&from, sampler, &to)),
                ];
                for launch in launches {
                    rt.queue().submit(launch).unwrap().await.expect("it runs");
                    let read = rt.queue().read(&to).await.unwrap();
                    assert!(read.iter().all(|&pixel| pixel <= 12), "{sampler:?}: {read:?}");
                }
            }
        }
    });
}

#[test]
fn samplers_without_an_addressing_mode_are_guarded() {
    with_kernels(async |rt, module, from| {
        let (sampled, to) = (checked(rt, module, "sampled").await, rt.buffer::<u32>(4).unwrap());
        for (by, first, second) in [
            (0, [1, 2, 3, 4], [1, 2, 3, 4]),
            (2, [3, 4, 0, 0], [9, 10, 11, 12]),
            (-1, [0, 1, 2, 3], [0; 4]),
            (3, [4, 0, 0, 0], [0; 4]),
        ] {
            let launch = sampled.launch(4).args((from, Sampler::new(), &to, by));
            assert_eq!(launch.verdict().await.unwrap().is_proven(), by == 0);
            rt.queue().submit(launch).unwrap().await.expect("it runs");
            let expected: Vec<_> = first.iter().zip(second).map(|(a, b)| a + 256 * b).collect();
            assert_eq!(rt.queue().read(&to).await.unwrap(), expected, "{by}");
        }
        // The verdict on one sampler does not hold for another.
        let edge = Sampler::new().addressing(Addressing::ClampToEdge);
        assert!(sampled.launch(4).args((from, edge, &to, 9)).verdict().await.unwrap().is_proven());
    });
}

#[test]
fn samplers_whose_reads_are_not_defined_are_refused() {
    with_kernels(async |rt, module, from| {
        let (to, floats) = (rt.buffer::<u32>(4).unwrap(), rt.buffer::<f32>(4).unwrap());
        let colors = rt.image_2d::<Rgba<Unorm<u8>>>(4, 3).unwrap();
        let edge = Sampler::new().addressing(Addressing::ClampToEdge);
        let sampled = checked(rt, module, "sampled").await;
        for sampler in [
            edge.filter(Filter::Linear),
            edge.normalized(true),
            Sampler::new().normalized(true).addressing(Addressing::Repeat),
        ] {
            let refused = sampled.launch(4).args((from, sampler, &to, 0)).verdict().await;
            let error = refused.expect_err("it is not defined");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let text = error.to_string();
            assert!(
                text.contains("`sampled`: it reads `from` with `sampler`, but at integer"),
                "{text}"
            );
        }
        let between = checked(rt, module, "between").await;
        let launch = |sampler| between.launch(4).args((&colors, sampler, &floats));
        assert!(launch(edge.filter(Filter::Linear)).verdict().await.unwrap().is_proven());
        let error = match rt.queue().submit(launch(Sampler::new())) {
            Ok(event) => event.await.expect_err("it is not checked"),
            Err(error) => error,
        };
        assert!(error.to_string().contains("has no addressing mode"), "{error}");
        let numbers = checked(rt, module, "numbers").await;
        let launch = |sampler| numbers.launch(4).args((from, sampler, &to));
        assert!(launch(edge).verdict().await.unwrap().is_proven());
        let error = launch(edge.filter(Filter::Linear)).verdict().await.expect_err("refused");
        assert!(error.to_string().contains("integers are not interpolated"), "{error}");
    });
}

#[test]
fn coordinates_from_memory_and_in_functions_are_guarded() {
    with_kernels(async |rt, module, from| {
        let gather = checked(rt, module, "gather").await;
        let places = [[0, 0], [3, 2], [4, 0], [0, 3], [-1, 1], [1, -1], [i32::MIN, 0], [2, 1]];
        let (at, to) =
            (rt.buffer_from(places.to_vec()).await.unwrap(), rt.buffer::<u32>(8).unwrap());
        rt.queue().submit(gather.launch(8).args((from, &at, &to))).unwrap().await.expect("it runs");
        assert_eq!(rt.queue().read(&to).await.unwrap(), [1, 12, 0, 0, 0, 0, 0, 7]);
        let helped = checked(rt, module, "helped").await;
        let other = rt.image_2d::<Pixel>(2, 3).unwrap();
        rt.queue().fill(&other, Rgba([100, 0, 0, 0])).unwrap();
        let to = rt.buffer::<u32>(4).unwrap();
        for (by, expected) in
            [(2, [109, 110, 11, 12]), (3, [100, 100, 0, 0]), (-1, [100, 100, 0, 0])]
        {
            let launch = helped.launch(4).args((from, &other, &to, by));
            rt.queue().submit(launch).unwrap().await.expect("it runs");
            assert_eq!(rt.queue().read(&to).await.unwrap(), expected, "{by}");
        }
        assert!(helped.launch(2).args((from, &other, &to, 2)).verdict().await.unwrap().is_proven());
    });
}

#[test]
fn comparisons_with_the_size_of_an_image_prove_launches() {
    with_kernels(async |rt, module, from| {
        let limited = checked(rt, module, "limited").await;
        let (to, small) =
            (rt.image_2d::<Pixel>(4, 3).unwrap(), rt.image_2d::<Pixel>(3, 3).unwrap());
        let launch = limited.launch([16, 16]).args((from, &to)).require_proof();
        rt.queue().submit(launch).unwrap().await.expect("it is proven");
        let found = rt.queue().read(&to).await.unwrap();
        assert_eq!(found, (2..=13).map(|i| Rgba([i, 1, 1, 1])).collect::<Vec<_>>());
        let verdict = limited.launch([16, 16]).args((from, &small)).verdict().await.unwrap();
        assert!(
            verdict.to_string().contains("writes `to`: its coordinate x may be 0 to 3"),
            "{verdict}"
        );
    });
}

#[test]
fn images_that_a_launch_must_not_use_are_refused() {
    with_kernels(async |rt, module, from| {
        let limited = checked(rt, module, "limited").await;
        let error = limited.launch([4, 3]).args((from, from)).verdict().await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.contains(
                "`from` is declared `read_only`, but its memory overlaps with that of `to`"
            ),
            "{text}"
        );
        let written = checked(rt, module, "written").await;
        let error = written.launch(1).args((from,)).verdict().await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.contains("it writes floating-point numbers to `to`, whose format takes unsigned"),
            "{text}"
        );
        // An image may be given twice as long as the kernel only reads it.
        let helped = checked(rt, module, "helped").await;
        let to = rt.buffer::<u32>(4).unwrap();
        assert!(helped.launch(4).args((from, from, &to, 1)).verdict().await.unwrap().is_proven());
    });
}

/// Returns a module of SPIR-V whose image types have another access qualifier.
fn with_access(module: &Module, access: u32) -> Module {
    const TYPE_IMAGE: u32 = 25;
    let words = module.code().as_chunks::<4>().0.iter();
    let mut words: Vec<_> = words.map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let mut at = 5;
    while at < words.len() {
        if words[at] & 0xffff == TYPE_IMAGE {
            words[at + 9] = access;
        }
        at += (words[at] >> 16) as usize;
    }
    Module::spirv(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn the_driver_or_kiln_refuses_kernels_that_contradict_the_access_of_an_image() {
    let reading = "
        kernel void reads(read_only image2d_t from, global uint *to) {
            to[get_global_id(0)] = read_imageui(from, (int2)(get_global_id(0), 0)).x;
        }";
    let sampling = "
        kernel void samples(read_only image2d_t from, sampler_t sampler, global uint *to) {
            to[get_global_id(0)] = read_imageui(from, sampler, (int2)(get_global_id(0), 0)).x;
        }";
    let writing = "
        kernel void writes(write_only image2d_t to) {
            write_imageui(to, (int2)(get_global_id(0), 0), (uint4)(1, 2, 3, 4));
        }";
    let (read_only, write_only, read_write) = (0, 1, 2);
    on_each(async |rt| {
        for (text, access, name, reason) in [
            (reading, write_only, "reads", "it reads an image that is declared `write_only`"),
            (sampling, write_only, "samples", "it reads an image that is declared `write_only`"),
            (sampling, read_write, "samples", "that is declared `read_write` with a sampler"),
            (writing, read_only, "writes", "it writes to an image that is declared `read_only`"),
        ] {
            let module = spirv_of(&rt, &Module::opencl_c(text), "").await.unwrap();
            let program = rt.build(&with_access(&module, access)).checked().await;
            let refused = program.and_then(|program| program.kernel(name)).err();
            let error = refused.expect("it is refused when it is requested");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(reason), "{error}");
        }
    });
}

/// SPIR-V does not state whether the integers of an image are signed.
#[test]
fn integers_of_all_sizes_keep_their_bits() {
    const COPY: &str = "kernel void copy_u(read_only image2d_t from, write_only image2d_t to) {
            int2 at = (int2)(get_global_id(0), get_global_id(1));
            write_imageui(to, at, read_imageui(from, at));
        }
        kernel void copy_i(read_only image2d_t from, write_only image2d_t to) {
            int2 at = (int2)(get_global_id(0), get_global_id(1));
            write_imagei(to, at, read_imagei(from, at));
        }";

    async fn check<P: kiln::images::Pixel + PartialEq + std::fmt::Debug + Send + Sync>(
        rt: &Runtime,
        name: &str,
        pixels: [P; 4],
    ) {
        let queue = rt.queue();
        for module in modules(rt, COPY).await {
            let copy = checked(rt, &module, name).await;
            let [from, to] = [rt.image_2d::<P>(2, 2).unwrap(), rt.image_2d(2, 2).unwrap()];
            let _written = queue.write(&from, pixels).unwrap();
            let _copied = queue.submit(copy.launch([2, 2]).args((&from, &to))).unwrap();
            let copied = queue.read(&to).await.unwrap();
            assert_eq!(copied, pixels, "{name} on {}", rt.device());
        }
    }

    on_each(async |rt| {
        check(&rt, "copy_u", [0, 1, 1 << 31, u32::MAX].map(|v| Rgba([v; 4]))).await;
        check(&rt, "copy_u", [0, 1, 1 << 15, u16::MAX].map(|v| Rgba([v; 4]))).await;
        check(&rt, "copy_u", [0, 1, 1 << 7, u8::MAX].map(|v| Rgba([v; 4]))).await;
        check(&rt, "copy_i", [i32::MIN, -1, 1, i32::MAX].map(|v| Rgba([v; 4]))).await;
        check(&rt, "copy_i", [i16::MIN, -1, 1, i16::MAX].map(|v| Rgba([v; 4]))).await;
        check(&rt, "copy_i", [i8::MIN, -1, 1, i8::MAX].map(|v| Rgba([v; 4]))).await;
    });
}
