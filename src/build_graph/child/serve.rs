//! The child's side: reads requests from standard input until it ends, and writes an answer to each to the
//! original standard output.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use kiln_spirv::user_name;

use super::message::{
    Answer, FRAME_START_BYTES, Failure, Greeting, ModuleHeader, Request, Task, decode_frame,
    encode_frame, frame_len,
};
use crate::backend::{self, Device, Program, Source};
use crate::build_graph::kernel_record::record;
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::process::resources;
use crate::process::threads;

/// Devices that requests have named, by identity and position.
type Devices = HashMap<(Vec<(String, String)>, usize), Arc<dyn Device>>;

/// Source of a kernel whose compile makes a compiler load what it needs.
const FIRST_SOURCE: &[u8] = b"kernel void first(global uint *x) { x[get_global_id(0)] += 1; }";

/// Handles requests. Errors concern only the communication with the parent; other errors are part of the
/// answers.
pub(super) fn serve() -> io::Result<()> {
    let mut answers = own_output()?;
    end_with_parent();
    answers.write_all(&Greeting::own().write())?;
    answers.flush()?;
    let mut requests = io::stdin().lock();
    let parent = Greeting::read_from(&mut requests).ok().flatten().ok_or_else(|| {
        invalid_data("a build child must be started by Kiln, with a request on its standard input")
    })?;
    if parent != Greeting::own() {
        // The greeting has been sent; the parent reports the mismatch.
        return Ok(());
    }
    let mut devices = Devices::new();
    while let Some(frame) = read_frame(&mut requests)? {
        let (request, sections) = decode_frame(&frame, Request::sections)
            .ok_or_else(|| invalid_data("the request is not complete"))?;
        let (answer, binary) = answer(&mut devices, &request, &sections);
        answers.write_all(&encode_frame(&answer.shortened(), &[&binary])?)?;
        answers.flush()?;
    }
    Ok(())
}

fn invalid_data(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Reads a frame. Returns `None` at the end of the stream.
fn read_frame(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut start = [0; FRAME_START_BYTES];
    if stream.read(&mut start[..1])? == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut start[1..])?;
    let length = frame_len(&start).ok_or_else(|| invalid_data("the request is too large"))?;
    let mut frame = start.to_vec();
    stream.take((length - start.len()) as u64).read_to_end(&mut frame)?;
    Ok(Some(frame))
}

/// Handles a request. Returns the answer and the binary that belongs to it.
fn answer(devices: &mut Devices, request: &Request, sections: &[&[u8]]) -> (Answer, Vec<u8>) {
    let failed = |error| (Answer::Failed(Failure::of(&error)), Vec::new());
    if let Some(directory) = &request.directory
        && let Err(error) = std::env::set_current_dir(directory)
    {
        return failed(Error::of_system("the build child cannot change its directory", error));
    }
    // A main thread's stack may be too small for a compiler.
    let done =
        threads::call("kiln-compile", || catch_panic(|| perform(devices, request, sections)));
    match done.and_then(|done| done) {
        Ok(Done::Prepared) => {
            (Answer::Made { log: String::new(), kernels: Vec::new() }, Vec::new())
        }
        Ok(Done::Compiled(program, Ok(binary))) => {
            let kernels = program.kernels().iter();
            let kernels =
                kernels.map(|kernel| record(user_name(kernel.name()), kernel.parameters()));
            let log = program.build_log().to_owned();
            (Answer::Made { log, kernels: kernels.collect() }, binary)
        }
        Ok(Done::Compiled(_, Err(error))) => (Answer::Unreturned(Failure::of(&error)), Vec::new()),
        Err(error) => failed(error),
    }
}

/// Returns the original standard output, reserved for the answer. Output of drivers is redirected to standard
/// error.
#[cfg(unix)]
fn own_output() -> io::Result<File> {
    use std::os::fd::AsFd;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(own))
}

/// Returns standard output. A driver that prints to it corrupts the answer, which the checksum detects.
#[cfg(windows)]
fn own_output() -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    Ok(File::from(io::stdout().as_handle().try_clone_to_owned()?))
}

/// Disables core dumps on Unix. On Linux, also makes the child end with its parent and be the first to be
/// killed if memory runs out. The child also works if the system does not allow these settings.
fn end_with_parent() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    #[cfg(unix)]
    end_at_hang_up();
}

