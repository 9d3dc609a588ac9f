//! Images: they hold the pixels that commands write, fill and copy, wholly and in part, and are zeros at first.

#![allow(clippy::print_stderr, reason = "the log tells what a device does not have")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::fmt::Debug;

use futures::executor::block_on;
use kiln::images::{
    A, Addressing, Argb, Bgra, Half, ImageKind, Intensity, Luminance, Pixel, R, Rg, Rgba, Sampler,
    Snorm, Unorm,
};
use kiln::simulated::Simulator;
use kiln::{ErrorKind, Image, Module, Runtime};
use support::simulation;
use support::simulation::runtime;

/// Runs `test` with simulated devices of both kinds, and with every real device that has images.
fn everywhere(test: impl AsyncFn(Runtime)) {
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            test(runtime(&simulator).await).await;
        }
        support::on_each_device_with_images(test).await;
    });
}

/// Sizes of images of each kind, in as many dimensions as the kind has.
const KINDS: [(ImageKind, [usize; 3]); 5] = [
    (ImageKind::D1, [13, 1, 1]),
    (ImageKind::D1Array, [7, 5, 1]),
    (ImageKind::D2, [9, 6, 1]),
    (ImageKind::D2Array, [5, 4, 3]),
    (ImageKind::D3, [6, 3, 4]),
];

fn image<P: Pixel>(rt: &Runtime, kind: ImageKind, [x, y, z]: [usize; 3]) -> Image<P> {
    let created = match kind {
        ImageKind::D1 => rt.image_1d(x),
        ImageKind::D1Array => rt.image_1d_array(x, y),
        ImageKind::D2 => rt.image_2d(x, y),
        ImageKind::D2Array => rt.image_2d_array(x, y, z),
        ImageKind::D3 => rt.image_3d(x, y, z),
        other => panic!("{other:?} has no memory of its own"),
    };
    created.unwrap()
}

/// Returns a part of an image that is given in three dimensions.
fn part<P: Pixel>(
    image: &Image<P>,
    at: [usize; 3],
    size: [usize; 3],
) -> kiln::images::ImagePart<P> {
    match image.size().len() {
        1 => image.part([at[0]], [size[0]]),
        2 => image.part([at[0], at[1]], [size[0], size[1]]),
        _ => image.part(at, size),
    }
    .unwrap()
}

/// Returns the positions of a box of pixels in memory, row by row.
fn positions(whole: [usize; 3], at: [usize; 3], size: [usize; 3]) -> Vec<usize> {
    let [x, y, z] = at;
    let rows = (z..z + size[2]).flat_map(|z| (y..y + size[1]).map(move |y| (z, y)));
    rows.flat_map(|(z, y)| (x..x + size[0]).map(move |x| (z * whole[1] + y) * whole[0] + x))
        .collect()
}

fn number(at: usize) -> R<u32> {
    R([at as u32 + 1])
}

#[test]
fn new_images_are_zeros() {
    everywhere(async |rt| {
        for (kind, size) in KINDS {
            let image = image::<Rgba<f32>>(&rt, kind, size);
            let pixels = rt.queue().read(&image).await.unwrap();
            assert_eq!(pixels, vec![Rgba([0.0; 4]); image.len()], "{kind:?}");
        }
    });
}

#[test]
fn large_images_are_filled_to_their_last_pixel() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let picture = rt.image_2d::<Rgba<f32>>(601, 299).unwrap();
        assert!(queue.read(&picture).await.unwrap() == vec![Rgba([0.0; 4]); picture.len()]);
        queue.fill(&picture, Rgba([1.0, 2.0, 3.0, 4.0])).unwrap();
        let expected = vec![Rgba([1.0, 2.0, 3.0, 4.0]); picture.len()];
        assert!(queue.read(&picture).await.unwrap() == expected);

        let (size, at, part) = ([1040, 90, 1], [8, 5, 0], [1024, 80, 1]);
        let picture = rt.image_2d::<Rgba<u32>>(size[0], size[1]).unwrap();
        queue
            .fill(&picture.part([at[0], at[1]], [part[0], part[1]]).unwrap(), Rgba([9; 4]))
            .unwrap();
        let mut expected = vec![Rgba([0; 4]); picture.len()];
        for at in positions(size, at, part) {
            expected[at] = Rgba([9; 4]);
        }
        assert!(queue.read(&picture).await.unwrap() == expected);
    });
}

