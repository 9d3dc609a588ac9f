//! Runs the driver's compiler in a separate process. If the compiler crashes, exits, hangs or writes invalid
//! data, the build fails within a time limit, and the application continues.
//!
//! The process is a *build child*: a program whose `main` calls [`build_child`]. It receives requests and finds
//! the device by its identity, the one that keys cover. It answers each with the device's own binary, which the
//! parent loads like a binary from the disk, or with an error. See [`message`] for the format of both, and
//! [`serve`] for the child's side.
//!
//! For an untrusted module, a new child is started for every compile, since drivers keep state that untrusted
//! code may have damaged. Its input and output are files. Other modules can be compiled by
//! [compile processes](processes): children that stay, and are connected by a socket.
//!
//! For a linked program, one child compiles and links all modules. Objects are not shared, and they do not
//! leave the child: they are internal data of the compiler, made from untrusted input, and not every driver
//! can export them.

mod job_queue;
mod message;
mod process_worker;
mod processes;
mod serve;

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self as std_process, Command};
use std::sync::OnceLock;
use std::time::Duration;

use message::{Answer, Failure, Greeting, ModuleHeader, Request, Task, shortened};

use crate::backend::{self, Source};
use crate::build_graph::key::is_of_compilers;
use crate::cache::store::KernelRecord;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Result};
use crate::process::resources;
use crate::process::{self, ChosenProgram, ProcessOutput, find_program};

pub(super) use job_queue::{Reply, WaitingBuild};
pub use processes::CompileProcesses;
pub(crate) use processes::ProcessPool;

/// Default maximum duration of one child process.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Environment variable that names the child program.
const PROGRAM: &str = "KILN_BUILD_CHILD";

/// Environment variable that is set in a child process, and inherited by the processes that it starts.
const IS_CHILD: &str = "KILN_IS_BUILD_CHILD";

/// Name of this crate's tool, which can run as a child.
const TOOL: &str = "kiln";

/// Path of the current program, if it has called [`build_child`].
static OWN_PATH: OnceLock<PathBuf> = OnceLock::new();

/// Enables this program to compile [untrusted modules](crate::Module::untrusted), and programs for which there are
/// [compile processes](crate::RuntimeBuilder::compile_processes), in child processes that run the same program. Call it
/// first in `main`, before anything else, in particular before starting threads.
///
/// If the process was started as a build child, this function reads requests, has the driver compile them, writes
/// the answers and ends the process. Otherwise it records that this program can be started as a child,
/// and returns at once.
///
/// Code that runs in `main` before this call also runs in each child. With `#[tokio::main]` and similar
/// attributes, write a `main` of your own that calls this function and then starts the executor.
///
/// A program that cannot call it, such as a test under libtest, can use another program as the child: see
/// [`RuntimeBuilder::build_child`](crate::RuntimeBuilder::build_child).
///
/// # Examples
///
/// ```no_run
/// use kiln::{Module, Runtime};
///
/// fn main() -> kiln::Result<()> {
///     kiln::build::build_child();
///     smol::block_on(async {
///         let rt = Runtime::new().await?;
///         let upload = Module::open("upload.cl").await?.untrusted();
///         let program = rt.build(&upload).await?; // compiled by a child process
///         Ok(())
///     })
/// }
/// ```
pub fn build_child() {
    if !is_child() {
        if let Ok(path) = env::current_exe() {
            OWN_PATH.get_or_init(|| path);
        }
        return;
    }
    let status = match serve::serve() {
        Ok(()) => 0,
        Err(error) => {
            // Standard error is the only place left to report the error.
            let _ = writeln!(io::stderr(), "build child: {error}");
            1
        }
    };
    std_process::exit(status);
}

fn is_child() -> bool {
    env::var_os(IS_CHILD).is_some_and(|value| !value.is_empty())
}

/// Settings for the child processes of a runtime.
#[derive(Debug)]
pub(crate) struct Children {
    chosen: Option<ChosenProgram>,
    limit: Duration,
}

