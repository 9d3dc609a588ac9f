//! Kiln runs compute kernels from async Rust, on OpenCL and Level Zero devices.
//!
//! An application hands it device code and awaits results. Kiln sees to three things that are hard
//! to get right around a driver whose calls block, whose objects are not counted and whose compiler
//! takes seconds:
//!
//! * **A program is built once.** A build is a shared future: whoever asks for the same image, with
//!   the same options, for the same device, awaits the same build, and finds its program in memory
//!   afterwards, and on disk after the next start. A build belongs to nobody: dropping whoever asked
//!   for it first cancels nothing.
//! * **No executor thread blocks.** Launches, copies and host futures form a DAG whose edges follow
//!   from the buffers that they use. Submitting returns at once; a command's end wakes the task that
//!   awaits it. What does block says so: to allocate a [buffer](Runtime::buffer) is a call of the
//!   driver, [`BuildRequest::key`] reads files, and [`Event::wait`] is for hosts that block.
//! * **Memory outlives the device's use of it.** Commands own what they touch until the driver says
//!   that they have ended. Futures own nothing: any of them can be dropped, leaked or raced at any
//!   time.
//!
//! Kiln brings no executor and needs none: its futures run under tokio, smol, or a bare `block_on`.
//!
//! # First example
//!
//! ```no_run
//! use kiln::{Image, Runtime};
//!
//! # async fn example() -> kiln::Result<()> {
//! let rt = Runtime::new().await?; // the best device found
//! let image = Image::opencl_c(
//!     "kernel void saxpy(float a, global const float *x, global float *y) {
//!          size_t i = get_global_id(0);
//!          y[i] += a * x[i];
//!      }",
//! );
//! let program = rt.build(&image).await?; // built once, whoever asks
//! // SAFETY: `saxpy` touches x[i] and y[i] for i below the global size only.
//! let saxpy = unsafe { program.kernel("saxpy")? };
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
//! [`Program::kernel`] is where the one `unsafe` of an application stands: it promises that the
//! kernel stays inside the buffers and the local memory that it is given, and has no undefined
//! behaviour otherwise. Every launch after that is a safe call. Its arguments are checked, by number,
//! kind, size and type, as far as the driver or the image tells the kernel's signature
//! ([`Kernel::params`]); of native binaries that may be little. The length of a buffer is not among
//! that, since no signature tells it: keep a kernel private to a function that launches it over buffers
//! that are long enough, or have it check a length that it is given.
//!
//! # When not to use it
//!
//! * For graphics, or compute that must run in a browser: use `wgpu`.
//! * For one large kernel in a program that has nothing else to do: call `opencl3`, block, be done.
//! * For whole graphs of tensors: a framework's compiler knows more than fusion of kernels can prove.
//! * For kernels written in Rust: Kiln takes OpenCL C, SPIR-V and native binaries.
//! * To run untrusted device code: a kernel can do whatever its driver lets it do. Only compiling it
//!   can be kept from harm: see [`Image::untrusted`].
//!
//! # How it works
//!
//! **Builds.** [`Runtime::build`] derives a [`BuildKey`], a BLAKE3 digest over everything that can
//! change the result: the image's digest, the files that its source includes, options,
//! specialization constants, the device with the versions of its driver, and the environment
//! variables that change its compiler. Under that key stands one shared build, which runs on a few
//! threads of Kiln's own. What the compiler refused is kept, with its log, like a program; what
//! failed by circumstance, such as exhausted memory, is tried again. Programs are kept up to a
//! limit in bytes, the least recently used go first, and one that is in use survives its eviction.
//!
//! **Untrusted images.** Drivers' compilers run in the application's own process, and code that is
//! wrong in the right way ends or hangs it. An image that is marked as
//! [untrusted](Image::untrusted) is compiled by a child process, with a time limit: by this program
//! itself if its `main` calls [`build_child`] first, else by the tool `kiln`, or by what
//! `KILN_BUILD_CHILD` or [`RuntimeBuilder::build_child`] names. Whatever the compiler does, the build
//! is a program or an error.
//!
//! **Device libraries.** An image can import functions that another one exports. The libraries given to
//! [`Runtime::register`] resolve what is imported, through each other where they import themselves,
//! and what belongs together is linked:
//!
//! ```no_run
//! use kiln::{Image, Runtime};
//!
//! # async fn example(rt: Runtime) -> kiln::Result<()> {
//! let library = Image::opencl_c("float tone(float x) { return x * x; }").exporting(["tone"]);
//! rt.register(&library)?; // or `rt.open_library(path)`, of SPIR-V, which says itself what it exports
//! let application = Image::opencl_c(
//!     "float tone(float x);
//!      kernel void apply(global float *x) { x[get_global_id(0)] = tone(x[get_global_id(0)]); }",
//! );
//! let program = rt.build(&application.importing(["tone"])).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where the driver links, each image is compiled once for a device, to an object that any number of
//! programs are linked from, and swapping a library compiles the new one and links, nothing else. A
//! program's key covers the set of its images, so the order of registration makes no difference, but
//! for [`DuplicateExports::FirstRegistered`]. OpenCL C is linked by the driver, SPIR-V by the driver or,
//! where that has no linker for it, by Kiln, to one module that is compiled as a whole. So it is on Level
//! Zero, too, whose linker leaves calls where the compiler inlines: [`RuntimeBuilder::link_objects`] has
//! it link all the same.
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
//! Nothing is taken on trust. Kiln works out which bytes each work-item reads and writes, and fuses
//! launches only if no work-item needs what another one wrote, or if a barrier inside the work-group is
//! enough. Else they run one by one, and [`FusionScope::report`] says which kernel reads what where.
//! What needs a launch of the scope before it is completed, a read for instance, makes the launches
//! run one by one first. Fusing can be slower: the first runs are timed in turns, on the device, and
//! the faster way is kept, on disk too.
//!
//! The compiler works on SPIR-V. Kernels given as OpenCL C are translated by `clang` and `llvm-spirv`,
//! which it runs as processes of their own if the system has them (`KILN_CLANG`, `KILN_LLVM_SPIRV`); for
//! devices that take no SPIR-V it writes OpenCL C.
//!
//! **The disk.** Below memory lies a [store] of files that all processes of a user share. Processes
//! that start together share each compile, the next start compiles nothing, and what is wrong with
//! the disk costs a compile and nothing else; only a directory that was chosen and that others own, or
//! can write to, is an error at start. [`CacheConfig`] and the environment say where it is and how large
//! it may grow.
//!
//! **The fleet.** With the feature `remote`, a storage service that is there already, such as Redis or
//! S3, lies below the disk: what one machine has compiled the others load, wherever that is quicker than
//! to compile it. Builds go on without a service that is sick, and a lying one is not believed. The
//! module `remote` is the guide.
//!
//! **Commands.** [`Queue::submit`] adds a node to the device's DAG, derives its edges (read after
//! write, write after read, write after write, overlapping slices included), and hands it to the
//! driver at once unless it waits for a build, a host future or another device. A chain stays on
//! one in-order native queue, where order is free; only edges between two of these wait for a native
//! event. A failed command fails those that need its results with its own error, the root cause; a launch
//! that is refused before it runs [changes nothing](Queue#failures).
//!
//! **Completion.** The first poll of an [`Event`] asks the driver to call back, or, of a driver that
//! calls nobody back or does so milliseconds late, has a thread ask for the end. The callback stores
//! a flag and wakes the task; the task's next poll, a later submission or the one reactor thread
//! finds out how the command ended and frees what it kept alive. While nothing is in flight that
//! thread sleeps.
//!
//! **Threads.** A runtime has one reactor thread and, once they are needed, one for host futures and
//! [two](RuntimeBuilder::compile_workers) for compilers, as many that wait for the compilers of untrusted
//! images, and one that reads included files and loads what a remote cache sends while a compile runs;
//! with a remote cache one that speaks to it, a host task that blocks in [`Event::wait`] has one beside
//! it, and a trace is written on one of its own. For each opened device there may be more: with Level
//! Zero, which calls nobody back, and NVIDIA's OpenCL, which does so late, one that finds out when
//! commands end; with Intel's runtime for CPUs, which counts on those who wait to work along, one that
//! does so while a long command is awaited, lest one of the device's units idle; where the device is no
//! CPU, two for large reads, writes and fills. Waiting for another process's build adds the timer thread
//! of `async-io`, a store that is too large one that collects while it needs to. Those that have nothing
//! to do sleep.
//!
//! # Services: signals, shutdown, forks and plug-ins
//!
//! * **Signals.** Some OpenCL drivers register handlers for SIGTERM, SIGINT and others. Kiln takes these back
//!   before [`Runtime::new`] or a build completes, so an application may register its own at any time before
//!   or after. One that is registered during these calls also stays, but an application whose
//!   handler calls the one before it, as `tokio::signal` does, registers it outside of the first ones.
//! * **Shutdown.** Stop taking requests, finish those that remain, then await [`Runtime::drain`], as the example
//!   `tokio_service` does. A process that ends without that ends well, too: on Linux with glibc, drivers take no new
//!   work from then on ([`ErrorKind::ProcessEnding`]), and commands and calls have one second
//!   to end. After that, or at once if a compiler runs, the process ends without the handlers that were
//!   registered before the drivers' own. While drivers are loaded for the first time, a thread that has never
//!   called Kiln and is not the main thread should not end the process: it may still meet a driver's handlers
//!   first.
//! * **Forks.** Threads and drivers do not exist in a forked child: after Kiln has started in the parent, all that
//!   needs them fails with [`ErrorKind::Forked`] in the child. Fork before, or start another program.
//!   A child that ends while its parent had used a driver runs no further exit handlers.
//! * **Plug-ins.** A library that contains Kiln stays in memory once it has made a runtime, though `dlclose` is
//!   called.
//!
//! # Features
//!
//! * `opencl` (default): devices reached through OpenCL. The driver is loaded at run time: a program
//!   starts without one, and [`Runtime::new`] then says what to install.
//! * `level-zero` (default): devices reached through Level Zero, in the same way. Where both APIs reach
//!   a device, OpenCL is taken, since it builds OpenCL C without further compilers;
//!   `KILN_DEVICE=level-zero` selects this one.
//! * `simulated`: the module `simulated`, a device in software whose kernels are closures and whose
//!   faults come on request, for tests of applications.
//! * `cli`: the program `kiln`, which explores devices and the programs on disk. Applications need
//!   it only to compile untrusted images, if they cannot do that themselves.
//! * `remote-redis`: a remote cache in Redis. It adds a client of Redis and tokio to the dependencies, and
//!   nothing to the demands on the application's executor.
//! * `remote-s3`, `remote-webdav` and `remote-fs`: a remote cache in the service of that name, accessed
//!   through OpenDAL, which these add to the dependencies. `remote-opendal`: a remote cache through an
//!   operator of OpenDAL that the application brings: see the module `remote::opendal`. `remote` is the
//!   part that these features share, and has no service.
//!
//! The minimum supported Rust version is 1.89. Of the features that use OpenDAL it is OpenDAL's, 1.91 at
//! present.
//!
//! # Environment
//!
//! What an application does not set, these variables say, read once when a runtime is built. An empty
//! one counts as unset.
//!
#![doc = include_str!("docs/environment.md")]
//!
//! Kiln warns of a variable whose name begins with `KILN_` and is not in this list, with the nearest name
//! that is, and of a cache that cannot be used. Such warnings go to [`tracing`]; where the application
//! has set no subscriber, each is also written once to standard error, unless `KILN_WARNINGS` is `off`.
//!
//! Beside them, OpenCL's own loader looks at `OCL_ICD_VENDORS` for drivers, `OPENCL_DYLIB_PATH` names
//! another loader, and [`BuildKey`] tells of the variables that change compilers.