#[test]
fn pixels_are_read_as_they_were_written() {
    everywhere(async |rt| {
        for (kind, size) in KINDS {
            let image = image::<R<u32>>(&rt, kind, size);
            let pixels: Vec<_> = (0..image.len()).map(number).collect();
            rt.queue().write(&image, pixels.clone()).unwrap();
            assert_eq!(rt.queue().read(&image).await.unwrap(), pixels, "{kind:?}");
        }
    });
}

#[test]
fn parts_are_written_read_filled_and_copied() {
    everywhere(async |rt| {
        let queue = rt.queue();
        for (kind, size) in KINDS {
            let (from, to) = (image(&rt, kind, size), image::<R<u32>>(&rt, kind, size));
            let mut expected: Vec<_> = (0..from.len()).map(number).collect();
            queue.write(&from, expected.clone()).unwrap();
            let half = size.map(|size| size.div_ceil(2));
            let rest = [0, 1, 2].map(|i| size[i] - half[i]).map(|at| at.min(1));
            // The last part and the first one overlap in odd sizes.
            let last = [0, 1, 2].map(|i| size[i] - half[i]);
            let all: Vec<_> = positions(size, [0; 3], half);
            let read = queue.read(&part(&from, [0; 3], half)).await.unwrap();
            assert_eq!(read, all.iter().map(|&at| expected[at]).collect::<Vec<_>>(), "{kind:?}");

            let new: Vec<_> = (0..all.len()).map(|at| number(1000 + at)).collect();
            queue.write(&part(&from, rest, half), new.clone()).unwrap();
            for (at, pixel) in positions(size, rest, half).into_iter().zip(new) {
                expected[at] = pixel;
            }
            queue.fill(&part(&from, last, half), R([77])).unwrap();
            for at in positions(size, last, half) {
                expected[at] = R([77]);
            }
            assert_eq!(queue.read(&from).await.unwrap(), expected, "{kind:?}");

            queue.fill(&to, R([5])).unwrap();
            queue.copy(&part(&from, [0; 3], half), &part(&to, last, half)).unwrap();
            let mut copied = vec![R([5]); to.len()];
            for (from, to) in all.into_iter().zip(positions(size, last, half)) {
                copied[to] = expected[from];
            }
            assert_eq!(queue.read(&to).await.unwrap(), copied, "{kind:?}");
        }
    });
}

#[test]
fn pixels_are_copied_between_buffers_and_images() {
    everywhere(async |rt| {
        let queue = rt.queue();
        for (kind, size) in KINDS {
            let image = image::<R<u32>>(&rt, kind, size);
            let pixels: Vec<_> = (0..image.len() + 3).map(number).collect();
            let buffer = rt.buffer_from(pixels.clone()).await.unwrap();
            let copied = queue.copy(&buffer.slice(2..2 + image.len()).unwrap(), &image).unwrap();
            match copied.await {
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    assert!(error.to_string().contains(kind.type_name()), "{error}");
                    eprintln!("skipped: {error}");
                    continue;
                }
                copied => copied.unwrap(),
            }
            let back = rt.buffer::<R<u32>>(image.len()).unwrap();
            queue.copy(&image, &back).unwrap();
            assert_eq!(queue.read(&back).await.unwrap(), pixels[2..2 + image.len()], "{kind:?}");

            let part = part(&image, [1, 0, 0], [2, 1, 1]);
            queue.copy(&back.slice(3..5).unwrap(), &part).unwrap();
            assert_eq!(queue.read(&part).await.unwrap(), pixels[5..7], "{kind:?}");
        }
    });
}

