//! Shared code of the test suites: the devices of this machine, and common executors.

#![allow(dead_code, unreachable_pub, reason = "each suite uses a part of it")]
#![allow(clippy::print_stderr, reason = "a log tells which devices a test ran on")]

use std::future::Future;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use kiln::{
    CacheConfig, ErrorKind, Kernel, Launch, Module, ModuleFormat, NdRange, NdSize, Program,
    Runtime, RuntimeBuilder, internal::translate,
};

/// `y[i] += a * x[i]`.
pub const SAXPY: &str = "kernel void saxpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}";

/// Known devices, and the selectors that find them.
const KNOWN: [(&str, &str); 5] = [
    ("pocl", "portable computing language"),
    ("intel", "intel(r) opencl"),
    ("nvidia", "nvidia"),
    ("oclgrind", "oclgrind"),
    ("level-zero", "level-zero"),
];

/// Creates a builder without a disk cache, so that no suite sees the programs of another.
pub fn builder() -> RuntimeBuilder {
    Runtime::builder().cache(CacheConfig::memory_only())
}

/// Runs `test` on every known device that this machine has. A missing device is reported by name. If the
/// environment variable `KILN_REQUIRE_DEVICES` names it, the test fails.
pub async fn on_each_device(test: impl AsyncFn(Runtime)) {
    on_each_device_with(builder, test).await;
}

/// Like [`on_each_device`], on the devices on which Kiln has images. Others are reported by name.
pub async fn on_each_device_with_images(test: impl AsyncFn(Runtime)) {
    on_each_device(async |rt| {
        if rt.device().limits.images.d2 == [0, 0] {
            return eprintln!("skipped {}: it has no images", rt.device());
        }
        test(rt).await;
    })
    .await;
}

/// Like [`on_each_device`], with other settings.
pub async fn on_each_device_with(
    builder: impl Fn() -> RuntimeBuilder,
    test: impl AsyncFn(Runtime),
) {
    for known in KNOWN {
        on_device(known, &builder, &test).await;
    }
}

/// Like [`on_each_device`], but on all devices at the same time: for the one long test of a suite.
pub fn on_all_devices_at_once(test: impl AsyncFn(Runtime) + Sync) {
    at_once(&KNOWN, |known| {
        futures::executor::block_on(on_device(*known, &builder, &test));
    });
}

async fn on_device(
    (name, selector): (&str, &str),
    builder: &impl Fn() -> RuntimeBuilder,
    test: &impl AsyncFn(Runtime),
) {
    let required = std::env::var("KILN_REQUIRE_DEVICES").unwrap_or_default();
    match builder().device(selector).build().await {
        Ok(rt) => {
            eprintln!("on {name}: {}", rt.device());
            test(rt).await;
        }
        Err(error) if error.kind() == ErrorKind::NoDevice => {
            assert!(
                !required.split(',').any(|required| required == name),
                "{name} is required: {error}"
            );
            eprintln!("skipped {name}: it is not installed");
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Calls `work` for each item, with as many items at a time as there are processors.
pub fn at_once<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Relaxed)) {
                    work(one);
                }
            });
        }
    });
}

/// Runs a future under each of the common executors.
pub fn under_each_executor<F: Future<Output = ()> + Send + 'static>(test: impl Fn() -> F) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let tokio = tokio.expect("tokio starts");
    eprintln!("under tokio");
    tokio.block_on(async { tokio::spawn(test()).await }).expect("the test passes");
    eprintln!("under smol");
    smol::block_on(smol::spawn(test()));
    eprintln!("under a bare block_on");
    futures::executor::block_on(test());
}

/// Defines a test that runs on every device under every executor.
#[macro_export]
macro_rules! everywhere {
    ($(#[$meta:meta])* async fn $name:ident($rt:ident: Runtime) $body:block) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            $crate::support::under_each_executor(|| {
                $crate::support::on_each_device(async |$rt: kiln::Runtime| $body)
            });
        }
    };
}

/// Returns a source text as a module that the runtime's device takes: SPIR-V if the device takes no OpenCL C.
/// For tests that count programs, since a build that translates its source also counts the translation.
pub async fn module_for(rt: &Runtime, source: &str) -> Module {
    let module = Module::opencl_c(source);
    if rt.device().formats.contains(&ModuleFormat::OpenClC) {
        return module;
    }
    // Another runtime translates, so that the counters of this one stay at zero.
    let other = builder().device(rt.device().index().to_string()).build().await;
    let spirv = translate::spirv_of(&other.expect("it starts"), &module, "").await;
    spirv.expect("the source is valid")
}

/// Builds the program of a source text.
pub async fn program(rt: &Runtime, source: &str) -> Program {
    rt.build(&Module::opencl_c(source)).await.expect("the source is valid")
}

/// Converts sizes, one for each dimension, for launches.
pub fn size(sizes: &[usize]) -> NdSize {
    match *sizes {
        [x] => x.into(),
        [x, y] => [x, y].into(),
        [x, y, z] => [x, y, z].into(),
        _ => panic!("{} dimensions", sizes.len()),
    }
}

/// Creates a launch over a range: with its offset and, if it has one, its local size.
pub fn launch_over(kernel: &Kernel, range: &NdRange) -> Launch {
    let launch = kernel.launch(size(range.global())).offset(size(range.offset()));
    match range.local() {
        Some(local) => launch.local(size(local)),
        None => launch,
    }
}

/// Builds a kernel of a source text.
pub async fn kernel(rt: &Runtime, source: &str, name: &str) -> Kernel {
    // SAFETY: the kernels of the suites stay inside the buffers that the suites give them.
    unsafe { program(rt, source).await.kernel(name) }.expect("the kernel exists")
}
