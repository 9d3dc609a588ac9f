//! Typed kernels: functions that `kiln::kernels!` generates are compiled here, and run on every device.

use futures::executor::block_on;
use kiln::bytemuck::Pod;
use kiln::images::{R, Rgba, Sampler};
use kiln::launch::BufferArgument;
use kiln::{Buffer, ErrorKind, Event, Image, Launch, Local, Result, Runtime};
use support::tools::has_clang;
use support::{on_each_device, on_each_device_with_images};

kiln::kernels! {
    /// Kernels for each type.
    mod vectors = "../data/typed/vectors.cl" { options = "-D WITH_DOUBLE"; }

    mod odd = "../data/typed/odd.cl" {
        kernels = [type, build, structs, load_half, bytes, histogram, seventeen];
        type half = u16;
        type Pair = super::Pair;
        type Matrix = [[f32; 4]; 3];
    }

    mod images = "../data/typed/images.cl";
    mod image_module = "../data/typed/images.spv";

    pub(crate) mod module = "../data/saxpy.spv";

    mod absolute = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/", "data/saxpy.cl");
    mod options = opencl_c("
        #define JOIN(a, b) a##b
        #define NAMED(a, b) JOIN(a, b)
        kernel void NAMED(scale_by_, FACTOR)(global float *x) { x[get_global_id(0)] *= FACTOR; }
    ") { options = "-D FACTOR=3"; }
}

/// `Pair` of `odd.cl`, whose five bytes are packed.
type Pair = [u8; 5];

fn pair(kind: u8, weight: f32) -> Pair {
    let [a, b, c, d] = weight.to_ne_bytes();
    [kind, a, b, c, d]
}

/// Small numbers as a type of OpenCL C: a scalar, or a vector whose components differ.
trait Element: Pod + Send {
    fn of(number: u8) -> Self;

    /// Returns the components, as far as the vector has them.
    fn components(self, lanes: usize) -> Vec<f64>;
}

macro_rules! scalars {
    ($($scalar:ty)*) => {
        $(impl Element for $scalar {
            fn of(number: u8) -> Self {
                number as Self
            }

            fn components(self, _: usize) -> Vec<f64> {
                vec![self as f64]
            }
        })*
    };
}

scalars!(i8 u8 i16 u16 i32 u32 i64 u64 f32 f64);

impl<T: Element, const LANES: usize> Element for [T; LANES]
where
    Self: Pod,
{
    fn of(number: u8) -> Self {
        std::array::from_fn(|lane| T::of(number + lane as u8))
    }

    fn components(self, lanes: usize) -> Vec<f64> {
        self.into_iter().take(lanes).flat_map(|scalar| scalar.components(1)).collect()
    }
}

async fn upload<T: Pod + Send>(rt: &Runtime, elements: Vec<T>) -> Buffer<T> {
    rt.buffer_from(elements).await.expect("there is memory")
}

const ITEMS: usize = 8;
const GROUP: usize = 4;

/// Launches a kernel of `vectors.h`, and compares its result.
async fn pass<T: Element>(
    rt: &Runtime,
    lanes: usize,
    launch: impl Fn(T, &Buffer<T>, &Buffer<T>, Local<T>, BufferArgument<'_, T>) -> Launch,
) {
    let input: Vec<_> = (0..ITEMS).map(|i| T::of(i as u8)).collect();
    let (x, table) = (upload(rt, input).await, upload(rt, vec![T::of(20)]).await);
    let y = rt.buffer::<T>(ITEMS).expect("there is memory");
    let launch = launch(T::of(10), &x, &table, Local::new(GROUP), y.write_only());
    rt.queue().submit(launch.local(GROUP)).expect("it fits");
    for (i, found) in rt.queue().read(&y).await.expect("it runs").into_iter().enumerate() {
        // Each group is reversed.
        let from = i / GROUP * GROUP + (GROUP - 1 - i % GROUP);
        let expected = (0..lanes).map(|lane| (from + 20 + 10 + 3 * lane) as f64);
        let (found, expected) = (found.components(lanes), expected.collect::<Vec<_>>());
        assert_eq!(found, expected, "`{}`, element {i}", std::any::type_name::<T>());
    }
}

macro_rules! pass_all {
    ($rt:ident, $kernels:ident: $($scalar:ty: $k1:ident $k2:ident $k3:ident $k4:ident $k8:ident $k16:ident;)*) => {
        $(
            pass::<$scalar>(&$rt, 1, |a, x, t, l, y| $kernels.$k1(ITEMS, a, x, t, l, y)).await;
            pass::<[$scalar; 2]>(&$rt, 2, |a, x, t, l, y| $kernels.$k2(ITEMS, a, x, t, l, y)).await;
            pass::<[$scalar; 4]>(&$rt, 3, |a, x, t, l, y| $kernels.$k3(ITEMS, a, x, t, l, y)).await;
            pass::<[$scalar; 4]>(&$rt, 4, |a, x, t, l, y| $kernels.$k4(ITEMS, a, x, t, l, y)).await;
            pass::<[$scalar; 8]>(&$rt, 8, |a, x, t, l, y| $kernels.$k8(ITEMS, a, x, t, l, y)).await;
            pass::<[$scalar; 16]>(&$rt, 16, |a, x, t, l, y| $kernels.$k16(ITEMS, a, x, t, l, y)).await;
        )*
    };
}

#[test]
fn every_scalar_and_vector_arrives_as_it_is_given() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let kernels = vectors::Kernels::build(&rt).await.expect("it builds");
        pass_all! { rt, kernels:
            i8: pass_char pass_char2 pass_char3 pass_char4 pass_char8 pass_char16;
            u8: pass_uchar pass_uchar2 pass_uchar3 pass_uchar4 pass_uchar8 pass_uchar16;
            i16: pass_short pass_short2 pass_short3 pass_short4 pass_short8 pass_short16;
            u16: pass_ushort pass_ushort2 pass_ushort3 pass_ushort4 pass_ushort8 pass_ushort16;
            i32: pass_int pass_int2 pass_int3 pass_int4 pass_int8 pass_int16;
            u32: pass_uint pass_uint2 pass_uint3 pass_uint4 pass_uint8 pass_uint16;
            i64: pass_long pass_long2 pass_long3 pass_long4 pass_long8 pass_long16;
            u64: pass_ulong pass_ulong2 pass_ulong3 pass_ulong4 pass_ulong8 pass_ulong16;
            f32: pass_float pass_float2 pass_float3 pass_float4 pass_float8 pass_float16;
            f64: pass_double pass_double2 pass_double3 pass_double4 pass_double8 pass_double16;
        }
    }));
}