/// Fills an image of a format, and compares what is read.
async fn fill<P: Pixel + PartialEq + Debug>(rt: &Runtime, pixel: P) {
    let image = match rt.image_2d::<P>(5, 3) {
        Ok(image) => image,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(&P::FORMAT.to_string()), "{error}");
            return;
        }
    };
    rt.queue().fill(&image, pixel).unwrap();
    assert_eq!(rt.queue().read(&image).await.unwrap(), vec![pixel; 15], "{}", P::FORMAT);
}

#[test]
fn fills_store_the_pixel_in_every_format_of_the_device() {
    everywhere(async |rt| {
        fill(&rt, R([200u8])).await;
        fill(&rt, Rg([-5i8, 100])).await;
        fill(&rt, Rgba([1u16, 2, 3, 65535])).await;
        fill(&rt, Rgba([i16::MIN, -1, 0, 1])).await;
        fill(&rt, Rgba([u32::MAX, 1, 2, 3])).await;
        fill(&rt, Rg([i32::MIN, 7])).await;
        fill(&rt, Rgba([0.1f32, -2.0, 3e30, 0.0])).await;
        fill(&rt, R([Half(0x3555)])).await;
        fill(&rt, Rgba([Half(0x0001), Half(0x7bff), Half(0x8400), Half(0xc000)])).await;
        fill(&rt, Rgba([0u8, 1, 127, 255].map(Unorm))).await;
        fill(&rt, Bgra([0u8, 1, 127, 255].map(Unorm))).await;
        fill(&rt, Argb([9u8, 10, 11, 12].map(Unorm))).await;
        fill(&rt, Bgra([9u8, 10, 11, 12])).await;
        fill(&rt, Rgba([0u16, 1, 40000, 65535].map(Unorm))).await;
        fill(&rt, Rgba([-127i8, -1, 5, 127].map(Snorm))).await;
        fill(&rt, Rg([-32767i16, 12345].map(Snorm))).await;
        fill(&rt, A([Unorm(77u8)])).await;
        fill(&rt, Luminance([Unorm(88u8)])).await;
        fill(&rt, Intensity([0.25f32])).await;
    });
}

const KERNELS: &str = "
    kernel void brighten(read_only image2d_t from, write_only image2d_t to, uint by) {
        int2 at = (int2)(get_global_id(0), get_global_id(1));
        write_imageui(to, at, read_imageui(from, at) + by);
    }
    kernel void gather(read_only image1d_buffer_t table, global uint *out) {
        size_t i = get_global_id(0);
        out[i] = read_imageui(table, (int)i).x;
    }
    kernel void sample(read_only image2d_t from, sampler_t sampler, global uint *out) {
        out[0] = read_imageui(from, sampler, (float2)(0.5f, 0.5f)).x;
    }
    kernel void twice(global uint *x) { x[get_global_id(0)] *= 2; }";

#[test]
fn launches_are_ordered_by_the_images_that_they_use() {
    block_on(support::on_each_device_with_images(async |rt| {
        let brighten = support::kernel(&rt, KERNELS, "brighten").await;
        let queue = rt.queue();
        let images = [(); 3].map(|()| rt.image_2d::<R<u32>>(16, 16).unwrap());
        queue.write(&images[0], vec![R([1u32]); 256]).unwrap();
        for step in 0..90 {
            let (from, to) = (&images[step % 3], &images[(step + 1) % 3]);
            queue.submit(brighten.launch([16, 16]).args((from, to, step as u32))).unwrap();
        }
        let sum = 1 + (0..90).sum::<u32>();
        assert_eq!(queue.read(&images[0]).await.unwrap(), vec![R([sum]); 256]);
    }));
}

