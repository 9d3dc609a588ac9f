//! Whether a built program is stored, and why not.

use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::store::Storage;
use kiln::{CacheConfig, Module, Runtime};
use support::{SAXPY, everywhere};

async fn start(like: &Runtime, cache: CacheConfig) -> Runtime {
    let builder = Runtime::builder().device(like.device().index().to_string());
    // The tool compiles untrusted modules.
    #[cfg(feature = "cli")]
    let builder = builder.build_child(env!("CARGO_BIN_EXE_kiln"));
    builder.cache(cache).build().await.expect("it starts")
}

/// Builds a module, waits until it would be stored, and returns whether it is.
async fn storage(rt: &Runtime, module: &Module) -> Storage {
    let program = rt.build(module).await.expect("it builds");
    rt.drain().await;
    let storage = program.storage();
    let again = rt.build(module).await.expect("it builds again");
    if again.origin() == Origin::Memory {
        assert_eq!(again.storage(), storage);
    }
    storage
}

everywhere! {
    async fn a_program_tells_whether_it_is_stored(rt: Runtime) {
        if !rt.device().formats.contains(&ModuleFormat::OpenClC) {
            return;
        }
        let directory = tempfile::tempdir().expect("there is room");
        let at = || CacheConfig::at(directory.path());
        let saxpy = Module::opencl_c(SAXPY);
        let stored = start(&rt, at()).await;
        assert_eq!(storage(&stored, &saxpy).await, Storage::Stored);
        let loaded = start(&rt, at()).await;
        assert_eq!(storage(&loaded, &saxpy).await, Storage::Stored);

        if cfg!(feature = "cli") {
            let untrusted = Module::opencl_c(format!("{SAXPY}\n")).untrusted();
            assert_eq!(storage(&loaded, &untrusted).await, Storage::Stored);
        }
        let clock = Module::opencl_c(
            "constant char built[] = __TIME__;\n\
             kernel void k(global char *x) { x[0] = built[0]; }",
        );
        assert_eq!(storage(&loaded, &clock).await, Storage::UsesTime);
        let program = loaded.build(&saxpy).await.expect("it is stored");
        let native = Module::native(program.binary().expect("it has one")).expect("it is whole");
        assert_eq!(storage(&loaded, &native).await, Storage::Native);
    }
}

everywhere! {
    async fn a_program_tells_which_limit_keeps_it_from_being_stored(rt: Runtime) {
        let directory = tempfile::tempdir().expect("there is room");
        let saxpy = support::module_for(&rt, SAXPY).await;
        let at = || CacheConfig::at(directory.path());
        let off = start(&rt, CacheConfig::memory_only()).await;
        assert_eq!(storage(&off, &saxpy).await, Storage::Off);
        let sizes = start(&rt, at().entry_bytes(0..=10)).await;
        let Storage::Size { bytes, sizes } = storage(&sizes, &saxpy).await else {
            panic!("it is too large");
        };
        assert!(bytes > 10 && sizes == (0..=10));
        let limited = start(&rt, at().max_bytes(100)).await;
        let Storage::Limit { bytes, limit } = storage(&limited, &saxpy).await else {
            panic!("it is too large");
        };
        assert!(bytes > 100 && limit == 100);
    }
}

everywhere! {
    async fn a_disk_that_cannot_be_written_is_named(rt: Runtime) {
        let directory = tempfile::tempdir().expect("there is room");
        let root = directory.path().join("store");
        let broken = start(&rt, CacheConfig::at(&root)).await;
        // A file in the place of the store's directory.
        std::fs::write(&root, "").expect("it can be written");
        let saxpy = support::module_for(&rt, SAXPY).await;
        let storage = storage(&broken, &saxpy).await;
        assert!(matches!(storage, Storage::Failed(_)), "{storage}");
        assert!(!storage.is_stored() && storage.to_string().contains("could not be written"));
    }
}
