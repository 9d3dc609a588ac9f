//! Builds: the build graph, keys, options, front ends, translations, progress and manifests.

mod build_time;
#[cfg(all(target_os = "linux", feature = "opencl"))]
mod driver_compiler;
mod front_end;
mod included_files;
#[cfg(feature = "cli")]
mod manifests;
mod many;
#[cfg(target_os = "linux")]
mod memory_limit;
#[cfg(target_os = "linux")]
mod memory_soak;
mod needed_features;
#[cfg(feature = "cli")]
mod options;
mod progress;
mod shared;
mod statistics;
mod trace;
mod translated_programs;
mod translated_text;