#[test]
fn a_kernel_reads_and_writes_one_image() {
    let twice = "kernel void twice(read_write image2d_t x) {
        int2 at = (int2)(get_global_id(0), get_global_id(1));
        write_imageui(x, at, read_imageui(x, at) * 2);
    }";
    block_on(support::on_each_device_with_images(async |rt| {
        let features = &rt.device().opencl_c_features;
        if !features.iter().any(|name| name == "__opencl_c_read_write_images") {
            return eprintln!("skipped {}: it has no read-write images", rt.device());
        }
        let module = Module::opencl_c(twice);
        let program = rt.build(&module).options("-cl-std=CL3.0").await.unwrap();
        // SAFETY: the kernel stays inside of the image.
        let twice = unsafe { program.kernel("twice") }.unwrap();
        let image = rt.image_2d::<R<u32>>(8, 4).unwrap();
        rt.queue().fill(&image, R([5])).unwrap();
        for _ in 0..3 {
            rt.queue().submit(twice.launch([8, 4]).args((&image,))).unwrap();
        }
        assert_eq!(rt.queue().read(&image).await.unwrap(), [R([40]); 32]);
    }));
}

#[test]
fn an_image_over_a_buffer_shares_its_elements() {
    block_on(support::on_each_device_with_images(async |rt| {
        let gather = support::kernel(&rt, KERNELS, "gather").await;
        let twice = support::kernel(&rt, KERNELS, "twice").await;
        let queue = rt.queue();
        let align = rt.device().limits.slice_alignment / 4;
        let numbers: Vec<_> = (0..4 * align as u32).map(|i| R([i])).collect();
        let buffer = rt.buffer_from(numbers).await.unwrap();
        let second = buffer.slice(align..3 * align).unwrap();
        let table = match rt.image_buffer(&second) {
            Ok(table) => table,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                return eprintln!("skipped: {error}");
            }
        };
        assert_eq!((table.kind(), table.size()), (ImageKind::D1Buffer, &[2 * align][..]));
        let out = rt.buffer::<u32>(2 * align).unwrap();
        queue.submit(twice.launch(4 * align).args((&buffer.cast::<u32>().unwrap(),))).unwrap();
        queue.submit(gather.launch(2 * align).args((&table, &out))).unwrap();
        let gathered = queue.read(&out).await.unwrap();
        let expected: Vec<_> = (align as u32..3 * align as u32).map(|i| 2 * i).collect();
        assert_eq!(gathered, expected);

        queue.fill(&table.part([1], [2]).unwrap(), R([7])).unwrap();
        assert_eq!(
            queue.read(&second).await.unwrap()[..4],
            [2 * align as u32, 7, 7, 2 * align as u32 + 6].map(|i| R([i]))
        );
    }));
}

#[test]
fn a_failed_command_makes_the_pixels_that_it_should_have_written_fail() {
    block_on(async {
        let simulator = Simulator::immediate();
        simulator.kernel("brighten", |_| panic!("no light"));
        let rt = runtime(&simulator).await;
        let brighten = support::kernel(&rt, KERNELS, "brighten").await;
        let queue = rt.queue();
        let [from, to] = [(); 2].map(|()| rt.image_2d::<R<u32>>(4, 4).unwrap());
        queue.submit(brighten.launch([4, 4]).args((&from, &to, 1u32))).unwrap();
        let error = queue.read(&to.part([1, 1], [2, 2]).unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("no light"), "{error}");

        // A column lies between pixels that are missing; a row does not.
        let column = to.part([0, 0], [1, 4]).unwrap();
        queue.fill(&column, R([1])).unwrap().await.unwrap_err();
        let row = to.part([0, 1], [4, 1]).unwrap();
        queue.fill(&row, R([1])).unwrap().await.unwrap();
        assert_eq!(queue.read(&row).await.unwrap(), [R([1]); 4]);
        queue.fill(&to, R([2])).unwrap();
        assert_eq!(queue.read(&to).await.unwrap(), [R([2]); 16]);
    });
}

