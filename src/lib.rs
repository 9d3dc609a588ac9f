//! Kiln runs compute kernels from async Rust, on OpenCL and Level Zero devices.
//!
//! An application passes device code to Kiln and awaits the results. Kiln handles three tasks that are hard to
//! get right around a driver whose calls block, whose compiler takes seconds, and whose objects give no
//! guarantee that memory outlives its use:
//!
//! * **A program is built once.** A build is a shared future: all callers that request the same module, with
//!   the same options, for the same device, await the same build. Later requests find the program in memory,
//!   and after the next start on disk. No caller owns a build: if the caller that requested it first is
//!   dropped, the build goes on.
//! * **No executor thread blocks.** Launches, copies and host futures form a DAG whose edges follow from the
//!   buffers that they use. Submitting returns at once, and the end of a command wakes the task that awaits it.
//!   The few calls that block are documented as such: allocating a [buffer](Runtime::buffer) and
//!   [`Program::binary`] call the driver, [`BuildRequest::key`] and the module [`store`] read files, and
//!   [`Event::wait`] is for host code that blocks.
//! * **Memory outlives the device's use of it.** Commands own the memory that they access until the driver
//!   reports that they have ended. Futures own nothing: any of them can be dropped, leaked or raced at any
//!   time.
//!
//! Kiln neither provides nor requires an executor: its futures run under tokio, smol, or a bare `block_on`.
//!
//! # First example
//!
//! ```no_run
//! use kiln::{Module, Runtime};
//!
//! # async fn example() -> kiln::Result<()> {
//! let rt = Runtime::new().await?; // the best device found
//! let module = Module::opencl_c(
//!     "kernel void saxpy(float a, global const float *x, global float *y) {
//!          size_t i = get_global_id(0);
//!          y[i] += a * x[i];
//!      }",
//! );
//! let program = rt.build(&module).checked().await?; // built once, whoever asks
//! let saxpy = program.kernel("saxpy")?; // its launches cannot leave their buffers
//!
//! let x = rt.buffer_from(vec![1.0f32; 1 << 20]).await?;
//! let y = rt.buffer_from(vec![2.0f32; 1 << 20]).await?;
//! let queue = rt.queue();
//! queue.submit(saxpy.launch(1 << 20).args((3.0f32, &x, &y)))?; // returns at once
//! let y: Vec<f32> = queue.read(&y).await?; // after the launch, because of its data
//! assert_eq!(y[0], 5.0);
//! # Ok(())
//! # }
//! ```
//!
//! Kiln proves from the kernel's code that a launch of a [checked](guides::checked) kernel stays inside its
//! buffers, or runs a variant of the kernel with the checks that are missing. For OpenCL C, this needs `clang` and
//! `llvm-spirv`. [`kernels!`] reads the signatures in a file of kernels at compile time, and generates functions
//! that return checked launches.
//!
//! # Kernels that are not checked
//!
//! [`Program::kernel`] returns a kernel as it is. It is `unsafe`: its caller promises that the kernel stays inside
//! the buffers and the local memory that it is given, and has no other undefined behaviour. Every later launch is
//! a safe call. Its arguments are checked, by number, kind, size and type, as far as the driver or the module
//! describes the kernel's signature ([`Kernel::params`]); for native binaries the description can be short. Buffer
//! lengths are not checked. Therefore keep such a kernel private to a function that launches it over buffers that
//! are long enough, or pass a length that the kernel checks.
//!
//! # When not to use it
//!
//! * For graphics, or compute that must run in a browser: use `wgpu`.
//! * For one large kernel in a program that has nothing else to do: call `opencl3` and block.
//! * For whole graphs of tensors: a framework's compiler has more information than kernel fusion can prove.
//! * For kernels written in Rust: Kiln takes OpenCL C, SPIR-V and native binaries.
//! * To run untrusted device code: a kernel can do whatever its driver allows. Only its compilation can be
//!   isolated: see [`Module::untrusted`].
//!
//! # How it works
//!
//! **Builds.** [`Runtime::build`] derives a [`BuildKey`](build::BuildKey), a BLAKE3 digest over everything that
//! can change the result: the module's digest, the files that its source includes, options, specialization
//! constants, the device with the versions of its driver, and the environment variables that change its compiler. Each
//! key has one shared build, which runs on a small pool of Kiln's own threads. A compile error is cached with its log,
//! like a program. A failure with an external cause, such as exhausted memory, is not cached: the next request
//! builds again. The programs in memory are limited by their total size in bytes. The least recently used ones
//! are evicted first, and a program that is in use survives its eviction.
//!
//! **Untrusted modules.** Drivers' compilers run in the application's own process, and malformed code can
//! crash, exit or hang it. A module that is marked as [untrusted](Module::untrusted) is compiled by a child
//! process, with a time limit. The child runs the program that [`RuntimeBuilder::build_child`] or
//! `KILN_BUILD_CHILD` names. By default, it runs this program itself if its `main` calls
//! [`build_child`](build::build_child) first, or else the tool `kiln`. Whatever the compiler does, the build returns a
//! program or an error.
//!
//! **Device libraries.** A module can import functions that another module exports. The imports are resolved
//! from the libraries given to [`Runtime::register`], including the imports of these libraries themselves. The
//! modules that a program needs are linked:
//!
//! ```no_run
//! use kiln::{Module, Runtime};
//!
//! # async fn example(rt: Runtime) -> kiln::Result<()> {
//! let library = Module::opencl_c("float tone(float x) { return x * x; }").exporting(["tone"]);
//! rt.register(&library)?; // or `rt.open_library(path)` for SPIR-V, which states its exports itself
//! let application = Module::opencl_c(
//!     "float tone(float x);
//!      kernel void apply(global float *x) { x[get_global_id(0)] = tone(x[get_global_id(0)]); }",
//! );
//! let program = rt.build(&application.importing(["tone"])).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A crate [embeds](device_library) its device code, so that linking the crate is enough, and a plug-in's
//! libraries are [attached](Runtime::attach). [`Runtime::preload`] replaces single functions of libraries.
//!
//! If the driver links, each module is compiled once for a device, to an object, and any number of programs are
//! linked from it. Replacing a library compiles the new one and links again, nothing else. The key of a program
//! covers the set of its modules, so the order of registration makes no difference, except with
//! [`DuplicateExports::FirstRegistered`](libraries::DuplicateExports::FirstRegistered). OpenCL C is linked by the
//! driver. SPIR-V is linked by the driver or, if the driver has no linker for it, by Kiln, to one module that is
//! compiled as a whole. Kiln also links for Level Zero, whose linker leaves calls where the compiler would inline;
//! [`RuntimeBuilder::link_objects`] makes Level Zero's linker do it anyway.
//!
//! **Fusion.** Launches that pass data on through memory can run as one kernel, without that memory.
//! [`Queue::start_fusion`] begins a scope that collects them:
//!
//! ```no_run
//! use kiln::{Buffer, Kernel, Queue};
//!
//! # async fn example(queue: Queue, blur: Kernel, tone: Kernel, src: Buffer<f32>, dst: Buffer<f32>,
//! #     tmp: Buffer<f32>) -> kiln::Result<()> {
//! let n = src.len();
//! let fusion = queue.start_fusion();
//! fusion.submit(blur.launch(n).args((&src, &tmp)))?;
//! fusion.submit(tone.launch(n).args((&tmp, &dst, 0.7f32)))?;
//! drop(tmp); // nobody reads it later: it need not be written
//! println!("{}", fusion.complete().await?);
//! # Ok(())
//! # }
//! ```
//!
//! Kiln analyses the kernels before it fuses them. It derives which bytes each work-item reads and writes,
//! and fuses launches only if that is proven to change no result. If a launch needs what other work-items of
//! an earlier launch write, as a blur does, a barrier inside the work-group is enough, or the fused kernel
//! runs the earlier launch again for the elements that are needed: see [`FusionForm`](fusion::FusionForm). Launches
//! that cannot be one kernel run in several parts, or one by one, and [`FusionScope::report`] states which kernel
//! reads which bytes where. If anything needs a launch before its scope is completed, such as a read, the launches
//! run one by one first. Fused kernels can be slower. Therefore the first runs try the ways to run the
//! launches in turns, and are timed on the device. The fastest way is kept, also on disk.
//!
//! The fusing compiler works on SPIR-V. Kernels given as OpenCL C are translated by `clang` and `llvm-spirv`,
//! which run as separate processes if the system has them (`KILN_CLANG`, `KILN_LLVM_SPIRV`). For devices that
//! take no SPIR-V, the fusing compiler writes OpenCL C.
//!
//! **Graphs.** [`Queue::record`] records commands that are checked and prepared once, and then run many times as
//! one command each, with other buffers and values: see [`guides::graphs`].
//!
//! **The disk.** The level below memory is a [store] of files that all processes of a user share. Processes
//! that start together share each compile, and the next start compiles nothing. A defect of the disk costs at
//! most a recompile. The one exception is a directory that was chosen explicitly: if other users own it or can
//! write to it, the runtime fails to start. [`CacheConfig`] and the environment set the location of the store
//! and its maximum size.
//!
//! **The fleet.** With the feature `remote`, an existing storage service, such as Redis or S3, is the level
//! below the disk: programs compiled on one machine are loaded by the others wherever loading is quicker than
//! compiling. Builds bypass an unavailable service, and its data is verified. The module `remote` is the guide.
//!
//! **Commands.** [`Queue::submit`] adds a node to the device's DAG and derives its edges (read after write,
//! write after read, write after write, overlapping slices included). It passes the command to the driver at
//! once, unless the command waits for a build, a host future or another device. A chain stays on one in-order
//! native queue, which keeps the order without any events; only edges between two native queues wait for a
//! native event. If a command does not run or fails, what it was to write is [lost](Queue#failures): the commands
//! that need it fail with the same error, the root cause.
//!
//! **Completion.** The first poll of an [`Event`] requests a callback from the driver. If the driver's
//! callbacks are missing or milliseconds late, a thread polls for completion instead. The callback stores a
//! flag and wakes the task. Then the task's next poll, a later submission or the reactor thread determines how
//! the command ended, and frees the memory that it kept alive. The reactor thread sleeps while nothing is in
//! flight.
//!
//! **Threads.** A runtime has one reactor thread. It starts other threads when they are first needed:
//!
//! * one for host futures, and one more beside each host task that blocks in [`Event::wait`];
//! * [two](RuntimeBuilder::compile_workers) for compilers, and as many that wait for the compilers of untrusted
//!   modules;
//! * one that reads included files, and loads programs that a remote cache sends while a compile runs;
//! * with a remote cache, one that communicates with it;
//! * for a trace, one that writes it;
//! * one for each call of [`Module::open`] or [`Program::binary`], which ends with the call;
//! * for time limits and pauses, one that waits for them;
//! * while a store is larger than its limit, one that collects.
//!
//! Each opened device may have more:
//!
//! * with Level Zero, which has no callbacks, and NVIDIA's OpenCL, whose callbacks are late: one that polls for
//!   completion;
//! * with Intel's runtime for CPUs, which counts on waiting threads to take part in the work: one that does so
//!   while a long command is awaited, so that none of the device's units is idle;
//! * two for copies between devices and, unless it is a CPU, for large reads, writes and fills;
//! * up to four for [native commands](Queue::native).
//!
//! Threads that have nothing to do sleep.
//!
//! # Services: signals, shutdown, forks and plug-ins
//!
//! * **Signals.** Some OpenCL drivers register handlers for SIGTERM, SIGINT and others. Kiln removes these
//!   handlers before [`Runtime::new`] or a build completes, so an application can register its own handlers at
//!   any time before or after. A handler that the application registers during these calls also stays. But if
//!   that handler calls the previous one, as `tokio::signal` does, register it outside the first such calls.
//! * **Shutdown.** Stop accepting requests, finish those that remain, then await [`Runtime::drain`], as the
//!   example `tokio_service` does. A process that ends without these steps also ends cleanly: on Linux with
//!   glibc, drivers accept no new work from then on ([`ErrorKind::ProcessEnding`]), and commands and calls have
//!   one second to end. After that second, or at once if a driver is being loaded, a device opened or a program
//!   compiled, the process ends without the handlers that were registered before the drivers' own. While
//!   drivers are loaded for the first time, do not end the process from a thread that has never called Kiln and
//!   is not the main thread: in rare cases, a driver's handlers may then still run first.
//! * **Forks.** Threads and drivers do not exist in a forked child. After Kiln has started in the parent, every
//!   operation that needs them fails with [`ErrorKind::Forked`] in the child. Fork earlier, or start another
//!   program. If the parent had used a driver, a child that ends runs no further exit handlers.
//! * **Plug-ins.** A library that contains Kiln stays in memory once it has created a runtime, even if
//!   `dlclose` is called.
//!
//! # Features
//!
//! * `opencl` (default): devices reached through OpenCL. The driver is loaded at run time: a program starts
//!   without a driver, and the error of [`Runtime::new`] then states what to install.
//! * `level-zero` (default): devices reached through Level Zero, in the same way. If both APIs reach a device,
//!   OpenCL is used, because it builds OpenCL C without further compilers; `KILN_DEVICE=level-zero` selects
//!   Level Zero.
//! * `simulated`: the module `simulated`, a software device for tests of applications. Its kernels are
//!   closures, and it produces faults on request.
//! * `cli`: the program `kiln`, which explores devices and the programs on disk. Applications need it only to
//!   compile untrusted modules, if they cannot compile them by themselves.
//! * `remote-redis`: a remote cache in Redis. The feature adds a Redis client and tokio to the dependencies,
//!   but the application can still use any executor.
//! * `remote-s3`, `remote-webdav` and `remote-fs`: a remote cache in the service of that name, accessed through
//!   OpenDAL, which these features add to the dependencies. `remote-opendal`: a remote cache through an OpenDAL
//!   operator that the application provides: see the module `remote::opendal`. `remote` is the part that these
//!   features share, and includes no service.
//!
//! The minimum supported Rust version is 1.89. Features that use OpenDAL need OpenDAL's minimum, currently
//! 1.91.
//!
//! # Build options
//!
#![doc = include_str!("docs/options.md")]
//!
//! # Environment
//!
//! These variables supply defaults for settings that the application does not set; those for build options
//! apply besides its settings. They are read once, when a runtime is built. An empty variable counts as unset.
//!
#![doc = include_str!("docs/environment.md")]
//!
//! Kiln warns if a variable's name begins with `KILN_` but is not in this list, and suggests the nearest name
//! that is. It also warns if a cache cannot be used. These warnings go to [`tracing`]. If the application has
//! set no subscriber, each warning is also written once to standard error, unless `KILN_WARNINGS` is `off`.
//!
//! In addition, OpenCL's own loader searches `OCL_ICD_VENDORS` for drivers, `OPENCL_DYLIB_PATH` names another
//! loader, and [`BuildKey`](build::BuildKey) lists the variables that change compilers.