/// A device, described by the data with which a child finds it.
pub(super) struct Target<'a> {
    pub(super) info: &'a DeviceInfo,
    /// Index among the devices with the same identity.
    pub(super) position: usize,
}

/// Task for a child.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    Build(&'a Source<'a>),
    /// Compile each source to an object, and link the objects to a program with these options.
    Link {
        sources: &'a [Source<'a>],
        options: &'a str,
    },
}

impl Target<'_> {
    /// Returns the request of a task on this device. The child changes to `directory` first.
    fn request(&self, directory: Option<String>, task: Task) -> Request {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let device = self.info.identity().map(owned).into();
        Request { device, position: self.position, directory, task }
    }
}

/// Result of a build in a child.
pub(super) struct ChildOutput {
    /// Native binary of the program. Empty if the module was itself a native binary; the child has then tested
    /// it.
    pub(super) binary: Vec<u8>,
    pub(super) log: String,
    pub(super) kernels: Vec<KernelRecord>,
}

impl Children {
    /// Creates the settings. `program` is the program that the application names; if it is `None`, the
    /// environment variable names the program.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) if there is no program at the path; the error names the
    /// setting that gave the path.
    pub(crate) fn new(program: Option<PathBuf>, limit: Duration) -> Result<Self> {
        let given = program.map(|path| (path, "RuntimeBuilder::build_child"));
        Ok(Self { chosen: ChosenProgram::find(given, PROGRAM, env::var_os(PROGRAM))?, limit })
    }

    /// Returns the maximum duration of one compile.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Compiles in a child process. Blocks.
    ///
    /// # Errors
    ///
    /// * The error of the compiler, as reported by the child.
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with the child's output, if the child crashes or ends without
    ///   an answer: it would do so again.
    /// * Transient errors: [`Configuration`](ErrorKind::Configuration) if there is no child, or one of another
    ///   version; [`Driver`](ErrorKind::Driver) if it does not end within the limit or writes without end;
    ///   [`OutOfResources`](ErrorKind::OutOfResources) if it ran out of memory, and [`Io`](ErrorKind::Io) if it
    ///   cannot be started.
    pub(super) fn run(&self, target: &Target<'_>, order: Order<'_>) -> Result<ChildOutput> {
        let program = self.program()?;
        let (task, sections) = match order {
            Order::Build(source) => (Task::Build(header(source)), vec![source.code]),
            Order::Link { sources, options } => {
                let modules = sources.iter().map(header).collect();
                let task = Task::Link { modules, options: options.to_owned() };
                (task, sources.iter().map(|source| source.code).collect())
            }
        };
        let request = target.request(None, task);
        let mut input = Greeting::own().write();
        let frame = message::encode_frame(&request, &sections).map_err(|error| {
            Error::new(ErrorKind::Io, "the request to a build child cannot be encoded")
                .with_source(error)
        })?;
        input.extend_from_slice(&frame);
        let ended = process::run(untrusted_command(&program), &input, self.limit)
            .map_err(|error| error.within("the build child"))?;
        read_output(&program, ended, target.info.backend)
    }

    /// Returns the path of the program to start.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) if there is no program.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        if is_child() {
            return Err(configuration_error(
                "this process was started as a build child, but its `main` has not called \
                 `kiln::build::build_child()` first",
            ));
        }
        if let Some(chosen) = &self.chosen {
            return Ok(chosen.path.clone());
        }
        if let Some(own) = OWN_PATH.get() {
            // The file at the path may have been replaced by another version since the start of this process.
            let running = Path::new("/proc/self/exe");
            let has_link = cfg!(target_os = "linux") && running.exists();
            return Ok(if has_link { running.to_owned() } else { own.clone() });
        }
        let own = env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let path = env::var_os("PATH").unwrap_or_default();
        let mut folders = beside.into_iter().chain(env::split_paths(&path));
        folders.find_map(|folder| find_program(&folder, TOOL)).ok_or_else(|| {
            configuration_error(format!(
                "the module is to be compiled in a child process, but there is no executable for it; call \
                 `kiln::build::build_child()` first in `main`, or name an executable that does so \
                 with `RuntimeBuilder::build_child` or the environment variable {PROGRAM}, or \
                 install the tool `{TOOL}` next to this program or in PATH"
            ))
        })
    }
}

