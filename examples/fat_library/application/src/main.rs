//! An application whose kernels call device functions of a crate and of a plug-in. Neither is registered:
//! linking the crate is enough, and the plug-in is attached.
//!
//! ```sh
//! cargo build --manifest-path examples/fat_library/Cargo.toml --workspace
//! cargo run --manifest-path examples/fat_library/Cargo.toml
//! ```
//!
//! After each step it prints the library that each symbol comes from, and how many nodes of the build graph
//! were built for the step and how many existed already.

mod steps;

use std::error::Error;

use futures::executor::block_on;
use kiln::libraries::{ExportedLibraries, PluginLibraries};
use kiln::{CacheConfig, Module, Runtime};
use libloading::{Library, library_filename};
use steps::Steps;
// The crate has no functions for the host. This line links its device code into the program.
use tones as _;

const PICTURE: &[u8] = include_bytes!("picture.spv");
const FILTERED: &[u8] = include_bytes!("filtered.spv");
const WARM: &[u8] = include_bytes!("warm.spv");

fn main() -> Result<(), Box<dyn Error>> {
    block_on(async {
        // Without a disk cache, every run prints the same.
        let rt = Runtime::builder().cache(CacheConfig::memory_only()).build().await?;
        println!("{}, {}\n\ndevice libraries:", rt.device(), rt.device().platform);
        for library in rt.libraries() {
            println!("  {library}");
        }
        let picture = Module::spirv(PICTURE)?.with_label("picture.spv");
        let filtered = Module::spirv(FILTERED)?.with_label("filtered.spv");
        let warm = Module::spirv(WARM)?.with_label("warm.spv");
        let mut steps = Steps::new(&rt);

        // curve(0.5) is 0.5, brighter by 0.25; and 0.5 is inverted.
        steps.run("a kernel that calls functions of a crate", &picture, "develop", 1.25).await?;
        steps.run("once more", &picture, "develop", 1.25).await?;

        rt.preload(&warm)?;
        steps.run("one of the ten functions is preloaded", &picture, "develop", 1.5).await?;
        rt.unregister(&warm);
        steps.run("and taken back", &picture, "develop", 1.25).await?;

        let plug_in = load()?;
        let attached = rt.attach(&read(&plug_in)?)?;
        drop(plug_in); // what was attached is a copy
        let kept =
            steps.run("a plug-in, which calls the crate's", &filtered, "filtered", 0.25).await?;
        drop(attached);
        let error = rt.build(&filtered).await.expect_err("the plug-in is detached");
        println!("\nwithout the plug-in: {error}");
        steps.launch(&kept, "filtered", 0.25).await?;
        println!("the program that was built with it still runs");
        Ok(())
    })
}

/// Loads the plug-in, which is beside the program.
fn load() -> Result<Library, Box<dyn Error>> {
    let path = std::env::current_exe()?.with_file_name(library_filename("filters"));
    // SAFETY: its initializers are those of Rust's standard library.
    unsafe { Library::new(&path) }.map_err(|error| {
        format!("{}: {error}; build the whole workspace first", path.display()).into()
    })
}

/// Copies the device libraries of the plug-in.
fn read(plug_in: &Library) -> Result<PluginLibraries, Box<dyn Error>> {
    type Function = extern "C" fn() -> ExportedLibraries;
    // SAFETY: the plug-in defines the function with this type, by `export_device_libraries!`.
    let function = unsafe { plug_in.get::<Function>(PluginLibraries::FUNCTION)? };
    // SAFETY: the plug-in is loaded.
    Ok(unsafe { PluginLibraries::read(&function()) }?)
}