mod args;
mod backend;
mod build_graph;
mod cache;
mod compiler;
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
mod stats;
mod sync;

pub use bytemuck;

pub use crate::args::buffer::{Buffer, BufferArgument};
pub use crate::args::{Argument, Arguments, Local};
pub use crate::backend::Profile;
#[cfg(feature = "simulated")]
pub use crate::backend::simulated;
pub use crate::build_graph::{
    Build, BuildRequest, DuplicateExports, Kernel, Origin, Program, SpecializationValue,
    build_child,
};
pub use crate::cache::config::CacheConfig;
#[cfg(feature = "remote")]
pub use crate::cache::remote;
pub use crate::cache::store;
pub use crate::compiler::fusion::{BufferReport, FusionReport, LaunchReport, PairReport, Verdict};
pub use crate::compiler::nd_range::{IntoNdSize, NdRange, NdSize};
pub use crate::compiler::signature::{Access, AddressSpace, Parameter, SpecializationConstant};
pub use crate::device::{Device, DeviceInfo, DeviceKind, ImageFormat, Limits};
pub use crate::digest::{BuildKey, Digest};
pub use crate::error::{DriverCode, Error, ErrorKind, Result};
pub use crate::queue::{
    Event, Examining, Fusing, FusionMode, FusionOutcome, FusionScope, Internalization, IntoOutcome,
    Launch, Queue, Read, Status, Trace, Unfused, Upload, WriteTrace,
};
pub use crate::runtime::{Drain, DrainTimeout, Runtime, RuntimeBuilder, Starting};
pub use crate::source::image::{Image, OpenImage};
pub use crate::stats::Stats;