/// Runs a launch, and returns the contents of a buffer.
async fn result<T: Pod + Send>(rt: &Runtime, launch: Launch, y: &Buffer<T>) -> Vec<T> {
    rt.queue().submit(launch).expect("it fits");
    rt.queue().read(y).await.expect("it runs")
}

#[test]
fn odd_declarations_are_called_like_plain_ones() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let kernels = odd::Kernels::build(&rt).await.expect("it builds");

        let x = upload(&rt, vec![1, 2, 3]).await;
        assert_eq!(result(&rt, kernels.r#type(3, &x, 10), &x).await, [11, 12, 13]);

        let (x, y) =
            (upload(&rt, vec![1.0, 2.0, 3.0, 4.0]).await, upload(&rt, vec![0.0f32; 4]).await);
        assert_eq!(result(&rt, kernels.build_(4, &x, &y), &y).await, [2.0, 4.0, 6.0, 8.0]);

        let mut matrix = [[0.0f32; 4]; 3];
        matrix[0][1] = 0.5;
        let (pairs, rows) =
            (rt.buffer::<Pair>(2).expect("it fits"), rt.buffer::<[f32; 4]>(2).expect("it fits"));
        let at = upload(&rt, vec![7u32, 8]).await;
        let launch = kernels.structs(2, matrix, pair(3, 4.0), pairs.read_write(), &rows, &at);
        assert_eq!(result(&rt, launch, &pairs).await, [pair(3, 2.0); 2]);
        assert_eq!(rt.queue().read(&rows).await.expect("it runs")[1], [0.0, 8.0, 0.0, 0.0]);

        let (halves, y) =
            (upload(&rt, vec![0x3c00u16, 0xc000]).await, upload(&rt, vec![0.0f32; 2]).await);
        assert_eq!(result(&rt, kernels.load_half(2, &halves, &y), &y).await, [1.0, -2.0]);

        let (from, to) = (upload(&rt, vec![1u8, 2]).await, upload(&rt, vec![0u8; 2]).await);
        assert_eq!(result(&rt, kernels.bytes([2], &from, &to), &to).await, [1, 2]);

        let (counts, x) = (upload(&rt, vec![0; 4]).await, upload(&rt, vec![0u8, 1, 1, 3]).await);
        assert_eq!(result(&rt, kernels.histogram(4, &counts, &x), &counts).await, [1, 2, 0, 1]);

        let sum = upload(&rt, vec![0]).await;
        let launch =
            kernels.seventeen(1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, &sum);
        assert_eq!(result(&rt, launch, &sum).await, [136]);
    }));
}