#[test]
fn memory_is_freed_with_the_last_handle_and_command() {
    block_on(async {
        let simulator = Simulator::immediate();
        let rt = runtime(&simulator).await;
        let image = rt.image_3d::<Rgba<f32>>(8, 8, 8).unwrap();
        rt.queue().fill(&image, Rgba([1.0; 4])).unwrap();
        let part = image.part([0, 0, 0], [1, 1, 1]).unwrap();
        drop(image);
        assert_eq!(rt.queue().read(&part).await.unwrap(), [Rgba([1.0; 4])]);
        assert_eq!(simulator.counts().live_allocations, 1);
        drop(part);
        rt.drain().await;
        simulation::eventually("the memory is freed", || simulator.counts().live_allocations == 0);
    });
}

#[test]
fn images_that_the_device_cannot_hold_are_refused_by_name() {
    everywhere(async |rt| {
        let limits = rt.device().limits.images;
        let wide = rt.image_2d::<R<u8>>(limits.d2[0] + 1, 1).unwrap_err();
        assert_eq!(wide.kind(), ErrorKind::InvalidArgument);
        assert!(wide.to_string().contains(&limits.d2[0].to_string()), "{wide}");
        let deep = rt.image_3d::<R<u8>>(1, 1, limits.d3[2] + 1).unwrap_err();
        assert!(deep.to_string().contains("image3d_t"), "{deep}");
        let layers = rt.image_1d_array::<R<u8>>(1, limits.layers + 1).unwrap_err();
        assert!(layers.to_string().contains(&limits.layers.to_string()), "{layers}");
        let empty = rt.image_2d::<R<u8>>(0, 5).unwrap_err();
        assert!(empty.to_string().contains("0 x 5"), "{empty}");
    });
}

#[test]
fn commands_that_do_not_fit_an_image_are_refused() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let image = rt.image_2d::<R<u32>>(4, 3).unwrap();
        let short = queue.write(&image, vec![R([1u32]); 11]).unwrap_err();
        assert!(short.to_string().contains("11 pixels to 12 pixels"), "{short}");
        for (part, problem) in [
            (image.part([0, 0], [5, 1]), "inside"),
            (image.part([0, 3], [1, 1]), "inside"),
            (image.part([usize::MAX, 0], [2, 1]), "inside"),
            (image.part([0, 0], [0, 1]), "empty"),
            (image.part([0], [1]), "has 1 dimensions; give 2"),
            (image.part([0, 0, 0], [1, 1, 1]), "has 3 dimensions; give 2"),
        ] {
            let error = part.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(problem), "{error}");
        }
        let [wide, tall] = [[4, 2], [2, 3]].map(|size| image.part([0, 0], size).unwrap());
        queue.copy(&wide, &tall).unwrap_err();
        let shifted = image.part([1, 0], [3, 2]).unwrap();
        let first = image.part([0, 0], [3, 2]).unwrap();
        let error = queue.copy(&first, &shifted).unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
        let next = image.part([0, 2], [3, 1]).unwrap();
        queue.copy(&image.part([0, 0], [3, 1]).unwrap(), &next).unwrap().await.unwrap();
    });
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_the_driver_sees_them() {
    block_on(support::on_each_device_with_images(async |rt| {
        let brighten = support::kernel(&rt, KERNELS, "brighten").await;
        let sample = support::kernel(&rt, KERNELS, "sample").await;
        let twice = support::kernel(&rt, KERNELS, "twice").await;
        let queue = rt.queue();
        let image = rt.image_2d::<R<u32>>(4, 4).unwrap();
        let volume = rt.image_3d::<R<u32>>(4, 4, 4).unwrap();
        let buffer = rt.buffer::<u32>(64).unwrap();
        let sampler = Sampler::new();
        for (launch, parameter) in [
            (brighten.launch(1).args((&image, &volume, 1u32)), "parameter 1 `image2d_t to`"),
            (brighten.launch(1).args((&buffer, &image, 1u32)), "parameter 0 `image2d_t from`"),
            (brighten.launch(1).args((&image, 5u64, 1u32)), "parameter 1 `image2d_t to`"),
            (brighten.launch(1).args((&image, &image, &image)), "parameter 2 `uint by`"),
            (brighten.launch(1).args((&image, &image, sampler)), "parameter 2 `uint by`"),
            (sample.launch(1).args((&image, &image, &buffer)), "parameter 1 `sampler_t sampler`"),
            (sample.launch(1).args((&image, 0u64, &buffer)), "parameter 1 `sampler_t sampler`"),
            (sample.launch(1).args((&image, sampler, &image)), "parameter 2 `uint* out`"),
            (twice.launch(1).args((&image,)), "parameter 0 `uint* x`"),
            (twice.launch(1).args((sampler,)), "parameter 0 `uint* x`"),
        ] {
            let error = queue.submit(launch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(parameter), "{error}");
        }
        let repeating = sampler.addressing(Addressing::Repeat);
        let launch = sample.launch(1).args((&image, repeating, &buffer));
        let error = queue.submit(launch).unwrap_err();
        assert!(error.to_string().contains("normalized(true)"), "{error}");
        queue.submit(sample.launch(1).args((&image, sampler, &buffer))).unwrap().await.unwrap();
    }));
}