mod args;
mod backend;
mod build_graph;
mod cache;
mod counters;
mod device;
mod digest;
mod error;
mod executor;
mod future;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub mod internal;
mod process;
mod queue;
mod runtime;
mod source;
mod sync;

/// Longer pages on one subject each. They exist in the documentation only.
#[cfg(any(doc, doctest))]
pub mod guides {
    #[doc = include_str!("docs/architecture.md")]
    pub mod architecture {}
    #[doc = include_str!("docs/caching.md")]
    pub mod caching {}
    #[doc = include_str!("docs/checked.md")]
    pub mod checked {}
    #[doc = include_str!("docs/cold_start.md")]
    pub mod cold_start {}
    #[doc = include_str!("docs/fusion.md")]
    pub mod fusion {}
    #[doc = include_str!("docs/graphs.md")]
    pub mod graphs {}
    #[doc = include_str!("docs/images.md")]
    pub mod images {}
    #[doc = include_str!("docs/interop.md")]
    pub mod interop {}
    #[doc = include_str!("docs/linking.md")]
    pub mod linking {}
    #[doc = include_str!("docs/memory.md")]
    pub mod memory {}
    #[doc = include_str!("docs/services.md")]
    pub mod services {}
}

pub use bytemuck;

/// Items that the macros for embedded device libraries use. Not part of the public interface.
#[doc(hidden)]
pub mod embedded {
    pub use crate::source::embed::{Aligned, Code, EMBEDDED, Embedded, linkme};
    pub use crate::source::plugin::exported;
}