/// Launches `y = a * x + y`.
async fn saxpy(rt: &Runtime, launch: impl Fn(usize, f32, &Buffer<f32>, &Buffer<f32>) -> Launch) {
    let (x, y) = (upload(rt, vec![1.0f32, 2.0]).await, upload(rt, vec![10.0f32, 20.0]).await);
    assert_eq!(result(rt, launch(2, 3.0, &x, &y), &y).await, [13.0, 26.0]);
}

#[test]
fn files_are_found_and_built_in_every_form() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let kernels = absolute::Kernels::build(&rt).await.expect("it builds");
        saxpy(&rt, |n, a, x, y| kernels.saxpy(n, a, x, y)).await;

        let program = rt.build(&absolute::Kernels::module().expect("it is valid"));
        let kernels = absolute::Kernels::from_build(&program.checked().start());
        saxpy(&rt, |n, a, x, y| kernels.saxpy(n, a, x, y)).await;

        let module = module::Kernels::module().expect("it is valid");
        if rt.device().formats.contains(&module.format()) {
            let program = rt.build(&module).checked().await.expect("it builds");
            let kernels = module::Kernels::from_program(&program).expect("it has the kernel");
            saxpy(&rt, |n, a, x, y| kernels.saxpy(n, a, x, y)).await;
        }

        let kernels = options::Kernels::build(&rt).await.expect("it builds");
        let x = upload(&rt, vec![1.0f32, 2.0]).await;
        assert_eq!(result(&rt, kernels.scale_by_3(2, &x), &x).await, [3.0, 6.0]);
    }));
}

const TURNED: [usize; 2] = [6, 5];
const SHARE: f32 = 0.25;

/// Returns pixels whose channels can be mixed without rounding.
fn pixels(first: usize) -> Vec<Rgba<f32>> {
    let channel = |i: usize| ((first + 7 * i) % 64) as f32;
    (0..TURNED[0] * TURNED[1]).map(|i| Rgba([channel(i), channel(i + 1), 4.0, 8.0])).collect()
}

/// Returns the picture that the kernel `turn` makes, of pixels from an image of 5 x 6 and one of 6 x 5.
fn turned(from: &[Rgba<f32>], other: &[Rgba<f32>]) -> Vec<Rgba<f32>> {
    let [width, height] = TURNED;
    let mix = |a: f32, b: f32| a + (b - a) * SHARE;
    let pixel = |i: usize| {
        let (x, y) = (i % width, i / width);
        let Rgba(from) = from[(width - 1 - x) * height + y];
        Rgba(std::array::from_fn(|channel| mix(from[channel], other[i].0[channel])))
    };
    (0..width * height).map(pixel).collect()
}

/// Calls `turn` of the kernels of text or of SPIR-V.
async fn turn(
    rt: &Runtime,
    launch: impl Fn(
        [usize; 2],
        &Image<Rgba<f32>>,
        Sampler,
        &Image<Rgba<f32>>,
        &Image<Rgba<f32>>,
    ) -> Launch,
) {
    let [width, height] = TURNED;
    let from = rt.image_2d(height, width).expect("there is memory");
    let image = || rt.image_2d(width, height).expect("there is memory");
    let (to, other) = (image(), image());
    let (first, second) = (pixels(1), pixels(40));
    rt.queue().write(&from, first.clone()).expect("it fits");
    rt.queue().write(&other, second.clone()).expect("it fits");
    rt.queue().submit(launch(TURNED, &from, Sampler::new(), &to, &other)).expect("it fits");
    let found = rt.queue().read(&to).await.expect("it runs");
    assert_eq!(found, turned(&first, &second), "on {}", rt.device());
}

