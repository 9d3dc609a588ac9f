//! Programs of real drivers in a remote cache, which is in memory here.

#![cfg(feature = "remote-opendal")]

use std::time::Duration;

use super::warnings::LogCapture;
use futures::executor::block_on;
use kiln::build::Origin;
use kiln::remote::opendal::{Operator, services::Memory};
use kiln::{CacheConfig, Module, Runtime};
use support::{SAXPY, module_for, on_each_device_with};

/// Time limit that no working service exceeds, whatever the load of the system.
const PATIENT: Duration = Duration::from_secs(600);

async fn assert_runs(rt: &Runtime, module: &Module, origin: Origin) {
    let program = rt.build(module).await.expect("it builds");
    assert_eq!(program.origin(), origin);
    // SAFETY: it touches one element a work-item.
    let saxpy = unsafe { program.kernel("saxpy") }.expect("the kernel is there");
    let x = rt.buffer_from(vec![1.0f32; 64]).await.expect("there is memory");
    let y = rt.buffer_from(vec![2.0f32; 64]).await.expect("there is memory");
    rt.queue().submit(saxpy.launch(64).args((3.0f32, &x, &y))).expect("it fits");
    assert_eq!(rt.queue().read(&y).await.expect("it runs"), [5.0; 64]);
    rt.drain().await;
}

#[test]
fn a_program_compiled_on_one_machine_runs_on_another() {
    let _alone = LogCapture::begin();
    block_on(async {
        let operator = Operator::new(Memory::default()).expect("it is right");
        let machine = || {
            let cache = CacheConfig::memory_only().remote_operator(operator.clone());
            Runtime::builder().cache(cache.remote_budget(PATIENT).remote_timeout(PATIENT))
        };
        on_each_device_with(machine, async |first| {
            let module = module_for(&first, SAXPY).await;
            assert_runs(&first, &module, Origin::Compiled).await;
            assert_eq!((first.stats().remote.misses, first.stats().remote.writes), (1, 1));
            let second = machine().device(first.device().index().to_string()).build().await;
            let second = second.expect("it starts");
            assert_runs(&second, &module, Origin::Remote).await;
            assert_eq!((second.stats().builds.compiles, second.stats().remote.refused), (0, 0));
        })
        .await;
    });
}