/// The procedural macro that [`kernels!`] calls. Not part of the public interface.
#[doc(hidden)]
pub mod typed {
    pub use kiln_macros::kernels;
}

pub use crate::args::buffer::Buffer;
pub use crate::args::image::Image;
pub use crate::args::{Argument, Arguments, Local};
#[cfg(feature = "simulated")]
pub use crate::backend::simulated;
pub use crate::build_graph::{BuildRequest, CheckedProgram, Kernel, Program};
pub use crate::cache::config::CacheConfig;
#[cfg(feature = "remote")]
pub use crate::cache::remote;
pub use crate::cache::store;
pub use crate::counters::Stats;
pub use crate::device::{Device, DeviceInfo};
pub use crate::error::{Error, ErrorKind, Result};
pub use crate::queue::{Event, FusionMode, FusionScope, Graph, Launch, Queue, Read, Recorder};
pub use crate::runtime::builder::RuntimeBuilder;
pub use crate::runtime::{Runtime, StartRuntime};
pub use crate::source::module::Module;
pub use kiln_compiler::NdRange;

/// Builds: their keys, origins and progress, and the futures of [`BuildRequest`] and [`Module::open`].
pub mod build {
    pub use crate::build_graph::{
        Build, BuildProgress, CheckedBuild, CheckedBuildRequest, CompileProcesses, Origin,
        SpecializationValue, build_child,
    };
    pub use crate::digest::{BuildKey, Digest};
    pub use crate::runtime::progress::Progress;
    pub use crate::source::module::OpenModule;
    pub use kiln_spirv::SpecializationConstant;
}

