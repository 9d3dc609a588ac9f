//! The disk store below the build graph: programs that were built once are loaded afterwards, and problems of
//! the disk do not affect builds.

use std::path::Path;

use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::{CacheConfig, Module, Program, Runtime};
use support::everywhere;
use support::{SAXPY, on_each_device, under_executors};
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory can be created")
}

/// Starts a runtime as another process would: with nothing in memory, and this directory as its store.
async fn start(like: &Runtime, directory: &Path) -> Runtime {
    start_with(like, CacheConfig::at(directory)).await
}

async fn start_with(like: &Runtime, cache: CacheConfig) -> Runtime {
    let builder = Runtime::builder().device(like.device().index().to_string());
    builder.cache(cache).build().await.expect("it starts")
}

/// Builds a module, and waits until everything is written.
async fn build(rt: &Runtime, module: &Module) -> Program {
    let program = rt.build(module).await.expect("it builds");
    rt.drain().await;
    program
}

/// Checks that the program computes the right result.
async fn is_right(rt: &Runtime, program: &Program) {
    // SAFETY: `saxpy` stays below the global size, which is the buffers' length.
    let saxpy = unsafe { program.kernel("saxpy") }.expect("it exists");
    let x = rt.buffer_from(vec![2.0f32; 100]).await.expect("there is memory");
    let y = rt.buffer_from(vec![1.0f32; 100]).await.expect("there is memory");
    let queue = rt.queue();
    queue.submit(saxpy.launch(100).args((3.0f32, &x, &y))).expect("it fits");
    assert_eq!(queue.read(&y).await.expect("it runs"), vec![7.0; 100]);
}

everywhere! {
    async fn the_second_start_compiles_nothing(rt: Runtime) {
        let directory = directory();
        let module = Module::opencl_c(SAXPY);
        let first = start(&rt, directory.path()).await;
        let compiled = build(&first, &module).await;
        assert_eq!(compiled.origin(), Origin::Compiled);
        // If the device takes no text, the SPIR-V of the text is stored as well.
        let entries = if rt.device().formats.contains(&ModuleFormat::OpenClC) { 1 } else { 2 };
        assert_eq!((first.stats().builds.compiles, first.stats().disk.writes), (1, entries));

        let second = start(&rt, directory.path()).await;
        let loaded = build(&second, &module).await;
        assert_eq!(loaded.origin(), Origin::Disk);
        assert_eq!((second.stats().builds.compiles, second.stats().disk.hits), (0, entries));
        assert_eq!(second.stats().disk.writes, 0, "what was loaded is not written again");
        assert_eq!(loaded.key(), compiled.key());
        assert_eq!(loaded.kernel_names(), compiled.kernel_names());
        is_right(&second, &loaded).await;
        assert_eq!(build(&second, &module).await.origin(), Origin::Memory);
    }
}

everywhere! {
    /// Some drivers report the size of a program only once it is stored.
    async fn a_program_larger_than_the_memory_limit_does_not_evict_others(rt: Runtime) {
        if !rt.device().formats.contains(&ModuleFormat::OpenClC) {
            return; // The SPIR-V of a text is in memory, too.
        }
        let module = |number: u32| {
            Module::opencl_c(format!("kernel void number_{number}(global int *x) {{ x[0] = {number}; }}"))
        };
        let table = "constant uint table[16777216] = {1};";
        let large = "kernel void large(global uint *x) { x[0] = table[x[1]]; }";
        let large = Module::opencl_c(format!("{table}\n{large}\n"));
        let limit = 48 << 20; // less than the table, and far more than two small programs take

        let builder = Runtime::builder().device(rt.device().index().to_string());
        let directory = tempfile::tempdir().expect("there is disk space");
        let builder = builder.cache(CacheConfig::at(directory.path())).memory_limit(limit);
        let rt = builder.build().await.expect("it starts");
        for number in [0, 1] {
            build(&rt, &module(number)).await;
        }
        let evictions = rt.stats().memory.evictions;
        assert_eq!(build(&rt, &large).await.kernel_names(), ["large"]);
        assert_eq!(rt.stats().memory.evictions, evictions + 1, "it was not kept");
        for number in [0, 1] {
            assert_eq!(build(&rt, &module(number)).await.origin(), Origin::Memory, "{number}");
        }
        assert_eq!(rt.stats().memory.programs, 2);
    }
}

/// Drivers report little or no information on the kernels of a binary.
#[test]
fn parameters_are_loaded_with_the_program() {
    under_executors(|| {
        on_each_device(async |rt: Runtime| {
            let directory = directory();
            let module = Module::opencl_c(SAXPY);
            let mut params = Vec::new();
            for _ in 0..2 {
                let rt = start(&rt, directory.path()).await;
                let program = build(&rt, &module).await;
                // SAFETY: it is not launched.
                let kernel = unsafe { program.kernel("saxpy") }.expect("it exists");
                params.push(kernel.params().expect("the program exists").to_vec());
            }
            assert_eq!(params[0], params[1]);
        })
    });
}

/// PoCL compiles kernels when they first run, and when their binary is requested.
#[test]
fn a_binary_can_be_requested_concurrently_while_its_program_runs() {
    smol::block_on(on_each_device(async |rt: Runtime| {
        for round in 0..8 {
            let directory = directory();
            let rt = start(&rt, directory.path()).await;
            // A program that is not in any driver's cache.
            let name = directory.path().display();
            let module = Module::opencl_c(format!("// {name}, {round}\n{SAXPY}"));
            let program = rt.build(&module).await.expect("it builds");
            std::thread::scope(|scope| {
                let request = || program.binary().expect("there is one").len();
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(request)).collect();
                smol::block_on(is_right(&rt, &program));
                let lengths = threads.into_iter().map(|thread| thread.join().expect("it returns"));
                let lengths: Vec<_> = lengths.collect();
                assert_eq!(lengths, [lengths[0]; 3]);
            });
        }
    }));
}
