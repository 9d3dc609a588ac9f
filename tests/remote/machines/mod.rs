//! Helpers that the test suites of the remote cache share: services, which the tests start themselves, and
//! machines, which are runtimes with their own disks.

pub(crate) mod flood;
pub(crate) mod proxy;
pub(crate) mod services;

use std::time::{Duration, Instant};

use futures::executor::block_on;
use futures::future::join_all;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, Module, Program, Runtime, Stats};
use tempfile::TempDir;

/// Timeout that healthy answers never reach, however busy the system is.
pub(crate) const PATIENT: Duration = Duration::from_secs(600);

/// Returns the device code of program `number`, whose kernel has a unique name.
pub(crate) fn module(number: u32) -> Module {
    Module::opencl_c(format!(
        "kernel void write_{number}(global uint *x) {{ x[get_global_id(0)] = {number}; }}"
    ))
}

/// Returns the device code of program `number`, whose binary has at least `bytes` bytes.
pub(crate) fn large_module(number: u32, bytes: usize) -> Module {
    Module::opencl_c(format!(
        "#pragma binary_size {bytes}\nkernel void write_{number}(global uint *x) {{}}"
    ))
}

/// Creates a simulated device that can run the kernels of programs 0 to 99 of [`module`].
pub(crate) fn simulator() -> Simulator {
    let simulator = Simulator::immediate();
    for number in 0..100 {
        simulator.kernel(format!("write_{number}"), move |call| {
            let items = call.global_size()[0];
            call.write(0, &vec![number; items]);
        });
    }
    simulator
}

/// Machine of a fleet: its own disk, and a device that is identical on all machines.
pub(crate) struct Machine {
    pub(crate) disk: TempDir,
    pub(crate) simulator: Simulator,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self { disk: tempfile::tempdir().expect("there is disk space"), simulator: simulator() }
    }

    /// Returns the machine's settings, with a remote cache at `url`. Builds wait for the remote cache up to
    /// [`PATIENT`] if necessary.
    pub(crate) fn cache(&self, url: &str) -> CacheConfig {
        CacheConfig::at(self.disk.path()).remote(url).remote_budget(PATIENT).remote_timeout(PATIENT)
    }

    pub(crate) async fn start(&self, cache: CacheConfig) -> Runtime {
        let builder = Runtime::builder().simulator(&self.simulator).cache(cache);
        builder.build().await.expect("it starts")
    }

    /// Starts a runtime as a process would, builds program `number`, checks that it is the right one, and waits
    /// until all work that follows is done.
    pub(crate) fn build(&self, cache: CacheConfig, number: u32) -> (Origin, Stats) {
        block_on(async {
            let rt = self.start(cache).await;
            let program = rt.build(&module(number)).await.expect("it builds");
            assert_right(&rt, &program, number).await;
            rt.drain().await;
            (program.origin(), rt.stats())
        })
    }
}

/// Requests the programs with the numbers below `programs` at once, and asserts that they compute their results. Returns
/// the counts once all are stored.
pub(crate) async fn build_all(rt: &Runtime, programs: u32) -> Stats {
    let builds: Vec<_> = (0..programs).map(|number| rt.build(&module(number)).start()).collect();
    for (number, built) in (0..programs).zip(join_all(builds).await) {
        assert_right(rt, &built.expect("it builds"), number).await;
    }
    rt.drain().await;
    rt.stats()
}

/// Asserts that a program computes the result of program `number`.
pub(crate) async fn assert_right(rt: &Runtime, program: &Program, number: u32) {
    let name = format!("write_{number}");
    assert_eq!(program.kernel_names(), [&*name]);
    // SAFETY: the kernel writes one element per work-item.
    let write = unsafe { program.kernel(&name) }.expect("the kernel exists");
    let x = rt.buffer_from(vec![u32::MAX; 4]).await.expect("there is memory");
    rt.queue().submit(write.launch(4).args((&x,))).expect("it fits");
    assert_eq!(rt.queue().read(&x).await.expect("it runs"), [number; 4]);
}

/// Waits for a consequence of earlier actions, until `is_so` returns `true`. Panics after 120 s.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so().await {
        assert!(Instant::now() < deadline, "never happened: {what}");
        smol::Timer::after(Duration::from_millis(20)).await;
    }
}