/// Commands of a [`Queue`]: their states and times, and the futures that wait for other commands.
pub mod commands {
    pub use crate::backend::Profile;
    pub use crate::queue::{IntoOutcome, Ready, Status};
    pub use crate::runtime::{Drain, DrainTimeout};
}

/// Properties of a [`Device`]: its kind, its limits, and the formats of device code that it accepts.
pub mod devices {
    pub use crate::device::{DeviceKind, ImageLimits, Limits, ModuleFormat};
}

/// Fusion of launches: the outcome of a [`FusionScope`], and the report on its launches. The guide is
/// [`guides::fusion`].
pub mod fusion {
    pub use crate::queue::{
        CompleteFusion, ExamineFusion, FusedPart, FusionOutcome, Internalization, Unfused,
    };
    pub use kiln_compiler::fusion::{
        BufferReport, FusionForm, FusionLaunchReport, FusionReport, FusionVerdict, PairReport,
        PartReport, StepReport, WayReport,
    };
}

/// Recorded commands: what a [`Recorder`] and a [`Graph`] return. The guide is [`guides::graphs`].
pub mod graph {
    pub use crate::queue::{GraphScalar, RecordGraph, Replay};
}

/// Pixels, formats and parts of an [`Image`], and samplers. The guide is [`guides::images`].
pub mod images {
    pub use crate::args::image::ImagePart;
    pub use crate::args::image::pixel::{
        A, Argb, Bgra, Channel, Half, Intensity, Luminance, Pixel, R, Rg, Rgba, Snorm, Unorm,
    };
    pub use crate::device::{
        Addressing, ChannelOrder, ChannelType, Filter, ImageFormat, ImageKind, Sampler,
    };
}

