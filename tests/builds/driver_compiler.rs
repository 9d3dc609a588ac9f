//! The files with which a driver compiles, as a part of keys.

use kiln::build::BuildKey;
use kiln::{CacheConfig, Module, Runtime};
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device, get_all_devices};
use opencl3::program::Program;
use smol::block_on;
use support::children::{Child, DEVICE, report};
use support::{SAXPY, everywhere, test_name};

/// Environment variable that makes the child compile with every driver before it starts a runtime.
const COMPILE_FIRST: &str = "KILN_TEST_COMPILE_FIRST";

/// Reports the key of a program, in four parts.
#[test]
#[ignore = "it is a child of another test"]
fn child() {
    if std::env::var_os(COMPILE_FIRST).is_some() {
        for device in get_all_devices(CL_DEVICE_TYPE_ALL).expect("there is a driver") {
            let context = Context::from_device(&Device::new(device)).expect("it can be opened");
            Program::create_and_build_from_source(&context, SAXPY, "").expect("it builds");
        }
    }
    block_on(async {
        let device = std::env::var(DEVICE).expect("the parent sets it");
        let start =
            || Runtime::builder().cache(CacheConfig::memory_only()).device(device.clone()).build();
        let module = Module::opencl_c(SAXPY);
        let rt = start().await.expect("it starts");
        let key = |rt: &Runtime| rt.build(&module).key().expect("it has a key");
        let before = key(&rt);
        assert_eq!(rt.build(&module).await.expect("it builds").key(), before);
        assert_eq!(key(&rt), before);
        assert_eq!(key(&start().await.expect("it starts")), before);
        report_key(&before);
    });
}

fn report_key(key: &BuildKey) {
    for (at, part) in key.as_bytes().chunks(8).enumerate() {
        let number = u64::from_le_bytes(part.try_into().expect("a key has 32 bytes"));
        report(&format!("part{at}"), number);
    }
}

everywhere! {
    async fn keys_are_the_same_whether_or_not_the_driver_has_compiled(rt: Runtime) {
        let device = rt.device();
        if device.backend != "opencl" {
            return;
        }
        assert!(!device.compiler.is_empty(), "the files of {device} are not known");
        let index = device.index().to_string();
        let start = |more: &[(&'static str, &'static str)]| {
            let variables = more.iter().copied().chain([(DEVICE, &*index)]);
            Child::start(&test_name!("child"), variables).report()
        };
        let fresh = start(&[]);
        assert_eq!(fresh.len(), 4);
        assert_eq!(start(&[(COMPILE_FIRST, "1")]), fresh);
    }
}