/// Kills this process once its parent has closed the socket that is its standard input, even if a compiler runs.
/// Works for any parent and however it ends. Standard input that is a file holds a single request.
#[cfg(unix)]
fn end_at_hang_up() {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::{FileType, fstat};
    use rustix::process::{Signal, getpid, kill_process};
    let is_socket =
        fstat(io::stdin()).is_ok_and(|file| FileType::from_raw_mode(file.st_mode).is_socket());
    if !is_socket {
        return;
    }
    let watch = || {
        let stdin = io::stdin();
        loop {
            let mut files = [PollFd::new(&stdin, PollFlags::empty())];
            match poll(&mut files, None) {
                Ok(_) if files[0].revents().contains(PollFlags::HUP) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
        // Exit handlers of a driver could wait for its compiler.
        let _ = kill_process(getpid(), Signal::KILL);
    };
    // Without the thread, the process ends when it reads its next request.
    drop(threads::start("kiln-parent", watch));
}

/// Result of a request that was handled.
enum Done {
    /// The device is open.
    Prepared,
    /// The program was built, and this is its binary, or the driver's error when it was fetched.
    Compiled(Arc<dyn Program>, Result<Vec<u8>>),
}

/// Opens the device, and compiles the modules of the request.
fn perform(devices: &mut Devices, request: &Request, sections: &[&[u8]]) -> Result<Done> {
    fn source<'a>(header: &'a ModuleHeader, code: &'a [u8]) -> Source<'a> {
        let ModuleHeader { format, options, constants } = header;
        Source { format: *format, code, options, constants }
    }
    resources::check_for_driver()?;
    let id = (request.device.clone(), request.position);
    let device = match devices.get(&id) {
        Some(device) => Arc::clone(device),
        None => Arc::clone(devices.entry(id).or_insert(open_device(request)?)),
    };
    resources::check_for_process()?;
    let program = match (&request.task, sections) {
        (Task::Prepare, _) => {
            // A device that does not take the source has its compiler ready with the first program.
            let format = ModuleFormat::OpenClC;
            let first = Source { format, code: FIRST_SOURCE, options: "", constants: &[] };
            let _ = device.build(&first).and_then(|program| program.binary());
            return Ok(Done::Prepared);
        }
        (Task::Build(header), [code]) => device.build(&source(header, code))?,
        (Task::Link { modules, options }, sections) if modules.len() == sections.len() => {
            let compile_object =
                |(header, code): (&ModuleHeader, &&[u8])| device.compile(&source(header, code));
            let objects: Vec<_> =
                modules.iter().zip(sections).map(compile_object).collect::<Result<_>>()?;
            let objects: Vec<_> = objects.iter().map(|object| &**object).collect();
            device.link(&objects, options)?
        }
        _ => return Err(Error::invalid("a request must have one section for each module")),
    };
    let binary = match &request.task {
        // The parent already has the binary.
        Task::Build(header) if header.format == ModuleFormat::Native => Ok(Vec::new()),
        _ => program.binary().map_err(|error| {
            error.within("the build child cannot return a program without its binary")
        }),
    };
    Ok(Done::Compiled(program, binary))
}

/// Field of a device's identity with the files of its driver's compiler.
const COMPILER: &str = "compiler";

/// Opens the device that a request names.
fn open_device(request: &Request) -> Result<Arc<dyn Device>> {
    let field_value = |name: &str| {
        let field = request.device.iter().find(|(known, _)| known == name);
        field.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let name = field_value("backend");
    let backend = backend::discovery::drivers().into_iter().find(|backend| backend.name() == name);
    let backend = backend.ok_or_else(|| {
        let message = format!("the build child has no backend `{name}`");
        Error::new(ErrorKind::NoDevice, message)
    })?;
    let adapters = backend.adapters().map_err(|error| error.within("the build child"))?;
    let is_requested = |identity: [(&str, &str); 10]| {
        identity.iter().copied().eq(request.device.iter().map(|(name, value)| (&**name, &**value)))
    };
    let equal = adapters.iter().filter(|adapter| is_requested(adapter.info().identity()));
    // If there are fewer equal devices than the parent has seen, any of them will do.
    let adapter = equal.take(request.position + 1).last().ok_or_else(|| {
        let seen: Vec<_> = adapters
            .iter()
            .map(|adapter| {
                let info = adapter.info();
                format!("`{}` (driver {})", info.name, info.driver_version)
            })
            .collect();
        let (name, version) = (field_value("device"), field_value("driver version"));
        let differs_in_compiler = |identity: [(&str, &str); 10]| {
            identity.iter().all(|(name, value)| *name == COMPILER || field_value(name) == *value)
        };
        if adapters.iter().any(|adapter| differs_in_compiler(adapter.info().identity())) {
            return Error::new(
                ErrorKind::NoDevice,
                format!(
                    "the compiler of `{name}` has been updated since the application started, so that the build \
                     child has another one; start the application again"
                ),
            );
        }
        Error::new(
            ErrorKind::NoDevice,
            format!(
                "the build child does not find `{name}` (driver {version}), but {}; it must run \
                 with the drivers and the environment of the application",
                if seen.is_empty() { "no device".to_owned() } else { seen.join(", ") }
            ),
        )
    })?;
    adapter.open()
}