/// Objects and error codes of the driver, for code that calls it directly. The guide is [`guides::interop`].
pub mod interop {
    pub use crate::args::region::MemoryHandle;
    pub use crate::backend::DriverHandles;
    pub use crate::error::DriverCode;
    pub use crate::queue::DriverQueue;
}

/// Details of a [`Launch`]: sizes, parameters of kernels, arguments, and verdicts on checked launches.
pub mod launch {
    pub use crate::args::buffer::BufferArgument;
    pub use crate::args::typed::{WritableBuffer, WritableImage};
    pub use crate::build_graph::CheckMode;
    pub use crate::queue::CheckLaunch;
    pub use kiln_compiler::bounds::{Finding, LaunchVerdict};
    pub use kiln_compiler::{IntoNdSize, NdSize, WorkGroup};
    pub use kiln_spirv::{Access, AddressSpace, Parameter};
}

/// Device libraries: registered, embedded and opened at run time, and the objects and symbols that are linked. The
/// guide is [`guides::linking`].
pub mod libraries {
    pub use crate::build_graph::{Attached, CompileObject, DuplicateExports, LinkedSymbol, Object};
    pub use crate::source::library::{DeviceLibrary, Embedding, LibrarySource};
    pub use crate::source::plugin::{ExportedLibraries, PluginLibraries};
}

/// Manifests: lists of programs, recorded to build them before they are needed. The guide is [`guides::cold_start`].
pub mod manifest {
    pub use crate::build_graph::WarmOutcome;
    pub use crate::cache::manifest::{
        BuildManifest, EntryKind, ManifestEntry, OpenManifest, SaveManifest,
    };
    pub use crate::runtime::manifest::{RecordManifest, Warm, WarmProgress};
}

/// Memory of devices: parts of a [`Buffer`], and the futures that transfer and map its contents. The guide is
/// [`guides::memory`].
pub mod memory {
    pub use crate::args::grid::{Grid, GridPart};
    pub use crate::args::memory::DeviceMemory;
    pub use crate::queue::{Map, MapMut, Mapped, MappedMut, ReadPieces, Upload};
}

/// Observation of a [`Runtime`]: the groups of [`Stats`], the states of devices, and traces of commands.
pub mod stats {
    pub use crate::counters::{
        BuildStats, CommandStats, DeviceStats, DiskStats, FusionStats, LaunchStats, MemoryStats,
        RemoteStats,
    };
    pub use crate::queue::{Trace, WriteTrace};
}