#[test]
fn buffers_are_refused_for_image_parameters() {
    block_on(support::on_each_device_with_images(async |rt| {
        let text = "typedef struct { int width, height; } image_size_t;
        kernel void sized(image_size_t size, global float *to) {
            to[0] = size.width * size.height;
        }
        typedef read_only image2d_t picture;
        kernel void plain(read_only image2d_t from, global float *to) {
            to[0] = get_image_width(from);
        }
        kernel void renamed(picture from, global float *to) { to[0] = get_image_width(from); }";
        let program = rt.build(&Module::opencl_c(text)).await.expect("images are supported");
        let buffer = rt.buffer_from(vec![0.0f32; 16]).await.unwrap();
        for name in ["plain", "renamed"] {
            // SAFETY: the kernel never runs.
            let kernel = unsafe { program.kernel(name) }.unwrap();
            let submitted = rt.queue().submit(kernel.launch(1).args((&buffer, &buffer)));
            let error = match submitted {
                Ok(event) => event.await.expect_err("it is refused later"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        // A parameter type whose name only looks like that of an image.
        let area = rt.buffer::<f32>(1).unwrap();
        // SAFETY: the kernel writes one element.
        let sized = unsafe { program.kernel("sized") }.unwrap();
        rt.queue().submit(sized.launch(1).args(([6, 7], &area))).unwrap();
        assert_eq!(rt.queue().read(&area).await.unwrap(), [42.0]);
    }));
}

#[test]
fn launches_over_images_are_fused_in_a_scope_or_run_one_by_one() {
    block_on(support::on_each_device_with_images(async |rt| {
        let brighten = support::kernel(&rt, KERNELS, "brighten").await;
        let queue = rt.queue();
        let images = [(); 3].map(|()| rt.image_2d::<R<u32>>(16, 16).unwrap());
        for round in 1..4 {
            let fusion = queue.start_fusion();
            for (from, to) in [(0, 1), (1, 2)] {
                let launch = brighten.launch([16, 16]);
                fusion.submit(launch.args((&images[from], &images[to], round))).unwrap();
            }
            // On a busy machine, the launches do not wait for the compiler, and run one by one.
            let report = fusion.examine().await.unwrap();
            assert_eq!(report.kernel(), Some("fused_brighten_brighten"), "{report}");
            fusion.complete().await.unwrap();
            assert_eq!(queue.read(&images[2]).await.unwrap(), vec![R([2 * round]); 256]);
        }
    }));
}