#[test]
fn images_and_samplers_are_given_as_they_are() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device_with_images(async |rt| {
        let kernels = images::Kernels::build(&rt).await.expect("it builds");
        turn(&rt, |range, from, at, to, other| kernels.turn(range, from, at, to, other, SHARE))
            .await;

        let module = image_module::Kernels::module().expect("it is valid");
        if rt.device().formats.contains(&module.format()) {
            let kernels = image_module::Kernels::build(&rt).await.expect("it builds");
            turn(&rt, |range, from, at, to, other| kernels.turn(range, from, at, to, other, SHARE))
                .await;
        }
    }));
}

#[test]
fn every_kind_of_image_has_one_type_and_is_checked_at_the_launch() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device_with_images(async |rt| {
        let kernels = images::Kernels::build(&rt).await.expect("it builds");
        let line = rt.image_1d::<R<u8>>(7).expect("it fits");
        let lines = rt.image_1d_array::<R<f32>>(5, 3).expect("it fits");
        let layers = rt.image_2d_array::<Rgba<u16>>(4, 3, 2).expect("it fits");
        let volume = rt.image_3d::<Rgba<i32>>(4, 5, 6).expect("it fits");
        let counts = upload(&rt, vec![0u32; 4]).await;
        let launch = kernels.count(1, &line, &lines, &layers, &volume, &counts);
        assert_eq!(result(&rt, launch, &counts).await, [7, 15, 24, 120]);

        let launch = kernels.count(1, &line, &lines, &volume, &layers, &counts);
        let error = rt.queue().submit(launch).expect_err("the images are in the wrong order");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let message = error.to_string();
        assert!(message.contains("expected `image2d_array_t`"), "{message}");
    }));
}

#[test]
fn launches_do_not_leave_their_buffers() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let kernels = absolute::Kernels::build(&rt).await.expect("it builds");
        let (x, y) = (upload(&rt, vec![1.0f32; 2]).await, upload(&rt, vec![1.0f32; 4]).await);
        let launch = kernels.saxpy(4096, 2.0, &x, &y.slice(..3).expect("it fits"));
        assert_eq!(result(&rt, launch, &y).await, [3.0, 3.0, 1.0, 1.0]);
    }));
}

#[test]
fn only_the_program_that_runs_is_compiled() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let before = rt.stats().builds.compiles;
        let kernels = absolute::Kernels::build(&rt).await.expect("it builds");
        saxpy(&rt, |n, a, x, y| kernels.saxpy(n, a, x, y)).await;
        assert_eq!(rt.stats().builds.compiles - before, 1);
    }));
}

#[test]
fn a_program_without_the_kernels_is_refused() {
    if !has_clang() {
        return;
    }
    block_on(on_each_device(async |rt| {
        let program = rt.build(&options::Kernels::module().expect("it is valid"));
        let program = program.checked().await.expect("it builds");
        let error = absolute::Kernels::from_program(&program).expect_err("another program");
        assert!(error.to_string().contains("`saxpy`"), "{error}");
    }));
}

/// A change of a file, or of a file that it includes, causes this suite to be compiled again.
#[test]
fn the_compiler_watches_the_files() {
    let program = std::env::current_exe().expect("it is known");
    let watched =
        std::fs::read_to_string(program.with_extension("d")).expect("cargo has written it");
    for file in [
        "typed/vectors.cl",
        "typed/vectors.h",
        "typed/odd.cl",
        "typed/images.cl",
        "typed/images.spv",
        "data/saxpy.cl",
        "data/saxpy.spv",
    ] {
        assert!(watched.contains(file), "{file}: {watched}");
    }
}

/// The future of a build can be sent, and keeps no reference to the runtime.
#[test]
fn builds_can_be_spawned() {
    if !has_clang() {
        return;
    }
    fn send<T: Send + 'static>(future: T) -> T {
        future
    }
    async fn run(rt: &Runtime) -> Result<Event> {
        let build = send(absolute::Kernels::build(rt));
        let kernels = send(build.await?).clone();
        let (x, y) = (rt.buffer::<f32>(8)?, rt.buffer::<f32>(8)?);
        rt.queue().submit(kernels.saxpy(8, 1.0, &x, &y))
    }
    block_on(on_each_device(async |rt| run(&rt).await.expect("it builds").await.expect("it runs")));
}