/// Environment variables that a build child of an untrusted module gets, besides those that change a compiler: what
/// programs and drivers need to start. A module that takes its compiler over must not find passwords there.
const PASSED: [&str; 14] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "TEMP",
    "TMP",
    "LANG",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "DYLD_LIBRARY_PATH",
    "SystemRoot",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "RUST_BACKTRACE",
    "EXTRA_LIBS",
];

/// Prefixes of further variables that such a child gets: settings of drivers, their loaders and their tools.
const PASSED_PREFIXES: [&str; 19] = [
    "AMD_",
    "ASAN_",
    "CUDA_",
    "DRMSHIM_",
    "GPU_",
    "HSA_",
    "INTEL_",
    "KILN_STAND_INS_",
    "LC_",
    "LSAN_",
    "MESA_",
    "NEO_",
    "NV_",
    "OCL_",
    "OPENCL_",
    "ROCM_",
    "ZES_",
    "ZET_",
    "ZE_",
];

/// Returns the command that starts a program as a child for untrusted modules, with few environment variables.
fn untrusted_command(program: &Path) -> Command {
    let is_passed = |name: &str| {
        PASSED.contains(&name)
            || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || is_of_compilers(name)
    };
    let variables = env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_passed));
    let mut command = Command::new(program);
    command.env_clear().envs(variables).env(IS_CHILD, "1");
    command
}

/// Returns the command that starts a program as a child.
fn child_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env(IS_CHILD, "1");
    command
}

/// Returns the error that a child has reported.
fn read_failure(failure: Failure, backend: &str) -> Error {
    failure.into_error(|code| backend::driver_code(backend, code))
}

/// Returns the data of a source other than its code.
fn header(source: &Source<'_>) -> ModuleHeader {
    ModuleHeader {
        format: source.format,
        options: source.options.to_owned(),
        constants: source.constants.to_vec(),
    }
}

/// Creates an error that can disappear once the configuration is corrected, so it is not kept.
fn configuration_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, message.into()).transient()
}

/// Returns the result of a child that has ended.
fn read_output(program: &Path, ended: ProcessOutput, backend: &str) -> Result<ChildOutput> {
    let program = program.display();
    let exit = process::describe_exit(ended.status);
    let starved = || {
        let message = format!(
            "the build child `{program}` ran out of {}: it {exit}",
            process::exhausted_resource(&ended)
        );
        Error::new(ErrorKind::OutOfResources, message).with_log(ended.log.as_str())
    };
    let was_starved = !ended.status.success() && process::ran_out_of_resources(&ended);
    let Some((greeting, frame)) = Greeting::read(&ended.output) else {
        if was_starved {
            return Err(starved());
        }
        let message = format!(
            "`{program}` is not a build child: it {exit} and did not identify itself as one; its \
             `main` must call `kiln::build::build_child()` first"
        );
        return Err(configuration_error(message).with_log(ended.log.as_str()));
    };
    if greeting != Greeting::own() {
        let own = Greeting::own();
        return Err(configuration_error(format!(
            "the build child `{program}` is of {greeting}, but this program is of {own}; both must \
             be of the same version"
        )));
    }
    // The exit status no longer matters: some drivers crash at exit.
    match message::decode_frame(frame, |_: &Answer| 1) {
        Some((Answer::Made { log, kernels }, sections)) => {
            Ok(ChildOutput { binary: sections.concat(), log: shortened(log), kernels })
        }
        Some((Answer::Failed(failure) | Answer::Unreturned(failure), _)) => {
            Err(read_failure(failure, backend))
        }
        // A child inherits the limits of this process.
        _ if was_starved || resources::check_for_process().is_err() => Err(starved()),
        _ => {
            let message = format!(
                "the compiler crashed on the program: its process, the build child `{program}`, \
                 {exit} without an answer"
            );
            Err(Error::new(ErrorKind::BuildFailed, message).with_log(ended.log.as_str()))
        }
    }
}
