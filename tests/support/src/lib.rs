//! Shared code of the test suites: the devices of this machine, common executors, processes, services and stores.
//!
//! A package of its own, so that it is compiled once for all suites.

#![allow(missing_docs, reason = "names say it where a comment would repeat them")]
#![allow(missing_debug_implementations, clippy::must_use_candidate, reason = "only tests use it")]
#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a log tells what a test ran on")]

#[cfg(target_os = "linux")]
pub mod build_locks;
pub mod chains;
pub mod children;
pub mod entries;
pub mod forgotten;
pub mod late_frees;
pub mod libraries;
#[cfg(target_os = "linux")]
pub mod limits;
pub mod log_recorder;
#[cfg(unix)]
pub mod plug_ins;
#[cfg(unix)]
pub mod processes;
pub mod scopes;
pub mod scripts;
pub mod share;
#[cfg(target_os = "linux")]
pub mod signals;
pub mod simulation;
pub mod specialized;
pub mod stores;

use std::future::Future;

pub use test_tools::programs as tools;
pub use test_tools::{at_once, tier};

use futures::future::BoxFuture;
use kiln::devices::ModuleFormat;
use kiln::launch::NdSize;
use kiln::{
    CacheConfig, CheckedProgram, ErrorKind, Kernel, Launch, Module, NdRange, Program, Runtime,
    RuntimeBuilder, internal::translate,
};

/// Directory of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

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
        if let Some(rt) = on_device(known, builder()).await {
            test(rt).await;
        }
    }
}

/// Like [`on_each_device_with`] in the full tier. Otherwise on one device: for tests whose subject hardly depends on
/// the device.
pub async fn on_a_device_with(with: impl Fn() -> RuntimeBuilder, test: impl AsyncFn(Runtime)) {
    let mut found = Vec::new();
    for known in KNOWN {
        if on_device(known, builder()).await.is_some() {
            found.push(known);
        }
    }
    for known in tier::sample(found, 1) {
        let rt = on_device(known, with()).await.expect("it was found");
        test(rt).await;
    }
}

/// Like [`on_each_device`], but on all devices at the same time: for the one long test of a suite.
pub fn on_all_devices_at_once(test: impl AsyncFn(Runtime) + Sync) {
    at_once(&KNOWN, |known| {
        futures::executor::block_on(async {
            if let Some(rt) = on_device(*known, builder()).await {
                test(rt).await;
            }
        });
    });
}

/// Starts a runtime on a known device, if this machine has the device.
async fn on_device((name, selector): (&str, &str), builder: RuntimeBuilder) -> Option<Runtime> {
    let required = std::env::var("KILN_REQUIRE_DEVICES").unwrap_or_default();
    match builder.device(selector).build().await {
        Ok(rt) => {
            eprintln!("on {name}: {}", rt.device());
            Some(rt)
        }
        Err(error) if error.kind() == ErrorKind::NoDevice => {
            assert!(
                !required.split(',').any(|required| required == name),
                "{name} is required: {error}"
            );
            eprintln!("skipped {name}: it is not installed");
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Checks that `saxpy` of a program with [`SAXPY`] computes the right result.
pub async fn assert_computes(rt: &Runtime, program: &Program) {
    // SAFETY: the kernel touches one element a work-item.
    let saxpy = unsafe { program.kernel("saxpy") }.unwrap();
    let x = rt.buffer_from(vec![1.0f32; 8]).await.unwrap();
    let y = rt.buffer_from(vec![2.0f32; 8]).await.unwrap();
    rt.queue().submit(saxpy.launch(8).args((3.0f32, &x, &y))).unwrap().await.unwrap();
    assert_eq!(rt.queue().read(&y).await.unwrap(), [5.0; 8]);
}

/// An executor that applications use.
#[derive(Clone, Copy, Debug)]
pub enum Executor {
    Tokio,
    Smol,
    BlockOn,
}

impl Executor {
    const ALL: [Self; 3] = [Self::Tokio, Self::Smol, Self::BlockOn];

    /// Returns the name of the executor, which `KILN_TEST_EXECUTOR` can have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::Smol => "smol",
            Self::BlockOn => "block_on",
        }
    }

    /// Returns the executors for a test. `KILN_TEST_EXECUTOR` selects one by its name. Otherwise, the full tier has
    /// all of them, and the fast one has one, which follows from the test's name, so that a failure repeats.
    pub fn of_test(name: &str) -> Vec<Self> {
        match std::env::var("KILN_TEST_EXECUTOR").as_deref() {
            Ok(name) => {
                let named = Self::ALL.into_iter().find(|executor| executor.name() == name);
                vec![named.unwrap_or_else(|| {
                    panic!("KILN_TEST_EXECUTOR={name} is not tokio, smol or block_on")
                })]
            }
            Err(_) if tier::is_full() => Self::ALL.to_vec(),
            Err(_) => {
                let sum = name
                    .bytes()
                    .fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                vec![Self::ALL[sum as usize % Self::ALL.len()]]
            }
        }
    }

    /// Runs a future. Not generic, so that each suite compiles the executors once.
    fn run(self, test: BoxFuture<'static, ()>) {
        match self {
            Self::Tokio => {
                let mut tokio = tokio::runtime::Builder::new_multi_thread();
                let tokio = tokio.worker_threads(2).enable_all().build().expect("tokio starts");
                tokio.block_on(async { tokio::spawn(test).await }).expect("the test passes");
            }
            Self::Smol => smol::block_on(smol::spawn(test)),
            Self::BlockOn => futures::executor::block_on(test),
        }
    }
}

/// Runs a test under the common executors in the full tier, and under one of them otherwise. `KILN_TEST_EXECUTOR`
/// selects another one: `tokio`, `smol` or `block_on`.
pub fn under_executors<F: Future<Output = ()> + Send + 'static>(test: impl Fn() -> F) {
    for executor in Executor::of_test(std::any::type_name_of_val(&test)) {
        eprintln!("under {executor:?}");
        executor.run(Box::pin(test()));
    }
}

/// Defines a test that runs on every device, under the executors of [`under_executors`].
#[macro_export]
macro_rules! everywhere {
    ($(#[$meta:meta])* async fn $name:ident($rt:ident: Runtime) $body:block) => {
        $(#[$meta])*
        #[test]
        fn $name() {
            $crate::under_executors(|| {
                $crate::on_each_device(async |$rt: kiln::Runtime| $body)
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

/// Builds the checked program of an OpenCL C source.
pub async fn checked_program(rt: &Runtime, source: &str) -> CheckedProgram {
    rt.build(&Module::opencl_c(source)).checked().await.expect("its kernels can be checked")
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
